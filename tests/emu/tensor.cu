/* tensor.cu: kernels of tensor_test.c: a box of one tensor to shared memory, from
 * there as it lies to `dump`, and to another tensor.                              */
typedef unsigned char uint8_t;
typedef unsigned uint32_t;
typedef unsigned long long uint64_t;
#define TID threadIdx.x
#define FN static __device__ __forceinline__

struct Tensor {
    uint8_t *base;
    uint64_t stride[4];
    int rank, type, swizzle, dim[5], box[5], at[5];
};

FN uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
#define SET(FIELD, V)                                                            \
    asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024.b32"        \
                 " [%0], %1;" :: "r"(at), "r"(V) : "memory")
#define SET_AXIS(FIELD, TYPE, I, V, C)                                           \
    asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024." TYPE      \
                 " [%0], %1, %2;" :: "r"(at), "r"(I), C(V) : "memory")
FN void make_map(uint32_t at, const Tensor &t)
{
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64"
                 " [%0], %1;" :: "r"(at), "l"(t.base) : "memory");
    SET("rank", t.rank - 1);
    SET("elemtype", t.type);
    SET("interleave_layout", 0);
    SET("swizzle_mode", t.swizzle);
    SET("fill_mode", 0);
    for (int d = 0; d < t.rank; d++) {
        SET_AXIS("box_dim", "b32", d, t.box[d], "r");
        SET_AXIS("global_dim", "b32", d, t.dim[d], "r");
        SET_AXIS("element_stride", "b32", d, 1, "r");
        if (d)
            SET_AXIS("global_stride", "b64", d - 1, t.stride[d - 1], "l");
    }
}
FN void publish(uint8_t *to, uint32_t from)
{
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic"
                 ".release.gpu.sync.aligned [%0], [%1], 128;"
                 :: "l"(to), "r"(from) : "memory");
}
FN void acquire(const uint8_t *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;"
                 :: "l"(map) : "memory");
}

#define COORDS1 "{%2}"
#define COORDS2 "{%2, %3}"
#define COORDS3 "{%2, %3, %4}"
#define COORDS4 "{%2, %3, %4, %5}"
#define COORDS5 "{%2, %3, %4, %5, %6}"
#define FIVE(c) "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])
#define LOAD(N)                                                                  \
    case N:                                                                      \
        asm volatile("cp.async.bulk.tensor." #N "d.shared::cluster.global.tile"  \
                     ".mbarrier::complete_tx::bytes [%0], [%1, " COORDS##N "],"  \
                     " [%7];" :: "r"(to), "l"(map), FIVE(c), "r"(bar));          \
        break;
#define STORE(N)                                                                 \
    case N:                                                                      \
        asm volatile("cp.async.bulk.tensor." #N "d.global.shared::cta.tile"      \
                     ".bulk_group [%1, " COORDS##N "], [%0];"                    \
                     "cp.async.bulk.commit_group;"                               \
                     "cp.async.bulk.wait_group 0;"                               \
                     :: "r"(to), "l"(map), FIVE(c));                             \
        break;
#define ADD(N)                                                                   \
    case N:                                                                      \
        asm volatile("cp.reduce.async.bulk.tensor." #N "d.global.shared::cta.add" \
                     ".tile.bulk_group [%1, " COORDS##N "], [%0];"               \
                     "cp.async.bulk.commit_group;"                               \
                     "cp.async.bulk.wait_group 0;"                               \
                     :: "r"(to), "l"(map), FIVE(c));                             \
        break;
#define EACH(WHAT) WHAT(1) WHAT(2) WHAT(3) WHAT(4) WHAT(5)

FN void load_box(uint32_t to, const uint8_t *map, int rank, const int *c,
                 uint32_t bar)
{
    switch (rank) { EACH(LOAD) }
}
FN void store_box(uint32_t to, const uint8_t *map, int rank, const int *c, int add)
{
    if (add)
        switch (rank) { EACH(ADD) }
    else
        switch (rank) { EACH(STORE) }
}

/* How: 1 the second tensor is added to; 2 its map is not acquired.               */
extern "C" __global__ void through(const Tensor *a, const Tensor *b,
                                   uint32_t *dump, uint8_t *maps, int bytes,
                                   int how)
{
    extern __shared__ __align__(1024) uint8_t room[];
    __shared__ __align__(128) uint8_t map[2][128];
    __shared__ __align__(8) uint64_t bars[1];
    const uint32_t to = (shared_at(room) + 1023) & ~1023u, bar = shared_at(bars);

    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < 128; i += 32)
            map[m][i + TID] = 0;
        __syncwarp();
        if (TID == 0)
            make_map(shared_at(map[m]), m ? *b : *a);
        __syncwarp();
        publish(maps + 128 * m, shared_at(map[m]));
    }
    if (TID == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(bar), "r"(bytes));
        acquire(maps);
        if (!(how & 2))
            acquire(maps + 128);
        load_box(to, maps, a->rank, a->at, bar);
    }
    __syncthreads();
    int done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,"
                     " [%1], 0; selp.s32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    for (int i = TID; i < bytes / 4; i += 32)
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(dump[i]) : "r"(to + 4 * i) : "memory");
    if (TID == 0)
        store_box(to, maps + 128, b->rank, b->at, how & 1);
}
