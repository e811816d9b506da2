/* rank_offsets.c: checks integers of kernels that depend on the rank: the start
 * of the rank's part, in units of an axis or in elements:
 *
 *     start    start of a sharded axis of an operand, or of its part in
 *              another's
 *     number   number of the rank, over atoms that shard an axis or share a sum
 *     share    share of an axis that all ranks have, if they split its sum
 *
 * They follow from the shapes of the instruction's operands. The plan states
 * how, as a number (RankAffine.place) that encodes operand, axis, piece and
 * unit; the reader must find the same. A fused kernel may need offsets in
 * values that are never stored: these are FREE, and nothing is proved about
 * them, nor about constants, which belong to the kernel. */
#include "verify.h"

typedef enum OffsetSource { START, NUMBER, SHARE } OffsetSource;

typedef struct Operands {
    const Mesh *m;
    const ValueShape **x; /* vec: operands and results */
    uint32_t terms;       /* atoms of its partial sums */
} Operands;

/* The rest of an integer that is not explained yet, and the explanation so
 * far. */
typedef struct OffsetSearch {
    const Operands *o;
    RankAffine left;
    uint32_t how;
} OffsetSearch;

static uint32_t varies(const Mesh *m, const RankAffine *affine)
{
    uint32_t v = 0;
    for (int i = 0; i < m->natom; i++)
        v |= affine->k[i] ? 1u << i : 0;
    return v;
}

static void explain(OffsetSearch *search, OffsetSource way, int operand,
                    int dim, uint32_t atoms, int64_t what)
{
    enum { PRIME = 16777619 };
    uint32_t v[] = { (uint32_t)way, (uint32_t)operand, (uint32_t)dim, atoms,
                     (uint32_t)what };
    for (int i = 0; i < countof(v); i++)
        search->how = (search->how ^ (v[i] + 1)) * PRIME;
}

/* ---- units --------------------------------------------------------------- */

/* Returns the stride of an axis in elements, on a rank or over all ranks. */
static int64_t stride_of(const Mesh *m, const ValueShape *shape, int dim,
                         int all)
{
    int64_t n = 1;
    for (int d = shape->nd - 1; d > dim; d--) {
        n = sat_mul(n, shape->dim[d].n);
        n = all ? sat_mul(n, mesh_extent(m, shape->dim[d].cut)) : n;
    }
    return n;
}

/* Is `by` a unit of an axis: its own, that of an axis merged with the ones
 * after it, or elements? */
static int is_unit(const Mesh *m, const ValueShape *shape, int dim, int64_t by)
{
    by = by < 0 ? -by : by;
    for (int all = 0; all < 2 && by; all++)
        for (int d = dim; d < shape->nd; d++)
            if (sat_mul(by, stride_of(m, shape, d, all)) ==
                stride_of(m, shape, dim, all))
                return 1;
    return 0;
}

/* ---- explanations -------------------------------------------------------- */

/* Subtracts `by` times v over these atoms, if exactly that is left. */
static int take(OffsetSearch *search, const int64_t *v, uint32_t atoms,
                int64_t by)
{
    const Mesh *m = search->o->m;
    for (int i = 0; i < m->natom; i++)
        if (atoms >> i & 1 && search->left.k[i] != sat_mul(by, v[i]))
            return 0;
    for (int i = 0; i < m->natom; i++)
        search->left.k[i] = atoms >> i & 1 ? 0 : search->left.k[i];
    return 1;
}

/* Returns the unit by which the rest over atoms equals v; 0: none. */
static int64_t unit_of(const OffsetSearch *search, const int64_t *v,
                       uint32_t atoms)
{
    for (int i = 0; i < search->o->m->natom; i++)
        if (atoms >> i & 1)
            return v[i] ? search->left.k[i] / v[i] : 0;
    return 0;
}

/* Explains the rest as starts of the parts of len that these atoms make of an
 * axis. */
static int take_start(OffsetSearch *search, OffsetSource way, int operand,
                      int dim, uint32_t atoms, int64_t len)
{
    const Mesh *m = search->o->m;
    const ValueShape *x = search->o->x[operand];
    uint32_t zigzag = x->dim[dim].zigzag ? m->mask[Mcp] : 0;
    Piece p[MAXPIECE];
    int n = axis_pieces(m, len, atoms, zigzag, p);
    for (int i = 0; i < n; i++) {
        int64_t by = unit_of(search, p[i].start.k, atoms);
        if (is_unit(m, x, dim, by) && take(search, p[i].start.k, atoms, by)) {
            explain(search, way, operand, dim, atoms, 2 * by + i);
            return 1;
        }
    }
    return 0;
}

static int take_number(OffsetSearch *search, int operand, int dim,
                       uint32_t atoms)
{
    Piece p[MAXPIECE];
    axis_pieces(search->o->m, 1, atoms, 0, p);
    if (!atoms || !take(search, p[0].start.k, atoms, 1))
        return 0;
    explain(search, NUMBER, operand, dim, atoms, 0);
    return 1;
}

/* Explains the rest as the start of a part of an axis, in the whole axis or in
 * another operand's part. */
static int take_axis(OffsetSearch *search, int operand, int dim)
{
    const ValueDim *value_dim = &search->o->x[operand]->dim[dim];
    uint32_t zigzag = value_dim->zigzag ? search->o->m->mask[Mcp] : 0;
    if (!value_dim->cut)
        return 0;
    if (take_start(search, START, operand, dim, value_dim->cut, value_dim->n) ||
        take_number(search, operand, dim, value_dim->cut))
        return 1;
    for (size_t i = 0; i < vec_len(search->o->x); i++)
        for (int k = 0; k < search->o->x[i]->nd; k++) {
            uint32_t rest = value_dim->cut & ~search->o->x[i]->dim[k].cut;
            int64_t len =
                rest & zigzag ? value_dim->n : value_dim->n / (zigzag ? 2 : 1);
            if (rest && rest != value_dim->cut &&
                take_start(search, START, operand, dim, rest, len))
                return 1;
        }
    return 0;
}

static int take_share(OffsetSearch *search, int operand, int dim)
{
    const ValueDim *value_dim = &search->o->x[operand]->dim[dim];
    uint32_t atoms = varies(search->o->m, &search->left) & search->o->terms &
                     ~value_dim->cut;
    int64_t ranks = mesh_extent(search->o->m, atoms);
    return atoms && value_dim->n % ranks == 0 &&
           take_start(search, SHARE, operand, dim, atoms, value_dim->n / ranks);
}

/* ---- an integer ---------------------------------------------------------- */

enum { CONSTANT = 0, FREE = -1 };

static int64_t place_of(const Operands *operands, const RankAffine *affine)
{
    OffsetSearch f = { operands, *affine, 0 };
    int n = (int)vec_len(operands->x);
    if (!varies(operands->m, affine))
        return CONSTANT;
    for (int i = 0; i < n && varies(operands->m, &f.left); i++)
        for (int d = 0; d < operands->x[i]->nd; d++)
            take_axis(&f, i, d);
    for (int i = 0; i < n && varies(operands->m, &f.left); i++)
        for (int d = 0; d < operands->x[i]->nd; d++)
            take_share(&f, i, d);
    take_number(&f, n, 0, varies(operands->m, &f.left) & operands->terms);
    return varies(operands->m, &f.left) ? FREE : 1 + (int64_t)f.how;
}

static Operands operands_of(Arena *a, const Mesh *m, const Instr *instr,
                            const ValueShape *const *in,
                            const ValueShape *const *out)
{
    Operands o = { .m = m };
    for (int i = 0; i < instr->nbuf; i++) {
        if (in[i])
            vec_push(a, o.x, in[i]);
        if (out[i])
            vec_push(a, o.x, out[i]);
        for (int k = 0; k < 3; k++)
            o.terms |= instr->flow[i].part[k];
    }
    return o;
}

void mark_places(Arena *a, const Mesh *m, Instr *instr,
                 const ValueShape *const *in, const ValueShape *const *out)
{
    Operands o = operands_of(a, m, instr, in, out);
    for (int i = 0; i < instr->nword; i++)
        instr->word[i].at.place = place_of(&o, &instr->word[i].at);
}

const char *places_wrong(const PlanCheck *check, const Instr *instr,
                         const ValueShape *const *in,
                         const ValueShape *const *out)
{
    const Mesh *m = check->p->mesh;
    Operands o = { 0 };
    for (int i = 0; i < instr->nword; i++) {
        const RankAffine *affine = &instr->word[i].at;
        if (!varies(m, affine) && !affine->place)
            continue;
        if (!o.m)
            o = operands_of(check->arena, m, instr, in, out);
        if (place_of(&o, affine) != affine->place && law(Lint_place))
            return strf(check->arena,
                        "has an integer %d that is another place of its rank "
                        "in its operands than it says",
                        i);
    }
    return NULL;
}
