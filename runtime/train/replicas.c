/* replicas.c: checks that replicas hold the same bits. A silent fault (a
 * flipped bit, a wrong product) makes one of them differ. Every rank sums a
 * hash of each element and its index; ranks that must agree compare the sums.
 *
 * Sums of all tensors that are sharded over the same atoms are compared as one,
 * which takes a few words a rank. Sums of single tensors are exchanged only if
 * these differ, to name the tensor. */
#include "train.h"

enum { MAXCLASS = 64 };

/* Sum of the tensors that are sharded over these atoms. */
typedef struct Digest {
    uint64_t used, sum;
} Digest;

typedef struct Digests { /* a rank's digests */
    int64_t n;
    Digest d[MAXCLASS];
} Digests;

/* ---- hashing ------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

typedef struct Summed {
    const uint8_t *p;
    int size;
    uint64_t sum;
} Summed;

static void add_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    Summed *summed = ctx;
    const uint8_t *p = summed->p + local * summed->size;
    uint64_t at = (uint64_t)global * 0x9e3779b97f4a7c15ull, sum = 0;

    for (int64_t i = 0; i < n; i++, at += 0x9e3779b97f4a7c15ull) {
        uint64_t bits = 0;
        memcpy(&bits, p + i * summed->size, (size_t)summed->size);
        sum += mix(bits ^ at);
    }
    summed->sum += sum;
}

/* Sums of the tensors of the ranks here: tensor i of rank k at k * most + i. */
typedef struct TensorSums {
    Exec *x;
    int64_t most; /* largest number of tensors of a role */
    uint64_t *sum;
} TensorSums;

static int lasts(const Tensor *tensor)
{
    return !tensor_is(tensor, 1 << TKinput | 1 << TKoutput);
}

static void sum_tensors(void *ctx, int64_t lo, int64_t hi)
{
    const TensorSums *sums = ctx;

    for (int64_t i = lo; i < hi; i++) {
        int64_t rank = sums->x->comm->first + i / sums->most,
                k = i % sums->most;
        const Role *r = exec_role(sums->x, rank);
        const Tensor *t = &r->tensor[k];
        sums->sum[i] = 0;
        if (k >= r->ntensor || !lasts(t))
            continue;
        Summed one = { exec_buf(sums->x, rank, t->buf), dtypes[t->dt].bytes,
                       0 };
        tensor_runs(sums->x->plan->mesh, t, rank, add_run, &one);
        sums->sum[i] = one.sum;
    }
}

/* ---- replicas ------------------------------------------------------------ */

/* Returns the atoms over which a tensor is sharded: ranks of a stage that
 * differ only in other atoms hold equal parts. */
static uint32_t cut_over(const Mesh *m, const Tensor *tensor)
{
    uint32_t used = tensor->run ? tensor->shard : 0;

    for (int a = 0; a < m->natom; a++)
        for (int d = 0; d < tensor->nd; d++)
            for (int i = 0; i < tensor->dim[d].npiece; i++)
                if (tensor->dim[d].piece[i].start.k[a])
                    used |= 1u << a;
    return used;
}

/* Returns the atoms over which ranks must agree. */
static uint32_t shared_over(const Mesh *m, uint64_t used)
{
    return (uint32_t)(((1ull << m->natom) - 1) & ~used & ~m->mask[Mpp]);
}

static Digests digests(const Exec *exec, int64_t rank, const uint64_t *sum)
{
    const Role *r = exec_role(exec, rank);
    Digests v = { 0 };

    for (int i = 0; i < r->ntensor; i++) {
        uint64_t used = cut_over(exec->plan->mesh, &r->tensor[i]);
        int64_t k = 0;
        if (!lasts(&r->tensor[i]))
            continue;
        while (k < v.n && v.d[k].used != used)
            k++;
        if (k == MAXCLASS)
            continue;
        v.n += k == v.n;
        v.d[k].used = used;
        v.d[k].sum = mix(v.d[k].sum + sum[i]);
    }
    return v;
}

/* ---- comparing ----------------------------------------------------------- */

/* Returns the majority of n values, or the first value without a majority. */
static uint64_t majority(const uint64_t *v, int64_t n, int64_t *count)
{
    uint64_t best = v[0];

    *count = 0;
    for (int64_t i = 0, lead = 0; i < n; i++) {
        best = lead ? best : v[i];
        lead += v[i] == best ? 1 : -1;
    }
    for (int64_t i = 0; i < n; i++)
        *count += v[i] == best;
    return best;
}

typedef struct ReplicaGroup { /* ranks that must agree */
    int64_t n, *rank;
    uint64_t *says;
    uint64_t used;
} ReplicaGroup;

static int agrees(const ReplicaGroup *group)
{
    for (int64_t i = 1; i < group->n; i++)
        if (group->says[i] != group->says[0])
            return 0;
    return 1;
}

/* Returns the first group that does not agree; n 0: all agree. */
static ReplicaGroup find_other(Arena *a, const Mesh *m, const Digests *all)
{
    ReplicaGroup g = { .rank = alloc(a, (size_t)m->world * sizeof *g.rank),
                       .says = alloc(a, (size_t)m->world * sizeof *g.says) };

    for (int64_t r = 0; r < m->world; r++)
        for (int64_t k = 0; k < all[r].n; k++) {
            uint32_t atoms = shared_over(m, all[r].d[k].used);
            if (mesh_pos(m, atoms, r))
                continue;
            g.n = mesh_extent(m, atoms);
            g.used = all[r].d[k].used;
            mesh_group(m, atoms, r, g.rank);
            for (int64_t i = 0; i < g.n; i++)
                g.says[i] = all[g.rank[i]].d[k].sum;
            if (!agrees(&g))
                return g;
        }
    g.n = 0;
    return g;
}

/* Appends the ranks that agree, or do not agree, with the majority. */
static void put_side(Text *out, const ReplicaGroup *group, uint64_t best,
                     int same)
{
    int64_t *v = alloc(out->arena, (size_t)(group->n + 1) * sizeof *v), n = 0;

    for (int64_t i = 0; i < group->n; i++)
        if ((group->says[i] == best) == same)
            v[n++] = group->rank[i];
    if (n == 1) {
        put(out, "rank %ld", v[0]);
        return;
    }
    put(out, "ranks");
    put_ranks(out, v, n);
}

static const char *words(Arena *a, const Exec *exec, ReplicaGroup *group,
                         const uint64_t *sums, int64_t most, int64_t step,
                         int64_t agreed)
{
    const Role *r = &exec->plan->role[role_of(exec->plan, group->rank[0])];
    Text out = { .arena = a };
    int64_t count, i = 0;

    for (; i < r->ntensor; i++) {
        if (!lasts(&r->tensor[i]) ||
            cut_over(exec->plan->mesh, &r->tensor[i]) != group->used)
            continue;
        for (int64_t k = 0; k < group->n; k++)
            group->says[k] = sums[group->rank[k] * most + i];
        if (!agrees(group))
            break;
    }
    uint64_t best = majority(group->says, group->n, &count);
    int known = 2 * count > group->n;
    if (known)
        put_side(&out, group, best, 0);
    else
        put(&out, "ranks"), put_ranks(&out, group->rank, group->n);
    put(&out, " hold%s other values of '%s' than ",
        known && group->n - count == 1 ? "s" : "",
        i < r->ntensor ? r->tensor[i].name : "?");
    if (known)
        put_side(&out, group, best, 1);
    else
        put(&out, "each other");
    put(&out,
        " after step %ld, and must hold the same (they did after step %ld): "
        "silent corruption; resume=1 goes on from the last checkpoint",
        step, agreed);
    return out.s;
}

/* ---- interface ----------------------------------------------------------- */

static TensorSums sums_here(Arena *a, Exec *exec)
{
    TensorSums s = { .x = exec };

    for (int i = 0; i < exec->plan->nrole; i++)
        if (s.most < exec->plan->role[i].ntensor)
            s.most = exec->plan->role[i].ntensor;
    s.sum = alloc(a, (size_t)(exec->comm->n * s.most + 1) * sizeof *s.sum);
    exec_pull(exec);
    pool_run(exec->pool, sum_tensors, &s, exec->comm->n * s.most, 1);
    return s;
}

uint64_t values_hash(Exec *exec)
{
    Arena *a = arena_new();
    TensorSums s = sums_here(a, exec);
    uint64_t h = 0;

    for (int64_t i = 0; i < exec->comm->n * s.most; i++)
        h = mix(h + s.sum[i]);
    arena_free(a);
    return h;
}

const char *replicas_differ(Exec *exec, int64_t step, int64_t agreed)
{
    Comm *comm = exec->comm;
    Arena *a = arena_new();
    TensorSums s = sums_here(a, exec);
    Digests *here = alloc(a, (size_t)comm->n * sizeof *here);
    Digests *all = alloc(a, (size_t)comm->world * sizeof *all);
    for (int64_t k = 0; k < comm->n; k++)
        here[k] = digests(exec, comm->first + k, s.sum + k * s.most);
    comm_gather(comm, here, all, comm->n * (int64_t)sizeof *here);
    ReplicaGroup g = find_other(a, exec->plan->mesh, all);
    const char *why = NULL;
    if (g.n) {
        uint64_t *sums =
            alloc(a, (size_t)(comm->world * s.most + 1) * sizeof *sums);
        comm_gather(comm, s.sum, sums,
                    comm->n * s.most * (int64_t)sizeof *s.sum);
        why = words(forever, exec, &g, sums, s.most, step, agreed);
    }
    arena_free(a);
    return why;
}
