/* logits_sites.c: finds the products that logits_chunks.c divides into slices
 * of tokens, the axis, and the number of slices. A head is a forward product of
 * data and a weight. Its users treat every token separately, or have one number
 * a token, up to the two products of its gradient. Nothing in between may need
 * another token's result: a focal weight is allowed, a loss that divides by the
 * sum of all is not.
 *
 * By default slices have at least LEAST tokens, fewer if the memory is worth
 * the time (price.c; measured: decisions/logits-slices.md), and heads that need
 * LITTLE memory stay whole. An eval has no gradient and slices of LEAST; a
 * forward's logits are its result. */
#include "plan.h"

enum { LEAST = 4096, LITTLE = 256 << 20, MOST = 1024, WORTH = 16 };

static int is_given(const Graph *g)
{
    return opts_given(g->opts, "train.slices");
}

/* ---- sliced nodes -------------------------------------------------------- */

/* Has n more than one number per token? */
static int is_wide(const Slices *slices, const Node *n)
{
    for (int i = 0; i < n->nd; i++)
        if (!has_dim(slices->operand, n->dim[i].a) ||
            !has_dim(slices->head, n->dim[i].a))
            return 1;
    return 0;
}

/* Does each token's result of n depend only on that token? */
static int by_token(const Node *n, const Axis *a)
{
    if (!has_dim(n, a) || n->map)
        return 0;
    switch (optab[n->op].cls) {
    case EW: return n->op != Odropout;
    case RED:
    case COMM: return n->op != Oppermute && !is_transfer(n);
    case VIEW: return n->op != Opart && !attrs_name(n, a);
    case MOVE:
        return n->op == Opermute ||
               ((n->op == Ogather || n->op == Oscatter_add) && n_axis(n) != a);
    default: return 0;
    }
}

/* Returns the widest sliced operand of n; null: none. */
static const Node *sliced(const Slices *slices, const Node *n)
{
    const Node *x = NULL;

    for (int k = 0; k < n->nin; k++)
        if (slices->is[n->in[k]->id] == SLICEeach &&
            (!x || is_wide(slices, n->in[k])))
            x = n->in[k];
    return x;
}

/* Classifies n. after: it reads a user of the head. Returns null, or the reason
 * why the head cannot be sliced. */
static const char *kind_of(const Slices *slices, const Node *n, int after,
                           char *kind)
{
    const Node *x = sliced(slices, n);

    *kind = SLICEnot;
    if (!x)
        return NULL;
    if (n->op == Odot && is_backward(n) && is_wide(slices, x)) {
        int both = slices->is[n->in[0]->id] && slices->is[n->in[1]->id];
        *kind = has_dim(n, slices->axis) ? SLICEdx : SLICEdw;
        return both ? "a product of two of its values" : NULL;
    }
    if (by_token(n, slices->axis) && (is_wide(slices, n) || !after))
        *kind = SLICEeach;
    else if (is_wide(slices, x))
        return strf(slices->arena, "%s reads it whole", optab[n->op].name);
    return NULL;
}

/* Slices values that only slices read, of their own size (a cross entropy's
 * function of labels). */
static void find_more(Slices *slices)
{
    Node **v = slices->graph->node;
    char *other = alloc(slices->arena, vec_len(v) + 1);
    char *one = alloc(slices->arena, vec_len(v) + 1);

    for (size_t i = vec_len(v); i-- > 0;) {
        const Node *n = v[i];
        int small = one[i] && !other[i] && n->nin && n->reg == REGbody &&
                    by_token(n, slices->axis) && optab[n->op].cls != COMM;
        for (int d = 0; small && d < n->nd; d++)
            small = has_dim(slices->head, n->dim[d].a);
        if (small)
            slices->is[i] = SLICEeach;
        for (int k = slices->first[i]; k < slices->first[i + 1]; k++)
            (slices->is[i] ? one : other)[slices->in[k]] = 1;
    }
}

/* Returns null, or the reason why the head cannot be sliced along the axis. */
static const char *find(Slices *slices)
{
    Node **v = slices->graph->node;
    int back = 0;

    memset(slices->is, 0, vec_len(v));
    memset(slices->late, 0, vec_len(v));
    slices->is[slices->head->id] = SLICEeach;
    for (size_t i = (size_t)slices->head->id + 1; i < vec_len(v); i++) {
        const Node *n = v[i];
        int after = 0, reads = 0;
        for (int k = slices->first[i]; k < slices->first[i + 1]; k++) {
            after |= slices->late[slices->in[k]];
            reads |= slices->is[slices->in[k]];
        }
        slices->late[i] = (char)after;
        if (!reads)
            continue;
        const char *why = kind_of(slices, n, after, &slices->is[i]);
        if (why)
            return why;
        if (after && slices->is[i])
            return "its gradient needs the loss of other tokens";
        slices->late[i] = after || !slices->is[i];
        back |= slices->is[i] == SLICEdw;
    }
    if (!back && program_trains(slices->graph->prog))
        return "nobody trains it";
    find_more(slices);
    return NULL;
}

/* ---- axis and number of slices ------------------------------------------- */

/* Returns the number of parts in which ranks hold the axis of n. */
static int64_t held_in(const Graph *g, const Node *n, const Axis *a)
{
    uint32_t atoms = 0;

    for (int t = 0; g->mesh && t < g->mesh->natom; t++)
        if (n->sh[t].k == S && n->sh[t].a == a)
            atoms |= 1u << t;
    return cut_parts(g->mesh, a, atoms);
}

static void find_parts(Slices *slices)
{
    slices->parts = 1;
    for (size_t i = 0; i < vec_len(slices->graph->node); i++) {
        const Node *n = slices->graph->node[i];
        for (int k = -1; k < n->nin && slices->is[i]; k++) {
            int64_t p =
                held_in(slices->graph, k < 0 ? n : n->in[k], slices->axis);
            slices->parts = p > slices->parts ? p : slices->parts;
        }
    }
}

/* Returns the cost of n slices in bytes: the logits of a slice and their
 * gradient's cast, and the time of n - 1 reads and writes of the weight's
 * gradient. */
static double slices_cost(const Slices *slices, double price, int64_t n)
{
    const Node *w = slices->head->in[slices->head->in[0] == slices->operand];
    double bytes =
        2.0 * (double)local_elems(slices->graph, w) * dtypes[Df32].bytes;
    double secs = bytes / machine_of(slices->graph)->memory;

    return 1.5 * (double)local_bytes(slices->graph, slices->head) / (double)n +
           price * secs * (double)(n - 1);
}

/* Returns the number of slices: that of train.slices, or as many as have LEAST
 * tokens, or as are worth their time, up to MOST and WORTH, since each slice
 * copies the head's nodes. */
static int count_for(const Slices *slices, int64_t of)
{
    const Graph *g = slices->graph;
    int64_t tokens = local_elems(g, slices->operand), n = 1;

    if (is_given(g)) {
        n = opts_int(g->opts, "train.slices");
        return of % n ? 0 : (int)n;
    }
    for (int d = 0; d < slices->operand->nd; d++)
        if (axes_at(&slices->head->at.dot.axes, slices->operand->dim[d].a) >= 0)
            tokens /= local_n(g, slices->operand, d);
    if (local_bytes(g, slices->head) < LITTLE)
        return 1;
    for (int64_t k = 2; k <= of && k <= MOST && tokens / k >= LEAST; k++)
        n = of % k ? n : k;
    double price = bytes_a_second(g, NULL);
    for (int64_t k = n + 1; k <= of && k <= WORTH && price < HUGE_VAL; k++)
        if (of % k == 0 &&
            slices_cost(slices, price, k) < slices_cost(slices, price, n))
            n = k;
    return (int)n;
}

/* Slices along axis d of the head. Returns null, or the reason why not. */
static const char *cut_along(Slices *slices, int d)
{
    slices->axis = slices->head->dim[d].a;
    const char *why = find(slices);
    if (why)
        return why;
    find_parts(slices);
    int64_t all = slices->head->dim[d].n, of = all / slices->parts;
    slices->count = all % slices->parts ? 0 : count_for(slices, of);
    slices->len = slices->count ? of / slices->count : 0;
    return NULL;
}

static int is_tokens(const Slices *slices, const Dim *d)
{
    return has_dim(slices->operand, d->a) && !g_ismicro(d->a) &&
           !g_isrow(d->a) &&
           (slices->head->in[0] == slices->operand
                ? !has_dim(slices->head->in[1], d->a)
                : !has_dim(slices->head->in[0], d->a));
}

/* Slices along the axis with most slices, the first of equals. */
static const char *cut(Slices *slices)
{
    const char *why = "it has no tokens";
    const Graph *g = slices->graph;
    int best = -1, most = 0, any = 0;

    for (int d = 0; d < slices->head->nd; d++) {
        if (!is_tokens(slices, &slices->head->dim[d]))
            continue;
        const char *no = cut_along(slices, d);
        any |= !no;
        if (!no && slices->count > most) {
            most = slices->count;
            best = d;
        }
        why = no;
    }
    if (best < 0 && any && is_given(g))
        err(slices->head->loc,
            "train.slices=%lld divides none of the axes %s that a rank has",
            (long long)opts_int(g->opts, "train.slices"),
            shape_text(g, slices->operand));
    return best < 0 ? why : cut_along(slices, best);
}

/* ---- the calls of a stage ------------------------------------------------ */

/* Marks nodes that exist when the head's call runs: its own, and its
 * operands. */
static void find_there(Slices *slices)
{
    Node **v = slices->graph->node;

    for (size_t i = 0; i < vec_len(v); i++) {
        if (v[i]->reg != REGbody || v[i]->call == slices->head->call ||
            !v[i]->call)
            slices->early[i] = v[i];
        for (int k = 0; k < v[i]->nin && v[i]->call == slices->head->call; k++)
            slices->early[v[i]->in[k]->id] = v[i]->in[k];
    }
}

/* Returns null, or an operand that only a later call can compute. */
static const Node *comes_late(const Slices *slices, const Node *n)
{
    OpClass c = optab[n->op].cls;
    const Node *late = NULL;

    if (slices->early[n->id] || n->mark)
        return NULL;
    if ((c != EW && c != VIEW && c != SRC && c != MOVE && c != RED &&
         n->op != Oallgather && n->op != Oshard_slice) ||
        is_transfer(n))
        return n;
    for (int k = 0; k < n->nin && !late; k++)
        late = slices->is[n->in[k]->id] ? n : comes_late(slices, n->in[k]);
    if (!late)
        ((Node *)(uintptr_t)n)->mark = 1;
    return late;
}

static int may_run_early(const Slices *slices)
{
    for (size_t i = 0; i < vec_len(slices->graph->node); i++)
        slices->graph->node[i]->mark = 0;
    for (size_t i = 0; i < vec_len(slices->graph->node); i++) {
        const Node *n = slices->graph->node[i];
        for (int k = 0; k < n->nin && slices->is[i]; k++)
            if (!slices->is[n->in[k]->id] && comes_late(slices, n->in[k]))
                return 0;
    }
    return 1;
}

/* ---- heads --------------------------------------------------------------- */

Node *head_tokens(Graph *g, const Node *n)
{
    Axis *micro = g_micro(g);

    if (n->op != Odot || n->reg != REGbody || n->map || is_backward(n) ||
        !has_dim(n, micro) ||
        has_dim(n->in[0], micro) == has_dim(n->in[1], micro))
        return NULL;
    return has_dim(n->in[0], micro) ? n->in[0] : n->in[1];
}

int cut_head(Slices *slices)
{
    size_t count = vec_len(slices->graph->node) + 1;
    int large = local_bytes(slices->graph, slices->head) >= LITTLE ||
                is_given(slices->graph);

    if (!large)
        return 1;
    slices->is = alloc(slices->arena, count);
    slices->late = alloc(slices->arena, count);
    const char *no = cut(slices);
    if (!no && slices->count > 1) {
        slices->early = alloc(slices->arena, count * sizeof *slices->early);
        find_there(slices);
        no = may_run_early(slices) ? NULL
                                   : "its gradient needs what comes later";
    }
    if (no)
        why(slices->graph, slices->head, "is not made in slices: %s", no);
    return no ? 1 : slices->count;
}
