/* collective_layout.c: layout of the blocks that two ranks of a collective
 * exchange: runs of elements, strides in both buffers, start of each rank's
 * block. An all-gather sends one block to all ranks, the others one to each. */
#include "comm.h"

int is_collective(InstrKind k)
{
    return instr_info(k)->cls == CLASScollective;
}

/* Place of half h of position r among all halves. */
static int64_t half_place(const Zigzag *zigzag, int64_t r, int64_t h)
{
    int64_t p = r / zigzag->low % zigzag->zig, T = zigzag->ranks / zigzag->zig;
    int64_t t = r % zigzag->low + r / (zigzag->low * zigzag->zig) * zigzag->low;

    return (h ? 2 * zigzag->zig - 1 - p : p) * T + t;
}

int64_t block_place(const BlockLayout *layout, const BlockPlace *place,
                    int64_t pos, int64_t h)
{
    return place->placed ? half_place(&layout->zigzag, pos, h) * place->half
                         : pos * place->stride + h * place->half;
}

/* Returns the layout of the transposed collective: sender and receiver
 * swapped. */
static BlockLayout turned(BlockLayout s)
{
    BlockLayout t = s;

    memcpy(t.src, s.dst, sizeof t.src);
    memcpy(t.dst, s.src, sizeof t.dst);
    t.to = s.from;
    t.from = s.to;
    return t;
}

/* Returns the layout of an all-gather; turned, that of a reduce-scatter. */
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
static BlockLayout exchange_blocks(const AlltoallArgs *args, int64_t g)
{
    int64_t mid = args->mid, inner = args->inner,
            zig = args->swap ? -args->zig : args->zig;
    int64_t A = args->swap ? args->b : args->a,
            B = args->swap ? args->a : args->b;
    int onA = zig > 0, onB = zig < 0;
    int64_t a = A / g, b = B / g, a2 = onA ? a / 2 : a, b2 = onB ? b / 2 : b;
    BlockLayout s = {
        { args->outer, a2, mid, 1 },
        { a * mid * B * inner, mid * B * inner, B * inner, 0 },
        { A * mid * b * inner, mid * b * inner, b * inner, 0 },
        b2 * inner,
        { b * inner, onB ? b2 * inner : a2 * mid * B * inner, onB },
        { a * mid * b * inner, onA ? a2 * mid * b * inner : b2 * inner, onA },
        { onB ? -zig : zig, args->low, g },
        onA || onB ? 2 : 1
    };

    return args->swap ? turned(s) : s;
}

BlockLayout blocks_of(const Instr *instr, int64_t g)
{
    const AllgatherArgs *args = &instr->allgather;
    const ReducescatterArgs *reducescatter_args = &instr->reducescatter;

    if (instr->kind == Ialltoall)
        return exchange_blocks(&instr->alltoall, g);
    if (instr->kind == Iallgather)
        return gather_blocks(args->outer, args->chunk, args->zig, args->low, g);
    return turned(
        gather_blocks(reducescatter_args->outer, reducescatter_args->chunk,
                      reducescatter_args->zig, reducescatter_args->low, g));
}

static int64_t half_elems(const BlockLayout *layout)
{
    return layout->n[0] * layout->n[1] * layout->n[2] * layout->n[3] *
           layout->run;
}

int64_t block_elems(const BlockLayout *layout)
{
    return layout->halves * half_elems(layout);
}

/* Copies one half; the runs of a dense side are contiguous. */
static void copy_half(const BlockLayout *layout, int size, const uint8_t *src,
                      uint8_t *dst, DenseSide dense)
{
    int64_t at = 0;

    for (int64_t i = 0; i < layout->n[0]; i++)
        for (int64_t j = 0; j < layout->n[1]; j++)
            for (int64_t k = 0; k < layout->n[2]; k++)
                for (int64_t l = 0; l < layout->n[3]; l++, at += layout->run) {
                    int64_t x = i * layout->src[0] + j * layout->src[1] +
                                k * layout->src[2] + l * layout->src[3];
                    int64_t y = i * layout->dst[0] + j * layout->dst[1] +
                                k * layout->dst[2] + l * layout->dst[3];
                    memcpy(dst + (dense == DSTDENSE ? at : y) * size,
                           src + (dense == SRCDENSE ? at : x) * size,
                           (size_t)(layout->run * size));
                }
}

void copy_block(const BlockLayout *layout, int size, const uint8_t *src,
                int64_t to, uint8_t *dst, int64_t from, DenseSide dense)
{
    for (int64_t h = 0; h < layout->halves; h++) {
        int64_t x = dense == SRCDENSE ? h * half_elems(layout)
                                      : block_place(layout, &layout->to, to, h);
        int64_t y = dense == DSTDENSE
                        ? h * half_elems(layout)
                        : block_place(layout, &layout->from, from, h);
        copy_half(layout, size, src + x * size, dst + y * size, dense);
    }
}

/* Calls the function for each run of one half; runs that are contiguous on both
 * sides are joined. */
static void half_runs(const BlockLayout *layout, int64_t out, int64_t in,
                      PairFn *fn, void *ctx)
{
    int64_t from = 0, to = 0, n = 0;

    for (int64_t i = 0; i < layout->n[0]; i++)
        for (int64_t j = 0; j < layout->n[1]; j++)
            for (int64_t k = 0; k < layout->n[2]; k++)
                for (int64_t l = 0; l < layout->n[3]; l++) {
                    int64_t x = out + i * layout->src[0] + j * layout->src[1] +
                                k * layout->src[2] + l * layout->src[3];
                    int64_t y = in + i * layout->dst[0] + j * layout->dst[1] +
                                k * layout->dst[2] + l * layout->dst[3];
                    if (n && (x != from + n || y != to + n)) {
                        fn(ctx, from, to, n);
                        n = 0;
                    }
                    from = n ? from : x;
                    to = n ? to : y;
                    n += layout->run;
                }
    if (n)
        fn(ctx, from, to, n);
}

void comm_runs(const Instr *instr, int64_t size, int64_t to, int64_t from,
               PairFn *fn, void *ctx)
{
    BlockLayout s = blocks_of(instr, size);

    for (int64_t h = 0; h < s.halves; h++)
        half_runs(&s, block_place(&s, &s.to, to, h),
                  block_place(&s, &s.from, from, h), fn, ctx);
}

int is_dense(const BlockLayout *layout, const int64_t *stride,
             const BlockPlace *place, int one)
{
    int64_t run = layout->run;

    for (int i = 3; i >= 0; i--) {
        if (layout->n[i] > 1 && stride[i] != run)
            return 0;
        run *= layout->n[i];
    }
    return !place->placed && (one || place->stride == layout->halves * run) &&
           (layout->halves == 1 || place->half == run);
}
