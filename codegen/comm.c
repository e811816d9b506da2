/* comm.c: collectives as instructions. Tensors are row-major, so a collective
 * along an axis moves, for each index of the axes before it (outer), one
 * contiguous run: the axis and all axes behind it. */
#include "codegen.h"

static int64_t local_product(const Graph *g, const Node *n, int from, int to)
{
    int64_t e = 1;

    for (int d = from; d < to; d++)
        e *= local_n(g, n, d);
    return e;
}

/* Reduction of a collective over `atoms`, from the type of its operand x. */
static Reduce reduction(const Graph *g, const Node *x, uint32_t atoms)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (atoms >> i & 1 && x->sh[i].k == P)
            return x->sh[i].op;
    return Radd;
}

/* Those of `atoms` that cut axis a of n in the zigzag order (two pieces a
 * rank). */
static uint32_t zigzag_cuts(const Graph *g, const Node *n, const Axis *a,
                            uint32_t atoms)
{
    for (int i = 0; i < g->mesh->natom; i++)
        if (n->sh[i].k != S || n->sh[i].a != a)
            atoms &= ~(1u << i);
    return atoms & zigzag_atoms(g->mesh, a);
}

/* 2 if the axis keeps two zigzag pieces a rank in `cut`, each of which the
 * collective treats as an axis of its own; else 1. */
static int64_t pieces_a_rank(const Graph *g, const Node *cut, const Axis *a,
                             uint32_t atoms)
{
    return zigzag_cuts(g, cut, a, atoms) || !zigzag_cuts(g, cut, a, ~0u) ? 1
                                                                         : 2;
}

typedef struct ZigzagPieces { /* zigzag order of the group's atoms */
    int64_t zig, low;
} ZigzagPieces;

static ZigzagPieces zigzag(const Graph *g, const Node *n, uint32_t z)
{
    uint32_t atoms = n_atoms(n);

    if (!z)
        return (ZigzagPieces){ 0, 0 };
    return (ZigzagPieces){ mesh_extent(g->mesh, z),
                           mesh_extent(g->mesh, atoms & ((z & -z) - 1)) };
}

/* Blocks of the tensor `cut` along the axis of collective n. */
static AllgatherArgs allgather_args(const Graph *g, const Node *n,
                                    const Node *cut)
{
    int d = dim_of(cut, n_axis(n));
    int64_t h = pieces_a_rank(g, cut, n_axis(n), n_atoms(n));
    ZigzagPieces p = zigzag(g, n, zigzag_cuts(g, cut, n_axis(n), n_atoms(n)));

    return (AllgatherArgs){
        .dt = n->dt,
        .outer = local_product(g, cut, 0, d) * h,
        .chunk = local_product(g, cut, d, cut->nd) / h,
        .zig = p.zig,
        .low = p.low,
    };
}

static ReducescatterArgs reducescatter_args(const Graph *g, const Node *n)
{
    AllgatherArgs x = allgather_args(g, n, n);

    return (ReducescatterArgs){
        .dt = x.dt,
        .outer = x.outer,
        .chunk = x.chunk,
        .op = reduction(g, n->in[0], n_atoms(n)),
        .zig = x.zig,
        .low = x.low,
    };
}

/* An axis that keeps two pieces passes its factor 2 to the axes before it. */
static AlltoallArgs alltoall_args(const Graph *g, const Node *n)
{
    const Node *x = n->in[0];
    const struct alltoall_attrs *t = &n->at.alltoall;
    int da = dim_of(n, t->from), db = dim_of(n, t->to);
    int lo = da < db ? da : db, hi = da < db ? db : da;
    int64_t ha = pieces_a_rank(g, x, t->from, t->atoms);
    int64_t hb = pieces_a_rank(g, n, t->to, t->atoms);
    int64_t hlo = da < db ? ha : hb, hhi = da < db ? hb : ha;
    uint32_t za = zigzag_cuts(g, x, t->from, t->atoms);
    ZigzagPieces p = zigzag(g, n, za ? za : zigzag_cuts(g, n, t->to, t->atoms));

    return (AlltoallArgs){
        .dt = n->dt,
        .outer = local_product(g, n, 0, lo) * hlo,
        .a = local_n(g, n, da) / ha,
        .mid = local_product(g, n, lo + 1, hi) * hhi,
        .b = local_n(g, x, db) / hb,
        .inner = local_product(g, n, hi + 1, n->nd),
        .swap = db < da,
        .zig = za ? p.zig : -p.zig,
        .low = p.low,
    };
}

static void set_collective(Group *group, Arena *a, const Graph *g,
                           const Node *n)
{
    int64_t all = local_elems(g, n);

    switch (n->op) {
    case Oallgather:
        group->instr.kind = Iallgather;
        group->instr.allgather = allgather_args(g, n, n->in[0]);
        return;
    case Oreducescatter:
        group->instr.kind = Ireducescatter;
        group->instr.reducescatter = reducescatter_args(g, n);
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
        group->instr.alltoall = alltoall_args(g, n);
        return;
    default: die("%s: not a collective", optab[n->op].name);
    }
}

/* send or recv of a whole value between pipeline stages. */
static void set_transfer(Group *group, Arena *a, const Graph *g, Node *n)
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

/* Bytes that a rank sends (and receives). An all-reduce counts twice:
 * reduce-scatter and all-gather. */
static double moved_bytes(const Graph *g, const Node *n)
{
    double ranks = (double)mesh_extent(g->mesh, n_atoms(n));
    double most =
        (double)local_bytes(g, n->op == Oreducescatter ? n->in[0] : n);

    if (n->op == Oppermute)
        return most;
    return (n->op == Oallreduce || n->op == Opp_sum ? 2 : 1) * most *
           (ranks - 1) / ranks;
}

static void set_operands(Group *group, Arena *a, Node *send, Node *recv,
                         Node *last)
{
    Node *view[3] = { send, recv, last };

    for (int i = 0; i < 3; i++) {
        vec_push(a, group->arg, view[i] ? storage(view[i]) : NULL);
        vec_push(a, group->view, view[i]);
    }
    group->narg = 3;
}

/* sendrows or returnrows: the all-to-all with the gather before it or the sum
 * behind it. The expected number of rows is that of the routing map. */
static void set_row_exchange(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[1];
    RowExchange x;
    int sends = sends_rows(g, n, &x);

    if (!sends && !returns_rows(g, n, &x))
        die("%s: no exchange of rows", n->name);
    uint32_t atoms = n_atoms(x.alltoall);
    double ranks = (double)mesh_extent(g->mesh, atoms);
    set_operands(group, a, x.rows, n, x.member->in[1]);
    group->instr.kind = sends ? Isendrows : Ireturnrows;
    group->instr.rows =
        (RowsArgs){ n->dt, x.tokens, x.pair, x.width, .sig = -1 };
    group->instr.atoms = atoms;
    group->instr.bytes = (ranks - 1) * x.map->at.route.direct * (double)x.pair *
                         (double)(x.width * dtypes[n->dt].bytes);
    set_label(group, a, n);
}

void comm_lower(Graph *g, Group *group, Arena *a)
{
    Node *n = group->node[0];

    if (n->op == Osend || n->op == Orecv) {
        set_transfer(group, a, g, n);
        return;
    }
    if (group->n > 1) {
        set_row_exchange(g, group, a);
        return;
    }
    set_operands(group, a, n->in[0], n, NULL);
    set_collective(group, a, g, n);
    group->instr.atoms = n_atoms(n);
    group->instr.bytes = moved_bytes(g, n);
    set_label(group, a, n);
}

void comm_lower_cuda(Graph *g, Group *group, Arena *a)
{
    comm_lower(g, group, a);
    if (moves_rows(group->instr.kind))
        exchange_lower_cuda(g, group, a);
}
