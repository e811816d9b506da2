/* trials.c: see trials.h. Rows of the table in fp64, fp32 and bf16; random
 * graphs. */
#include "trials.h"
#include "../../passes/kernels/kernels.h"
#include "hostrun.h"
#include "interp.h"

#include <math.h>
#include <string.h>

int trial_wants = 1;

/* Rounding of one operation, times what a chain of a few adds up to. */
static double limit_of(Dtype dt)
{
    return dt == Df64 ? 1e-12 : dt == Df32 ? 2e-6 : 2e-2;
}

static double rounded(Dtype dt, double v)
{
    return dt == Dbf16  ? (double)bf16_to_f32(f32_to_bf16((float)v))
           : dt == Df32 ? (double)(float)v
                        : v;
}

Group **trial_groups(Graph *g, const Target *T, Arena *a)
{
    Group **k = run_fuse(g, T, a);

    for (size_t i = 0; i < vec_len(k); i++)
        T->lower(g, k[i], a);
    return k;
}

int trial_kernels(const Trial *t)
{
    int n = 0;

    for (size_t i = 0; i < vec_len(t->k); i++)
        n += t->k[i]->text != NULL;
    return n;
}

/* All values of the graph that are fp64 become dt. */
static void retype(Graph *g, Dtype dt)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->nin == 0) {
            n->dt = n->dt == Df64 ? dt : n->dt;
            continue;
        }
        if (n->op == Odot || n->op == Ogmm || n->op == Ogmm_wgrad)
            n->dt = Dnone;
        if (n->dt == Df64 && n->op != Ocast)
            n->dt = dt;
        infer(g, n);
    }
}

static int is_of_blocks(Op op)
{
    return op == Oamax || op == Ohadamard || op == Oquantize ||
           op == Odequantize;
}

static Node *without_blocks(Graph *g, Node *n, void *ctx)
{
    (void)ctx;
    return is_of_blocks(n->op) ? open_blocks(g, n) : n;
}

void trial_prepare(Trial *t, Arena *a, const Target *T, Node **leaf,
                   double **val, int nleaf, Dtype dt)
{
    Graph *g = t->g;

    retype(g, dt);
    g_renumber(g);
    double **v = alloc(a, (vec_len(g->node) + 1) * sizeof *v);
    for (int k = 0; k < nleaf; k++) {
        for (int64_t i = 0; i < g_elems(leaf[k]); i++)
            val[k][i] = rounded(leaf[k]->dt, val[k][i]);
        v[leaf[k]->id] = val[k];
        host_set(g, leaf[k], val[k]);
    }
    if (trial_wants)
        interp(g, v);
    for (int i = 0; i < t->nout; i++) {
        t->want[i] = v[t->out[i]->id];
        t->dims[i] = *t->out[i];
        t->sink[i] = g_node(g, Ooutput, NULL, 1, &t->out[i]);
        t->sink[i]->at.output.name = intern(strf(a, "out%d", i));
        infer(g, t->sink[i]);
    }
    if (is_of_blocks(t->op))
        rewrite(g, without_blocks, NULL);
    t->k = trial_groups(g, T, a);
    t->dt = dt;
    t->limit = limit_of(dt);
}

/* Element i of the value as it was ordered before fusion. */
double trial_value(const Node *now, const double *v, const Node *was, int64_t i)
{
    int64_t at = 0, idx[MAXD];

    for (int k = was->nd; k-- > 0; i /= was->dim[k].n)
        idx[k] = i % was->dim[k].n;
    for (int k = 0; k < now->nd; k++)
        at = at * now->dim[k].n + idx[dim_of(was, now->dim[k].a)];
    return v[at];
}

static int64_t rows_used(const Trial *t, const Node *n)
{
    const Node *map = n->map;

    if (!map || !map->tmp)
        return INT64_MAX;
    return ((int32_t *)map->tmp)[map_layout(t->g, map).experts];
}

double trial_differs(const Trial *t, int o, const double *want,
                     const double *got, double *size)
{
    Node *now = t->sink[o]->in[0];
    const Node *was = &t->dims[o];
    double diff = 0;
    int64_t n = local_elems(t->g, now), used = rows_used(t, now);

    *size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        if (now->map && i / (n / was->dim[0].n) >= used)
            continue;
        double w = want[i];
        double x = now->nd ? trial_value(now, got, was, i) : got[i];
        *size = fmax(*size, isfinite(w) ? fabs(w) : 0);
        if (w != x && !(isnan(w) && isnan(x)))
            diff = isnan(w) || isnan(x) ? INFINITY : fmax(diff, fabs(w - x));
    }
    return diff;
}
/* ---- rows of the op table ------------------------------------------------ */

Trial *trial_rows(Arena *a, const Target *T, Trial *list)
{
    static const Dtype dts[] = { Df64, Df32, Dbf16 };

    for (int d = 0; d < 3; d++)
        for (int i = 0;; i++) {
            Case c;
            Trial t = { .most = 0 };
            if (!case_at(i, a, &c))
                break;
            t.g = c.g;
            t.op = c.op;
            t.out[t.nout++] = c.out;
            t.name = strf(a, "%s %s %s", optab[c.op].name, c.name,
                          dtypes[dts[d]].name);
            if (c.op == Oroute || c.op == Omean) /* mean: gone by now */
                continue;
            trial_prepare(&t, a, T, c.leaf, c.val, c.nleaf, dts[d]);
            vec_push(a, list, t);
        }
    return list;
}

/* ---- random graphs ------------------------------------------------------- */

static int below(Make *m, int n)
{
    return (int)(mk_uniform(m) * n);
}

static Node *any(Make *m, Node *const *pool)
{
    size_t n = vec_len(pool), last = n < 6 ? n : 6;

    return pool[n - 1 - (size_t)below(m, (int)(below(m, 3) ? last : n))];
}

static const char *any_axis(Make *m, const Node *x)
{
    return x->dim[below(m, x->nd)].a->name;
}

static Node *random_move(Make *m, Node *x)
{
    static const Op op[] = { Oslice, Opad, Oshift, Oconcat, Ocumsum };
    Op o = op[below(m, 5)];
    Node *n = mk_op2(m, o, x, o == Oconcat ? x : NULL, any_axis(m, x));
    int64_t size = x->dim[dim_of(x, n_axis(n))].n;

    int64_t by = below(m, (int)size);

    if (o == Oslice)
        n->at.slice = (struct slice_attrs){ n_axis(n), by, size - by };
    else if (o == Opad)
        n->at.pad = (struct pad_attrs){ n_axis(n), by, size + by + 1 };
    else if (o == Oshift)
        n->at.shift = (struct shift_attrs){ n_axis(n), by, below(m, 2) };
    else
        below(m, 2); /* as many draws for every op */
    return infer(m->g, n);
}

static Node *random_order(Make *m, Node *x)
{
    Node *n = mk_op2(m, Opermute, x, NULL, NULL);

    n->nd = x->nd;
    for (int i = 0; i < x->nd; i++) {
        int k = below(m, i + 1);
        n->dim[i] = n->dim[k];
        n->dim[k] = x->dim[i];
    }
    return infer(m->g, n);
}

/* An axis in an expression may have one size only. */
static int agree(const Node *a, const Node *b)
{
    for (int i = 0; i < a->nd; i++) {
        int k = dim_of(b, a->dim[i].a);
        if (k >= 0 && b->dim[k].n != a->dim[i].n)
            return 0;
    }
    return 1;
}

static Node *random_view(Make *m, Node *x)
{
    int at = below(m, x->nd);
    Axis *to = g_axis(m->g, strf(m->a, "n%d", m->g->naxis));
    Node *n;

    if (x->nd > 1 && at + 1 < x->nd && below(m, 2)) {
        n = mk_op2(m, Omerge, x, NULL, NULL);
        Axis *two[] = { x->dim[at].a, x->dim[at + 1].a };
        n->at.merge = (struct merge_attrs){ g_axes(m->g, two, 2), to };
    } else {
        n = mk_op2(m, Orename, x, NULL, NULL);
        n->at.rename.from = g_axes(m->g, &x->dim[at].a, 1);
        n->at.rename.to = g_axes(m->g, &to, 1);
    }
    return infer(m->g, n);
}

static Node *random_node(Make *m, Node *const *pool)
{
    static const Op one[] = { Oexp, Osigmoid, Oneg, Oabs, Otanh, Ocos };
    static const Op two[] = { Oadd, Osub, Omul, Omaximum };
    Node *x = any(m, pool), *y = any(m, pool);

    switch (below(m, 10)) {
    case 0:
    case 1: return mk_ew(m, one[below(m, 6)], x, NULL);
    case 2:
    case 3:
    case 4: return agree(x, y) ? mk_ew(m, two[below(m, 4)], x, y) : NULL;
    case 5:
    case 6:
        return x->nd ? mk_red(m, below(m, 3) ? Osum : Omax, x, any_axis(m, x))
                     : NULL;
    case 7: return x->nd ? random_move(m, x) : NULL;
    case 8: return x->nd ? random_view(m, x) : NULL;
    default: return x->nd ? random_order(m, x) : NULL;
    }
}

/* Sums of sums grow: keep values near one. */
static Node *tame(Make *m, Node *x)
{
    return g_elems(x) > 3000 ? NULL : mk_ew(m, Otanh, x, NULL);
}

static void make_random(Make *m, int seed)
{
    Node **pool = NULL;

    m->seed = mix64(77, (uint64_t)seed);
    vec_push(m->a, pool, mk_real(m, "b s h"));
    vec_push(m->a, pool, mk_real(m, "s h"));
    vec_push(m->a, pool, mk_real(m, "h"));
    for (int i = 0; i < 16;) {
        Node *n = random_node(m, pool);
        if (!n || !(n = below(m, 3) ? n : tame(m, n)) || n->nd > 5 ||
            g_elems(n) > 3000)
            continue;
        vec_push(m->a, pool, n);
        i++;
    }
    for (int i = 0; i < 4; i++)
        mk_result(m, pool[vec_len(pool) - 1 - (size_t)(i * (1 + below(m, 3)))]);
}

Trial *trial_random(Arena *a, const Target *T, Trial *list, int from, int n)
{
    for (int i = from; i < from + n; i++) {
        Trial t = { .op = NOP, .g = g_new(a, "random") };
        Make m = { .a = a, .g = t.g, .t = &t };
        Dtype dt = i % 4 ? Df64 : Df32;
        mk_sizes(t.g, 0);
        make_random(&m, i);
        t.name = strf(a, "random %d %s", i, dtypes[dt].name);
        trial_prepare(&t, a, T, m.leaf, m.val, m.nleaf, dt);
        t.limit *= 100;
        vec_push(a, list, t);
    }
    return list;
}
