/* ckptool.c: what people do with checkpoints: list, verify, compare, and carry
 * to and from Hugging Face names. One row a subcommand. */
#include "ckpt.h"

/* ---- folders ------------------------------------------------------------- */

/* Checkpoints in a run's folder, in its ckpt folder, or the one that dir is.
 * A vec of paths, oldest first. */
static char **find_all(Arena *a, const char *dir)
{
    char **v = NULL, *inside = strf(a, "%s/ckpt", dir);
    int why;

    if (!access(strf(a, "%s/state.json", dir), F_OK)) {
        vec_push(a, v, strf(a, "%s", dir));
        return v;
    }
    const char *where = access(inside, F_OK) ? dir : inside;
    char **name = folder_names(a, where, &why);
    if (why)
        err(NULL, "cannot read %s: %s", where, strerror(why));
    for (size_t i = 0; i < vec_len(name); i++)
        if (!strncmp(name[i], "step-", 5))
            vec_push(a, v, strf(a, "%s/%s", where, name[i]));
    if (!v)
        err(NULL, "no checkpoint in %s", dir);
    return v;
}

/* ---- ls, verify ---------------------------------------------------------- */

static int list(char **arg)
{
    char **v = find_all(forever, arg[0]);
    int bad = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        State s = { 0 };
        const char *why = ckpt_verify(forever, v[i], &s);
        if (why)
            printf("%s  damaged: %s\n", v[i], why);
        else
            printf("%s  step %ld  tokens %ld  seed %lu  plan %s\n", v[i],
                   s.step, s.tokens, s.seed, s.plan);
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
static int diff_tensor(const StFile *st_file, const StTensor *x,
                       const StFile *file, const StTensor *y)
{
    int64_t n = (x->end - x->begin) / x->bytes, count = 0;
    double worst = 0, top = 0;

    if (!same_shape(x, y)) {
        printf("%-40s other shape\n", x->name);
        return 1;
    }
    for (int64_t i = 0; i < n; i++) {
        double a = st_get(x->dt, st_file->data + x->begin, i);
        double b = st_get(y->dt, file->data + y->begin, i);
        double d = fabs(a - b);
        if (a != b && !(a != a && b != b)) {
            count++;
            worst = worst != worst || d <= worst ? worst : d;
        }
        top = fabs(a) > top ? fabs(a) : top;
    }
    if (count)
        printf("%-40s %ld of %ld differ, by %.3g at most (largest %.3g)\n",
               x->name, count, n, worst, top);
    return count > 0;
}

/* Tensors of x that y has not, or others; 1: there are some. */
static int diff_files(StFile **x, StFile **y, const char *what, int values)
{
    int bad = 0;

    for (size_t i = 0; i < vec_len(x); i++)
        for (int k = 0; k < x[i]->n; k++) {
            StFile *file = NULL;
            const StTensor *t = &x[i]->t[k],
                           *u = st_find_in(y, (int)vec_len(y), t->name, &file);
            if (!u)
                printf("%-40s only in %s\n", t->name, what);
            bad |= !u || (values && diff_tensor(x[i], t, file, u));
        }
    return bad;
}

/* Files of a run's newest checkpoint, or of a Hugging Face folder: a vec; what
 * is diffed, to *name. */
static StFile **side(char *dir, const char **name)
{
    StFile **v = NULL;

    *name = dir;
    if (access(strf(forever, "%s/state.json", dir), F_OK) &&
        access(strf(forever, "%s/ckpt", dir), F_OK) && !ckpt_exists(dir))
        return ckpt_files(forever, dir);
    char **all = find_all(forever, dir);
    *name = all[vec_len(all) - 1];
    for (int i = MODEL; i <= OPTIM; i++)
        vec_push(forever, v,
                 st_need(forever, strf(forever, "%s/%s", *name, ckptfile[i])));
    return v;
}

static int diff(char **arg)
{
    const char *a, *b;
    StFile **x = side(arg[0], &a), **y = side(arg[1], &b);
    int bad = diff_files(x, y, a, 1) | diff_files(y, x, b, 0);

    if (!bad)
        printf("%s and %s hold the same values\n", a, b);
    return bad;
}

/* ---- Hugging Face -------------------------------------------------------- */

/* The plan of a run, from its folder or a checkpoint's. */
static Plan *plan_near(const char *dir)
{
    const char *path = run_file_near(forever, dir, "plan");
    size_t n;

    if (!path)
        err(NULL, "%s is no run: no plan is beside it", dir);
    char *s = file_need(forever, path, &n);
    return plan_parse(forever, s, n, path);
}

/* "fp32", "bf16", "fp16", or FTnone. */
static FileType export_dtype(const char *s)
{
    static const struct {
        const char *name;
        FileType dt;
    } words[] = { { "fp32", FTF32 }, { "bf16", FTBF16 }, { "fp16", FTF16 } };

    for (int i = 0; i < 3; i++)
        if (!strcmp(s, words[i].name))
            return words[i].dt;
    return FTnone;
}

/* "5GB", "800MB": bytes */
static int64_t size_named(const char *s)
{
    char *end;
    double n = strtod(s, &end);

    n *= !strcmp(end, "GB")   ? 1e9
         : !strcmp(end, "MB") ? 1e6
         : !strcmp(end, "KB") ? 1e3
                              : 0;
    if (!(n >= 1 && n < 9e18))
        err(NULL,
            "export: what is '%s'? It takes fp32, bf16 or fp16, hub, "
            "fused or adapters, and a size of files (5GB)",
            s);
    return (int64_t)n;
}

int ckpt_export(char **arg)
{
    FileType dt = FTnone;
    int64_t shard = 5000000000;
    unsigned how = 0;
    int seen[3] = { 0 };

    for (char **a = arg + 2; *a; a++) {
        int layout = !strcmp(*a, "hub") || !strcmp(*a, "fused") ||
                     !strcmp(*a, "adapters");
        FileType type = export_dtype(*a);
        if (seen[type ? 0 : 1 + layout]++)
            err(NULL,
                "export: '%s' is a second word of its kind: one of fp32, bf16 "
                "and fp16, one of hub, fused and adapters, one size",
                *a);
        if (type)
            dt = type;
        else if (layout)
            how = **a == 'f' ? HFfused : **a == 'a' ? HFadapters : 0;
        else
            shard = size_named(*a);
    }
    return convert_export(plan_near(arg[0]), arg[0], arg[1], dt, how, shard);
}

static int import(char **arg)
{
    return convert_import(plan_near(arg[1]), arg[0], arg[1]);
}

/* n words, at most `more` beyond them */
static const struct {
    const char *name;
    int n, more;
    int (*f)(char **arg);
    const char *args, *doc;
} commands[] = {
    /* clang-format off */
    {"ls", 1, 0, list, "DIR", "checkpoints of a run, oldest first"},
    {"verify", 1, 0, verify, "DIR", "read all of them and compare their hashes"},
    {"diff", 2, 0, diff, "DIR DIR", "what differs between the newest of two; "
     "Hugging Face folders too"},
    {"export-hf", 2, 3, ckpt_export, "DIR OUT [bf16] [fused] [5GB]",
     "weights under Hugging Face names; as fp32, bf16, fp16; one tensor an "
     "expert or all fused; files of that size"},
    {"import-hf", 2, 0, import, "HF RUN", "step 0 of a run from such weights"},
    /* clang-format on */
};

int ckpt_command(int n, char **arg)
{
    char **word = alloc(forever, ((size_t)n + 1) * sizeof *word);
    Text out = { .arena = forever };
    int known = 0;

    memcpy(word, arg, (size_t)n * sizeof *word);
    for (int i = 0; i < countof(commands) && n > 0; i++)
        if (!strcmp(commands[i].name, word[0]) && n - 1 >= commands[i].n &&
            n - 1 <= commands[i].n + commands[i].more)
            return commands[i].f(word + 1);
    for (int i = 0; i < countof(commands); i++) {
        known |= n > 0 && !strcmp(commands[i].name, arg[0]);
        put(&out, "\nckpt %-9s %-28s  %s", commands[i].name, commands[i].args,
            commands[i].doc);
    }
    if (!n)
        err_usage("ckpt: which command?%s", out.s);
    err_usage("ckpt %s: %s%s", arg[0],
              known ? "a word is missing, or one too many"
                    : "there is no such command",
              out.s);
}
