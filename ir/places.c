/* places.c: integers of kernels that depend on the rank. They say where the
 * rank's part of something begins: of an axis of an operand, counted in places
 * of the axis or in elements; or of what the ranks that share a sum divide
 * among themselves. So they follow from the shapes of the step's operands, and
 * a plan in which one does not is refused. A kernel that does several things at
 * once may need places in values that are never stored: those integers are
 * marked free (lex.c: "8+8*a0?"), and nothing is proved of them. Nor is
 * anything of constants: those are the kernel's. */
#include <string.h>

#include "plan.h"

/* ---- an axis ------------------------------------------------------------- */

/* The elements between neighbours along an axis, on a rank or of all ranks. */
static int64_t step_of(const Mesh *m, const ValueShape *x, int dim, int all)
{
    int64_t n = 1;
    for (int d = x->nd - 1; d > dim; d--) {
        n = sat_mul(n, x->dim[d].n);
        n = all ? sat_mul(n, mesh_extent(m, x->dim[d].cut)) : n;
    }
    return n;
}

/* May `by` places of an axis be counted so: as places of it or of an axis that
 * it is merged into with what lies behind it, or as elements? */
static int counts(const Mesh *m, const ValueShape *x, int dim, int64_t by)
{
    by = by < 0 ? -by : by;
    for (int all = 0; all < 2; all++) {
        int64_t far = step_of(m, x, dim, all);
        for (int d = dim; d < x->nd; d++)
            if (by * step_of(m, x, d, all) == far)
                return 1;
    }
    return by == 1;
}

/* Takes out of v what says where, by these atoms, the rank's part of an axis
 * begins. */
static int take_start(const Mesh *m, const ValueShape *x, int dim,
                      uint32_t atoms, Aff *v)
{
    const ValueDim *d = &x->dim[dim];
    Piece p[MAXPIECE];
    uint32_t zigzag = d->zigzag ? m->mask[Mcp] : 0;
    int64_t len = d->zigzag && !(atoms & zigzag) ? d->n / 2 : d->n;
    int n = axis_pieces(m, len, atoms, zigzag, p), first = 0;
    while (first < m->natom && !(atoms >> first & 1))
        first++;
    for (int i = 0; i < n && first < m->natom; i++) {
        const int64_t *k = p[i].start.k;
        int64_t by = k[first] ? v->k[first] / k[first] : 0;
        int ok = by && counts(m, x, dim, by);
        for (int a = 0; a < m->natom && ok; a++)
            ok = !(atoms >> a & 1) || v->k[a] == by * k[a];
        for (int a = 0; a < m->natom && ok; a++)
            v->k[a] -= atoms >> a & 1 ? by * k[a] : 0;
        if (ok)
            return 1;
    }
    return 0;
}

/* ---- a step -------------------------------------------------------------- */

static uint32_t varies(const Mesh *m, const Aff *x)
{
    uint32_t v = 0;
    for (int i = 0; i < m->natom; i++)
        v |= x->k[i] ? 1u << i : 0;
    return v;
}

typedef struct Operands {
    const Mesh *m;
    const ValueShape **x; /* vec: what is read and made */
    uint32_t terms;       /* atoms of the sums that it makes terms of */
} Operands;

/* The rank's number over some of these atoms. */
static void take_number(const Mesh *m, uint32_t atoms, Aff *v)
{
    int64_t n = 1;
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1 && v->k[i]) {
            if (v->k[i] != n)
                return;
            n *= m->atom[i].size;
        }
    for (int i = 0; i < m->natom; i++)
        v->k[i] = atoms >> i & 1 ? 0 : v->k[i];
}

/* A part of an axis begins somewhere in all of it, or in the part that another
 * operand has of it. */
static void take_axis(const Operands *o, const ValueShape *x, int dim, Aff *v)
{
    const ValueDim *d = &x->dim[dim];
    if (!d->cut || take_start(o->m, x, dim, d->cut, v))
        return;
    take_number(o->m, d->cut, v);
    for (size_t i = 0; i < vec_len(o->x); i++)
        for (int k = 0; k < o->x[i]->nd; k++) {
            uint32_t rest = d->cut & ~o->x[i]->dim[k].cut;
            if (rest != d->cut && take_start(o->m, x, dim, rest, v))
                return;
        }
}

/* Where ranks share a sum, each takes a part of what all have of an axis, or of
 * a slice of it. */
static void take_share(const Operands *o, const ValueShape *x, int dim, Aff *v)
{
    const ValueDim *d = &x->dim[dim];
    uint32_t atoms = varies(o->m, v) & o->terms & ~d->cut;
    int64_t most = d->n / mesh_extent(o->m, atoms);
    ValueShape y = *x;
    for (int64_t n = most; n > 0 && atoms; n--) {
        y.dim[dim] = (ValueDim){ d->axis, n, atoms, 0 };
        if (take_start(o->m, &y, dim, atoms, v))
            return;
    }
}

/* Do operands explain all of what depends on the rank? */
static int explained(const Operands *o, Aff v)
{
    for (size_t i = 0; i < vec_len(o->x) && varies(o->m, &v); i++)
        for (int d = 0; d < o->x[i]->nd; d++)
            take_axis(o, o->x[i], d, &v);
    for (size_t i = 0; i < vec_len(o->x) && varies(o->m, &v); i++)
        for (int d = 0; d < o->x[i]->nd; d++)
            take_share(o, o->x[i], d, &v);
    take_number(o->m, o->terms, &v);
    return !varies(o->m, &v);
}

static Operands operands_of(Arena *a, const Mesh *m, const Step *s,
                            const ValueShape *const *in,
                            const ValueShape *const *out)
{
    Operands o = { .m = m };
    for (int i = 0; i < s->nbuf; i++) {
        if (in[i])
            vec_push(a, o.x, in[i]);
        if (out[i])
            vec_push(a, o.x, out[i]);
        for (int k = 0; k < 3; k++)
            o.terms |= s->flow[i].part[k];
    }
    return o;
}

void mark_places(Arena *a, const Mesh *m, Step *s, const ValueShape *const *in,
                 const ValueShape *const *out)
{
    Operands o = operands_of(a, m, s, in, out);
    for (int i = 0; i < s->nint; i++)
        s->iv[i].free = varies(m, &s->iv[i]) && !explained(&o, s->iv[i]);
}

const char *places_wrong(const PlanCheck *c, const Step *s,
                         const ValueShape *const *in,
                         const ValueShape *const *out)
{
    const Mesh *m = c->p->mesh;
    Operands o = { 0 };
    for (int i = 0; i < s->nint; i++) {
        const Aff *x = &s->iv[i];
        if (!varies(m, x) && !x->free)
            continue;
        if (!o.m)
            o = operands_of(c->arena, m, s, in, out);
        if (!x->free != (varies(m, x) && explained(&o, *x)))
            return strf(c->arena,
                        x->free ? "has an integer %d that is not free"
                                : "has an integer %d that is no place of its "
                                  "rank in an operand",
                        i);
    }
    return NULL;
}
