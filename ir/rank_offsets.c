/* rank_offsets.c: integers of kernels that depend on the rank. They say where
 * the rank's part of something begins, counted in places of an axis or in
 * elements:
 *
 *     start    of an axis that cuts an operand, or of the part of it that one
 *              operand has in what another has
 *     number   the rank's, over atoms that cut an axis or share a sum
 *     share    of an axis that all have, where ranks share a sum over it
 *
 * So they follow from the shapes of the instruction's operands. The plan says
 * how each does, as a number (RankAffine.place) that stands for operand, axis,
 * piece and unit: what is found when the plan is read must be that. A kernel
 * that does several things at once may need places in values that are never
 * stored: those are FREE, and nothing is proved of them. Nor is anything of
 * constants: those are the kernel's. */
#include <string.h>

#include "plan.h"

typedef enum OffsetSource { START, NUMBER, SHARE } OffsetSource;

typedef struct Operands {
    const Mesh *m;
    const ValueShape **x; /* vec: what is read and made */
    uint32_t terms;       /* atoms of the sums that it makes terms of */
} Operands;

/* What is left to explain, and how the rest was. */
typedef struct OffsetSearch {
    const Operands *o;
    RankAffine left;
    uint32_t how;
} OffsetSearch;

static uint32_t varies(const Mesh *m, const RankAffine *x)
{
    uint32_t v = 0;
    for (int i = 0; i < m->natom; i++)
        v |= x->k[i] ? 1u << i : 0;
    return v;
}

static void explain(OffsetSearch *f, OffsetSource way, int operand, int dim,
                    uint32_t atoms, int64_t what)
{
    enum { PRIME = 16777619 };
    uint32_t v[] = { (uint32_t)way, (uint32_t)operand, (uint32_t)dim, atoms,
                     (uint32_t)what };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        f->how = (f->how ^ (v[i] + 1)) * PRIME;
}

/* ---- units --------------------------------------------------------------- */

/* The elements between neighbours along an axis, on a rank or of all ranks. */
static int64_t stride_of(const Mesh *m, const ValueShape *x, int dim, int all)
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
static int is_unit(const Mesh *m, const ValueShape *x, int dim, int64_t by)
{
    by = by < 0 ? -by : by;
    for (int all = 0; all < 2 && by; all++)
        for (int d = dim; d < x->nd; d++)
            if (sat_mul(by, stride_of(m, x, d, all)) ==
                stride_of(m, x, dim, all))
                return 1;
    return 0;
}

/* ---- ways ---------------------------------------------------------------- */

/* Takes out `by` times v over these atoms, if that is what is left there. */
static int take(OffsetSearch *f, const int64_t *v, uint32_t atoms, int64_t by)
{
    const Mesh *m = f->o->m;
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1 && f->left.k[i] != sat_mul(by, v[i]))
            return 0;
    for (int i = 0; i < m->natom; i++)
        f->left.k[i] = atoms >> i & 1 ? 0 : f->left.k[i];
    return 1;
}

/* The unit in which what is left over atoms would be v; 0: none. */
static int64_t unit_of(const OffsetSearch *f, const int64_t *v, uint32_t atoms)
{
    for (int i = 0; i < f->o->m->natom; i++)
        if (atoms >> i & 1)
            return v[i] ? f->left.k[i] / v[i] : 0;
    return 0;
}

/* Where the parts of len that these atoms make of an axis begin. */
static int take_start(OffsetSearch *f, OffsetSource way, int operand, int dim,
                      uint32_t atoms, int64_t len)
{
    const Mesh *m = f->o->m;
    const ValueShape *x = f->o->x[operand];
    uint32_t zigzag = x->dim[dim].zigzag ? m->mask[Mcp] : 0;
    Piece p[MAXPIECE];
    int n = axis_pieces(m, len, atoms, zigzag, p);
    for (int i = 0; i < n; i++) {
        int64_t by = unit_of(f, p[i].start.k, atoms);
        if (is_unit(m, x, dim, by) && take(f, p[i].start.k, atoms, by)) {
            explain(f, way, operand, dim, atoms, 2 * by + i);
            return 1;
        }
    }
    return 0;
}

static int take_number(OffsetSearch *f, int operand, int dim, uint32_t atoms)
{
    Piece p[MAXPIECE];
    axis_pieces(f->o->m, 1, atoms, 0, p);
    if (!atoms || !take(f, p[0].start.k, atoms, 1))
        return 0;
    explain(f, NUMBER, operand, dim, atoms, 0);
    return 1;
}

/* A part of an axis begins somewhere in all of it, or in the part that another
 * operand has of some axis. */
static int take_axis(OffsetSearch *f, int operand, int dim)
{
    const ValueDim *d = &f->o->x[operand]->dim[dim];
    uint32_t zigzag = d->zigzag ? f->o->m->mask[Mcp] : 0;
    if (!d->cut)
        return 0;
    if (take_start(f, START, operand, dim, d->cut, d->n) ||
        take_number(f, operand, dim, d->cut))
        return 1;
    for (size_t i = 0; i < vec_len(f->o->x); i++)
        for (int k = 0; k < f->o->x[i]->nd; k++) {
            uint32_t rest = d->cut & ~f->o->x[i]->dim[k].cut;
            int64_t len = rest & zigzag ? d->n : d->n / (zigzag ? 2 : 1);
            if (rest && rest != d->cut &&
                take_start(f, START, operand, dim, rest, len))
                return 1;
        }
    return 0;
}

static int take_share(OffsetSearch *f, int operand, int dim)
{
    const ValueDim *d = &f->o->x[operand]->dim[dim];
    uint32_t atoms = varies(f->o->m, &f->left) & f->o->terms & ~d->cut;
    int64_t ranks = mesh_extent(f->o->m, atoms);
    return atoms && d->n % ranks == 0 &&
           take_start(f, SHARE, operand, dim, atoms, d->n / ranks);
}

/* ---- an integer ---------------------------------------------------------- */

enum { CONSTANT = 0, FREE = -1 };

static int64_t place_of(const Operands *o, const RankAffine *x)
{
    OffsetSearch f = { o, *x, 0 };
    int n = (int)vec_len(o->x);
    if (!varies(o->m, x))
        return CONSTANT;
    for (int i = 0; i < n && varies(o->m, &f.left); i++)
        for (int d = 0; d < o->x[i]->nd; d++)
            take_axis(&f, i, d);
    for (int i = 0; i < n && varies(o->m, &f.left); i++)
        for (int d = 0; d < o->x[i]->nd; d++)
            take_share(&f, i, d);
    take_number(&f, n, 0, varies(o->m, &f.left) & o->terms);
    return varies(o->m, &f.left) ? FREE : 1 + (int64_t)f.how;
}

static Operands operands_of(Arena *a, const Mesh *m, const Instr *s,
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

void mark_places(Arena *a, const Mesh *m, Instr *s, const ValueShape *const *in,
                 const ValueShape *const *out)
{
    Operands o = operands_of(a, m, s, in, out);
    for (int i = 0; i < s->nword; i++)
        s->word[i].at.place = place_of(&o, &s->word[i].at);
}

const char *places_wrong(const PlanCheck *c, const Instr *s,
                         const ValueShape *const *in,
                         const ValueShape *const *out)
{
    const Mesh *m = c->p->mesh;
    Operands o = { 0 };
    for (int i = 0; i < s->nword; i++) {
        const RankAffine *x = &s->word[i].at;
        if (!varies(m, x) && !x->place)
            continue;
        if (!o.m)
            o = operands_of(c->arena, m, s, in, out);
        if (place_of(&o, x) != x->place && law(Lint_place))
            return strf(c->arena,
                        "has an integer %d that is another place of its rank "
                        "in its operands than it says",
                        i);
    }
    return NULL;
}
