/* cumsum.cuh: y, running sums of n values x. BLOCKS: a block computes an item, and a
 * thread sums EACH consecutive values; else a thread computes an item. CT: type of a
 * value, X(i): value i, SAVE(s): s as it is stored, ITEM: offsets of an item in x
 * and y. */
#if BLOCKS
    enum { EACH = 8 };
    const int64_t p = blockIdx.x;
    ITEM(p, p)
    CT before = 0;
    for (int64_t i0 = 0; i0 < n; i0 += THREADS * EACH) {
        const int64_t from = i0 + TID * EACH;
        CT v[EACH], mine = 0, all;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t i = from + j;
            v[j] = i < n ? X(i) : (CT)0;
            mine += v[j];
        }
        CT s = before + block_before(mine, all);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t i = from + j;
            s += v[j];
            if (i < n)
                y[p1 + i * sy] = SAVE(s);
        }
        before += all;
    }
#else
    for (int64_t p = lo; p < hi; p++) {
        ITEM(p, p)
        CT s = 0;
        for (int64_t i = 0; i < n; i++) {
            s += X(i);
            y[p1 + i * sy] = SAVE(s);
        }
    }
#endif
