/* accumulate.c: computes a sum of products in place. Each product but the first
 * adds to the result, so that no term is stored separately:
 *
 *     %a = dot %x %y                 %a = dot %x %y
 *     %b = dot %v %w                 %s = accum %b %a       b's product adds
 *     %s = add %a %b           =>                           to %a's buffer
 *
 *     %s = add %a %b                 %g  = accum %a
 *     %g = accum %s                  %g2 = accum %b %g      read in post
 *
 * The gradient of a parameter that several products read is such a sum (a tied
 * embedding and head, slices of a head), in program order. Scatters that add to
 * a small part of it follow all products, so that a product stores the initial
 * value. Terms that no product computes come last. */
#include "kernels.h"

typedef struct Accumulators {
    Table *uses;         /* node -> number of readers */
    Node **term, **rest; /* vecs: of the current accumulator */
} Accumulators;

static int only_use(const Accumulators *accumulators, const Node *n)
{
    return (uintptr_t)table_get(accumulators->uses, KEYP(n)) == 1;
}

static int lies_as(const Node *a, const Node *b)
{
    for (int d = 0; d < a->nd; d++)
        if (a->nd != b->nd || a->dim[d].a != b->dim[d].a)
            return 0;
    return a->nd == b->nd && a->reg == b->reg && a->call == b->call;
}

static int is_product(const Node *n)
{
    return n->op == Odot || n->op == Ogmm_wgrad || n->op == Oscatter_add;
}

/* Can the kernel of n add its result to a buffer with the layout of `to`? */
static int is_term(const Accumulators *accumulators, const Node *n,
                   const Node *to)
{
    return is_product(n) && only_use(accumulators, n) && lies_as(n, to) &&
           (to->dt == Df32 || to->dt == Df64) && n->dt == to->dt;
}

/* Returns the node that adds x to `to`; like: another such sum. */
static Node *add_to(Graph *g, Node *x, Node *to, const Node *like)
{
    Node *in[2] = { x, to }, *n = g_node(g, Oaccum, x->loc, 2, in);

    n->at.accum.op = Radd;
    n->dt = like->dt;
    g_placed(n, like);
    n->nd = like->nd;
    memcpy(n->dim, like->dim, sizeof n->dim);
    n->sh = like->sh;
    return infer(g, n);
}

/* ---- sums ---------------------------------------------------------------- */

static int goes_on(const Node *n)
{
    return n->op == Oaccum && n->nin > 1;
}

/* Replaces a sum of two products, or of such sums, without other readers. */
static Node *sum(Graph *g, Node *n, Accumulators *accumulators)
{
    for (int k = 0; k < 2; k++) {
        Node *x = n->in[k], *to = n->in[!k];
        if (x == to || !is_term(accumulators, x, n) || !lies_as(to, n) ||
            to->dt != n->dt || !only_use(accumulators, to) ||
            !(is_product(to) || goes_on(to)))
            continue;
        if (!goes_on(to) && to->id > x->id)
            continue;
        Node *r = add_to(g, x, to, n);
        *table_at(accumulators->uses, KEYP(r)) =
            table_get(accumulators->uses, KEYP(n));
        return r;
    }
    return n;
}

/* ---- accumulators -------------------------------------------------------- */

static int adds_little(const Graph *g, const Node *n)
{
    return n->op == Oscatter_add &&
           2 * local_elems(g, n->in[0]) <= local_elems(g, n);
}

/* Does term a come after b in program order? */
static int comes_after(const Graph *g, const Node *a, const Node *b)
{
    int little = adds_little(g, a);

    return little != adds_little(g, b) ? little : a->id > b->id;
}

static void add_terms(Graph *g, Accumulators *accumulators, Node *n,
                      const Node *acc)
{
    int inner =
        only_use(accumulators, n) && n->dt == acc->dt && lies_as(n, acc);

    if (inner && (n->op == Oadd || goes_on(n))) {
        add_terms(g, accumulators, n->in[goes_on(n)], acc);
        add_terms(g, accumulators, n->in[!goes_on(n)], acc);
    } else if (is_term(accumulators, n, acc)) {
        size_t k = vec_len(accumulators->term);
        vec_push(g->arena, accumulators->term, n);
        for (; k > 0 && comes_after(g, accumulators->term[k - 1], n); k--)
            accumulators->term[k] = accumulators->term[k - 1];
        accumulators->term[k] = n;
    } else {
        vec_push(g->arena, accumulators->rest, n);
    }
}

static Node *sum_of_rest(Graph *g, const Accumulators *accumulators,
                         const Node *acc)
{
    Node *r = accumulators->rest[0];

    for (size_t i = 1; i < vec_len(accumulators->rest); i++) {
        r = g_placed(g_ew(g, Oadd, acc->loc, r, accumulators->rest[i], NULL),
                     acc);
        r->sh = acc->sh;
    }
    return r;
}

/* Splits acc's operand into terms: acc takes the first one, post reads the last
 * accumulator. */
static Node *accumulate(Graph *g, Node *acc, Accumulators *accumulators)
{
    Node *n = acc;

    accumulators->term = accumulators->rest = NULL;
    add_terms(g, accumulators, acc->in[0], acc);
    if (!vec_len(accumulators->term) ||
        vec_len(accumulators->term) + vec_len(accumulators->rest) < 2)
        return acc;
    acc->in[0] = accumulators->term[0];
    vec_push(g->arena, g->node, acc);
    for (size_t i = 1; i < vec_len(accumulators->term); i++)
        n = add_to(g, accumulators->term[i], n, acc);
    if (vec_len(accumulators->rest))
        n = add_to(g, sum_of_rest(g, accumulators, acc), n, acc);
    return n;
}

static Node *in_place(Graph *g, Node *n, void *ctx)
{
    if (n->op == Oadd)
        return sum(g, n, ctx);
    return n->op == Oaccum && n->at.accum.op == Radd && n->nin == 1
               ? accumulate(g, n, ctx)
               : n;
}

void pass_accumulate(Graph *g)
{
    Accumulators s = { .uses = use_table(g) };

    rewrite(g, in_place, &s);
}
