/* operands.c: checks an instruction's fields against the shapes of its operands
 * and results.
 *
 * products are loops, each with a stride in every operand. The instruction's
 *                loops must be the axes of its operands, so that none is
 *                transposed or exchanged
 * collectives an axis becomes whole, or is sharded, over the group's atoms;
 *                blocks are the axes before and after it
 *
 * rank_offsets.c checks kernels.
 *
 * Each function returns null or the violation. */
#include "verify.h"

/* ---- loops --------------------------------------------------------------- */

enum { OPERANDS = 3, MAXLOOP = OPERANDS * MAXD };

typedef struct OperandLoop {
    int64_t n, stride[OPERANDS];
} OperandLoop;
typedef struct Loops {
    int n;
    OperandLoop at[MAXLOOP];
} Loops;

static void add_loop(Loops *loops, int64_t n, int64_t a, int64_t b, int64_t c)
{
    if (n != 1 && loops->n < MAXLOOP)
        loops->at[loops->n++] = (OperandLoop){ n, { a, b, c } };
}

/* Merges two loops that together visit every operand as one loop. */
static int merged(OperandLoop *x, const OperandLoop *y)
{
    for (int i = 0; i < OPERANDS; i++)
        if (x->stride[i] != sat_mul(y->n, y->stride[i]))
            return 0;
    *x = (OperandLoop){ sat_mul(x->n, y->n), { 0 } };
    memcpy(x->stride, y->stride, sizeof x->stride);
    return 1;
}

static int by_stride(const void *a, const void *b)
{
    const OperandLoop *x = a, *y = b;
    for (int i = 0; i < OPERANDS; i++)
        if (x->stride[i] != y->stride[i])
            return x->stride[i] < y->stride[i] ? -1 : 1;
    return (x->n > y->n) - (x->n < y->n);
}

static void simplify(Loops *loops)
{
    for (int i = 0; i < loops->n; i++)
        for (int k = 0; k < loops->n; k++)
            if (i != k && merged(&loops->at[i], &loops->at[k])) {
                loops->at[k] = loops->at[--loops->n];
                i = -1;
                break;
            }
    qsort(loops->at, (size_t)loops->n, sizeof *loops->at, by_stride);
}

static int same_loops(Loops *x, Loops *y)
{
    simplify(x);
    simplify(y);
    return x->n == y->n && !memcmp(x->at, y->at, (size_t)x->n * sizeof *x->at);
}

/* ---- products ------------------------------------------------------------ */

static void gemm_loops(const GemmArgs *args, Loops *loops)
{
    add_loop(loops, args->m, args->ta ? 1 : args->lda, 0, args->ldc);
    add_loop(loops, args->n, 0, args->tb ? args->ldb : 1, 1);
    add_loop(loops, args->k, args->ta ? args->lda : 1, args->tb ? 1 : args->ldb,
             0);
    for (int i = 0; i < args->batch.n; i++) {
        const BatchLoop *loop = &args->batch.at[i];
        add_loop(loops, loop->n, loop->a, loop->b, loop->c);
    }
}

/* Loops of grouped products: rows weights rows, or rows rows weights. */
static void grouped_loops(const Instr *instr, Loops *loops)
{
    const GmmArgs *args = &instr->gmm;
    int64_t wide = args->tw ? 1 : args->ldw, deep = args->tw ? args->ldw : 1;
    if (instr->kind == Igmm) {
        add_loop(loops, args->cap, args->k, 0, args->n);
        add_loop(loops, args->k, 1, wide, 0);
        add_loop(loops, args->n, 0, deep, 1);
        add_loop(loops, args->experts, 0, args->stride, 0);
    } else {
        add_loop(loops, args->cap, args->k, args->n, 0);
        add_loop(loops, args->k, 1, 0, wide);
        add_loop(loops, args->n, 0, 1, deep);
        add_loop(loops, args->experts, 0, 0, args->stride);
    }
}

static int64_t stride_of(const ValueShape *shape, int dim)
{
    int64_t n = 1;
    for (int d = shape->nd - 1; d > dim; d--)
        n = sat_mul(n, shape->dim[d].n);
    return n;
}

/* Finds the loops of axes. Returns null, or an axis with different sizes. */
static const char *axis_loops(const ValueShape *const op[OPERANDS],
                              Loops *loops)
{
    for (int i = 0; i < OPERANDS; i++)
        for (int d = 0; d < op[i]->nd; d++) {
            const ValueDim *dim = &op[i]->dim[d];
            int64_t stride[OPERANDS] = { 0 };
            int seen = 0;
            for (int k = 0; k < OPERANDS; k++) {
                int at = shape_dim(op[k], dim->axis);
                if (at < 0)
                    continue;
                if (op[k]->dim[at].n != dim->n)
                    return dim->axis;
                stride[k] = stride_of(op[k], at);
                seen |= k < i;
            }
            if (!seen)
                add_loop(loops, dim->n, stride[0], stride[1], stride[2]);
        }
    return NULL;
}

static const char *product_wrong(const PlanCheck *check, const Instr *instr,
                                 const ValueShape *const op[OPERANDS])
{
    Loops have = { 0 }, want = { 0 };
    const char *axis = axis_loops(op, &want);
    if (instr->kind == Igemm)
        gemm_loops(&instr->gemm, &have);
    else
        grouped_loops(instr, &have);
    if ((!axis && same_loops(&have, &want)) || !law(Lproduct_loops))
        return NULL;
    return axis ? strf(check->arena, "has operands of other sizes along '%s'",
                       axis)
                : "has sizes and strides that are not those of its operands";
}

/* ---- collectives --------------------------------------------------------- */

typedef struct IndexedBlocks { /* blocks of a gather or scatter */
    int64_t outer, inner, zig, low;
} IndexedBlocks;

static int64_t product(const ValueShape *shape, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n = sat_mul(n, shape->dim[d].n);
    return n;
}

/* Returns the atoms of the group that shard an axis in two pieces a rank. */
static uint32_t piecing(const Mesh *m, const ValueDim *dim, uint32_t atoms)
{
    return dim->zigzag ? dim->cut & m->mask[Mcp] & atoms : 0;
}

/* Returns 2 if the axis stays in pieces, each a separate axis. */
static int64_t halves(const Mesh *m, const ValueDim *dim, uint32_t atoms)
{
    return dim->zigzag && !piecing(m, dim, atoms) ? 2 : 1;
}

static int64_t lower(const Mesh *m, uint32_t z, uint32_t atoms)
{
    return z ? mesh_extent(m, atoms & ((z & -z) - 1)) : 0;
}

/* Is `cut` the dim `whole` sharded further over these atoms, in equal parts? */
static int cuts(const Mesh *m, const ValueDim *whole, const ValueDim *cut,
                uint32_t atoms)
{
    return whole->cut == (cut->cut & ~atoms) && (cut->cut & atoms) == atoms &&
           whole->n == sat_mul(cut->n, mesh_extent(m, atoms)) &&
           (whole->zigzag == cut->zigzag || piecing(m, cut, atoms)) &&
           !strcmp(whole->axis, cut->axis);
}

static int same_axis(const ValueDim *x, const ValueDim *y)
{
    return !strcmp(x->axis, y->axis) && x->n == y->n && x->cut == y->cut &&
           x->zigzag == y->zigzag;
}

/* Finds the axes along which x and y differ, at most two, in order. Returns
 * their number; -1: other differences. */
static int differing(const ValueShape *x, const ValueShape *y, int at[2])
{
    int n = 0;
    if (x->nd != y->nd || x->dt != y->dt)
        return -1;
    for (int d = 0; d < x->nd; d++)
        if (!same_axis(&x->dim[d], &y->dim[d])) {
            if (n == 2)
                return -1;
            at[n++] = d;
        }
    return n;
}

/* Checks an all-gather or reduce-scatter along one axis of `whole` and
 * `cut`. */
static int along(const Mesh *m, const ValueShape *whole, const ValueShape *cut,
                 uint32_t atoms, IndexedBlocks *blocks)
{
    int at[2];
    if (differing(whole, cut, at) != 1 ||
        !cuts(m, &whole->dim[at[0]], &cut->dim[at[0]], atoms))
        return 0;
    const ValueDim *d = &cut->dim[at[0]];
    uint32_t z = piecing(m, d, atoms);
    int64_t h = halves(m, d, atoms);
    blocks->outer = sat_mul(product(cut, 0, at[0]), h);
    blocks->inner = product(cut, at[0], cut->nd) / h;
    blocks->zig = z ? mesh_extent(m, z) : 0;
    blocks->low = lower(m, z, atoms);
    return 1;
}

static int exchanged(const Mesh *m, const ValueShape *x, const ValueShape *y,
                     uint32_t atoms, AlltoallArgs *want)
{
    int at[2];
    if (differing(x, y, at) != 2)
        return 0;
    int swap = !cuts(m, &y->dim[at[0]], &x->dim[at[0]], atoms);
    int a = at[swap], b = at[!swap];
    const ValueDim *xa = &x->dim[a], *yb = &y->dim[b];
    if (!cuts(m, &y->dim[a], xa, atoms) || !cuts(m, &x->dim[b], yb, atoms))
        return 0;
    int64_t ha = halves(m, xa, atoms), hb = halves(m, yb, atoms);
    uint32_t za = piecing(m, xa, atoms), zb = piecing(m, yb, atoms);
    uint32_t z = za ? za : zb;
    want->outer = sat_mul(product(y, 0, at[0]), swap ? hb : ha);
    want->a = y->dim[a].n / ha;
    want->mid = sat_mul(product(y, at[0] + 1, at[1]), swap ? ha : hb);
    want->b = x->dim[b].n / hb;
    want->inner = product(y, at[1] + 1, y->nd);
    want->swap = swap;
    want->zig = z ? (za ? 1 : -1) * mesh_extent(m, z) : 0;
    want->low = lower(m, z, atoms);
    return 1;
}

static int has_blocks(const Instr *instr, const IndexedBlocks *blocks)
{
    const AllgatherArgs *args = &instr->allgather;
    const ReducescatterArgs *reducescatter_args = &instr->reducescatter;
    if (instr->kind == Iallgather)
        return args->outer == blocks->outer && args->chunk == blocks->inner &&
               args->zig == blocks->zig && args->low == blocks->low;
    return reducescatter_args->outer == blocks->outer &&
           reducescatter_args->chunk == blocks->inner &&
           reducescatter_args->zig == blocks->zig &&
           reducescatter_args->low == blocks->low;
}

/* Do exactly these atoms shard an axis? */
static int is_ring(const ValueShape *shape, uint32_t atoms)
{
    for (int d = 0; d < shape->nd; d++)
        if (shape->dim[d].cut == atoms)
            return 1;
    return 0;
}

/* Checks an exchange of rows: all of a rank's tokens on one side, a block for
 * each rank on the other; both sharded over the group. */
static int fits_rows(const Mesh *m, const Instr *instr, const ValueShape *x,
                     const ValueShape *y)
{
    const RowsArgs *args = &instr->rows;
    const ValueShape *tokens = instr->kind == Isendrows ? x : y;
    const ValueShape *blocks = instr->kind == Isendrows ? y : x;
    int64_t rows = sat_mul(args->pair, mesh_extent(m, instr->atoms));
    return tokens->elems == sat_mul(args->tokens, args->width) &&
           blocks->elems == sat_mul(rows, args->width) &&
           tokens->dt == args->dt && blocks->dt == args->dt &&
           !(instr->atoms & ~shape_cut(tokens)) &&
           !(instr->atoms & ~shape_cut(blocks));
}

static const char *collective_wrong(const PlanCheck *check, const Instr *instr,
                                    const ValueShape *x, const ValueShape *y)
{
    const Mesh *m = check->p->mesh;
    uint32_t atoms = instr->atoms & ~m->mask[Mpp];
    Instr want = *instr;
    IndexedBlocks b = { 0 };
    int gathers = instr->kind == Iallgather;
    switch (instr->kind) {
    case Iallgather:
    case Ireducescatter:
        if (!along(m, gathers ? y : x, gathers ? x : y, atoms, &b))
            return law(Lgather_blocks)
                       ? "does not make an axis whole, or cut, over its group"
                       : NULL;
        return !has_blocks(instr, &b) && law(Lgather_blocks)
                   ? "has other blocks than its operands"
                   : NULL;
    case Ialltoall:
        if (!exchanged(m, x, y, atoms, &want.alltoall))
            return law(Lexchange_blocks)
                       ? "does not exchange two axes over its group"
                       : NULL;
        return !same_args(instr, &want) && law(Lexchange_blocks)
                   ? "has other blocks than its operands"
                   : NULL;
    case Isendrows:
    case Ireturnrows:
        return !fits_rows(m, instr, x, y) && law(Lrows_blocks)
                   ? "has other tokens and blocks than its operands"
                   : NULL;
    case Ippermute:
        if (instr->ppermute.by != 1 && law(Lppermute_next))
            return "turns to another rank than the next";
        if (!is_ring(x, atoms) && law(Lppermute_ring))
            return "turns over other ranks than cut an axis";
        /* fall through */
    default:
        return !shapes_equal(x, y) && law(Lcomm_shape)
                   ? "changes how its operand lies"
                   : NULL;
    }
}

/* ---- interface ----------------------------------------------------------- */

const char *operands_wrong(const PlanCheck *check, const Instr *instr,
                           const ValueShape *const *in,
                           const ValueShape *const *out)
{
    const ValueShape *op[OPERANDS];
    switch (instr->kind) {
    case Ikernel: return places_wrong(check, instr, in, out);
    case Igemm:
    case Igmm:
    case Igmm_wgrad:
        for (int i = 0; i < OPERANDS; i++)
            op[i] = out[i] ? out[i] : in[i];
        return product_wrong(check, instr, op);
    case Iallgather:
    case Ireducescatter:
    case Iallreduce:
    case Ialltoall:
    case Ippermute:
    case Isendrows:
    case Ireturnrows: return collective_wrong(check, instr, in[0], out[1]);
    default: return NULL;
    }
}
