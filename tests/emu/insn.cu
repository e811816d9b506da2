/* insn.cu: kernels of insn_test.c, a few instructions each. out: what each thread
 * found, n numbers of 32 bits; in: numbers that count up from 0.                  */
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;
#define TID threadIdx.x
#define FN static __device__ __forceinline__
#define KERNEL extern "C" __global__ void

FN uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
FN void bar_init(uint32_t bar, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(n));
}
FN void bar_arrive(uint32_t bar, int n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(n));
}
FN void bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes));
}
FN int bar_test(uint32_t bar, int parity)
{
    int done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.s32 %0, 1, 0, p;\n}\n"
                 : "=r"(done) : "r"(bar), "r"(parity));
    return done;
}
FN void bar_wait(uint32_t bar, int parity)
{
    int done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.s32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(bar), "r"(parity));
}

/* ---- what computes ------------------------------------------------------------- */

KERNEL compute(uint32_t *out, const uint32_t *in)
{
    const uint32_t a = in[TID] * 2654435761u, b = in[TID] % 37;
    const float x = (float)(int)in[TID] - 11.5f, y = x * 0.25f;
    uint32_t r[19];
    uint64_t wide;
    float f;

    asm("add.u32 %0, %1, %2;" : "=r"(r[0]) : "r"(a), "r"(b));
    asm("sub.s32 %0, %1, %2;" : "=r"(r[1]) : "r"(a), "r"(b));
    asm("mul.lo.u32 %0, %1, %2;" : "=r"(r[2]) : "r"(a), "r"(b));
    asm("mul.hi.u32 %0, %1, %2;" : "=r"(r[3]) : "r"(a), "r"(b));
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(wide) : "r"(a), "r"(b));
    r[4] = (uint32_t)(wide >> 32);
    asm("shr.s32 %0, %1, %2;" : "=r"(r[5]) : "r"(a), "r"(b));
    asm("shl.b32 %0, %1, %2;" : "=r"(r[6]) : "r"(a), "r"(b));
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %1, %2, p; }"
        : "=r"(r[7]) : "r"(a), "r"(b));
    asm("{ .reg .pred p; setp.lt.u32 p, %1, 0x40000000; @p mov.u32 %0, 1;"
        " @!p mov.u32 %0, 2; }" : "=r"(r[8]) : "r"(a));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r[9]) : "f"(x), "f"(y));
    asm("{ .reg .b16 p, q; cvt.rn.satfinite.e4m3x2.f32 p, %1, %2;"
        " cvt.rn.satfinite.e5m2x2.f32 q, %1, %2; mov.b32 %0, {p, q}; }"
        : "=r"(r[18]) : "f"(x * x * 5), "f"(y));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(f) : "f"(y));
    r[10] = __float_as_uint(f);
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(f) : "f"(x), "f"(y), "f"(x));
    r[11] = __float_as_uint(f);
    asm("{ .reg .b32 lo, hi; mov.b64 {lo, hi}, %1; xor.b32 %0, lo, hi; }"
        : "=r"(r[12]) : "l"((uint64_t)a << 32 | b));
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(r[13]) : "f"(y));
    asm("min.s32 %0, %1, %2;" : "=r"(r[14]) : "r"(a), "r"(b));
    asm("mov.u32 %0, %%laneid;" : "=r"(r[15]));
    asm("min.NaN.f32 %0, %1, 0f3F800000;" : "=f"(f) : "f"(x));
    r[16] = __float_as_uint(f);
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(f) : "f"(sqrtf(y)), "f"(1.0f));
    r[17] = f != f;
    for (int i = 0; i < 19; i++)
        out[TID * 19 + i] = r[i];
}

/* ---- warps --------------------------------------------------------------------- */

KERNEL exchange(uint32_t *out, const uint32_t *in)
{
    const uint32_t x = in[TID] * 3, half = TID & 16 ? 0xffff0000u : 0xffffu;
    uint32_t r[10];

    r[0] = __shfl_sync(~0u, x, 5);
    r[1] = __shfl_xor_sync(~0u, x, 3);
    r[2] = __shfl_up_sync(~0u, x, 4);
    r[3] = __shfl_down_sync(~0u, x, 7);
    r[4] = __shfl_xor_sync(half, x, 8, 16);
    r[5] = __ballot_sync(~0u, x % 5 == 0);
    r[6] = (uint32_t)(__shfl_sync(~0u, 1.5 * x, TID & 31 ^ 1) * 2);
    r[7] = __any_sync(half, TID == 17) + 2 * __all_sync(half, TID < 16);
    r[8] = __reduce_max_sync(half, x ^ 5);
    r[9] = __reduce_min_sync(~0u, 7 - x);
    for (int i = 0; i < 10; i++)
        out[TID * 10 + i] = r[i];
}
/* Lanes that have ended are not waited for.                                        */
KERNEL some_end(uint32_t *out, const uint32_t *in)
{
    if (TID >= 20)
        return;
    out[TID] = __shfl_xor_sync(~0u, in[TID], 1) + (TID == 0);
    __syncthreads();
    out[TID] += out[(TID + 7) % 20] != 0 ? 100 : 0;
}

/* ---- blocks -------------------------------------------------------------------- */

/* Two halves hand a number over by arriving and waiting at a barrier in turn.     */
KERNEL hand_over(uint32_t *out, const uint32_t *in)
{
    __shared__ uint32_t box[32];
    const int half = TID / 32, lane = TID % 32;

    for (int i = 0; i < 4; i++) {
        if (half == 0) {
            box[lane] = in[lane] + i;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            asm volatile("bar.sync 2, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            out[i * 32 + lane] = box[31 - lane];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}
KERNEL registers(uint32_t *out, const uint32_t *in)
{
    if (TID < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    out[TID] = in[TID];
}

/* ---- clusters: each block writes into the next one's memory --------------------- */

KERNEL __cluster_dims__(4, 1, 1) neighbours(uint32_t *out, const uint32_t *in)
{
    __shared__ uint32_t box[32];
    uint32_t rank, to;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(to) : "r"(shared_at(&box[TID])), "r"((rank + 1) % 4));
    asm volatile("st.shared::cluster.u32 [%0], %1;"
                 :: "r"(to), "r"(in[blockIdx.x * 32 + TID]) : "memory");
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
    out[blockIdx.x * 32 + TID] = box[TID];
}

/* ---- memory -------------------------------------------------------------------- */

KERNEL access(uint32_t *out, const uint32_t *in)
{
    __shared__ __align__(16) uint32_t box[4 * 32];
    const uint32_t at = shared_at(box + 4 * TID);
    uint32_t r[4];
    uint16_t h;
    int s;

    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(at), "r"(in[TID]), "r"(in[TID] + 1), "r"(in[TID] * 70000),
                    "r"(~in[TID]) : "memory");
    __syncthreads();
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+8];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
    asm volatile("ld.shared.u16 %0, [%1+10];" : "=h"(h) : "r"(at) : "memory");
    asm volatile("ld.shared.s8 %0, [%1+12];" : "=r"(s) : "r"(at) : "memory");
    asm volatile("ld.global.acquire.sys.u32 %0, [%1];"
                 : "=r"(r[2]) : "l"(in + TID) : "memory");
    asm volatile("ld.u32 %0, [%1];" : "=r"(r[3]) : "l"(box + 4 * TID) : "memory");
    out[TID * 6] = r[0];
    out[TID * 6 + 1] = r[1];
    out[TID * 6 + 2] = h;
    out[TID * 6 + 3] = (uint32_t)s;
    out[TID * 6 + 4] = r[2];
    asm volatile("st.global.release.gpu.u32 [%0], %1;"
                 :: "l"(out + TID * 6 + 5), "r"(r[3]) : "memory");
}
KERNEL atomics(uint32_t *out, const uint32_t *in)
{
    const uint32_t x = in[blockIdx.x * 32 + TID] * 7 % 101;

    atomicAdd(&out[0], x);
    atomicMax((int *)&out[1], (int)x - 50);
    asm volatile("red.global.add.u32 [%0], %1;" :: "l"(out + 2), "r"(1));
    asm volatile("red.release.sys.global.or.b32 [%0], %1;"
                 :: "l"(out + 3), "r"(1 << x % 32));
    uint32_t old, seen = out[4];
    do {                                  /* a power of 3, by exchanging           */
        old = seen;
        asm volatile("atom.global.cas.b32 %0, [%1], %2, %3;"
                     : "=r"(seen) : "l"(out + 4), "r"(old), "r"(old * 3 + !old));
    } while (seen != old);
}

/* ---- barriers in shared memory --------------------------------------------------- */

/* Phases of arrivals: what a wait for each parity says before and after.          */
KERNEL phases(uint32_t *out, const uint32_t *)
{
    __shared__ __align__(8) uint64_t bar[1];
    const uint32_t b = shared_at(bar);
    uint32_t n = 0;

    bar_init(b, 3);
    for (int phase = 0; phase < 3; phase++) {
        out[n++] = bar_test(b, 0) + 2 * bar_test(b, 1);
        bar_arrive(b, 2);
        out[n++] = bar_test(b, 0) + 2 * bar_test(b, 1);
        bar_arrive(b, 1);
    }
    bar_expect(b, 48);                    /* one arrival, and bytes               */
    bar_arrive(b, 2);
    out[n++] = bar_test(b, 0) + 2 * bar_test(b, 1);
    asm volatile("mbarrier.complete_tx.shared::cta.b64 [%0], 32;" :: "r"(b));
    out[n++] = bar_test(b, 0) + 2 * bar_test(b, 1);
    asm volatile("mbarrier.complete_tx.shared::cta.b64 [%0], 16;" :: "r"(b));
    out[n++] = bar_test(b, 0) + 2 * bar_test(b, 1);
}
/* A ring of two places, a warp that fills and one that empties, ten rounds.       */
KERNEL ring(uint32_t *out, const uint32_t *in)
{
    __shared__ __align__(8) uint64_t full[2], empty[2];
    __shared__ uint32_t place[2][32];
    const int lane = TID % 32;

    if (TID < 2) {
        bar_init(shared_at(&full[TID]), 32);
        bar_init(shared_at(&empty[TID]), 32);
    }
    __syncthreads();
    for (int i = 0; i < 10; i++) {
        const int at = i % 2, parity = i / 2 % 2;
        if (TID < 32) {
            bar_wait(shared_at(&empty[at]), parity ^ 1);
            place[at][lane] = in[lane] * 10 + i;
            bar_arrive(shared_at(&full[at]), 1);
        } else {
            bar_wait(shared_at(&full[at]), parity);
            out[i * 32 + lane] = place[at][31 - lane];
            bar_arrive(shared_at(&empty[at]), 1);
        }
    }
}

/* ---- copies --------------------------------------------------------------------- */

FN void fetch(uint32_t to, const void *from, int n, int given)
{
    if (n == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(given) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"(to), "l"(from), "r"(given) : "memory");
}
/* Groups: what is there after waiting for all but the last one; zeros behind what
 * is given. WAIT 0: not waiting at all.                                           */
template <int WAIT> FN void pieces_of(uint32_t *out, const uint32_t *in)
{
    __shared__ __align__(16) uint32_t box[12];
    const uint32_t at = shared_at(box);

    fetch(at, in, 16, 16);
    asm volatile("cp.async.commit_group;");
    fetch(at + 16, in + 4, 16, 8);
    asm volatile("cp.async.commit_group;");
    fetch(at + 32, in + 9, 4, 4);
    if (WAIT)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    for (int i = 0; i < 4; i++)
        out[i] = box[i];
    if (WAIT)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    for (int i = 4; i < 8; i++)
        out[i] = box[i];
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[8] = box[8];
}
KERNEL pieces(uint32_t *out, const uint32_t *in) { pieces_of<1>(out, in); }
KERNEL pieces_too_soon(uint32_t *out, const uint32_t *in)
{
    pieces_of<0>(out, in);
}
/* A barrier that copies report to, counted or beside its count.                   */
template <int NOINC> FN void reported_to(uint32_t *out, const uint32_t *in)
{
    __shared__ __align__(16) uint32_t box[4 * 32];
    __shared__ __align__(8) uint64_t bar[1];
    const uint32_t b = shared_at(bar);

    if (TID == 0)
        bar_init(b, NOINC ? 32 : 1);
    __syncthreads();
    fetch(shared_at(box + 4 * TID), in + 4 * TID, 16, 16);
    if (NOINC)
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                     :: "r"(b) : "memory");
    else
        asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];"
                     :: "r"(b) : "memory");
    __syncthreads();
    if (!NOINC && TID == 0)
        bar_arrive(b, 1);
    bar_wait(b, 0);
    out[TID] = box[127 - TID];
}
KERNEL reported(uint32_t *out, const uint32_t *in) { reported_to<1>(out, in); }
KERNEL reported_inc(uint32_t *out, const uint32_t *in) { reported_to<0>(out, in); }

/* 64 numbers in, twice them out.                                                  */
KERNEL bulk(uint32_t *out, const uint32_t *in)
{
    __shared__ __align__(128) uint32_t box[64];
    __shared__ __align__(8) uint64_t bar[1];
    const uint32_t b = shared_at(bar), at = shared_at(box);

    if (TID == 0) {
        bar_init(b, 1);
        bar_expect(b, 256);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx"
                     "::bytes [%0], [%1], 256, [%2];"
                     :: "r"(at), "l"(in), "r"(b) : "memory");
    }
    __syncthreads();
    bar_wait(b, 0);
    for (int i = TID; i < 64; i += 32) {
        asm volatile("st.shared.u32 [%0], %1;" :: "r"(at + 4 * i), "r"(2 * box[i]));
        asm volatile("fence.proxy.async.shared::cta;");
    }
    __syncthreads();
    if (TID == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                     "cp.async.bulk.commit_group;"
                     "cp.async.bulk.wait_group 0;"
                     :: "l"(out), "r"(at) : "memory");
    }
}

/* ---- mistakes ------------------------------------------------------------------- */

KERNEL misaligned(uint32_t *out, const uint32_t *in)
{
    asm volatile("st.global.u32 [%0], %1;" :: "l"((char *)out + 2), "r"(in[0]));
}
KERNEL outside(uint32_t *, const uint32_t *in)
{
    __shared__ uint32_t box[8];
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(shared_at(box) + 32), "r"(in[0]));
}
KERNEL nowhere(uint32_t *out, const uint32_t *) { *(volatile int *)16 = out[0]; }
KERNEL waits_for_ever(uint32_t *, const uint32_t *)
{
    __shared__ __align__(8) uint64_t bar[1];
    bar_init(shared_at(bar), 1);
    bar_wait(shared_at(bar), 0);
}
KERNEL half_meets(uint32_t *, const uint32_t *)
{
    if (TID < 16)
        asm volatile("bar.sync 1, 32;");
}
KERNEL too_many(uint32_t *, const uint32_t *)
{
    __shared__ __align__(8) uint64_t bar[1];
    bar_init(shared_at(bar), 2);
    bar_arrive(shared_at(bar), 1);
    bar_arrive(shared_at(bar), 2);
}
KERNEL no_barrier(uint32_t *, const uint32_t *)
{
    __shared__ __align__(8) uint64_t bar[1];
    bar_arrive(shared_at(bar), 1);
}
KERNEL wrong_mask(uint32_t *out, const uint32_t *in)
{
    out[TID] = __shfl_sync(0xff, in[TID], 0);
}
KERNEL meets_elsewhere(uint32_t *out, const uint32_t *in)
{
    if (TID < 16)
        out[TID] = __shfl_sync(~0u, in[TID], 3);
    else
        out[TID] = __ballot_sync(~0u, in[TID] > 2);
}
KERNEL ends_too_soon(uint32_t *, const uint32_t *in)
{
    __shared__ __align__(16) uint32_t box[4];
    fetch(shared_at(box), in, 16, 16);
}
KERNEL more_registers(uint32_t *, const uint32_t *)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 256;");
    __syncthreads();
}
KERNEL stops(uint32_t *, const uint32_t *) { __trap(); }
