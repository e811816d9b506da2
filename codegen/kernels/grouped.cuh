/* grouped.cuh: grouped products of bf16 or e4m3 on Hopper's tensor cores.
 *
 *   GMM    C[r][n] = sum over k of A[r][k] B[x][k][n]      rows r of expert x
 *          TERMS 2: plus the product of a second A and B of the same layouts
 *   GMMW   C[x][m][n] (+)= sum over rows r of x of A[r][m] B[r][n]
 *
 * SCALED: e4m3 operands. GMM: k is contiguous in both; A has a scale per row and
 * 128 of k, B[x] one per 128 of n and 128 of k. Tensor cores sum 128 of k; that sum
 * times both scales is added in fp32. GMMW reads blocks of 128 rows of an expert,
 * each [column][row], from its first row on (blocks.cuh), with a scale per column
 * of a block; a second warp loads scales for each slice.
 *
 * A block has 384 threads (UPDATE_WARPGROUP: 512). It takes tiles of BM x BN from a
 * queue; sizes of experts are read on the device. The producer, one thread of the
 * third warpgroup, loads slices of DEEP elements of k by TMA into a ring of STAGES
 * stages with mbarriers. The first two warpgroups (consumers) multiply, and store
 * boxes of 64 rows x 128 bytes by TMA. They share a tile, BM / 2 rows each, or with
 * PINGPONG compute a tile each, so that one stores while the other multiplies. The
 * old value of an accumulated C comes through the ring behind the tile's slices.
 * Shared memory has rows of 128 bytes with the 128-byte swizzle: 16-byte piece c of
 * row r is at c ^ (r & 7).
 *
 * SQUARES: each warp stores the sum of squares of its part of a tile. UPDATE
 * (update.cuh): the optimizer update of a tile is stored instead of the tile;
 * ROUNDS: also one value of it as e4m3, with the tile as scale block. UPDATE runs
 * in the consumer that owns the tile; with PINGPONG the other one multiplies
 * meanwhile. UPDATE_WARPGROUP (FP8): it runs in a fourth warpgroup, which reads the
 * accumulators from shared memory, because both consumers are busy: one multiplies
 * while the other scales.
 *
 * An operand is transposed if its contiguous axis is not the contracted one.
 * Constants: WEIGHT (1: GMMW) BAND TERMS M N K LDA LDB LDC (elements) EXPERTS CAP
 * TRANSA TRANSB STRIDEB STRIDEC BM BN STAGES PINGPONG SCALED SCALED_COLUMNS
 * (columns scaled at once) STORE_BUFFERS (boxes of a warpgroup in flight: 1 or 2)
 * ROW_BLOCKS (scale blocks of rows, SCALED GMMW) SQUARES, types TI (A and B) and TO
 * (C) and their tensor map kinds TIKIND TOKIND, STASH SWAP DENSE (below)
 * BLOCK_THREADS. Rows of all operands are multiples of 16 bytes. */
#ifndef UPDATE
#define UPDATE 0
#define ROUNDS 0
struct Update { };
#endif
#define DEEP (128 / (int)sizeof(TI))      /* elements of k in a slice */
#define SLICEA (BM * 128)
#define SLICEB (BN * 128)
#define SLICE (SLICEA + SLICEB)
#define BOX 8192                          /* bytes: 64 rows of 128 */
/* Columns of C in a box */
#define BOX_COLUMNS (128 / (int)sizeof(TO))
#define TEAM (PINGPONG ? 1 : 2)           /* warpgroups that share a tile */
#define HIGH (BM / 64 / TEAM)             /* 64-row products of a warpgroup */
#define BOXES (HIGH * (BN / BOX_COLUMNS)) /* boxes of C of a warpgroup */
/* Boxes of C in a stage of the ring */
#define BOXES_PER_STAGE (SLICE / BOX / TEAM)
#define TILESN ((N + BN - 1) / BN)
#define TILESM ((M + BM - 1) / BM)
#define DEPTH ((K + DEEP - 1) / DEEP)     /* slices of a term of GMM */
#define BLOCK 128                         /* elements that share a scale */
#define BLOCKSK ((K + BLOCK - 1) / BLOCK)
#define BLOCKSN ((N + BLOCK - 1) / BLOCK)
#define COLUMNS (SCALED && WEIGHT)        /* a scale for each column */
/* Scales of a thread, padded against bank conflicts */
#define THREAD_SCALES (SCALED_COLUMNS / 4 + 4)
/* Scales of a stage */
#define STAGE_SCALES (BM + BN / SCALED_COLUMNS * 4 * THREAD_SCALES)
/* A dedicated warpgroup updates. */
#define UPDATE_WARPGROUP (UPDATE && COLUMNS)
/* 64-row parts that it updates */
#define UPDATED (UPDATE_WARPGROUP ? BM / 64 : HIGH)
#define TILE_QUEUE_DEPTH 4                /* tiles in flight in a block */
/* Warps that read the queue */
#define TILE_QUEUE_READERS (8 + COLUMNS + 4 * UPDATE_WARPGROUP)

/* Tensor maps of a block, 128 bytes each, by offset. */
enum { LEFT = 0, RIGHT = 128, RESULT = 256, SECOND = 384, MAPS = 640 };
struct Term { const TI *A, *B; };

/* ---- the ring ----------------------------------------------------------------- */

/* Stages of the ring, used in order; the parity changes with every round. */
struct Ring { int at; uint32_t parity; };
FN void next(Ring &r)
{
    if (++r.at == STAGES)
        r.at = 0, r.parity ^= 1;
}
FN void skip(Ring &r, int n)
{
    r.at += n;
    r.parity ^= r.at / STAGES & 1;
    r.at %= STAGES;
}

/* ---- tensor copies (TMA) ----------------------------------------------------- */

/* Makes a 3-D tensor map with elements of KIND and boxes of b0 x b1 x 1 in shared
 * memory (128 zero bytes at `at`), by one thread. n0, n1, n2: sizes in elements;
 * s1, s2: strides in bytes. */
#define MAP(FIELD, TYPE, V, C)                                                   \
    asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024." TYPE      \
                 :: "r"(at), C(V) : "memory")
template <int KIND>
FN void make_map(uint32_t at, const void *base, int n0, int n1, int n2,
                 int64_t s1, int64_t s2, int b0, int b1)
{
    MAP("global_address", "b64 [%0], %1;\n", base, "l");
    MAP("rank", "b32 [%0], %1;\n", 2, "r");
    MAP("box_dim", "b32 [%0], 0, %1;\n", b0, "r");
    MAP("box_dim", "b32 [%0], 1, %1;\n", b1, "r");
    MAP("box_dim", "b32 [%0], 2, %1;\n", 1, "r");
    MAP("global_dim", "b32 [%0], 0, %1;\n", n0, "r");
    MAP("global_dim", "b32 [%0], 1, %1;\n", n1, "r");
    MAP("global_dim", "b32 [%0], 2, %1;\n", n2, "r");
    MAP("global_stride", "b64 [%0], 0, %1;\n", s1, "l");
    MAP("global_stride", "b64 [%0], 1, %1;\n", s2, "l");
    MAP("element_stride", "b32 [%0], 0, %1;\n", 1, "r");
    MAP("element_stride", "b32 [%0], 1, %1;\n", 1, "r");
    MAP("element_stride", "b32 [%0], 2, %1;\n", 1, "r");
    MAP("elemtype", "b32 [%0], %1;\n", KIND, "n");
    MAP("interleave_layout", "b32 [%0], %1;\n", 0, "n");
    MAP("swizzle_mode", "b32 [%0], %1;\n", 3, "n");
    MAP("fill_mode", "b32 [%0], %1;\n", 0, "n");
}

/* Copies a map to global memory, where TMA reads it; called by a whole warp. */
FN void publish_map(uint8_t *to, uint32_t from)
{
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic"
                 ".release.gpu.sync.aligned [%0], [%1], 128;\n"
                 :: "l"(to), "r"(from) : "memory");
}
FN void acquire_map(const uint8_t *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\n"
                 :: "l"(map) : "memory");
}

FN void fetch_box(uint32_t to, const uint8_t *map, int c0, int c1, int c2,
                  uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];\n"
                 :: "r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(bar)
                 : "memory");
}
FN void store_box(const uint8_t *map, int c0, int c1, int c2, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                 "[%0, {%1, %2, %3}], [%4];\n"
                 :: "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(from) : "memory");
    bulk_commit();
}
/* ---- tiles ------------------------------------------------------------------- */

/* x: expert; m, n: first row and column; steps: slices; rows: remaining rows. A
 * ragged operand is mapped as CAP rows that end at the expert's last row, so rows
 * behind it read as zero and are never stored: row p of the map with end e is row e
 * + p - CAP; `lift` = CAP - rows is the first. */
struct Tile { int x, m, n, lift, end, steps, rows; };

/* Sets t to the i-th tile; returns 0 if there is none. Tiles are ordered in bands
 * of BAND along m, m first: concurrent tiles share the band's rows of A in L2 and
 * read a few columns of B, once per band. */
FN int find_tile(Tile &t, int i, const int *first, const int32_t *off)
{
    if (WEIGHT) {
        t.x = i / (TILESM * TILESN);
        if (t.x >= EXPERTS)
            return 0;
        i -= t.x * TILESM * TILESN;
    } else {
        while (t.x < EXPERTS && i >= first[t.x + 1])
            t.x++;
        if (t.x == EXPERTS)
            return 0;
        i -= first[t.x];
    }
    t.end = off[t.x + 1];
    const int rows = t.end - off[t.x];
    const int high = WEIGHT ? TILESM : (rows + BM - 1) / BM;
    t.lift = COLUMNS ? first[t.x] : CAP - rows;
    const int band = i / (BAND * TILESN) * BAND;
    const int deep = high - band < BAND ? high - band : BAND;
    i -= band * TILESN;
    t.m = (band + i % deep) * BM;
    t.n = i / deep * BN;
    t.steps = WEIGHT ? (rows + DEEP - 1) / DEEP : TERMS * DEPTH;
    t.rows = (WEIGHT ? M : rows) - t.m;
    return 1;
}

/* first[x]: tiles (or scale blocks of rows) of the experts before x; called by a
 * warp. */
FN void count_tiles(int *first, const int32_t *off)
{
    const int lane = TID & 31;
    int before = 0;

#pragma unroll 8
    for (int x0 = 0; x0 < EXPERTS; x0 += 32) {
        const int x = x0 + lane;
        int n = x < EXPERTS ? off[x + 1] - off[x] : 0;
        n = COLUMNS ? (n + BLOCK - 1) / BLOCK : (n + BM - 1) / BM * TILESN;
        for (int h = 1; h < 32; h *= 2) {
            const int left = __shfl_up_sync(~0u, n, h);
            n += lane >= h ? left : 0;
        }
        if (x < EXPERTS)
            first[x + 1] = before + n;
        before += __shfl_sync(~0u, n, 31);
    }
    if (lane == 0)
        first[0] = 0;
}

/* ---- the tile queue ---------------------------------------------------------- */

/* Blocks take tiles dynamically. Beside a kernel that occupies some
 * multiprocessors, as a row exchange does, some blocks start late; a static
 * division would leave their tiles to the end. decisions/grouped-tiles.md has the
 * gain. A tile's result does not depend on the block that computes it.
 *
 * queue[0]: tiles taken, queue[1]: finished blocks. Both are 0 before and after a
 * launch; launches of a kernel are ordered. */
__device__ unsigned queue[2];

FN int take_tile()
{
    return (int)atomicAdd(queue, 1u);
}

/* The last block resets the queue: all others have found it empty. */
FN void leave_queue()
{
    if (atomicAdd(queue + 1, 1u) == gridDim.x - 1)
        queue[0] = queue[1] = 0;
}

/* A block's tiles, published by the producer to all its warps. */
struct Tiles { uint32_t tile, full, empty; };

FN void publish_tile(const Tiles &to, int turn, int tile)
{
    const int at = turn % TILE_QUEUE_DEPTH;

    bar_wait(to.empty + 8 * at, (turn / TILE_QUEUE_DEPTH & 1) ^ 1);
    asm volatile("st.shared.u32 [%0], %1;\n" :: "r"(to.tile + 4 * at), "r"(tile)
                 : "memory");
    bar_arrive(to.full + 8 * at);
}

FN int read_tile(const Tiles &from, int turn)
{
    const int at = turn % TILE_QUEUE_DEPTH;
    int tile;

    bar_wait(from.full + 8 * at, turn / TILE_QUEUE_DEPTH & 1);
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(tile) : "r"(from.tile + 4 * at)
                 : "memory");
    __syncwarp();
    if ((TID & 31) == 0)
        bar_arrive(from.empty + 8 * at);
    return tile;
}

/* ---- the producer ------------------------------------------------------------ */

FN void fetch_slice(const uint8_t *maps, const Tile &t, int s, uint32_t to,
                    uint32_t bar)
{
    const int second = TERMS > 1 && s >= DEPTH;
    const int k = (s - second * DEPTH) * DEEP;

    maps += second * (SECOND - LEFT);
    if (COLUMNS) {
        fetch_box(to, maps, 0, t.m, t.lift + s, bar);
        fetch_box(to + SLICEA, maps + RIGHT, 0, t.n, t.lift + s, bar);
        return;
    }
    if (TRANSA)
        for (int b = 0; b < BM / 64; b++)
            fetch_box(to + b * BOX, maps, t.m + b * 64, t.lift + k, t.end, bar);
    else
        fetch_box(to, maps, k, t.lift + t.m, t.end, bar);
    to += SLICEA;
    if (!TRANSB) {
        fetch_box(to, maps + RIGHT, k, t.n, t.x, bar);
        return;
    }
    for (int b = 0; b < BN / 64; b++)
        if (WEIGHT)
            fetch_box(to + b * BOX, maps + RIGHT, t.n + b * 64, t.lift + k, t.end,
                      bar);
        else
            fetch_box(to + b * BOX, maps + RIGHT, t.n + b * 64, k, t.x, bar);
}

/* Loads the old value of a tile of C: BOXES_PER_STAGE boxes of each warpgroup per
 * stage. */
FN void fetch_result(const uint8_t *map, const Tile &t, Ring &r, uint32_t base,
                  uint32_t full, uint32_t empty)
{
    for (int s0 = 0; s0 < BOXES; s0 += BOXES_PER_STAGE, next(r)) {
        const int n = BOXES - s0 < BOXES_PER_STAGE ? BOXES - s0 : BOXES_PER_STAGE;
        const uint32_t bar = full + 8 * r.at, to = base + r.at * SLICE;
        bar_wait(empty + 8 * r.at, r.parity ^ 1);
        bar_expect(bar, n * TEAM * BOX);
        for (int i = 0; i < n * TEAM; i++) {
            const int s = s0 + i / TEAM, w = i % TEAM;
            const int m = (w * HIGH + s / (BN / BOX_COLUMNS)) * 64;
            fetch_box(to + i * BOX, map, t.n + s % (BN / BOX_COLUMNS) * BOX_COLUMNS, t.m + m,
                      t.x, bar);
        }
    }
}

FN void fetch_tiles(const uint8_t *maps, const int *first, const int32_t *off,
                    const Tiles &tiles, uint32_t base, uint32_t full,
                    uint32_t empty, int add)
{
    Ring r = { 0, 0 };
    Tile t = { };
    int next_tile = take_tile();

    for (int turn = 0;; turn++) {
        publish_tile(tiles, turn, next_tile);
        if (!find_tile(t, next_tile, first, off))
            break;
        next_tile = take_tile();
        for (int s = 0; s < t.steps; s++, next(r)) {
            bar_wait(empty + 8 * r.at, r.parity ^ 1);
            bar_expect(full + 8 * r.at, SLICE);
            fetch_slice(maps, t, s, base + r.at * SLICE, full + 8 * r.at);
        }
        if (WEIGHT && add)
            fetch_result(maps + RESULT, t, r, base, full, empty);
    }
    leave_queue();
}

/* GMM: [row][k block], [x][n block][k block]; GMMW: [block of rows][column] */
struct Scales { const float *a, *b; };

/* Loads BYTES of scales from column `at`, zeros at and beyond `width`. */
template <int BYTES>
FN void fetch_scales(uint32_t to, const float *from, int at, int width)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n"
                 :: "r"(to), "l"(at < width ? from + at : from), "n"(BYTES),
                    "r"(at < width ? BYTES : 0) : "memory");
}

/* Position of columns c and c + 1 of B in a stage. A thread's columns, two of each
 * eight, are consecutive. */
FN int column_place(int c)
{
    return BM + (c / SCALED_COLUMNS * 4 + (c >> 1 & 3)) * THREAD_SCALES +
           c % SCALED_COLUMNS / 8 * 2;
}

/* Loads the scales of the columns of each slice, by one warp. */
FN void fetch_columns(const Scales &v, const int *first, const int32_t *off,
                      const Tiles &tiles, uint32_t room, uint32_t full,
                      uint32_t empty, int add)
{
    const int olds = add ? (BOXES + BOXES_PER_STAGE - 1) / BOXES_PER_STAGE : 0;
    Ring r = { 0, 0 };
    Tile t = { };

    for (int turn = 0; find_tile(t, read_tile(tiles, turn), first, off); turn++) {
        for (int s = 0; s < t.steps; s++, next(r)) {
            const float *a = v.a + (int64_t)(t.lift + s) * M;
            const float *b = v.b + (int64_t)(t.lift + s) * N;
            const uint32_t to = room + r.at * STAGE_SCALES * 4;
            bar_wait(empty + 8 * r.at, r.parity ^ 1);
            for (int c = (TID & 31) * 4; c < BM; c += 128)
                fetch_scales<16>(to + c * 4, a, t.m + c, M);
            for (int c = (TID & 31) * 2; c < BN; c += 64)
                fetch_scales<8>(to + column_place(c) * 4, b, t.n + c, N);
            bar_arrive_fetched(full + 8 * r.at);
        }
        for (int s = 0; s < olds; s++, next(r)) {
            bar_wait(empty + 8 * r.at, r.parity ^ 1);
            bar_arrive(full + 8 * r.at);
        }
    }
}

/* ---- the consumers ----------------------------------------------------------- */

/* The product of one slice: four steps of 32 bytes of k. */
template <int MANY>
FN void multiply(float (&acc)[HIGH][BN / 2], uint32_t at, int w)
{
    const uint64_t a = descriptor(at + w * HIGH * BOX, BOX);
    const uint64_t b = descriptor(at + SLICEA, BOX);

    wg_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < MANY; i++)
            wg_rows<TI, BN, TRANSA, TRANSB>(
                acc[i], a + (uint64_t)(k * (TRANSA ? 128 : 2) + i * 512),
                b + (uint64_t)(k * (TRANSB ? 128 : 2)), 1);
    wg_commit();
}

/* Issues the product of 64 x SCALED_COLUMNS of a slice. */
FN void begin_product(float (&sum)[SCALED_COLUMNS / 2], uint64_t a, uint64_t b)
{
    wg_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wg_rows<TI, SCALED_COLUMNS>(sum, a + (uint64_t)(k * 2), b + (uint64_t)(k * 2),
                                    k > 0);
    wg_commit();
}

/* The product of one slice with scales of the thread's rows (two of each 64) and of
 * each BLOCK columns. It issues SCALED_COLUMNS columns at a time, while the other
 * warpgroup multiplies. */
template <int MANY>
FN void multiply_scaled(float (&acc)[HIGH][BN / 2], uint32_t at, int w,
                        const float (&rows)[HIGH][2],
                        const float (&columns)[BN / SCALED_COLUMNS])
{
    const uint64_t a = descriptor(at + w * HIGH * BOX, BOX);
    const uint64_t b = descriptor(at + SLICEA, BOX);
    float sum[SCALED_COLUMNS / 2];

#pragma unroll
    for (int i = 0; i < MANY; i++)
#pragma unroll
        for (int c = 0; c < BN / SCALED_COLUMNS; c++) {
            const uint64_t ai = a + (uint64_t)(i * 512);
            const uint64_t bc = b + (uint64_t)(c * SCALED_COLUMNS * 8);
            begin_product(sum, ai, bc);
            const float s = rows[i][0] * columns[c], u = rows[i][1] * columns[c];
            float *to = acc[i] + c * (SCALED_COLUMNS / 2);
            wg_wait<0>();
#pragma unroll
            for (int j = 0; j < SCALED_COLUMNS / 2; j += 4) {
                to[j] = fmaf(sum[j], s, to[j]);
                to[j + 1] = fmaf(sum[j + 1], s, to[j + 1]);
                to[j + 2] = fmaf(sum[j + 2], u, to[j + 2]);
                to[j + 3] = fmaf(sum[j + 3], u, to[j + 3]);
            }
        }
}

/* Adds a product of 64 x SCALED_COLUMNS with the scales of its rows and columns. The first column
 * scales are loaded; the others are loaded two steps ahead. */
FN void add_product(float *to, const float (&sum)[SCALED_COLUMNS / 2], float row, float below,
                    float4 (&ahead)[2], const float4 *columns)
{
#pragma unroll
    for (int j = 0; j < SCALED_COLUMNS / 2; j += 8) {
        const float4 c = ahead[j / 8 & 1];
        if (j + 16 < SCALED_COLUMNS / 2)
            ahead[j / 8 & 1] = columns[j / 8 + 2];
        to[j] = fmaf(sum[j] * c.x, row, to[j]);
        to[j + 1] = fmaf(sum[j + 1] * c.y, row, to[j + 1]);
        to[j + 2] = fmaf(sum[j + 2] * c.x, below, to[j + 2]);
        to[j + 3] = fmaf(sum[j + 3] * c.y, below, to[j + 3]);
        to[j + 4] = fmaf(sum[j + 4] * c.z, row, to[j + 4]);
        to[j + 5] = fmaf(sum[j + 5] * c.w, row, to[j + 5]);
        to[j + 6] = fmaf(sum[j + 6] * c.z, below, to[j + 6]);
        to[j + 7] = fmaf(sum[j + 7] * c.w, below, to[j + 7]);
    }
}

/* The product of one slice with a scale for each row and column, from the stage's
 * `scales`. One warpgroup scales while the other multiplies. */
template <int MANY>
FN void multiply_columns(float (&acc)[HIGH][BN / 2], uint32_t at, int w,
                         const float *scales)
{
    const uint64_t a = descriptor(at + w * HIGH * BOX, BOX);
    const uint64_t b = descriptor(at + SLICEA, BOX);
    const float *row = scales + w * HIGH * 64 + ((TID >> 5) & 3) * 16 +
                       ((TID & 31) >> 2);
    const float4 *column = (const float4 *)(scales + BM + (TID & 3) * THREAD_SCALES);
    float sum[SCALED_COLUMNS / 2];

#pragma unroll
    for (int i = 0; i < MANY; i++)
#pragma unroll
        for (int c = 0; c < BN / SCALED_COLUMNS; c++) {
            begin_product(sum, a + (uint64_t)(i * 512),
                          b + (uint64_t)(c * SCALED_COLUMNS * 8));
            float4 ahead[] = { column[c * THREAD_SCALES], column[c * THREAD_SCALES + 1] };
            const float one = row[i * 64], below = row[i * 64 + 8];
            wg_wait<0>();
            add_product(acc[i] + c * (SCALED_COLUMNS / 2), sum, one, below, ahead,
                        column + c * THREAD_SCALES);
        }
}

/* The products of all row blocks of the expert. */
template <int MANY>
FN void multiply_column_slices(float (&acc)[HIGH][BN / 2], const Tile &t, Ring &r,
                               const float *scales, uint32_t base, uint32_t full,
                               uint32_t empty)
{
    const int w = PINGPONG ? 0 : TID >> 7, leads = (TID & 31) == 0;

#pragma unroll
    for (int i = 0; i < (SQUARES ? HIGH : MANY); i++)
#pragma unroll
        for (int j = 0; j < BN / 2; j++)
            acc[i][j] = 0;
    for (int s = 0; s < t.steps; s++, next(r)) {
        bar_wait(full + 8 * r.at, r.parity);
        multiply_columns<MANY>(acc, base + r.at * SLICE, w, scales + r.at * STAGE_SCALES);
        __syncwarp();
        if (leads)
            bar_arrive(empty + 8 * r.at);
    }
}

/* Adds the slices of one term. Rows beyond the expert's use the scales of its last
 * row. */
template <int MANY>
FN void add_scaled_slices(float (&acc)[HIGH][BN / 2], const Tile &t, Ring &r,
                          const Scales &v, uint32_t base, uint32_t full,
                          uint32_t empty)
{
    const int w = TID >> 7, leads = (TID & 31) == 0;
    const int r0 = w * HIGH * 64 + ((TID >> 5) & 3) * 16 + ((TID & 31) >> 2);
    const float *row[HIGH][2];
    const float *column = v.b + ((int64_t)t.x * BLOCKSN + t.n / BLOCK) * BLOCKSK;

#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = r0 + i * 64 + h * 8;
            row[i][h] = v.a + (int64_t)(t.end - t.rows +
                                        (at < t.rows ? at : t.rows - 1)) * BLOCKSK;
        }
    for (int s = 0; s < DEPTH; s++, next(r)) {
        float rows[HIGH][2], columns[BN / SCALED_COLUMNS];
#pragma unroll
        for (int i = 0; i < HIGH; i++)
            rows[i][0] = row[i][0][s], rows[i][1] = row[i][1][s];
#pragma unroll
        for (int c = 0; c < BN / SCALED_COLUMNS; c++)
            columns[c] = c * SCALED_COLUMNS < N - t.n ? column[c * BLOCKSK + s] : 0;
        bar_wait(full + 8 * r.at, r.parity);
        multiply_scaled<MANY>(acc, base + r.at * SLICE, w, rows, columns);
        if constexpr (MANY == 0)
            __syncwarp();                 /* wgmma would reconverge the lanes */
        if (leads)
            bar_arrive(empty + 8 * r.at);
    }
}

template <int MANY>
FN void multiply_scaled_slices(float (&acc)[HIGH][BN / 2], const Tile &t, Ring &r,
                               const Scales *v, uint32_t base, uint32_t full,
                               uint32_t empty)
{
#pragma unroll
    for (int i = 0; i < MANY; i++)
#pragma unroll
        for (int j = 0; j < BN / 2; j++)
            acc[i][j] = 0;
#pragma unroll 1
    for (int i = 0; i < TERMS; i++) {
        const Scales of = { i ? v[1].a : v[0].a, i ? v[1].b : v[0].b };
        add_scaled_slices<MANY>(acc, t, r, of, base, full, empty);
    }
}

/* The product of the first MANY 64-row parts of the warpgroup's tile; the others
 * are 0 if squares are summed. A warp releases a stage when the next step has been
 * issued. */
template <int MANY>
FN void multiply_slices(float (&acc)[HIGH][BN / 2], const Tile &t, Ring &r,
                        const Scales *v, uint32_t base, uint32_t full,
                        uint32_t empty)
{
    const int w = PINGPONG ? 0 : TID >> 7, leads = (TID & 31) == 0;
    int before = -1;

    if constexpr (COLUMNS) {
        multiply_column_slices<MANY>(acc, t, r, v->a, base, full, empty);
        return;
    }
    if constexpr (SCALED) {
        multiply_scaled_slices<MANY>(acc, t, r, v, base, full, empty);
        return;
    }

#pragma unroll
    for (int i = 0; i < (SQUARES ? HIGH : MANY); i++)
#pragma unroll
        for (int j = 0; j < BN / 2; j++)
            acc[i][j] = 0;
    for (int s = 0; s < t.steps; s++, next(r)) {
        bar_wait(full + 8 * r.at, r.parity);
        if constexpr (MANY > 0) {
            multiply<MANY>(acc, base + r.at * SLICE, w);
            wg_wait<1>();
        } else {
            __syncwarp();                 /* wgmma would reconverge the lanes */
        }
        if (before >= 0 && leads)
            bar_arrive(empty + 8 * before);
        before = r.at;
    }
    wg_wait<0>();
    if (before >= 0 && leads)
        bar_arrive(empty + 8 * before);
}

/* Skips 64-row parts that have no rows. */
FN void multiply_rows(float (&acc)[HIGH][BN / 2], const Tile &t, Ring &r,
                      const Scales *v, uint32_t base, uint32_t full, uint32_t empty)
{
    const int rows = t.rows - (PINGPONG ? 0 : TID >> 7) * HIGH * 64;

    if constexpr (!PINGPONG)
        if (rows <= 0) {
            multiply_slices<0>(acc, t, r, v, base, full, empty);
            return;
        }
    if constexpr (!WEIGHT && HIGH == 2)
        if (rows <= 64) {
            multiply_slices<1>(acc, t, r, v, base, full, empty);
            return;
        }
    multiply_slices<HIGH>(acc, t, r, v, base, full, empty);
}

/* PINGPONG: a warpgroup waits until the other one has read its slices from the
 * ring: parity distinguishes only adjacent rounds of a stage. */
FN void take_turn(int wg)
{
    named_barrier_sync(wg + 3, 256);
}
FN void pass_turn(int wg)
{
    asm volatile("bar.arrive %0, 256;\n" :: "r"((wg ^ 1) + 3) : "memory");
}
FN void warpgroup_sync(int wg)
{
    named_barrier_sync(wg + 1, 128);
}
FN void put_pair(uint32_t to, float x, float y, float)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n"
                 :: "r"(to), "f"(x), "f"(y) : "memory");
}
FN void put_pair(uint32_t to, float x, float y, uint16_t)
{
    asm volatile("st.shared.u32 [%0], %1;\n" :: "r"(to), "r"(two_bf16(x, y))
                 : "memory");
}

/* Offset in a box of the thread's pair of columns 8j ..; its second row is 8 rows
 * below. */
FN uint32_t pair_at(int j)
{
    const int lane = TID & 31, r = ((TID >> 5) & 3) * 16 + (lane >> 2);
    const int at = (j * 4 + (lane & 3)) * 2 * (int)sizeof(TO);

    return r * 128 + (((at >> 4) ^ (r & 7)) << 4 | (at & 15));
}

/* Stores BOX_COLUMNS columns of a warpgroup's 64 rows to shared memory. */
FN void put_box(const float *acc, uint32_t to)
{
#pragma unroll
    for (int j = 0; j < BOX_COLUMNS / 8; j++) {
        const uint32_t at = to + pair_at(j);
        put_pair(at, acc[4 * j], acc[4 * j + 1], (TO)0);
        put_pair(at + 1024, acc[4 * j + 2], acc[4 * j + 3], (TO)0);
    }
}

FN void add_pair(uint32_t at, float &x, float &y, float)
{
    float a, b;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n"
                 : "=f"(a), "=f"(b) : "r"(at) : "memory");
    x += a, y += b;
}
FN void add_pair(uint32_t at, float &x, float &y, uint16_t)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(at) : "memory");
    x += __uint_as_float(v << 16), y += __uint_as_float(v & 0xffff0000u);
}

/* Adds the old value of C in shared memory to the columns of a box. */
FN void add_box(float *acc, uint32_t at)
{
#pragma unroll
    for (int j = 0; j < BOX_COLUMNS / 8; j++) {
        const uint32_t to = at + pair_at(j);
        add_pair(to, acc[4 * j], acc[4 * j + 1], (TO)0);
        add_pair(to + 1024, acc[4 * j + 2], acc[4 * j + 3], (TO)0);
    }
}

/* Orders loads of a stage before the TMA copy that overwrites it: an arrival at the
 * barrier alone does not. */
FN void loads_done()
{
    async_fence();
    __syncwarp();
}

/* Adds the old values of the warpgroup's boxes from the ring. */
FN void add_result(float (&acc)[HIGH][BN / 2], Ring &r, uint32_t base, uint32_t full,
                uint32_t empty)
{
    const int w = PINGPONG ? 0 : TID >> 7;

#pragma unroll
    for (int s = 0; s < BOXES; s++) {
        if (s % BOXES_PER_STAGE == 0)
            bar_wait(full + 8 * r.at, r.parity);
        add_box(acc[s / (BN / BOX_COLUMNS)] + s % (BN / BOX_COLUMNS) * (BOX_COLUMNS / 2),
                base + r.at * SLICE + (s % BOXES_PER_STAGE * TEAM + w) * BOX);
        if (s % BOXES_PER_STAGE == BOXES_PER_STAGE - 1 || s == BOXES - 1) {
            loads_done();
            if ((TID & 31) == 0)
                bar_arrive(empty + 8 * r.at);
            next(r);
        }
    }
}

/* Stores a tile; boxes alternate between the warpgroup's store buffers. */
FN void store_tile(const float (&acc)[HIGH][BN / 2], const Tile &t,
                   const uint8_t *map, uint32_t room, int &half)
{
    const int wg = TID >> 7, w = PINGPONG ? 0 : wg, leads = (TID & 127) == 0;

#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < BN / BOX_COLUMNS; j++) {
            const int m = (w * HIGH + i) * 64, n = t.n + j * BOX_COLUMNS;
            if (m >= t.rows || n >= N)
                continue;
            const uint32_t place = room + (wg * STORE_BUFFERS + half) * BOX;
            half ^= STORE_BUFFERS - 1;
            if (leads)
                stores_read<STORE_BUFFERS - 1>();
            warpgroup_sync(wg);
            put_box(acc[i] + j * BOX_COLUMNS / 2, place);
            async_fence();
            warpgroup_sync(wg);
            if (leads)
                store_box(map, n, WEIGHT ? t.m + m : t.lift + t.m + m,
                          WEIGHT ? t.x : t.end, place);
        }
}

/* Rounds to the type of C. */
FN void round_pair(float &, float &, float) { }
FN void round_pair(float &x, float &y, uint16_t)
{
    const uint32_t v = two_bf16(x, y);
    x = __uint_as_float(v << 16), y = __uint_as_float(v & 0xffff0000u);
}

/* Sum of squares of the thread's part of a tile; elements outside of C are 0. */
FN float sum_of_squares(const float (&acc)[HIGH][BN / 2])
{
    float sum[4] = { };

#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < BN / 2; j += 2) {
            float x = acc[i][j], y = acc[i][j + 1];
            round_pair(x, y, (TO)0);
            sum[j & 3] = fmaf(x, x, sum[j & 3]);
            sum[j + 1 & 3] = fmaf(y, y, sum[j + 1 & 3]);
        }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Stores the sum of a warp for a tile. */
FN void store_squares(float sum, float *to, int tile)
{
    for (int h = 16; h; h /= 2)
        sum += __shfl_xor_sync(~0u, sum, h);
    if ((TID & 31) == 0)
        to[tile * 4 * TEAM + (TID >> 5) % (4 * TEAM)] = sum;
}

#if UPDATE
/* ---- the update of a tile ---------------------------------------------------- */

#define STEPS (BN * 8 / (32 * PIECE))     /* pieces of a warp per 8 of its rows */
#define OWNPIECES (2 * UPDATED * STEPS)   /* pieces of a thread, per tile */
#define STAGED (8 * BN * 4)               /* bytes of 8 rows */
#define WHOLE (M % BM == 0 && N % BN == 0) /* no tile crosses the edge of C */

/* A half of a warp's piece is 128 consecutive elements in rows of BN. own_row,
 * own_column: position of the thread's first half in the warpgroup. */
FN int own_row(void) { return (TID >> 5 & 3) * 16 + (TID & 31) * FOUR / BN; }
FN int own_column(void) { return (TID & 31) * FOUR % BN; }
/* Half h of piece i, relative to the first. */
struct Half { int row, col; };
FN Half half_of(int i, int h)
{
    const int s = i / STEPS, at = (i % STEPS * HALVES + h) * 128;
    return { s / 2 * 64 + s % 2 * 8 + at / BN, at % BN };
}
/* Row of C of the thread's first half. */
FN int first_row(const Tile &t)
{
    return t.m + (PINGPONG || UPDATE_WARPGROUP ? 0 : TID >> 7) * HIGH * 64 + own_row();
}
/* Offset in elements from the first half; < 0: outside of C. */
FN int half_at(const Tile &t, const Half &half)
{
    return WHOLE || (first_row(t) + half.row < M && t.n + own_column() + half.col < N)
               ? half.row * LDC + half.col : -1;
}
/* Pointers at the thread's first half. */
FN Update update_at(const Update &u, const Tile &t)
{
    Update at = u;
    advance(at, (int64_t)t.x * STRIDEC + (int64_t)first_row(t) * LDC + t.n +
                    own_column());
    return at;
}
FN const uint8_t *piece_slot(const uint8_t *slots, int i)
{
    return slots + ((UPDATE_WARPGROUP ? 0 : TID >> 7) * AHEAD + i % AHEAD) * KEPT;
}
FN void fetch_piece(const Update &u, const Tile &t, int i, const uint8_t *slots)
{
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int at = i < OWNPIECES ? half_at(t, half_of(i, h)) : -1;
        if (at >= 0)
            fetch_half(u, at, piece_slot(slots, i), h);
    }
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
FN void begin_update(const Update &u, const Tile &t, const uint8_t *slots)
{
    for (int i = 0; i < AHEAD; i++)
        fetch_piece(u, t, i, slots);
}

/* Offset of four columns of a staged row: lanes that store pairs and lanes that
 * load four use distinct banks. */
FN uint32_t staged_at(int row, int col)
{
    return (UPDATE_WARPGROUP ? row : row & 7) * BN * 4 + ((col / 4 ^ (row & 3) << 1) << 4);
}
FN uint32_t own_at(const Half &half)
{
    return staged_at(own_row() + half.row, own_column() + half.col);
}
/* Stages rows 8 (s % 2) .. of a 64-row part: each thread has a pair of each 8
 * columns. */
FN void stage_rows(const float (&acc)[HIGH][BN / 2], int s, uint32_t to)
{
    const int row = (TID & 31) >> 2, col = (TID & 3) * 2;

    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2 * HIGH; k++)
        if (k == s)
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                put_pair(to + staged_at(row, 8 * j + col) + (col & 2) * 4,
                         acc[k / 2][4 * j + k % 2 * 2],
                         acc[k / 2][4 * j + k % 2 * 2 + 1], 0.0f);
    __syncwarp();
}
FN void take_four(float *g, uint32_t from, const Half &half)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(g[0]), "=f"(g[1]), "=f"(g[2]), "=f"(g[3])
                 : "r"(from + own_at(half)) : "memory");
}

#if ROUNDS
/* ---- quantization of an updated value ---------------------------------------- */

static_assert((PINGPONG || UPDATE_WARPGROUP) && BM == BLOCK && BN == BLOCK,
              "a warpgroup has a block");

/* The pairs of a piece are kept in shared memory, where the thread's first four
 * sums were, until the eight rows are finished: registers cannot be indexed
 * dynamically. Elements outside of C do not count for the scale. */
FN uint32_t put_pairs(uint32_t to, const uint32_t (&pair)[PIECE / 2],
                      const int (&at)[HALVES], uint32_t most)
{
    put16(to, make_uint4(pair[0], pair[1], pair[2], pair[3]));
#pragma unroll
    for (int i = 0; i < PIECE / 2; i++)
        if (at[i / (FOUR / 2)] >= 0)
            most = most_of_pair(pair[i], most);
    return most;
}
FN void take_pairs(float (&pair)[OWNPIECES][PIECE / 2], int s, uint32_t from)
{
#pragma unroll
    for (int i = s * STEPS; i < (s + 1) * STEPS; i++)
        take_four(pair[i], from, half_of(i, 0));
}
FN uint32_t numbers_of_pairs(float lower, float upper, float scale)
{
    const uint32_t x = __float_as_uint(lower), y = __float_as_uint(upper);

    return two_of(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u), scale) |
           (uint32_t)two_of(__uint_as_float(y << 16),
                            __uint_as_float(y & 0xffff0000u), scale) << 16;
}
/* Maximum over the warpgroup. With PINGPONG the warpgroup's next tile starts with a
 * barrier, so `warp` is free again. */
FN uint32_t most_of_block(uint32_t most)
{
    __shared__ uint32_t warp[UPDATE_WARPGROUP ? 16 : 8];

    most = most_among(most_of_both(most), 32);
    if ((TID & 31) == 0)
        warp[TID >> 5] = most;
    warpgroup_sync(TID >> 7);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t other = warp[(TID >> 7) * 4 + i];
        most = other > most ? other : most;
    }
    if (UPDATE_WARPGROUP)
        warpgroup_sync(TID >> 7);
    return most;
}
/* Quantizes a tile. Scales of an expert are ordered like its tiles. Each half of a
 * warp's piece is one row; offsets known at compile time take no registers. */
FN void round_tile(const float (&pair)[OWNPIECES][PIECE / 2], const Tile &t,
                   const Update &u, uint32_t most)
{
    const float scale = scale_of(most_of_block(most));
    const int rows = t.n + own_column() < N ? M - first_row(t) : 0;
    uint8_t *to = numbers_of(u);

    if ((TID & 127) == 0)
        scales_of(u)[((int64_t)t.x * TILESM + t.m / BM) * TILESN + t.n / BN] =
            inverse_of(scale);
#pragma unroll
    for (int i = 0; i < OWNPIECES; i++)
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int row = half_of(i, h).row;
            if (row < rows)
                *(uint32_t *)(to + (int64_t)row * LDC) =
                    numbers_of_pairs(pair[i][2 * h], pair[i][2 * h + 1], scale);
        }
}
#endif

/* Updates the thread's piece i, whose sums are staged at `rows`; returns the
 * updated maximum. Loops over pieces are not unrolled, since the text of an update
 * is long. */
FN uint32_t update_own(const Tile &t, const Update &u, int i, uint32_t rows,
                       const uint8_t *slots, uint32_t most)
{
    const Half half[] = { half_of(i, 0), half_of(i, 1) };
    const int at[] = { half_at(t, half[0]), half_at(t, half[1]) };
    float g[PIECE];
    uint32_t pair[PIECE / 2];

    asm volatile("cp.async.wait_group %0;\n" :: "n"(AHEAD - 1) : "memory");
    take_four(g, rows, half[0]);
    take_four(g + FOUR, rows, half[1]);
    update_piece(g, u, at, piece_slot(slots, i), pair);
    fetch_piece(u, t, i + AHEAD, slots);
#if ROUNDS
    most = put_pairs(rows + own_at(half[0]), pair, at, most);
#endif
    return most;
}

#if UPDATE_WARPGROUP
/* Passes a warpgroup's rows of a tile's sums to the updating warpgroup, once it has
 * read those of the previous tile. */
FN void pass_sums(const float (&acc)[HIGH][BN / 2], uint32_t to, uint32_t full,
                  uint32_t empty, int turn)
{
    const int row = (TID >> 7) * 64 + (TID >> 5 & 3) * 16 + ((TID & 31) >> 2);
    const int col = (TID & 3) * 2;

    static_assert(HIGH == 1, "a warpgroup has 64 rows");
    bar_wait(empty, (turn & 1) ^ 1);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            put_pair(to + staged_at(row + 8 * h, 8 * j + col) + (col & 2) * 4,
                     acc[0][4 * j + 2 * h], acc[0][4 * j + 2 * h + 1], 0.0f);
    __syncwarp();
    if ((TID & 31) == 0)
        bar_arrive(full);
}

/* The updating warpgroup. */
FN void update_tiles(const int *first, const int32_t *off, const Tiles &tiles,
                     uint32_t sums, uint32_t full, uint32_t empty, const Update &u,
                     const uint8_t *slots)
{
    Tile t = { };

    for (int turn = 0; find_tile(t, read_tile(tiles, turn), first, off); turn++) {
        const Update at = update_at(u, t);
        uint32_t most = 0;
        begin_update(at, t, slots);
        bar_wait(full, turn & 1);
#pragma unroll 1
        for (int i = 0; i < OWNPIECES; i++)
            most = update_own(t, at, i, sums, slots, most);
#if ROUNDS
        float made[OWNPIECES][PIECE / 2];
#pragma unroll
        for (int i = 0; i < OWNPIECES; i++)
            take_four(made[i], sums, half_of(i, 0));
        round_tile(made, t, at, most);
#endif
        __syncwarp();
        if ((TID & 31) == 0)
            bar_arrive(empty);
    }
}
#else
/* Updates a tile: 8 rows of a warp at a time pass through shared memory, which
 * gives each lane adjacent elements. */
FN void update_tile(const float (&acc)[HIGH][BN / 2], const Tile &t,
                    const Update &u, uint32_t room, const uint8_t *slots)
{
    const uint32_t rows = room + (TID >> 5) * STAGED;
    uint32_t most = 0;
#if ROUNDS
    float made[OWNPIECES][PIECE / 2];
#endif

#pragma unroll ROUNDS ? 2 * HIGH : 1
    for (int s = 0; s < 2 * HIGH; s++) {
        stage_rows(acc, s, rows);
#pragma unroll 1
        for (int i = s * STEPS; i < (s + 1) * STEPS; i++)
            most = update_own(t, u, i, rows, slots, most);
#if ROUNDS
        take_pairs(made, s, rows);
#endif
    }
#if ROUNDS
    round_tile(made, t, u, most);
#endif
}
#endif
#endif

FN void multiply_tiles(const uint8_t *maps, const int *first, const int32_t *off,
                       const Tiles &tiles, float *squares, const Scales *v,
                       uint32_t base, uint32_t full, uint32_t empty, int add,
                       const Update &update, const uint8_t *slots, uint32_t given)
{
    const int olds = WEIGHT && add ? (BOXES + BOXES_PER_STAGE - 1) / BOXES_PER_STAGE : 0;
    float acc[HIGH][BN / 2];
    Ring r = { 0, 0 };
    Tile t = { };
    const int wg = TID >> 7;
#if !UPDATE
    int half = 0;
#endif

    for (int turn = 0;; turn++) {
        const int tile = read_tile(tiles, turn);
        if (!find_tile(t, tile, first, off))
            break;
        if (PINGPONG && (turn & 1) != wg) {
            skip(r, t.steps + olds);
            continue;
        }
#if UPDATE && !UPDATE_WARPGROUP
        const Update at = update_at(update, t);
        begin_update(at, t, slots);
#endif
        if (PINGPONG && turn)
            take_turn(wg);
        multiply_rows(acc, t, r, v, base, full, empty);
        if (olds)
            add_result(acc, r, base, full, empty);
        if (PINGPONG)
            pass_turn(wg);
        if (SQUARES)
            store_squares(sum_of_squares(acc), squares, tile);
#if UPDATE_WARPGROUP
        pass_sums(acc, base + STAGES * SLICE, given, given + 8, turn);
#elif UPDATE
        update_tile(acc, t, at, base + STAGES * SLICE, slots);
#else
        store_tile(acc, t, maps + RESULT, base + STAGES * SLICE, half);
#endif
    }
    stores_done();
}

/* ---- the block --------------------------------------------------------------- */

/* The map of the second term's A or B, by the warp that made the first one's. */
FN void make_second(uint8_t *to, uint32_t at, const void *base)
{
    if ((TID & 31) == 0)
        MAP("global_address", "b64 [%0], %1;\n", base, "l");
    __syncwarp();
    publish_map(to, at);
}

/* Makes the maps of A, B and C, by a warp each. */
FN void make_maps(uint8_t *maps, uint32_t room, const Term *term, TO *C)
{
    const int64_t a = LDA * (int)sizeof(TI), b = LDB * (int)sizeof(TI);
    const int64_t c = LDC * (int)sizeof(TO);
    const int which = (TID >> 5) & 3, leads = (TID & 31) == 0;

    room += 128 * which;
    asm volatile("st.shared.u32 [%0], %1;\n"
                 :: "r"(room + 4 * (TID & 31)), "r"(0) : "memory");
    __syncwarp();
    if (COLUMNS && leads && which < 2)
        make_map<TIKIND>(room, which ? term->B : term->A, BLOCK, which ? N : M,
                         ROW_BLOCKS, BLOCK, (int64_t)BLOCK * (which ? N : M), BLOCK,
                         which ? BN : BM);
    else if (leads && which == 0)
        make_map<TIKIND>(room, (const uint8_t *)term->A - CAP * a, WEIGHT ? M : K,
                         CAP, CAP + 1, a, a, DEEP, TRANSA ? 64 : BM);
    else if (leads && which == 1 && WEIGHT)
        make_map<TIKIND>(room, (const uint8_t *)term->B - CAP * b, N, CAP, CAP + 1,
                         b, b, 64, 64);
    else if (leads && which == 1)
        make_map<TIKIND>(room, term->B, TRANSB ? N : K, TRANSB ? K : N, EXPERTS, b,
                         (int64_t)STRIDEB * (int)sizeof(TI), DEEP,
                         TRANSB ? 64 : BN);
    else if (leads && WEIGHT)
        make_map<TOKIND>(room, C, N, M, EXPERTS, c,
                         (int64_t)STRIDEC * sizeof(TO), BOX_COLUMNS, 64);
    else if (leads)
        make_map<TOKIND>(room, (uint8_t *)C - CAP * c, N, CAP, CAP + 1, c, c,
                         BOX_COLUMNS, 64);
    __syncwarp();
    publish_map(maps + 128 * which, room);
    if (TERMS > 1 && which == 0)
        make_second(maps + SECOND, room, (const uint8_t *)term[1].A - CAP * a);
    else if (TERMS > 1 && which == 1)
        make_second(maps + SECOND + RIGHT, room, term[1].B);
}

FN void grouped_product(const Term *term, TO *C, const int32_t *off,
                        float *squares, const Scales *v, uint8_t *work, int add,
                        const Update &update)
{
    extern __shared__ __align__(1024) uint8_t slices[];
    __shared__ __align__(8) uint64_t bars[2 * (STAGES + TILE_QUEUE_DEPTH) + 2];
    __shared__ int first[WEIGHT && !COLUMNS ? 1 : EXPERTS + 1], published[TILE_QUEUE_DEPTH];
    __shared__ __align__(16) float scales[COLUMNS ? STAGES * STAGE_SCALES : 1];
    const uint32_t base = (shared_at(slices) + 1023) & ~1023u;
    const uint32_t full = shared_at(bars), empty = full + 8 * STAGES;
    const Tiles tiles = { shared_at(published), empty + 8 * STAGES,
                          empty + 8 * (STAGES + TILE_QUEUE_DEPTH) };
    const uint32_t given = empty + 8 * (STAGES + 2 * TILE_QUEUE_DEPTH);
    const uint32_t slots = base + STAGES * SLICE +
                           (UPDATE_WARPGROUP ? BM * BN * 4
                            : UPDATE         ? 256 * BN
                                             : 2 * STORE_BUFFERS * BOX);
    uint8_t *maps = work + MAPS * (int)blockIdx.x;
    const int last = TERMS > 1 && TID >= 256 ? 5 : 3;

    if (TID < 32 && (COLUMNS || !WEIGHT))
        count_tiles(first, off);
    if (TID == 32) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(full + 8 * i, COLUMNS ? 33 : 1);
            bar_init(empty + 8 * i, TEAM * 4);
        }
        for (int i = 0; i < TILE_QUEUE_DEPTH; i++) {
            bar_init(tiles.full + 8 * i, 1);
            bar_init(tiles.empty + 8 * i, TILE_QUEUE_READERS);
        }
        bar_init(given, 8);
        bar_init(given + 8, 4);
        bars_ready();
    }
    if (TID >= 256 && TID < 352)
        make_maps(maps, base, term, C);
    __syncthreads();
    for (int i = TID >= 256 ? 0 : 2; i < last && (TID & 127) == 0; i++)
        acquire_map(maps + 128 * i);
#if UPDATE_WARPGROUP
    if (TID >= 384) {
        few_registers<120>();
        update_tiles(first, off, tiles, base + STAGES * SLICE, given, given + 8, update,
                     slices + (slots - shared_at(slices)));
        return;
    }
#endif
    if (TID >= 256) {
        few_registers<40>();
        if (TID == 256)
            fetch_tiles(maps, first, off, tiles, base, full, empty, add);
        if (COLUMNS && TID >= 288 && TID < 320)
            fetch_columns(*v, first, off, tiles, shared_at(scales), full, empty,
                          add);
    } else {
        many_registers<UPDATE_WARPGROUP ? 176 : 232>();
        const Scales fetched = { scales, 0 };
        multiply_tiles(maps, first, off, tiles, squares, COLUMNS ? &fetched : v, base,
                       full, empty, add, update,
                       slices + (slots - shared_at(slices)), given);
    }
}

/* ---- the kernel -------------------------------------------------------------- */

/* STASH: bits of a, b, c, a2: row 0 is row off[EXPERTS + 1] of the buffer. SWAP: b is
 * the left operand. DENSE: one matrix product: one expert with CAP rows. */
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
@(const TI *a, const TI *b,
#if !UPDATE
  TO *c,
#endif
#if !DENSE
  const int32_t *off,
#endif
#if SCALED
  const float *sa, const float *sb,
#endif
#if TERMS > 1
  const TI *a2, const TI *b2,
#endif
#if SCALED && TERMS > 1
  const float *sa2, const float *sb2,
#endif
#if SQUARES
  float *squares,
#endif
#if UPDATE
  UPDATED_TENSORS uint8_t *work)
#else
  uint8_t *work, int64_t add)
#endif
{
#if DENSE
    const int32_t off[] = { 0, CAP };
#endif
#if !SQUARES
    float *const squares = 0;
#endif
    const int64_t rows = STASH ? off[EXPERTS + 1] : 0;
    const TI *const x = a + (STASH & 1 ? rows * K : 0);
    const TI *const y = b + (STASH & 2 ? rows * (SWAP ? M : N) : 0);
#if !SCALED
    const Scales scales[] = { { }, { } };
#elif TERMS > 1
    const Scales scales[] = { { sa, sb }, { sa2, sb2 } };
#else
    const Scales scales[] = { { SWAP ? sb : sa, SWAP ? sa : sb } };
#endif
#if TERMS > 1
    const Term term[] = { { x, y }, { a2 + (STASH & 8 ? rows * K : 0), b2 } };
#else
    const Term term[] = { { SWAP ? y : x, SWAP ? x : y } };
#endif
#if UPDATE
    grouped_product(term, (TO *)work, off, squares, scales, work, 0,
                    Update { UPDATED_VALUES });
#else
    grouped_product(term, c + (STASH & 4 ? rows * N : 0), off, squares, scales, work,
                    (int)add, Update { });
#endif
}
