/* delayed.c: delayed scaling: scales of tensors from the amax history of
 * earlier steps, as Transformer Engine's DelayedScaling (recipe/__init__.py,
 * amax_compute_algo max; most_recent is a history of one):
 *
 *     scale = largest number / max(history) / 2^margin       1 where all are 0
 *
 * A history is a state of the model with precision.history steps, newest first.
 * It does not change in a skipped step, in a step whose amax is not finite, or
 * if all its entries would become 0. Scales start at 1 (_default_sf_compute of
 * Transformer Engine). Each operand of a product has a history; an operand of
 * products with several parameters uses the history of the first. */
#include <math.h>
#include <string.h>

#include "quant.h"

typedef struct History {
    const char *path;
    Node *state, *max; /* [history], [] */
    Node **amax;       /* vec: amax of the rounded tensors, for post */
    double most;       /* largest finite number of the dtype */
} History;

struct Delayed {
    Graph *g;
    History **history; /* vec */
    Table *by_path;
    Table *of_value; /* a value -> its History */
};

Delayed *delayed_new(Graph *g)
{
    Delayed *delayed = alloc(g->arena, sizeof *delayed);

    *delayed = (Delayed){ g, NULL, table_new(g->arena), table_new(g->arena) };
    return delayed;
}

static Dim history_dim(Graph *g)
{
    Axis *a = g_axis(g, "amax'history");

    a->n = opts_int(g->opts, "precision.history");
    return (Dim){ a, a->n };
}

/* The state of a path; declares it at first use. */
static Node *history_state(Graph *g, const Param *like, const char *path)
{
    Node *n = g_node(g, Ostate, like->loc, 0, NULL);

    if (!g_param(g, path)) {
        Param *p = alloc(g->arena, sizeof *p);
        p->path = path;
        p->kind = TKhistory;
        p->loc = like->loc;
        p->dt = opts_dtype(g->opts) == Df64 ? Df64 : Df32;
        p->init = INITconst;
        p->nd = 1;
        p->dim[0] = history_dim(g);
        vec_push(g->arena, g->param, p);
    }
    n->at.state.path = path;
    n->dt = g_param(g, path)->dt;
    n->nd = 1;
    n->dim[0] = history_dim(g);
    n->scope = g_scope(g, text_scope(path));
    return infer(g, n);
}

static History *history_of(Delayed *delayed, const Param *param, OperandUse use,
                           const Node *x)
{
    static const char *const words[NUSE] = { "value", "weight", "gradient" };
    Graph *g = delayed->g;
    History **of = (History **)table_at(delayed->of_value, KEYP(x));

    if (*of)
        return *of;
    const char *path =
        intern(strf(g->arena, HISTORYPREFIX "%s.%s", words[use], param->path));
    History **by = (History **)table_at(delayed->by_path, KEYP(path));
    if (!*by) {
        History *h = *by = alloc(g->arena, sizeof *h);
        h->path = path;
        h->state = history_state(g, param, path);
        h->max = g_placed(g_red(g, Omax, h->state, &h->state->dim[0].a, 1),
                          h->state);
        h->max->reg = REGpre;
        vec_push(g->arena, delayed->history, h);
    }
    return *of = *by;
}

Node *delayed_scale(Delayed *delayed, const Param *param, OperandUse use,
                    const Node *at, Node *x, double most)
{
    Graph *g = delayed->g;
    History *h = history_of(delayed, param, use, x);
    double margin = (double)opts_int(g->opts, "precision.margin");
    h->most = most;
    Node *largest = g_const(g, at->loc, Df32, ldexp(most, -(int)margin));

    if (program_trains(g->prog))
        vec_push(g->arena, h->amax, amax_of_step(g, at, x));
    return g_placed(g_ew(g, Oamax_scale, at->loc, h->max, largest, NULL),
                    h->max);
}

/* n, placed in post. */
static Node *made(const TrainStep *step, Node *n)
{
    n->scope = step->scope;
    return in_post(infer(step->g, n));
}

/* The history with the newest entry first, without the oldest. */
static Node *shifted(const TrainStep *step, Node *state, Node *newest)
{
    Graph *g = step->g;
    Axis *a = state->dim[0].a;
    Node *in[2] = { g_node(g, Obroadcast, step->l, 1, &newest) }, *n;

    in[0]->dim[in[0]->nd++] = (Dim){ a, 1 };
    made(step, in[0]);
    if (a->n == 1)
        return in[0];
    n = g_node(g, Oslice, step->l, 1, &state);
    n->at.slice = (struct slice_attrs){ a, 0, a->n - 1 };
    in[1] = made(step, n);
    n = g_node(g, Oconcat, step->l, 2, in);
    n->at.concat.axis = a;
    return made(step, n);
}

/* The history after a step with this amax. */
static Node *renewed(TrainStep *step, Node *state, Node *newest)
{
    Graph *g = step->g;
    Node *n = shifted(step, state, newest);
    Node *max = made(step, g_red(g, Omax, n, &state->dim[0].a, 1));
    Node *some = post_op2(step, Ogt, max, post_num(step, 0));
    Node *finite = post_op1(step, Oisfinite, newest);
    Node *usable = post_op2(step, Oland, finite, some);

    return made(step, g_ew(g, Owhere, step->l, usable, n, state));
}

/* Adds the metric amax x scale / largest number; the run warns above 1, where
 * elements saturate. */
static void add_reach(TrainStep *step, const History *h, Node *amax)
{
    Graph *g = step->g;
    double margin = (double)opts_int(g->opts, "precision.margin");
    Node *most = post_num(step, h->most);
    Node *allowed = post_num(step, ldexp(h->most, -(int)margin));
    Node *scale = post_op2(step, Oamax_scale, h->max, allowed);

    post_result(step, strf(g->arena, "reach.%s", h->path),
                post_op2(step, Odiv, post_op2(step, Omul, amax, scale), most));
}

void delayed_writes(const Delayed *delayed)
{
    Graph *g = delayed->g;

    if (!vec_len(delayed->history) || !program_trains(g->prog))
        return;
    TrainStep step = post_of(g);
    for (size_t i = 0; i < vec_len(delayed->history); i++) {
        const History *h = delayed->history[i];
        step.l = h->state->loc;
        Node *a = post_all(&step, Omaximum, h->amax, vec_len(h->amax));
        if (watches(g, g->prog))
            add_reach(&step, h, a);
        post_write(&step, h->state, renewed(&step, h->state, a));
    }
}
