/* loop.c: the values that a loop kernel stores, as expressions over its loops.
 *
 * kernel_value(n, index) is the value of node n at an index, one affine
 * expression per dim. Views and moves change the index passed to their
 * operand (move.c), so any chain of them costs only address arithmetic. Nodes
 * in group->in are loads; all others are recomputed at each use. Equal
 * expressions are interned, so a place computes no value twice. */
#include "loop.h"

typedef struct IndexMemo {
    Node *n;
    Index ix;
    Expr *guard, *ex;
} IndexMemo;

/* ---- loops and sizes ----------------------------------------------------- */

const SizeProduct *dim_size(LoopKernel *kernel, const Node *n, int d)
{
    return size_axis(kernel->pool, n->dim[d].a, local_n(kernel->graph, n, d));
}

static int find_loop(LoopKernel *kernel, const Axis *a,
                     const SizeProduct *product, const Node *map, int copy)
{
    for (int i = 0; i < kernel->nloop; i++) {
        const Loop *loop = &kernel->loop[i];
        if (loop->axis == a && loop->extent == product && loop->map == map &&
            loop->copy == copy)
            return i;
    }
    if (kernel->nloop == MAXLOOP)
        die("a kernel of more than %d loops", MAXLOOP);
    kernel->loop[kernel->nloop] =
        (Loop){ .axis = a, .extent = product, .map = map, .copy = copy };
    return kernel->nloop++;
}

static int loop_of(LoopKernel *kernel, const Node *n, int d, int copy)
{
    const Node *map = g_isrow(n->dim[d].a) ? n->map : NULL;

    return find_loop(kernel, n->dim[d].a, dim_size(kernel, n, d), map, copy);
}

static const AffineExpr *stride_sum(LoopKernel *kernel, const Node *n,
                                    const Index *ix)
{
    const SizeProduct *stride = size_one(kernel->pool);
    const AffineExpr *at = affine_make(kernel->pool, aff(0), 0, NULL, 0);

    for (int d = n->nd - 1; d >= 0; d--) {
        at = affine_add(kernel->pool, at,
                        affine_mul(kernel->pool, ix->at[d], stride));
        stride = size_mul(kernel->pool, stride, dim_size(kernel, n, d));
    }
    return at;
}

static Expr *load_node(LoopKernel *kernel, Node *n, const Index *ix,
                       Expr *guard)
{
    return ex_load(kernel, storage(n), n->dt, stride_sum(kernel, n, ix), guard);
}

/* ---- reductions ---------------------------------------------------------- */

/* One loop for each reduced axis, distinct from all loops in the index and the
 * guard. */
static Expr *reduce_node(LoopKernel *kernel, Node *n, const Index *ix,
                         Expr *guard)
{
    Node *a = n->in[0];
    uint64_t used = guard ? guard->deps : 0, K = 0;
    Index jx = { { 0 } };

    for (int d = 0; d < n->nd; d++)
        used |= affine_loops(kernel, ix->at[d]);
    for (int d = 0; d < a->nd; d++) {
        int k = dim_of(n, a->dim[d].a), copy = 0, l;
        if (k >= 0) {
            jx.at[d] = ix->at[k];
            continue;
        }
        while (used >> (l = loop_of(kernel, a, d, copy)) & 1)
            copy++;
        K |= 1ull << l;
        jx.at[d] = affine_var(kernel->pool, l);
    }
    Dtype dt = compute_type(n->dt);
    Expr *body = ex_as(kernel, dt, kernel_value(kernel, a, &jx, guard));
    return ex_make(kernel, &(Expr){ .kind = Xred,
                                    .dt = dt,
                                    .op = n->op,
                                    .K = K,
                                    .na = 1,
                                    .arg = { body } });
}

/* ---- elementwise --------------------------------------------------------- */

static const AffineExpr *global_index(LoopKernel *kernel, const Node *n,
                                      const Index *ix, const int *order)
{
    const AffineExpr *at = affine_make(kernel->pool, aff(0), 0, NULL, 0);
    const SizeProduct *stride = size_one(kernel->pool);

    for (int i = n->nd - 1; i >= 0; i--) {
        int d = order[i];
        const AffineExpr *x = global_at(kernel, n, d, ix->at[d]);
        at = affine_add(kernel->pool, at, affine_mul(kernel->pool, x, stride));
        stride = size_mul(kernel->pool, stride,
                          size_axis(kernel->pool, n->dim[d].a, n->dim[d].n));
    }
    return at;
}

static int axis_order(const LoopKernel *kernel, const Axis *a)
{
    int i = 0;

    while (kernel->graph->axis[i] != a)
        i++;
    return i;
}

/* Sorts the dims by the position of their axes in the graph, which is
 * independent of layout. */
static void mask_order(const LoopKernel *kernel, const Node *n, int *order)
{
    for (int i = 0; i < n->nd; i++) {
        int k = i, at = axis_order(kernel, n->dim[i].a);
        for (; k > 0 && axis_order(kernel, n->dim[order[k - 1]].a) > at; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

static Expr *random_value(LoopKernel *kernel, Node *n, const Index *ix)
{
    int order[MAXD];
    Expr *arg[3];

    for (int i = 0; i < n->nd; i++)
        order[i] = i;
    arg[0] = ex_key(kernel, n->at.random.key);
    arg[1] = ex_aff(kernel, Di64, global_index(kernel, n, ix, order));
    arg[2] = ex_num(kernel, Df32, n->at.random.arg);
    const char *text = n->at.random.kind == RANDuniform
                           ? "(2 * uniform(a, b) - 1) * c"
                           : "normal(a, b) * c";
    return ex_rounded(kernel, n->dt, ex_expr(kernel, Df32, text, 3, arg));
}

/* Number of the micro-batch at index ix within the step. Operand 2 is the first
 * micro-batch of this iteration. */
static Expr *micro_batch(LoopKernel *kernel, Node *n, const Index *ix)
{
    int d = 0;

    while (d < n->nd && !g_ismicro(n->dim[d].a))
        d++;
    Expr *first = kernel_value(kernel, n->in[2], &(Index){ { 0 } }, NULL);
    if (d == n->nd)
        return first;
    const AffineExpr *at = global_at(kernel, n, d, ix->at[d]);
    return ex_op(kernel, Di64, "a + b", first, ex_aff(kernel, Di64, at), NULL);
}

/* Index of the element in its micro-batch, in the graph's order of axes. Axes
 * of expert rows are left out: their order depends on the fold. */
static Expr *index_in_micro(LoopKernel *kernel, Node *n, const Index *ix)
{
    int order[MAXD], k = 0;
    Node one = *n;
    Index in_one = { { 0 } };

    for (int d = 0; d < n->nd; d++)
        if (!g_ismicro(n->dim[d].a) && !g_isrow(n->dim[d].a)) {
            one.dim[k] = n->dim[d];
            in_one.at[k++] = ix->at[d];
        }
    one.nd = k;
    mask_order(kernel, &one, order);
    return ex_aff(kernel, Di64, global_index(kernel, &one, &in_one, order));
}

/* Number of the training step; 0 outside of steps. */
static Expr *step_of(LoopKernel *kernel, const Node *n)
{
    return n->nin < 3 ? ex_num(kernel, Di64, 0)
                      : kernel_value(kernel, n->in[1], &(Index){ { 0 } }, NULL);
}

/* Uniform in [0, 1) from the element's index in its micro-batch, the
 * micro-batch and the step: independent of layout and fold, and equal in the
 * backward. */
static Expr *uniform_value(LoopKernel *kernel, Node *n, const Index *ix,
                           int64_t key)
{
    Expr *arg[4] = { ex_key(kernel, key), index_in_micro(kernel, n, ix),
                     n->nin < 3 ? ex_num(kernel, Di64, 0)
                                : micro_batch(kernel, n, ix),
                     step_of(kernel, n) };

    return ex_expr(kernel, Df32, "uniform_at(a, b, c, d)", 4, arg);
}

static int has_rows(const Node *n)
{
    for (int d = 0; d < n->nd; d++)
        if (g_isrow(n->dim[d].a))
            return 1;
    return 0;
}

static Expr *dither_value(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    Dtype dt = compute_type(n->dt);

    if (!has_rows(n))
        return ex_as(kernel, dt,
                     uniform_value(kernel, n, ix, n->at.dither.key));
    Index jx = by_axis(kernel, n->in[0], n, ix);
    Expr *x = kernel_value(kernel, n->in[0], &jx, guard);
    Expr *arg[4] = { ex_key(kernel, n->at.dither.key),
                     index_in_micro(kernel, n, ix), step_of(kernel, n),
                     ex_as(kernel, Df32, x) };

    return ex_as(kernel, dt,
                 ex_expr(kernel, Df32, "uniform_of(a, b, c, d)", 4, arg));
}

static Expr *dropout_value(LoopKernel *kernel, Node *n, const Index *ix,
                           Expr *guard)
{
    Index jx = by_axis(kernel, n->in[0], n, ix);
    Dtype dt = compute_type(n->dt);
    Expr *u = uniform_value(kernel, n, ix, n->at.dropout.key);
    if (n->at.dropout.drawn)
        return ex_as(kernel, dt, u);
    Expr *keep = ex_op(kernel, Di32, "a >= b", u,
                       ex_num(kernel, Df32, n->at.dropout.p), NULL);
    Expr *v =
        ex_op(kernel, dt, "a * b", kernel_value(kernel, n->in[0], &jx, guard),
              ex_num(kernel, dt, 1 / (1 - n->at.dropout.p)), NULL);
    return ex_rounded(kernel, n->dt,
                      ex_select(kernel, keep, v, ex_num(kernel, dt, 0)));
}

static Expr *const_value(LoopKernel *kernel, const Node *n)
{
    double f = n->at.constant.value;

    if (*dtypes[n->dt].round)
        f = dtype_rounded(n->dt, (float)f);
    return ex_num(kernel, compute_type(n->dt), f);
}

static Expr *pow_value(LoopKernel *kernel, Node *n, Expr *a, Expr *b)
{
    /* clang-format off */
    static const struct { double p; const char *text; } known[] = {
        { 0.5, "sqrt(a)" }, { 1, "a" }, { 2, "a * a" }, { 3, "a * a * a" },
        { 4, "(a * a) * (a * a)" }, { -1, "1 / a" }, { -0.5, "1 / sqrt(a)" },
        { -2, "1 / (a * a)" }, { 0, "a * 0 + 1" },
    };
    /* clang-format on */
    Dtype dt = compute_type(n->dt);
    const ScalarExpr *of = optab[Opow].expr;
    int na = 2;

    for (int i = 0; b->kind == Xnum && i < countof(known); i++)
        if (known[i].p == b->f)
            of = scalar_of(known[i].text), na = 1;
    return ex_scalar(kernel, dt, of, 0, na, (Expr *[]){ a, b });
}

/* Ops that select or negate an operand need no rounding if the operands are
 * rounded. */
static int is_selection(const Node *n)
{
    static const Op op[] = { Oneg,   Oabs,  Orelu,      Omaximum,      Ominimum,
                             Owhere, Osign, Obroadcast, Ostop_gradient };
    int k = 0;

    for (int i = 0; i < countof(op); i++)
        k |= n->op == op[i];
    for (int i = n->op == Owhere; k && i < n->nin; i++)
        k = n->in[i]->dt == n->dt;
    return k;
}

static Expr *cast_value(LoopKernel *kernel, Node *n, const Index *ix,
                        Expr *guard)
{
    Node *a = n->in[0];
    Index jx = by_axis(kernel, a, n, ix);
    Expr *x = kernel_value(kernel, a, &jx, guard);

    if (n->dt == Dbool)
        return ex_op(kernel, Di32, "a != 0", x, NULL, NULL);
    if (n->dt == Di16 && x->of == optab[Oremainder_bf16].expr)
        return ex_scalar(kernel, Di32, x->of, ~0, 1, x->arg);
    if (n->dt == Du8 || n->dt == De2m1x2)
        return ex_op(kernel, Di32, "(uint8_t)a", x, NULL, NULL);
    return ex_rounded(kernel, n->dt, x);
}

/* Has n 16 bits or less, possibly converted to a wider type? */
static int has_few_bits(const Node *n)
{
    while (n->op == Ocast && dtypes[n->dt].bytes > 2)
        n = n->in[0];
    return dtypes[n->dt].kind == 'f' && dtypes[n->dt].bytes <= 2;
}

/* Does exponent x have a relative error of 2^-9 or more, directly or in a
 * difference? The decision depends on the node, not on the kernel, so an
 * exponential has one value in all kernels. */
static int is_rough(const Node *x)
{
    return has_few_bits(x) || (x->op == Osub && has_few_bits(x->in[0]));
}

static Expr *ew_value(LoopKernel *kernel, Node *n, const Index *ix, Expr *guard)
{
    Expr *arg[SCALARIN];

    for (int i = 0; i < n->nin; i++) {
        Index jx = by_axis(kernel, n->in[i], n, ix);
        arg[i] = kernel_value(kernel, n->in[i], &jx, guard);
    }
    if (n->op == Obroadcast)
        return arg[0];
    if (n->op == Opow)
        return ex_rounded(kernel, n->dt, pow_value(kernel, n, arg[0], arg[1]));
    int raw = op_is(n->op, OPcmp) ? ~0 : n->op == Owhere;
    if (n->op == Ojoin_bf16) /* the remainder stays an integer */
        arg[1] = ex_integer(arg[1]), raw = 2;
    if (n->op == Oexp && is_rough(n->in[0]))
        raw = RAWROUGH;
    Expr *x = ex_scalar(kernel, compute_type(n->dt), optab[n->op].expr, raw,
                        n->nin, arg);
    return is_selection(n) ? x : ex_rounded(kernel, n->dt, x);
}

/* ---- one node ------------------------------------------------------------ */

static Expr *compute_node(LoopKernel *kernel, Node *n, const Index *ix,
                          Expr *guard)
{
    Expr *from = move_value(kernel, n, ix, guard);

    if (from)
        return from;
    switch (n->op) {
    case Oconst: return const_value(kernel, n);
    case Oiota:
        return ex_as(
            kernel, compute_type(n->dt),
            ex_aff(kernel, Di32, global_index(kernel, n, ix, (int[]){ 0 })));
    case Orandom: return random_value(kernel, n, ix);
    case Odropout: return dropout_value(kernel, n, ix, guard);
    case Odither: return dither_value(kernel, n, ix, guard);
    case Ocast: return cast_value(kernel, n, ix, guard);
    default: break;
    }
    if (optab[n->op].cls == RED)
        return ex_rounded(kernel, n->dt, reduce_node(kernel, n, ix, guard));
    if (optab[n->op].expr)
        return ew_value(kernel, n, ix, guard);
    return load_node(kernel, n, ix, guard);
}

static uint64_t memo_key(const Node *n, const Index *ix, const Expr *guard)
{
    uint64_t h = mix64(KEYP(n), guard ? (uint64_t)guard->id : ~0ull);

    for (int d = 0; d < n->nd; d++)
        h = mix64(h, KEYP(ix->at[d]));
    return h;
}

/* Does each index run over at most its whole dim? Then no guard is needed: a
 * guard that excludes indices of a following node does not apply here. */
static int index_in_range(LoopKernel *kernel, const Node *n, const Index *ix)
{
    for (int d = 0; d < n->nd; d++) {
        const AffineExpr *affine = ix->at[d];
        const Term *term = affine->term;
        if (affine->hasoff || affine->nt != 1 || term->var >= MAXLOOP ||
            term->div->n || term->mod || term->k->n || g_isrow(n->dim[d].a) ||
            kernel->loop[term->var].extent->v > local_n(kernel->graph, n, d))
            return 0;
    }
    return 1;
}

Expr *kernel_value(LoopKernel *kernel, Node *n, const Index *ix, Expr *guard)
{
    if (guard && kernel->gpu && index_in_range(kernel, n, ix))
        guard = NULL;
    for (int d = 0; d < n->nd; d++)
        if (!ix->at[d])
            die("%s: no index for axis %s", optab[n->op].name,
                n->dim[d].a->name);
    if (table_get(kernel->member, KEYP(n)))
        return load_node(kernel, n, ix, guard);
    for (uint64_t h = memo_key(n, ix, guard);; h++) {
        IndexMemo *m = table_get(kernel->memo, h);
        if (m && m->n == n && m->guard == guard &&
            !memcmp(m->ix.at, ix->at, (size_t)n->nd * sizeof *ix->at))
            return m->ex;
        if (m)
            continue;
        m = alloc(kernel->arena, sizeof *m);
        *m = (IndexMemo){ n, *ix, guard, compute_node(kernel, n, ix, guard) };
        *table_at(kernel->memo, h) = m;
        return m->ex;
    }
}

/* ---- stores -------------------------------------------------------------- */

static Expr *accumulated_value(LoopKernel *kernel, Node *n, const Index *ix,
                               Expr *expr)
{
    const char *f = n->at.accum.op == Radd   ? "a + b"
                    : n->at.accum.op == Rmax ? "b > a ? b : a"
                                             : "b < a ? b : a";

    if (n->at.accum.op == Rlast)
        return expr;
    Expr *old = load_node(kernel, n, ix, NULL);
    return ex_rounded(kernel, n->dt,
                      ex_op(kernel, compute_type(n->dt), f, old, expr, NULL));
}

static void add_store(LoopKernel *kernel, Node *n)
{
    Node *to = n->op == Owrite ? n->in[0] : n;
    Node *from = n->op == Owrite ? n->in[1] : n->in[0];
    Index ix = { { 0 } };
    Store s = { .node = n };

    for (int d = 0; d < to->nd; d++) {
        int l = loop_of(kernel, to, d, 0);
        s.loops |= 1ull << l;
        ix.at[d] = affine_var(kernel->pool, l);
    }
    if (optab[n->op].cls == SINK) {
        Index jx = by_axis(kernel, from, to, &ix);
        s.val = kernel_value(kernel, from, &jx, NULL);
        if (n->op == Oaccum)
            s.val = accumulated_value(kernel, n, &ix, s.val);
    } else {
        s.val = compute_node(kernel, n, &ix, NULL);
    }
    s.addr = stride_sum(kernel, to, &ix);
    vec_push(kernel->arena, kernel->st, s);
}

static int is_tile_part(const LoopTile *tile, const Node *n)
{
    for (int i = 0; i < tile->n; i++)
        for (int k = 0; k < 4; k++)
            if (tile->of[i].part[k] == n)
                return 1;
    return 0;
}

/* The store whose value is quantized by the tile, for n; else null. */
static Store *tile_value_store(LoopKernel *kernel, const Node *n)
{
    for (int i = 0; i < kernel->tile->n; i++)
        if (kernel->tile->of[i].node->in[0] == n)
            return &kernel->st[i];
    return NULL;
}

/* Quantized values come first: tiles consist of their lines. */
static void add_tile_stores(LoopKernel *kernel)
{
    const Group *group = kernel->group;

    for (int i = 0; i < kernel->tile->n; i++) {
        add_store(kernel, kernel->tile->of[i].node->in[0]);
        kernel->st[i].held = i + 1;
        kernel->st[i].unstored = 1;
    }
    for (int i = 0; i < group->nout; i++) {
        Store *held = tile_value_store(kernel, group->out[i]);
        if (held)
            held->unstored = 0;
        else if (!is_tile_part(kernel->tile, group->out[i]))
            add_store(kernel, group->out[i]);
    }
}

static size_t defined_sizes(const SizePool *pool)
{
    size_t n = 0;

    for (size_t i = 0; i < vec_len(pool->size); i++)
        n += pool->size[i].def != NULL;
    return n;
}

/* Fills kernel->ex, loop and st from the group. It repeats while sizes turn out
 * to be products, since loops made before that are then cut. */
static void build_kernel(LoopKernel *kernel)
{
    size_t was;

    kernel->pool = pool_new(kernel->arena);
    do {
        was = defined_sizes(kernel->pool);
        kernel->memo = table_new(kernel->arena);
        kernel->exof = table_new(kernel->arena);
        kernel->member = table_new(kernel->arena);
        kernel->ex = NULL;
        kernel->st = NULL;
        kernel->nloop = 0;
        for (int i = 0; i < kernel->group->nin; i++) {
            Node *in = kernel->group->in[i], *at = storage(in);
            *table_at(kernel->member, KEYP(in)) = in;
            *table_at(kernel->member, KEYP(at)) = at;
        }
        if (kernel->tile)
            add_tile_stores(kernel);
        for (int i = 0; !kernel->tile && i < kernel->group->nout; i++)
            add_store(kernel, kernel->group->out[i]);
    } while (kernel->gpu && defined_sizes(kernel->pool) > was);
}

static void lower_loop(Graph *g, Group *group, Arena *a, int gpu)
{
    LoopKernel c = { .graph = g, .group = group, .arena = a, .gpu = gpu };
    const Group was = *group;

    for (int form = STAGEdealt; form < STAGEFORMS; form++) {
        *group = was;
        c.form = (StageForm)form;
        c.uneven = c.nstage = 0;
        c.held = 0;
        build_kernel(&c);
        canonicalize_loops(&c);
        print_kernel(&c);
        if (!c.uneven)
            break;
    }
    find_inplace(&c);
    set_label(group, a, group->out[0]);
}

void loop_lower_tiles(Graph *g, Group *group, Arena *a, const LoopTile *tile)
{
    LoopKernel c = {
        .graph = g, .group = group, .arena = a, .gpu = 1, .tile = tile
    };

    build_kernel(&c);
    canonicalize_loops(&c);
    print_kernel(&c);
    set_label(group, a, tile->of[0].node->in[0]);
}

void loop_lower(Graph *g, Group *group, Arena *a)
{
    lower_loop(g, group, a, 0);
}

void loop_lower_cuda(Graph *g, Group *group, Arena *a)
{
    lower_loop(g, group, a, 1);
}
