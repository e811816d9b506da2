/* scatter.cuh: y[.. x ..] = sum of the values whose index is x, added in the order of
 * the indices. n: size of the axis of x, sx: its stride; width: size of the
 * contiguous axis, cut into nb parts; sv: its stride in the values; many: indices of
 * an item.
 *
 * parts: blocks over which indices are divided.
 *
 * ADDS: y is added to. TWO: the axis has two zigzag pieces of `half` on each rank;
 * first, second: their starts. WIDE: sums are in fp32 workspace `room`. V(at): a
 * value, Y(at): a result, SAVE(s): a sum as it is stored. CT: type of V, ST: of a
 * sum. ITEM, SUM: offsets in results, values and indices. GRID: on GPUs. */
#define INDEX(x, e)                                          \
    int64_t x = (int64_t)(e) - first;                        \
    if (TWO && (uint64_t)x >= (uint64_t)half) {              \
        x += first - second;                                 \
        x = (uint64_t)x < (uint64_t)half ? x + half : -1;    \
    }
#if GRID
    /* Each block owns every parts-th index x and THREADS columns of the contiguous
     * axis, or a multiple: every block scans all indices, so there are no more
     * blocks than keep the GPU busy. Frequent indices (common tokens) are often
     * adjacent, so the indices of one block are interleaved; one very frequent index
     * is divided over blocks by columns (decisions/scatter-blocks.md). A block scans
     * THREADS indices at a time and appends its own to a list in order. When the
     * list is full, or at the end, each thread adds its columns with AHEAD loads in
     * flight; a repeated index continues from the earlier sum. A column belongs to
     * one thread, so sums need no barrier. */
#define EACH_COLUMN for (int64_t l = l0; l < width; l += nb * THREADS)
    enum { AHEAD = 8 };
    __shared__ int64_t place[2 * THREADS], value[2 * THREADS];
    int have = 0;
    ST *const sum = (ST *)room;
    const int64_t p = blockIdx.x, l0 = p % nb * THREADS + TID;
    const int64_t part = p / nb % parts;
    ITEM(p, p / nb / parts)
    if (!ADDS || WIDE)
        EACH_COLUMN
            for (int64_t x = part; x < n; x += parts)
                sum[p0 + x * sx + l] = ADDS ? Y(p0 + x * sx + l) : 0;
    for (int64_t i0 = 0; i0 < many; i0 += THREADS) {
        const int64_t i = i0 + TID;
        int64_t to_x = 0, to_v = 0;
        int hit = 0, all;
        if (i < many) {
            SUM(q, i)
            INDEX(x, e[p2 + q2])
            hit = (uint64_t)x < (uint64_t)n && x % parts == part;
            to_x = x * sx, to_v = q1;
        }
        const int at = have + block_before(hit, all);
        if (hit)
            place[at] = to_x, value[at] = to_v;
        have += all;
        if (have <= THREADS && i0 + THREADS < many)
            continue;
        __syncthreads();
        EACH_COLUMN
            for (int h = 0; h < have; h += AHEAD) {
                int64_t x[AHEAD];
                CT w[AHEAD];
                ST z[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    const bool in = h + j < have;
                    x[j] = in ? p0 + place[h + j] + l : -1;
                    w[j] = in ? V(p1 + value[h + j] + l * sv) : (CT)0;
                    z[j] = in ? sum[x[j]] : 0;
                }
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
#pragma unroll
                    for (int i = 0; i < j; i++)
                        z[j] = x[i] == x[j] ? z[i] : z[j];
                    z[j] += w[j];
                }
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    if (h + j < have)
                        sum[x[j]] = z[j];
            }
        have = 0;
    }
    if (WIDE)
        EACH_COLUMN
            for (int64_t x = part; x < n; x += parts)
                y[p0 + x * sx + l] = SAVE(sum[p0 + x * sx + l]);
#undef EACH_COLUMN
#else
    /* An item has COLUMNS columns. */
#define TO(x, l) (WIDE ? (x) * COLUMNS + (l) : p0 + (x) * sx + (l))
    for (int64_t p = lo; p < hi; p++) {
        const int64_t f = p % nb * COLUMNS;
        const int64_t w = width - f < COLUMNS ? width - f : COLUMNS;
        ITEM(p, p / nb)
        p0 += f, p1 += f * sv;
        ST *const sum = (ST *)room + (WIDE ? p * n * COLUMNS : 0);
        for (int64_t x = 0; (!ADDS || WIDE) && x < n; x++)
            for (int64_t l = 0; l < w; l++)
                sum[TO(x, l)] = ADDS ? Y(p0 + x * sx + l) : 0;
        for (int64_t q = 0; q < many; q++) {
            SUM(q, q)
            INDEX(x, e[p2 + q2])
            if ((uint64_t)x >= (uint64_t)n)
                continue;
#pragma GCC ivdep
            for (int64_t l = 0; l < w; l++)
                sum[TO(x, l)] += V(p1 + q1 + l * sv);
        }
        for (int64_t x = 0; WIDE && x < n; x++)
            for (int64_t l = 0; l < w; l++)
                y[p0 + x * sx + l] = SAVE(sum[TO(x, l)]);
    }
#undef TO
#endif
#undef INDEX
