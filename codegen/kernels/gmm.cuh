/* gmm.cuh: grouped products on CUDA cores, for any dtype: tiles of 64 x 64, 16
 * deep, 256 threads. Rows of expert x are off[x] .. off[x+1], read on the device.
 * Blocks beyond the last tile return.
 *
 *   GMM    rows[r][K] x W[x] -> out[r][N]      W[x] is K x N, TW: N x K
 *   GMMW   dW[x] (+)= a^T b over x's rows      dW[x] is K x N, TW: N x K
 *
 * Constants of the text: TA (stored) TC (computed) TO (result), EXPERTS K N LDW TW
 * STRIDEW. */
#define TILE 64
#define DEEP 16

#define EACH4 _Pragma("unroll") for (int i = 0; i < 4; i++)
enum { WIDE = TILE + 4 };                 /* rows are aligned to 16 bytes */
struct alignas(16) Four { TC at[4]; };

/* acc[i][j] += a[k][4 ty + i] * b[k][4 tx + j], summed over the k of a tile. */
FN void tile_step(TC (&acc)[4][4], const TC (&a)[DEEP][WIDE],
                  const TC (&b)[DEEP][WIDE], int tx, int ty)
{
#pragma unroll
    for (int k = 0; k < DEEP; k++) {
        const Four x = *(const Four *)&a[k][4 * ty];
        const Four y = *(const Four *)&b[k][4 * tx];
        EACH4
#pragma unroll
            for (int j = 0; j < 4; j++)
                acc[i][j] += x.at[i] * y.at[j];
    }
}

/* Double-buffered slices of both operands: the next slice is loaded into registers
 * while this one is multiplied. */
struct alignas(16) Slices {
    TC a[2][DEEP][WIDE], b[2][DEEP][WIDE];
};

FN void gmm_tile(const TA *rows, const TA *W, TO *out, const int32_t *off,
                 int)
{
    __shared__ Slices s;
    const int t = TID, tx = t & 15, ty = t >> 4;
    int x = 0, tile = (int)blockIdx.x, r0 = 0, r1 = 0;

    for (; x < EXPERTS; x++) {
        r0 = off[x], r1 = off[x + 1];
        const int n = (r1 - r0 + TILE - 1) / TILE;
        if (tile < n)
            break;
        tile -= n;
    }
    if (x == EXPERTS)
        return;
    r0 += tile * TILE;
    const int c0 = (int)blockIdx.y * TILE, k = TW ? t % DEEP : t / TILE;
    const int n = TW ? t / DEEP : t % TILE;
    const TA *ra = rows + (int64_t)(r0 + t / DEEP) * K + t % DEEP;
    const TA *rb = W + (int64_t)x * STRIDEW +
                   (TW ? (int64_t)(c0 + n) * LDW + k
                       : (int64_t)k * LDW + c0 + n);
    TC acc[4][4] = { }, a[4], b[4];
    const auto fetch = [&](int k0) {
        EACH4 {
            const int ki = k0 + k + (TW ? 0 : i * 4);
            const int ni = c0 + n + (TW ? i * 16 : 0);
            a[i] = r0 + t / DEEP + i * 16 < r1 && k0 + t % DEEP < K
                 ? up(ra[i * 16 * K + k0]) : (TC)0;
            b[i] = ki < K && ni < N
                 ? up(rb[TW ? (int64_t)i * 16 * LDW + k0
                            : (int64_t)(k0 + i * 4) * LDW]) : (TC)0;
        }
    };
    fetch(0);
    for (int k0 = 0; k0 < K; k0 += DEEP) {
        const int now = k0 / DEEP & 1;
        EACH4 {
            s.a[now][t % DEEP][t / DEEP + i * 16] = a[i];
            s.b[now][k + (TW ? 0 : i * 4)][n + (TW ? i * 16 : 0)] = b[i];
        }
        __syncthreads();
        if (k0 + DEEP < K)
            fetch(k0 + DEEP);
        tile_step(acc, s.a[now], s.b[now], tx, ty);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int r = r0 + 4 * ty + i, c = c0 + 4 * tx + j;
            if (r < r1 && c < N)
                put_to(out + (int64_t)r * N + c, acc[i][j]);
        }
}

FN void gmm_wgrad_tile(const TA *A, const TA *B, TO *dW, const int32_t *off,
                  int add)
{
    __shared__ Slices s;
    const int t = TID, tx = t & 15, ty = t >> 4, d = t / TILE, m = t % TILE;
    const int x = (int)blockIdx.z, r0 = off[x], r1 = off[x + 1];
    const int k0 = (int)blockIdx.x * TILE, c0 = (int)blockIdx.y * TILE;
    TC acc[4][4] = { }, a[4], b[4];
    const auto fetch = [&](int r) {
        EACH4 {
            const int64_t row = r + d + i * 4;
            a[i] = row < r1 && k0 + m < K ? up(A[row * K + k0 + m]) : (TC)0;
            b[i] = row < r1 && c0 + m < N ? up(B[row * N + c0 + m]) : (TC)0;
        }
    };

    fetch(r0);
    for (int r = r0; r < r1; r += DEEP) {
        const int now = (r - r0) / DEEP & 1;
        EACH4 {
            s.a[now][d + i * 4][m] = a[i];
            s.b[now][d + i * 4][m] = b[i];
        }
        __syncthreads();
        fetch(r + DEEP);
        tile_step(acc, s.a[now], s.b[now], tx, ty);
    }
    TO *w = dW + (int64_t)x * STRIDEW;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int k = k0 + 4 * ty + i, c = c0 + 4 * tx + j;
            if (k >= K || c >= N)
                continue;
            TO *p = w + (TW ? (int64_t)c * LDW + k : (int64_t)k * LDW + c);
            put_to(p, add ? up(*p) + acc[i][j] : acc[i][j]);
        }
}

/* WEIGHT: the gradient of the weights. STASH: as in grouped.cuh. */
extern "C" __global__ void __launch_bounds__(256)
@(const TA *a, const TA *b, TO *c, const int32_t *off, int64_t add)
{
    const int64_t rows = STASH ? off[EXPERTS + 1] : 0;

    a += STASH & 1 ? rows * K : 0;
    b += STASH & 2 ? rows * N : 0;
    c += STASH & 4 ? rows * N : 0;
#if WEIGHT
    gmm_wgrad_tile(a, b, c, off, (int)add);
#else
    gmm_tile(a, b, c, off, (int)add);
#endif
}
