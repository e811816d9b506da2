/* attr.c: attributes of nodes by the rows of ops.def: generic operations on
 * them, and attributes that several ops have under one name. */
#include "graph.h"

const char *const randomkinds[NRANDOM] = { "normal", "uniform" };

_Static_assert(sizeof(Dtype) == sizeof(int) && sizeof(Reduce) == sizeof(int) &&
                   sizeof(RandomKind) == sizeof(int) &&
                   sizeof(uint32_t) == sizeof(int),
               "the types below that are not listed are as wide as int");

/* Code for both ops uses at.attn and at.pack. */
_Static_assert(sizeof(struct attn_attrs) == sizeof(struct attn_bwd_attrs) &&
                   offsetof(struct attn_attrs, query) ==
                       offsetof(struct attn_bwd_attrs, query) &&
                   offsetof(struct attn_attrs, ring) ==
                       offsetof(struct attn_bwd_attrs, ring) &&
                   offsetof(struct pack_attrs, cut) ==
                       offsetof(struct unpack_attrs, cut),
               "their attributes begin alike");
_Static_assert(offsetof(struct amax_attrs, blocks) ==
                       offsetof(struct quantize_attrs, blocks) &&
                   offsetof(struct amax_attrs, blocks) ==
                       offsetof(struct dequantize_attrs, blocks) &&
                   offsetof(struct amax_attrs, blocks) ==
                       offsetof(struct spread_attrs, blocks) &&
                   offsetof(struct amax_attrs, axes) ==
                       offsetof(struct quantize_attrs, axes),
               "where code serves all four, it says at.amax");

size_t attr_width(AttrType t)
{
    switch (t) {
    case ATint: return sizeof(int64_t);
    case ATreal: return sizeof(double);
    case ATstr: return sizeof(char *);
    case ATaxis: return sizeof(Axis *);
    case ATaxes: return sizeof(Axes);
    default: return sizeof(int);
    }
}

void *attr_at(const Node *n, const AttrInfo *info)
{
    return (char *)(uintptr_t)&n->at + info->at;
}

int attr_unsaid(const Node *n, const AttrInfo *info)
{
    static const char none[sizeof(Axes)];
    const void *v = attr_at(n, info);

    if (info->type == ATaxes)
        return ((const Axes *)v)->n == 0;
    return !memcmp(v, none, attr_width(info->type));
}

const AttrInfo *attr_named(Op op, const char *name)
{
    for (int i = 0; i < optab[op].nattr; i++)
        if (!strcmp(optab[op].attr[i].name, name))
            return &optab[op].attr[i];
    return NULL;
}

/* ---- all attributes of a node -------------------------------------------- */

static uint64_t hash_value(uint64_t h, AttrType type, const void *p)
{
    uint64_t bits = 0;

    if (type == ATstr)
        for (const char *s = *(const char *const *)p; s && *s; s++)
            h = h * 1099511628211ull ^ (unsigned char)*s;
    else if (type == ATaxes)
        for (int i = 0; i < ((const Axes *)p)->n; i++)
            h = mix64(h, KEYP(((const Axes *)p)->v[i]));
    else
        memcpy(&bits, p, attr_width(type));
    return mix64(h, bits);
}

uint64_t attrs_hash(uint64_t h, const Node *n)
{
    for (int i = 0; i < optab[n->op].nattr; i++) {
        const AttrInfo *info = &optab[n->op].attr[i];
        h = hash_value(h, info->type, attr_at(n, info));
    }
    return h;
}

static int same_str(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static int same_axes(const Axes *a, const Axes *b)
{
    return a->n == b->n &&
           (a->n == 0 || !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v));
}

static int same_value(AttrType type, const void *a, const void *b)
{
    switch (type) {
    case ATstr:
        return same_str(*(const char *const *)a, *(const char *const *)b);
    case ATaxes: return same_axes(a, b);
    default: return !memcmp(a, b, attr_width(type));
    }
}

int same_attrs(const Node *a, const Node *b)
{
    for (int i = 0; i < optab[a->op].nattr; i++) {
        const AttrInfo *info = &optab[a->op].attr[i];
        if (!same_value(info->type, attr_at(a, info), attr_at(b, info)))
            return 0;
    }
    return 1;
}

void attrs_like(Node *n, const Node *from)
{
    for (int i = 0; i < optab[n->op].nattr; i++) {
        const AttrInfo *info = &optab[n->op].attr[i];
        const AttrInfo *f = attr_named(from->op, info->name);
        if (f && f->type == info->type)
            memcpy(attr_at(n, info), attr_at(from, f), attr_width(info->type));
    }
}

/* ---- axes ---------------------------------------------------------------- */

Axes g_axes(Graph *g, Axis *const *v, int n)
{
    Axes x = { n, alloc(g->arena, ((size_t)n + 1) * sizeof *v) };

    memcpy(x.v, v, (size_t)n * sizeof *v);
    return x;
}

Axes attr_axes(const Node *n, const AttrInfo *info)
{
    if (info->type == ATaxes)
        return *(Axes *)attr_at(n, info);
    Axis **v = info->type == ATaxis ? attr_at(n, info) : NULL;
    return (Axes){ v && *v, v };
}

int attrs_name(const Node *n, const Axis *a)
{
    for (int i = 0; i < optab[n->op].nattr; i++) {
        Axes x = attr_axes(n, &optab[n->op].attr[i]);
        if (axis_at(x.v, x.n, a) >= 0)
            return 1;
    }
    return 0;
}

void attrs_replace(Graph *g, Node *n, const Axis *a, Axis *by)
{
    for (int i = 0; i < optab[n->op].nattr; i++) {
        const AttrInfo *info = &optab[n->op].attr[i];
        Axes x = attr_axes(n, info);
        int k = axis_at(x.v, x.n, a);
        if (k < 0)
            continue;
        if (info->type == ATaxes) /* other nodes may share the list */
            *(Axes *)attr_at(n, info) = x = g_axes(g, x.v, x.n);
        x.v[k] = by;
    }
}

Axis *whole_axis(const Node *n)
{
    for (int i = 0; i < optab[n->op].nattr; i++)
        if (optab[n->op].attr[i].use == ATwhole)
            return *(Axis **)attr_at(n, &optab[n->op].attr[i]);
    return NULL;
}

/* ---- shared attributes --------------------------------------------------- */

static void *shared(const Node *n, SharedAttr k, const char *name)
{
    const AttrInfo *info = optab[n->op].shared[k];

    if (!info)
        die("%s has no attribute '%s'", optab[n->op].name, name);
    return attr_at(n, info);
}

Axis *n_axis(const Node *n)
{
    return *(Axis **)shared(n, SHaxis, "axis");
}

Axes *n_axes(const Node *n)
{
    return shared(n, SHaxes, "axes");
}

int is_scaled_product(const Node *n)
{
    return ((n->op == Ogmm || n->op == Ogmm_wgrad) && n->nin > 3) ||
           (n->op == Odot && n->nin > 2);
}

uint32_t n_atoms(const Node *n)
{
    return *(uint32_t *)shared(n, SHatoms, "atoms");
}

int64_t n_chan(const Node *n)
{
    return *(int64_t *)shared(n, SHchan, "chan");
}

const char *n_name(const Node *n)
{
    return n->op == Ostepval ? stepvalues[n->at.stepval.name]
                             : *(const char **)shared(n, SHname, "name");
}

void set_name(Node *n, const char *name)
{
    *(const char **)shared(n, SHname, "name") = name;
}
