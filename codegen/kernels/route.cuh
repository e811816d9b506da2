/* route.cuh: the routing map of `pairs` pairs: pair[r], the pair of row r; row[i],
 * the row of pair i or -1; off[x], the first row of expert x. Rows are assigned in
 * the order of expert, then pair.
 *
 * EXPERT(i): expert of pair i. PADDED: every expert has `each` rows, and rows
 * without a pair are -1. BUDGET: the map is the window of `cap` rows from row `from`
 * on; `total` gets the number of all rows. STASH: off[experts + 1] gets the first
 * row of this route in the stashed stacks: behind the rows of the route before,
 * `last` (FOLLOWS), of `rows` experts, rounded up to blocks of 128. If its capacity
 * does not fit there, `total` reports an overflow. GRID: on GPUs. */
    int32_t *const off = map + at_off, *const pair = map + at_pair;
    int32_t *const row = map + at_row, *const total = map + at_total;
#define CUT(r) (int32_t)((r) < 0 ? 0 : (r) < cap ? (r) : cap)
#if GRID
    /* Two launches; each block has a range of pairs. Launch 0 counts the pairs of
     * each expert per block. Launch 1 adds the counts of earlier blocks and assigns
     * rows. WIDE experts are processed at a time: a warp ranks its 32 pairs within
     * their experts, and one thread per expert sums over warps. BEGIN(x, before):
     * first row of expert x if `before` pairs belong to earlier experts. Rows 0 ..
     * END(x) exist. decisions/route-blocks.md compares it with one block per
     * expert. */
#define BEGIN(x, before) (PADDED ? (x) * each : (before) - from)
#define END(x) (PADDED ? ((x) + 1) * each : cap)
    enum { WIDE = 256, WARPS = THREADS / 32 };
    __shared__ int32_t many[WARPS][WIDE], next[WIDE];
    const int lane = TID & 31, warp = TID >> 5, me = (int)blockIdx.x;
    const int64_t end = (me + 1) * each_block;
    const int64_t lo = me * each_block, hi = end < pairs ? end : pairs;
    int64_t below = 0;
    if (PADDED && !launch)
        for (int64_t i = me * THREADS + TID; i < cap; i += blocks * THREADS)
            pair[i] = -1;
    for (int64_t x0 = 0; x0 < experts; x0 += WIDE) {
        const int wide = experts - x0 < WIDE ? experts - x0 : WIDE;
        for (int s = 0; s < wide; s += THREADS) {
            const int x = s + TID;
            int32_t mine = 0, mine_before = 0, all;
            if (launch && x < wide) {
#pragma unroll 32
                for (int b = 0; b < blocks; b++) {
                    const int32_t n = count[b * experts + x0 + x];
                    mine_before += b < me ? n : 0;
                    mine += n;
                }
            }
            const int64_t r = BEGIN(x0 + x, below + block_before(mine, all));
            below += all;
            if (x < wide)
                next[x] = launch ? (int32_t)r + mine_before : 0;
            if (x < wide && launch && me == 0)
                off[x0 + x] = CUT(r);
        }
        for (int64_t i0 = lo; i0 < hi; i0 += THREADS) {
            const int64_t i = i0 + TID;
            const int64_t w = i < hi ? EXPERT(i) - x0 : -1;
            const int x = w >= 0 && w < wide ? (int)w : -1;
            int rank = 0, same = 0;
            for (int l = 0; l < 32; l++) {
                const int is = __shfl_sync(~0u, x, l) == x ? 1 : 0;
                same += is;
                rank += l < lane ? is : 0;
            }
            for (int e = lane; e < wide; e += 32)
                many[warp][e] = 0;
            __syncwarp();
            if (x >= 0 && rank == same - 1)
                many[warp][x] = same;
            __syncthreads();
            for (int e = TID; e < wide; e += THREADS) {
                int32_t to = next[e];
#pragma unroll
                for (int v = 0; v < WARPS; v++) {
                    const int32_t n = many[v][e];
                    many[v][e] = to;
                    to += n;
                }
                next[e] = to;
            }
            __syncthreads();
            const int64_t r = x >= 0 ? many[warp][x] + rank : -1;
            if (!launch && x0 == 0 && i < hi)
                row[i] = -1;
            if (launch && r >= 0 && r < END(x0 + x))
                row[i] = (int32_t)r, pair[r] = (int32_t)i;
            __syncwarp();
        }
        for (int e = TID; e < wide && !launch; e += THREADS)
            count[me * experts + x0 + e] = next[e];
    }
    const int ends = launch && me == 0 && TID == 0;
    if (ends) {
        off[experts] = CUT(BEGIN(experts, below));
#if BUDGET
        *total = (int32_t)below;
#endif
    }
#undef BEGIN
#undef END
#else
    /* Count, prefix sum, assign rows. The counters then point to the next expert's
     * first row and are shifted back. */
    const int ends = 1;
    for (int64_t p = lo; p < hi; p++) {
        for (int64_t x = 0; x <= experts; x++)
            off[x] = PADDED ? (int32_t)(x * each) : 0;
        for (int64_t i = 0; PADDED && i < cap; i++)
            pair[i] = -1;
        for (int64_t i = 0; !PADDED && i < pairs; i++) {
            const int64_t x = EXPERT(i);
            if ((uint64_t)x < (uint64_t)experts)
                off[x + 1]++;
        }
        for (int64_t x = 0; !PADDED && x < experts; x++)
            off[x + 1] += off[x];
#if BUDGET
        *total = off[experts];
#endif
        for (int64_t i = 0; i < pairs; i++) {
            const int64_t x = EXPERT(i);
            row[i] = -1;
            if ((uint64_t)x >= (uint64_t)experts ||
                (PADDED && off[x] >= (x + 1) * each))
                continue;
            const int64_t r = off[x]++ - from;
            if (r >= 0 && r < cap)
                row[i] = (int32_t)r, pair[r] = (int32_t)i;
        }
        for (int64_t x = experts; x > 0; x--)
            off[x] = PADDED ? (int32_t)(x * each) : CUT(off[x - 1] - from);
        off[0] = 0;
    }
#endif
#if STASH
    if (ends) {
#if FOLLOWS
        const int64_t base = last[rows + 1] + (int64_t)((last[rows] + 127) & ~127);
#else
        const int64_t base = 0;
#endif
        off[experts + 1] = (int32_t)(base < most ? base : most);
        if (base > most)
            *total = INT32_MAX;
    }
#endif
    (void)ends;
#undef CUT
