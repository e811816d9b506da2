/* sort.cuh: the order of topk, and a stable merge sort by it.
 *
 * BEFORE: does (x, i) precede (y, j)? Larger values first, NaN last, ties by the
 * lower index. SORT_BY_VALUE: sorts s[0..len), d is a buffer of the same size;
 * VALUE(name, i) declares v<name>, the value of element i. */
#define BEFORE(x, i, y, j) ((x) > (y) || ((y) != (y) && (x) == (x)) || \
    (((x) == (y) || ((x) != (x) && (y) != (y))) && (i) < (j)))
#define SORT_BY_VALUE(s, d, len)                                     \
    for (int64_t w = 1; w < (len); w *= 2) {                         \
        for (int64_t f = 0; f < (len); f += 2 * w) {                 \
            int64_t m = f + w < (len) ? f + w : (len);               \
            const int64_t end = m + w < (len) ? m + w : (len), h = m; \
            for (int64_t a = f, c = f; c < end; c++) {               \
                int left = a < h;                                    \
                if (left && m < end) {                               \
                    VALUE(l, s[a])                                   \
                    VALUE(r, s[m])                                   \
                    left = BEFORE(vl, 0, vr, 1);                     \
                }                                                    \
                d[c] = left ? s[a++] : s[m++];                       \
            }                                                        \
        }                                                            \
        int32_t *t = s;                                              \
        s = d, d = t;                                                \
    }
