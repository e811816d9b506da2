/* patterns.c: graphs whose parts fuse: norms, softmax, a loss with its
 * gradient, an optimizer step, routed experts. */
#include "trials.h"
#include "hostrun.h"

#include <math.h>
#include <string.h>

double mk_uniform(Make *m)
{
    m->seed = mix64(m->seed, 0x9e37);
    return (double)(m->seed >> 11) / 9007199254740992.0;
}

static Node *leaf(Make *m, Dtype dt, const char *axes, int below)
{
    Node *x = g_node(m->g, Oparam, NULL, 0, NULL);
    char *list = strf(m->a, "%s", axes), *save = NULL, *w;

    x->at.param.path = intern(strf(m->a, "x%d", m->nleaf));
    x->dt = dt;
    for (w = strtok_r(list, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        Axis *a = g_axis(m->g, w);
        x->dim[x->nd++] = (Dim){ a, a->n };
    }
    infer(m->g, x);
    double *v = alloc(m->a, (size_t)(g_elems(x) + 1) * sizeof *v);
    for (int64_t i = 0; i < g_elems(x); i++)
        v[i] = below ? floor(mk_uniform(m) * below) : 2 * mk_uniform(m) - 1;
    m->leaf[m->nleaf] = x;
    m->val[m->nleaf++] = v;
    return x;
}

Node *mk_real(Make *m, const char *axes)
{
    return leaf(m, Df64, axes, 0);
}

Node *mk_ew(Make *m, Op op, Node *a, Node *b)
{
    return g_ew(m->g, op, NULL, a, b, NULL);
}

static Node *num(Make *m, double v)
{
    return g_const(m->g, NULL, Df64, v);
}

Node *mk_red(Make *m, Op op, Node *a, const char *axis)
{
    Axis *x = g_axis(m->g, axis);

    return g_red(m->g, op, a, &x, 1);
}

static Node *dot(Make *m, Node *a, Node *b, const char *axis)
{
    Axis *x = g_axis(m->g, axis);

    return g_dot(m->g, NULL, a, b, &x, 1, NULL);
}

Node *mk_op2(Make *m, Op op, Node *a, Node *b, const char *axis)
{
    Node *in[2] = { a, b }, *n = g_node(m->g, op, NULL, b ? 2 : 1, in);

    if (axis)
        *(Axis **)attr_at(n, attr_named(op, "axis")) = g_axis(m->g, axis);
    return n;
}

void mk_result(Make *m, Node *n)
{
    m->t->out[m->t->nout++] = n;
}

/* Results: y and the gradient of every leaf that is not an index. */
static void with_gradients(Make *m, Node *y)
{
    Node *dy = leaf(m, Df64, "", 0);

    dy->nd = y->nd;
    memcpy(dy->dim, y->dim, sizeof dy->dim);
    dy->sh = y->sh;
    m->val[m->nleaf - 1] = alloc(m->a, (size_t)(g_elems(dy) + 1) * 8);
    for (int64_t i = 0; i < g_elems(dy); i++)
        m->val[m->nleaf - 1][i] = 2 * mk_uniform(m) - 1;
    g_renumber(m->g);
    for (size_t i = 0; i < vec_len(m->g->node); i++)
        m->g->node[i]->mark = 0;
    for (int k = 0; k + 1 < m->nleaf; k++)
        m->leaf[k]->mark = dtypes[m->leaf[k]->dt].kind == 'f';
    Node **d = backward(m->g, &y, &dy, 1);
    mk_result(m, y);
    for (int k = 0; k + 1 < m->nleaf; k++)
        if (m->leaf[k]->mark && d[m->leaf[k]->id])
            mk_result(m, d[m->leaf[k]->id]);
}

static Node *norm(Make *m, Node *x, Node *w)
{
    Node *s = mk_ew(m, Omul, mk_red(m, Osum, mk_ew(m, Omul, x, x), "h"),
                    num(m, 1.0 / (double)g_axis(m->g, "h")->n));

    return mk_ew(m, Omul,
                 mk_ew(m, Omul, x,
                       mk_ew(m, Orsqrt, mk_ew(m, Oadd, s, num(m, 1e-5)), NULL)),
                 w);
}

static void make_norm(Make *m)
{
    with_gradients(m, norm(m, mk_real(m, "b s h"), mk_real(m, "h")));
}

/* A row that a thousand threads hold only in several pieces each. */
static void make_long_norm(Make *m)
{
    g_axis(m->g, "h")->n = 8192;
    with_gradients(m, norm(m, mk_real(m, "b h"), mk_real(m, "h")));
}

static Node *softmax(Make *m, Node *x, const char *axis)
{
    Node *top = mk_ew(m, Ostop_gradient, mk_red(m, Omax, x, axis), NULL);
    Node *p = mk_ew(m, Oexp, mk_ew(m, Osub, x, top), NULL);

    return mk_ew(m, Odiv, p, mk_red(m, Osum, p, axis));
}

static void make_softmax(Make *m)
{
    with_gradients(m, softmax(m, mk_real(m, "b s h"), "h"));
}

/* Rows that no team holds. */
static void make_long_softmax(Make *m)
{
    g_axis(m->g, "h")->n = 33000;
    with_gradients(m, softmax(m, mk_real(m, "b h"), "h"));
}

/* Of which shared memory has room for two, or a cluster's for one. */
static void make_kept_softmax(Make *m)
{
    g_axis(m->g, "b")->n = 1;
    g_axis(m->g, "h")->n = 33000;
    g_axis(m->g, "v")->n = 60008;
    mk_result(m, softmax(m, mk_real(m, "b h"), "h"));
    mk_result(m, softmax(m, mk_real(m, "b v"), "v"));
}

/* The gradient of a cross entropy: of each row one element less its weight,
 * where a label says, or, with one beyond the row, none. */
static void make_labels(Make *m)
{
    g_axis(m->g, "b")->n = 40;
    Node *p = softmax(m, mk_real(m, "b h"), "h");
    Node *label = leaf(m, Di32, "b", 20), *at = mk_op2(m, Oiota, p, NULL, "h");
    at->nin = 0;
    infer(m->g, at);
    Node *less = g_ew(m->g, Owhere, NULL, mk_ew(m, Oeq, label, at),
                      mk_real(m, "b"), num(m, 0));

    mk_result(m, mk_ew(m, Oadd, p, less));
}

static void make_softmax_middle(Make *m)
{
    with_gradients(m, softmax(m, mk_real(m, "b s h"), "s"));
}

/* A residual, a norm of it, two products, a gated unit. */
static void make_block(Make *m)
{
    Node *x = mk_ew(m, Oadd, mk_real(m, "b s h"), mk_real(m, "b s h"));
    Node *y = norm(m, x, mk_real(m, "h"));
    Node *u = dot(m, y, mk_real(m, "h f"), "h");
    Node *v = dot(m, y, mk_real(m, "h f"), "h");
    Node *h = mk_ew(m, Omul, mk_ew(m, Osilu, u, NULL), v);
    Node *z = dot(m, h, mk_real(m, "f h"), "f");

    with_gradients(m, mk_ew(m, Oadd, x, z));
}

static void make_loss(Make *m)
{
    Node *x = mk_real(m, "b s v"), *e = leaf(m, Di32, "b s", 7);
    Node *top = mk_ew(m, Ostop_gradient, mk_red(m, Omax, x, "v"), NULL);
    Node *z = mk_ew(m, Osub, x, top);
    Node *sum = mk_red(m, Osum, mk_ew(m, Oexp, z, NULL), "v");
    Node *lse = mk_ew(m, Olog, sum, NULL);
    Node *hit = infer(m->g, mk_op2(m, Ogather, z, e, "v"));
    Node *loss = mk_ew(m, Osub, lse, hit);

    with_gradients(m, mk_red(m, Osum, mk_red(m, Osum, loss, "s"), "b"));
}

static Node *state(Make *m, const char *axes)
{
    Node *x = mk_real(m, axes);

    x->op = Ostate;
    return x;
}

static void set_state(Make *m, Node *s, Node *v)
{
    Node *in[2] = { s, v };

    infer(m->g, g_node(m->g, Owrite, NULL, 2, in));
}

/* p, m and v are written in place; what else reads p sees the old value. */
static void make_adam(Make *m)
{
    Node *p = state(m, "h f"), *mo = state(m, "h f"), *va = state(m, "h f");
    Node *g = mk_real(m, "h f"), *x = mk_real(m, "b s h");
    Node *sq = mk_red(m, Osum, mk_red(m, Osum, mk_ew(m, Omul, g, g), "f"), "h");
    Node *gs = mk_ew(m, Omul, g, mk_ew(m, Orsqrt, sq, NULL));
    Node *m1 = mk_ew(m, Oadd, mk_ew(m, Omul, mo, num(m, 0.9)),
                     mk_ew(m, Omul, gs, num(m, 0.1)));
    Node *v0 = mk_ew(m, Omul, mk_ew(m, Oabs, va, NULL), num(m, 0.95));
    Node *v1 = mk_ew(m, Oadd, v0,
                     mk_ew(m, Omul, mk_ew(m, Omul, gs, gs), num(m, 0.05)));
    Node *step = mk_ew(m, Odiv, m1,
                       mk_ew(m, Oadd, mk_ew(m, Osqrt, v1, NULL), num(m, 1e-8)));
    Node *p1 = mk_ew(m, Osub, p, mk_ew(m, Omul, step, num(m, 1e-3)));
    set_state(m, mo, m1);
    set_state(m, va, v1);
    set_state(m, p, p1);
    mk_result(m, dot(m, x, p, "h"));
    Node *moves = mk_ew(m, Oabs, mk_ew(m, Osub, p1, p), NULL);
    mk_result(m, mk_red(m, Osum, moves, "f"));
    mk_result(m, p1);
}

static Node *moved(Make *m, Op op, Node *x, Node *map)
{
    return infer(m->g, mk_op2(m, op, x, map, NULL));
}

static Node *grouped(Make *m, Node *x, Node *w, Node *map, const char *axis)
{
    Node *in[3] = { x, w, map }, *n = g_node(m->g, Ogmm, NULL, 3, in);

    n->at.gmm.axes = g_axes(m->g, (Axis *[]){ g_axis(m->g, axis) }, 1);
    return infer(m->g, n);
}

static void make_experts(Make *m)
{
    Node *x = mk_real(m, "b s h"), *e = leaf(m, Di32, "b s top", 4);
    Node *w1 = mk_real(m, "expert h f"), *w3 = mk_real(m, "expert h f");
    Node *w2 = mk_real(m, "expert f h"), *gate = mk_real(m, "b s top");
    Node *map = infer(m->g, mk_op2(m, Oroute, e, NULL, "expert"));
    Node *r = moved(m, Odispatch, x, map);
    Node *y = mk_ew(m, Omul, mk_ew(m, Osilu, grouped(m, r, w1, map, "h"), NULL),
                    grouped(m, r, w3, map, "h"));
    y = mk_ew(m, Omul, y, moved(m, Odispatch, gate, map));
    y = moved(m, Ocombine, grouped(m, y, w2, map, "f"), map);

    with_gradients(m, mk_ew(m, Oadd, x, mk_red(m, Osum, y, "top")));
}

/* Halves turned by an angle, as a rotary embedding does. */
/* Pairs that a block of a thousand threads places. */
static void make_many_pairs(Make *m)
{
    g_axis(m->g, "s")->n = 16384;
    g_axis(m->g, "top")->n = 2;
    Node *x = mk_real(m, "s"), *e = leaf(m, Di32, "s top", 4);
    Node *map = infer(m->g, mk_op2(m, Oroute, e, NULL, "expert"));
    Node *r = moved(m, Odispatch, x, map);

    mk_result(m, moved(m, Ocombine, mk_ew(m, Osilu, r, NULL), map));
}

static void make_rope(Make *m)
{
    Node *x = mk_real(m, "b s h"), *half[2];

    for (int i = 0; i < 2; i++) {
        half[i] = mk_op2(m, Oslice, x, NULL, "h");
        half[i]->at.slice.start = i * (g_axis(m->g, "h")->n / 2);
        half[i]->at.slice.len = g_axis(m->g, "h")->n / 2;
        infer(m->g, half[i]);
    }
    Node *c = mk_real(m, "s"), *s = mk_real(m, "s");
    Node *y[2] = {
        mk_ew(m, Osub, mk_ew(m, Omul, half[0], c), mk_ew(m, Omul, half[1], s)),
        mk_ew(m, Oadd, mk_ew(m, Omul, half[1], c), mk_ew(m, Omul, half[0], s))
    };
    with_gradients(m, infer(m->g, mk_op2(m, Oconcat, y[0], y[1], "h")));
}

/* The axis `whole` as two, or those as one again. */
static Node *as_halves(Make *m, Op op, Node *x, const char *whole)
{
    Node *n = mk_op2(m, op, x, NULL, NULL);
    Axis *one = g_axis(m->g, whole);
    Axis *two[] = { g_axis(m->g, "two"), g_axis(m->g, "half") };

    two[0]->n = 2;
    two[1]->n = one->n / 2;
    if (op == Osplit)
        n->at.split = (struct split_attrs){ one, g_axes(m->g, two, 2) };
    else
        n->at.merge = (struct merge_attrs){ g_axes(m->g, two, 2), one };
    return infer(m->g, n);
}

/* A norm of heads, then their halves turned, as a shift that goes around. */
static void make_turned_norm(Make *m)
{
    Node *y = norm(m, mk_real(m, "b s h"), mk_real(m, "h"));

    y = as_halves(m, Osplit, y, "h");
    Node *turned = mk_op2(m, Oshift, y, NULL, "two");
    turned->at.shift.by = turned->at.shift.wrap = 1;
    infer(m->g, turned);
    Node *z = mk_ew(m, Oadd, mk_ew(m, Omul, y, mk_real(m, "s half")),
                    mk_ew(m, Omul, turned, mk_real(m, "two s half")));
    with_gradients(m, as_halves(m, Omerge, z, "h"));
}

static void make_embed(Make *m)
{
    Node *w = mk_real(m, "v h"), *e = leaf(m, Di32, "b s", 7);

    with_gradients(m, norm(m, infer(m->g, mk_op2(m, Ogather, w, e, "v")),
                           mk_real(m, "h")));
}

/* More columns than a block of the gradient has threads. */
static void make_wide_embed(Make *m)
{
    g_axis(m->g, "v")->n = g_axis(m->g, "h")->n = 512;
    Node *w = mk_real(m, "v h"), *e = leaf(m, Di32, "b s", 512);

    with_gradients(m, infer(m->g, mk_op2(m, Ogather, w, e, "v")));
}

/* Results of a row beside its sum, that need it not. */
static void make_gated(Make *m)
{
    g_axis(m->g, "h")->n = 1200;
    Node *x = mk_real(m, "b s h"), *w = mk_real(m, "b s h");
    Node *y = mk_ew(m, Omul, mk_ew(m, Osilu, w, NULL), mk_real(m, "b s"));

    mk_result(m, mk_red(m, Osum, mk_ew(m, Omul, x, y), "h"));
    mk_result(m, mk_ew(m, Omul, y, mk_real(m, "b s")));
    mk_result(m, y);
}

/* Mean of probabilities times share of choices, summed over experts. */
static void make_balance(Make *m)
{
    Node *p = softmax(m, mk_real(m, "b s expert"), "expert");
    Node *e = leaf(m, Di32, "b s top", 4);
    Node *io = mk_op2(m, Oiota, p, NULL, "expert");
    io->nin = 0;
    infer(m->g, io);
    Node *hit = g_cast(m->g, mk_ew(m, Oeq, e, io), Df64);
    Node *load = mk_red(m, Osum, mk_red(m, Osum, hit, "top"), "s");
    load = mk_red(m, Osum, load, "b");
    Node *mean = mk_red(m, Osum, mk_red(m, Osum, p, "s"), "b");

    with_gradients(m, mk_red(m, Osum, mk_ew(m, Omul, mean, load), "expert"));
    mk_result(m, load);
}

static void make_sums(Make *m)
{
    Node *x = mk_real(m, "b s h"), *acc;

    for (int i = 0; i < 3; i++) {
        static const Reduce op[] = { Radd, Rmax, Rlast };
        Node *y = mk_red(m, i == 1 ? Omax : Osum, mk_red(m, Osum, x, "b"), "s");
        acc = g_node(m->g, Oaccum, NULL, 1, &y);
        acc->at.accum.op = op[i];
        infer(m->g, acc);
        mk_result(m, acc);
    }
    Node *y = dot(m, x, mk_real(m, "b s f"), "b");
    acc = g_node(m->g, Oaccum, NULL, 1, &y);
    acc->at.accum.op = Radd;
    mk_result(m, infer(m->g, acc));
}

/* Enough elements that sums are made in two stages. */
static void make_long(Make *m)
{
    Node *x, *y;

    g_axis(m->g, "u")->n = 16 * g_axis(m->g, "b")->n;
    g_axis(m->g, "w")->n = 67;
    g_axis(m->g, "z")->n = 90;
    x = mk_real(m, "u w z");
    y = mk_ew(m, Omul, x, x);
    mk_result(
        m, mk_red(m, Osum, mk_red(m, Osum, mk_red(m, Osum, y, "z"), "w"), "u"));
    Axis *all[] = { g_axis(m->g, "u"), g_axis(m->g, "w"), g_axis(m->g, "z") };
    mk_result(m, g_red(m->g, Osum, y, all, 3));
    mk_result(m, g_red(m->g, Omax, x, all, 2));
    mk_result(m, g_red(m->g, Omin, x, all + 1, 2));
}

/* kernels: with text, at sizes where nothing is cut in two; more means that
 * something no longer fuses. */
typedef struct Pattern {
    const char *name;
    void (*make)(Make *m);
    int kernels;
} Pattern;

static const Pattern pattern[] = {
    { "norm", make_norm, 2 },
    { "long norm", make_long_norm, 2 },
    { "softmax", make_softmax, 1 },
    { "long softmax", make_long_softmax, 1 },
    { "softmax middle", make_softmax_middle, 6 },
    { "block", make_block, 6 },
    { "loss", make_loss, 2 },
    { "adam", make_adam, 5 },
    { "experts", make_experts, 7 },
    { "many pairs", make_many_pairs, 2 },
    { "rope", make_rope, 4 },
    { "turned norm", make_turned_norm, 4 },
    { "embed", make_embed, 3 },
    { "wide embed", make_wide_embed, 2 },
    { "gated", make_gated, 1 },
    { "balance", make_balance, 4 },
    { "sums", make_sums, 3 },
    { "long sums", make_long, 5 },
    { "kept softmax", make_kept_softmax, 8 },
    { "labels", make_labels, 1 },
};
void mk_sizes(Graph *g, int how)
{
    /* clang-format off */
    static const struct { const char *axis; int64_t n[4]; } size[] = {
        { "b", { 2, 1, 3, 2 } }, { "s", { 5, 1, 40, 60 } }, { "h", { 18, 2, 300, 256 } },
        { "f", { 7, 1, 33, 136 } }, { "v", { 7, 7, 270, 512 } },
        { "expert", { 5, 5, 6, 6 } }, { "top", { 2, 1, 3, 2 } },
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        g_axis(g, size[i].axis)->n = size[i].n[how];
}

Trial *trial_patterns(Arena *a, const Target *T, Trial *list, int sizes)
{
    static const char *const named[] = { "small", "one", "large", "wide" };
    static const Dtype dts[] = { Df64, Df32, Dbf16 };

    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        for (int how = 0; how < sizes; how++)
            for (int d = 0; d < 3; d++) {
                Trial t = { .op = NOP, .g = g_new(a, "pattern") };
                Make m = { .a = a, .g = t.g, .seed = i + 1, .t = &t };
                mk_sizes(t.g, how);
                pattern[i].make(&m);
                t.name = strf(a, "%s %s %s", pattern[i].name, named[how],
                              dtypes[dts[d]].name);
                trial_prepare(&t, a, T, m.leaf, m.val, m.nleaf, dts[d]);
                t.most = how == 0 && d == 0 ? pattern[i].kernels : 0;
                t.limit *= 20; /* long chains, sums of many */
                vec_push(a, list, t);
            }
    return list;
}

/* ---- dropout: the same elements in any layout ---------------------------- */

static Node *dropout(Make *m, Node *x)
{
    Node *n = mk_op2(m, Odropout, x, NULL, NULL);

    n->at.dropout.p = 0.25;
    n->at.dropout.key = 99;
    return infer(m->g, n);
}

Trial trial_dropout(Arena *a, const Target *T)
{
    Trial t = { .name = "dropout",
                .op = Odropout,
                .dt = Df64,
                .g = g_new(a, "dropout"),
                .nout = 2 };
    Make m = { .a = a, .g = t.g };

    mk_sizes(t.g, 2);
    Node *x = mk_real(&m, "b s h"), *y = mk_op2(&m, Opermute, x, NULL, NULL);
    y->nd = 3;
    for (int i = 0; i < 3; i++)
        y->dim[i] = x->dim[2 - i];
    infer(t.g, y);
    for (int i = 0; i < 2; i++) {
        t.out[i] = dropout(&m, i ? y : x);
        t.dims[i] = *t.out[i];
        t.sink[i] = g_node(t.g, Ooutput, NULL, 1, &t.out[i]);
        t.sink[i]->at.output.name = intern(i ? "y" : "x");
        infer(t.g, t.sink[i]);
    }
    for (int64_t i = 0; i < g_elems(x); i++)
        m.val[0][i] = 1;
    host_set(t.g, x, m.val[0]);
    t.k = trial_groups(t.g, T, a);
    return t;
}

void trial_turn(Trial *t, double step, double micro)
{
    for (size_t i = 0; i < vec_len(t->g->node); i++) {
        Node *n = t->g->node[i];
        if (n->op == Ostepval)
            host_set(t->g, n, n->at.stepval.name == STEPstep ? &step : &micro);
    }
}
