/* reshard.c: collectives that convert a value from one type to another.
 *
 *     R      -> S(a)   shard_slice       P -> S(a)   reducescatter
 *     P      -> R      allreduce        S(a) -> R   allgather
 *     S(a)   -> S(b)   alltoall
 *
 * An axis sharded over several atoms has later atoms major, and atoms that
 * divide it in pieces above all others (stride_order). So a step may add only
 * atoms below those that shard the axis, and remove only the lowest: a rank's
 * new part is then inside, or contains, its old one. Types with another order
 * of atoms are reached through the whole axis. */
#include "graph.h"

static uint32_t cutting(const Mesh *m, const Shard *shard, const Axis *a)
{
    uint32_t mask = 0;

    for (int i = 0; i < m->natom; i++)
        if (shard[i].k == S && shard[i].a == a)
            mask |= 1u << i;
    return mask;
}

/* Are all atoms of x below all of y along axis a? */
static int below(const Mesh *m, const Axis *a, uint32_t x, uint32_t y)
{
    y = stride_order(m, a, y);
    return !x || !y || stride_order(m, a, x) < (y & -y);
}

/* Returns atoms that must still shard axis b: the topmost run of one current
 * type. */
static uint32_t next_into(const Mesh *m, const Shard *shard, const Shard *want,
                          const Axis *axis)
{
    uint32_t mask = 0, z = zigzag_atoms(m, axis);
    const Shard *top = NULL;

    for (int k = 2 * m->natom; k-- > 0;) {
        int i = k % m->natom;
        if ((z >> i & 1) != (k >= m->natom))
            continue;
        if (want[i].k != S || want[i].a != axis ||
            same_shard(&shard[i], &want[i]))
            continue;
        if (top && !same_shard(&shard[i], top))
            break;
        top = &shard[i];
        mask |= 1u << i;
    }
    return mask;
}

static int lowest(uint32_t mask)
{
    int i = 0;

    while (!(mask >> i & 1))
        i++;
    return i;
}

static int make(Shard *shard, Reshard *reshard, Op op, Axis *a, Axis *axis,
                uint32_t atoms, Shard to)
{
    *reshard = (Reshard){ op, a, axis, atoms };
    for (int i = 0; i < MAXATOM; i++)
        if (atoms >> i & 1)
            shard[i] = to;
    return 1;
}

/* Shards axis b further, from the given kind of current type. */
static int cut_more(const Mesh *m, Shard *shard, const Shard *want,
                    Reshard *reshard, ShardKind from)
{
    for (int i = 0; i < m->natom; i++) {
        if (want[i].k != S || same_shard(&shard[i], &want[i]))
            continue;
        Axis *axis = want[i].a;
        uint32_t in = next_into(m, shard, want, axis),
                 now = cutting(m, shard, axis);
        Shard old = shard[lowest(in)];
        if (old.k != from || !below(m, axis, in, now) ||
            (now & ~cutting(m, want, axis)))
            continue;
        if (from == R)
            return make(shard, reshard, Oshard_slice, axis, NULL, in, want[i]);
        if (from == P)
            return make(shard, reshard, Oreducescatter, axis, NULL, in,
                        want[i]);
        if (zigzag_atoms(m, axis) && zigzag_atoms(m, old.a))
            continue;
        if (below(m, old.a, in, cutting(m, shard, old.a) & ~in))
            return make(shard, reshard, Oalltoall, old.a, axis, in, want[i]);
    }
    return 0;
}

static int reduce_all(const Mesh *m, Shard *shard, const Shard *want,
                      Reshard *reshard)
{
    uint32_t mask = 0;
    const Shard *first = NULL;

    for (int i = 0; i < m->natom; i++)
        if (shard[i].k == P && want[i].k == R &&
            (!first || shard[i].op == first->op)) {
            first = &shard[i];
            mask |= 1u << i;
        }
    return mask && make(shard, reshard, Oallreduce, NULL, NULL, mask,
                        (Shard){ .k = R });
}

/* Gathers one run of atoms, slowest atoms first, so that little data travels
 * far. */
static int gather_one(const Mesh *m, Shard *shard, const Shard *want,
                      Reshard *reshard)
{
    for (int i = m->natom; i-- > 0;) {
        if (shard[i].k != S || want[i].k != R)
            continue;
        Axis *a = shard[i].a;
        uint32_t now = cutting(m, shard, a), out = 0;
        for (int k = 0; k < m->natom; k++)
            if ((now >> k & 1) && want[k].k == R)
                out |= 1u << k;
        if (below(m, a, out, now & ~out))
            return make(shard, reshard, Oallgather, a, NULL, out,
                        (Shard){ .k = R });
    }
    return 0;
}

/* Gathers a blocking axis if no direct step is left: first the axis to unshard,
 * then the one to shard. */
static int start_over(const Mesh *m, Shard *shard, const Shard *want,
                      Reshard *reshard)
{
    for (int i = m->natom; i-- > 0;) {
        if (same_shard(&shard[i], &want[i]))
            continue;
        Axis *a = shard[i].k == S ? shard[i].a : want[i].a;
        return make(shard, reshard, Oallgather, a, NULL, cutting(m, shard, a),
                    (Shard){ .k = R });
    }
    return 0;
}

/* Makes a scalar partial: position 0 keeps the value, the others have 0. */
static int own(const Mesh *m, Shard *shard, const Shard *want, Reshard *reshard)
{
    uint32_t mask = 0;

    for (int i = 0; i < m->natom; i++)
        if (shard[i].k == R && want[i].k == P && want[i].op == Radd)
            mask |= 1u << i;
    return mask && make(shard, reshard, Oadd, NULL, NULL, mask,
                        (Shard){ P, Radd, NULL });
}

int reshard_step(const Mesh *m, Shard *shard, const Shard *want,
                 Reshard *reshard)
{
    int done = 1;

    for (int i = 0; i < m->natom; i++)
        done &= same_shard(&shard[i], &want[i]);
    if (done)
        return 0;
    if (cut_more(m, shard, want, reshard, R) ||
        cut_more(m, shard, want, reshard, P) ||
        reduce_all(m, shard, want, reshard) ||
        cut_more(m, shard, want, reshard, S) ||
        gather_one(m, shard, want, reshard) || own(m, shard, want, reshard) ||
        start_over(m, shard, want, reshard))
        return 1;
    die("no collective makes the type asked for");
}

void reshard_attrs(Node *n, const Reshard *reshard)
{
    switch (reshard->op) {
    case Oallgather:
        n->at.allgather =
            (struct allgather_attrs){ reshard->a, reshard->atoms };
        break;
    case Oreducescatter:
        n->at.reducescatter =
            (struct reducescatter_attrs){ reshard->a, reshard->atoms };
        break;
    case Oshard_slice:
        n->at.shard_slice =
            (struct shard_slice_attrs){ reshard->a, reshard->atoms };
        break;
    case Oalltoall:
        n->at.alltoall =
            (struct alltoall_attrs){ reshard->a, reshard->b, reshard->atoms };
        break;
    case Oallreduce: n->at.allreduce.atoms = reshard->atoms; break;
    default: die("%s is no step to a type", optab[reshard->op].name);
    }
}

/* ---- bytes --------------------------------------------------------------- */

double bytes_as(const Graph *g, const Node *n, const Shard *shard)
{
    double e = dtypes[n->dt].bytes;

    for (int d = 0; d < n->nd; d++) {
        if (g_isrow(n->dim[d].a)) {
            e *= (double)map_layout(g, n->map).cap;
            continue;
        }
        e *= (double)n->dim[d].n;
        for (int i = 0; i < g->mesh->natom; i++)
            if (shard[i].k == S && shard[i].a == n->dim[d].a &&
                !(n->map && n->map->sh[i].k == S))
                e /= (double)g->mesh->atom[i].size;
    }
    return e;
}

double bytes_sent(const Graph *g, const Node *n, const Shard *shard,
                  const Reshard *reshard)
{
    double ranks = (double)mesh_extent(g->mesh, reshard->atoms);
    double b = bytes_as(g, n, shard);

    switch (reshard->op) {
    case Oallgather: return b * (ranks - 1);
    case Oreducescatter:
    case Oalltoall: return b * (ranks - 1) / ranks;
    case Oallreduce: return 2 * b * (ranks - 1) / ranks;
    default: return 0;
    }
}
