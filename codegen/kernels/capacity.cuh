/* capacity.cuh: y, the experts e of n pairs, -1 for those beyond `room` pairs of an
 * expert: FIRST: the last ones, else those of the smallest weight. GRID: on GPUs.
 * ITEM, PAIR: offsets of an item and of a pair in y, e and weights; VALUE(name, i)
 * declares v<name>, the weight of pair i. Equal tokens have weights that are equal
 * up to the order of sums, which depends on the fold; VALUE rounds to fewer bits,
 * which makes these ties, and the earlier token is kept in every fold. */
#if GRID
    /* One block per expert. It lists the expert's pairs in order, then finds the
     * largest weight that at least `room` pairs reach, bit by bit. Of the pairs with
     * exactly this weight the first are kept. */
    enum { EACH = 8 };
    const int x = (int)(blockIdx.x % experts);
    const int64_t p = blockIdx.x / experts;
    ITEM(p, p)
    int before = 0, len = 0;
    for (int q = TID; q < n; q += THREADS) {
        PAIR(q, q)
        const int64_t w = e[p1 + q1];
        before += w >= 0 && w < x;
        len += w == x;
    }
    before = block_sum(before), len = block_sum(len);
    int32_t *const s = work + p * n + before;
    for (int i0 = 0, at = 0; i0 < n; i0 += THREADS * EACH) {
        const int from = i0 + TID * EACH;
        int have = 0, all;
        for (int j = 0; j < EACH && from + j < n; j++) {
            PAIR(q, from + j)
            const int64_t w = e[p1 + q1];
            have |= (w == x ? 1 : 0) << j;
            if (w == x || (x == 0 && (uint64_t)w >= (uint64_t)experts))
                y[p0 + q0] = e[p1 + q1];
        }
        int to = at + block_before(__popc(have), all);
        for (int j = 0; j < EACH; j++)
            if (have >> j & 1)
                s[to++] = from + j;
        at += all;
    }
    __syncthreads();
    if (len <= room)
        return;
#if FIRST
    for (int i = (int)room + TID; i < len; i += THREADS) {
        PAIR(q, s[i])
        y[p0 + q0] = -1;
    }
#else
    const auto key = [&](int i) {
        VALUE(k, s[i])
        return order_key(vk);
    };
    uint64_t edge = 0;
    for (int b = sizeof(key(0)) * 8 - 1; b >= 0; b--) {
        const uint64_t t = edge | (uint64_t)1 << b;
        int many = 0;
        for (int i = TID; i < len; i += THREADS)
            many += key(i) >= t;
        edge = block_sum(many) >= room ? t : edge;
    }
    int more = 0;
    for (int i = TID; i < len; i += THREADS)
        more += key(i) > edge;
    more = block_sum(more);
    for (int i0 = 0; i0 < len; i0 += THREADS) {
        const int i = i0 + TID;
        const uint64_t w = i < len ? key(i) : 0;
        int all, same = i < len && w == edge;
        const int at = more + block_before(same, all);
        if (i < len && (w < edge || (same && at >= room))) {
            PAIR(q, s[i])
            y[p0 + q0] = -1;
        }
        more += all;
    }
#endif
#else
    for (int64_t p = lo; p < hi; p++) {
        ITEM(p, p)
        /* Counting sort of the pairs by expert; off[x] is the end of expert x. */
        int32_t *const off = work + p * (experts + 2 * n);
        int32_t *const sorted = off + experts;
        for (int64_t x = 0; x < experts; x++)
            off[x] = 0;
        for (int64_t q = 0; q < n; q++) {
            PAIR(q, q)
            const int64_t x = e[p1 + q1];
            y[p0 + q0] = e[p1 + q1];
            if ((uint64_t)x < (uint64_t)experts)
                off[x]++;
        }
        for (int64_t x = 0, sum = 0; x < experts; x++) {
            const int32_t many = off[x];
            off[x] = (int32_t)sum;
            sum += many;
        }
        for (int64_t q = 0; q < n; q++) {
            PAIR(q, q)
            const int64_t x = e[p1 + q1];
            if ((uint64_t)x < (uint64_t)experts)
                sorted[off[x]++] = (int32_t)q;
        }
        for (int64_t x = 0; x < experts; x++) {
            const int64_t from = x ? off[x - 1] : 0, len = off[x] - from;
            if (len <= room)
                continue;
            int32_t *s = sorted + from;
#if !FIRST
            int32_t *d = s + n;
            SORT_BY_VALUE(s, d, len)
#endif
            for (int64_t i = room; i < len; i++) {
                PAIR(q, s[i])
                y[p0 + q0] = -1;
            }
        }
    }
#endif
#undef BEFORE
#undef SORT_BY_VALUE
