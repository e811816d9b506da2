/* rename_test: names of axes, scopes and locals mean nothing. A model under
 * other names has the same plan but for names: the same instructions, sizes,
 * bytes and predicted times; and it trains equal to the last bit, from the same
 * parameters (a scope is part of a path, which keys initial values).
 *
 * Names are random words once, and once the compiler's own words and those that
 * other models use, for something else.
 *
 *     rename_test                 some folds of each model, over every axis,
 *                                 with either (PLEAT_ALL=1: both) kind of words
 *     rename_test model [key=value ..]     this one */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/share.h"
#include "foldrun.h"
#include "rename.h"

enum { STEPS = 2 };

/* ---- names --------------------------------------------------------------- */

typedef struct Names {
    const char *const *word;     /* by kind, null: random ones */
    const char **was[NNAMEKIND]; /* vecs; the k-th gets the k-th word */
} Names;

#define USUAL                                                                  \
    "seq", "batch", "ffn", "expert", "vocab", "kv", "heads", "hidden", "key",  \
        "d", "grad", "post", "body", "den", "group", "dim", "m", "loss", "lm", \
        "step", "own", "sums", "inner", "choice", "state", "x", "optim",       \
        "layers", "mtp", "micro0", "row0", "a0", "v", "recv", "send", "init",  \
        "eval", "forward", "head", "norm"
static const char *const usual[] = { USUAL, NULL };

static const char *word(const Names *n, NameKind kind, int k)
{
    int most = 0;

    if (!n->word || kind == NAMElocal)
        return intern(strf(forever, "%c%c%c%d%c", 'p' + (int)kind,
                           'a' + (int)(mix64(7, (uint64_t)k) % 26),
                           'a' + (int)(mix64(9, (uint64_t)k) % 26), k,
                           'a' + (int)kind));
    while (n->word[most])
        most++;
    /* Scopes begin elsewhere in the list than axes. */
    return intern(n->word[(k + (kind == NAMEscope ? most / 4 : 0)) % most]);
}

static const char *new_word(void *ctx, NameKind kind, const char *name)
{
    Names *n = ctx;
    size_t k = 0;

    while (k < vec_len(n->was[kind]) && n->was[kind][k] != name)
        k++;
    if (k == vec_len(n->was[kind]))
        vec_push(forever, n->was[kind], name);
    return word(n, kind, (int)k);
}

static const char *same(void *ctx, NameKind kind, const char *name)
{
    (void)ctx;
    (void)kind;
    return name;
}

/* ---- models -------------------------------------------------------------- */

/* A file's text with what it requires in its place. */
static char *whole_text(const char *file)
{
    char *s = file_read(forever, file, &(size_t){ 0 }), *at;

    while ((at = strstr(s, "require(\""))) {
        char *name = at + strlen("require(\"");
        size_t n = strcspn(name, "\"");
        char *path = strf(forever, "%.*s/%.*s.lua",
                          (int)(strrchr(file, '/') - file), file, (int)n, name);
        s = strf(forever, "%.*s(function() %s\nend)()%s", (int)(at - s), s,
                 file_read(forever, path, &(size_t){ 0 }), name + n + 2);
    }
    return s;
}

static Plan *plan_under(const char *text, NewName *name, void *ctx,
                        const char *file, const char *keys)
{
    char *s = lua_rename(forever, text, name, ctx);

    file_write(file, s, strlen(s));
    return fold_words(file, keys);
}

/* ---- plans without names ------------------------------------------------- */

static const char *numbered(const char ***seen, const char *name)
{
    size_t k = 0;

    if (!name)
        return NULL;
    while (k < vec_len(*seen) && strcmp((*seen)[k], name))
        k++;
    if (k == vec_len(*seen))
        vec_push(forever, *seen, name);
    return strf(forever, "n%zu", k);
}

/* Random numbers are keyed by paths. */
static void strip_program(Program *g)
{
    for (int i = 0; i < g->ninstr; i++) {
        Instr *s = &g->instr[i];
        s->label = "";
        for (int k = 0; k < s->nword; k++)
            if (s->word[k].type == WORDkey)
                s->word[k].at.c = 0;
    }
}

static void strip_role(Role *r, const char ***axes, const char ***paths)
{
    for (int i = 0; i < r->nbuf; i++)
        r->buf[i].name = "";
    for (int i = 0; i < r->nout; i++)
        r->out[i].name = numbered(paths, r->out[i].name);
    for (int i = 0; i < r->nprog; i++)
        strip_program(&r->prog[i]);
    for (int i = 0; i < r->ntensor; i++) {
        Tensor *t = &r->tensor[i];
        t->name = numbered(paths, t->name);
        for (int d = 0; d < t->nd; d++)
            t->dim[d].axis = numbered(axes, t->dim[d].axis);
    }
}

/* Names become numbers, in the order in which they first appear. */
static char *stripped(Plan *p)
{
    const char **axes = NULL, **paths = NULL;
    size_t len;

    for (int i = 0; i < p->nshape; i++)
        for (int d = 0; d < p->shape[i].nd; d++)
            p->shape[i].dim[d].axis = numbered(&axes, p->shape[i].dim[d].axis);
    for (int i = 0; i < p->nrole; i++)
        strip_role(&p->role[i], &axes, &paths);
    p->nsource = 0;
    return plan_print(forever, p, &len);
}

/* Null, or the first line in which they differ, of both. */
static const char *first_difference(const char *x, const char *y)
{
    while (*x || *y) {
        size_t n = strcspn(x, "\n"), m = strcspn(y, "\n");
        if (strncmp(x, "xxh3", 4) && (n != m || strncmp(x, y, n)))
            return strf(forever, "%.*s\n# %.*s", (int)n, x, (int)m, y);
        x += n + (x[n] != 0);
        y += m + (y[m] != 0);
    }
    return NULL;
}

/* ---- training ------------------------------------------------------------ */

static Exec *opened(Plan *p)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    return x;
}

/* One step of both, from the first's parameters: how many bytes of what lasts
 * differ afterwards. */
static int64_t bytes_apart(Plan *p, Plan *q)
{
    Exec *x = opened(p), *y = opened(q);
    int64_t apart = 0;

    for (int64_t r = 0; r < p->mesh->world; r++)
        memcpy(y->rank[r].arena, x->rank[r].arena,
               (size_t)x->rank[r].role->persist);
    for (int t = 0; t < STEPS; t++) {
        StepValues bx = fold_block(p, t), by = fold_block(q, t);
        Feed f = fold_feed(p, t);
        exec_run(x, PGstep, &bx, &f);
        f = fold_feed(q, t);
        exec_run(y, PGstep, &by, &f);
    }
    for (int64_t r = 0; r < p->mesh->world; r++)
        for (int64_t i = 0; i < x->rank[r].role->persist; i++)
            apart += x->rank[r].arena[i] != y->rank[r].arena[i];
    exec_close(x);
    exec_close(y);
    return apart;
}

/* ---- cases --------------------------------------------------------------- */

typedef struct Case {
    const char *model, *keys;
} Case;

/* clang-format off */
static const Case some[] = {
    { "models/tiny.lua",                "world=1" },
    { "models/tiny.lua",                "fold.tp=2 fold.etp=2" },
    { "models/tiny.lua",                "fold.tp=2 fold.cp=2 fold.ep=4" },
    { "models/tiny.lua",                "fold.dp=2 fold.pp=2 fold.zero=3" },
    { "models/tiny.lua",                "fold.dp=2 fold.ep=2 precision.policy=bf16" },
    { "tests/models/folds.lua",         "fold.tp=2 fold.pp=2 fold.vpp=2 fold.schedule=interleaved train.batch=8" },
    { "tests/models/linear.lua",        "fold.tp=3" },
    { "tests/models/router_sigmoid.lua", "fold.dp=2 fold.ep=2 train.batch=4" },
    { "tests/models/expert_choice.lua", "fold.tp=2 fold.etp=2" },
    { "tests/models/tied.lua",          "fold.pp=2 fold.schedule=zerobubble train.batch=8" },
    { "tests/models/layers.lua",        "world=1" },
    { "tests/models/zoo.lua",           "fold.tp=2" },
    { "tests/hf/mixtral-aux.lua",       "fold.tp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" },
    { "tests/hf/qwen3.lua",             "fold.tp=2 fold.dp=2 fold.ep=4 fold.zero=3 train.batch=8" },
    { "tests/hf/dsv3.lua",              "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" },
    { "tests/hf/dsv3-mtp.lua",          "fold.pp=2 train.batch=8" },
};
/* clang-format on */

static int run_case(const Case *c, const char *file, const char *const *words)
{
    Names names = { .word = words };
    char *text = whole_text(c->model);
    Plan *p[2] = { plan_under(text, same, NULL, file, c->keys),
                   plan_under(text, new_word, &names, file, c->keys) };
    char *x = plan_print(forever, p[0], &(size_t){ 0 });
    Plan *sx = plan_parse(forever, x, strlen(x), "plan");
    char *y = plan_print(forever, p[1], &(size_t){ 0 });
    Plan *sy = plan_parse(forever, y, strlen(y), "plan");
    const char *diff = first_difference(stripped(sx), stripped(sy));
    int64_t apart = -1;

    if (!diff) {
        fold_share(p, 2);
        apart = bytes_apart(p[0], p[1]);
    }
    printf("%s - rename: %s, %s, %s: %zu axes, %zu scopes, %lld bytes apart\n",
           apart == 0 ? "ok" : "not ok", c->model, c->keys,
           words ? "usual words" : "random words", vec_len(names.was[0]),
           vec_len(names.was[1]), (long long)apart);
    if (diff)
        printf("# %s\n", diff);
    fflush(stdout);
    return apart != 0;
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = strf(forever, "%s/pleat-rename.XXXXXX", tmp ? tmp : "/tmp");
    Case one = { argc > 1 ? argv[1] : NULL, "" };
    const Case *c = argc > 1 ? &one : some;
    size_t n = argc > 1 ? 1 : sizeof some / sizeof *some;
    int bad = 0;

    if (!mkdtemp(dir))
        die("no folder %s", dir);
    for (int i = 2; i < argc; i++)
        one.keys = strf(forever, "%s %s", one.keys, argv[i]);
    char *file = strf(forever, "%s/model.lua", dir);
    for (size_t i = 0; i < n; i++) {
        int both = argc > 1 || getenv("PLEAT_ALL") != NULL;
        if (both || i % 2)
            bad |= run_case(&c[i], file, NULL);
        if (both || i % 2 == 0)
            bad |= run_case(&c[i], file, usual);
    }
    if (!bad)
        unlink(file);
    rmdir(dir);
    return bad;
}
