/* bucket.c: buckets of parameters for ZeRO. Parameters that are replicated over
 * the same atoms, of one dtype, update rule and pipeline stage are concatenated
 * in a bucket: a rank's part of each, row-major, then padding. A bucket is an
 * ordinary tensor [own flat]:
 *
 *     own    one element for each position over the atoms (of tp, ep ..) that
 *            shard the members: a rank has its part already
 *     flat   that part's elements; sharded over the atoms that replicate the
 *            members, over which their gradients are reduced
 *
 *     %g = pack %gq %go %gn                 [own flat]   dp:+
 *     %m = state optim.m.zero.0             [own flat]   dp:flat.a1
 *     %s = add (mul %m ..) (mul %g ..)      dp:flat.a1   %g by reduce-scatter
 *     %q = unpack %w at=0                   [hidden heads dim], by all-gather
 *
 * Thus the norm, the update and its collectives need no code of their own.
 * Masters and moments are stored in buckets; their initial values are packed
 * too. There are no buckets with fold.zero=0, in a group of one rank, and for
 * an optimizer that is not elementwise. */
#include "training.h"

enum { MOST = 1 << 25 }; /* elements of a bucket on one rank */

/* Common properties of a bucket's members. */
typedef struct BucketKey {
    uint32_t cut, flat; /* atoms */
    Dtype dt;
    UpdateRule rule;
    int stage;
    const Scope *unit; /* ZeRO-2, 3; null: gradients stay whole */
} BucketKey;

/* The atoms that shard a bucket, of those that replicate its members: all, or
 * with fold.hybrid the fastest ones up to that number of ranks. */
static uint32_t within(const Graph *g, uint32_t atoms)
{
    int64_t most = opts_int(g->opts, "fold.hybrid"), n = 1;
    uint32_t mask = 0;

    if (!opts_int(g->opts, "fold.zero"))
        return 0;
    if (!opts_given(g->opts, "fold.hybrid"))
        return atoms;
    for (int i = 0; i < g->mesh->natom; i++)
        if ((atoms >> i & 1) && most % (n * g->mesh->atom[i].size) == 0) {
            mask |= 1u << i;
            n *= g->mesh->atom[i].size;
        }
    return mask;
}

static BucketKey kind_of(Graph *g, const Table *held, const Param *param,
                         const UpdateRule *rule, const Shard *sh)
{
    BucketKey k = { .dt = param->dt, .rule = *rule };

    k.stage = held ? pipe_owner(held, param->path) : 0;

    for (int i = 0; i < g->mesh->natom; i++)
        if (sh[i].k == S)
            k.cut |= 1u << i;
        else if (!(g->mesh->mask[Mpp] >> i & 1))
            k.flat |= 1u << i;
    k.flat = is_elementwise_rule(rule) ? within(g, k.flat) : 0;
    return k;
}

static int same_kind(const BucketKey *x, const BucketKey *y)
{
    return x->cut == y->cut && x->flat == y->flat && x->dt == y->dt &&
           same_rule(&x->rule, &y->rule) && x->stage == y->stage &&
           x->unit == y->unit;
}

static Axis *axis_over(Graph *g, const char *what, uint32_t atoms)
{
    if (!atoms)
        return NULL;
    Axis *a = g_axis(g, bucket_axis(g->arena, what, atoms));
    a->atoms = atoms;
    return a;
}

static Axis **join(Arena *a, Axis **v, Axis *axis)
{
    vec_push(a, v, axis);
    return v;
}

/* Appends p to the bucket. */
static void add_member(Graph *g, Bucket *bucket, Param *p, const Shard *sh)
{
    for (int d = 0; d < p->nd; d++)
        bucket->order = join(g->arena, bucket->order, p->dim[d].a);
    for (int i = 0; i < g->mesh->natom; i++)
        if (sh[i].k == S)
            bucket->cut = join(g->arena, bucket->cut, sh[i].a);
    vec_push(g->arena, bucket->param, p);
    bucket->norder = (int)vec_len(bucket->order);
    bucket->ncut = (int)vec_len(bucket->cut);
}

static int64_t padded(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- by parameter -------------------------------------------------------- */

typedef struct OpenBucket {
    BucketKey kind;
    Bucket *b;
} OpenBucket;

typedef struct BucketBuilder {
    Graph *g;
    const Table *held; /* null: there is one stage */
    const Table *unit; /* null: not ZeRO-2 or 3 */
    Bucket **all;      /* vec */
    OpenBucket *open;  /* vec: the last bucket of each kind */
    int count;         /* buckets with members of several ranks */
} BucketBuilder;

static int keeps_shards(const Graph *g)
{
    return opts_int(g->opts, "fold.zero") == 3;
}

static Bucket *add_bucket(BucketBuilder *builder, const BucketKey *key,
                          const Param *param)
{
    Graph *g = builder->g;
    Bucket *bucket = alloc(g->arena, sizeof *bucket);

    bucket->name = param->path;
    bucket->rule = key->rule;
    bucket->ranks = mesh_extent(g->mesh, key->cut);
    if (key->flat) {
        bucket->name = intern(strf(g->arena, "zero.%d", builder->count++));
        bucket->own = axis_over(g, "own", key->cut);
        bucket->flat = axis_over(g, "flat", key->flat);
        bucket->unit = key->unit;
        bucket->shards = bucket->unit && keeps_shards(g);
    }
    vec_push(g->arena, builder->all, bucket);
    return bucket;
}

static OpenBucket *open_for(BucketBuilder *builder, const BucketKey *key)
{
    for (size_t i = 0; i < vec_len(builder->open); i++)
        if (same_kind(&builder->open[i].kind, key))
            return &builder->open[i];
    vec_push(builder->g->arena, builder->open, ((OpenBucket){ *key, NULL }));
    return &builder->open[vec_len(builder->open) - 1];
}

static Bucket *bucket_for(BucketBuilder *builder, Param *p,
                          const UpdateRule *rule)
{
    const Shard *sh = param_type(builder->g, p);
    BucketKey k = kind_of(builder->g, builder->held, p, rule, sh);
    k.unit = builder->unit && k.flat ? table_get(builder->unit, KEYP(p->path))
                                     : NULL;
    k.unit = k.unit == builder->g->top ? NULL : k.unit;
    if (is_frozen_rule(rule) && !(k.unit && keeps_shards(builder->g)))
        k.flat = 0;
    OpenBucket *o = open_for(builder, &k);
    int64_t n = padded(param_elems(p) / mesh_extent(builder->g->mesh, k.cut),
                       PACKALIGN);

    if (!k.flat || !o->b || vec_len(o->b->param) == MAXIN ||
        o->b->size + n > MOST)
        o->b = add_bucket(builder, &k, p);
    if (k.flat) {
        p->bucket = o->b->name;
        p->at = o->b->size;
    }
    o->b->size += n;
    add_member(builder->g, o->b, p, sh);
    return o->b;
}

/* Path -> the unit of all readers of the parameter; the top scope if there are
 * several, or readers outside bodies. A parameter of no unit has a scope of its
 * own, named by its path. */
static Table *units_reading(Graph *g)
{
    Table *t = table_new(g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        const Scope *unit = n->scope->unit;
        for (int k = 0; k < n->nin; k++) {
            if (n->in[k]->op != Oparam)
                continue;
            const char *path = n->in[k]->at.param.path;
            const Scope **at = (const Scope **)table_at(t, KEYP(intern(path)));
            const Scope *now = unit ? unit : g_scope(g, path);
            if (n->reg != REGbody || (*at && *at != now))
                now = g->top;
            *at = now;
        }
    }
    return t;
}

Bucket **buckets_of(Graph *g, Node **param, Node **grad, const UpdateRule *rule,
                    size_t n, Bucket **by)
{
    BucketBuilder m = { .g = g };
    Mesh *was = g->mesh;

    g->mesh = fold_mesh(g);
    fold_experts(g);
    m.held = g->stages ? pipe_alone(g) : NULL;
    m.unit = opts_int(g->opts, "fold.zero") > 1 ? units_reading(g) : NULL;
    for (size_t i = 0; i < n; i++) {
        by[i] = bucket_for(&m, g_param(g, param[i]->at.param.path), &rule[i]);
        vec_push(g->arena, by[i]->node, param[i]);
        vec_push(g->arena, by[i]->grad, grad[i]);
    }
    for (size_t i = 0; i < vec_len(m.all); i++)
        if (m.all[i]->flat)
            m.all[i]->size =
                padded(m.all[i]->size,
                       PACKRUN * mesh_extent(g->mesh, m.all[i]->flat->atoms));
    g->mesh = was;
    return m.all;
}

/* ---- by name ------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const Param *x = *(Param *const *)a, *y = *(Param *const *)b;

    return (x->at > y->at) - (x->at < y->at);
}

Bucket *bucket_named(Graph *g, const char *name)
{
    Bucket *b = alloc(g->arena, sizeof *b);
    Param **v = NULL;
    Mesh *was = g->mesh;

    b->name = name;
    for (size_t i = 0; i < vec_len(g->param); i++) {
        Param *p = g->param[i];
        if (p->bucket != name)
            continue;
        if (is_member(p, name)) {
            vec_push(g->arena, v, p);
            continue;
        }
        b->own = p->nd > 1 ? p->dim[0].a : NULL;
        b->ranks = p->nd > 1 ? p->dim[0].n : 1;
        b->flat = p->dim[p->nd - 1].a;
        b->size = p->dim[p->nd - 1].n;
    }
    qsort(v, vec_len(v), sizeof *v, by_place);
    g->mesh = was ? was : fold_mesh(g);
    for (size_t i = 0; i < vec_len(v); i++)
        add_member(g, b, v[i], param_type(g, v[i]));
    g->mesh = was;
    return b;
}

const Param *bucket_member(Graph *g, const Node *unpack)
{
    const Param *bucket = g_param(g, unpack->in[0]->at.param.path);

    for (size_t i = 0; i < vec_len(g->param); i++)
        if (is_member(g->param[i], bucket->path) &&
            g->param[i]->at == unpack->at.unpack.at)
            return g->param[i];
    return NULL;
}

/* ---- in and out ---------------------------------------------------------- */

int bucket_dims(const Bucket *bucket, Dim *dim)
{
    int nd = 0;

    if (bucket->own)
        dim[nd++] = (Dim){ bucket->own, bucket->ranks };
    dim[nd++] = (Dim){ bucket->flat, bucket->size };
    return nd;
}

Node *bucket_pack(Graph *g, const Bucket *bucket, Node *const *in)
{
    size_t n = vec_len(bucket->param);

    if (!bucket->flat)
        return in[0];
    Node *x = g_node(g, Opack, bucket->param[0]->loc, (int)n, in);
    x->at.pack = (struct pack_attrs){ { bucket->norder, bucket->order },
                                      { bucket->ncut, bucket->cut } };
    x->nd = bucket_dims(bucket, x->dim);
    return infer(g, x);
}

Node *bucket_unpack(Graph *g, const Bucket *bucket, size_t k, Node *x)
{
    const Param *p = bucket->param[k];
    int cuts = bucket->ncut / (int)vec_len(bucket->param);

    if (!bucket->flat)
        return x;
    Node *n = g_node(g, Ounpack, p->loc, 1, &x);
    struct unpack_attrs *t = &n->at.unpack;
    t->at = p->at;
    for (int d = 0; d < p->nd; d++)
        t->order.v = join(g->arena, t->order.v, p->dim[d].a);
    t->order.n = p->nd;
    t->cut.v = cuts ? bucket->cut + (size_t)k * (size_t)cuts : NULL;
    t->cut.n = cuts;
    n->nd = p->nd;
    memcpy(n->dim, p->dim, sizeof n->dim);
    return infer(g, n);
}
