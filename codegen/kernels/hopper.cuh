/* hopper.cuh: wrappers of Hopper's barriers, copies and tensor core instructions,
 * for attention, grouped products and row exchanges. A operand is stored in shared memory in blocks of 64
 * columns (128 bytes a row) with the 128-byte swizzle: 16-byte piece c of row r is
 * at position c ^ (r & 7). */
FN uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* cp.async of 16 bytes (4 below), zeros where `there` is 0. Completion is signalled
 * by a barrier or a wait_group. */
FN void fetch16(uint32_t to, const void *from, int there)
{
    const int n = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :: "r"(to), "l"(from), "r"(n) : "memory");
}
FN void fetch4(uint32_t to, const void *from, int there)
{
    const int n = there ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n"
                 :: "r"(to), "l"(from), "r"(n) : "memory");
}
FN void put16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n"
                 :: "r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
FN void named_barrier_sync(int bar, int threads) /* named barrier of some warps of a block */
{
    asm volatile("bar.sync %0, %1;\n" :: "r"(bar), "r"(threads) : "memory");
}

/* Give up or claim registers (setmaxnreg): N registers a thread for the whole
 * warpgroup. */
template <int N> FN void few_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" :: "n"(N));
}
template <int N> FN void many_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" :: "n"(N));
}

/* ---- barriers in shared memory (mbarrier) ------------------------------------- */

FN void bar_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n"
                 :: "r"(bar), "r"(arrivals) : "memory");
}
FN void bars_ready()                      /* by the thread that initialized them */
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
FN void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 :: "r"(bar) : "memory");
}
FN void bar_arrive_fetched(uint32_t bar)  /* once this thread's cp.async are complete */
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n"
                 :: "r"(bar) : "memory");
}
FN void bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 :: "r"(bar), "r"(bytes) : "memory");
}
FN void bar_wait(uint32_t bar, uint32_t parity)
{
    int done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.s32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
}

/* ---- bulk copies between shared and global memory ----------------------------- */

FN void bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global"
                 ".mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
FN void bulk_store(void *to, uint32_t from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
FN void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
/* Waits until all but the last LEFT groups of stores have read shared memory. */
template <int LEFT> FN void stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" :: "n"(LEFT) : "memory");
}
FN void stores_done()
{
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
/* Writes of threads to shared memory are visible to tensor cores and copies. */
FN void async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* ---- wgmma: matrix products of a warpgroup ----------------------------------- */

/* Matrix descriptor of wgmma: start address, leading byte offset `block` (read only
 * for a transposed operand), stride of 1024 bytes between groups of 8 rows,
 * 128-byte swizzle. */
FN uint64_t descriptor(uint32_t at, int block)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(block >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
FN void wg_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
FN void wg_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int LEFT> FN void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" :: "n"(LEFT) : "memory");
}
/* Compiler barrier for registers: no use of x moves across it. */
template <int N> FN void keep_in_registers(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i]) :: "memory");
}
template <int N> FN void keep_in_registers(uint32_t (&x)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]),
                     "+r"(x[i][3]) :: "memory");
}

#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(i) ACC4(i), ACC4(i + 4), ACC4(i + 8), ACC4(i + 12)
#define ACC32(i) ACC16(i), ACC16(i + 16)
#define REGS16                                                                   \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS32 REGS16                                                            \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGS64 REGS32                                                            \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"          \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGS96 REGS64                                                            \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"          \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define REGS128 REGS96                                                           \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,"        \
    "%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,"          \
    "%123,%124,%125,%126,%127"
#define WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" N

/* d (64 x N) = A (64 x 32 bytes) B^T with B (N x 32 bytes) of bf16 or, if T has one
 * byte, e4m3; add != 0: d += . TA, TB: A, B is stored as its transpose (bf16 only). */
#define WG_ROWS(N, IN, ADD, TURNED, REGS, ...)                                   \
    if constexpr (sizeof(T) == 1)                                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"            \
                     WGMMA(N) "k32.f32.e4m3.e4m3 " REGS "}, " IN ", p, 1, 1;\n}\n" \
                     : __VA_ARGS__ : "l"(a), "l"(b), "r"(add));                  \
    else                                                                         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"            \
                     WGMMA(N) "k16.f32.bf16.bf16 " REGS "}, " IN ", p, 1, 1, "   \
                     TURNED ";\n}\n" : __VA_ARGS__                              \
                     : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB))
template <class T, int N, int TA = 0, int TB = TA>
FN void wg_rows(float *d, uint64_t a, uint64_t b, int add)
{
    if constexpr (N == 32)
        WG_ROWS("32", "%16, %17", "%18", "%19, %20", REGS16, ACC16(0));
    else if constexpr (N == 64)
        WG_ROWS("64", "%32, %33", "%34", "%35, %36", REGS32, ACC32(0));
    else if constexpr (N == 128)
        WG_ROWS("128", "%64, %65", "%66", "%67, %68", REGS64, ACC32(0), ACC32(32));
    else if constexpr (N == 192)
        WG_ROWS("192", "%96, %97", "%98", "%99, %100", REGS96, ACC32(0), ACC32(32),
                ACC32(64));
    else
        WG_ROWS("256", "%128, %129", "%130", "%131, %132", REGS128, ACC32(0),
                ACC32(32), ACC32(64), ACC32(96));
}

/* d (64 x N) = A B with A (64 x 16, in registers) and B (16 x N); add != 0: d += .
 * TRANSPOSED 1: B is stored 16 x N, 0: as its transpose. */
template <int TRANSPOSED>
FN void wg_cols64(float *d, const uint32_t *a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n" WGMMA("64") "k16.f32.bf16.bf16 " REGS32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %37;\n}\n"
                 : ACC32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "n"(TRANSPOSED), "r"(add));
}
template <int TRANSPOSED>
FN void wg_cols128(float *d, const uint32_t *a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n" WGMMA("128") "k16.f32.bf16.bf16 " REGS64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %69;\n}\n"
                 : ACC32(0), ACC32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                   "n"(TRANSPOSED), "r"(add));
}
template <int N, int TRANSPOSED>
FN void wg_cols(float *d, const uint32_t *a, uint64_t b, int add)
{
    if constexpr (N == 64)
        wg_cols64<TRANSPOSED>(d, a, b, add);
    else
        wg_cols128<TRANSPOSED>(d, a, b, add);
}
