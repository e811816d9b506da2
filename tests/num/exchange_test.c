/* exchange_test: tokens go to experts in blocks of rows, one to each rank. A
 * model whose tokens say themselves which expert they want (tests/models/
 * hash.lua) fills them: evenly; all tokens of each rank to one rank, so that
 * the rows of all ranks fit and no block does; those of one rank only. Steps
 * that do not fit, and only those, fall back; losses and all values are those
 * of one rank without a budget, in fp64, and the same bits by peers' memory as
 * by all-to-all. Rows sent are counted in the plan; by peers' memory, as they
 * are moved: no more than the routes need. */
#include <math.h>
#include <string.h>

#include "../fold/foldrun.h"

enum { STEPS = 4, RANKS = 2, TOKENS = 4 * 32, HIDDEN = 32 };

static const double TOL = 1e-10;

/* Of each micro-batch (by the rank that runs it) the experts its tokens want:
 * from .first on so many. */
typedef struct Wish {
    int first, many;
} Wish;
static const Wish wishes[STEPS][RANKS] = {
    { { 0, 4 }, { 0, 4 } },
    { { 0, 2 }, { 2, 2 } },
    { { 0, 4 }, { 2, 2 } },
    { { 0, 4 }, { 0, 4 } },
};

static const struct {
    const char *keys;
    int fallbacks;
} cases[] = {
    { "fold.dp=2 fold.ep=2 route.factor=1.5 route.dispatcher=alltoall", 2 },
    { "fold.dp=2 fold.ep=2 route.factor=1.5 route.dispatcher=allgather", 0 },
    { "fold.dp=2 fold.ep=2 route.factor=0 route.dispatcher=alltoall", 0 },
    { "fold.dp=2 fold.tp=2 fold.ep=2 fold.etp=2 route.factor=1.5 "
      "route.dispatcher=alltoall",
      2 },
    { "fold.dp=2 fold.ep=2 route.factor=1.5 route.dispatcher=peer", 2 },
    { "fold.dp=2 fold.ep=2 route.factor=0 route.dispatcher=peer", 0 },
    { "fold.dp=2 fold.tp=2 fold.ep=2 fold.etp=2 route.factor=1.5 "
      "route.dispatcher=peer",
      2 },
    { "fold.dp=2 fold.tp=2 fold.ep=4 fold.host=2 route.factor=1.5 "
      "route.dispatcher=hosts",
      2 },
    { "fold.dp=2 fold.tp=2 fold.ep=4 fold.host=2 route.factor=0 "
      "route.dispatcher=hosts",
      0 },
};
enum { N = sizeof cases / sizeof *cases };

static int failed;

static void report(int ok, const char *what, const char *more)
{
    printf("%sok - %s: %s\n", ok ? "" : "not ", what, more);
    fflush(stdout);
    failed += !ok;
}

/* ---- tokens -------------------------------------------------------------- */

typedef struct Fill {
    const Wish *wish; /* of the micro-batch */
    int64_t from, step;
    int32_t *dst;
} Fill;
typedef struct Batch {
    const Mesh *mesh;
    int64_t step;
} Batch;

/* The model takes expert (1009 id + 7) mod 4 = (id + 3) mod 4. */
static int32_t word_for(int64_t expert, uint64_t salt)
{
    return (int32_t)(4 * (mix64(salt, 5) % 32) + (uint64_t)(expert + 1) % 4);
}

static void fill_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Fill *f = ctx;

    for (int64_t i = 0; i < n; i++) {
        int64_t at = f->from + global + i;
        const Wish *w = &f->wish[at / TOKENS % RANKS];
        uint64_t salt = mix64((uint64_t)f->step, (uint64_t)at);
        f->dst[local + i] = word_for(w->first + at % w->many, salt);
    }
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst)
{
    const Batch *b = self;
    Fill f = { wishes[b->step], turn * tensor_elems(t), b->step, dst };

    tensor_runs(b->mesh, t, rank, fill_run, &f);
}

/* ---- training ------------------------------------------------------------ */

typedef struct Run {
    double loss[STEPS], *last; /* vec: parameters */
    int fallbacks;
    int64_t moved; /* bytes of rows, of all ranks */
} Run;

static void read_last(Exec *x, Run *r)
{
    const Tensor **t = fold_tensors(x->plan, 1 << TKparam);

    for (size_t i = 0; i < vec_len(t); i++) {
        int64_t n;
        const double *v = fold_read(x, t[i]->name, &n);
        for (int64_t k = 0; k < n; k++)
            vec_push(forever, r->last, v[k]);
    }
}

static Run train(Plan *p)
{
    Run r = { .fallbacks = 0 };
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        StepValues b = { 1e-2, 1 - pow(0.9, t + 1), 1 - pow(0.95, t + 1), t };
        Batch batch = { p->mesh, t };
        Feed f = { fill, &batch };
        r.fallbacks += exec_exact(x, PGstep, &b, &f);
        r.loss[t] = exec_result(x, RESULTloss);
    }
    read_last(x, &r);
    r.moved = x->comm->moved;
    exec_close(x);
    return r;
}

static double apart(const Run *a, const Run *b)
{
    double most = vec_len(a->last) == vec_len(b->last) ? 0 : INFINITY;

    for (int t = 0; t < STEPS; t++)
        most = fmax(most, fabs(a->loss[t] / b->loss[t] - 1));
    for (size_t i = 0; i < vec_len(a->last) && most < INFINITY; i++) {
        double d = fabs(a->last[i] - b->last[i]);
        most = d <= most ? most : d;
    }
    return most;
}

static Run compare(int i, Plan *p, const Run *one)
{
    Run r = train(p);
    double most = apart(&r, one);

    report(most <= TOL && r.fallbacks == cases[i].fallbacks, cases[i].keys,
           strf(forever,
                "difference %.2g, at most %.0e; %d of %d steps fell back, "
                "not %d",
                most, TOL, r.fallbacks, STEPS, cases[i].fallbacks));
    return r;
}

/* Runs of two carriers, all else the same. */
static void same_bits(const char *what, const Run *a, const Run *b)
{
    size_t n = vec_len(a->last);
    int same = n == vec_len(b->last) &&
               !memcmp(a->last, b->last, n * sizeof *a->last) &&
               !memcmp(a->loss, b->loss, sizeof a->loss);

    report(same, what,
           strf(forever, "the bits of alltoall, difference %.2g", apart(a, b)));
}

/* ---- rows that are sent -------------------------------------------------- */

/* Rows that a rank sends in an all-to-all of rows of HIDDEN, to itself too; 0:
 * not always as many. Blocks are of `pair` rows. */
static double rows_sent(const Plan *p, int64_t pair)
{
    const Role *role = &p->role[0];
    const Program *g = &role->prog[role_prog(role, PGstep)];
    int64_t rows = -1;

    for (int i = 0; i < g->ninstr; i++) {
        const AlltoallArgs *a = &g->instr[i].alltoall;
        if (g->instr[i].kind != Ialltoall || a->inner != pair * HIDDEN)
            continue;
        int64_t n = a->outer * a->a / RANKS * a->mid * a->b * pair;
        rows = rows < 0 || rows == n ? n : 0;
    }
    return (double)rows;
}

/* Every token wants one expert: the least is a row a token. With room for all
 * of them every rank gets a row a token. */
static void count_rows(const Plan *budget, const Plan *all)
{
    double got = rows_sent(budget, TOKENS * 3 / 4) / TOKENS;
    double most = rows_sent(all, TOKENS) / TOKENS;

    report(got == 1.5 && most == RANKS, "rows sent",
           strf(forever, "%g times the least with a factor of 1.5, %g without",
                got, most));
}

/* ---- which experts tokens choose ----------------------------------------- */

enum { EXPERTS = 8, GROUPS = 4, KEPT = 2, CHOSEN = 3 };

/* The odds of a set of experts, each in one of the groups of another. */
static double odds_of(const RouteModel *r, int set, int groups)
{
    double v = 1;

    for (int i = 0; i < EXPERTS; i++)
        if (set >> i & 1)
            v *=
                groups >> (i / (EXPERTS / (int)r->groups)) & 1 ? r->odds[i] : 0;
    return v;
}

/* Over all sets of experts and of groups: how likely is one of the experts? */
static double hit_by_hand(const RouteModel *r, int part)
{
    double all = 0, hit = 0;

    for (int groups = 0; groups < 1 << r->groups; groups++)
        for (int set = 0; set < 1 << EXPERTS; set++) {
            if (__builtin_popcount((unsigned)set) != (int)r->chosen ||
                __builtin_popcount((unsigned)groups) != r->kept)
                continue;
            double v = odds_of(r, set, groups);
            all += v;
            hit += set & part ? v : 0;
        }
    return hit / all;
}

/* Of a number between two: so many tokens have one more. */
static double hit_between(RouteModel r, int part)
{
    double more = r.chosen - floor(r.chosen), few = floor(r.chosen);

    r.chosen = few;
    double hit = (1 - more) * hit_by_hand(&r, part);
    r.chosen = few + 1;
    return more > 0 ? hit + more * hit_by_hand(&r, part) : hit;
}

/* Experts by place: on equal ranks, and on three, one of which has two. */
static const int equal[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
static const int uneven[] = { 0, 1, 6, 2, 3, 7, 4, 5, EXPERTS };

/* The largest difference from counting all sets, over all runs of places. */
static double hits_apart(const RouteModel *r, const int *at, int places)
{
    double most = 0;

    for (int i = 0; i < places; i++)
        for (int n = 1, part = 0; i + n <= places; n++) {
            part |= at[i + n - 1] < EXPERTS ? 1 << at[i + n - 1] : 0;
            most = fmax(most, fabs(route_hit(r, i, n) - hit_between(*r, part)));
        }
    return most;
}

static void count_hits(void)
{
    double odds[EXPERTS], most = 0, pairs = 0;

    for (int zipf = 0; zipf < 2; zipf++)
        for (int kind = 0; kind < 8; kind++) {
            int limited = kind & 1;
            RouteModel r = { .experts = EXPERTS,
                             .parts = kind & 4 ? 3 : 1,
                             .chosen = CHOSEN + (kind & 2 ? 0.25 : 0),
                             .groups = limited ? GROUPS : 1,
                             .kept = limited ? KEPT : 1,
                             .odds = odds };
            int n = (int)route_places(&r);
            for (int i = 0; i < EXPERTS; i++)
                odds[i] = zipf ? 1.0 / (i + 1) : 1;
            most = fmax(most, hits_apart(&r, r.parts > 1 ? uneven : equal, n));
            pairs = fmax(pairs, fabs(route_pairs(&r, 0, n) - r.chosen));
        }
    report(most < 1e-14 && pairs < 1e-14, "route model",
           strf(forever, "difference from counting all sets %.2g, %.2g", most,
                pairs));
}

/* Tokens of a step whose expert, of four on two ranks, is not on theirs. */
static int64_t remote(int step)
{
    int64_t n = 0;

    for (int at = 0; at < RANKS * TOKENS; at++) {
        const Wish *w = &wishes[step][at / TOKENS];
        n += (w->first + at % w->many) / 2 != at / TOKENS;
    }
    return n;
}

/* Bytes of a token that goes to another rank, there and back, forward and
 * backward: a row of each exchange of the step. */
static int64_t bytes_each(const Plan *p)
{
    const Role *role = &p->role[0];
    const Program *g = &role->prog[role_prog(role, PGstep)];
    int64_t n = 0;

    for (int i = 0; i < g->ninstr; i++) {
        const Instr *s = &g->instr[i];
        if (s->kind == Isendrows || s->kind == Ireturnrows)
            n += s->rows.width * dtypes[s->rows.dt].bytes;
    }
    return n;
}

static void count_moved(const Plan *p, const Run *r)
{
    int64_t least = 0;

    for (int t = 0; t < STEPS; t++)
        least += remote(t) * bytes_each(p);
    double got = (double)r->moved / (double)least;
    report(least > 0 && got >= 1 && got <= 1.02, "rows moved by peers' memory",
           strf(forever, "%lld bytes, %g times the least", (long long)r->moved,
                got));
}

enum { ALLTOALL = 0, WITHOUT = 2, PEER = 4, PEERWITHOUT = 5 }; /* cases */

/* What a plan says that a rank sends: of blocks and gathers, or of rows by
 * routes that are expected, evenly. */
static double told(const Plan *p, int routed)
{
    return expert_bytes(role_program(&p->role[0], PGstep), routed);
}

/* Half of all tokens have their expert on the other rank: so many rows each way
 * are the least: a token and its sums, in 10 exchanges. Of blocks and gathers
 * choices are sent, too; an all-gather sends all tokens, and what is looked up
 * by their choices: 12. */
static void count_told(Plan *const *p)
{
    static const double times[] = { 1.5, 2 * 1.2, 2 }; /* by case */
    double least = TOKENS / 2.0 * (double)bytes_each(p[PEERWITHOUT]);
    double rows = told(p[PEERWITHOUT], 1) / least, most = 0;

    for (int i = 0; i < (int)(sizeof times / sizeof *times); i++) {
        double got = told(p[i], 0) / least / times[i];
        most = fmax(most, fabs(got - 1));
    }
    report(rows == 1 && most < 0.05 && told(p[ALLTOALL], 1) == 0 &&
               told(p[N], 0) + told(p[N], 1) == 0,
           "bytes to experts",
           strf(forever, "rows %g times the least, blocks and gathers %g off",
                rows, most));
}

int main(void)
{
    Plan *p[N + 1];
    Run r[N];

    for (int i = 0; i < N; i++)
        p[i] = fold_words(
            "tests/models/hash.lua",
            strf(forever,
                 "%s axes.batch=4 train.batch=8 precision=fp64 fold.zero=0",
                 cases[i].keys));
    p[N] = fold_words(
        "tests/models/hash.lua",
        "world=1 axes.batch=4 train.batch=8 precision=fp64 fold.zero=0");
    fold_share(p, N + 1);
    Run one = train(p[N]);
    for (int i = 0; i < N; i++)
        r[i] = compare(i, p[i], &one);
    same_bits(cases[PEER].keys, &r[PEER], &r[ALLTOALL]);
    same_bits(cases[PEERWITHOUT].keys, &r[PEERWITHOUT], &r[WITHOUT]);
    count_rows(p[ALLTOALL], p[WITHOUT]);
    count_moved(p[PEERWITHOUT], &r[PEERWITHOUT]);
    count_told(p);
    count_hits();
    return failed != 0;
}
