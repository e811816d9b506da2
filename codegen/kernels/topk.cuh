/* topk.cuh: y, indices of the k largest of n values, in order: larger values first,
 * NaN last, ties by the lower index.
 *
 * FORM: a thread computes an item by 0: k passes, one per result; 1: merge sort of
 * all indices in workspace. GPU, small k, 2: a warp computes an item. GPU, large k,
 * 3: a block computes an item by bitonic sort of all indices in workspace padded to
 * a power of two. LENGTH: n, or n padded so. ITEMS: their number. CT: type of a
 * value, X(i): value i, ITEM: offsets of an item in x and y. */
#define VALUE(name, i) const CT v##name = X(i);
#if FORM < 2
    for (int64_t p = lo; p < hi; p++) {
        ITEM(p, p)
#if FORM == 0
        CT last = 0;
        int64_t li = -1;
        for (int64_t c = 0; c < k; c++) {
            CT best = 0;
            int64_t bi = -1;
            for (int64_t i = 0; i < n; i++) {
                VALUE(i, i)
                if ((li < 0 || BEFORE(last, li, vi, i)) &&
                    (bi < 0 || BEFORE(vi, i, best, bi)))
                    best = vi, bi = i;
            }
            y[p1 + c * sy] = (int32_t)bi;
            last = best, li = bi;
        }
#else
        int32_t *s = work + p * 2 * n, *d = s + n;
        for (int64_t i = 0; i < n; i++)
            s[i] = (int32_t)i;
        SORT_BY_VALUE(s, d, n)
        for (int64_t c = 0; c < k; c++)
            y[p1 + c * sy] = s[c];
#endif
    }
#elif FORM == 2
    /* Lane l has the order keys of elements l, l + 32, .. and a mask of those
     * already taken. Each of k rounds takes the first element of the warp. */
    enum { EACH = (LENGTH + 31) / 32 };
    const int lane = TID & 31;
    const int64_t p = (int64_t)blockIdx.x * (THREADS / 32) + (TID >> 5);
    if (p < ITEMS) {
        ITEM(p, p)
        typedef decltype(order_key((CT)0)) Key;
        Key v[EACH];
        uint32_t gone = 0;
        int32_t mine = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = j * 32 + lane;
            v[j] = i < LENGTH ? order_key(X(i)) : 0;
            gone |= (i >= LENGTH ? 1u : 0u) << j;
        }
        for (int c = 0; c < k; c++) {
            Key best = 0;
            int bi = -1;
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (!(gone >> j & 1) && (bi < 0 || v[j] > best))
                    best = v[j], bi = j * 32 + lane;
            bi = warp_first(best, bi);
            gone |= (lane == (bi & 31) ? 1u : 0u) << (bi >> 5);
            mine = lane == c ? bi : mine;
        }
        if (lane < k)
            y[p1 + lane * sy] = mine;
    }
#else
    const int64_t p = blockIdx.x;
    ITEM(p, p)
    const auto before = [&](int i, int j) {
        if (i < 0 || j < 0)
            return i >= 0 && j < 0;
        VALUE(l, i) VALUE(r, j)
        return BEFORE(vl, i, vr, j) ? true : false;
    };
    int32_t *const s = work + p * LENGTH;
    for (int i = TID; i < LENGTH; i += THREADS)
        s[i] = i < n ? i : -1;
    for (int w = 2; w <= LENGTH; w *= 2)
        for (int h = w / 2; h; h /= 2) {
            __syncthreads();
            for (int q = TID; q < LENGTH / 2; q += THREADS) {
                const int a = q / h * 2 * h + q % h, b = a + h;
                const int i = s[a], j = s[b];
                if (a & w ? before(i, j) : before(j, i))
                    s[a] = j, s[b] = i;
            }
        }
    __syncthreads();
    for (int c = TID; c < k; c += THREADS)
        y[p1 + c * sy] = s[c];
#endif
#undef VALUE
#undef BEFORE
#undef SORT_BY_VALUE
