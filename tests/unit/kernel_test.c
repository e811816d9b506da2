/* kernel_test: kernels against the reference interpreter. Every row of the op
 * table in fp64, fp32 and bf16, and graphs whose parts fuse: norms, softmax, a
 * loss with its gradient, an optimizer step, routed experts. One translation
 * unit holds all kernels, as in a plan.                                      */
#define _GNU_SOURCE
#include "hostrun.h"
#include "interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

enum { OUTS = 8 };

typedef struct Trial {
    const char *name;
    Graph *g;
    int nout;
    Node *out[OUTS], *sink[OUTS]; /* a value ends in its sink's operand       */
    Node dims[OUTS];              /* its axes before fusion                   */
    double *want[OUTS];
    Group **k;
    double limit;
} Trial;

/* Rounding of one operation, times what a chain of a few adds up to.         */
static double limit_of(Dtype dt)
{
    return dt == Df64 ? 1e-12 : dt == Df32 ? 2e-6 : 2e-2;
}

static double rounded(Dtype dt, double v)
{
    return dt == Dbf16 ? (double)bf16_to_f32(f32_to_bf16((float)v))
         : dt == Df32 ? (double)(float)v : v;
}

/* All values of the graph that are fp64 become dt.                           */
static void retype(Graph *g, Dtype dt)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->nin == 0) {
            n->dt = n->dt == Df64 ? dt : n->dt;
            continue;
        }
        if (n->op == Odot || n->op == Ogmm || n->op == Ogmmw)
            n->dt = Dnone;
        if (n->dt == Df64 && n->op != Ocast)
            n->dt = dt;
        infer(g, n);
    }
}

static void prepare(Trial *t, Arena *a, Node **leaf, double **val, int nleaf,
                    Dtype dt)
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
    interp(g, v);
    for (int i = 0; i < t->nout; i++) {
        t->want[i] = v[t->out[i]->id];
        t->dims[i] = *t->out[i];
        t->sink[i] = g_node(g, Ooutput, NULL, 1, &t->out[i]);
        t->sink[i]->s = intern(strf(a, "out%d", i));
        infer(g, t->sink[i]);
    }
    t->k = host_groups(g, a);
    t->limit = limit_of(dt);
}

/* Element i of the value as it was ordered before fusion.                    */
static double in_order(const Node *now, const double *v, const Node *was,
                       int64_t i)
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

static double compare(const Trial *t, int o, double *size)
{
    Node *now = t->sink[o]->in[0];
    const Node *was = &t->dims[o];
    double *got = host_get(t->g, now, t->g->arena), diff = 0;
    int64_t n = local_elems(t->g, now), used = rows_used(t, now);

    *size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        if (now->map && i / (n / was->dim[0].n) >= used)
            continue;
        double w = t->want[o][i];
        double x = now->nd ? in_order(now, got, was, i) : got[i];
        *size = fmax(*size, isfinite(w) ? fabs(w) : 0);
        if (w != x && !(isnan(w) && isnan(x)))
            diff = isnan(w) || isnan(x) ? INFINITY : fmax(diff, fabs(w - x));
    }
    return diff;
}

static void judge(Trial *t, void *lib)
{
    double worst = 0, size;

    host_run(t->g, t->k, (int)vec_len(t->k), lib);
    for (int o = 0; o < t->nout; o++)
        worst = fmax(worst, compare(t, o, &size) / size);
    if (worst <= t->limit)
        passed++, printf("ok - kernel %s: %.1e\n", t->name, worst);
    else
        failed++, printf("not ok - kernel %s: differs by %.1e of the largest\n",
                         t->name, worst);
}

/* ---- rows of the op table ------------------------------------------------ */

static Trial *row_trials(Arena *a, Trial *list)
{
    static const Dtype dts[] = { Df64, Df32, Dbf16 };

    for (int d = 0; d < 3; d++)
        for (int i = 0; ; i++) {
            Case c;
            Trial t = { 0 };
            if (!case_at(i, a, &c))
                break;
            t.g = c.g;
            t.out[t.nout++] = c.out;
            t.name = strf(a, "%s %s %s", optab[c.op].name, c.name,
                          dtypes[dts[d]].name);
            if (c.op == Oroute || c.op == Omean)      /* mean: gone by now    */
                continue;
            prepare(&t, a, c.leaf, c.val, c.nleaf, dts[d]);
            vec_push(a, list, t);
        }
    return list;
}

/* ---- graphs whose parts fuse --------------------------------------------- */

typedef struct Make {
    Arena *a;
    Graph *g;
    Node *leaf[16];
    double *val[16];
    int nleaf;
    uint64_t seed;
    Trial *t;
} Make;

static double uniform(Make *m)
{
    m->seed = mix64(m->seed, 0x9e37);
    return (double)(m->seed >> 11) / 9007199254740992.0;
}

static Node *leaf(Make *m, Dtype dt, const char *axes, int below)
{
    Node *x = g_node(m->g, Oparam, NULL, 0, NULL);
    char *list = strf(m->a, "%s", axes), *save = NULL, *w;

    x->s = intern(strf(m->a, "x%d", m->nleaf));
    x->dt = dt;
    for (w = strtok_r(list, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        Axis *a = g_axis(m->g, w);
        x->dim[x->nd++] = (Dim){ a, a->n };
    }
    infer(m->g, x);
    double *v = alloc(m->a, (size_t)(g_elems(x) + 1) * sizeof *v);
    for (int64_t i = 0; i < g_elems(x); i++)
        v[i] = below ? floor(uniform(m) * below) : 2 * uniform(m) - 1;
    m->leaf[m->nleaf] = x;
    m->val[m->nleaf++] = v;
    return x;
}

static Node *real(Make *m, const char *axes)
{
    return leaf(m, Df64, axes, 0);
}

static Node *ew(Make *m, Op op, Node *a, Node *b)
{
    return g_ew(m->g, op, NULL, a, b, NULL);
}

static Node *num(Make *m, double v)
{
    return g_const(m->g, NULL, Df64, v);
}

static Node *red(Make *m, Op op, Node *a, const char *axis)
{
    Axis *x = g_axis(m->g, axis);

    return g_red(m->g, op, a, &x, 1);
}

static Node *dot(Make *m, Node *a, Node *b, const char *axis)
{
    Axis *x = g_axis(m->g, axis);

    return g_dot(m->g, NULL, a, b, &x, 1, NULL);
}

static Node *op2(Make *m, Op op, Node *a, Node *b, const char *axis)
{
    Node *in[2] = { a, b }, *n = g_node(m->g, op, NULL, b ? 2 : 1, in);

    if (axis) {
        n->A = alloc(m->a, sizeof *n->A);
        n->A[0] = g_axis(m->g, axis);
        n->nA = 1;
    }
    return n;
}

static void result(Make *m, Node *n)
{
    m->t->out[m->t->nout++] = n;
}

/* Results: y and the gradient of every leaf that is not an index.            */
static void with_gradients(Make *m, Node *y)
{
    Node *dy = leaf(m, Df64, "", 0);

    dy->nd = y->nd;
    memcpy(dy->dim, y->dim, sizeof dy->dim);
    dy->sh[0] = y->sh[0];
    m->val[m->nleaf - 1] = alloc(m->a, (size_t)(g_elems(dy) + 1) * 8);
    for (int64_t i = 0; i < g_elems(dy); i++)
        m->val[m->nleaf - 1][i] = 2 * uniform(m) - 1;
    g_renumber(m->g);
    for (size_t i = 0; i < vec_len(m->g->node); i++)
        m->g->node[i]->mark = 0;
    for (int k = 0; k + 1 < m->nleaf; k++)
        m->leaf[k]->mark = dtypes[m->leaf[k]->dt].kind == 'f';
    Node **d = backward(m->g, &y, &dy, 1);
    result(m, y);
    for (int k = 0; k + 1 < m->nleaf; k++)
        if (m->leaf[k]->mark && d[m->leaf[k]->id])
            result(m, d[m->leaf[k]->id]);
}

static Node *norm(Make *m, Node *x, Node *w)
{
    Node *s = ew(m, Omul, red(m, Osum, ew(m, Omul, x, x), "h"),
                 num(m, 1.0 / (double)g_axis(m->g, "h")->n));

    return ew(m, Omul, ew(m, Omul, x, ew(m, Orsqrt, ew(m, Oadd, s,
                                                   num(m, 1e-5)), NULL)), w);
}

static void make_norm(Make *m)
{
    with_gradients(m, norm(m, real(m, "b s h"), real(m, "h")));
}

static Node *softmax(Make *m, Node *x, const char *axis)
{
    Node *top = ew(m, Ostop_gradient, red(m, Omax, x, axis), NULL);
    Node *p = ew(m, Oexp, ew(m, Osub, x, top), NULL);

    return ew(m, Odiv, p, red(m, Osum, p, axis));
}

static void make_softmax(Make *m)
{
    with_gradients(m, softmax(m, real(m, "b s h"), "h"));
}

static void make_softmax_middle(Make *m)
{
    with_gradients(m, softmax(m, real(m, "b s h"), "s"));
}

/* A residual, a norm of it, two products, a gated unit.                      */
static void make_block(Make *m)
{
    Node *x = ew(m, Oadd, real(m, "b s h"), real(m, "b s h"));
    Node *y = norm(m, x, real(m, "h"));
    Node *u = dot(m, y, real(m, "h f"), "h");
    Node *v = dot(m, y, real(m, "h f"), "h");
    Node *h = ew(m, Omul, ew(m, Osilu, u, NULL), v);
    Node *z = dot(m, h, real(m, "f h"), "f");

    with_gradients(m, ew(m, Oadd, x, z));
}

static void make_loss(Make *m)
{
    Node *x = real(m, "b s v"), *e = leaf(m, Di32, "b s", 7);
    Node *top = ew(m, Ostop_gradient, red(m, Omax, x, "v"), NULL);
    Node *z = ew(m, Osub, x, top);
    Node *lse = ew(m, Olog, red(m, Osum, ew(m, Oexp, z, NULL), "v"), NULL);
    Node *hit = infer(m->g, op2(m, Ogather, z, e, "v"));
    Node *loss = ew(m, Osub, lse, hit);

    with_gradients(m, red(m, Osum, red(m, Osum, loss, "s"), "b"));
}

static Node *state(Make *m, const char *axes)
{
    Node *x = real(m, axes);

    x->op = Ostate;
    return x;
}

static void set_state(Make *m, Node *s, Node *v)
{
    Node *in[2] = { s, v };

    infer(m->g, g_node(m->g, Owrite, NULL, 2, in));
}

/* p, m and v are written in place; what else reads p sees the old value.     */
static void make_adam(Make *m)
{
    Node *p = state(m, "h f"), *mo = state(m, "h f"), *va = state(m, "h f");
    Node *g = real(m, "h f"), *x = real(m, "b s h");
    Node *sq = red(m, Osum, red(m, Osum, ew(m, Omul, g, g), "f"), "h");
    Node *gs = ew(m, Omul, g, ew(m, Orsqrt, sq, NULL));
    Node *m1 = ew(m, Oadd, ew(m, Omul, mo, num(m, 0.9)),
                  ew(m, Omul, gs, num(m, 0.1)));
    Node *v1 = ew(m, Oadd, ew(m, Omul, ew(m, Oabs, va, NULL), num(m, 0.95)),
                  ew(m, Omul, ew(m, Omul, gs, gs), num(m, 0.05)));
    Node *step = ew(m, Odiv, m1, ew(m, Oadd, ew(m, Osqrt, v1, NULL),
                                    num(m, 1e-8)));
    Node *p1 = ew(m, Osub, p, ew(m, Omul, step, num(m, 1e-3)));
    set_state(m, mo, m1);
    set_state(m, va, v1);
    set_state(m, p, p1);
    result(m, dot(m, x, p, "h"));
    result(m, red(m, Osum, ew(m, Oabs, ew(m, Osub, p1, p), NULL), "f"));
    result(m, p1);
}

static Node *moved(Make *m, Op op, Node *x, Node *map)
{
    return infer(m->g, op2(m, op, x, map, NULL));
}

static Node *grouped(Make *m, Node *x, Node *w, Node *map, const char *axis)
{
    Node *in[3] = { x, w, map }, *n = g_node(m->g, Ogmm, NULL, 3, in);

    n->A = alloc(m->a, sizeof *n->A);
    n->A[0] = g_axis(m->g, axis);
    n->nA = 1;
    return infer(m->g, n);
}

static void make_experts(Make *m)
{
    Node *x = real(m, "b s h"), *e = leaf(m, Di32, "b s top", 4);
    Node *w1 = real(m, "expert h f"), *w3 = real(m, "expert h f");
    Node *w2 = real(m, "expert f h"), *gate = real(m, "b s top");
    Node *map = infer(m->g, op2(m, Oroute, e, NULL, "expert"));
    Node *r = moved(m, Odispatch, x, map);
    Node *y = ew(m, Omul, ew(m, Osilu, grouped(m, r, w1, map, "h"), NULL),
                 grouped(m, r, w3, map, "h"));
    y = ew(m, Omul, y, moved(m, Odispatch, gate, map));
    y = moved(m, Oundispatch, grouped(m, y, w2, map, "f"), map);

    with_gradients(m, ew(m, Oadd, x, red(m, Osum, y, "top")));
}

/* Halves turned by an angle, as a rotary embedding does.                     */
static void make_rope(Make *m)
{
    Node *x = real(m, "b s h"), *half[2];

    for (int i = 0; i < 2; i++) {
        half[i] = op2(m, Oslice, x, NULL, "h");
        half[i]->i = i * (g_axis(m->g, "h")->n / 2);
        half[i]->j = g_axis(m->g, "h")->n / 2;
        infer(m->g, half[i]);
    }
    Node *c = real(m, "s"), *s = real(m, "s");
    Node *y[2] = { ew(m, Osub, ew(m, Omul, half[0], c),
                      ew(m, Omul, half[1], s)),
                   ew(m, Oadd, ew(m, Omul, half[1], c),
                      ew(m, Omul, half[0], s)) };
    with_gradients(m, infer(m->g, op2(m, Oconcat, y[0], y[1], "h")));
}

static void make_embed(Make *m)
{
    Node *w = real(m, "v h"), *e = leaf(m, Di32, "b s", 7);

    with_gradients(m, norm(m, infer(m->g, op2(m, Ogather, w, e, "v")),
                           real(m, "h")));
}

/* Mean of probabilities times share of choices, summed over experts.         */
static void make_balance(Make *m)
{
    Node *p = softmax(m, real(m, "b s expert"), "expert");
    Node *e = leaf(m, Di32, "b s top", 4);
    Node *io = op2(m, Oiota, p, NULL, "expert");
    io->nin = 0;
    infer(m->g, io);
    Node *hit = g_cast(m->g, ew(m, Oeq, e, io), Df64);
    Node *load = red(m, Osum, red(m, Osum, red(m, Osum, hit, "top"), "s"), "b");
    Node *mean = red(m, Osum, red(m, Osum, p, "s"), "b");

    with_gradients(m, red(m, Osum, ew(m, Omul, mean, load), "expert"));
    result(m, load);
}

static void make_sums(Make *m)
{
    Node *x = real(m, "b s h"), *acc;

    for (int i = 0; i < 3; i++) {
        static const char *const op[] = { "add", "max", "last" };
        Node *y = red(m, i == 1 ? Omax : Osum, red(m, Osum, x, "b"), "s");
        acc = g_node(m->g, Oaccum, NULL, 1, &y);
        acc->s = intern(op[i]);
        infer(m->g, acc);
        result(m, acc);
    }
    Node *y = dot(m, x, real(m, "b s f"), "b");
    acc = g_node(m->g, Oaccum, NULL, 1, &y);
    acc->s = intern("add");
    result(m, infer(m->g, acc));
}

/* Enough elements that sums are made in two stages.                          */
static void make_long(Make *m)
{
    Node *x, *y;

    g_axis(m->g, "u")->n = 10 * g_axis(m->g, "b")->n;
    g_axis(m->g, "w")->n = 67;
    g_axis(m->g, "z")->n = 90;
    x = real(m, "u w z");
    y = ew(m, Omul, x, x);
    result(m, red(m, Osum, red(m, Osum, red(m, Osum, y, "z"), "w"), "u"));
    Axis *all[] = { g_axis(m->g, "u"), g_axis(m->g, "w"), g_axis(m->g, "z") };
    result(m, g_red(m->g, Osum, y, all, 3));
    result(m, g_red(m->g, Omax, x, all, 2));
    result(m, g_red(m->g, Omin, x, all + 1, 2));
}

/* kernels: with text, at sizes where nothing is cut in two; more means that
 * something no longer fuses.                                                 */
typedef struct Pattern {
    const char *name;
    void (*make)(Make *m);
    int kernels;
} Pattern;

static const Pattern pattern[] = {
    { "norm", make_norm, 2 },
    { "softmax", make_softmax, 1 },
    { "softmax middle", make_softmax_middle, 6 },
    { "block", make_block, 6 },
    { "loss", make_loss, 2 },
    { "adam", make_adam, 5 },
    { "experts", make_experts, 7 },
    { "rope", make_rope, 4 },
    { "embed", make_embed, 3 },
    { "balance", make_balance, 4 },
    { "sums", make_sums, 3 },
    { "long sums", make_long, 5 },
};

static int count_kernels(const Trial *t)
{
    int n = 0;

    for (size_t i = 0; i < vec_len(t->k); i++)
        n += t->k[i]->text != NULL;
    return n;
}

static void judge_fusion(const Pattern *p, const Trial *t)
{
    int n = count_kernels(t), good = n <= p->kernels;

    good ? passed++ : failed++;
    printf("%sok - kernel %s: %d kernels, at most %d\n", good ? "" : "not ",
           p->name, n, p->kernels);
}

static void set_sizes(Graph *g, int how)
{
    static const struct { const char *axis; int64_t n[3]; } size[] = {
        { "b", { 2, 1, 3 } }, { "s", { 5, 1, 40 } }, { "h", { 18, 2, 300 } },
        { "f", { 7, 1, 33 } }, { "v", { 7, 7, 270 } },
        { "expert", { 5, 5, 6 } }, { "top", { 2, 1, 3 } },
    };
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        g_axis(g, size[i].axis)->n = size[i].n[how];
}

static Trial *pattern_trials(Arena *a, Trial *list)
{
    static const Dtype dts[] = { Df64, Df32, Dbf16 };

    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        for (int how = 0; how < 3; how++)
            for (int d = 0; d < 3; d++) {
                Trial t = { .g = g_new(a, "pattern") };
                Make m = { .a = a, .g = t.g, .seed = i + 1, .t = &t };
                set_sizes(t.g, how);
                pattern[i].make(&m);
                t.name = strf(a, "%s %s %s", pattern[i].name,
                              how == 0 ? "small" : how == 1 ? "one" : "large",
                              dtypes[dts[d]].name);
                prepare(&t, a, m.leaf, m.val, m.nleaf, dts[d]);
                if (how == 0 && d == 0)
                    judge_fusion(&pattern[i], &t);
                t.limit *= 20;                /* long chains, sums of many    */
                vec_push(a, list, t);
            }
    return list;
}

/* ---- dropout: which, by element, micro-batch and step -------------------- */

typedef struct Drop { Arena *a; Graph *g; Node *out[2]; Group **k; } Drop;

static Node *dropout(Make *m, Node *x)
{
    Node *n = op2(m, Odropout, x, NULL, NULL);

    n->f = 0.25;
    n->i = 99;
    return infer(m->g, n);
}

static Drop make_drop(Arena *a)
{
    Drop t = { .a = a, .g = g_new(a, "dropout") };
    Make m = { .a = a, .g = t.g };

    set_sizes(t.g, 2);
    Node *x = real(&m, "b s h"), *y = op2(&m, Opermute, x, NULL, NULL);
    y->nd = 3;
    for (int i = 0; i < 3; i++)
        y->dim[i] = x->dim[2 - i];
    infer(t.g, y);
    t.out[0] = g_node(t.g, Ooutput, NULL, 1, (Node *[]){ dropout(&m, x) });
    t.out[1] = g_node(t.g, Ooutput, NULL, 1, (Node *[]){ dropout(&m, y) });
    for (int i = 0; i < 2; i++)
        t.out[i]->s = intern(i ? "y" : "x"), infer(t.g, t.out[i]);
    for (int64_t i = 0; i < g_elems(x); i++)
        m.val[0][i] = 1;
    host_set(t.g, x, m.val[0]);
    t.k = host_groups(t.g, a);
    return t;
}

static double *drop(Drop *t, double step, double micro, int which, void *lib)
{
    for (size_t i = 0; i < vec_len(t->g->node); i++) {
        Node *n = t->g->node[i];
        if (n->op == Ostepval)
            host_set(t->g, n, strcmp(n->s, "step") ? &micro : &step);
    }
    host_run(t->g, t->k, (int)vec_len(t->k), lib);
    return host_get(t->g, t->out[which]->in[0], t->a);
}

static double share_of(const double *v, const double *w, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += w ? v[i] == w[i] : v[i] != 0;
    return s / (double)n;
}

static void check(int good, const char *name, double x)
{
    good ? passed++ : failed++;
    printf("%sok - kernel dropout %s: %.4f\n", good ? "" : "not ", name, x);
}

static void judge_drop(Drop *t, void *lib)
{
    Node *x = t->out[0]->in[0], *y = t->out[1]->in[0];
    int64_t n = g_elems(x);
    double *a = drop(t, 3, 5, 0, lib), *b = drop(t, 3, 5, 1, lib), same = 0;

    for (int64_t i = 0; i < n; i++)
        same += in_order(y, b, x, i) == a[i];
    check(same == (double)n, "in any layout", same / (double)n);
    double kept = share_of(a, NULL, n);       /* 36000 trials: 6 deviations   */
    check(fabs(kept - 0.75) < 0.014, "keeps three of four", kept);
    double other = share_of(a, drop(t, 4, 5, 0, lib), n);
    check(fabs(other - 0.625) < 0.016, "differs by step", other);
    other = share_of(a, drop(t, 3, 6, 0, lib), n);
    check(fabs(other - 0.625) < 0.016, "differs by micro-batch", other);
}

/* ---- random graphs ------------------------------------------------------- */

static int below(Make *m, int n)
{
    return (int)(uniform(m) * n);
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
    Node *n = op2(m, o, x, o == Oconcat ? x : NULL, any_axis(m, x));
    int64_t size = x->dim[dim_of(x, n->A[0])].n;

    n->i = below(m, (int)size);
    n->j = o == Oslice ? size - n->i : o == Opad ? size + n->i + 1
         : below(m, 2);
    return infer(m->g, n);
}

static Node *random_order(Make *m, Node *x)
{
    Node *n = op2(m, Opermute, x, NULL, NULL);

    n->nd = x->nd;
    for (int i = 0; i < x->nd; i++) {
        int k = below(m, i + 1);
        n->dim[i] = n->dim[k];
        n->dim[k] = x->dim[i];
    }
    return infer(m->g, n);
}

/* An axis in an expression may have one size only.                           */
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
    Node *n;

    if (x->nd > 1 && at + 1 < x->nd && below(m, 2)) {
        n = op2(m, Omerge, x, NULL, NULL);
        n->A = alloc(m->a, 2 * sizeof *n->A);
        n->A[0] = x->dim[at].a;
        n->A[1] = x->dim[at + 1].a;
        n->nA = 2;
    } else {
        n = op2(m, Orename, x, NULL, x->dim[at].a->name);
    }
    n->B = alloc(m->a, sizeof *n->B);
    n->B[0] = g_axis(m->g, strf(m->a, "n%d", m->g->naxis));
    n->nB = 1;
    return infer(m->g, n);
}

static Node *random_node(Make *m, Node *const *pool)
{
    static const Op one[] = { Oexp, Osigmoid, Oneg, Oabs, Otanh, Ocos };
    static const Op two[] = { Oadd, Osub, Omul, Omaximum };
    Node *x = any(m, pool), *y = any(m, pool);

    switch (below(m, 10)) {
    case 0: case 1: return ew(m, one[below(m, 6)], x, NULL);
    case 2: case 3: case 4:
        return agree(x, y) ? ew(m, two[below(m, 4)], x, y) : NULL;
    case 5: case 6:
        return x->nd ? red(m, below(m, 3) ? Osum : Omax, x, any_axis(m, x))
                     : NULL;
    case 7: return x->nd ? random_move(m, x) : NULL;
    case 8: return x->nd ? random_view(m, x) : NULL;
    default: return x->nd ? random_order(m, x) : NULL;
    }
}

/* Sums of sums grow: keep values near one.                                   */
static Node *tame(Make *m, Node *x)
{
    return g_elems(x) > 3000 ? NULL : ew(m, Otanh, x, NULL);
}

static void make_random(Make *m, int seed)
{
    Node **pool = NULL;

    m->seed = mix64(77, (uint64_t)seed);
    vec_push(m->a, pool, real(m, "b s h"));
    vec_push(m->a, pool, real(m, "s h"));
    vec_push(m->a, pool, real(m, "h"));
    for (int i = 0; i < 16; ) {
        Node *n = random_node(m, pool);
        if (!n || !(n = below(m, 3) ? n : tame(m, n)) || n->nd > 5 ||
            g_elems(n) > 3000)
            continue;
        vec_push(m->a, pool, n);
        i++;
    }
    for (int i = 0; i < 4; i++)
        result(m, pool[vec_len(pool) - 1 - (size_t)(i * (1 + below(m, 3)))]);
}

static Trial *random_trials(Arena *a, Trial *list, int from, int n)
{
    for (int i = from; i < from + n; i++) {
        Trial t = { .g = g_new(a, "random") };
        Make m = { .a = a, .g = t.g, .t = &t };
        Dtype dt = i % 4 ? Df64 : Df32;
        set_sizes(t.g, 0);
        make_random(&m, i);
        t.name = strf(a, "random %d %s", i, dtypes[dt].name);
        prepare(&t, a, m.leaf, m.val, m.nleaf, dt);
        t.limit *= 100;
        vec_push(a, list, t);
    }
    return list;
}

/* kernel_test                      all
 * kernel_test random first count   that many random graphs                   */
int main(int argc, char **argv)
{
    Arena *a = arena_new();
    Trial *list = NULL;
    if (argc > 3)
        list = random_trials(a, NULL, atoi(argv[2]), atoi(argv[3]));
    else
        list = random_trials(a, pattern_trials(a, row_trials(a, NULL)), 0, 40);
    Group **all = NULL;
    Drop dropping = make_drop(a);

    for (size_t k = 0; k < vec_len(dropping.k); k++)
        vec_push(a, all, dropping.k[k]);
    for (size_t i = 0; i < vec_len(list); i++)
        for (size_t k = 0; k < vec_len(list[i].k); k++)
            vec_push(a, all, list[i].k[k]);
    void *lib = host_compile(a, all, (int)vec_len(all));
    if (!lib)
        return printf("not ok - kernels do not compile\n"), 1;
    for (size_t i = 0; i < vec_len(list); i++)
        if (argc < 2 || strstr(list[i].name, argv[1]))
            judge(&list[i], lib);
    if (argc < 2)
        judge_drop(&dropping, lib);
    return failed > 0;
}
