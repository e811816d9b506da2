/* comm.c: collectives as instructions: which elements, in what blocks. Tensors
 * are row-major, so a collective along one axis moves, for each index of the
 * axes before it (outer), one run of the axis and what is behind it. */
#include "codegen.h"

static int64_t product(const Graph *g, const Node *n, int from, int to)
{
    int64_t e = 1;

    for (int d = from; d < to; d++)
        e *= local_n(g, n, d);
    return e;
}

/* The reduction over the atoms of a collective, as its operand's type says. */
static Reduce reduction(const Graph *g, const Node *x, uint32_t atoms)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (atoms >> i & 1 && x->sh[i].k == P)
            return x->sh[i].op;
    return Radd;
}

/* Atoms of n that cut axis a in pieces, of a set. */
static uint32_t piecing(const Graph *g, const Node *n, const Axis *a,
                        uint32_t atoms)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (n->sh[i].k != S || n->sh[i].a != a)
            atoms &= ~(1u << i);
    return atoms & zigzag_atoms(g->mesh, a);
}

/* 2 where the axis stays in pieces, each of which the collective treats as an
 * axis of its own. */
static int64_t halves(const Graph *g, const Node *cut, const Axis *a,
                      uint32_t atoms)
{
    return piecing(g, cut, a, atoms) || !piecing(g, cut, a, ~0u) ? 1 : 2;
}

typedef struct Pieces { /* how the group's atoms z make pieces */
    int64_t zig, low;
} Pieces;

static Pieces zigzag(const Graph *g, const Node *n, uint32_t z)
{
    uint32_t atoms = n_atoms(n);

    if (!z)
        return (Pieces){ 0, 0 };
    return (Pieces){ mesh_extent(g->mesh, z),
                     mesh_extent(g->mesh, atoms & ((z & -z) - 1)) };
}

/* Blocks along axis A of the tensor in which it is cut. */
static AllgatherArgs along(const Graph *g, const Node *n, const Node *cut)
{
    int d = dim_of(cut, n_axis(n));
    int64_t h = halves(g, cut, n_axis(n), n_atoms(n));
    Pieces p = zigzag(g, n, piecing(g, cut, n_axis(n), n_atoms(n)));

    return (AllgatherArgs){
        .dt = n->dt,
        .outer = product(g, cut, 0, d) * h,
        .chunk = product(g, cut, d, cut->nd) / h,
        .zig = p.zig,
        .low = p.low,
    };
}

static ReducescatterArgs scatter(const Graph *g, const Node *n)
{
    AllgatherArgs x = along(g, n, n);

    return (ReducescatterArgs){
        .dt = x.dt,
        .outer = x.outer,
        .chunk = x.chunk,
        .op = reduction(g, n->in[0], n_atoms(n)),
        .zig = x.zig,
        .low = x.low,
    };
}

/* The size that stays in pieces gives its factor 2 to what lies before it. */
static AlltoallArgs exchange(const Graph *g, const Node *n)
{
    const Node *x = n->in[0];
    const struct alltoall_attrs *t = &n->at.alltoall;
    int da = dim_of(n, t->from), db = dim_of(n, t->to);
    int lo = da < db ? da : db, hi = da < db ? db : da;
    int64_t ha = halves(g, x, t->from, t->atoms);
    int64_t hb = halves(g, n, t->to, t->atoms);
    int64_t hlo = da < db ? ha : hb, hhi = da < db ? hb : ha;
    uint32_t za = piecing(g, x, t->from, t->atoms);
    Pieces p = zigzag(g, n, za ? za : piecing(g, n, t->to, t->atoms));

    return (AlltoallArgs){
        .dt = n->dt,
        .outer = product(g, n, 0, lo) * hlo,
        .a = local_n(g, n, da) / ha,
        .mid = product(g, n, lo + 1, hi) * hhi,
        .b = local_n(g, x, db) / hb,
        .inner = product(g, n, hi + 1, n->nd),
        .swap = db < da,
        .zig = za ? p.zig : -p.zig,
        .low = p.low,
    };
}

static void blocks(Group *group, Arena *a, const Graph *g, const Node *n)
{
    int64_t all = local_elems(g, n);

    switch (n->op) {
    case Oallgather:
        group->instr.kind = Iallgather;
        group->instr.allgather = along(g, n, n->in[0]);
        return;
    case Oreducescatter:
        group->instr.kind = Ireducescatter;
        group->instr.reducescatter = scatter(g, n);
        return;
    case Oallreduce:
    case Opp_sum:
        group->instr.kind = Iallreduce;
        group->instr.allreduce =
            (AllreduceArgs){ n->dt, all, reduction(g, n->in[0], n_atoms(n)) };
        group->inplace = alloc(a, sizeof *group->inplace);
        group->ninplace = 1;
        return;
    case Oppermute:
        group->instr.kind = Ippermute;
        group->instr.ppermute = (PpermuteArgs){ n->dt, all, n->at.ppermute.by };
        return;
    case Oalltoall:
        group->instr.kind = Ialltoall;
        group->instr.alltoall = exchange(g, n);
        return;
    default: die("%s: not a collective", optab[n->op].name);
    }
}

/* To or from another stage: all of the value. */
static void transfer(Group *group, Arena *a, const Graph *g, Node *n)
{
    Node *x = n->op == Osend ? n->in[0] : n;

    vec_push(a, group->arg, storage(x));
    vec_push(a, group->view, x);
    group->narg = 1;
    group->instr.kind = n->op == Osend ? Isend : Irecv;
    group->instr.transfer =
        (TransferArgs){ x->dt, local_elems(g, x),
                        n->op == Osend ? n->at.send.peer : n->at.recv.peer,
                        n_chan(n) };
    group->instr.atoms = g->mesh->mask[Mpp];
    group->instr.bytes = (double)local_bytes(g, x);
    set_label(group, a, n);
}

/* What a rank receives, or sends: of an all-reduce in two halves. */
static double moved(const Graph *g, const Node *n)
{
    double ranks = (double)mesh_extent(g->mesh, n_atoms(n));
    double most =
        (double)local_bytes(g, n->op == Oreducescatter ? n->in[0] : n);

    if (n->op == Oppermute)
        return most;
    return (n->op == Oallreduce || n->op == Opp_sum ? 2 : 1) * most *
           (ranks - 1) / ranks;
}

static void operands(Group *group, Arena *a, Node *send, Node *recv, Node *last)
{
    Node *view[3] = { send, recv, last };

    for (int i = 0; i < 3; i++) {
        vec_push(a, group->arg, view[i] ? storage(view[i]) : NULL);
        vec_push(a, group->view, view[i]);
    }
    group->narg = 3;
}

/* With what lies around the all-to-all: rows are expected as its map says. */
static void rows(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[1];
    RowExchange x;
    int sends = sends_rows(g, n, &x);

    if (!sends && !returns_rows(g, n, &x))
        die("%s: no exchange of rows", n->name);
    uint32_t atoms = n_atoms(x.alltoall);
    double ranks = (double)mesh_extent(g->mesh, atoms);
    operands(group, a, x.rows, n, x.member->in[1]);
    group->instr.kind = sends ? Isendrows : Ireturnrows;
    group->instr.rows =
        (RowsArgs){ n->dt, x.tokens, x.pair, x.width, .kernel = -1 };
    group->instr.atoms = atoms;
    group->instr.bytes = (ranks - 1) * x.map->at.route.direct * (double)x.pair *
                         (double)(x.width * dtypes[n->dt].bytes);
    set_label(group, a, n);
}

void comm_lower(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0];

    if (n->op == Osend || n->op == Orecv) {
        transfer(group, a, g, n);
        return;
    }
    if (group->n > 1) {
        rows(g, group, a);
        return;
    }
    operands(group, a, n->in[0], n, NULL);
    blocks(group, a, g, n);
    group->instr.atoms = n_atoms(n);
    group->instr.bytes = moved(g, n);
    set_label(group, a, n);
}

void comm_lower_cuda(Graph *g, Group *group, Arena *a)
{
    comm_lower(g, group, a);
    if (moves_rows(group->instr.kind))
        exchange_lower_cuda(g, group, a);
}
