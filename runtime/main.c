/* main.c: pleat-run executes a plan. It links the runtime alone: no Lua, passes
 * or code generators. */
#include "runtime.h"

static const char usage[] =
    "usage: pleat-run FILE.plan [key=value ...]   train as the plan says\n"
    "       pleat-run runs/NAME resume=1          continue a run\n"
    "       pleat-run bench FILE.plan             where a step's time goes\n"
    "       pleat-run ckpt COMMAND                list, verify, compare ...\n"
    "       pleat-run doctor                      what this machine has\n"
    "Keys that a plan does not depend on may change: steps, learning rate,\n"
    "eval, save and log intervals, data, name, from, resume.\n"
    "A plan is a program: run only plans you built.";

/* Returns the path of the plan. A run folder stands for its plan, and its
 * settings go to *c; null: a plan file. */
static const char *settings_of(const char *path, Settings **c)
{
    *c = NULL;
    if (access(strf(forever, "%s/plan", path), F_OK))
        return path;
    *c = config_read(forever, strf(forever, "%s/config.lua", path));
    return strf(forever, "%s/plan", path);
}

static void lay_settings(Plan *p, const Settings *settings, const char *dir)
{
    const char *key, *value;

    for (int i = 0; settings && opts_each(settings->given, i, &key, &value);
         i++)
        if (run_key(key) && !key_same(settings, p, key))
            opts_set(p->opts, key, value, NULL);
    opts_set(p->opts, "name", dir, NULL);
}

static void set_key(Plan *p, const char *path, const char *arg)
{
    const char *eq = strchr(arg, '=');
    char *key = strf(forever, "%.*s", (int)(eq - arg), arg);

    opts_set(opts_new(forever), key, eq + 1, NULL); /* if there is none */
    if (run_key(key)) {
        opts_set(p->opts, key, eq + 1, NULL);
        return;
    }
    err(NULL, "key '%s' is compiled into %s; compile again to change it", key,
        path);
}

int main(int argc, char **argv)
{
    size_t len;

    process_start(built_from);
    if (argc == 2 && !strcmp(argv[1], "doctor")) {
        doctor(stdout);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        Text t = { .arena = forever };
        put_version(&t, 1);
        fputs(t.s, stdout);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "ckpt"))
        return ckpt_command(argc - 2, argv + 2);
    if (argc < 2 || argv[1][0] == '-') {
        if (argc < 2)
            err_usage("no plan is given\n%s", usage);
        if (strcmp(argv[1], "--help") && strcmp(argv[1], "-h"))
            err_usage("unknown option '%s'\n%s", argv[1], usage);
        puts(usage);
        return 0;
    }
    launch_errors();
    stdout_visible();
    int bench = !strcmp(argv[1], "bench");
    if (bench && argc != 3)
        err_usage("bench takes a plan\n%s", usage);
    argv += bench;
    argc -= bench;
    Settings *c;
    const char *path = settings_of(argv[1], &c);
    char *text = file_need(forever, path, &len);
    Plan *p = plan_parse(forever, text, len, path);
    RunArgs args = { .text = text, .len = len };
    if (bench)
        return bench_plan(p, 5, stdout);
    if (path != argv[1])
        lay_settings(p, c, argv[1]);
    for (int i = 2; i < argc; i++) {
        if (!strchr(argv[i], '=') || argv[i][0] == '=')
            err_usage("'%s' is not key=value\n%s", argv[i], usage);
        set_key(p, argv[1], argv[i]);
    }
    if (path != argv[1] && opts_int(p->opts, "resume"))
        resume_name(argv[1], p->opts);
    return run_plan(p, path != argv[1] ? &args : NULL);
}
