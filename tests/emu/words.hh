/* words.hh: what stands before a kernel's text: CUDA's words, and how rewritten
 * text calls the emulation. No headers: texts declare their own fixed sizes. */
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __constant__ const
#define __grid_constant__
#define __CUDA_ARCH__ 900
#define __CUDACC_RTC__ 1
#define memcpy __builtin_memcpy
#define memset __builtin_memset

typedef decltype(sizeof 0) size_t;

/* ---- the emulation; machine.h has the same ------------------------------------- */

/* An operand of asm: where its variable is (null: a value without one), and an
 * input's bits.                                                                  */
struct EmuArg { void *at; unsigned long long bits; };
struct EmuSite { const char *text, *constraints; void *program; };
struct EmuSlot { unsigned size, align, launch, at; };
struct EmuApi {
    void (*ptx)(EmuSite *, const EmuArg *);
    void *(*shared)(EmuSlot *);           /* of the block                         */
    void *(*dynamic)(void);
    size_t (*to_shared)(const void *);
    void *(*from_shared)(size_t);
};
struct EmuKernelInfo {
    void (*call)(void *const *);
    int params, threads;                  /* __launch_bounds__; 0: none           */
    int cluster[3];
};
struct EmuPlace { unsigned x, y, z; };
struct EmuHere { EmuPlace thread, block, threads, blocks; };

extern "C" {
const EmuApi *emu_api;
EmuHere emu_here;
extern EmuSite emu_sites[];
}
#define threadIdx emu_here.thread
#define blockIdx emu_here.block
#define blockDim emu_here.threads
#define gridDim emu_here.blocks
#define warpSize 32

constexpr int emu_bytes(char c)
{
    return c == 'h' ? 2 : c == 'r' || c == 'f' ? 4 : c == 'l' || c == 'd' ? 8 : 0;
}
template <char C, class T> static inline EmuArg emu_out(T &x)
{
    static_assert(emu_bytes(C) == sizeof(T), "an operand's size and constraint");
    return { (void *)&x, 0 };
}
template <class T> static inline unsigned long long emu_bits(const T &x)
{
    unsigned long long v = 0;
    memcpy(&v, &x, sizeof x);
    return v;
}
template <class T> struct EmuLasts { enum { yes = 0 }; };
template <class T> struct EmuLasts<T &> { enum { yes = 1 }; };
template <char C, class T> static inline EmuArg emu_in(T &&x)
{
    if constexpr (C == 'n')
        return { nullptr, (unsigned long long)(long long)x };
    else {
        static_assert(emu_bytes(C) == sizeof x, "an operand's size, constraint");
        return { EmuLasts<T>::yes ? (void *)&x : nullptr, emu_bits(x) };
    }
}
template <class... A> static inline void emu_asm(EmuSite *s, A... a)
{
    const EmuArg all[] = { a..., { } };
    emu_api->ptx(s, all);
}

/* A kernel called with pointers to its parameters.                               */
template <int... I> struct EmuSeq { };
template <int N, int... I> struct EmuTo : EmuTo<N - 1, N - 1, I...> { };
template <int... I> struct EmuTo<0, I...> { typedef EmuSeq<I...> type; };
template <class... A, int... I>
static inline void emu_pass(void (*f)(A...), void *const *p, EmuSeq<I...>)
{
    f(*(A *)p[I]...);
}
template <class... A>
static inline void emu_pass(void (*f)(A...), void *const *p)
{
    emu_pass(f, p, typename EmuTo<sizeof...(A)>::type());
}
template <class... A> constexpr int emu_count(void (*)(A...))
{
    return sizeof...(A);
}
template <auto F> static void emu_call(void *const *p) { emu_pass(F, p); }

/* ---- vectors ------------------------------------------------------------------- */

#define EMU_VECTORS(T, N, A1, A2, A4)                                              \
    struct alignas(A1) N##1 { T x; };                                              \
    struct alignas(A2) N##2 { T x, y; };                                           \
    struct N##3 { T x, y, z; };                                                    \
    struct alignas(A4) N##4 { T x, y, z, w; };                                     \
    static inline N##1 make_##N##1(T x) { return { x }; }                          \
    static inline N##2 make_##N##2(T x, T y) { return { x, y }; }                  \
    static inline N##3 make_##N##3(T x, T y, T z) { return { x, y, z }; }          \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return { x, y, z, w }; }
EMU_VECTORS(signed char, char, 1, 2, 4)
EMU_VECTORS(unsigned char, uchar, 1, 2, 4)
EMU_VECTORS(short, short, 2, 4, 8)
EMU_VECTORS(unsigned short, ushort, 2, 4, 8)
EMU_VECTORS(int, int, 4, 8, 16)
EMU_VECTORS(unsigned, uint, 4, 8, 16)
EMU_VECTORS(long long, longlong, 8, 16, 16)
EMU_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
EMU_VECTORS(float, float, 4, 8, 16)
EMU_VECTORS(double, double, 8, 16, 16)
struct dim3 { unsigned x = 1, y = 1, z = 1; };

/* ---- numbers ------------------------------------------------------------------- */

extern "C" {
#define EMU_MATH1(name) double name(double); float name##f(float);
EMU_MATH1(exp) EMU_MATH1(exp2) EMU_MATH1(expm1) EMU_MATH1(log) EMU_MATH1(log2)
EMU_MATH1(log1p) EMU_MATH1(sin) EMU_MATH1(cos) EMU_MATH1(tan) EMU_MATH1(tanh)
EMU_MATH1(erf) EMU_MATH1(erfc) EMU_MATH1(sqrt) EMU_MATH1(floor) EMU_MATH1(ceil)
EMU_MATH1(rint) EMU_MATH1(trunc) EMU_MATH1(round) EMU_MATH1(fabs)
double pow(double, double); float powf(float, float);
double fmax(double, double); float fmaxf(float, float);
double fmin(double, double); float fminf(float, float);
double fma(double, double, double); float fmaf(float, float, float);
double fmod(double, double); float fmodf(float, float);
}
template <class T, class To> static inline To emu_as(T x)
{
    To y;
    static_assert(sizeof x == sizeof y, "bits of another size");
    memcpy(&y, &x, sizeof x);
    return y;
}
#define EMU_AS(f, T, To) static inline To f(T x) { return emu_as<T, To>(x); }
EMU_AS(__int_as_float, int, float)
EMU_AS(__uint_as_float, unsigned, float)
EMU_AS(__float_as_int, float, int)
EMU_AS(__float_as_uint, float, unsigned)
EMU_AS(__double_as_longlong, double, long long)
EMU_AS(__longlong_as_double, long long, double)
#define EMU_OP2(f, T, x) static inline T f(T a, T b) { return x; }
EMU_OP2(__fadd_rn, float, a + b)
EMU_OP2(__fmul_rn, float, a * b)
EMU_OP2(__fdiv_rn, float, a / b)
EMU_OP2(__dadd_rn, double, a + b)
EMU_OP2(__dmul_rn, double, a * b)
EMU_OP2(max, int, a > b ? a : b)
EMU_OP2(min, int, a < b ? a : b)
EMU_OP2(max, unsigned, a > b ? a : b)
EMU_OP2(min, unsigned, a < b ? a : b)
EMU_OP2(max, long long, a > b ? a : b)
EMU_OP2(min, long long, a < b ? a : b)
EMU_OP2(__umulhi, unsigned, (unsigned)((unsigned long long)a * b >> 32))
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
static inline double __fma_rn(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const unsigned long long both = x | (unsigned long long)y << 32;
    unsigned r = 0;
    for (int k = 0; k < 4; k++)
        r |= (unsigned)(both >> 8 * (s >> 4 * k & 7) & 0xff) << 8 * k;
    return r;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
template <class T> static inline T __ldg(const T *p) { return *p; }

/* ---- threads ------------------------------------------------------------------- */

static inline size_t __cvta_generic_to_shared(const void *p)
{
    return emu_api->to_shared(p);
}
static inline void *__cvta_shared_to_generic(size_t at)
{
    return emu_api->from_shared(at);
}
static inline void __syncthreads() { asm volatile("bar.sync 0;" ::: "memory"); }
static inline void __syncwarp(unsigned m = ~0u)
{
    asm volatile("bar.warp.sync %0;" :: "r"(m) : "memory");
}
static inline void __threadfence_block() { asm volatile("fence.acq_rel.cta;"); }
static inline void __threadfence() { asm volatile("fence.acq_rel.gpu;"); }
static inline void __threadfence_system() { asm volatile("fence.acq_rel.sys;"); }
static inline void __nanosleep(unsigned n) { asm volatile("nanosleep.u32 %0;" :: "r"(n)); }
static inline void __trap() { asm volatile("trap;"); }
#define EMU_SHFL(NAME, MODE, CLAMP)                                                \
template <class T> static inline T NAME(unsigned m, T x, int a, int width = 32)    \
{                                                                                  \
    unsigned w[(sizeof(T) + 3) / 4] = { }, c = (32 - width) << 8 | CLAMP;          \
    memcpy(w, &x, sizeof x);                                                       \
    for (unsigned &v : w)                                                          \
        asm volatile("shfl.sync." MODE ".b32 %0, %1, %2, %3, %4;"                  \
                     : "=r"(v) : "r"(v), "r"(a), "r"(c), "r"(m));                  \
    memcpy(&x, w, sizeof x);                                                       \
    return x;                                                                      \
}
EMU_SHFL(__shfl_sync, "idx", 31)
EMU_SHFL(__shfl_xor_sync, "bfly", 31)
EMU_SHFL(__shfl_down_sync, "down", 31)
EMU_SHFL(__shfl_up_sync, "up", 0)
static inline unsigned __ballot_sync(unsigned m, int yes)
{
    unsigned r;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %1, 0;\n"
                 "vote.sync.ballot.b32 %0, p, %2;\n}\n"
                 : "=r"(r) : "r"(yes), "r"(m));
    return r;
}
static inline int __any_sync(unsigned m, int yes)
{
    return __ballot_sync(m, yes) != 0;
}
static inline int __all_sync(unsigned m, int yes)
{
    return __ballot_sync(m, !yes) == 0;
}
#define EMU_REDUX(NAME, MODE)                                                      \
static inline unsigned NAME(unsigned m, unsigned x)                                \
{                                                                                  \
    asm volatile("redux.sync." MODE ".u32 %0, %1, %2;"                             \
                 : "=r"(x) : "r"(x), "r"(m));                                      \
    return x;                                                                      \
}
/* Of the two halves of words, each by itself. */
static inline unsigned __vmaxu2(unsigned x, unsigned y)
{
    const unsigned lo = (x & 0xffff) > (y & 0xffff) ? x : y;
    const unsigned hi = x >> 16 > y >> 16 ? x : y;
    return (hi & 0xffff0000u) | (lo & 0xffff);
}
EMU_REDUX(__reduce_max_sync, "max")
EMU_REDUX(__reduce_min_sync, "min")
static inline unsigned __activemask()
{
    unsigned r;
    asm volatile("activemask.b32 %0;" : "=r"(r));
    return r;
}
#define EMU_ATOMIC(F, T, OP, TYPE, C)                                              \
static inline T F(T *p, T x)                                                       \
{                                                                                  \
    T old;                                                                         \
    asm volatile("atom." OP "." TYPE " %0, [%1], %2;"                              \
                 : "=" C(old) : "l"(p), C(x) : "memory");                          \
    return old;                                                                    \
}
EMU_ATOMIC(atomicAdd, int, "add", "s32", "r")
EMU_ATOMIC(atomicAdd, unsigned, "add", "u32", "r")
EMU_ATOMIC(atomicAdd, unsigned long long, "add", "u64", "l")
EMU_ATOMIC(atomicMax, int, "max", "s32", "r")
EMU_ATOMIC(atomicMax, unsigned, "max", "u32", "r")
EMU_ATOMIC(atomicMin, int, "min", "s32", "r")
EMU_ATOMIC(atomicMin, unsigned, "min", "u32", "r")
EMU_ATOMIC(atomicOr, unsigned, "or", "b32", "r")
EMU_ATOMIC(atomicAnd, unsigned, "and", "b32", "r")
EMU_ATOMIC(atomicExch, int, "exch", "b32", "r")
EMU_ATOMIC(atomicExch, unsigned, "exch", "b32", "r")
EMU_ATOMIC(atomicExch, unsigned long long, "exch", "b64", "l")
