/* rundir.c: the folder of a run: settings, model, plan, data, machine, measured
 * choices, ranks. Files of an earlier start are never overwritten: a file with
 * new contents leaves the old ones under a number, config.1.lua, plan.1. */
#include <sys/file.h>

#include "../../ir/settings/keys.h"
#include "train.h"

enum { MAXSHOWN = 32 }; /* ranks on the screen */

/* Returns "config.1.lua" for "config.lua" and 1. */
static char *numbered(Arena *a, const char *path, int n)
{
    int stem = file_stem(path);

    return strf(a, "%.*s.%d%s", stem, path, n, path + stem);
}

/* Did this process write the file? It belongs to this start then. */
static int is_own(const char *path)
{
    static const char **own; /* vec */

    path = intern(path);
    for (size_t i = 0; i < vec_len(own); i++)
        if (own[i] == path)
            return 1;
    vec_push(forever, own, path);
    return 0;
}

/* Keeps old contents under the first number that is free for all paths, by
 * links, so that each name always exists. */
static int put_aside(const char *const *path, int n)
{
    Arena *a = arena_new();
    int number = 1, bad = 0;

    for (int i = 0; i < n; i++)
        if (!access(numbered(a, path[i], number), F_OK)) {
            number++;
            i = -1;
        }
    for (int i = 0; i < n && !bad; i++) {
        char *to = numbered(a, path[i], number);
        bad = !access(path[i], F_OK) && link(path[i], to) &&
              file_move(path[i], to);
    }
    arena_free(a);
    return bad;
}

static int holds(const char *path, const char *s, size_t n)
{
    Arena *a = arena_new();
    size_t len = 0;
    const char *have = file_read(a, path, &len);
    int same = have && len == n && !memcmp(have, s, n);

    arena_free(a);
    return same;
}

static int differs(const char *path, const char *s, size_t n)
{
    struct stat st;

    return !stat(path, &st) && S_ISREG(st.st_mode) && !holds(path, s, n);
}

const char *run_dir(Arena *a, const Plan *p)
{
    const char *name = opts_str(p->opts, "name");
    const char *model = file_name(p->model ? p->model : "run");

    if (name && !*name)
        err(NULL, "name is empty: a run needs a folder");
    return name ? name : strf(a, "runs/%.*s", file_stem(model), model);
}

/* Locks the folder until the process ends; file systems without locks are
 * accepted. */
static void run_lock(const char *dir)
{
    static int fd = -1;

    if (fd >= 0)
        return;
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        err(NULL, "%s is another run's, which has not ended", dir);
}

/* Warns that a file was not written; during steps that does not end the run,
 * since a disk may be full only for a while. */
static void not_kept(const char *why)
{
    if (why && err_status == 1)
        err(NULL, "%s", why);
    if (why)
        warn(NULL, "%s", why);
}

static void cannot_write(const char *path)
{
    not_kept(strf(forever, "cannot write %s: %s", path, strerror(errno)));
}

void run_file(const char *path, const char *s, size_t n)
{
    int other = !is_own(path) && differs(path, s, n);

    if ((other && put_aside(&path, 1)) ||
        (!holds(path, s, n) && file_replace(path, OUTown, s, n)))
        cannot_write(path);
}

void run_tuned(const Exec *exec, Text *out)
{
    exec->dev->tuned(exec->on, out);
    put(out, "threads %d\n", pool_size(exec->pool));
}

void run_ranks(const Exec *exec, const char *dir)
{
    Text some = { .arena = forever }, all = { .arena = forever };

    if (exec->comm->first || exec->comm->world == 1)
        return;
    ranks_table(&some, exec->plan, exec->comm, MAXSHOWN);
    ranks_table(&all, exec->plan, exec->comm, exec->comm->world);
    fwrite(some.s, 1, some.len, stdout);
    fflush(stdout);
    run_file(strf(forever, "%s/ranks", dir), all.s, all.len);
}

/* Copies the tokenizer, so that `generate` works after the folder was moved. */
static void keep_tokenizer(const Plan *p, const char *dir)
{
    static const char *const names[] = { "tokenizer.json",
                                         "tokenizer_config.json" };
    const char *path = opts_str(p->opts, "data.tokenizer");
    const uint8_t *s;
    int64_t n;

    for (int i = 0; i < 2 && opts_text_tokenizer(p->opts) != TOKENIZERbytes;
         i++) {
        const char *from =
            !i ? path
               : strf(forever, "%s/%s", file_folder(forever, path), names[i]);
        if (map_whole(forever, from, &s, &n))
            continue;
        run_file(strf(forever, "%s/%s", dir, names[i]), (const char *)s,
                 (size_t)n);
        munmap((void *)(uintptr_t)s, (size_t)n);
    }
}

/* Copies the model's files with their relative paths. */
static void keep_model(const Plan *p, const char *dir)
{
    const char *first = p->nsource ? p->source[0].file : "";
    size_t n = (size_t)(file_name(first) - first);

    for (int i = 0; i < p->nsource; i++) {
        const char *name = p->source[i].file;
        name = !strncmp(name, first, n) ? name + n : file_name(name);
        char *path = strf(forever, "%s/model/%s", dir, name);
        *strrchr(path, '/') = 0;
        if (folders_make(path))
            err(NULL, "cannot make the folder %s: %s", path, strerror(errno));
        path[strlen(path)] = '/';
        run_file(path, p->source[i].text, strlen(p->source[i].text));
    }
}

void run_make(const char *dir, const char *ckpt)
{
    if (folders_make(ckpt))
        err(NULL, "cannot make the folder %s: %s", ckpt, strerror(errno));
    run_lock(dir);
    folder_sweep(dir);
    folder_sweep(strf(forever, "%s/model", dir));
    ckpt_sweep(forever, ckpt);
}

/* Does a config.lua of other bytes hold the same settings? Its start step is
 * not compared. */
static int same_settings(const char *path, const Plan *p)
{
    const Settings *c = config_read(forever, path);
    int same = c && c->format == format_now(FMTrun);

    for (const KeyInfo *k = keytab; same && k->name; k++)
        same = !strcmp(key_name(k), "name") || !strcmp(key_name(k), "resume") ||
               key_same(c, p, key_name(k));
    return same;
}

/* Writes settings and plan; those of one start have the same number. */
static void keep_settings(const Plan *p, const char *dir, const RunArgs *args,
                          int64_t step)
{
    const char *file[] = { strf(forever, "%s/config.lua", dir),
                           strf(forever, "%s/plan", dir) };
    Text out = { .arena = forever };

    if (same_settings(file[0], p) && holds(file[1], args->text, args->len))
        return;
    config_put(&out, p, dir, step);
    if (put_aside(file, 2) ||
        file_replace(file[1], OUTown, args->text, args->len))
        cannot_write(file[1]);
    if (file_replace(file[0], OUTown, out.s, out.len))
        cannot_write(file[0]);
}

void run_folder(const Exec *exec, const Plan *p, const char *dir,
                const RunArgs *args, const RunRecord *record)
{
    Text tuned = { .arena = forever };

    if (exec->comm->first)
        return;
    keep_settings(p, dir, args, record->step);
    keep_model(p, dir);
    keep_tokenizer(p, dir);
    not_kept(hf_keep(p, dir));
    run_file(strf(forever, "%s/machine", dir), record->machine,
             strlen(record->machine));
    if (*record->data)
        run_file(strf(forever, "%s/data", dir), record->data,
                 strlen(record->data));
    run_tuned(exec, &tuned);
    run_file(strf(forever, "%s/tuned", dir), tuned.s, tuned.len);
}
