/* fp8.c: which products are of numbers of few bits, by precision.recipe:
 *
 *     %y = dot %x %w         =>     %s = pow2_scale (amax %x)
 *                                   %q = quantize %x %s to=e4m3
 *                                   %v = cast (dequantize %q 1/%s) to=bf16
 *                                   %y = dot %v %u          %u: the same of %w
 *
 * A weight's products are scaled together: forward, the gradient of what it
 * meets, its own gradient. It is rounded once a step, in `pre`, for all of them
 * and all micro-batches; by its reader where each of these gathers it (ZeRO-3).
 * What a scale of blocks leaves is a number that bf16 holds exactly (of e4m3
 * times a power of two, of e2m1 times e4m3), so the product is that of the
 * scaled numbers, added up in fp32. A scale that is one for all that a product
 * sums over multiplies its result. A weight's own gradient may be of operands
 * that a Hadamard matrix turned along what it sums over, which leaves it as it
 * is; gradients may be rounded at random, by keys that follow from the path of
 * the weight and the seed (recipes.def).
 *
 * Scaled are products of a weight that save more time, at the speeds of the
 * machine, than rounding their operands takes. Others stay: of a vocabulary
 * (embedding, head), of a router (a choice that no index picks), of values that
 * the model asks for in another dtype (f32), of parameters that precision.keep
 * names. Norms, softmax and losses are no products of weights. The own gradient
 * of an expert's weight, which sums over its rows, is made of columns of 128 of
 * these, from the expert's first on, where precision.wgrad says so:
 *
 *     %w = gmm_wgrad %x %y %m    =>    %u = fake_quantize %x %m
 *                                      %v = fake_quantize %y %m
 *                                      %w = gmm_wgrad %u %v %m
 *
 * Blocks are cut on the rank that has the rows: where ranks send rows to each
 * other they hold rows of several, and only numbers below 2^-14 of a block's
 * largest, which e4m3 holds to fewer bits, differ from those of one rank. */
#include <float.h>

#include "../../ir/settings/keys.h"
#include "placement.h"

/* A gradient, not a value that a fallback makes again for its backward. */
static int is_gradient(const Node *x)
{
    return is_backward(x) && !x->again;
}

/* The products of data that x is the sum of make placement's gradient. */
static void note_gradient(Placement *placement, const Node *x,
                          const Param *param)
{
    if (x->op == Odot || x->op == Ogmm_wgrad) {
        if (differs_by_micro(placement->g, x->in[0]) &&
            differs_by_micro(placement->g, x->in[1]))
            *table_at(placement->gradient, KEYP(x)) = (void *)(uintptr_t)param;
        return;
    }
    int clones = is_between_clones(x);

    if (x->op != Ocast && x->op != Oadd && x->op != Opermute && !clones &&
        optab[x->op].cls != VIEW)
        return;
    for (int k = 0; k < (clones ? 1 : x->nin); k++)
        note_gradient(placement, x->in[k], param);
}

static void find_gradients(Placement *placement)
{
    Graph *g = placement->g;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i], *x = n->nin ? n->in[0] : NULL;
        if (n->op != Oaccum || !n->of)
            continue;
        if (x->op != Opack) {
            note_gradient(placement, x, g_param(g, n->of));
            continue;
        }
        const Bucket *b = bucket_named(g, n->of);
        for (int k = 0; k < x->nin; k++)
            note_gradient(placement, x->in[k], b->param[k]);
    }
}

/* ---- operands ------------------------------------------------------------ */

typedef struct ScaledOperand {
    Node *values;
    Node *outer; /* as of Rounding */
} ScaledOperand;

/* What rounds an operand, or makes it of what was rounded, where `at` stands,
 * in a region. */
typedef struct OperandBuilder {
    Cursor b;
    ScaledDtype to;
    OperandUse use;
    const Param *param; /* that the products are of */
    const Placement *placement;
    int own_gradient; /* `at` makes that of param */
    Axes axes;        /* those that blocks cut, or all that one scale is for */
    Axes blocks, own;
    Axis *pairs;
} OperandBuilder;

static Node *largest(const OperandBuilder *builder, Node *x)
{
    Node *n = b_node(builder->b, Oamax, 1, &x);

    n->at.amax = (struct amax_attrs){ builder->to.layout, builder->axes,
                                      builder->blocks };
    return infer(builder->b.g, n);
}

/* Of all values that have one second scale. */
static Node *largest_of_all(const OperandBuilder *builder, Node *x)
{
    OperandBuilder all = *builder;

    all.to.layout = SCALEtensor;
    all.axes = builder->own;
    all.blocks = (Axes){ 0 };
    return largest(&all, x);
}

/* Of the weight's path: another for its own gradient than for that of what it
 * meets, the same in every fold and step. */
static int64_t random_key(const OperandBuilder *builder)
{
    uint64_t h = (uint64_t)opts_int(builder->b.g->opts, "seed");

    for (const char *s = builder->param->path; *s; s++)
        h = mix64(h, (uint64_t)(unsigned char)*s);
    return (int64_t)(mix64(h, (uint64_t)builder->own_gradient) >> 1) | 1;
}

static Node *quantized(const OperandBuilder *builder, Node *x, Node *scale)
{
    Node *in[2] = { x, scale };
    Node *n = b_node(builder->b, Oquantize, 2, in);

    n->at.quantize =
        (struct quantize_attrs){ builder->to.layout, builder->axes,
                                 builder->blocks,    builder->to.to,
                                 builder->pairs,     0 };
    if (builder->to.rounding == ROUNDstochastic)
        n->at.quantize.key = random_key(builder);
    infer(builder->b.g, n);
    if (!builder->b.again)
        watch_quantize(builder->placement->watch, n, builder->use,
                       builder->param);
    return n;
}

/* The largest number of a dtype. */
static double largest_number(Dtype t)
{
    return t == De2m1x2 ? 6 : dtype_rounded(t, FLT_MAX);
}

static Rounding rounded(const OperandBuilder *builder, Node *x)
{
    double most = largest_number(builder->to.to);
    Node *a, *one, *s, *t;
    Rounding r = { x,    builder->axes, builder->blocks, builder->pairs, NULL,
                   NULL, NULL };

    if (builder->to.formula == FORMULAdelayed) {
        s = delayed_scale(builder->placement->delayed, builder->param,
                          builder->use, builder->b.at, x, most);
        r.numbers = quantized(builder, x, s);
        r.outer = b_op2(builder->b, Odiv, b_const(builder->b, Df32, 1), s);
        return r;
    }
    a = largest(builder, x);
    one = b_const(builder->b, Df32, 1);
    switch (builder->to.formula) {
    case FORMULAamax:
        s = b_op2(builder->b, Oamax_scale, a, b_const(builder->b, Df32, most));
        r.numbers = quantized(builder, x, s);
        r.outer = b_op2(builder->b, Odiv, one, s);
        return r;
    case FORMULApow2:
        s = b_op2(builder->b, Opow2_scale, a, b_const(builder->b, Df32, most));
        r.numbers = quantized(builder, x, s);
        r.inverse = b_op2(builder->b, Odiv, one, s);
        return r;
    case FORMULAmx:
        s = b_cast(
            builder->b,
            b_op2(builder->b, Omx_inverse, a, b_const(builder->b, Df32, most)),
            De8m0);
        r.numbers = quantized(builder, x, b_op1(builder->b, Omx_scale, s));
        r.inverse = s;
        return r;
    default: break;
    }
    most *= largest_number(De4m3);
    Node *largest = b_const(builder->b, Df32, most);
    t = b_op2(builder->b, Oamax_scale, largest_of_all(builder, x), largest);
    s = b_cast(builder->b, b_op2(builder->b, Onv_inverse, a, t), De4m3);
    r.numbers = quantized(builder, x, b_op2(builder->b, Onv_scale, s, t));
    r.inverse = s;
    r.outer = b_op2(builder->b, Odiv, one, t);
    return r;
}

/* What the numbers are times their scales of blocks, which x's dtype holds
 * exactly. */
static ScaledOperand operand_of(const OperandBuilder *builder,
                                const Rounding *rounding)
{
    Node *in[2] = { rounding->numbers, rounding->inverse };

    if (!rounding->inverse)
        return (ScaledOperand){ b_cast(builder->b, rounding->numbers,
                                       rounding->of->dt),
                                rounding->outer };
    Node *n = b_node(builder->b, Odequantize, 2, in);
    n->at.dequantize =
        (struct dequantize_attrs){ builder->to.layout, rounding->axes,
                                   rounding->blocks, rounding->pairs };
    return (ScaledOperand){ b_cast(builder->b, infer(builder->b.g, n),
                                   rounding->of->dt),
                            rounding->outer };
}

/* All axes but micro and rows, which have scales of their own. */
static Axes own_axes(Graph *g, const Node *x)
{
    Axis *v[MAXD];
    int n = 0;

    for (int d = 0; d < x->nd; d++)
        if (!g_ismicro(x->dim[d].a) && !g_isrow(x->dim[d].a))
            v[n++] = x->dim[d].a;
    return g_axes(g, v, n);
}

/* Blocks along these axes, and pairs of numbers. */
static void cut_into_blocks(OperandBuilder *builder, Axis *const *cut, int ncut)
{
    const ScaleInfo *info = &scales[builder->to.layout];
    Axis *blocks[2];

    for (int i = 0; i < ncut; i++)
        blocks[i] = axis_of_blocks(builder->b.g, cut[i],
                                   i + 1 < ncut ? info->rows : info->cols);
    if (ncut) {
        builder->axes = g_axes(builder->b.g, cut, ncut);
        builder->blocks = g_axes(builder->b.g, blocks, ncut);
    }
    if (builder->to.to == De2m1x2)
        builder->pairs = axis_of_blocks(
            builder->b.g, builder->axes.v[builder->axes.n - 1], 2);
}

static int same_axes(const Axes *axes, Axis *const *v, int n)
{
    int same = axes->n == n;

    for (int i = 0; i < n && same; i++)
        same = axes->v[i] == v[i];
    return same;
}

/* Parameter x rounded with blocks along these axes, once a step. */
static Rounding rounded_once(OperandBuilder b, WeightChoice *choice, Node *x,
                             Axis *const *cut, int ncut)
{
    for (size_t i = 0; i < vec_len(choice->once); i++)
        if (!ncut || same_axes(&choice->once[i].axes, cut, ncut))
            return choice->once[i];
    b.b = cursor_at(b.b.g, x);
    b.b.reg = REGpre;
    cut_into_blocks(&b, cut, ncut);
    Rounding r = rounded(&b, x);
    vec_push(b.b.g->arena, choice->once, r);
    return r;
}

/* The axis along which both operands of n, a weight's own gradient, are turned
 * as the recipe says; null: they are not, or blocks of 16 are not whole. */
static Axis *turned_along(const Placement *placement, const Node *n, int w)
{
    Axis *a = longest_axis(n->in[0], n, NULL);

    if (placement->recipe->transform != TRANSFORMhadamard || w >= 0 || !a ||
        longest_axis(n->in[1], n, NULL) != a)
        return NULL;
    return n->in[0]->dim[dim_of(n->in[0], a)].n % 16 ? NULL : a;
}

/* Negative columns of Hadamard matrices: the same bits all through a run. */
static int64_t hadamard_signs(const Graph *g)
{
    return (int64_t)(mix64((uint64_t)opts_int(g->opts, "seed"), 16) & 0xffff);
}

static Node *turned(const OperandBuilder *builder, Node *x, Axis *along)
{
    Graph *g = builder->b.g;
    Axis *blocks = axis_of_blocks(g, along, 16);
    Node *n = b_node(builder->b, Ohadamard, 1, &x);

    n->at.hadamard =
        (struct hadamard_attrs){ SCALEnv, g_axes(g, &along, 1),
                                 g_axes(g, &blocks, 1), hadamard_signs(g) };
    return infer(g, n);
}

/* x, as n's operand. */
static ScaledOperand operand(const Placement *placement, const Node *n, Node *x,
                             OperandUse use, const Param *param, Axis *turn)
{
    Graph *g = placement->g;
    WeightChoice *choice = table_get(placement->choice, KEYP(param));
    OperandBuilder b = { .b = cursor_at(g, n),
                         .to = placement->recipe->use[use],
                         .use = use,
                         .param = param,
                         .placement = placement,
                         .own_gradient = weight_at(g, n) < 0 };
    int once = use == USEweight && x->op == Oparam && program_trains(g->prog);
    Axis *cut[2];
    int ncut = axes_cut(b.to.layout, n, x, cut);
    Rounding r;

    b.b.again = use == USEweight && is_backward(n);
    if (use == USEweight && param->kind == TKnumbers)
        return (ScaledOperand){ x, NULL };
    if (use == USEweight && is_between_clones(x)) { /* as its home reads it */
        ScaledOperand home = operand(placement, n, x->in[0], use, param, NULL);
        Node *in[2] = { home.values, x->in[1] };
        home.values = b_here(b.b, infer(g, g_copyof(g, x, in)));
        return home;
    }
    b.own = b.axes = own_axes(g, x);
    if (once) {
        r = rounded_once(b, choice, x, cut, ncut);
    } else {
        cut_into_blocks(&b, cut, ncut);
        r = rounded(&b, turn ? turned(&b, x, turn) : x);
        r.of = x;
    }
    return operand_of(&b, &r);
}

/* ---- products ------------------------------------------------------------ */

/* Leaves micro, over which scales differ, in n's result. */
static Axis *keep_micro(Graph *g, Node *n)
{
    Axis *micro = g_micro(g), *v[MAXD];
    int k = 0;

    if (n->op != Odot || axes_at(&n->at.dot.axes, micro) < 0)
        return NULL;
    for (int i = 0; i < n->at.dot.axes.n; i++)
        if (n->at.dot.axes.v[i] != micro)
            v[k++] = n->at.dot.axes.v[i];
    n->at.dot.axes = g_axes(g, v, k);
    memmove(n->dim + 1, n->dim, (size_t)n->nd++ * sizeof *n->dim);
    n->dim[0] = n->in[0]->dim[dim_of(n->in[0], micro)];
    infer(g, n);
    return micro;
}

static Node *times(Graph *g, const Node *n, Node *y, Node *outer)
{
    return outer ? b_op2(cursor_at(g, n), Omul, y, outer) : y;
}

static int is_per_micro(const Node *outer)
{
    return outer && outer->nd && g_ismicro(outer->dim[0].a);
}

static Node *of_scaled(Graph *g, Node *n, const ScaledOperand *operand)
{
    Dtype was = n->dt;

    for (int k = 0; k < 2; k++)
        n->in[k] = operand[k].values;
    if (!operand[0].outer && !operand[1].outer)
        return n;
    n->dt = was == Df64 ? Df64 : Df32;
    Axis *micro =
        is_per_micro(operand[0].outer) || is_per_micro(operand[1].outer)
            ? keep_micro(g, n)
            : NULL;
    vec_push(g->arena, g->node, n);
    Node *y = times(g, n, times(g, n, n, operand[0].outer), operand[1].outer);
    if (micro)
        y = b_red(cursor_at(g, n), Osum, y, &micro, 1);
    return b_cast(cursor_at(g, n), y, was);
}

/* ---- rows of experts ----------------------------------------------------- */

static int keeps_rounded(const Placement *placement)
{
    return opts_kept_operands(placement->g->opts) == KEPTrounded;
}

/* The weight whose own gradient n makes, if its products are scaled: it may
 * take operands as they do; or null. */
static const Param *gradient_scaled(const Placement *placement, const Node *n)
{
    const Param *param = table_get(placement->gradient, KEYP(n));
    const WeightChoice *v =
        param ? table_get(placement->choice, KEYP(param)) : NULL;

    return v && !v->stays ? param : NULL;
}

/* The weight of product n that takes operand k rounded; or null. */
static const Param *value_scaled(const Placement *placement, const Node *n,
                                 int k)
{
    int w = weight_at(placement->g, n);
    const Param *param =
        w >= 0 && w != k ? weight_of(placement->g, n->in[w]) : NULL;
    const WeightChoice *v =
        param ? table_get(placement->choice, KEYP(param)) : NULL;

    return v && !v->stays && can_cut(placement, n, k, USEvalue) ? param : NULL;
}

/* n reads x, its operand k. All readers of rows of experts count, of other
 * values gradients. What a fallback makes again for a gradient alone has been
 * read by a product before. */
static void note_reader(Placement *placement, const Node *n, int k)
{
    const Node *x = n->in[k];
    RowsRounded **at = (RowsRounded **)table_at(placement->rows, KEYP(x));
    const Param *own = gradient_scaled(placement, n);
    const Param *param = own ? own : value_scaled(placement, n, k);

    if (!*at)
        *at = alloc(placement->g->arena, sizeof **at);
    if (!param)
        (*at)->others +=
            x->op == Odispatch ? n->op != Ogmm_wgrad : is_gradient(n);
    if (!param || (*at)->product || (own && !x->again))
        return;
    (*at)->product = n;
    (*at)->k = k;
    (*at)->param = param;
}

static void find_rows(Placement *placement)
{
    Graph *g = placement->g;
    int kept = keeps_rounded(placement);

    if (!has_wide_rows(placement->recipe) ||
        (!kept && opts_rows_on_wire(g->opts) == WIREnone))
        return;
    placement->wire = wire_new(g);
    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            const Node *x = g->node[i]->in[k];
            if (x->op == Odispatch ||
                (kept && !is_gradient(x) && x->reg == REGbody &&
                 optab[x->op].cls != SRC))
                note_reader(placement, g->node[i], k);
        }
}

/* The axis that is cut into blocks by product n of x; a weight's own gradient
 * sums over the others. */
static int value_cut(const Placement *placement, const Node *n, const Node *x,
                     OperandUse use, Axis *cut[2])
{
    int own = table_get(placement->gradient, KEYP(n)) != NULL;

    return axes_cut(placement->recipe->use[use].layout, own ? NULL : n, x, cut);
}

/* Rounded where the tokens are, or where the rows came. */
static Node *values_of_rows(const Placement *placement, const RowsRounded *rows)
{
    Graph *g = placement->g;
    const Node *n = rows->product;
    Node *x = n->in[rows->k];
    OperandUse use = is_gradient(x) ? USEgradient : USEvalue;
    OperandBuilder b = { .b = cursor_at(g, n),
                         .to = placement->recipe->use[use],
                         .use = use,
                         .param = rows->param,
                         .placement = placement };
    Axis *cut[2];
    int ncut = value_cut(placement, n, x, use, cut);

    cut_into_blocks(&b, cut, ncut);
    Node *from =
        wire_source(placement->wire, x, cut[0], scales[b.to.layout].cols);
    Rounding r = rounded(&b, from);
    if (from != x) {
        r.numbers = wire_moved(placement->wire, x, r.numbers);
        r.inverse = wire_moved(placement->wire, x, r.inverse);
    }
    return operand_of(&b, &r).values;
}

/* Rows x as all their readers take them; null: each as it does. */
static Node *rows_rounded(const Placement *placement, const Node *x)
{
    RowsRounded *rows = table_get(placement->rows, KEYP(x));

    if (!rows || !rows->product || rows->others)
        return NULL;
    if (!rows->values)
        rows->values = values_of_rows(placement, rows);
    return rows->values;
}

/* Operand k of product n as all readers of it take it, where n cuts it into the
 * same blocks; or null. */
static Node *cut_alike(const Placement *placement, const Node *n, int k)
{
    const Node *x = n->in[k];
    const RowsRounded *rows = table_get(placement->rows, KEYP(x));
    Axis *cut[2], *other[2];

    if (!rows || !rows->product ||
        value_cut(placement, n, x, USEvalue, cut) != 1 ||
        value_cut(placement, rows->product, x, USEvalue, other) != 1 ||
        cut[0] != other[0])
        return NULL;
    return rows_rounded(placement, x);
}

/* A gradient of a weight by what its products read rounded. */
static Node *by_rounded_rows(const Placement *placement, Node *n)
{
    for (int k = 0; k < 2; k++) {
        Node *v = rows_rounded(placement, n->in[k]);
        if (v)
            n->in[k] = v;
    }
    return n;
}

static int reads_rounded(const Placement *placement, const Node *n)
{
    return rows_rounded(placement, n->in[0]) ||
           rows_rounded(placement, n->in[1]);
}

/* x in blocks of rows of an expert, where n reads it. */
static Node *in_columns(Graph *g, const Node *n, Node *x)
{
    Node *in[2] = { x, n->in[2] };

    return infer(g, b_node(cursor_at(g, n), Ofake_quantize, 2, in));
}

/* The gradient n of an expert's weight. */
static Node *own_gradient(const Placement *placement, Node *n,
                          const WeightChoice *v)
{
    if (!v || v->stays || v->own || n->in[0]->nd != 2 || n->in[1]->nd != 2)
        return by_rounded_rows(placement, n);
    for (int k = 0; k < 2; k++)
        n->in[k] = in_columns(placement->g, n, n->in[k]);
    return n;
}

static Node *scaled(Graph *g, Node *n, void *ctx)
{
    const Placement *placement = ctx;
    int w = weight_at(g, n);
    const Param *param = w >= 0 ? weight_of(g, n->in[w])
                                : table_get(placement->gradient, KEYP(n));
    WeightChoice *v = param ? table_get(placement->choice, KEYP(param)) : NULL;
    OperandUse use[2];
    ScaledOperand x[2];

    if (n == placement->end) {
        delayed_writes(placement->delayed);
        primary_watch(placement);
        watch_results(placement->watch);
    }
    if (n->op == Ogmm_wgrad)
        return own_gradient(placement, n, v);
    if (!v || v->stays)
        return n;
    if (w < 0 && reads_rounded(placement, n))
        return by_rounded_rows(placement, n);
    if (placement->pays && w < 0)
        return n;
    for (int k = 0; k < 2; k++) {
        use[k] = k == w                  ? USEweight
                 : is_gradient(n->in[k]) ? USEgradient
                                         : USEvalue;
        if (!can_cut(placement, n, k, use[k]))
            return n;
    }
    Axis *turn = turned_along(placement, n, w);
    for (int k = 0; k < 2; k++) {
        x[k] = (ScaledOperand){ cut_alike(placement, n, k), NULL };
        if (!x[k].values)
            x[k] = operand(placement, n, n->in[k], use[k], param, turn);
    }
    return of_scaled(g, n, x);
}

static void warn_no_kernels(const Graph *g, const Placement *placement)
{
    const Target *target = pass_target(g);
    int chip = machine_of(g)->narrow <= 0;

    warn(
        opts_loc(g->opts, "precision.policy"),
        "precision: no products of %s are of few bits, since the %s '%s' has "
        "no kernels for this recipe; precision.place=all rounds their operands "
        "all the same",
        dtypes[placement->real].name, chip ? "machine" : "target",
        chip ? machine_name(machine_row(g->opts, target->machine))
             : target->name);
}

void pass_fp8(Graph *g)
{
    Placement p;

    placement_new(g, &p);
    if (!p.recipe) {
        warn_idle_keys(&p);
        return;
    }
    p.watch = watch_new(g);
    p.delayed = delayed_new(g);
    p.end = g->node[vec_len(g->node) - 1];
    if (p.pays && !p.kernels && g->prog == PGstep)
        warn_no_kernels(g, &p);
    find_gradients(&p);
    judge_weights(&p);
    find_rows(&p);
    warn_idle_keys(&p);
    if (g->prog == PGstep)
        report_weights(&p);
    rewrite(g, scaled, &p);
}
