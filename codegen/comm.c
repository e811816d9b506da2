/* comm.c: collectives as library steps: which elements, in what blocks. Tensors
 * are row-major, so a collective along one axis moves, for each index of the
 * axes before it (outer), one run of the axis and what is behind it.         */
#include "codegen.h"

static int64_t product(const Graph *g, const Node *n, int from, int to)
{
    int64_t e = 1;

    for (int d = from; d < to; d++)
        e *= local_n(g, n, d);
    return e;
}

/* The reduction over the atoms of a collective, as its operand's type says.  */
static Reduce reduction(const Graph *g, const Node *x, uint32_t atoms)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (atoms >> i & 1 && x->sh[i].k == P)
            return x->sh[i].op;
    return Radd;
}

/* Blocks along axis A of the tensor in which it is cut.                      */
static void along(Group *k, Arena *a, const Graph *g, const Node *cut)
{
    int d = dim_of(cut, k->node[0]->A[0]);

    add_size(k, a, product(g, cut, 0, d));
    add_size(k, a, product(g, cut, d, cut->nd));
}

static void exchange(Group *k, Arena *a, const Graph *g, const Node *n)
{
    const Node *x = n->in[0];
    int da = dim_of(n, n->A[0]), db = dim_of(n, n->B[0]);
    int lo = da < db ? da : db, hi = da < db ? db : da;

    add_size(k, a, product(g, n, 0, lo));
    add_size(k, a, local_n(g, n, da));
    add_size(k, a, product(g, n, lo + 1, hi));
    add_size(k, a, local_n(g, x, db));
    add_size(k, a, product(g, n, hi + 1, n->nd));
    add_size(k, a, db < da);
}

static void blocks(Group *k, Arena *a, const Graph *g, const Node *n)
{
    const Node *x = n->in[0];

    switch (n->op) {
    case Oallgather:
        k->step.kind = Sallgather;
        along(k, a, g, x);
        add_size(k, a, 0);
        add_size(k, a, 0);
        return;
    case Oreducescatter:
        k->step.kind = Sreducescatter;
        along(k, a, g, n);
        break;
    case Oallreduce:
        k->step.kind = Sallreduce;
        add_size(k, a, 1);
        add_size(k, a, local_elems(g, n));
        k->inplace = alloc(a, sizeof *k->inplace);
        k->ninplace = 1;
        break;
    case Oalltoall:
        k->step.kind = Salltoall;
        exchange(k, a, g, n);
        add_size(k, a, 0);
        add_size(k, a, 0);
        return;
    default:
        die("%s: not a collective", optab[n->op].name);
    }
    add_size(k, a, reduction(g, x, (uint32_t)n->i));
    for (int i = 0; i < 2 && n->op == Oreducescatter; i++)
        add_size(k, a, 0);
}

void comm_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0];
    double ranks = (double)mesh_extent(g->mesh, (uint32_t)n->i);

    vec_push(a, k->arg, storage(n->in[0]));
    vec_push(a, k->arg, n);
    vec_push(a, k->arg, NULL);
    k->narg = 3;
    add_size(k, a, n->dt);
    blocks(k, a, g, n);
    k->step.atoms = (uint32_t)n->i;
    k->step.bytes = (double)local_bytes(g, n) * (ranks - 1) / ranks;
    set_label(k, a, n);
}
