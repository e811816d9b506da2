/* transpose_gpu.c: transposes on a GPU: copies whose contiguous loops differ
 * between load and store:
 *
 *     to[v + n1 * u + ..] = from[u + n2 * v + ..]
 *
 * With one thread per element one side would access 1, 2 or 4 bytes per line.
 * Here a thread transposes a square of E x E elements in registers (cuda.pre);
 * E elements are the largest vector of 4 to 16 bytes that is aligned on both
 * sides. A block has up to 8 squares along u and 32 along v: it reads 128 bytes
 * and writes 512 bytes of a line. */
#include "loop.h"

enum {
    ALONG = 8,  /* squares of a block along u */
    PIECE = 16, /* bytes of a vector, at most */
    LEAST = 4,  /* and at least */
    WARP = 32   /* threads, fewer are not worth it */
};

typedef struct Transpose {
    const Store *store;
    const Expr *load;
    int u, v; /* contiguous loops of load and store */
    int elements;
} Transpose;

/* The only loop with stride 1; -1 if there is none, or if a term is not a whole
 * loop times a stride. */
static int contiguous(const AffineExpr *at)
{
    int u = -1;

    for (int i = 0; i < at->nt; i++) {
        const Term *t = &at->term[i];
        if (t->var >= MAXLOOP || t->div->n || t->mod)
            return -1;
        if (t->k->v != 1)
            continue;
        if (u >= 0)
            return -1;
        u = t->var;
    }
    return at->hasoff ? -1 : u;
}

static int64_t extent(const KernelPrinter *printer, int u)
{
    return printer->kernel->loop[u].extent->v;
}

/* The largest power of two, up to `most`, that divides the extent of the
 * contiguous loop and all other strides. */
static int aligned(const KernelPrinter *printer, const AffineExpr *at, int u,
                   int most)
{
    while (extent(printer, u) % most)
        most /= 2;
    for (int i = 0; i < at->nt; i++)
        while (at->term[i].var != u && at->term[i].k->v % most)
            most /= 2;
    return most;
}

static int64_t threads_along(const KernelPrinter *printer, int u, int elements,
                             int64_t most)
{
    int64_t threads = 1;

    while (threads < most && threads * elements < extent(printer, u))
        threads *= 2;
    return threads;
}

/* Is the kernel a single transpose? */
static int is_transpose(const KernelPrinter *printer, Transpose *of)
{
    const LoopKernel *kernel = printer->kernel;
    const Store *store = &kernel->st[0];
    const Expr *load = value_to_store(store);
    int bytes = dtypes[storage(store->node)->dt].bytes;

    if (vec_len(kernel->st) != 1 || load->kind != Xload || load->arg[0] ||
        load->buf->dt != storage(store->node)->dt || bytes > LEAST)
        return 0;
    for (int u = 0; u < kernel->nloop; u++)
        if ((store->loops & BIT(u)) &&
            (kernel->loop[u].map || !affine_stride(load->lin, u)))
            return 0;
    *of = (Transpose){ .store = store, .load = load };
    of->u = contiguous(load->lin);
    of->v = contiguous(store->addr);
    if (of->u < 0 || of->v < 0 || of->u == of->v)
        return 0;
    int e = aligned(printer, load->lin, of->u, PIECE / bytes);
    e = aligned(printer, store->addr, of->v, e);
    of->elements = e;
    return e > 1 && e * bytes >= LEAST &&
           threads_along(printer, of->u, e, ALONG) *
                   threads_along(printer, of->v, e, THREADMAP / ALONG) >=
               WARP;
}

/* Prints the index of loop u from the block and the thread's square `at`.
 * Returns the number of blocks along u. */
static int64_t put_square(KernelPrinter *printer, int u, const char *block,
                          const char *at, int64_t threads, int elements)
{
    int64_t per = threads * elements, n = extent(printer, u);
    int64_t blocks = (n + per - 1) / per;

    text_line(printer, "const ix i%d = (%s %% %ld * %ld + %s) * %d;", u, block,
              blocks, threads, at, elements);
    if (n % per)
        text_line(printer, "if (i%d >= n%d) return;", u,
                  size_arg(printer, printer->kernel->loop[u].extent));
    return blocks;
}

int print_transpose(KernelPrinter *printer)
{
    Transpose t;
    int rest[MAXLOOP];

    if (!is_transpose(printer, &t))
        return 0;
    Node *to = storage(t.store->node);
    int64_t x = threads_along(printer, t.u, t.elements, ALONG);
    int64_t y = threads_along(printer, t.v, t.elements, THREADMAP / x);
    int k = item_loops(printer, t.store->loops & ~(BIT(t.u) | BIT(t.v)), rest);
    text_line(printer, "const ix p = blockIdx.x;");
    int64_t blocks =
        put_square(printer, t.u, "p", strf(printer->arena, "TID %% %ld", x), x,
                   t.elements);
    blocks *= put_square(printer, t.v, strf(printer->arena, "p / %ld", blocks),
                         strf(printer->arena, "TID / %ld", x), y, t.elements);
    put_indices(printer, rest, k, strf(printer->arena, "p / %ld", blocks));
    int from_stride = size_arg(printer, affine_stride(t.load->lin, t.v));
    const char *from = element_text(printer, t.load->buf, t.load->lin);
    int to_stride = size_arg(printer, affine_stride(t.store->addr, t.u));
    text_line(printer, "store_transposed<%d>(&%s, n%d, &%s, n%d);", t.elements,
              element_text(printer, to, t.store->addr), to_stride, from,
              from_stride);
    printer->group->instr.launch =
        (Launch){ .items = blocks * loop_product(printer, rest, 0, k)->v,
                  .threads = (int)(x * y) };
    return 1;
}
