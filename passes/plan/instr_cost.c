/* instr_cost.c: the FLOPs and bytes of an instruction, the seconds that the
 * target's machine (machines.def) takes for them, and whether it is one that
 * takes tokens to experts or back. */
#include "plan.h"

static const InstrSpeeds family_speeds[NFAMILY] = {
    [FAMloop] = { SPEEDloop, SPEEDmemory, 0, 0 },
    [FAMgemm] = { SPEEDgemm, SPEEDmemory, 0, 0 },
    [FAMgmm] = { SPEEDgrouped, SPEEDmemory, 0, 0 },
    [FAMgmm_wgrad] = { SPEEDweights, SPEEDmemory, 0, 0 },
    [FAMattn] = { SPEEDattn, SPEEDmemory, 0, 0 },
    [FAMattn_bwd] = { SPEEDattn_bwd, SPEEDmemory, 0, 0 },
    [FAMtopk] = { SPEEDloop, SPEEDindex, 0, 0 },
    [FAMcumsum] = { SPEEDloop, SPEEDindex, 0, 0 },
    [FAMdrop_to_capacity] = { SPEEDloop, SPEEDindex, 0, 0 },
    [FAMroute] = { SPEEDloop, SPEEDindex, 0, 0 },
    [FAMblocks] = { SPEEDloop, SPEEDmemory, 0, 0 },
    [FAMscatter] = { SPEEDloop, SPEEDindex, 0, 0 },
    [FAMfake_quantize] = { SPEEDloop, SPEEDmemory, 0, 0 },
    [FAMcomm] = { SPEEDloop, SPEEDlink, 0, 0 },
    [FAMzero] = { SPEEDloop, SPEEDmemory, 0, 0 },
    [FAMcopy] = { SPEEDloop, SPEEDoffload, 0, 0 },
    [FAMnone] = { SPEEDloop, SPEEDmemory, 0, 0 },
};

/* Bytes of accumulators that a product or a loop adds to: a mean over its runs,
 * of which the first may store. */
static double added_bytes(const Graph *g, const Group *group)
{
    double bytes = 0, runs = (double)body_runs(g);

    if (group->stores || group->fam == FAMscatter || group->fam == FAMzero)
        return 0;
    for (int i = 0; i < group->nout; i++) {
        const Node *n = group->out[i];
        int first = n->nin == 1 && group->instr.store_first;
        if (accumulates(group, n))
            bytes += (double)local_bytes(g, n) * (first ? 1 - 1 / runs : 1);
    }
    return bytes;
}

/* Members cost their arithmetic; memory sees what goes in and out, a link what
 * a copy reads, or makes where it reads no value of the device. */
static void count(const Graph *g, const Group *group, Instr *instr)
{
    instr->flops = instr->bytes = 0;
    if (instr->kind == Ijoin)
        return;
    for (int i = 0; i < group->n; i++)
        instr->flops += cost_of(g, group->node[i]).flops;
    for (int i = 0; i < group->nin; i++)
        instr->bytes += (double)local_bytes(g, group->in[i]);
    if (group->fam == FAMcopy && group->nin)
        return;
    for (int i = 0; i < group->nout; i++)
        instr->bytes += (double)local_bytes(g, storage(group->out[i]));
}

/* How many ranks of a stage do the same of n: all but those that a tensor it
 * makes or reads is cut over. */
static double copies_of(const Graph *g, const Node *n)
{
    const Mesh *m = g->mesh;
    uint32_t cut = m->mask[Mpp];

    for (int i = -2; i < n->nin; i++) {
        const Node *x = i == -2 ? n : i == -1 ? n->map : n->in[i];
        if (x)
            cut |= atoms_of(g, x, S) | atoms_of(g, x, F);
    }
    return (double)mesh_extent(m, ~cut & ((1u << m->natom) - 1));
}

static double share_again(const Graph *g, const Group *group)
{
    double all = 0, once = 0;

    for (int i = 0; i < group->n && g->mesh; i++) {
        double f = cost_of(g, group->node[i]).flops + 1;
        all += f;
        once += f / copies_of(g, group->node[i]);
    }
    return all > 0 ? 1 - once / all : 0;
}

/* ---- to experts and back ------------------------------------------------- */

/* Of a value: it is sent to experts, as it is or cast; it is made of partial
 * sums of their results. */
enum { TO = 1, FROM = 2 };

static int is_plain(const Node *n)
{
    OpClass c = optab[n->op].cls;

    return c == EW || c == VIEW || c == RED;
}

void mark_experts(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = n->op == Ocombine ? FROM : 0;
        int on = is_plain(n) || n->op == Oreducescatter; /* one of several */
        for (int k = 0; k < n->nin && on && is_partial(n); k++)
            n->mark |= n->in[k]->mark & FROM;
    }
    for (size_t i = vec_len(g->node); i-- > 0;) {
        Node *n = g->node[i];
        int to = n->op == Odispatch || n->op == Oroute ||
                 (n->nin == 1 && (is_plain(n) || n->op == Oallgather) &&
                  n->mark & TO);
        if (to && n->nin)
            n->in[0]->mark |= TO;
    }
}

/* Are its blocks (sharding/exchange.c) what n exchanges? */
static int exchanges(const Node *route, const Node *n)
{
    const Axes *blocks = &route->at.route.blocks;

    return route->op == Oroute && (axes_at(blocks, n->at.alltoall.from) >= 0 ||
                                   axes_at(blocks, n->at.alltoall.to) >= 0);
}

/* Rows of experts whose weights are cut over ranks are summed over these. */
static int serves_experts(const Graph *g, const Node *n)
{
    if (n->op == Oallgather)
        return n->mark & TO;
    if (n->op == Oreducescatter || n->op == Oallreduce)
        return n->in[0]->map || n->in[0]->mark & FROM;
    for (size_t i = 0; i < vec_len(g->node) && n->op == Oalltoall; i++)
        if (exchanges(g->node[i], n))
            return 1;
    return 0;
}

/* ---- seconds ------------------------------------------------------------- */

static const Node *map_of(const Group *group)
{
    const Node *map = group->map;

    for (int i = 0; i < group->n && !map; i++) {
        map = group->node[i]->map;
        for (int j = 0; j < group->node[i]->nin && !map; j++)
            map = group->node[i]->in[j]->op == Oroute
                      ? group->node[i]->in[j]
                      : group->node[i]->in[j]->map;
    }
    return map;
}

/* The largest of a row, and what waits for it: exponentials and their sum. */
static int has_softmax(const Group *group)
{
    for (int i = 0; i < group->n && group->fam == FAMloop; i++)
        if (group->node[i]->op == Omax)
            return 1;
    return 0;
}

static int is_attention_group(const Group *group)
{
    return group->fam == FAMattn || group->fam == FAMattn_bwd;
}

/* Are products of fp32? Beside the bf16 operands of an attention others, as
 * positions, may be fp32. */
static int is_single(const Group *group)
{
    const Node *n = group->node[0];
    int single = n->nin && n->in[0]->dt == Df32;

    for (int k = 0; k < n->nin && is_attention_group(group); k++) {
        if (n->in[k]->dt == Dbf16)
            return 0;
        single |= n->in[k]->dt == Df32;
    }
    return single;
}

/* By what its path and type allow. */
static InstrSpeeds speeds_of(const Graph *g, const Group *group,
                             const Instr *instr)
{
    InstrSpeeds v = family_speeds[group->fam];
    int grouped = group->fam == FAMgmm || group->fam == FAMgmm_wgrad;
    int threads = grouped && pass_target(g)->grid; /* of a GPU, in fp32 */

    v.size =
        grouped ? rows_of_expert(g, map_of(group))
        : is_scaled_product(group->node[0])
            ? instr->flops / (2 * (double)local_elems(g, group->node[0]->in[1]))
            : instr->flops;
    if (group->path == PATHthreads ||
        ((is_attention_group(group) || threads) && is_single(group)))
        v = (InstrSpeeds){ SPEEDplain, v.move, instr->flops, 0 };
    else if (group->path != PATHfast)
        v.work = SPEEDunaligned;
    else if (v.work == SPEEDgemm && is_single(group))
        v.work = SPEEDsingle;
    else if (is_scaled_product(group->node[0]))
        v.work = group->fam == FAMgmm_wgrad ? SPEEDnarrow_weights : SPEEDnarrow;
    if (moves_rows(instr->kind))
        v.move = SPEEDrows;
    else if (has_softmax(group))
        v.move = SPEEDsoftmax;
    v.added = added_bytes(g, group);
    return v;
}

static int is_tensor_product(const Group *group)
{
    return group->path == PATHfast &&
           (group->fam == FAMgemm || group->fam == FAMgmm ||
            group->fam == FAMgmm_wgrad);
}

/* Of what a product updates, read and written; numbers are written only. */
static double updated_bytes(const Graph *g, const Group *group)
{
    double bytes = 0;

    for (int i = 0; i < group->nout && group_updates(group); i++)
        if (group->out[i]->op == Owrite)
            bytes += (group->out[i]->in[1]->op == Opart ? 1 : 2) *
                     (double)local_bytes(g, storage(group->out[i]));
    return bytes;
}

/* A tile of a product is added to what lies there when its sums are complete,
 * with nothing left to multiply beside: that takes longer by its reads. So does
 * what is updated with a tile: steps of 53.9, 135.7, 182.1 ms on an H100
 * (product_update.c) are predicted to take 56.0, 136.1, 177.1; hidden beside
 * the products 54.9, 133.3, 162.8. Products of 8 bits hide it, as a warpgroup
 * of its own updates: Mixtral, 2 layers, 4/1, on an H200 136.8 and 137.5 ms,
 * predicted 135.2; behind them 147.5. */
static double secs_by(const Graph *g, const Group *group, const Instr *instr,
                      InstrSpeeds v)
{
    const MachineSpeeds *speeds = machine_of(g);
    double memory = speed_at(speeds, v.move, instr->bytes);
    double work = instr->flops / speed_at(speeds, v.work, v.size);

    double updated =
        v.work == SPEEDnarrow_weights ? 0 : updated_bytes(g, group);

    if (is_tensor_product(group) && v.work != SPEEDplain)
        return speeds->launch + (v.added + updated) / memory +
               product_secs(speeds, v.work, v.size, instr->flops,
                            instr->bytes - updated);
    return speeds->launch + fmax(work, (instr->bytes + v.added) / memory);
}

/* A rank's share of its host's memory, bytes/s. */
static double dram_share(const Graph *g)
{
    double ranks = g->mesh ? (double)mesh_extent(g->mesh, sharing_atoms(g)) : 1;

    return machine_of(g)->dram / ranks;
}

double host_speed(const Graph *g)
{
    const MachineSpeeds *speeds = machine_of(g);

    return speeds->offload > 0 ? fmin(speeds->cores, dram_share(g)) : 0;
}

double host_memory_secs(const Graph *g, double bytes)
{
    double speed = dram_share(g);

    return speed > 0 ? bytes / speed : 0;
}

double host_secs(const Graph *g, double bytes)
{
    const MachineSpeeds *speeds = machine_of(g);
    double speed = host_speed(g);

    return speeds->launch + bytes / (speed > 0 ? speed : speeds->memory);
}

double copy_secs(const Graph *g, double bytes)
{
    const MachineSpeeds *speeds = machine_of(g);

    return speeds->launch +
           bytes / (speeds->offload > 0 ? speeds->offload : speeds->memory);
}

static KernelWork work_of(const Group *group)
{
    switch (group->fam) {
    case FAMattn:
    case FAMattn_bwd: return WORKattention;
    case FAMgmm:
    case FAMgmm_wgrad: return WORKgrouped;
    default: return WORKother;
    }
}

void predict(const Graph *g, const Group *group, Instr *instr)
{
    const MachineSpeeds *speeds = machine_of(g);

    if (instr->flops == 0 && instr->bytes == 0)
        count(g, group, instr);
    instr->again = instr->flops * share_again(g, group);
    instr->speeds = speeds_of(g, group, instr);
    instr->work = work_of(group);
    if (group->fam == FAMcopy) {
        instr->secs = copy_secs(g, instr->bytes);
        return;
    }
    if (group->host) {
        instr->speeds = (InstrSpeeds){ SPEEDcores, SPEEDcores, 0, 0 };
        instr->secs = host_secs(g, instr->bytes);
        return;
    }
    if (moves_rows(instr->kind))
        instr->secs = speeds->hop +
                      instr->bytes / speed_at(speeds, SPEEDrows, instr->bytes);
    else if (group->fam == FAMcomm)
        instr->secs =
            link_secs(g, instr->atoms, instr->bytes, instr->kind == Ialltoall);
    else
        instr->secs = secs_by(g, group, instr, instr->speeds);
    if (group->path != PATHfast &&
        !(is_attention_group(group) && is_single(group))) {
        InstrSpeeds fast = family_speeds[group->fam];
        fast.size = instr->speeds.size;
        warn_path(g, group, instr->secs, secs_by(g, group, instr, fast));
    }
    instr->experts =
        moves_rows(instr->kind) ||
        (group->fam == FAMcomm && serves_experts(g, group->node[0]));
}

/* ---- a dispatcher that sends a row for each choice ----------------------- */

/* Seconds of a way to experts, or back: an all-to-all over ep, an all-gather
 * over etp, and where a rank has several experts two copies that sort rows. */
static double dispatcher_secs(const Graph *g, const Node *dispatch)
{
    const Mesh *mesh = g->mesh;
    MapLayout l = map_layout(g, dispatch->in[1]);
    double ep = (double)mesh->size[Mep], etp = (double)mesh->size[Metp];
    double bytes = (double)local_bytes(g, dispatch) / (double)l.cap *
                   fmin((double)l.cap, expected_rows(dispatch->in[1], &l));
    double own = bytes / etp, secs = 0;

    if (ep > 1)
        secs += link_secs(g, mesh->mask[Mep], own * (ep - 1) / ep, 1);
    if (etp > 1)
        secs += link_secs(g, mesh->mask[Metp], own * (etp - 1), 0);
    return secs + (l.experts > 1 ? 2 * bytes / machine_of(g)->dispatch : 0);
}

/* The dispatch of tokens whose rows gmm n reads in the forward, in whatever
 * numbers; null: it reads none. */
static const Node *tokens_dispatched(const Node *n)
{
    const Node *x = n->op == Ogmm && !is_backward(n) ? n->in[0] : NULL;

    while (x && x->op != Odispatch)
        x = x->nin == 1 || x->op == Odequantize || x->op == Oquantize ||
                    x->op == Ofake_quantize || x->op == Oquantize_blocks
                ? x->in[0]
                : NULL;
    return x && x->in[1]->op == Oroute && !x->in[1]->at.route.round && !x->again
               ? x
               : NULL;
}

/* Dispatches of tokens and of the gradients of what comes back, each of a layer
 * once, in a set. */
static Table *all_dispatched(const Graph *g)
{
    Table *found = table_new(g->arena), *maps = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *x = tokens_dispatched(g->node[i]);
        if (x && !table_get(maps, KEYP(x->in[1])))
            *table_at(found, KEYP(x)) = *table_at(maps, KEYP(x->in[1])) = found;
    }
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *x = g->node[i];
        if (x->op == Odispatch && is_backward(x) &&
            table_get(maps, KEYP(x->in[1]))) {
            *table_at(found, KEYP(x)) = found;
            *table_at(maps, KEYP(x->in[1])) = NULL;
        }
    }
    return found;
}

/* Seconds of a way there and one back that group's dispatches take, which then
 * are no more in `left`: kernels may have them in common. */
static double ways_of(const Graph *g, const Group *group, Table *left)
{
    double secs = 0;

    for (int k = 0; k < group->n; k++) {
        const Node *x = group->node[k];
        void **at = x->op == Odispatch ? table_at(left, KEYP(x)) : NULL;
        secs += at && *at ? 2 * dispatcher_secs(g, x) : 0;
        if (at)
            *at = NULL;
    }
    return secs;
}

void price_dispatcher(const Graph *g, Group *const *group, int n)
{
    if (machine_of(g)->dispatch <= 0 || !g->mesh)
        return;
    Table *left = all_dispatched(g);
    for (int i = 0; i < n; i++) {
        Instr *instr = &group[i]->instr;
        instr->secs =
            (instr->experts ? 0 : instr->secs) + ways_of(g, group[i], left);
    }
}

int accumulates(const Group *group, const Node *n)
{
    if (n->op != Oaccum || n->at.accum.op == Rlast)
        return 0;
    for (int i = 0; i < group->n; i++)
        if (group->node[i] == n)
            return 1;
    return 0;
}
