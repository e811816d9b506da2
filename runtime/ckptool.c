/* ckptool.c: what people do with checkpoints: list, verify, compare, and carry
 * to and from Hugging Face names. One row a subcommand.                      */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

/* ---- folders ------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Checkpoints in a run's folder, in its ckpt folder, or the one that dir is.
 * A vec of paths, oldest first.                                              */
static char **find_all(Arena *a, const char *dir)
{
    char **v = NULL, *inside = strf(a, "%s/ckpt", dir);
    struct dirent *e;

    if (!access(strf(a, "%s/state.json", dir), F_OK)) {
        vec_push(a, v, strf(a, "%s", dir));
        return v;
    }
    const char *where = access(inside, F_OK) ? dir : inside;
    DIR *d = opendir(where);
    if (!d)
        err(NULL, "cannot read %s", where);
    while ((e = readdir(d)))
        if (!strncmp(e->d_name, "step-", 5))
            vec_push(a, v, strf(a, "%s/%s", where, e->d_name));
    closedir(d);
    if (!v)
        err(NULL, "no checkpoint in %s", dir);
    qsort(v, vec_len(v), sizeof *v, by_text);
    return v;
}

static StFile *open_file(Arena *a, const char *dir, const char *name)
{
    StFile *f;
    const char *why = st_open(a, strf(a, "%s/%s", dir, name), &f);

    if (why)
        err(NULL, "%s", why);
    return f;
}

/* ---- ls, verify ---------------------------------------------------------- */

static int list(char **arg)
{
    char **v = find_all(forever, arg[0]);
    int bad = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        State s = {0};
        const char *why = ckpt_verify(forever, v[i], &s);
        if (why)
            printf("%s  damaged: %s\n", v[i], why);
        else
            printf("%s  step %lld  tokens %lld  seed %llu  plan %s\n", v[i],
                   (long long)s.step, (long long)s.tokens,
                   (unsigned long long)s.seed, s.plan);
        bad |= why != NULL;
    }
    return bad;
}

static int verify(char **arg)
{
    char **v = find_all(forever, arg[0]);
    int bad = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        State s;
        const char *why = ckpt_verify(forever, v[i], &s);
        printf("%s  %s%s\n", v[i], why ? "damaged: " : "ok", why ? why : "");
        bad |= why != NULL;
    }
    return bad;
}

/* ---- diff ---------------------------------------------------------------- */

static int same_shape(const StTensor *x, const StTensor *y)
{
    if (x->nd != y->nd)
        return 0;
    for (int d = 0; d < x->nd; d++)
        if (x->n[d] != y->n[d])
            return 0;
    return 1;
}

/* Largest difference and where; 1: they differ. */
static int diff_tensor(const StFile *f, const StTensor *x, const StFile *g,
                       const StTensor *y)
{
    int64_t n = (x->end - x->begin) / x->bytes, count = 0;
    double worst = 0, top = 0;

    if (!same_shape(x, y)) {
        printf("%-40s other shape\n", x->name);
        return 1;
    }
    for (int64_t i = 0; i < n; i++) {
        double a = st_get(x->dt, f->data + x->begin, i);
        double b = st_get(y->dt, g->data + y->begin, i);
        double d = fabs(a - b);
        count += a != b && !(a != a && b != b);
        worst = d > worst ? d : worst;
        top = fabs(a) > top ? fabs(a) : top;
    }
    if (count)
        printf("%-40s %lld of %lld differ, by %.3g at most (largest %.3g)\n",
               x->name, (long long)count, (long long)n, worst, top);
    return count > 0;
}

static int diff_files(const char *a, const char *b, const char *name)
{
    StFile *f = open_file(forever, a, name), *g = open_file(forever, b, name);
    int bad = 0;

    for (int i = 0; i < f->n; i++) {
        const StTensor *y = st_find(g, f->t[i].name);
        if (!y)
            printf("%-40s only in %s\n", f->t[i].name, a);
        bad |= !y || diff_tensor(f, &f->t[i], g, y);
    }
    for (int i = 0; i < g->n; i++)
        if (!st_find(f, g->t[i].name)) {
            printf("%-40s only in %s\n", g->t[i].name, b);
            bad = 1;
        }
    return bad;
}

static int diff(char **arg)
{
    char **a = find_all(forever, arg[0]), **b = find_all(forever, arg[1]);
    const char *x = a[vec_len(a) - 1], *y = b[vec_len(b) - 1];
    int bad = diff_files(x, y, "model.safetensors") |
              diff_files(x, y, "optim.safetensors");

    if (!bad)
        printf("%s and %s hold the same values\n", x, y);
    return bad;
}

/* ---- Hugging Face -------------------------------------------------------- */

/* The plan of a run, from its folder or a checkpoint's. */
static Plan *plan_near(const char *dir)
{
    static const char *const up[] = {"plan", "../plan", "../../plan"};

    for (int i = 0; i < 3; i++) {
        const char *path = strf(forever, "%s/%s", dir, up[i]);
        FILE *f = fopen(path, "r");
        struct stat st;
        if (!f || fstat(fileno(f), &st))
            continue;
        char *s = alloc(forever, (size_t)st.st_size + 1);
        size_t n = fread(s, 1, (size_t)st.st_size, f);
        fclose(f);
        return plan_parse(forever, s, n, path);
    }
    err(NULL, "no plan beside %s", dir);
}

static Exec *open_exec(const Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    if (role_prog(&p->role[0], "init") >= 0)
        exec_run(x, "init", NULL, NULL);
    return x;
}

static int export(char **arg)
{
    Exec *x = open_exec(plan_near(arg[0]));

    ckpt_from(x, arg[0]);
    hf_save(x, arg[1]);
    exec_close(x);
    return 0;
}

/* Weights under their names become step 0 of a run's folder. */
static int import(char **arg)
{
    Plan *p = plan_near(arg[1]);
    Exec *x = open_exec(p);
    State s = {.seed = (uint64_t)opts_int(p->opts, "seed")};

    ckpt_from(x, arg[0]);
    int bad = ckpt_save(x, strf(forever, "%s/ckpt", arg[1]), &s);
    exec_close(x);
    return bad ? 1 : 0;
}

static const struct { const char *name; int n; int (*f)(char **arg);
                      const char *args, *doc; } commands[] = {
    {"ls", 1, list, "DIR", "checkpoints of a run, oldest first"},
    {"verify", 1, verify, "DIR", "read all of them and compare their hashes"},
    {"diff", 2, diff, "DIR DIR", "what differs between the newest of two"},
    {"export-hf", 2, export, "DIR OUT", "weights under Hugging Face names"},
    {"import-hf", 2, import, "HF RUN", "step 0 of a run from such weights"},
};

enum { NCOMMAND = sizeof commands / sizeof *commands };

int ckpt_command(int n, char **arg)
{
    for (int i = 0; i < NCOMMAND && n > 0; i++)
        if (!strcmp(commands[i].name, arg[0]) && n - 1 == commands[i].n)
            return commands[i].f(arg + 1);
    for (int i = 0; i < NCOMMAND; i++)
        fprintf(stderr, "ckpt %-9s %-8s %s\n", commands[i].name,
                commands[i].args, commands[i].doc);
    return 2;
}
