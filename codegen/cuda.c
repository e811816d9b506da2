/* cuda.c: kernels for GPUs from the same groups. A loop kernel is printed for a
 * grid (form.c: a thread an element, or a block of threads an item); what has
 * one thread an item (topk, cumsum, scatter_add) keeps its text and gets its
 * item from the grid. Sizes and strides become constants of the text:
 *
 *     extern "C" __global__ void k_..(void *q0, void *q1, int64_t r5)
 *     {
 *         const Ptr buf[] = { { q0 }, { q1 } };
 *         const int64_t iv[] = { 0, 0, 768, 2048, 768, r5 };
 *         ...
 *
 * r5 is an integer that depends on the rank, or a key; the compiler folds the
 * rest.                                                                      */
#include "codegen.h"

#include <string.h>

enum { THREADROW = 128 };
static const int64_t LARGE = (int64_t)1 << 40;

/* ---- text ---------------------------------------------------------------- */

/* Does every index of the kernel fit 31 bits?                                */
static int is_small(const Graph *g, const Group *k, int64_t items)
{
    int64_t most = items;

    for (int i = 0; i < k->narg; i++)
        if (k->arg[i] && local_elems(g, k->arg[i]) > most)
            most = local_elems(g, k->arg[i]);
    return most < (int64_t)1 << 30;
}

/* What is a parameter of the kernel and no constant of its text: what depends
 * on the rank, and keys of random numbers, which would make every text its own
 * (other numbers as large are doubles, which may travel the same way).       */
static int of_rank(const Aff *x)
{
    if (x->c > LARGE || x->c < -LARGE)
        return 1;
    for (int i = 0; i < MAXATOM; i++)
        if (x->k[i])
            return 1;
    return 0;
}

void cuda_put_parameters(Text *t, const Group *k)
{
    int nbuf = k->narg + (k->scratch > 0);

    for (int i = 0; i < nbuf; i++)
        put(t, "%svoid *q%d", i ? ", " : "", i);
    for (int i = 0; i < k->step.nint; i++)
        if (of_rank(&k->step.iv[i]))
            put(t, ", int64_t r%d", i);
    put(t, ")\n{\n    const Ptr buf[] = { ");
    for (int i = 0; i < nbuf; i++)
        put(t, "{ q%d }, ", i);
    put(t, "};\n    const int64_t iv[] = { ");
    for (int i = 0; i < k->step.nint; i++)
        if (of_rank(&k->step.iv[i]))
            put(t, "r%d, ", i);
        else
            put(t, "%lld, ", (long long)k->step.iv[i].c);
    put(t, "};\n");
}

/* The body of a text made by set_text: behind its signature.                 */
static const char *body_of(const char *text)
{
    return strchr(text, '{');
}

/* The step's integers from now on: the grid, then those of the rank.         */
void cuda_set_grid(Group *k, Arena *a, int64_t x, int64_t threads, int64_t y,
                   int64_t z)
{
    Aff *was = k->step.iv;
    int n = k->step.nint;

    k->step.iv = NULL;
    k->step.nint = 0;
    add_size(k, a, x);
    add_size(k, a, threads);
    add_size(k, a, y);
    add_size(k, a, z);
    add_size(k, a, 0);
    for (int i = 0; i < n; i++)
        if (of_rank(&was[i]))
            add_int(k, a, was[i]);
}

/* one: an item is a thread's (a map, rows of one thread), not a block's.     */
static void wrap(const Graph *g, Group *k, Arena *a, int64_t items,
                 int64_t threads, int one, int serial)
{
    Text t = { .arena = a };
    int64_t blocks = one ? (items + threads - 1) / threads : items;
    const char *body = body_of(k->text);

    put(&t, "#undef ix\n#undef THREADS\n#undef ITEMS\n#define ix %s\n",
        is_small(g, k, items) ? "int" : "int64_t");
    put(&t, "#define THREADS %lld\n#define ITEMS %lld\n", (long long)threads,
        (long long)items);
    put(&t, "extern \"C\" __global__ void __launch_bounds__(%lld)\n@(",
        (long long)threads);
    cuda_put_parameters(&t, k);
    if (serial)
        put(&t, "    const ix lo = (ix)blockIdx.x * THREADS + TID, hi = lo + 1;"
            "\n    if (lo >= ITEMS)\n        return;\n");
    putn(&t, body, strlen(body));
    put(&t, "}\n");
    set_text_named(k, a, t.s);
    cuda_set_grid(k, a, blocks, threads, 1, 1);
}

/* ---- families ------------------------------------------------------------ */

static int is_map(const Group *k)
{
    return k->step.iv[1].c == THREADMAP;
}

static void loop(Graph *g, Group *k, Arena *a)
{
    loop_lower_cuda(g, k, a);
    int64_t items = k->step.iv[0].c, threads = k->step.iv[1].c;
    int map = is_map(k);

    wrap(g, k, a, items, threads, map, 0);
}

static void rows(Graph *g, Group *k, Arena *a)
{
    int blocks = 0;

    switch (k->fam) {
    case FAMtopk: topk_lower(g, k, a); break;
    case FAMcumsum: cumsum_lower(g, k, a); break;
    case FAMkeep: keep_lower(g, k, a); break;
    case FAMroute: blocks = route_lower_cuda(g, k, a); break;
    default: blocks = scatter_lower_cuda(g, k, a); break;
    }
    wrap(g, k, a, k->step.iv[0].c, blocks ? THREADMAP : THREADROW, !blocks,
         !blocks);
}

/* ---- grouped products ---------------------------------------------------- */

enum { GMMTILE = 64, GMMTHREADS = 256 };

/* What steps.def says of gmm's integers.                                     */
enum { XDT, XDTOUT, XE, XK, XN, XLDW, XTW, XSTRIDE, XACC, XCAP };

static int64_t tiles(int64_t n)
{
    return (n + GMMTILE - 1) / GMMTILE;
}

enum { WGROWS = 128, WGDEEP = 64, WGTHREADS = 256, WGSTAGES = 5 };

/* Tensor cores take bf16 in rows of whole 16-byte pieces.                    */
static int has_tensor_cores(const int64_t *v)
{
    return v[XDT] == Dbf16 && (v[XDTOUT] == Dbf16 || v[XDTOUT] == Df32) &&
           v[XK] % 8 == 0 && v[XN] % 8 == 0 && v[XLDW] % 8 == 0;
}

static void put_define(Text *t, const char *name, int64_t v)
{
    put(t, "#define %s %lld\n", name, (long long)v);
}

static int64_t ceil_of(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

/* wgmma.pre. A weight gradient that is stored turned is made turned: its
 * operands change places.                                                    */
static void tensor_grouped(Group *k, Arena *a, const int64_t *v, int weight)
{
    Text t = { .arena = a };
    int swap = weight && v[XTW];
    int64_t m = swap ? v[XN] : v[XK], n = weight ? swap ? v[XK] : v[XN] : v[XN];
    int64_t wide = 128, stages = WGSTAGES;
    int64_t bytes = stages * (WGROWS + wide) * WGDEEP * 2 + 1024;

    put_define(&t, "M", m);
    put_define(&t, "N", n);
    put_define(&t, "K", v[XK]);
    put_define(&t, "LDA", weight ? m : v[XK]);
    put_define(&t, "LDB", weight ? n : v[XLDW]);
    put_define(&t, "LDC", weight ? v[XLDW] : v[XN]);
    put_define(&t, "EXPERTS", v[XE]);
    put_define(&t, "TURNA", weight);
    put_define(&t, "TURNB", weight || !v[XTW]);
    put_define(&t, "STRIDEB", v[XSTRIDE]);
    put_define(&t, "STRIDEC", v[XSTRIDE]);
    put_define(&t, "BN", wide);
    put_define(&t, "STAGES", stages);
    put(&t, "#define TO %s\n%s", dtypes[v[XDTOUT]].store, wgmma_pre);
    put(&t, "extern \"C\" __global__ void __launch_bounds__(%d, 1)\n"
        "@(const uint16_t *a, const uint16_t *b, TO *c, const int32_t *off,\n"
        "  int64_t add)\n"
        "{\n    %s(%s, c, off, (int)add);\n}\n", WGTHREADS,
        weight ? "gmmw_tile" : "gmm_tile", swap ? "b, a" : "a, b");
    set_text_named(k, a, t.s);
    k->narg = 4;
    k->step.nint = 0;
    cuda_set_grid(k, a, ceil_of(n, wide), WGTHREADS,
                  weight ? ceil_of(m, WGROWS)
                         : ceil_of(v[XCAP], WGROWS) + v[XE],
                  weight ? v[XE] : 1);
    k->step.iv[4] = aff(bytes);
    add_size(k, a, v[XACC]);
    k->addat = weight ? k->step.nint : 0;
}

/* From the step of the host: a kernel whose sizes are constants.             */
static void grouped(Group *k, Arena *a)
{
    Text t = { .arena = a };
    int weight = k->step.kind == Sgmmw;
    int64_t v[XCAP + 1];

    for (int i = 0; i <= XCAP; i++)
        v[i] = k->step.iv[i].c;
    if (has_tensor_cores(v)) {
        tensor_grouped(k, a, v, weight);
        return;
    }
    const DtypeInfo *in = &dtypes[v[XDT]], *out = &dtypes[v[XDTOUT]];
    put(&t, "#define TA %s\n#define TC %s\n#define TO %s\n", in->store,
        in->compute, out->store);
    put(&t, "#define EXPERTS %lld\n#define K %lld\n#define N %lld\n"
        "#define LDW %lld\n#define TW %lld\n#define STRIDEW %lld\n",
        (long long)v[XE], (long long)v[XK], (long long)v[XN],
        (long long)v[XLDW], (long long)v[XTW],
        (long long)v[XSTRIDE]);
    put(&t, "%s", gmm_pre);
    put(&t, "extern \"C\" __global__ void __launch_bounds__(%d)\n"
        "@(const TA *a, const TA *b, TO *c, const int32_t *off, int64_t add)\n"
        "{\n    %s(a, b, c, off, (int)add);\n}\n", GMMTHREADS,
        weight ? "gmmw_tile" : "gmm_tile");
    set_text_named(k, a, t.s);
    k->narg = 4;
    k->step.nint = 0;
    cuda_set_grid(k, a, weight ? tiles(v[XK]) : tiles(v[XCAP]) + v[XE],
                  GMMTHREADS, tiles(v[XN]), weight ? v[XE] : 1);
    add_size(k, a, v[XACC]);
    k->addat = weight ? k->step.nint : 0;
}

void cuda_lower(Graph *g, Group *k, Arena *a)
{
    switch (k->fam) {
    case FAMloop: loop(g, k, a); return;
    case FAMtopk: case FAMcumsum: case FAMkeep: case FAMroute: case FAMscatter:
        rows(g, k, a);
        return;
    case FAMattn: case FAMattnback: attn_lower_cuda(g, k, a); return;
    case FAMgemm: gemm_lower(g, k, a); return;
    case FAMgmm: gmm_lower(g, k, a); grouped(k, a); return;
    case FAMgmmw: gmmw_lower(g, k, a); grouped(k, a); return;
    case FAMcomm: comm_lower(g, k, a); return;
    case FAMzero: zero_lower(g, k, a); return;
    default: return;
    }
}
