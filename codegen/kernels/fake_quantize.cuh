/* fake_quantize.cuh: y, expert rows x rounded to e4m3 with one scale per BLOCK rows of
 * a column; blocks start at the first row of each expert. An item is a column of an
 * expert, of w columns, so adjacent items read adjacent elements. CT: type of a
 * value, X(at): a value, MAGNITUDE and POW2: functions of it, TO_E4M3, FROM_E4M3,
 * SAVE: conversions, COLUMN: offsets of a column in y and x. */
    const CT largest = (CT)3.4028234663852886e38;
    for (int64_t p = lo; p < hi; p++) {
        COLUMN(p, p % w)
        const int64_t end = off[p / w + 1];
        for (int64_t r0 = off[p / w]; r0 < end; r0 += BLOCK) {
            const int64_t r1 = end - r0 < BLOCK ? end : r0 + BLOCK;
            CT a = 0;
            for (int64_t r = r0; r < r1; r++) {
                const CT v = MAGNITUDE(X(p1 + r * sx));
                a = v > a ? v : a;
            }
            CT most = (CT)448 / a;
            most = most < largest ? most : largest;
            const CT s = POW2(a == 0 ? 1 : most + (a - a));
            for (int64_t r = r0; r < r1; r++) {
                const e4m3_t q = TO_E4M3(X(p1 + r * sx) * s);
                y[p0 + r * sy] = SAVE((CT)FROM_E4M3(q) * (1 / s));
            }
        }
    }
