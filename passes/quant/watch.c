/* watch.c: what rounding to few bits does to the operands of products, as
 * metrics of the steps for which precision.watch asks. Where these are not all,
 * the program step.watched has them and step, which runs else, nothing of them.
 * Of each class of tensor (activations, weights, gradients):
 *
 *     fp8.<class>.amax       the largest magnitude, infinite where one is NaN
 *     fp8.<class>.scale      the least scale: that of the largest block
 *     fp8.<class>.saturated  share of elements that the largest number cuts off
 *     fp8.<class>.flushed    share of elements that are not 0 and become 0
 *
 * Shares are means over parameters whose products read what is rounded, of one
 * over its roundings, of a rounding over its micro-batches or rows: a weight
 * that ZeRO-3 gathers for each product counts as often as any other. */
#include <float.h>

#include "quant.h"

typedef enum StatKind {
    STATamax,
    STATscale,
    STATsaturated,
    STATflushed,
    NSTAT
} StatKind;

static const struct {
    const char *name;
    Reduce over_micro;
    Op within, over_tensors; /* elements of a micro-batch, tensors of a class */
} stats[NSTAT] = {
    [STATamax] = { "amax", Rmax, Omax, Omaximum },
    [STATscale] = { "scale", Rmin, Omin, Ominimum },
    [STATsaturated] = { "saturated", Radd, Osum, Oadd },
    [STATflushed] = { "flushed", Radd, Osum, Oadd },
};

static const char *const classes[NUSE] = {
    [USEvalue] = "activations",
    [USEweight] = "weights",
    [USEgradient] = "gradients",
};

/* Magnitudes up to `flushed` round to 0, those above `saturated` beyond the
 * dtype's largest number if it had more: half of the least number above 0, and
 * half a step above the largest. */
static const struct {
    double flushed, saturated;
} ends[NDTYPE] = {
    [De4m3] = { 0x1p-10, 464 },
    [De5m2] = { 0x1p-17, 61440 },
    [De2m1x2] = { 0.25, 7 },
};

struct RoundingWatch {
    Graph *g;
    Node **stat[NUSE][NSTAT];  /* vecs: of each rounding, for post to read */
    const Param **param[NUSE]; /* vecs: of the same */
};

int watches(const Graph *g, ProgramKind k)
{
    int64_t every = opts_int(g->opts, "precision.watch");

    return program_trains(k) && every && (every == 1 || k != PGstep);
}

RoundingWatch *watch_new(Graph *g)
{
    if (!watches(g, g->prog))
        return NULL;
    RoundingWatch *watch = alloc(g->arena, sizeof *watch);
    watch->g = g;
    return watch;
}

/* x in fp32, or fp64 where that is the model's. */
static Node *wide(Cursor b, Node *x)
{
    return x->dt == Df64 ? x : b_cast(b, x, Df32);
}

/* x over all its axes, or all but micro and rows. */
static Node *over(Graph *g, Op op, Node *x, int all)
{
    Axis *axes[MAXD];
    int n = 0;

    for (int d = 0; d < x->nd; d++)
        if (all || (!g_ismicro(x->dim[d].a) && !g_isrow(x->dim[d].a)))
            axes[n++] = x->dim[d].a;
    return b_red(cursor_at(g, x), op, x, axes, n);
}

/* For post to read: a value of a micro-batch, or of the step, as what a metric
 * multiplies in post. */
static Node *leaving(Graph *g, StatKind stat, Node *x)
{
    x = over(g, stats[stat].within, x, 1);
    if (x->reg == REGpre || x->reg == REGpost)
        return x;
    Node *sum = g_accum(g, x, stats[stat].over_micro);
    sum->dt = x->dt == Df64 ? Df64 : Df32;
    return sum;
}

/* The elements of `quantize` times their scales, magnitudes. */
static Node *magnitudes(Graph *g, const Node *quantize)
{
    Cursor b = cursor_at(g, quantize);
    Node *x = quantize->in[0], *s = quantize->in[1];

    s = x->dt == Df64 ? b_cast(b, s, Df64) : s;
    Node *n = b_node(b, Odequantize, 2, (Node *[]){ x, s });
    n->at.amax = quantize->at.amax;
    return b_op1(b, Omagnitude, infer(g, n));
}

/* How many of the elements of x, of a micro-batch or row, over what there are:
 * x is true of those. */
static Node *share(Graph *g, Node *x)
{
    Cursor b = cursor_at(g, x);
    double count = 1;

    for (int d = 0; d < x->nd; d++)
        if (!g_ismicro(x->dim[d].a) && !g_isrow(x->dim[d].a))
            count *= (double)x->dim[d].n;
    Node *sum = over(g, Osum, b_cast(b, x, Df32), 0);
    return b_op2(b, Omul, sum, b_const(b, Df32, 1 / count));
}

/* Over the micro-batches or rows of a step, for post to read. Each counts, also
 * one that is the same for all. */
static Node *mean_share(Graph *g, StatKind stat, Node *x)
{
    Node *part = share(g, x), *count;

    if (part->reg == REGpre)
        return part;
    if (!part->map && part->reg != REGpost)
        part = g_per_micro(g, part);
    Cursor b = cursor_at(g, part);
    count = b_cast(b, b_op2(b, Oge, part, b_const(b, Df32, 0)), Df32);
    Node *sum = leaving(g, stat, part), *all = leaving(g, stat, count);
    return in_post(b_op2(cursor_at(g, sum), Odiv, sum, all));
}

Node *amax_of_step(Graph *g, const Node *at, Node *x)
{
    Cursor b = cursor_at(g, at);

    return leaving(g, STATamax, b_op1(b, Omagnitude, wide(b, x)));
}

/* Scales of blocks that are not zero: of those it is 1. */
static Node *scales_of(Graph *g, const Node *quantize)
{
    Cursor b = cursor_at(g, quantize);
    Node *a = b_node(b, Oamax, 1, quantize->in);
    Node *s = wide(b, quantize->in[1]), *there;

    a->at.amax = quantize->at.amax;
    Node *zero = b_const(b, Df32, 0);
    there = b_op2(b, Ogt, infer(g, a), zero);
    return b_op3(b, Owhere, there, s, b_const(b, Df32, FLT_MAX));
}

void watch_quantize(RoundingWatch *watch, const Node *quantize, OperandUse use,
                    const Param *param)
{
    if (!watch)
        return;
    Graph *g = watch->g;
    Cursor b = cursor_at(g, quantize);
    Dtype to = quantize->at.quantize.to;
    Node *a = magnitudes(g, quantize);
    Node *large = b_op2(b, Ogt, a, b_const(b, Df32, ends[to].saturated));
    Node *least = b_const(b, Df32, ends[to].flushed);
    Node *nonzero = b_op2(b, Ogt, a, b_const(b, Df32, 0));
    Node *small = b_op2(b, Oland, b_op2(b, Ole, a, least), nonzero);
    Node *made[NSTAT] = {
        amax_of_step(g, quantize, quantize->in[0]),
        leaving(g, STATscale, scales_of(g, quantize)),
        mean_share(g, STATsaturated, large),
        mean_share(g, STATflushed, small),
    };
    vec_push(g->arena, watch->param[use], param);
    for (StatKind i = 0; i < NSTAT; i++)
        vec_push(g->arena, watch->stat[use][i], made[i]);
}

/* How often each of these is among them; returns how many different. */
static double count_roundings(Table *count, const Param *const *param)
{
    double different = 0;

    for (size_t i = 0; i < vec_len(param); i++) {
        uintptr_t *times = (uintptr_t *)table_at(count, KEYP(param[i]));
        different += !*times;
        ++*times;
    }
    return different;
}

/* A statistic over the roundings of a class. */
static Node *over_roundings(TrainStep *step, const RoundingWatch *watch,
                            OperandUse use, StatKind stat)
{
    const Param **param = watch->param[use];
    Node **x = watch->stat[use][stat];
    size_t n = vec_len(x);
    Table *count = table_new(watch->g->arena);
    double different = count_roundings(count, param);

    for (size_t i = 0; stats[stat].over_tensors == Oadd && i < n; i++) {
        double same = (double)(uintptr_t)table_get(count, KEYP(param[i]));
        x[i] = post_op2(step, Omul, x[i], post_num(step, 1 / same / different));
    }
    return post_all(step, stats[stat].over_tensors, x, n);
}

void watch_results(const RoundingWatch *watch)
{
    if (!watch)
        return;
    Graph *g = watch->g;
    TrainStep step = { .g = g, .scope = g_partscope(g, PARTpost, "post") };

    for (OperandUse use = 0; use < NUSE; use++)
        for (StatKind i = 0; i < NSTAT; i++) {
            if (!vec_len(watch->stat[use][i]))
                continue;
            post_result(
                &step,
                strf(g->arena, "metric.fp8.%s.%s", classes[use], stats[i].name),
                over_roundings(&step, watch, use, i));
        }
}
