/* again.c: executes a run's folder, or a plan of another format, by the
 * settings, plan and sources stored in it. If no compiled-in key has changed,
 * the folder's plan is executed, so that a resumed run has the same bits;
 * otherwise its sources are compiled again. */
#include "../frontend.h"

/* ---- compiling from sources ---------------------------------------------- */

typedef struct Anew {
    const Plan *rest;
    const Opts *keys;
} Anew;

static int anew_job(void *arg, FILE *out)
{
    const Anew *anew = arg;
    size_t n;
    Trace t =
        trace_sources(anew->rest->source, anew->rest->nsource, anew->keys);
    CompileOptions o = { .out = stderr,
                         .source = t.source,
                         .nsource = t.nsource };
    char *s = plan_print(forever, compile(t.g, target_of(t.g->opts), &o), &n);

    return fwrite(s, 1, n, out) != n;
}

/* Reports that a plan is compiled again. A plan made from a graph has no
 * sources. */
static void say_anew(const Plan *rest, int64_t format, const char *name)
{
    const char *what =
        strf(forever, "is a plan of format %ld, Pleat %s executes format %d",
             format, program_version, format_now(FMTplan));

    if (!rest->nsource)
        err(NULL, "%s %s, and carries no sources to compile anew", name, what);
    if (!launch_rank())
        warn(NULL, "%s %s: it is compiled anew from the sources it carries",
             name, what);
}

static int why_job(void *arg, FILE *out)
{
    const Anew *anew = arg;
    Trace t =
        trace_sources(anew->rest->source, anew->rest->nsource, anew->keys);
    CompileOptions o = { .out = out, .dump = "why", .prog = PGstep };

    compile(t.g, target_of(t.g->opts), &o);
    return 0;
}

static Opts *keys_of(const Plan *p)
{
    Opts *keys = opts_new(forever);

    opts_copy(keys, p->opts);
    opts_set(keys, "target", p->target, NULL);
    return keys;
}

Text decisions(const Plan *p)
{
    Text out = { .arena = forever };
    int status = guarded(why_job, &(Anew){ p, keys_of(p) }, &out);

    if (status)
        exit(status);
    return out;
}

/* Callback of plan_anew. */
static Plan *compile_anew(const Plan *rest, int64_t format, const char *name)
{
    Text out = { .arena = forever };

    say_anew(rest, format, name);
    int status = guarded(anew_job, &(Anew){ rest, keys_of(rest) }, &out);
    if (status)
        exit(status);
    return plan_parse(forever, out.s, out.len, name);
}

void accept_other_plans(void)
{
    plan_anew = compile_anew;
}

/* ---- comparison of a run's model ----------------------------------------- */

typedef struct Models {
    const Plan *past;
    const Args *now;
    const char *dir, *hint;
} Models;

/* Returns the computation as text, without names and metrics. */
static char *essence(Graph *g)
{
    Node **v = g->node;
    size_t n = 0;

    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i]->op != Ometric && v[i]->op != Ooutput &&
            v[i]->op != Ooptimizer)
            v[n++] = v[i];
    vec_cut(v, n);
    g_tidy(g);
    g->opts = opts_new(g->arena);
    g->name = intern("model");
    g->nhf = 0;
    return graph_print(forever, g, 0);
}

/* Returns the declared axis of sequences; null: none. */
static const Axis *batch_of(const Graph *g)
{
    const Axis *a = g_role(g, ROLEbatch);

    return a && a->loc ? a : NULL;
}

/* Returns the first line of a that differs in b. */
static const char *first_other(const char *a, const char *b)
{
    size_t i = 0, line = 0;

    for (; a[i] && a[i] == b[i]; i++)
        line = a[i] == '\n' ? i + 1 : line;
    line += strspn(a + line, " ");
    return strf(forever, "%.*s", (int)strcspn(a + line, "\n"), a + line);
}

/* Compares the models of args and of the folder. The sequences of a micro-batch
 * may change: both are then compared with this batch. The optimizer may change
 * too. */
static int compare_job(void *arg, FILE *out)
{
    const Models *models = arg;
    Opts *then = opts_new(forever);
    const Args *args = models->now;
    Trace now = args->past ? trace_sources(args->past->source,
                                           args->past->nsource, args->keys)
                           : trace(args->file, args->keys, TRACEquiet);
    const Axis *batch = batch_of(now.g);

    (void)out;
    opts_copy(then, models->past->opts);
    if (batch)
        opts_set(then, intern(strf(forever, "axes.%s", batch->name)),
                 strf(forever, "%ld", batch->n), NULL);
    opts_set(then, "train.optimizer", opts_str(now.g->opts, "train.optimizer"),
             NULL);
    Trace past =
        trace_sources(models->past->source, models->past->nsource, then);
    char *x = essence(past.g), *y = essence(now.g);
    if (strcmp(x, y))
        err(NULL, "the model is not that of %s: '%s' was '%s'%s", models->dir,
            first_other(y, x), first_other(x, y), models->hint);
    return 0;
}

static Plan *rest_of(const char *dir)
{
    const char *path = strf(forever, "%s/plan", dir);
    size_t n;
    char *s = file_read(forever, path, &n);

    return s ? plan_rest(forever, s, n, path) : NULL;
}

void check_same_model(const Args *args, const Plan *past, const char *dir,
                      const char *hint)
{
    Models models = { past, args, dir, hint };
    int status = past->nsource ? guarded(compare_job, &models, NULL) : 0;

    if (status)
        exit(status);
}

/* Called by rank 0 before MPI starts. */
void check_model(const Args *args, const char *dir)
{
    if (launch_rank() || !opts_int(args->keys, "resume") ||
        !ckpt_exists(strf(forever, "%s/ckpt", dir)))
        return;
    Plan *past = rest_of(dir);
    if (past)
        check_same_model(
            args, past, dir,
            strf(forever,
                 "; a run keeps its model (from=%s name=... starts "
                 "another with its weights)",
                 dir));
}

/* ---- a run by its folder ------------------------------------------------- */

const char *folder_of(const char *file)
{
    size_t n = strlen(file);

    while (n > 1 && file[n - 1] == '/')
        n--;
    const char *dir = strf(forever, "%.*s", (int)n, file);
    int is = !access(strf(forever, "%s/config.lua", dir), F_OK) ||
             !access(strf(forever, "%s/plan", dir), F_OK);
    return is ? dir : NULL;
}

/* Files of a start: settings, and the plan of the same number. */
typedef struct Start {
    const Settings *c; /* null: none */
    const char *plan;
} Start;

/* Returns start i: 0 the last one, 1 .. the earlier ones. */
static Start start_number(const char *dir, int i)
{
    const char *dot = i ? strf(forever, ".%d", i) : "";
    const char *config = strf(forever, "%s/config%s.lua", dir, dot);

    return (Start){ config_read(forever, config),
                    strf(forever, "%s/plan%s", dir, dot) };
}

/* Returns the last start; with --replay the start that ran the step. */
static Start start_of(const Args *args, const char *dir)
{
    Start s = start_number(dir, 0);
    int n = 1;

    if (!args->replay || !s.c)
        return s;
    while (!access(strf(forever, "%s/config.%d.lua", dir, n), F_OK))
        n++;
    for (int i = n; s.c->from_step >= args->replay && --i > 0;)
        s = start_number(dir, i);
    return s;
}

static void set_count(Opts *opts, const Opts *given, const char *key, int64_t n)
{
    if (!opts_given(given, key))
        opts_set(opts, key, strf(forever, "%ld", n), NULL);
}

/* Sets keys of the launch. If hosts have unequal numbers of ranks, sets the
 * largest runs of ranks that each host has whole. */
void take_launch(Opts *opts, const Opts *given)
{
    int64_t world = launch_world(), local = launch_local(), host = local;

    if (!launched())
        return;
    set_count(opts, given, "world", world);
    while (world % host || local % host)
        host--;
    if (host < world)
        set_count(opts, given, "fold.host", host);
}

/* Returns the settings of the run, overridden by the typed keys. */
static Opts *all_keys(const Args *args, const char *dir,
                      const Settings *settings, const Plan *plan)
{
    const Opts *from = settings ? settings->given : plan->opts;
    Opts *o = opts_new(forever);
    const char *key, *value;

    for (int i = 0; opts_each(from, i, &key, &value); i++)
        opts_set(o, key, value, NULL);
    for (int i = 0; settings && opts_each(settings->defaults, i, &key, &value);
         i++)
        if (!opts_given(o, key) &&
            (!opts_str(o, key) || strcmp(opts_str(o, key), value)))
            opts_set(o, key, value, NULL);
    if (!opts_given(o, "target"))
        opts_set(o, "target", plan->target, NULL);
    if (!opts_given(o, "world") && plan->mesh)
        opts_set(o, "world", strf(forever, "%ld", plan->mesh->world), NULL);
    if (!args->replay)
        take_launch(o, args->keys);
    opts_set(o, "name", dir, NULL);
    opts_set(o, "resume", "0", NULL); /* belongs to this start only */
    opts_copy(o, args->keys);
    return o;
}

/* Has the key the plan's value? Paths may be spelled differently. */
static int same_key(const Opts *opts, const Plan *p, const char *key)
{
    const char *x = opts_str(opts, key), *y = opts_str(p->opts, key);

    if (!strcmp(key, "target"))
        y = p->target;
    if (!strcmp(key, "world"))
        y = strf(forever, "%ld", p->mesh->world);
    if (!x || !y)
        return x == y;
    return !strcmp(config_value(forever, key, x),
                   config_value(forever, key, y));
}

/* Does a key differ that only compiling again can change? */
static int compiles(const Opts *opts, const Plan *p)
{
    const char *key, *value;

    if (opts_str(opts, "train.ramp"))
        return 1;
    for (const KeyInfo *k = keytab; k->name; k++)
        if (!run_key(key_name(k)) && !same_key(opts, p, key_name(k)))
            return 1;
    for (int i = 0; opts_each(opts, i, &key, &value); i++)
        if (key_of_model(key) && !same_key(opts, p, key))
            return 1;
    return 0;
}

static Plan *plan_in(const char *path, Text *text, int *other)
{
    size_t n;
    char *s = file_need(forever, path, &n);
    int64_t format = plan_format(s, n);
    *other = format && format != format_now(FMTplan);
    *text = (Text){ .arena = forever, .s = s, .len = n };
    return *other ? plan_rest(forever, s, n, path)
                  : plan_parse(forever, s, n, path);
}

/* Returns the settings that override the plan's, as text for all ranks. */
static Text overlay(const Opts *opts, const Plan *p)
{
    Text out = { .arena = forever };
    const char *key, *value;

    put(&out, "%s", "");
    for (int i = 0; opts_each(opts, i, &key, &value); i++)
        if (!same_key(opts, p, key) && run_key(key))
            put(&out, "%s=%s\n", key, value);
    return out;
}

static void lay_over(Plan *p, const Text *out)
{
    for (const char *s = out->len ? out->s : ""; *s;) {
        size_t n = strcspn(s, "="), all = strcspn(s, "\n");
        opts_set(p->opts, strf(forever, "%.*s", (int)n, s),
                 strf(forever, "%.*s", (int)(all - n - 1), s + n + 1), NULL);
        s += all + 1;
    }
}

/* Applies these settings to the plan on a rank. */
void share_settings(Plan *p, Text *over)
{
    if (launched())
        comm_plan(over);
    lay_over(p, over);
}

/* Called by rank 0 before MPI starts: sets args' keys to those of the run, and
 * args to its sources or its plan. Returns the settings for the other ranks. */
Text take_folder(Args *args, const char *dir)
{
    Text text, none = { .arena = forever };
    int other;

    args->file = strf(forever, "%s/plan", dir);
    if (launch_rank())
        return none;
    if (opts_int(args->keys, "resume") || args->replay)
        resume_name(dir, args->keys);
    Start s = start_of(args, dir);
    args->file = s.plan;
    args->begun = s.c ? s.c->from_step : 0;
    Plan *p = plan_in(s.plan, &text, &other);
    args->keys = all_keys(args, dir, s.c, p);
    args->past = p;
    if (other)
        say_anew(p, plan_format(text.s, text.len), args->file);
    if (!other && !compiles(args->keys, p)) {
        args->ready = text;
        return overlay(args->keys, p);
    }
    check_model(args, dir);
    return none;
}
