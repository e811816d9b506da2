/* blocks.cuh: quantizes bf16 to e4m3 with a power-of-two scale per block, reading
 * each value once.
 *
 *   square   w [x][P][Q]  ->  q  [x][P][Q], s  [x][P / 128][Q / 128]   if LIES
 *                             tq [x][Q][P], ts [x][Q / 128][P / 128]   if TURNED
 *   rows     x [P][Q]     ->  q [P][Q], s [P][Q / 128]   of the rows in use
 *   columns  x [P][Q]     ->  the same if LIES, and
 *                             tq [block][Q][128], ts [block][Q]   for blocks of 128
 *            rows of an expert, from its first row on, padded with 0.
 *            GATHERED: x [token][Q]; row r is token pair[r] / TOP, < 0: zeros
 *
 * s and ts are dequantization scales (1 / scale). Square blocks: each of 256
 * threads keeps 8 x 8 elements in registers from the search of the maximum to the
 * last store. The transposed result passes through shared memory in units of 8
 * bytes, rotated every 8 lines, so that no two threads of a half warp use the same
 * bank; columns do the same. Rows: 16 threads per block.
 *
 * Constants: P Q AT_ONCE EXPERTS TOP. P (of squares) and Q are multiples of 8. */
#define BLOCK 128
#define BLOCKSP ((P + BLOCK - 1) / BLOCK)
#define BLOCKSQ ((Q + BLOCK - 1) / BLOCK)

struct alignas(16) Eight { uint32_t pair[4]; };
struct alignas(8) Bytes { uint16_t pair[4]; };

FN uint32_t most_of(const Eight &v, uint32_t most)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        most = most_of_pair(v.pair[k], most);
    return most;
}
FN float number(const Eight &v, int l)
{
    return __uint_as_float(l % 2 ? v.pair[l / 2] & 0xffff0000u : v.pair[l / 2] << 16);
}
/* Compiler barrier: values derived from v are recomputed after it, so registers
 * hold only the packed pairs. */
FN void keep_in_registers(Eight (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        asm volatile("" : "+r"(v[i].pair[0]), "+r"(v[i].pair[1]),
                     "+r"(v[i].pair[2]), "+r"(v[i].pair[3]));
}
FN Bytes line_of(const Eight &v, float s)
{
    Bytes out;
#pragma unroll
    for (int k = 0; k < 4; k++)
        out.pair[k] = two_of(number(v, 2 * k), number(v, 2 * k + 1), s);
    return out;
}
FN Bytes column_of(const Eight (&v)[8], int l, float s)
{
    Bytes out;
#pragma unroll
    for (int k = 0; k < 4; k++)
        out.pair[k] = two_of(number(v[2 * k], l), number(v[2 * k + 1], l), s);
    return out;
}

/* Store 8 bytes at column `at` of a line, if line and column exist. */
template <int LINES, int LINE>
FN void put_bytes(uint8_t *q, int64_t x, int line, int at, const Bytes &v)
{
    if (line < LINES && at < LINE)
        *(Bytes *)(q + (x * LINES + line) * LINE + at) = v;
}

template <int LIES, int TURNED>
FN void quantize_square(const uint16_t *w, uint8_t *q, float *s, uint8_t *tq, float *ts)
{
    __shared__ Bytes room[TURNED ? BLOCK * 16 : 1];
    __shared__ uint32_t warp[8];
    const int c = TID & 15, r = TID >> 4; /* 8 columns from 8c, 8 lines from 8r */
    const int bq = (int)blockIdx.x % BLOCKSQ, bp = (int)blockIdx.x / BLOCKSQ % BLOCKSP;
    const int64_t x = blockIdx.x / (BLOCKSQ * BLOCKSP);
    const int p0 = bp * BLOCK + r * 8, q0 = bq * BLOCK + c * 8;
    Eight v[8] = { };
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < 8; i++)
        if (p0 + i < P && q0 < Q)
            v[i] = *(const Eight *)(w + (x * P + p0 + i) * Q + q0);
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = most_of(v[i], most);
    most = most_among(most_of_both(most), 32);
    if ((TID & 31) == 0)
        warp[TID >> 5] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++)
        most = warp[i] > most ? warp[i] : most;
    const float scale = scale_of(most);
    if (LIES && TID == 0)
        s[(x * BLOCKSP + bp) * BLOCKSQ + bq] = inverse_of(scale);
    if (TURNED && TID == 0)
        ts[(x * BLOCKSQ + bq) * BLOCKSP + bp] = inverse_of(scale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (TURNED)
            room[(c * 8 + i) * 16 + (r ^ c)] = column_of(v, i, scale);
        if (LIES)
            put_bytes<P, Q>(q, x, p0 + i, q0, line_of(v[i], scale));
    }
    if (!TURNED)
        return;
    __syncthreads();
    for (int i = 0; i < 8; i++) {
        const int line = r + i * 16;      /* line of the transposed block */
        put_bytes<Q, P>(tq, x, bq * BLOCK + line, bp * BLOCK + c * 8,
                        room[line * 16 + (c ^ line / 8)]);
    }
}

/* AT_ONCE blocks for each group of 16 threads, all loaded before the first
 * store. */
FN void quantize_rows(const uint16_t *x, uint8_t *q, float *s, int rows)
{
    const int64_t first = (int64_t)blockIdx.x * 16 * AT_ONCE + (TID >> 4);
    Eight v[AT_ONCE];

#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int64_t at = first + i * 16, row = at / BLOCKSQ;
        const int q0 = (int)(at % BLOCKSQ) * BLOCK + (TID & 15) * 8;
        v[i] = Eight { };
        if (row < rows && q0 < Q)
            v[i] = *(const Eight *)(x + row * Q + q0);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int64_t at = first + i * 16, row = at / BLOCKSQ;
        const int q0 = (int)(at % BLOCKSQ) * BLOCK + (TID & 15) * 8;
        const float scale = scale_of(most_among(most_of_both(most_of(v[i], 0)), 16));
        if (row < rows && q0 < Q)
            put_bytes<P, Q>(q, 0, (int)row, q0, line_of(v[i], scale));
        if (row < rows && (TID & 15) == 0)
            s[at] = inverse_of(scale);
    }
}

/* ---- columns ----------------------------------------------------------------- */

/* first row of a block and its rows; 0 rows: no such block */
struct Place { int row, rows; };

FN int blocks_of_expert(const int32_t *off, int x)
{
    return x < EXPERTS ? (off[x + 1] - off[x] + BLOCK - 1) / BLOCK : 0;
}

/* Rows of the p-th block over all experts, by one warp: each lane counts the blocks
 * of consecutive experts. */
FN Place place_of(int p, const int32_t *off)
{
    const int lane = TID & 31, each = (EXPERTS + 31) / 32;
    int own = 0, row = 0, rows = 0;

#pragma unroll 4
    for (int k = 0; k < each; k++)
        own += blocks_of_expert(off, lane * each + k);
    int n = own;
    for (int h = 1; h < 32; h *= 2) {
        const int left = __shfl_up_sync(~0u, n, h);
        n += lane >= h ? left : 0;
    }
    int at = p - n + own;
    const unsigned has = __ballot_sync(~0u, at >= 0 && at < own);
    if (!has)
        return { 0, 0 };
    const int by = __ffs((int)has) - 1;
    for (int k = 0; lane == by && k < each; k++) {
        const int x = lane * each + k, blocks = blocks_of_expert(off, x);
        if (at >= 0 && at < blocks) {
            row = off[x] + at * BLOCK;
            rows = off[x + 1] - row;
        }
        at -= blocks;
    }
    row = __shfl_sync(~0u, row, by);
    rows = __shfl_sync(~0u, rows, by);
    return { row, rows < BLOCK ? rows : BLOCK };
}

/* most[w][c]: largest magnitude in column c of a block, over the rows of warp w. */
FN void most_of_columns(const Eight (&v)[8], uint16_t (*most)[BLOCK])
{
    const int c = TID & 15, warp = TID >> 5;
    Eight m = { };

#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            m.pair[k] = most_of_pair(v[i].pair[k], m.pair[k]);
        m.pair[k] = __vmaxu2(m.pair[k], __shfl_xor_sync(~0u, m.pair[k], 16));
    }
    if ((TID & 16) == 0)
        *(Eight *)(most[warp] + c * 8) = m;
}

/* Scales of the thread's 8 rows, shared by the 16 threads of a row: in three
 * exchanges each thread halves its rows and doubles its columns; it ends with the
 * maximum of row c / 2, whose scale is returned. */
FN float scales_of_rows(const Eight (&v)[8], float (&one)[8])
{
    const int c = TID & 15;
    uint32_t most[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        most[i] = most_of_both(most_of(v[i], 0));
#pragma unroll
    for (int h = 4; h; h /= 2) {
        const bool upper = (c & h * 2) != 0;
#pragma unroll
        for (int i = 0; i < h; i++) {
            const uint32_t kept = upper ? most[i + h] : most[i];
            const uint32_t sent = upper ? most[i] : most[i + h];
            const uint32_t other = __shfl_xor_sync(~0u, sent, h * 2);
            most[i] = other > kept ? other : kept;
        }
    }
    const uint32_t other = __shfl_xor_sync(~0u, most[0], 1);
    const float own = scale_of(other > most[0] ? other : most[0]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        one[i] = __shfl_sync(~0u, own, (TID & 16) + i * 2);
    return own;
}

/* Block of 128 rows and block of 128 columns that the thread block quantizes.
 * Gathered tokens are read once per expert, so blocks run over all rows of
 * SIDEBYSIDE column blocks before the next columns: that part of all tokens stays
 * in L2. */
#define SIDEBYSIDE 8
struct Spot { int p, b; };
template <int GATHERED> FN Spot spot_of(int i)
{
    if (!GATHERED)
        return { i / BLOCKSQ, i % BLOCKSQ };
    const int high = (int)gridDim.x / BLOCKSQ, from = i / (high * SIDEBYSIDE) * SIDEBYSIDE;
    const int wide = BLOCKSQ - from < SIDEBYSIDE ? BLOCKSQ - from : SIDEBYSIDE;
    i -= high * from;
    return { i / wide, from + i % wide };
}

FN Place block_place(int p, const int32_t *off)
{
    __shared__ Place place;

    if (TID < 32) {
        const Place found = place_of(p, off);
        if (TID == 0)
            place = found;
    }
    __syncthreads();
    return place;
}

/* Quantizes the rows of a block, in registers v, by columns (and by rows if LIES).
 * room: BLOCK * 16 units; it may be the memory v was loaded from. */
template <int LIES>
FN void put_columns(Eight (&v)[8], Bytes *room, uint8_t *q, float *s, uint8_t *tq,
                    float *ts, const Spot &spot, const Place &place)
{
    __shared__ __align__(16) uint16_t most[8][BLOCK];
    __shared__ __align__(16) float scale[BLOCK];
    const int c = TID & 15, r = TID >> 4; /* 8 columns from 8c, 8 rows from 8r */
    const int p = spot.p, b = spot.b, q0 = b * BLOCK + c * 8;
    const int rows = place.rows - r * 8;
    const int64_t row = place.row + r * 8;

    most_of_columns(v, most);
    keep_in_registers(v);
    __syncthreads();
    if (TID < BLOCK) {
        uint32_t m = 0;
        for (int i = 0; i < 8; i++)
            m = most[i][TID] > m ? most[i][TID] : m;
        scale[TID] = scale_of(m);
        if (b * BLOCK + TID < Q)
            ts[(int64_t)p * Q + b * BLOCK + TID] = inverse_of(scale[TID]);
    }
    if constexpr (LIES) {
        float one[8];
        const float own = scales_of_rows(v, one);
        uint8_t *const to = q + row * Q + q0;
        keep_in_registers(v);
        if (c % 2 == 0 && c / 2 < rows)
            s[(row + c / 2) * BLOCKSQ + b] = inverse_of(own);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < rows && (Q % BLOCK == 0 || q0 < Q))
                *(Bytes *)(to + (int64_t)i * Q) = line_of(v[i], one[i]);
    }
    keep_in_registers(v);
    __syncthreads();
    const float4 scales[] = { *(const float4 *)(scale + c * 8),
                              *(const float4 *)(scale + c * 8 + 4) };
#pragma unroll
    for (int l = 0; l < 8; l++)
        room[(c * 8 + l) * 16 + (r ^ c)] =
            column_of(v, l, ((const float *)scales)[l]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int line = r + i * 16;
        if (Q % BLOCK == 0 || b * BLOCK + line < Q)
            *(Bytes *)(tq + ((int64_t)p * Q + b * BLOCK + line) * BLOCK + c * 8) =
                room[line * 16 + (c ^ line / 8)];
    }
}

template <int LIES, int GATHERED>
FN void quantize_columns(const uint16_t *x, uint8_t *q, float *s, uint8_t *tq, float *ts,
                         const int32_t *off, const int32_t *pair)
{
    __shared__ Bytes room[BLOCK * 16];
    const Spot spot = spot_of<GATHERED>((int)blockIdx.x);
    const Place place = block_place(spot.p, off);
    const int q0 = spot.b * BLOCK + (TID & 15) * 8;
    const int rows = place.rows - (TID >> 4) * 8;
    const int64_t row = place.row + (TID >> 4) * 8;
    Eight v[8] = { };

    if (place.rows == 0)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < rows && q0 < Q) {
            const int64_t at = GATHERED ? pair[row + i] : row + i;
            if (at >= 0)
                v[i] = *(const Eight *)(x + (GATHERED ? at / TOP : at) * Q + q0);
        }
    put_columns<LIES>(v, room, q, s, tq, ts, spot, place);
}

/* ---- values that the kernel computes (loop/tile_gpu.c) ----------------------- */

/* A tile of 128 x 128 as vectors of W along lines; vector TID + 256 k is the k-th
 * of a thread. P and Q are multiples of 128. */
#define PIECES_OF(W) (BLOCK * BLOCK / (256 * (W)))

template <int W> FN int piece_line(int k)
{
    return (k * 256 + TID) / (BLOCK / W);
}
/* Number of the thread's vector among those of the matrix: for a weight block, for
 * expert rows. */
template <int W> FN int64_t line_piece(int64_t line, int64_t b)
{
    return line * (Q / W) + b * (BLOCK / W) + TID % (BLOCK / W);
}
template <int W> FN int64_t square_piece(int k)
{
    const int64_t high = blockIdx.x / BLOCKSQ;

    return line_piece<W>(high * BLOCK + piece_line<W>(k), blockIdx.x % BLOCKSQ);
}
template <int W> FN int64_t row_piece(const Place &place, int k)
{
    return line_piece<W>((int64_t)place.row + piece_line<W>(k),
                         blockIdx.x % BLOCKSQ);
}

template <int W>
FN uint32_t keep_piece(uint16_t *held, int k, const float *t, uint32_t most)
{
    uint32_t pair[W / 2];

#pragma unroll
    for (int i = 0; i < W / 2; i++) {
        pair[i] = two_bf16(t[2 * i], t[2 * i + 1]);
        most = most_of_pair(pair[i], most);
    }
    store<W / 2, W / 2>((unsigned *)(held + (k * 256 + TID) * W), pair);
    return most;
}
template <int W> FN void clear_piece(uint16_t *held, int k)
{
    const unsigned none[W / 2] = { };

    store<W / 2, W / 2>((unsigned *)(held + (k * 256 + TID) * W), none);
}

/* Quantizes the vectors of each thread with the scale of the tile. */
template <int W>
FN void round_square(const uint16_t *held, uint32_t most, uint8_t *q, float *s)
{
    __shared__ uint32_t warp[8];

    most = most_among(most_of_both(most), 32);
    if ((TID & 31) == 0)
        warp[TID >> 5] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++)
        most = warp[i] > most ? warp[i] : most;
    const float scale = scale_of(most);
    if (s && TID == 0)
        s[blockIdx.x] = inverse_of(scale);
#pragma unroll
    for (int k = 0; q && k < PIECES_OF(W); k++) {
        unsigned pair[W / 2];
        uint16_t out[W / 2];
        load<W / 2, W / 2>(pair, (const unsigned *)(held + (k * 256 + TID) * W));
#pragma unroll
        for (int i = 0; i < W / 2; i++)
            out[i] = two_of(__uint_as_float(pair[i] << 16),
                            __uint_as_float(pair[i] & 0xffff0000u), scale);
        store<W / 2, W / 2>((uint16_t *)(q + square_piece<W>(k) * W), out);
    }
}

template <int LIES>
FN void round_columns(uint16_t *held, uint8_t *q, float *s, uint8_t *tq, float *ts,
                      const Place &place)
{
    const int c = TID & 15, r = TID >> 4;
    Eight v[8];

    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = *(const Eight *)(held + (r * 8 + i) * BLOCK + c * 8);
    put_columns<LIES>(v, (Bytes *)held, q, s, tq, ts,
                      spot_of<0>((int)blockIdx.x), place);
}
