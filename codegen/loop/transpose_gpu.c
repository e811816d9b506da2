/* transpose_gpu.c: a transpose on a GPU, a copy whose contiguous loop is one in
 * what is read and another in what is stored:
 *
 *     to[v + n1 * u + ..] = from[u + n2 * v + ..]
 *
 * By a thread an element one side would be read or written by 1, 2 or 4 bytes a
 * line. Here a thread has a square of E x E, E elements the largest piece of 4
 * to 16 bytes that lies aligned on both sides, transposed in registers
 * (cuda.pre). A block has 8 squares side by side along u, 32 along v, where
 * there are so many: 128 bytes of a line are read at a time, 512 written. */
#include "loop.h"

enum {
    ALONG = 8,  /* squares of a block along u */
    PIECE = 16, /* bytes that a thread reads of a line at most, */
    LEAST = 4,  /* at least */
    WARP = 32   /* threads, less are not worth it */
};

typedef struct Transpose {
    const Store *store;
    const Expr *load;
    int u, v; /* contiguous loops of what is read, of what is stored */
    int elements;
} Transpose;

/* The only loop that moves by one element; -1: none, or an index that is no sum
 * of whole loops times strides. */
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

/* The largest power of two up to most that divides the extent of the contiguous
 * loop and all other strides. */
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

static int64_t most_threads(const KernelPrinter *printer, int u, int elements,
                            int64_t most)
{
    int64_t threads = 1;

    while (threads < most && threads * elements < extent(printer, u))
        threads *= 2;
    return threads;
}

/* Is the kernel one transpose? */
static int is_transpose(const KernelPrinter *printer, Transpose *of)
{
    const LoopKernel *kernel = printer->kernel;
    const Store *store = &kernel->st[0];
    const Expr *load = nest_stored(store);
    int bytes = dtypes[storage(store->node)->dt].bytes;

    if (vec_len(kernel->st) != 1 || load->kind != Xload || load->arg[0] ||
        load->buf->dt != storage(store->node)->dt || bytes > LEAST)
        return 0;
    for (int u = 0; u < kernel->nloop; u++)
        if ((store->loops & BIT(u)) &&
            (kernel->loop[u].map || !form_stride(load->lin, u)))
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
           most_threads(printer, of->u, e, ALONG) *
                   most_threads(printer, of->v, e, THREADMAP / ALONG) >=
               WARP;
}

/* Index of loop u: of the block's squares along it, `at` is the thread's. */
static int64_t put_square(KernelPrinter *printer, int u, const char *block,
                          const char *at, int64_t threads, int elements)
{
    int64_t per = threads * elements, n = extent(printer, u);
    int64_t blocks = (n + per - 1) / per;

    nest_line(printer, "const ix i%d = (%s %% %ld * %ld + %s) * %d;", u, block,
              blocks, threads, at, elements);
    if (n % per)
        nest_line(printer, "if (i%d >= n%d) return;", u,
                  nest_size(printer, printer->kernel->loop[u].extent));
    return blocks;
}

int transpose_form(KernelPrinter *printer)
{
    Transpose t;
    int rest[MAXLOOP];

    if (!is_transpose(printer, &t))
        return 0;
    Node *to = storage(t.store->node);
    int64_t x = most_threads(printer, t.u, t.elements, ALONG);
    int64_t y = most_threads(printer, t.v, t.elements, THREADMAP / x);
    int k = form_items(printer, t.store->loops & ~(BIT(t.u) | BIT(t.v)), rest);
    nest_line(printer, "const ix p = blockIdx.x;");
    int64_t blocks =
        put_square(printer, t.u, "p", strf(printer->arena, "TID %% %ld", x), x,
                   t.elements);
    blocks *= put_square(printer, t.v, strf(printer->arena, "p / %ld", blocks),
                         strf(printer->arena, "TID / %ld", x), y, t.elements);
    form_decode(printer, rest, k, strf(printer->arena, "p / %ld", blocks));
    nest_line(printer, "store_transposed<%d>(&%s, n%d, &%s, n%d);", t.elements,
              nest_element(printer, to, t.store->addr),
              nest_size(printer, form_stride(t.store->addr, t.u)),
              nest_element(printer, t.load->buf, t.load->lin),
              nest_size(printer, form_stride(t.load->lin, t.v)));
    printer->group->instr.launch =
        (Launch){ .items = blocks * form_count(printer, rest, 0, k)->v,
                  .threads = (int)(x * y) };
    return 1;
}
