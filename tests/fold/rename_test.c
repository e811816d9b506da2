/* rename_test: names of axes, scopes and locals mean nothing. A model under
 * other names has the same plan but for names: the same instructions, sizes,
 * bytes and predicted times; and it trains equal to the last bit, from the same
 * parameters (a scope is part of a path, which keys initial values).
 *
 * Names are random words once, and once the compiler's own words and those that
 * other models use, for something else.
 *
 *     rename_test                 some folds of each model, over every axis,
 *                                 with either kind of words; some train
 *                                 (PLEAT_ALL=1: both kinds, all train)
 *     rename_test model [key=value ..]     this one */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/share.h"
#include "foldrun.h"
#include "rename.h"

enum { STEPS = 2, TRAINED = 3 }; /* of so many cases one trains, or all */

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
        exec_exact(x, PGstep, &bx, &f);
        f = fold_feed(q, t);
        exec_exact(y, PGstep, &by, &f);
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
    { "models/tiny.lua",                "train.batch=16" },
    { "models/tiny.lua",                "fold.tp=2 fold.etp=2" },
    { "models/tiny.lua",                "fold.tp=2 fold.cp=2 fold.ep=4" },
    { "models/tiny.lua",                "fold.dp=2 fold.pp=2 fold.zero=3 train.batch=32" },
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

static int run_case(const Case *c, const char *file, const char *const *words,
                    int trains)
{
    Names names = { .word = words };
    char *text = whole_text(c->model);
    Plan *p[2] = { plan_under(text, same_word, NULL, file, c->keys),
                   plan_under(text, new_word, &names, file, c->keys) };
    char *x = plan_print(forever, p[0], &(size_t){ 0 });
    Plan *sx = plan_parse(forever, x, strlen(x), "plan");
    char *y = plan_print(forever, p[1], &(size_t){ 0 });
    Plan *sy = plan_parse(forever, y, strlen(y), "plan");
    const char *diff =
        first_difference(plan_without_names(sx), plan_without_names(sy));
    int64_t apart = diff ? -1 : 0;

    if (!diff && trains) {
        fold_share(p, 2);
        apart = bytes_apart(p[0], p[1]);
    }
    printf("%s - rename: %s, %s, %s: %zu axes, %zu scopes, ",
           apart == 0 ? "ok" : "not ok", c->model, c->keys,
           words ? "usual words" : "random words", vec_len(names.was[0]),
           vec_len(names.was[1]));
    if (trains)
        printf("%lld bytes apart\n", (long long)apart);
    else
        puts("one plan");
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
        int trains = both || i % TRAINED == 0;
        if (both || i % 2)
            bad |= run_case(&c[i], file, NULL, trains);
        if (both || i % 2 == 0)
            bad |= run_case(&c[i], file, usual_words, trains);
    }
    if (!bad)
        unlink(file);
    rmdir(dir);
    return bad;
}
