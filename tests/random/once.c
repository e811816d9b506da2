/* once.c: a law of traced models: the body of an attention compares no value
 * that is computed outside it too. The body rounds differently, so that two
 * values of one node would be compared. */
#include "random.h"

/* A node of a body, seen from outside. */
typedef struct Seen {
    Node *same; /* the node of the model that computes it too, or null */
    int real;   /* depends on real numbers of the model */
    int twice;  /* computed here and outside, or made of such a value */
} Seen;

static int is_real(const Node *n)
{
    return dtypes[n->dt].kind == 'f';
}

static int same_operands(const Node *n, const Node *x, const Seen *seen)
{
    for (int k = 0; k < n->nin; k++)
        if (x->in[k] != seen[n->in[k]->id].same)
            return 0;
    return 1;
}

static Node *computed_outside(const Graph *g, const Node *n, const Seen *seen)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *x = g->node[i];
        if (x->op == n->op && x->nin == n->nin && x->dt == n->dt &&
            x->nd == n->nd && same_attrs(x, n) && same_operands(n, x, seen))
            return x;
    }
    return NULL;
}

static int compares_reals(const Node *n)
{
    static const Op kinks[] = { Osign, Orelu, Oabs, Omaximum, Ominimum };
    int yes = op_is(n->op, OPcmp), real = 0;

    for (size_t i = 0; i < sizeof kinks / sizeof *kinks; i++)
        yes |= n->op == kinks[i];
    for (int k = 0; k < n->nin; k++)
        real |= is_real(n->in[k]);
    return real && (yes || (n->op == Ocast && !is_real(n)));
}

/* Does n depend on reals of the model? Others are the same wherever they are
 * computed. from: the answers for nodes of the graph before n. */
static int from_reals(const Node *n, const char *from)
{
    int yes = !n->nin && is_real(n) && n->op != Oconst && n->op != Oiota;

    for (int k = 0; k < n->nin; k++)
        yes |= from[n->in[k]->id];
    return yes;
}

static const Node *compared_in(const Graph *g, const Node *call,
                               const char *from)
{
    Graph *body = call->body;
    Seen *seen = alloc(g->arena, (vec_len(body->node) + 1) * sizeof *seen);

    g_renumber(body);
    for (size_t i = 0; i < vec_len(body->node); i++) {
        const Node *n = body->node[i];
        Seen *s = &seen[i];
        for (int k = 0; k < n->nin; k++) {
            s->real |= seen[n->in[k]->id].real;
            s->twice |= seen[n->in[k]->id].twice;
        }
        if (n->op == Oarg) {
            s->same = call->in[n->at.arg.index];
            s->real = from[s->same->id];
            continue;
        }
        s->same = computed_outside(g, n, seen);
        s->twice |= s->real && s->same != NULL;
        if (s->twice && compares_reals(n))
            return n;
    }
    return NULL;
}

const Node *compared_twice(Graph *g)
{
    const Node *n = NULL;
    char *from = alloc(g->arena, vec_len(g->node) + 1);

    g_renumber(g);
    for (size_t i = 0; i < vec_len(g->node); i++)
        from[i] = (char)from_reals(g->node[i], from);
    for (size_t i = 0; i < vec_len(g->node) && !n; i++)
        if (is_attention(g->node[i]))
            n = compared_in(g, g->node[i], from);
    return n;
}
