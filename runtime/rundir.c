/* rundir.c: the folder of a run: its keys, its plan, what was chosen by
 * measuring, its ranks. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "runtime.h"

enum { MAXSHOWN = 32 }; /* ranks on the screen */

static void make_folders(const char *path)
{
    char *s = strf(forever, "%s", path);

    for (char *p = s + 1;; p++)
        if (*p == '/' || !*p) {
            char c = *p;
            *p = 0;
            if (mkdir(s, 0755) && errno != EEXIST)
                err(NULL, "cannot make the folder %s: %s", s, strerror(errno));
            *p = c;
            if (!c)
                return;
        }
}

/* The model file's name without folders and ending. */
static const char *model_name(const Plan *p)
{
    const char *s = p->model ? p->model : "run", *slash = strrchr(s, '/');

    s = slash ? slash + 1 : s;
    const char *dot = strrchr(s, '.');
    return strf(forever, "%.*s",
                dot && dot > s ? (int)(dot - s) : (int)strlen(s), s);
}

const char *run_dir(Arena *a, const Plan *p)
{
    const char *name = opts_str(p->opts, "name");

    return name ? name : strf(a, "runs/%s", model_name(p));
}

/* Once steps run no such file is worth the run: a disk may be full for a
 * while. */
void run_file(const char *path, const char *s, size_t n)
{
    FILE *f = fopen(path, "w");
    int bad = !f || fwrite(s, 1, n, f) != n;

    bad |= f && fclose(f);
    if (!bad)
        return;
    if (err_status == 1)
        err(NULL, "cannot write %s: %s", path, strerror(errno));
    warn(NULL, "cannot write %s: %s", path, strerror(errno));
    remove(path);
}

/* The keys as they were given: a Lua table for each table of keys. */
static void save_config(const Exec *x, const char *dir)
{
    Text s = { .arena = forever };
    const char *key, *value;

    put(&s, "-- keys of this run\nreturn {\n");
    for (int i = 0; opts_each(x->plan->opts, i, &key, &value); i++)
        put(&s, "  [\"%s\"] = \"%s\",\n", key, value);
    put(&s, "}\n");
    run_file(strf(forever, "%s/config.lua", dir), s.s, s.len);
}

/* A run that goes on with other kernels of products gets other last bits. */
static void say_other_blas(const Exec *x, const char *dir)
{
    const uint8_t *s;
    int64_t n;

    if (x->gpu || map_whole(forever, strf(forever, "%s/tuned", dir), &s, &n))
        return;
    char *old = strf(forever, "%.*s", (int)n, (const char *)s);
    munmap((void *)(uintptr_t)s, (size_t)n);
    old = strstr(old, "\nblas ");
    if (!old)
        return;
    old += strlen("\nblas ");
    old[strcspn(old, "\n")] = 0;
    if (strstr(old, ", kernels for ") && strcmp(old, blas_kind()))
        warn(NULL,
             "%s: products were computed with %s, from here on with %s: "
             "last bits differ",
             dir, old, blas_kind());
}

void run_tuned(const Exec *x, Text *t)
{
    if (x->gpu)
        tune_text(x->gpu, t);
    else
        put(t, "compiler %s\nblas %s\n", host_compiler(), blas_kind());
    put(t, "threads %d\n", pool_size(x->pool));
}

void run_ranks(const Exec *x, const char *dir)
{
    Text some = { .arena = forever }, all = { .arena = forever };

    if (x->comm->first || x->comm->world == 1)
        return;
    ranks_table(&some, x->plan, x->comm, MAXSHOWN);
    ranks_table(&all, x->plan, x->comm, x->comm->world);
    fwrite(some.s, 1, some.len, stdout);
    fflush(stdout);
    run_file(strf(forever, "%s/ranks", dir), all.s, all.len);
}

/* The tokenizer, so that `generate` has it wherever the folder goes. */
static void keep_tokenizer(const Exec *x, const char *dir)
{
    static const char *const names[] = { "tokenizer.json",
                                         "tokenizer_config.json" };
    const char *path = opts_str(x->plan->opts, "data.tokenizer");
    const char *slash = strrchr(path, '/');
    const uint8_t *s;
    int64_t n;

    for (int i = 0; i < 2 && strcmp(path, "bytes"); i++) {
        const char *from =
            !i ? path
               : strf(forever, "%.*s%s", slash ? (int)(slash - path + 1) : 0,
                      path, names[i]);
        if (map_whole(forever, from, &s, &n))
            continue;
        run_file(strf(forever, "%s/%s", dir, names[i]), (const char *)s,
                 (size_t)n);
        munmap((void *)(uintptr_t)s, (size_t)n);
    }
}

void run_folder(const Exec *x, const char *ckpt, const char *dir,
                const RunArgs *a)
{
    Text tuned = { .arena = forever };

    if (x->comm->first)
        return;
    make_folders(ckpt);
    save_config(x, dir);
    keep_tokenizer(x, dir);
    run_file(strf(forever, "%s/plan", dir), a->text, a->len);
    say_other_blas(x, dir);
    run_tuned(x, &tuned);
    run_file(strf(forever, "%s/tuned", dir), tuned.s, tuned.len);
}

/* ---- its keys ------------------------------------------------------------ */

/* Keys that are not compiled into the plan. */
/* clang-format off */
static const char *const runkeys[] = {
    "train.steps", "train.lr", "train.min_lr", "train.schedule",
    "train.warmup", "train.decay", "train.decay_style", "train.eval_every",
    "train.eval_steps", "train.save_every", "train.keep", "train.snapshot",
    "train.log_every",
    "train.sample_every", "train.sample_prompt", "train.sample_tokens",
    "data.train", "data.valid", "data.format", "data.tokenizer", "data.eod",
    "data.template", "data.field", "data.order", "data.split", "name", "from",
    "resume", NULL
};
/* clang-format on */

int run_key(const char *key)
{
    for (int i = 0; runkeys[i]; i++)
        if (!strcmp(runkeys[i], key))
            return 1;
    return 0;
}
