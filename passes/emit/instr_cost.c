/* instr_cost.c: the FLOPs and bytes of an instruction, and the seconds that the
 * target's machine (machines.def) takes for them. */
#include "emit.h"

static int is_product(const Group *k)
{
    return k->fam == FAMgemm || k->fam == FAMgmm || k->fam == FAMgmm_wgrad ||
           k->fam == FAMattn || k->fam == FAMattn_bwd;
}

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

static double secs_at(const MachineSpeeds *m, const Instr *s, double rate)
{
    double work = s->flops / rate, move = s->bytes / m->memory;

    return m->launch + (work > move ? work : move);
}

void predict(const Graph *g, const Group *k, Instr *s)
{
    const MachineSpeeds *m = machine_of(g);

    if (s->flops == 0 && s->bytes == 0)
        count(g, k, s);
    s->again = s->flops * share_again(g, k);
    s->secs = secs_at(m, s, is_product(k) ? m->gemm : m->loop);
    if (k->path != PATHfast) {
        double fast = s->secs;
        s->secs =
            secs_at(m, s, k->path == PATHthreads ? m->plain : m->unaligned);
        warn_path(g, k, s->secs, fast);
    }
    if (moves_rows(s->kind))
        s->secs = m->hop + s->bytes / m->rows;
    else if (k->fam == FAMcomm)
        s->secs =
            m->hop + link_secs(g, s->atoms, s->bytes, s->kind == Ialltoall);
}
