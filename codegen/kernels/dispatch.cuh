/* dispatch.cuh: copies rows of WIDTH pieces of 16 bytes from tokens x to expert rows
 * y. top: rows of a token. */
#if PADDED
    /* One warp per expert row, for maps with rows that have no token and become
     * zero. */
    const int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + (TID >> 5);
    if (r >= map[experts])
        return;
    const int at = map[pair + r];
    const uint4 *const from = x + at / top * WIDTH;
    for (int c = TID & 31; c < WIDTH; c += 32)
        y[r * WIDTH + c] = at >= 0 ? from[c] : uint4 { 0, 0, 0, 0 };
#else
    /* One warp per token, 16 bytes a lane, EACH loads in flight: each row is read
     * once and written to all its expert rows. */
    enum { EACH = 8 };
    const int64_t t = (int64_t)blockIdx.x * (THREADS / 32) + (TID >> 5);
    if (t >= tokens)
        return;
    const uint4 *const from = x + t * WIDTH;
    const int32_t *const to = map + row + t * top;
    for (int c0 = TID & 31; c0 < WIDTH; c0 += 32 * EACH) {
        uint4 v[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (c0 + 32 * j < WIDTH)
                v[j] = from[c0 + 32 * j];
        for (int i = 0; i < top; i++) {
            const int64_t r = to[i];
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (r >= 0 && c0 + 32 * j < WIDTH)
                    y[r * WIDTH + c0 + 32 * j] = v[j];
        }
    }
#endif
