/* fold_test: every fold computes what one rank computes. The local graph of a
 * small model runs on all ranks side by side, node by node, in a plain
 * evaluator in double, without codegen and runtime; so a difference here is a
 * wrong type or a wrong reshard. Compared are loss, gradient norm and
 * every value written. */
#include <math.h>

#include "tinymoe.h"

/* One rank's values of a node. map: for routes, as int in double. */
typedef struct Val {
    double *v;
    int64_t n;
} Val;

typedef struct Run {
    Graph *g;
    Arena *a;
    int64_t ranks;
    int turn; /* micro-batch of those a rank runs in turn */
    Val *val; /* [node id * ranks + rank] */
} Run;

static Val *at(const Run *r, const Node *n, int64_t rank)
{
    return &r->val[(int64_t)n->id * r->ranks + rank];
}

/* ---- loops over axes by name --------------------------------------------- */

typedef struct Loop {
    int n;
    Axis *a[2 * MAXD];
    int64_t size[2 * MAXD];
} Loop;

static void loop_over(const Run *r, Loop *l, const Node *n)
{
    for (int d = 0; d < n->nd; d++) {
        int seen = 0;
        for (int i = 0; i < l->n; i++)
            seen |= l->a[i] == n->dim[d].a;
        if (seen)
            continue;
        l->a[l->n] = n->dim[d].a;
        l->size[l->n++] = local_n(r->g, n, d);
    }
}

static int next(const Loop *l, int64_t *i)
{
    for (int d = l->n; d-- > 0; i[d] = 0)
        if (++i[d] < l->size[d])
            return 1;
    return 0;
}

static int64_t find(const Loop *l, const int64_t *i, const Axis *a)
{
    for (int d = 0; d < l->n; d++)
        if (l->a[d] == a)
            return i[d];
    return -1;
}

/* Offset of n's element at the loop's indices; `as`, when given, stands for
 * axis a. */
static int64_t offset(const Run *r, const Node *n, const Loop *l,
                      const int64_t *i, const Axis *a, int64_t as)
{
    int64_t at = 0;

    for (int d = 0; d < n->nd; d++) {
        int64_t x = n->dim[d].a == a ? as : find(l, i, n->dim[d].a);
        at = at * local_n(r->g, n, d) + (x < 0 ? 0 : x);
    }
    return at;
}

static int64_t extent(const Run *r, const Node *map, int64_t rank)
{
    return (int64_t)at(r, map, rank)->v[map_layout(r->g, map).experts];
}

static int beyond(const Run *r, const Node *map, const Loop *l,
                  const int64_t *i, int64_t rank)
{
    for (int d = 0; map && d < l->n; d++)
        if (g_isrow(l->a[d]) && i[d] >= extent(r, map, rank))
            return 1;
    return 0;
}

/* ---- ops ----------------------------------------------------------------- */

static double sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double scalar_op(const Node *n, double a, double b, double c)
{
    switch (n->op) {
    case Oadd: return a + b;
    case Osub: return a - b;
    case Omul: return a * b;
    case Odiv: return a / b;
    case Oneg: return -a;
    case Oexp: return exp(a);
    case Olog: return log(a);
    case Osqrt: return sqrt(a);
    case Orsqrt: return 1 / sqrt(a);
    case Osigmoid: return sigmoid(a);
    case Osilu: return a * sigmoid(a);
    case Odsilu: return sigmoid(a) * (1 + a * (1 - sigmoid(a)));
    case Ominimum: return a < b ? a : b;
    case Owhere: return a != 0 ? b : c;
    case Omod: return b == 0 ? 0 : fmod(a, b);
    case Oge: return a >= b;
    case Oeq: return a == b;
    case Oland: return a != 0 && b != 0;
    case Oisfinite: return isfinite(a) != 0;
    case Ocast:
    case Obroadcast:
    case Ostop_gradient: return a;
    default: die("evaluator: no %s", optab[n->op].name);
    }
}

static void elementwise(Run *r, Node *n, int64_t k)
{
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 };
    double x[3] = { 0 };

    loop_over(r, &l, n);
    do {
        if (beyond(r, n->map, &l, i, k))
            continue;
        for (int q = 0; q < n->nin; q++)
            x[q] = at(r, n->in[q], k)->v[offset(r, n->in[q], &l, i, NULL, 0)];
        at(r, n, k)->v[offset(r, n, &l, i, NULL, 0)] =
            scalar_op(n, x[0], x[1], x[2]);
    } while (next(&l, i));
}

/* Sums and maxima of one operand, or of the product of two; w of a gmm is read
 * at the row's expert. */
static int64_t expert_of(const Run *r, const Node *map, int64_t row, int64_t k)
{
    int64_t e = 0;

    while ((double)row >= at(r, map, k)->v[e + 1])
        e++;
    return e;
}

static void fold_into(double *y, const Node *n, double x, int first)
{
    if (n->op == Omax)
        *y = first || x > *y ? x : *y;
    else
        *y += x;
}

static void reduce(Run *r, Node *n, int64_t k)
{
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 }, count = at(r, n, k)->n;
    char *seen = alloc(r->a, (size_t)count + 1);
    int grouped = n->op == Ogmm || n->op == Ogmm_wgrad;
    const Node *map = grouped ? n->in[2] : n->in[0]->map;
    int two = optab[n->op].cls == EIN;

    for (int q = 0; q < 1 + two; q++)
        if (n->op != Ogmm || q == 0)
            loop_over(r, &l, n->in[q]);
    if (n->op == Ogmm)
        loop_over(r, &l, n);
    do {
        if (beyond(r, map, &l, i, k))
            continue;
        int64_t row = -1, e = -1;
        for (int d = 0; d < l.n; d++)
            row = g_isrow(l.a[d]) ? i[d] : row;
        if (n->op == Ogmm || n->op == Ogmm_wgrad)
            e = expert_of(r, map, row, k);
        const Axis *x = e >= 0 ? map->at.route.axis : NULL;
        double p = at(r, n->in[0], k)->v[offset(r, n->in[0], &l, i, NULL, 0)];
        if (two)
            p *= at(r, n->in[1], k)
                     ->v[offset(r, n->in[1], &l, i, n->op == Ogmm ? x : NULL,
                                e)];
        int64_t o = offset(r, n, &l, i, n->op == Ogmm_wgrad ? x : NULL, e);
        fold_into(&at(r, n, k)->v[o], n, p, !seen[o]);
        seen[o] = 1;
    } while (next(&l, i));
}

static void topk_op(Run *r, Node *n, int64_t k)
{
    const Node *a = n->in[0];
    int64_t size = local_n(r->g, a, dim_of(a, n->at.topk.axis));
    int64_t i[2 * MAXD] = { 0 };
    Loop l = { 0 };

    for (int d = 0; d < n->nd; d++)
        if (n->dim[d].a != n->at.topk.new) {
            l.a[l.n] = n->dim[d].a;
            l.size[l.n++] = local_n(r->g, n, d);
        }
    do {
        char taken[64] = { 0 };
        for (int64_t t = 0; t < n->at.topk.k; t++) {
            int64_t best = -1;
            for (int64_t e = 0; e < size; e++) {
                double v =
                    at(r, a, k)->v[offset(r, a, &l, i, n->at.topk.axis, e)];
                if (!taken[e] &&
                    (best < 0 ||
                     v > at(r, a, k)
                             ->v[offset(r, a, &l, i, n->at.topk.axis, best)]))
                    best = e;
            }
            taken[best] = 1;
            at(r, n, k)->v[offset(r, n, &l, i, n->at.topk.new, t)] =
                (double)best;
        }
    } while (next(&l, i));
}

/* First global index of n's axis a on rank k. */
static int64_t start(const Run *r, const Node *n, const Axis *a, int64_t k)
{
    RankAffine x = local_start(r->g, n, dim_of(n, a));

    return aff_at(r->g->mesh, &x, k);
}

/* First expert of the rank: the route node has no axes of its own. */
static int64_t first_expert(const Run *r, const Node *map, int64_t k)
{
    uint32_t atoms = 0;

    for (int t = 0; t < r->g->mesh->natom; t++)
        if (map->sh[t].k == S && map->sh[t].a == map->at.route.axis)
            atoms |= 1u << t;
    return mesh_pos(r->g->mesh, atoms, k) * map_layout(r->g, map).experts;
}

static void route_op(Run *r, Node *n, int64_t k)
{
    MapLayout m = map_layout(r->g, n);
    const double *e = at(r, n->in[0], k)->v;
    double *v = at(r, n, k)->v;
    int64_t first = first_expert(r, n, k), row = 0;

    for (int64_t p = 0; p < m.pairs; p++)
        v[m.row + p] = -1;
    for (int64_t q = 0; q < m.each * m.experts; q++)
        v[m.pair + q] = -1;
    for (int64_t x = 0; x < m.experts; x++) {
        row = m.each ? x * m.each : row;
        v[m.offset + x] = (double)row;
        for (int64_t p = 0; p < m.pairs; p++)
            if ((int64_t)e[p] == first + x) {
                assert_true(row < (m.each ? (x + 1) * m.each : m.cap));
                v[m.pair + row] = (double)p;
                v[m.row + p] = (double)row++;
            }
    }
    v[m.offset + m.experts] = (double)(m.each ? m.cap : row);
}

/* Number of the pair at the loop's indices: row-major over e's local axes. */
static int64_t pair_of(const Run *r, const Node *map, const Loop *l,
                       const int64_t *i)
{
    return offset(r, map->in[0], l, i, NULL, 0);
}

/* Of rows in blocks the last axis counts those of a rank. */
static const Axis *row_axis(const Run *r, const Node *map)
{
    const Axes *blocks = &map->at.route.blocks;

    return blocks->n ? blocks->v[blocks->n - 1] : g_axis(r->g, "row");
}

static void dispatch_op(Run *r, Node *n, int64_t k)
{
    const Node *map = n->in[1], *x = n->in[0];
    MapLayout m = map_layout(r->g, map);
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 };

    loop_over(r, &l, map->in[0]);
    loop_over(r, &l, x);
    do {
        int64_t row = (int64_t)at(r, map, k)->v[m.row + pair_of(r, map, &l, i)];
        if (row < 0)
            continue;
        at(r, n, k)->v[offset(r, n, &l, i, row_axis(r, map), row)] =
            at(r, x, k)->v[offset(r, x, &l, i, NULL, 0)];
    } while (next(&l, i));
}

static void combine_op(Run *r, Node *n, int64_t k)
{
    const Node *map = n->in[1], *x = n->in[0];
    MapLayout m = map_layout(r->g, map);
    const Axis *rows = row_axis(r, map);
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 };

    loop_over(r, &l, n);
    do {
        int64_t row = (int64_t)at(r, map, k)->v[m.row + pair_of(r, map, &l, i)];
        at(r, n, k)->v[offset(r, n, &l, i, NULL, 0)] =
            row < 0 ? 0 : at(r, x, k)->v[offset(r, x, &l, i, rows, row)];
    } while (next(&l, i));
}

static void gather_op(Run *r, Node *n, int64_t k)
{
    const Node *a = n->in[0], *e = n->in[1];
    int64_t from = start(r, a, n->at.gather.axis, k);
    int64_t size = local_n(r->g, a, dim_of(a, n->at.gather.axis));
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 };

    loop_over(r, &l, n);
    do {
        int64_t at_e = offset(r, e, &l, i, NULL, 0);
        int64_t x = (int64_t)at(r, e, k)->v[at_e] - from;
        at(r, n, k)->v[offset(r, n, &l, i, NULL, 0)] =
            x < 0 || x >= size
                ? 0
                : at(r, a, k)->v[offset(r, a, &l, i, n->at.gather.axis, x)];
    } while (next(&l, i));
}

static void scatter_op(Run *r, Node *n, int64_t k)
{
    const Node *v = n->in[0], *e = n->in[1];
    int64_t from = start(r, n, n->at.scatter_add.axis, k);
    int64_t size = local_n(r->g, n, dim_of(n, n->at.scatter_add.axis));
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 };

    loop_over(r, &l, v);
    loop_over(r, &l, e);
    do {
        int64_t at_e = offset(r, e, &l, i, NULL, 0);
        int64_t x = (int64_t)at(r, e, k)->v[at_e] - from;
        if (x >= 0 && x < size)
            at(r, n, k)->v[offset(r, n, &l, i, n->at.scatter_add.axis, x)] +=
                at(r, v, k)->v[offset(r, v, &l, i, NULL, 0)];
    } while (next(&l, i));
}

/* ---- sources: the same numbers in every fold ----------------------------- */

static double source(const Node *n, int64_t global)
{
    uint64_t h = 7;

    for (const char *s = n_name(n); *s; s++)
        h = mix64(h, (uint64_t)*s);
    h = mix64(mix64(h, (uint64_t)global), 1);
    if (n->op == Oinput)
        return (double)(h % VOCAB);
    double u = (double)(h >> 11) / 9007199254740992.0;
    return strncmp(n_name(n), "optim.v.", 8) ? u - 0.5 : 0.01 * u;
}

static void fill(Run *r, Node *n, int64_t k)
{
    Loop l = { 0 };
    int64_t i[2 * MAXD] = { 0 };

    loop_over(r, &l, n);
    do {
        int64_t global = 0;
        for (int d = 0; d < n->nd; d++)
            global =
                global * n->dim[d].n + i[d] + start(r, n, n->dim[d].a, k) +
                (d == 0 && n->op == Oinput ? r->turn * r->g->mesh->size[Mdp]
                                           : 0);
        double *v = &at(r, n, k)->v[offset(r, n, &l, i, NULL, 0)];
        switch (n->op) {
        case Oconst: *v = n->at.constant.value; break;
        case Ostepval: *v = 0.5; break;
        case Oiota:
            *v = (double)start(r, n, n->at.iota.axis, k) + (double)i[0];
            break;
        default: *v = source(n, global);
        }
    } while (next(&l, i));
}

/* ---- collectives --------------------------------------------------------- */

/* Element of the operand, on the rank at position q of k's group, that stands
 * at the loop's indices of n with axis a at `as`. */
static double fetch(const Run *r, const Node *n, const int64_t *group,
                    int64_t q, const Loop *l, const int64_t *i, const Axis *a,
                    int64_t as)
{
    const Node *x = n->in[0];

    return at(r, x, group[q])->v[offset(r, x, l, i, a, as)];
}

static double received(const Run *r, const Node *n, const int64_t *group,
                       int64_t ranks, int64_t me, const Loop *l,
                       const int64_t *i)
{
    Axis *a = n->op == Oallreduce  ? NULL
              : n->op == Oalltoall ? n->at.alltoall.from
                                   : n_axis(n);
    int64_t here = a ? find(l, i, a) : 0, size = 0;
    double sum = 0;
    int max = 0;

    if (a && dim_of(n, a) >= 0)
        size = local_n(r->g, n, dim_of(n, a));
    for (int t = 0; t < r->g->mesh->natom; t++)
        max |= (n_atoms(n) >> t & 1) && n->in[0]->sh[t].op == Rmax;
    if (n->op == Oalltoall) {
        int64_t a1 = size / ranks, b = find(l, i, n->at.alltoall.to);
        Loop from = *l;
        int64_t at_b[2 * MAXD];
        memcpy(at_b, i, sizeof at_b);
        for (int d = 0; d < from.n; d++)
            if (from.a[d] == n->at.alltoall.to)
                at_b[d] = me * l->size[d] + b;
        return fetch(r, n, group, here / a1, &from, at_b, a, here % a1);
    }
    if (n->op == Oallgather)
        return fetch(r, n, group, here / (size / ranks), l, i, a,
                     here % (size / ranks));
    if (n->op == Oshard_slice)
        return fetch(r, n, group, me, l, i, a, me * size + here);
    if (n->op == Oallreduce)
        me = size = 0;
    for (int64_t q = 0; q < ranks; q++) {
        double x = fetch(r, n, group, q, l, i, a, me * size + here);
        sum = !max ? sum + x : q == 0 || x > sum ? x : sum;
    }
    return sum;
}

static void collective(Run *r, Node *n, int64_t k)
{
    int64_t group[64], i[2 * MAXD] = { 0 };
    uint32_t atoms = n_atoms(n);
    int64_t ranks = mesh_extent(r->g->mesh, atoms);
    Loop l = { 0 };

    mesh_group(r->g->mesh, atoms, k, group);
    loop_over(r, &l, n);
    do
        at(r, n, k)->v[offset(r, n, &l, i, NULL, 0)] =
            received(r, n, group, ranks, mesh_pos(r->g->mesh, atoms, k), &l, i);
    while (next(&l, i));
}

/* ---- all nodes ----------------------------------------------------------- */

static void accumulate(const Run *r, Node *n, int64_t k)
{
    const Val *x = at(r, n->in[0], k);
    Val *v = at(r, n, k);

    assert_int_equal(n->at.accum.op, Radd);
    for (int64_t i = 0; i < v->n; i++)
        v->v[i] = r->turn ? v->v[i] + x->v[i] : x->v[i];
}

static void by_op(Run *r, Node *n, int64_t k)
{
    switch (n->op) {
    case Otopk: topk_op(r, n, k); return;
    case Oroute: route_op(r, n, k); return;
    case Odispatch: dispatch_op(r, n, k); return;
    case Ocombine: combine_op(r, n, k); return;
    case Ogather: gather_op(r, n, k); return;
    case Oscatter_add: scatter_op(r, n, k); return;
    case Oaccum: accumulate(r, n, k); return;
    case Osplit: /* in place: the same order of elements */
    case Omerge:
        memcpy(at(r, n, k)->v, at(r, n->in[0], k)->v,
               (size_t)at(r, n, k)->n * sizeof(double));
        return;
    default: break;
    }
    switch (optab[n->op].cls) {
    case SRC: fill(r, n, k); break;
    case EW: elementwise(r, n, k); break;
    case RED:
    case EIN: reduce(r, n, k); break;
    case COMM: collective(r, n, k); break;
    case SINK: break;
    default: die("evaluator: no %s", optab[n->op].name);
    }
}

static void evaluate(Run *r, Node *n)
{
    for (int64_t k = 0; k < r->ranks; k++) {
        Val *v = at(r, n, k);
        if (!v->v)
            v->v = alloc(r->a, (size_t)(v->n = local_elems(r->g, n)) * 8 + 8);
        else if (n->op != Oaccum)
            memset(v->v, 0, (size_t)v->n * sizeof *v->v);
        by_op(r, n, k);
    }
}

static int early(const Node *n)
{
    return optab[n->op].cls == SRC && n->op != Oinput;
}

static void run_region(Run *r, Region reg)
{
    for (size_t i = 0; i < vec_len(r->g->node); i++) {
        Node *n = r->g->node[i];
        if (n->reg == reg && !early(n))
            evaluate(r, n);
    }
}

static void run_turns(Run *r, Region reg, int turns)
{
    for (r->turn = 0; r->turn < turns; r->turn++)
        run_region(r, reg);
    r->turn = 0;
}

static Run run(const char *keys)
{
    Run r = { .g = tinymoe(keys, "collectives"), .a = arena_new() };
    int turns = (int)(micro_batches(r.g) / (double)r.g->mesh->size[Mdp]);

    r.ranks = r.g->mesh->world;
    g_renumber(r.g);
    r.val =
        alloc(r.a, (vec_len(r.g->node) * (size_t)r.ranks + 1) * sizeof *r.val);
    for (size_t i = 0; i < vec_len(r.g->node); i++)
        if (early(r.g->node[i]))
            evaluate(&r, r.g->node[i]);
    run_turns(&r, REGden, turns);
    run_region(&r, REGpre);
    run_turns(&r, REGbody, turns);
    run_region(&r, REGpost);
    return r;
}

/* ---- comparing ----------------------------------------------------------- */

static const char *sink_name(const Node *n)
{
    return n_name(n->op == Oresult ? n : n->in[0]);
}

/* The value that a sink of one run stores, found in the other by its name. */
static Node *sink_named(const Graph *g, const Node *like)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op == like->op && sink_name(n) == sink_name(like))
            return n;
    }
    die("no sink for %s", sink_name(like));
}

/* Largest difference between x on every rank and the whole tensor y of one
 * rank. */
static double difference(const Run *r, const Node *x, const Run *one,
                         const Node *y)
{
    double most = 0;

    for (int64_t k = 0; k < r->ranks; k++) {
        Loop l = { 0 };
        int64_t i[2 * MAXD] = { 0 };
        loop_over(r, &l, x);
        do {
            int64_t g[2 * MAXD];
            for (int d = 0; d < l.n; d++)
                g[d] = i[d] + start(r, x, l.a[d], k);
            Loop named = { .n = l.n };
            for (int d = 0; d < l.n; d++)
                named.a[d] = g_axis(one->g, l.a[d]->name);
            double p = at(r, x, k)->v[offset(r, x, &l, i, NULL, 0)];
            double q = at(one, y, 0)->v[offset(one, y, &named, g, NULL, 0)];
            double e = fabs(p - q) / (1 + fabs(q));
            most = e > most || isnan(e) ? e : most;
        } while (next(&l, i));
    }
    return most;
}

/* Sums in another order differ by some 1e-16 of their terms; AdamW divides by
 * the root of small moments, so its values get a little more. */
static const double CLOSE = 1e-11;

static void compare(const char *fold, const Run *one)
{
    char keys[256];

    snprintf(keys, sizeof keys,
             "%s train.batch=8 precision.policy=fp64 "
             "fold.zero=0",
             fold);
    Run r = run(keys);
    double most = 0;
    int sinks = 0;

    for (size_t i = 0; i < vec_len(r.g->node); i++) {
        Node *n = r.g->node[i];
        if (n->op != Oresult && n->op != Owrite)
            continue;
        Node *m = sink_named(one->g, n);
        double e = difference(&r, n->in[n->nin - 1], one, m->in[m->nin - 1]);
        if (!(e < CLOSE))
            print_error("%s: %s differs by %.3g\n", fold, sink_name(n), e);
        most = e > most || isnan(e) ? e : most;
        sinks++;
    }
    print_message("%-60s %.3g\n", fold, most);
    assert_int_equal(sinks, 4 + 9 * 3);
    assert_true(most < CLOSE);
    arena_free(r.a);
}

/* ---- reshards ------------------------------------------------------------ */

static Node *value(Run *r, Op op, Node *from, const Shard *t)
{
    Node *n = g_node(r->g, op, NULL, from ? 1 : 0, &from);

    for (int d = 0; d < 2; d++)
        n->dim[n->nd++] = (Dim){ g_axis(r->g, d ? "b" : "a"), d ? 16 : 8 };
    if (op == Oparam)
        n->at.param.path = "x";
    n->dt = Df64;
    n->name = "x";
    n->sh = g_type(r->g, t);
    for (int64_t k = 0; k < r->ranks; k++) {
        Val *v = at(r, n, k);
        v->n = local_elems(r->g, n);
        v->v = alloc(r->a, (size_t)v->n * sizeof *v->v);
    }
    return n;
}

/* x as type t on every rank; partial over an atom: a quarter and the rest. */
static Node *typed(Run *r, const Shard *t)
{
    Node *n = value(r, Oparam, NULL, t);

    for (int64_t k = 0; k < r->ranks; k++) {
        fill(r, n, k);
        for (int i = 0; i < r->g->mesh->natom; i++)
            for (int64_t e = 0; t[i].k == P && e < at(r, n, k)->n; e++)
                at(r, n, k)->v[e] *= mesh_coord(r->g->mesh, k, i) ? 0.75 : 0.25;
    }
    return n;
}

static Node *resharded(Run *r, Node *n, const Shard *want, int *steps)
{
    Shard t[MAXATOM];
    Reshard step;

    memcpy(t, n->sh, sizeof t);
    while (reshard_step(r->g->mesh, t, want, &step)) {
        n = value(r, step.op, n, t);
        reshard_attrs(n, &step);
        for (int64_t k = 0; k < r->ranks; k++)
            collective(r, n, k);
        assert_true(++*steps < 100000);
    }
    return n;
}

static void same_values(Run *r, const Node *x, const Node *y)
{
    for (int64_t k = 0; k < r->ranks; k++)
        for (int64_t e = 0; e < at(r, x, k)->n; e++)
            assert_true(fabs(at(r, x, k)->v[e] - at(r, y, k)->v[e]) < 1e-15);
}

/* From any type to any other over three atoms, step by step with values. */
static void any_to_any(void **state)
{
    int64_t size[NMESH] = { [Mtp] = 2, [Mcp] = 2, [Mdp] = 2 };
    Graph *g = g_new(forever, "reshards");
    Axis *a = g_axis(g, "a"), *b = g_axis(g, "b");
    const Shard all[] = {
        { .k = R }, { S, Radd, a }, { S, Radd, b }, { P, Radd, NULL }
    };
    int steps = 0;

    (void)state;
    g->mesh = mesh_new(forever, 8, size, "tp-cp-dp-pp", NULL);
    for (int pair = 0; pair < 64 * 64; pair++) {
        Shard t[MAXATOM] = { { 0 } }, want[MAXATOM] = { { 0 } };
        Run r = { .g = g, .a = arena_new(), .ranks = 8 };
        int legal = 1;
        for (int i = 0; i < 3; i++) {
            t[i] = all[pair >> 2 * i & 3];
            want[i] = all[pair >> (6 + 2 * i) & 3];
            legal &= want[i].k != P || t[i].k == P;
        }
        g->node = NULL;
        r.val = alloc(r.a, 32 * 8 * sizeof *r.val);
        if (legal)
            same_values(&r, resharded(&r, typed(&r, t), want, &steps),
                        typed(&r, want));
        arena_free(r.a);
    }
    print_message("%d steps\n", steps);
}

static void one_fold(void **state)
{
    static Run one;

    if (!one.g)
        one = run("world=1 train.batch=8 precision.policy=fp64");
    compare(*state, &one);
}

/* Every fold of up to 8 ranks, a test each; all have common refinements. */
static struct CMUnitTest *all_folds(size_t *n)
{
    static const int size[] = { 1, 2, 4 };
    struct CMUnitTest *tests = NULL, first = cmocka_unit_test(any_to_any);

    vec_push(forever, tests, first);
    for (int c = 0; c < 3 * 2 * 3 * 3 * 3; c++) {
        int tp = size[c % 3], cp = size[c / 3 % 2], dp = size[c / 6 % 3];
        int ep = size[c / 18 % 3], etp = size[c / 54 % 3], ranks = tp * cp * dp;
        if (ranks > 8 || ranks % (ep * etp))
            continue;
        char *keys = strf(forever,
                          "fold.tp=%d fold.cp=%d fold.dp=%d "
                          "fold.ep=%d fold.etp=%d",
                          tp, cp, dp, ep, etp);
        struct CMUnitTest t = { keys, one_fold, NULL, NULL, keys };
        vec_push(forever, tests, t);
        if (ep == 1)
            continue;
        t.name = keys = strf(forever, "%s route.dispatcher=alltoall", keys);
        t.initial_state = keys;
        vec_push(forever, tests, t);
    }
    *n = vec_len(tests);
    return tests;
}

int main(void)
{
    size_t n;
    struct CMUnitTest *tests = all_folds(&n);

    return _cmocka_run_group_tests("folds", tests, n, NULL, NULL);
}
