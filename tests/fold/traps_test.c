/* traps_test: what goes wrong silently when parallelisms compose, one test each
 * (tests/README.md lists all, most of them elsewhere):
 *
 *     every rank order: positions and groups of both grids, equal stages
 *     tokens to rows and back are what they were, on any ranks
 *     gradients by kind: router, experts, shared expert, embedding, norms ...
 *     a loss per token and one per sequence, with unequal counts on ranks */
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include "../unit/share.h"
#include "foldrun.h"
#include "../unit/tensors.h"

static int failed;

static void verdict(int ok, const char *what, const char *of, double diff,
                    double limit)
{
    failed += !ok;
    printf("%sok - traps: %s, %s: %.2g, at most %.0e\n", ok ? "" : "not ", what,
           of, diff, limit);
    fflush(stdout);
}

/* ---- rank order ---------------------------------------------------------- */

enum { TP, CP, DP, PP, EP, NWORD, RANKS = 32 };

static const char *const words[NWORD] = { "tp", "cp", "dp", "pp", "ep" };
static jmp_buf refused;

static void hear(const char *msg)
{
    (void)msg;
    longjmp(refused, 1);
}

/* An axis of a grid as the order spells it out; its stride is what is before.*/
typedef struct Place {
    MeshAxis axis;
    int64_t size, stride;
} Place;

static int spell(const int *word, int n, const int64_t *size, int expert,
                 Place *p)
{
    static const MeshAxis dense[] = { Mtp, Mcp, Mdp, Mpp },
                          other[] = { Metp, NMESH, Medp, Mpp };
    int count = 0;

    for (int i = 0; i < n; i++) {
        int w = word[i];
        if (expert && (w == EP || (w == DP && n == EP)))
            p[count++].axis = Mep;
        if (w != EP && (expert ? other : dense)[w] != NMESH)
            p[count++].axis = (expert ? other : dense)[w];
    }
    for (int i = 0; i < count; i++) {
        p[i].size = size[p[i].axis];
        p[i].stride = i ? p[i - 1].stride * p[i - 1].size : 1;
    }
    return count;
}

static int divides(int64_t a, int64_t b)
{
    return a % b == 0 || b % a == 0;
}

/* Every border between axes of one grid is one of the other, or inside an axis
 * that can be cut there; and stages are the same ranks. */
static int is_legal(const Place *d, int nd, const Place *e, int ne)
{
    int64_t at[2] = { 0, 0 };

    for (int i = 0; i < nd; i++)
        for (int k = 0; k < ne; k++)
            if (!divides(d[i].stride, e[k].stride))
                return 0;
    for (int i = 0; i < nd; i++)
        at[0] = d[i].axis == Mpp ? d[i].stride : at[0];
    for (int k = 0; k < ne; k++)
        at[1] = e[k].axis == Mpp ? e[k].stride : at[1];
    return at[0] == at[1];
}

/* Positions and groups as the strides say. */
static int same(const Mesh *m, const Place *p, int n)
{
    int64_t group[RANKS];

    for (int i = 0; i < n; i++)
        for (int64_t r = 0; r < m->world; r++) {
            int64_t x = r / p[i].stride % p[i].size;
            if (mesh_extent(m, m->mask[p[i].axis]) != p[i].size ||
                mesh_pos(m, m->mask[p[i].axis], r) != x)
                return 0;
            mesh_group(m, m->mask[p[i].axis], r, group);
            for (int64_t k = 0; k < p[i].size; k++)
                if (group[k] != r + (k - x) * p[i].stride)
                    return 0;
        }
    return 1;
}

/* Returns 1 when taken, 0 when refused, both as they should be; -1: not. */
static int one_order(const int *word, int n, const int64_t *size)
{
    Place d[NWORD], e[NWORD];
    Text t = { .arena = forever };
    Mesh *volatile m = NULL;
    int nd = spell(word, n, size, 0, d), ne = spell(word, n, size, 1, e);

    for (int i = 0; i < n; i++)
        put(&t, "%s%s", i ? "-" : "", words[word[i]]);
    err_hook = hear;
    if (!setjmp(refused))
        m = mesh_new(forever, RANKS, size, t.s, NULL);
    err_hook = NULL;
    if (!m != !is_legal(d, nd, e, ne))
        return -1;
    return m ? same(m, d, nd) && same(m, e, ne) ? 1 : -1 : 0;
}

static void permute(int *word, int at, int n, const int64_t *size, int *count)
{
    if (at == n) {
        count[1 + one_order(word, n, size)]++;
        return;
    }
    for (int i = at; i < n; i++) {
        int w = word[at];
        word[at] = word[i], word[i] = w;
        permute(word, at + 1, n, size, count);
        w = word[at];
        word[at] = word[i], word[i] = w;
    }
}

/* With and without a place of ep's own. */
static void every_order(void)
{
    /* clang-format off */
    static const int64_t sizes[][NMESH] = {
        { 2, 2, 4, 2, 1, 4, 4 },
        { 4, 2, 2, 2, 2, 2, 4 },
        { 2, 2, 2, 4, 2, 4, 1 },
        { 2, 1, 8, 2, 2, 8, 1 },
    };
    /* clang-format on */
    int count[3] = { 0 };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int n = EP; n <= NWORD; n++) {
            int word[NWORD] = { TP, CP, DP, PP, EP };
            permute(word, 0, n, sizes[i], count);
        }
    verdict(count[0] == 0 && count[1] > 20 && count[2] > 20, "rank orders",
            strf(forever, "%d taken, %d refused", count[2], count[1]), count[0],
            0);
}

/* ---- gradients ----------------------------------------------------------- */

/* Folds sum in other orders. */
static const double TOL = 1e-10;

/* clang-format off */
static const struct { const char *what, *in; } kinds[] = {
    { "router weight", ".moe.gate" }, { "expert weights", ".moe.w" },
    { "shared expert", ".moe.s" },    { "embedding", ".embed" },
    { "norms", "norm.weight" },       { "attention", ".attn." },
    { "head", ".head" },
};
/* clang-format on */
/* clang-format off */
static const char *const folds[] = {
    "world=1", "fold.dp=8 fold.ep=8", "fold.dp=8 fold.ep=2 fold.etp=2",
    "fold.tp=4 fold.ep=4", "fold.tp=2 fold.cp=2 fold.dp=2 fold.ep=4 fold.etp=2",
    "fold.cp=4 fold.dp=2 fold.ep=8 fold.zero=3",
    "fold.pp=2 fold.tp=2 fold.dp=2 fold.ep=4 fold.order=tp-cp-ep-dp-pp",
};
/* clang-format on */
enum { NFOLD = sizeof folds / sizeof *folds };

/* Of the gradients whose names have `in`; infinite when there is none. */
static double apart(const Trained *x, const Trained *want, const char *in)
{
    double most = -1;

    for (size_t i = 0; i < vec_len(want->value); i++) {
        const Found *y = &want->value[i];
        size_t k = 0;
        if (!y->grad || !strstr(y->name, in))
            continue;
        while (strcmp(x->value[k].name, y->name))
            k++;
        most = fmax(most, tensor_apart(y->t, x->value[k].v, y->v));
    }
    return most >= 0 ? most : INFINITY;
}

static void gradients(Plan *const *p)
{
    Trained one = fold_train(p[0], 1);

    for (int i = 1; i < NFOLD; i++) {
        Trained w = fold_train(p[i], 1);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            double d = apart(&w, &one, kinds[k].in);
            verdict(d <= TOL, kinds[k].what, folds[i], d, TOL);
        }
        double d = fabs(w.norm[0] / one.norm[0] - 1);
        verdict(d <= TOL, "gradient norm", folds[i], d, TOL);
    }
}

/* ---- there and back ------------------------------------------------------ */

static void there_and_back(Plan *p, const char *fold)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    StepValues b = fold_block(p, 0);
    Feed f = fold_feed(p, 0);

    exec_run(x, PGinit, NULL, NULL);
    exec_exact(x, PGstep, &b, &f);
    double d = exec_named(x, "metric.apart");
    verdict(d == 0 && exec_result(x, RESULTloss) > 0, "tokens to rows and back",
            fold, d, 0);
    exec_close(x);
}

/* ---- per token, per sequence --------------------------------------------- */

enum { B = 2, Q = 8, V = 8, MICRO = 8, SEQS = B * MICRO };

static int word_at(char name, int64_t i)
{
    return (int)(mix64(mix64((uint64_t)name, 0), (uint64_t)i) % V);
}

/* By hand: both losses, the gradient of the table; least, most: tokens that
 * count in a micro-batch. */
typedef struct Hand {
    double loss[2], grad[V][V];
    int least, most;
} Hand;

static double softmax(const double *x, double *p, int label)
{
    double sum = 0;

    for (int c = 0; c < V; c++)
        sum += p[c] = exp(x[c]);
    for (int c = 0; c < V; c++)
        p[c] /= sum;
    return -log(p[label]);
}

static Hand by_hand(double (*table)[V])
{
    Hand h = { .least = B * Q };
    int count[SEQS] = { 0 }, all = 0;

    for (int i = 0; i < SEQS * Q; i++)
        count[i / Q] += word_at('l', i) < 4;
    for (int s = 0; s < SEQS; s++)
        all += count[s];
    for (int m = 0; m < MICRO; m++) {
        int n = count[m * B] + count[m * B + 1];
        h.least = n < h.least ? n : h.least;
        h.most = n > h.most ? n : h.most;
    }
    for (int i = 0; i < SEQS * Q; i++) {
        int id = word_at('t', i), label = word_at('l', i);
        double p[V], w[2] = { 1.0 / all, 1.0 / SEQS / fmax(1, count[i / Q]) };
        if (label >= 4)
            continue;
        double ce = softmax(table[id], p, label);
        for (int k = 0; k < 2; k++)
            h.loss[k] += w[k] * ce;
        for (int c = 0; c < V; c++)
            h.grad[id][c] += (0.7 * w[0] + 0.3 * w[1]) * (p[c] - (c == label));
    }
    return h;
}

static double worse(double a, double got, double want)
{
    double d = fabs(got - want);

    return d <= a ? a : d;
}

static void counts(Plan *p, const char *fold)
{
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    StepValues b = fold_block(p, 0);
    Feed f = fold_feed(p, 0);
    double table[V][V], m[V][V], d = 0;

    exec_run(x, PGinit, NULL, NULL);
    exec_read(x, "table", 0, table[0], V * V);
    exec_exact(x, PGstep, &b, &f);
    exec_read(x, "optim.m.table", 0, m[0], V * V);
    Hand h = by_hand(table);
    d = worse(d, exec_named(x, "loss.token"), h.loss[0]);
    d = worse(d, exec_named(x, "loss.sequence"), h.loss[1]);
    for (int i = 0; i < V * V; i++)
        d = worse(d, m[i / V][i % V] / (1 - 0.9), h.grad[i / V][i % V]);
    int unlike = h.least < h.most && fabs(h.loss[0] - h.loss[1]) > 1e-3;
    verdict(d <= 1e-12 && unlike, "per token and per sequence", fold, d, 1e-12);
    exec_close(x);
}

/* ---- all ----------------------------------------------------------------- */

static const char *const small[] = {
    "world=1",
    "fold.dp=2",
    "fold.dp=8",
    "fold.cp=2 fold.dp=4",
    "fold.tp=2 fold.dp=2",
    "fold.tp=2 fold.cp=2 fold.dp=2",
};
static const char *const trips[] = {
    "world=1",
    "fold.dp=8 fold.ep=8",
    "fold.tp=2 fold.dp=2 fold.ep=4",
    "fold.cp=2 fold.dp=2 fold.ep=2",
    "fold.tp=2 fold.cp=2 fold.ep=4",
};
enum {
    NSMALL = sizeof small / sizeof *small,
    NTRIP = sizeof trips / sizeof *trips
};

static Plan *plan_of(const char *model, const char *words_, int batch)
{
    return fold_words(model, strf(forever,
                                  "precision.policy=fp64 "
                                  "train.batch=%d %s",
                                  batch, words_));
}

int main(void)
{
    Plan *p[NFOLD + NSMALL + NTRIP], **q = p + NFOLD, **r = q + NSMALL;

    every_order();
    for (int i = 0; i < NFOLD; i++)
        p[i] = plan_of("tests/models/folds.lua", folds[i], 8);
    for (int i = 0; i < NSMALL; i++)
        q[i] = plan_of("tests/models/counts.lua", small[i], SEQS);
    for (int i = 0; i < NTRIP; i++)
        r[i] = plan_of("tests/models/trip.lua", trips[i], 16);
    fold_share(p, NFOLD + NSMALL + NTRIP);
    gradients(p);
    for (int i = 0; i < NSMALL; i++)
        counts(q[i], small[i]);
    for (int i = 0; i < NTRIP; i++)
        there_and_back(r[i], trips[i]);
    return failed != 0;
}
