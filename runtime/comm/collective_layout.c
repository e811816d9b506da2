/* collective_layout.c: what two ranks of a collective exchange: runs of
 * elements, strides in both buffers, and where the block of each rank begins.
 * An all-gather has one block for all, the others have one for each. */
#include <string.h>

#include "comm.h"

int is_collective(InstrKind k)
{
    return instr_info(k)->cls == CLASScollective;
}

/* Place of half h of position r among all halves. */
static int64_t half_place(const Zigzag *z, int64_t r, int64_t h)
{
    int64_t p = r / z->low % z->zig, T = z->ranks / z->zig;
    int64_t t = r % z->low + r / (z->low * z->zig) * z->low;

    return (h ? 2 * z->zig - 1 - p : p) * T + t;
}

int64_t block_place(const BlockLayout *s, const BlockPlace *x, int64_t pos,
                    int64_t h)
{
    return x->placed ? half_place(&s->zigzag, pos, h) * x->half
                     : pos * x->stride + h * x->half;
}

/* What is sent lies as what is received did, and the other way round. */
static BlockLayout turned(BlockLayout s)
{
    BlockLayout t = s;

    memcpy(t.src, s.dst, sizeof t.src);
    memcpy(t.dst, s.src, sizeof t.dst);
    t.to = s.from;
    t.from = s.to;
    return t;
}

/* Of an all-gather; turned, that of a reduce-scatter: what is sent to each. */
static BlockLayout gather_blocks(int64_t outer, int64_t chunk, int64_t zig,
                                 int64_t low, int64_t g)
{
    int halves = zig ? 2 : 1;
    int64_t half = chunk / halves;

    return (BlockLayout){ { 1, 1, 1, outer },     { 0, 0, 0, chunk },
                          { 0, 0, 0, g * chunk }, half,
                          { 0, half, 0 },         { chunk, half, zig != 0 },
                          { zig, low, g },        halves };
}

/* [outer][A/G][mid][B][inner] -> [outer][A][mid][B/G][inner], or turned, A and
 * B swapped, [outer][B][mid][A/G][inner] -> [outer][B/G][mid][A][inner]. */
static BlockLayout exchange_blocks(const AlltoallArgs *x, int64_t g)
{
    int64_t mid = x->mid, inner = x->inner, zig = x->swap ? -x->zig : x->zig;
    int64_t A = x->swap ? x->b : x->a, B = x->swap ? x->a : x->b;
    int onA = zig > 0, onB = zig < 0;
    int64_t a = A / g, b = B / g, a2 = onA ? a / 2 : a, b2 = onB ? b / 2 : b;
    BlockLayout s = {
        { x->outer, a2, mid, 1 },
        { a * mid * B * inner, mid * B * inner, B * inner, 0 },
        { A * mid * b * inner, mid * b * inner, b * inner, 0 },
        b2 * inner,
        { b * inner, onB ? b2 * inner : a2 * mid * B * inner, onB },
        { a * mid * b * inner, onA ? a2 * mid * b * inner : b2 * inner, onA },
        { onB ? -zig : zig, x->low, g },
        onA || onB ? 2 : 1
    };

    return x->swap ? turned(s) : s;
}

BlockLayout blocks_of(const Instr *s, int64_t g)
{
    const AllgatherArgs *x = &s->allgather;
    const ReducescatterArgs *y = &s->reducescatter;

    if (s->kind == Ialltoall)
        return exchange_blocks(&s->alltoall, g);
    if (s->kind == Iallgather)
        return gather_blocks(x->outer, x->chunk, x->zig, x->low, g);
    return turned(gather_blocks(y->outer, y->chunk, y->zig, y->low, g));
}

static int64_t half_elems(const BlockLayout *s)
{
    return s->n[0] * s->n[1] * s->n[2] * s->n[3] * s->run;
}

int64_t block_elems(const BlockLayout *s)
{
    return s->halves * half_elems(s);
}

/* Copy one half; a dense side has its runs one after another. */
static void copy_half(const BlockLayout *s, int size, const uint8_t *src,
                      uint8_t *dst, DenseSide dense)
{
    int64_t at = 0;

    for (int64_t i = 0; i < s->n[0]; i++)
        for (int64_t j = 0; j < s->n[1]; j++)
            for (int64_t k = 0; k < s->n[2]; k++)
                for (int64_t l = 0; l < s->n[3]; l++, at += s->run) {
                    int64_t x = i * s->src[0] + j * s->src[1] + k * s->src[2] +
                                l * s->src[3];
                    int64_t y = i * s->dst[0] + j * s->dst[1] + k * s->dst[2] +
                                l * s->dst[3];
                    memcpy(dst + (dense == DSTDENSE ? at : y) * size,
                           src + (dense == SRCDENSE ? at : x) * size,
                           (size_t)(s->run * size));
                }
}

void copy_block(const BlockLayout *s, int size, const uint8_t *src, int64_t to,
                uint8_t *dst, int64_t from, DenseSide dense)
{
    for (int64_t h = 0; h < s->halves; h++) {
        int64_t x = dense == SRCDENSE ? h * half_elems(s)
                                      : block_place(s, &s->to, to, h);
        int64_t y = dense == DSTDENSE ? h * half_elems(s)
                                      : block_place(s, &s->from, from, h);
        copy_half(s, size, src + x * size, dst + y * size, dense);
    }
}

/* Runs of one half, joined where they follow each other on both sides. */
static void half_runs(const BlockLayout *s, int64_t out, int64_t in, PairFn *f,
                      void *ctx)
{
    int64_t from = 0, to = 0, n = 0;

    for (int64_t i = 0; i < s->n[0]; i++)
        for (int64_t j = 0; j < s->n[1]; j++)
            for (int64_t k = 0; k < s->n[2]; k++)
                for (int64_t l = 0; l < s->n[3]; l++) {
                    int64_t x = out + i * s->src[0] + j * s->src[1] +
                                k * s->src[2] + l * s->src[3];
                    int64_t y = in + i * s->dst[0] + j * s->dst[1] +
                                k * s->dst[2] + l * s->dst[3];
                    if (n && (x != from + n || y != to + n)) {
                        f(ctx, from, to, n);
                        n = 0;
                    }
                    from = n ? from : x;
                    to = n ? to : y;
                    n += s->run;
                }
    if (n)
        f(ctx, from, to, n);
}

void comm_runs(const Instr *x, int64_t size, int64_t peer, PairFn *f, void *ctx)
{
    BlockLayout s = blocks_of(x, size);

    for (int64_t h = 0; h < s.halves; h++)
        half_runs(&s, block_place(&s, &s.to, peer, h),
                  block_place(&s, &s.from, peer, h), f, ctx);
}

int is_dense(const BlockLayout *s, const int64_t *stride, const BlockPlace *x,
             int one)
{
    int64_t run = s->run;

    for (int i = 3; i >= 0; i--) {
        if (s->n[i] > 1 && stride[i] != run)
            return 0;
        run *= s->n[i];
    }
    return !x->placed && (one || x->stride == s->halves * run) &&
           (s->halves == 1 || x->half == run);
}
