/* instr_cost.c: the FLOPs and bytes of an instruction, the seconds that the
 * target's machine (machines.def) takes for them, and whether it is one that
 * takes tokens to experts or back. */
#include <math.h>

#include "emit.h"

static const InstrSpeeds family_speeds[NFAMILY] = {
    [FAMloop] = { SPEEDloop, SPEEDmemory, 0 },
    [FAMgemm] = { SPEEDgemm, SPEEDmemory, 0 },
    [FAMgmm] = { SPEEDgrouped, SPEEDmemory, 0 },
    [FAMgmm_wgrad] = { SPEEDweights, SPEEDmemory, 0 },
    [FAMattn] = { SPEEDattn, SPEEDmemory, 0 },
    [FAMattn_bwd] = { SPEEDattn_bwd, SPEEDmemory, 0 },
    [FAMtopk] = { SPEEDloop, SPEEDindex, 0 },
    [FAMcumsum] = { SPEEDloop, SPEEDindex, 0 },
    [FAMdrop_to_capacity] = { SPEEDloop, SPEEDindex, 0 },
    [FAMroute] = { SPEEDloop, SPEEDindex, 0 },
    [FAMblocks] = { SPEEDloop, SPEEDmemory, 0 },
    [FAMscatter] = { SPEEDloop, SPEEDindex, 0 },
    [FAMcomm] = { SPEEDloop, SPEEDlink, 0 },
    [FAMzero] = { SPEEDloop, SPEEDmemory, 0 },
    [FAMcopy] = { SPEEDloop, SPEEDoffload, 0 },
    [FAMnone] = { SPEEDloop, SPEEDmemory, 0 },
};

/* Members cost their arithmetic; memory sees what goes in and out. */
static void count(const Graph *g, const Group *k, Instr *s)
{
    s->flops = s->bytes = 0;
    if (s->kind == Ijoin)
        return;
    for (int i = 0; i < k->n; i++)
        s->flops += cost_of(g, k->node[i]).flops;
    for (int i = 0; i < k->nin; i++)
        s->bytes += (double)local_bytes(g, k->in[i]);
    for (int i = 0; i < k->nout; i++)
        s->bytes += (double)local_bytes(g, k->out[i]);
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

static double share_again(const Graph *g, const Group *k)
{
    double all = 0, once = 0;

    for (int i = 0; i < k->n && g->mesh; i++) {
        double f = cost_of(g, k->node[i]).flops + 1;
        all += f;
        once += f / copies_of(g, k->node[i]);
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

static int is_partial(const Node *n)
{
    for (int t = 0; t < MAXATOM; t++)
        if (n->sh[t].k == P)
            return 1;
    return 0;
}

void mark_experts(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        n->mark = n->op == Ocombine ? FROM : 0;
        for (int k = 0; k < n->nin && is_plain(n) && is_partial(n); k++)
            n->mark |= n->in[k]->mark & FROM;
    }
    for (size_t i = vec_len(g->node); i-- > 0;) {
        Node *n = g->node[i];
        int to = n->op == Odispatch || n->op == Oroute ||
                 (n->nin == 1 && is_plain(n) && n->mark & TO);
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

static int serves_experts(const Graph *g, const Node *n)
{
    if (n->op == Oallgather)
        return n->mark & TO;
    if (n->op == Oreducescatter || n->op == Oallreduce)
        return n->in[0]->mark & FROM;
    for (size_t i = 0; i < vec_len(g->node) && n->op == Oalltoall; i++)
        if (exchanges(g->node[i], n))
            return 1;
    return 0;
}

/* ---- seconds ------------------------------------------------------------- */

static const Node *map_of(const Group *k)
{
    const Node *map = k->map;

    for (int i = 0; i < k->n && !map; i++) {
        map = k->node[i]->map;
        for (int j = 0; j < k->node[i]->nin && !map; j++)
            map = k->node[i]->in[j]->map;
    }
    return map;
}

static int is_single(const Group *k)
{
    return k->node[0]->nin && k->node[0]->in[0]->dt == Df32;
}

/* By what its path and type allow. */
static InstrSpeeds speeds_of(const Graph *g, const Group *k, const Instr *s)
{
    InstrSpeeds v = family_speeds[k->fam];
    int grouped = k->fam == FAMgmm || k->fam == FAMgmm_wgrad;
    int attention = k->fam == FAMattn || k->fam == FAMattn_bwd;

    v.size = grouped ? rows_of_expert(g, map_of(k)) : s->flops;
    if (k->path == PATHthreads || (attention && is_single(k)))
        v.work = SPEEDplain;
    else if (k->path != PATHfast)
        v.work = SPEEDunaligned;
    else if (v.work == SPEEDgemm && is_single(k))
        v.work = SPEEDsingle;
    else if (k->fam == FAMgmm && is_scaled_product(k->node[0]))
        v.work = SPEEDnarrow;
    if (moves_rows(s->kind))
        v.move = SPEEDrows;
    return v;
}

static double secs_by(const MachineSpeeds *m, const Instr *s, InstrSpeeds v)
{
    return m->launch + fmax(s->flops / speed_at(m, v.work, v.size),
                            s->bytes / speed_at(m, v.move, s->bytes));
}

double copy_secs(const Graph *g, double bytes)
{
    const MachineSpeeds *m = machine_of(g);

    return m->launch + bytes / (m->offload > 0 ? m->offload : m->memory);
}

void predict(const Graph *g, const Group *k, Instr *s)
{
    const MachineSpeeds *m = machine_of(g);

    if (s->flops == 0 && s->bytes == 0)
        count(g, k, s);
    s->again = s->flops * share_again(g, k);
    s->speeds = speeds_of(g, k, s);
    if (k->fam == FAMcopy) {
        s->secs = copy_secs(g, s->bytes);
        return;
    }
    if (moves_rows(s->kind))
        s->secs = m->hop + s->bytes / speed_at(m, SPEEDrows, s->bytes);
    else if (k->fam == FAMcomm)
        s->secs = link_secs(g, s->atoms, s->bytes, s->kind == Ialltoall);
    else
        s->secs = secs_by(m, s, s->speeds);
    if (k->path != PATHfast) {
        InstrSpeeds fast = family_speeds[k->fam];
        fast.size = s->speeds.size;
        warn_path(g, k, s->secs, secs_by(m, s, fast));
    }
    s->experts = moves_rows(s->kind) ||
                 (k->fam == FAMcomm && serves_experts(g, k->node[0]));
}
