/* scale.cuh: the power-of-two scale of a block of bf16 and its rounding to e4m3,
 * for kernels that quantize blocks (blocks.cuh, update.cuh). */

/* Largest magnitudes as bit patterns, which are ordered like magnitudes, NaN
 * largest. most_of_pair: both halves of a word at once. most_of_both: the larger
 * half. most_among: over the lanes of a warp. */
FN uint32_t most_of_pair(uint32_t pair, uint32_t most)
{
    return __vmaxu2(pair & 0x7fff7fff, most);
}
FN uint32_t most_of_both(uint32_t most)
{
    return most >> 16 > (most & 0xffff) ? most >> 16 : most & 0xffff;
}
FN uint32_t most_among(uint32_t most, int threads)
{
    for (int h = threads / 2; h; h /= 2) {
        const uint32_t other = __shfl_xor_sync(~0u, most, h);
        most = other > most ? other : most;
    }
    return most;
}

/* pow2_scale of ops.def for a block whose largest magnitude has the bits `most`.
 * 448 is 1.75 x 2^8, so m x 2^e gets 2^(8 - e), half of it if m > 1.75, at most
 * 2^127. Integer arithmetic, because a division would take as long as the memory
 * accesses. */
FN float scale_of(uint32_t most)
{
    const int e = 127 + 8 + 127 - (int)(most >> 7) - ((most & 0x7f) > 0x60);
    const uint32_t bits = e > 254 ? 254u << 23 : (uint32_t)e << 23;
    return most == 0 ? 1 : most >= 0x7f80 ? NAN : __uint_as_float(bits);
}
/* 1 / s for a power of two s; subnormal for 2^127. */
FN float inverse_of(float s)
{
    const uint32_t bits = __float_as_uint(s);
    return s != s ? s : __uint_as_float(bits == 254u << 23 ? 1u << 22
                                                           : (254u << 23) - bits);
}
FN uint16_t two_of(float x, float y, float s)
{
    return (uint16_t)two_narrow<0>(x * s, y * s);
}
