/* room.c: which of the pairs (token, choice) an expert takes when it has room
 * for a fixed number of each micro-batch (moe-training.md A2.11, A2.12):
 *
 *     C = ceil(tokens * top / experts * route.factor), at most all tokens
 *
 *     %p = pick %w1 %e                 %k = keep %e %g rows=C
 *     %y = dot %x %p hidden            %p = pick %w1 %k
 *     ...                        =>    ...
 *     %z = mul %y %g                   %z = mul %y %g
 *     %o = sum %z top                  %o = sum %z top
 *
 * g, the weights that multiply the rows, decides who stays, or the order of the
 * tokens does (route.drop). A pair that goes is -1 in %k: it has no row, so its
 * contribution and the gradient of its weight are 0. What else reads %e, as a
 * balance loss does, sees the router's choice. The share of dropped pairs is a
 * metric of the layer.                                                       */
#include <math.h>
#include <string.h>

#include "passes.h"

/* ---- the weights --------------------------------------------------------- */

enum { AFTER = 1, INROWS = 2 };  /* behind a weight indexed by e; its rows  */

static int over_top(const Node *n, const Node *e)
{
    for (int i = 0; i < n->nA; i++)
        if (dim_of(e, n->A[i]) >= 0)
            return 1;
    return 0;
}

static void mark_rows(Graph *g, const Node *e)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        OpClass cls = optab[n->op].cls;
        n->mark = n->op == Opick && n->in[1] == e ? AFTER | INROWS : 0;
        for (int k = 0; k < n->nin; k++) {
            n->mark |= n->in[k]->mark & AFTER;
            if (cls == EW || n->op == Odot || (cls == RED && !over_top(n, e)))
                n->mark |= n->in[k]->mark & INROWS;
        }
    }
}

/* One number for each pair: the axes of e and no others.                     */
static int per_pair(const Node *x, const Node *e)
{
    if (x->nd != e->nd)
        return 0;
    for (int i = 0; i < x->nd; i++)
        if (dim_of(e, x->dim[i].a) < 0)
            return 0;
    return 1;
}

/* What multiplies the rows of e; null: nothing does.                         */
static Node *weights_of(Graph *g, const Node *e)
{
    mark_rows(g, e);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        for (int k = 0; n->op == Omul && k < 2; k++)
            if (n->in[k]->mark & INROWS && !(n->in[!k]->mark & AFTER) &&
                per_pair(n->in[!k], e))
                return n->in[!k];
    }
    return NULL;
}

/* ---- what is kept -------------------------------------------------------- */

/* A product that is whole but for its rounding is not rounded up.            */
static int64_t rows_each(const Graph *g, const Node *e, const Axis *axis)
{
    double tokens = 1, top = 1, share;

    for (int i = 0; i < e->nd; i++)
        if (e->op == Otopk && e->dim[i].a == e->B[0])
            top = (double)e->dim[i].n;
        else if (strcmp(e->dim[i].a->name, "micro"))
            tokens *= (double)e->dim[i].n;
    share = tokens * top / (double)axis->n * opts_num(g->opts, "route.factor");
    return (int64_t)fmin(fmax(ceil(share * (1 - 1e-12)), 1), tokens);
}

static Node *keep(Graph *g, const Node *pick)
{
    Node *e = pick->in[1], *in[2] = { e, weights_of(g, e) }, *n;
    int first = !strcmp(opts_str(g->opts, "route.drop"), "position");

    if (!in[1] && !first)
        why(pick, "nothing multiplies its rows: pairs are kept by position");
    first |= !in[1];
    in[1] = first ? e : in[1];
    n = g_node(g, Okeep, pick->loc, 2, in);
    n->A = pick->A;
    n->nA = 1;
    n->i = rows_each(g, e, pick->A[0]);
    n->j = first;
    n->scope = pick->scope;
    n->reg = pick->reg;
    why(pick, "%lld rows an expert, the rest is dropped", (long long)n->i);
    return infer(g, n);
}

static int of_batch(const Node *e)
{
    for (int i = 0; i < e->nd; i++)
        if (axis_covers(e->dim[i].a, "batch"))
            return 1;
    return 0;
}

static void count_dropped(Graph *g, Node *keep)
{
    Axis *axes[MAXD];
    int n = 0, before = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        before += g->node[i]->op == Ometric && g->node[i]->scope == keep->scope
                  && !strncmp(g->node[i]->s, "dropped", 7);
    for (int i = 0; i < keep->nd; i++)
        if (strcmp(keep->dim[i].a->name, "micro"))
            axes[n++] = keep->dim[i].a;
    Node *gone = g_ew(g, One, keep->loc, keep, keep->in[0], NULL);
    gone = g_cast(g, gone, Df32);
    Node *share = g_red(g, Omean, gone, axes, n);
    Node *m = g_node(g, Ometric, keep->loc, 1, &share);
    m->s = intern(before ? strf(g->arena, "dropped%d", before + 1) : "dropped");
    gone->scope = gone->in[0]->scope = share->scope = m->scope = keep->scope;
    infer(g, m);
}

void make_room(Graph *g)
{
    size_t count = vec_len(g->node);
    Table *kept = table_new(g->arena);
    int counts = strcmp(g->prog, "forward") != 0, any = 0;

    for (size_t i = 0; i < count; i++) {
        Node *p = g->node[i];
        if (p->op != Opick || p->in[1]->op == Okeep)
            continue;
        void **k = table_at(kept, KEYP(p->in[1]));
        if (!*k) {
            *k = keep(g, p);
            if (counts && of_batch(p->in[1]))
                count_dropped(g, *k);
        }
        any = 1;
    }
    for (size_t i = 0; i < count && any; i++) {
        Node *p = g->node[i];
        void *k = p->op == Opick ? table_get(kept, KEYP(p->in[1])) : NULL;
        if (k)
            p->in[1] = k;
    }
    if (any)
        g_sort(g);          /* weights may stand behind the first product */
}
