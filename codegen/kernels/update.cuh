/* update.cuh: the optimizer update of a wgrad kernel (grouped.cuh). Tensors with the
 * layout of the product's result (moments, weights) are read and written in place;
 * the gradient is never stored.
 *
 * A thread updates PIECE elements at a time: FOUR adjacent ones in each of HALVES
 * rows, so that each access of eight threads covers whole sectors of a row, for
 * fp32 and for 16 bits. Operands of the next AHEAD - 1 pieces are in flight to
 * slots in shared memory that only this thread reads: the arrays one after another,
 * each with FOUR elements of a warpgroup's 128 threads, half by half. The first
 * loads are issued before a tile is multiplied.
 *
 * ROUNDS: one value of each tile, which is a scale block, is stored as e4m3 with a
 * scale (grouped.cuh); update_piece returns it as pairs of bf16.
 *
 * Generated: UPDATE (1), AHEAD, KEPT (bytes of a warpgroup's slot), ROUNDS, struct
 * Update (pointers, scalars), UPDATED_TENSORS (its kernel parameters), UPDATED_VALUES
 * (its initializers), advance (all pointers except that of scales),
 * fetch_half, update_piece, numbers_of, scales_of. */
enum { FOUR = 4, HALVES = 2, PIECE = FOUR * HALVES };

/* The thread's half of an array in a slot. */
template <class T> FN const T *kept_half(const uint8_t *at, int half)
{
    return (const T *)at + (half * 128 + (TID & 127)) * FOUR;
}
template <class T> FN void fetch_kept(const uint8_t *at, int half, const T *from)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(kept_half<T>(at, half));
    if (sizeof(T) == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n"
                     :: "r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n"
                     :: "r"(to), "l"(from) : "memory");
}
template <class T, class C> FN void load_kept(C *x, const uint8_t *at)
{
#pragma unroll
    for (int h = 0; h < HALVES; h++)
        load<FOUR, FOUR>(x + h * FOUR, kept_half<T>(at, h));
}
template <class C> FN void give_pairs(uint32_t (&pair)[PIECE / 2], const C *x)
{
#pragma unroll
    for (int i = 0; i < PIECE / 2; i++)
        pair[i] = two_bf16(x[2 * i], x[2 * i + 1]);
}
/* One vector store: the compiler splits it where it cannot prove the elements
 * adjacent. */
FN void store_four(float *to, const float *x)
{
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
                 :: "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
FN void store_words(void *to, uint32_t a, uint32_t b)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};\n" :: "l"(to), "r"(a), "r"(b)
                 : "memory");
}
FN void store_four(uint16_t *to, const float *x)
{
    store_words(to, two_bf16(x[0], x[1]), two_bf16(x[2], x[3]));
}
FN uint32_t two_of_16(int32_t a, int32_t b)
{
    return ((uint32_t)a & 0xffff) | (uint32_t)b << 16;
}
FN void store_four(int16_t *to, const int32_t *x)
{
    store_words(to, two_of_16(x[0], x[1]), two_of_16(x[2], x[3]));
}
/* at < 0: the half is outside of C. */
template <class T, class C>
FN void store_kept(T *to, const int (&at)[HALVES], const C *x)
{
#pragma unroll
    for (int h = 0; h < HALVES; h++)
        if (at[h] >= 0)
            store_four(to + at[h], x + h * FOUR);
}
