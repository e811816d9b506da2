/* cases.c: small graphs of every row of the op table, made from the table: by
 * class where the class says it all, by a maker where the row is special. Sizes
 * are 1, odd, broadcast; routed rows have an expert without tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interp.h"

enum { SHAPES = 4 };

static uint64_t random_state;

static double uniform(void) /* in [0, 1), same every run */
{
    random_state = mix64(random_state, 0x51ed27);
    return (double)(random_state >> 11) / 9007199254740992.0;
}

/* Magnitudes in [0.2, 1.2), far enough from every kink. */
static double number(int positive)
{
    double v = 0.2 + uniform();

    return positive || uniform() < 0.5 ? v : -v;
}

/* ---- leaves -------------------------------------------------------------- */

static Node *leaf(Case *c, Dtype dt, const char *axes, const int64_t *n)
{
    Node *x = g_node(c->g, Oparam, NULL, 0, NULL);
    char *list = strf(c->g->arena, "%s", axes), *save = NULL, *w;

    x->at.param.path = intern(strf(c->g->arena, "x%d", c->nleaf));
    x->dt = dt;
    for (w = strtok_r(list, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        Axis *a = g_axis(c->g, w);
        a->n = n[x->nd];
        x->dim[x->nd] = (Dim){ a, n[x->nd] };
        x->nd++;
    }
    infer(c->g, x);
    c->leaf[c->nleaf++] = x;
    return x;
}

static void fill(Case *c, int k, int positive)
{
    int64_t n = g_elems(c->leaf[k]);

    c->val[k] = alloc(c->g->arena, (size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        c->val[k][i] = number(positive);
}

static Node *reals(Case *c, const char *axes, const int64_t *n, int positive)
{
    Node *x = leaf(c, Df64, axes, n);

    fill(c, c->nleaf - 1, positive);
    return x;
}

/* Indices below `below`; the value `never` does not occur. */
static Node *indices(Case *c, const char *axes, const int64_t *n, int64_t below,
                     int64_t never)
{
    Node *x = leaf(c, Di32, axes, n);
    int k = c->nleaf - 1;

    fill(c, k, 1);
    c->fixed[k] = 1;
    for (int64_t i = 0; i < g_elems(x); i++) {
        int64_t v = (int64_t)(uniform() * (double)below);
        c->val[k][i] = (double)(v == never ? (v + 1) % below : v);
    }
    return x;
}

static Node *truths(Case *c, const char *axes, const int64_t *n)
{
    Node *x = leaf(c, Dbool, axes, n);
    int k = c->nleaf - 1;

    fill(c, k, 0);
    c->fixed[k] = 1;
    for (int64_t i = 0; i < g_elems(x); i++)
        c->val[k][i] = c->val[k][i] > 0;
    return x;
}

static Axis **axes_of(Graph *g, const char *names, int *n)
{
    Axis **v = alloc(g->arena, 8 * sizeof *v);
    char *list = strf(g->arena, "%s", names), *save = NULL, *w;

    *n = 0;
    for (w = strtok_r(list, " ", &save); w; w = strtok_r(NULL, " ", &save))
        v[(*n)++] = g_axis(g, w);
    return v;
}

static Node *build(Case *c, int nin, Node *const *in, const char *A,
                   const char *B)
{
    Node *n = g_node(c->g, c->op, NULL, nin, in);

    for (int i = 0, k = 0; i < optab[c->op].nattr; i++) {
        const AttrInfo *t = &optab[c->op].attr[i];
        int many;
        Axis **v = axes_of(c->g, k ? B : A, &many);
        if (t->type == ATaxes)
            *(Axes *)attr_at(n, t) = (Axes){ many, v };
        else if (t->type == ATaxis && many)
            *(Axis **)attr_at(n, t) = *v;
        k += t->type == ATaxes || t->type == ATaxis;
    }
    return n;
}

/* ---- by class ------------------------------------------------------------ */

typedef struct Shape {
    const char *name, *a, *b;
    int64_t na[3], nb[3];
} Shape;

static const Shape ew_shape[SHAPES] = {
    { "odd", "x y", "x y", { 3, 5 }, { 3, 5 } },
    { "one", "x y", "x y", { 1, 1 }, { 1, 1 } },
    { "broadcast", "x y", "y", { 2, 7 }, { 7 } },
    { "outer", "x", "y x", { 4 }, { 3, 4 } },
};

static int wants_positive(Op op)
{
    return op == Olog || op == Osqrt || op == Orsqrt || op == Opow ||
           op == Odiv || op == Oamax_scale || op == Opow2_scale ||
           op == Omx_inverse || op == Omx_scale || op == Onv_inverse ||
           op == Onv_scale || op == Ofloor_pow2 || op == Oceil_pow2;
}

static int wants_truth(Op op, int k)
{
    return op == Oland || op == Olor || op == Olnot || (op == Owhere && k == 0);
}

static int elementwise(Case *c, int i)
{
    Node *in[3];

    if (i >= SHAPES)
        return 0;
    const Shape *s = &ew_shape[i];
    c->name = s->name;
    for (int k = 0; k < optab[c->op].nin; k++) {
        const char *axes = k % 2 ? s->b : s->a;
        const int64_t *n = k % 2 ? s->nb : s->na;
        if (wants_truth(c->op, k))
            in[k] = truths(c, axes, n);
        else if (c->op == Omod || c->op == Ofloor_div || c->op == Oxor)
            in[k] = indices(c, axes, n, 9, 0);
        else if (c->op == Opow && k == 1)
            in[k] = g_const(c->g, NULL, Df64, 2.5);
        else
            in[k] = reals(c, axes, n, wants_positive(c->op));
    }
    c->out = build(c, optab[c->op].nin, in, "", "");
    if (c->op == Ocast)
        c->out->at.cast.to = i == 1 ? Di32 : i == 2 ? Dbf16 : Df32;
    infer(c->g, c->out);
    return 1;
}

static int spread(Case *c, int i)
{
    if (i >= SHAPES)
        return 0;
    const Shape *s = &ew_shape[i];
    Node *to = reals(c, i == 3 ? s->b : s->a, i == 3 ? s->nb : s->na, 0);
    Node *a = reals(c, i == 3 ? s->a : s->b, i == 3 ? s->na : s->nb, 0);
    c->name = s->name;
    c->fixed[0] = 1;
    c->out = build(c, 1, &a, "", "");
    c->out->nd = to->nd;
    memcpy(c->out->dim, to->dim, sizeof to->dim);
    infer(c->g, c->out);
    return 1;
}

static int reduction(Case *c, int i)
{
    /* clang-format off */
    static const struct { const char *name, *A; int64_t n[3]; } s[] = {
        { "inner", "z", { 2, 3, 19 } }, { "outer", "x", { 5, 3, 7 } },
        { "middle", "y", { 2, 9, 3 } }, { "all", "x y z", { 2, 3, 5 } },
        { "one", "y z", { 3, 1, 1 } }, { "split", "x z", { 3, 4, 5 } },
    };
    /* clang-format on */
    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    Node *a = reals(c, "x y z", s[i].n, 0);
    c->name = s[i].name;
    c->out = infer(c->g, build(c, 1, &a, s[i].A, ""));
    return 1;
}

/* ---- special rows -------------------------------------------------------- */

typedef struct Pair {
    const char *name, *a, *b, *A;
    int64_t na[4], nb[4];
} Pair;

static int dot(Case *c, int i)
{
    /* clang-format off */
    static const Pair s[] = {
        { "matrix", "m k", "k n", "k", { 5, 7 }, { 7, 3 } },
        { "one", "m k", "k n", "k", { 1, 1 }, { 1, 1 } },
        { "batch", "b m k", "b k n", "k", { 3, 4, 5 }, { 3, 5, 2 } },
        { "inner batch", "m b k", "n b k", "k", { 4, 3, 5 }, { 2, 3, 5 } },
        { "two summed", "m k l", "k l n", "k l", { 3, 2, 5 }, { 2, 5, 4 } },
        { "crossed", "m k l", "l n k", "k l", { 3, 2, 5 }, { 5, 4, 2 } },
        { "vector", "m k", "k", "k", { 6, 5 }, { 5 } },
        { "outer product", "m", "n", "", { 4 }, { 3 } },
        { "heads", "b s h d", "b t h d", "d", { 2, 3, 2, 5 }, { 2, 4, 2, 5 } },
    };
    /* clang-format on */
    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    Node *in[2] = { reals(c, s[i].a, s[i].na, 0),
                    reals(c, s[i].b, s[i].nb, 0) };
    c->name = s[i].name;
    c->out = infer(c->g, build(c, 2, in, s[i].A, ""));
    return 1;
}

/* Choices of `top` experts for 2 x `tokens` tokens; expert 3 gets none. */
static Node *route_among(Case *c, int64_t tokens, int64_t top, int64_t experts)
{
    int64_t n[3] = { 2, tokens, top };
    Node *e = top > 1 ? indices(c, "b s top", n, experts, 3)
                      : indices(c, "b s", n, experts, 3),
         *m;

    g_axis(c->g, "expert")->n = experts;
    m = g_node(c->g, Oroute, NULL, 1, &e);
    m->at.route.axis = g_axis(c->g, "expert");
    if (top > 1)
        m->at.route.top = g_axis(c->g, "top");
    return infer(c->g, m);
}

static Node *some_route(Case *c, int64_t top)
{
    return route_among(c, 4, top, 5);
}

static Node *moved(Case *c, Op op, Node *x, Node *map)
{
    Node *in[2] = { x, map };

    return infer(c->g, g_node(c->g, op, NULL, 2, in));
}

static int rows(Case *c, int i)
{
    static const struct {
        const char *name;
        int64_t tokens, top, experts, wide; /* of a row, or top */
    } s[] = { { "top 2", 4, 2, 5, 6 },
              { "top 1", 4, 1, 5, 6 },
              { "pairs", 4, 2, 5, 2 },
              { "300 experts", 200, 4, 300, 1 } };

    if (i > 3)
        return 0;
    int64_t n[3] = { 2, s[i].tokens, s[i].wide };
    Node *map = route_among(c, s[i].tokens, s[i].top, s[i].experts);
    Node *x = reals(c, i == 2 ? "b s top" : "b s h", n, 0);
    Node *in[2] = { x, map };
    c->name = s[i].name;
    if (c->op == Ocombine)
        in[0] = moved(c, Odispatch, x, map);
    c->out = infer(c->g, build(c, 2, in, "", ""));
    return 1;
}

/* Experts of more than 128 rows, one of none. */
static int columns(Case *c, int i)
{
    int64_t n[4] = { 2, 170, 3, 2 };

    if (i > 1)
        return 0;
    Node *map = route_among(c, 170, i ? 1 : 2, 4);
    Node *x = reals(c, i ? "b s h f" : "b s h", n, 0);
    Node *in[2] = { moved(c, Odispatch, x, map), map };
    c->name = i ? "top 1, two axes" : "top 2";
    c->out = infer(c->g, build(c, 2, in, "", ""));
    return 1;
}

static int grouped(Case *c, int i)
{
    int64_t nx[3] = { 2, 4, 3 }, nw[3] = { 5, 3, 4 }, ny[3] = { 2, 4, 4 };

    if (i > 1)
        return 0;
    Node *map = some_route(c, i ? 1 : 2), *in[3] = { 0 };
    in[0] = moved(c, Odispatch, reals(c, "b s h", nx, 0), map);
    in[2] = map;
    if (c->op == Ogmm)
        in[1] = reals(c, "expert h f", nw, 0);
    else
        in[1] = moved(c, Odispatch, reals(c, "b s f", ny, 0), map);
    c->name = i ? "top 1" : "top 2";
    c->out = infer(c->g, build(c, 3, in, c->op == Ogmm ? "h" : "", ""));
    return 1;
}

/* Five blocks of 32: with a NaN; with an infinity; zeros; subnormal numbers;
 * one of the largest. */
static void make_extreme(double *v)
{
    v[7] = NAN;
    v[32 + 9] = -INFINITY;
    for (int i = 64; i < 128; i++)
        v[i] = i < 96 ? 0 : v[i] * 1e-41;
    v[130] = -3.3e38;
}

/* amax; quantize by scales given; both ways with scales and their inverses. */
static int blocks(Case *c, int i)
{
    /* clang-format off */
    static const struct { const char *name, *A, *B; ScaleLayout layout;
                          int64_t n[3]; Dtype to; } s[] = {
        { "tensor", "x y z", "", SCALEtensor, { 2, 3, 5 }, Df64 },
        { "row", "z", "", SCALErow, { 2, 3, 45 }, Df64 },
        { "1x128", "z", "zb", SCALEwide, { 1, 2, 256 }, Df64 },
        { "1x128 odd", "y", "yb", SCALEwide, { 1, 131, 2 }, Df64 },
        { "128x128", "y z", "yb zb", SCALEsquare, { 2, 3, 130 }, Df64 },
        { "1x32 one", "x", "xb", SCALEmx, { 1, 2, 3 }, Df64 },
        { "1x128 e4m3", "z", "zb", SCALEwide, { 2, 3, 300 }, De4m3 },
        { "128x128 e5m2", "y z", "yb zb", SCALEsquare, { 1, 130, 140 }, De5m2 },
        { "1x32 e4m3", "z", "zb", SCALEmx, { 2, 3, 64 }, De4m3 },
        { "1x16 e2m1", "z", "zb", SCALEnv, { 2, 3, 64 }, De2m1x2 },
        { "1x16 e2m1 odd", "y", "yb", SCALEnv, { 2, 18, 3 }, De2m1x2 },
        { "row e2m1", "z", "", SCALErow, { 2, 5, 6 }, De2m1x2 },
        { "extremes", "z", "zb", SCALEmx, { 1, 1, 160 }, De4m3 },
        { "extremes e5m2", "z", "zb", SCALEmx, { 1, 1, 160 }, De5m2 },
    };
    /* clang-format on */
    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    struct amax_attrs at = { .layout = s[i].layout };
    at.axes.v = axes_of(c->g, s[i].A, &at.axes.n);
    at.blocks.v = axes_of(c->g, s[i].B, &at.blocks.n);
    Node *in[2] = { reals(c, "x y z", s[i].n, 0) }, *q;
    c->name = s[i].name;
    if (!strncmp(s[i].name, "extremes", 8))
        make_extreme(c->val[0]);
    c->fixed[0] = s[i].to != Df64 || c->op != Odequantize;
    q = g_node(c->g, Oamax, NULL, 1, in);
    q->at.amax = at;
    infer(c->g, q);
    if (c->op == Oamax) {
        c->out = q;
        return 1;
    }
    in[1] =
        g_ew(c->g, Oamax_scale, NULL, q, g_const(c->g, NULL, Df64, 448), NULL);
    for (int k = Oquantize; k <= (int)c->op; k++) {
        q = g_node(c->g, (Op)k, NULL, 2, in);
        q->at.amax = at;
        if (k == Oquantize)
            q->at.quantize.to = s[i].to;
        if (s[i].to == De2m1x2)
            *(Axis **)attr_at(q, attr_named((Op)k, "pairs")) =
                g_axis(c->g, "pairs");
        in[0] = infer(c->g, q);
        in[1] =
            g_ew(c->g, Odiv, NULL, g_const(c->g, NULL, Df64, 1), in[1], NULL);
    }
    c->out = q;
    return 1;
}

/* Scales for each element, of blocks that are whole and not. */
static int of_blocks(Case *c, int i)
{
    static const int64_t n[2][3] = { { 2, 3, 2 }, { 2, 2, 1 } };
    static const int64_t to[2][3] = { { 2, 300, 256 }, { 2, 130, 5 } };

    if (i > 1)
        return 0;
    c->name = i ? "not whole" : "whole";
    Node *s = reals(c, "x yb zb", n[i], 0);
    c->out = g_node(c->g, Ospread, NULL, 1, &s);
    c->out->at.spread.layout = SCALEsquare;
    c->out->at.spread.axes.v = axes_of(c->g, "y z", &c->out->at.spread.axes.n);
    c->out->at.spread.blocks =
        g_axes(c->g, (Axis *[]){ s->dim[1].a, s->dim[2].a }, 2);
    for (int d = 0; d < 3; d++)
        c->out->dim[d] =
            (Dim){ d ? c->out->at.spread.axes.v[d - 1] : s->dim[0].a,
                   to[i][d] };
    c->out->nd = 3;
    infer(c->g, c->out);
    return 1;
}

/* Blocks along the last axis and along one before it. */
static int turned(Case *c, int i)
{
    Axis *along, *blocks;

    if (i > 1)
        return 0;
    c->name = i ? "last" : "middle";
    Node *x = reals(c, "x y z", (int64_t[]){ 2, 32, 48 }, 0);
    along = g_axis(c->g, i ? "z" : "y");
    blocks = g_axis(c->g, "blocks");
    c->out = g_node(c->g, Ohadamard, NULL, 1, &x);
    c->out->at.hadamard =
        (struct hadamard_attrs){ SCALEnv, g_axes(c->g, &along, 1),
                                 g_axes(c->g, &blocks, 1), 0x5a31 };
    infer(c->g, c->out);
    return 1;
}

static int route(Case *c, int i)
{
    if (i > 1)
        return 0;
    c->name = i ? "top 1" : "top 2";
    c->out = some_route(c, i ? 1 : 2);
    return 1;
}

/* Two weights only, but for their last bits: many pairs tie. */
static Node *tied(Case *c, Node *x)
{
    double *v = c->val[c->nleaf - 1];

    for (int64_t i = 0; i < g_elems(x); i++)
        v[i] = (v[i] > 0 ? 0.75 : 0.25) * (1 + 1e-14 * uniform());
    return x;
}

/* Room for fewer, or for more, than come: 2 x 4 tokens, 5 experts, one idle. */
static int keep(Case *c, int i)
{
    static const struct {
        /* clang-format off */
        const char *name;
        int64_t top, rows;
    } s[] = {
        { "one each", 2, 1 },  { "three each", 2, 3 }, { "room for all", 1, 9 },
        { "the first", 2, 2 }, { "micro", 1, 1 },
        { "ties", 2, 1 },      { "more ties", 2, 2 },
    };
    /* clang-format on */
    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    int64_t n[3] = { 2, 4, s[i].top };
    const char *axes = i == 4 ? "micro s" : s[i].top > 1 ? "b s top" : "b s";
    Node *in[2] = { indices(c, axes, n, 5, 3), reals(c, axes, n, 0) };
    g_axis(c->g, "expert")->n = 5;
    c->name = s[i].name;
    c->out = build(c, 2, in, "expert", "");
    c->out->at.drop_to_capacity.rows = s[i].rows;
    c->out->at.drop_to_capacity.first = i == 3;
    if (i > 4)
        tied(c, in[1]);
    infer(c->g, c->out);
    return 1;
}

static int gather(Case *c, int i)
{
    /* clang-format off */
    static const struct { const char *name, *a, *e, *v; int64_t na[3], ne[3],
                          nv[3]; } s[] = {
        { "rows", "x h", "t", "t h", { 7, 5 }, { 4 }, { 4, 5 } },
        { "batched", "t x", "t k", "t k", { 3, 6 }, { 3, 2 }, { 3, 2 } },
        { "middle", "b x h", "b k", "b k h", { 2, 5, 3 }, { 2, 4 }, { 2, 4, 3 } },
        { "one", "x", "t", "t", { 1 }, { 1 }, { 1 } },
        { "many", "t x", "t k", "t k", { 3, 6 }, { 3, 70 }, { 3, 70 } },
    };
    /* clang-format on */
    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    Node *in[2], *to = reals(c, s[i].a, s[i].na, 0);
    int64_t size = to->dim[dim_of(to, g_axis(c->g, "x"))].n;
    in[0] = to;
    if (c->op == Oscatter_add) {
        c->fixed[0] = 1;
        in[0] = reals(c, s[i].v, s[i].nv, 0);
    }
    in[1] = indices(c, s[i].e, s[i].ne, size, -1);
    c->name = s[i].name;
    c->out = build(c, 2, in, "x", "");
    if (c->op == Oscatter_add) {
        c->out->nd = to->nd;
        memcpy(c->out->dim, to->dim, sizeof to->dim);
    }
    infer(c->g, c->out);
    return 1;
}

static int one_axis(Case *c, int i)
{
    /* clang-format off */
    static const struct { const char *name, *A; int64_t n[3], i, j; } s[] = {
        { "inner", "z", { 2, 3, 7 }, 2, 3 }, { "outer", "x", { 5, 2, 3 }, 1, 2 },
        { "middle", "y", { 2, 6, 3 }, 3, 3 }, { "one", "z", { 2, 3, 1 }, 0, 1 },
        { "wrap", "y", { 2, 4, 3 }, 1, 1 }, { "long", "y", { 2, 45, 2 }, 4, 30 },
    };
    /* clang-format on */
    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    Node *a = reals(c, "x y z", s[i].n, 0);
    c->name = s[i].name;
    c->out = build(c, 1, &a, s[i].A, c->op == Otopk ? "top" : "");
    static const int64_t most[] = { 5, 2, 2, 1, 2, 40 };
    Attrs *t = &c->out->at;
    if (c->op == Oslice)
        t->slice = (struct slice_attrs){ t->slice.axis, s[i].i, s[i].j };
    if (c->op == Opad)
        t->pad =
            (struct pad_attrs){ t->pad.axis, s[i].i,
                                s[i].i + a->dim[dim_of(a, t->pad.axis)].n + 1 };
    if (c->op == Oshift)
        t->shift = (struct shift_attrs){ t->shift.axis, s[i].i, i == 4 };
    if (c->op == Otopk)
        t->topk.k = most[i];
    infer(c->g, c->out);
    return 1;
}

static int concat(Case *c, int i)
{
    static const int64_t n0[3] = { 2, 3, 4 }, n1[3] = { 2, 5, 4 };
    static const int64_t m0[3] = { 2, 3, 4 }, m1[3] = { 2, 3, 1 };

    if (i > 1)
        return 0;
    Node *in[3] = { reals(c, "x y z", i ? m0 : n0, 0),
                    reals(c, "x y z", i ? m1 : n1, 0) };
    in[2] = in[0];
    c->name = i ? "inner" : "middle";
    c->out = infer(c->g, build(c, 3, in, i ? "z" : "y", ""));
    return 1;
}

static int view(Case *c, int i)
{
    static const int64_t n[3] = { 2, 6, 3 };
    /* clang-format off */
    static const struct { Op op; const char *name, *A, *B; } s[] = {
        { Orename, "one", "y", "w" }, { Orename, "two", "x z", "u v" },
        { Osplit, "middle", "y", "y0 y1" }, { Osplit, "outer", "x", "x0 x1" },
        { Omerge, "neighbours", "x y", "xy" }, { Omerge, "apart", "x z", "xz" },
    };
    /* clang-format on */
    for (size_t k = 0; k < sizeof s / sizeof *s; k++) {
        if (s[k].op != c->op || i-- > 0)
            continue;
        Node *a = reals(c, "x y z", n, 0);
        g_axis(c->g, "y0")->n = 2;
        g_axis(c->g, "x0")->n = 1;
        c->name = s[k].name;
        c->out = infer(c->g, build(c, 1, &a, s[k].A, s[k].B));
        return 1;
    }
    return 0;
}

static int permute(Case *c, int i)
{
    static const struct {
        const char *name;
        int order[3];
        int64_t n[3];
        Dtype dt; /* Df64: of what is fp64 */
    } s[] = {
        { "rotate", { 2, 0, 1 }, { 2, 3, 5 }, Df64 },
        { "swap", { 1, 0, 2 }, { 2, 3, 5 }, Df64 },
        { "reverse", { 2, 1, 0 }, { 2, 3, 5 }, Df64 },
        { "turn", { 0, 2, 1 }, { 3, 72, 136 }, Df64 },
        { "turn inside", { 2, 0, 1 }, { 2, 40, 132 }, Df64 },
        { "turn 8 bits", { 0, 2, 1 }, { 3, 80, 272 }, De4m3 },
        { "reverse 8 bits", { 2, 1, 0 }, { 132, 2, 68 }, De4m3 },
        { "odd 8 bits", { 0, 2, 1 }, { 2, 65, 33 }, De4m3 },
    };

    if (i >= (int)(sizeof s / sizeof *s))
        return 0;
    Node *a = leaf(c, s[i].dt, "x y z", s[i].n);
    fill(c, c->nleaf - 1, 0);
    c->fixed[c->nleaf - 1] = i > 2; /* differences are of few elements */
    c->name = s[i].name;
    c->out = build(c, 1, &a, "", "");
    c->out->nd = 3;
    for (int k = 0; k < 3; k++)
        c->out->dim[k] = a->dim[s[i].order[k]];
    infer(c->g, c->out);
    return 1;
}

static int iota(Case *c, int i)
{
    if (i > 0)
        return 0;
    g_axis(c->g, "x")->n = 9;
    c->name = "nine";
    c->out = infer(c->g, build(c, 0, NULL, "x", ""));
    return 1;
}

typedef int Maker(Case *c, int i);

static Maker *maker(Op op)
{
    switch (op) {
    case Obroadcast: return spread;
    case Odropout:
    case Odither:
    case Opart:
    case Opick: return NULL;
    case Odot: return dot;
    case Odispatch:
    case Ocombine: return rows;
    case Ofake_quantize: return columns;
    case Ogmm:
    case Ogmm_wgrad: return grouped;
    case Oroute: return route;
    case Odrop_to_capacity: return keep;
    case Ogather:
    case Oscatter_add: return gather;
    case Oslice:
    case Opad:
    case Oshift:
    case Ocumsum:
    case Otopk: return one_axis;
    case Oconcat: return concat;
    case Orename:
    case Osplit:
    case Omerge: return view;
    case Opermute: return permute;
    case Oiota: return iota;
    case Ohadamard: return turned;
    case Ospread: return of_blocks;
    case Oamax:
    case Oquantize:
    case Odequantize: return blocks;
    default: break;
    }
    return optab[op].cls == EW    ? elementwise
           : optab[op].cls == RED ? reduction
                                  : NULL;
}

static int make(Case *c, Op op, int i, Arena *arena)
{
    Maker *m = maker(op);

    memset(c, 0, sizeof *c);
    random_state = mix64(op, (uint64_t)i);
    c->op = op;
    c->g = g_new(arena, "case");
    if (!m || !m(c, i))
        return 0;
    g_renumber(c->g);
    return 1;
}

int case_at(int i, Arena *arena, Case *c)
{
    for (int op = 0; op < op_count; op++)
        for (int k = 0; make(c, (Op)op, k, arena); k++)
            if (i-- == 0)
                return 1;
    return 0;
}
