/* loop_schedule.c: the structure of a host loop kernel: order of loops, items,
 * stores. The common loops of stores and reductions select one of three forms:
 *
 *   map       no reduction, all stores over the same loops. An item is one
 *             element; the innermost loop is contiguous and vectorized by the
 *             compiler.
 *   rows      an item is one iteration of the loops that all results share. It
 *             makes passes over the other loops: reductions, then the stores
 *             that use them.
 *   columns   as rows, but the contiguous loop v is one of the item's loops: an
 *             item is a block of its elements, and values are arrays. */
#include "loop.h"

enum { GRAIN = 16384 }; /* elements per thread, at least */

/* ---- order of loops ------------------------------------------------------ */

static uint64_t loops_of(const LoopKernel *kernel, const AffineExpr *affine)
{
    uint64_t m = 0;

    for (int i = 0; i < affine->nt; i++)
        if (affine->term[i].var < MAXLOOP)
            m |= BIT(affine->term[i].var);
    (void)kernel;
    return m;
}

/* Places the unordered loops of an access outside the ordered ones, by
 * decreasing stride. */
static void order_by(KernelPrinter *printer, const AffineExpr *affine,
                     uint64_t *left)
{
    int add[MAXLOOP], k = 0;
    uint64_t m = loops_of(printer->kernel, affine) & *left;

    for (int u = 0; u < printer->kernel->nloop; u++) {
        if (!(m & BIT(u)))
            continue;
        int at = k++;
        int factors = affine_stride(affine, u)->n;
        for (; at > 0 && affine_stride(affine, add[at - 1])->n < factors; at--)
            add[at] = add[at - 1];
        add[at] = u;
    }
    memmove(printer->order + k, printer->order,
            (size_t)printer->norder * sizeof *printer->order);
    memcpy(printer->order, add, (size_t)k * sizeof *add);
    printer->norder += k;
    *left &= ~m;
}

static int count_bits(uint64_t m)
{
    int k = 0;

    for (; m; m &= m - 1)
        k++;
    return k;
}

/* Accesses: stores, then loads in use. */
static const AffineExpr **all_accesses(KernelPrinter *printer)
{
    LoopKernel *kernel = printer->kernel;
    const AffineExpr **v = NULL;

    for (size_t i = 0; i < vec_len(kernel->st); i++)
        vec_push(printer->arena, v, kernel->st[i].addr);
    for (size_t i = 0; i < vec_len(kernel->ex); i++)
        if (kernel->ex[i]->seen && kernel->ex[i]->kind == Xload)
            vec_push(printer->arena, v, kernel->ex[i]->lin);
    return v;
}

static uint64_t all_loops(KernelPrinter *printer)
{
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        m |= printer->kernel->st[i].loops;
    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++)
        if (printer->kernel->ex[i]->seen)
            m |= printer->kernel->ex[i]->K;
    return m;
}

static void order_loops(KernelPrinter *printer)
{
    const AffineExpr **acc = all_accesses(printer), *big = acc[0];
    uint64_t left = all_loops(printer), all = left;

    for (size_t i = 1; i < vec_len(acc); i++)
        if (count_bits(loops_of(printer->kernel, acc[i])) >
            count_bits(loops_of(printer->kernel, big)))
            big = acc[i];
    order_by(printer, big, &left);
    for (size_t i = 0; i < vec_len(acc); i++)
        order_by(printer, acc[i], &left);
    for (int u = 0; u < printer->kernel->nloop; u++)
        if (left & BIT(u)) {
            memmove(printer->order + 1, printer->order,
                    (size_t)printer->norder++ * sizeof *printer->order);
            printer->order[0] = u;
        }
    printer->v = -1;
    if (printer->norder) {
        int u = printer->order[printer->norder - 1];
        const SizeProduct *k = affine_stride(big, u);
        printer->v = (all & BIT(u)) && k && k->n == 0 ? u : -1;
    }
}

/* ---- forms --------------------------------------------------------------- */

static Expr **reductions(KernelPrinter *printer)
{
    Expr **r = NULL;

    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++)
        if (printer->kernel->ex[i]->seen &&
            printer->kernel->ex[i]->kind == Xred)
            vec_push(printer->arena, r, printer->kernel->ex[i]);
    return r;
}

/* Increments the indices of an item, the last one first, with carry. */
static void print_advance(KernelPrinter *printer, const int *u, int k)
{
    for (int i = k - 1; i >= 0; i--) {
        int at = size_arg(printer, printer->kernel->loop[u[i]].extent);
        if (i == 0)
            text_line(printer, "%si%d++;", k > 1 ? "    " : "", u[i]);
        else
            text_line(printer, "%sif (++i%d == n%d && !(i%d = 0))",
                      i < k - 1 ? "    " : "", u[i], at, u[i]);
    }
}

/* The last item of a ragged outer loop depends on its rows. */
static void cap_items(KernelPrinter *printer, const int *u, int k,
                      const char *per)
{
    if (!k || !printer->kernel->loop[u[0]].map)
        return;
    const SizeProduct *m = loop_product(printer, u, 1, k);
    const char *end = loop_end(printer, u[0]);
    if (m->n)
        end = strf(printer->arena, "%s * n%d", end, size_arg(printer, m));
    if (per)
        end = strf(printer->arena, "%s * %s", end, per);
    text_line(printer, "if (hi > %s)", end);
    text_line(printer, "    hi = %s;", end);
}

static int64_t print_map(KernelPrinter *printer)
{
    int u[MAXLOOP];
    uint64_t all = printer->kernel->st[0].loops;
    LoopBody b = begin_stage(printer, all);
    int k = item_loops(printer, all, u);

    cap_items(printer, u, k, NULL);
    print_needed(printer, b.root, b.nroot);
    if (k <= 1) {
        if (k == 0)
            text_line(printer, "for (ix p = lo; p < hi; p++) {");
        else
            text_line(printer, "#pragma GCC ivdep"),
                text_line(printer, "for (ix i%d = lo; i%d < hi; i%d++) {", u[0],
                          u[0], u[0]);
        Braces s = scope_enter(printer, all);
        print_body(printer, &b, NULL);
        scope_leave(printer, s);
        return loop_product(printer, u, 0, k)->v;
    }
    int v = u[k - 1], size = size_arg(printer, printer->kernel->loop[v].extent);
    put_indices(printer, u, k - 1, strf(printer->arena, "lo / n%d", size));
    text_line(printer,
              "for (ix p = lo, f = lo %% n%d, w; p < hi; p += w - f, f = 0) {",
              size);
    Braces s = scope_enter(printer, all & ~BIT(v));
    text_line(printer, "w = n%d - f < hi - p ? n%d : f + hi - p;", size, size);
    print_needed(printer, b.root, b.nroot);
    print_plain_loop(printer, v, &b, "f", "w");
    print_advance(printer, u, k - 1);
    scope_leave(printer, s);
    return loop_product(printer, u, 0, k)->v;
}

/* All stores of an item; those over the same loops share a stage. */
static void print_host_stages(KernelPrinter *printer, int block_of)
{
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *st = &printer->kernel->st[i];
        Braces s[MAXLOOP];
        int ns;
        if (st->done)
            continue;
        uint64_t rest = st->loops & ~printer->items;
        LoopBody b = begin_stage(printer, st->loops);
        b.block = block_of + 1;
        print_needed(printer, b.root, b.nroot);
        if (block_of >= 0) {
            int last = open_outer_loops(printer, rest, &b, s, &ns);
            if (last >= 0) {
                s[ns++] = scope_open_loop(printer, last);
                print_needed(printer, b.root, b.nroot);
            }
            print_block_loop(printer, block_of, &b);
        } else {
            int last = open_outer_loops(printer, rest, &b, s, &ns);
            if (last >= 0)
                print_inner_loop(printer, last, &b);
            else
                for (int j = 0; j < b.nst; j++)
                    print_store(printer, b.st[j]);
        }
        scope_leave_all(printer, s, ns);
        for (int j = 0; j < b.nst; j++)
            b.st[j]->done = 1;
    }
}

static int64_t print_rows(KernelPrinter *printer)
{
    int u[MAXLOOP], k = item_loops(printer, printer->items, u);
    Expr **v = stored_values(printer);

    cap_items(printer, u, k, NULL);
    if (printer->items)
        print_needed(printer, v, (int)vec_len(v));
    put_indices(printer, u, k, "lo");
    text_line(printer, "for (ix p = lo; p < hi; p++) {");
    Braces s = scope_enter(printer, printer->items);
    print_needed(printer, v, (int)vec_len(v));
    print_host_stages(printer, -1);
    print_advance(printer, u, k);
    scope_leave(printer, s);
    return loop_product(printer, u, 0, k)->v;
}

static int64_t print_columns(KernelPrinter *printer)
{
    int u[MAXLOOP], v = printer->v,
                    k = item_loops(printer, printer->items & ~BIT(v), u);
    Expr **x = stored_values(printer);
    int size = size_arg(printer, printer->kernel->loop[v].extent);
    const char *end = loop_end(printer, v);

    text_line(printer, "const ix nb = (n%d + %d) / %d;", size, BLOCK - 1,
              BLOCK);
    cap_items(printer, u, k, "nb");
    print_needed(printer, x, (int)vec_len(x));
    text_line(printer, "for (ix p = lo; p < hi; p++) {");
    printer->items &= ~BIT(v);
    Braces s = scope_enter(printer, printer->items);
    text_line(printer, "const ix v%d = p %% nb * %d;", v, BLOCK);
    text_line(printer, "const ix w%d = %s - v%d < %d ? %s : v%d + %d;", v, end,
              v, BLOCK, end, v, BLOCK);
    put_indices(printer, u, k, "p / nb");
    print_needed(printer, x, (int)vec_len(x));
    printer->items |= BIT(v);
    print_host_stages(printer, v);
    scope_leave(printer, s);
    return loop_product(printer, u, 0, k)->v *
           ((printer->kernel->loop[v].extent->v + BLOCK - 1) / BLOCK);
}

/* ---- the kernel ---------------------------------------------------------- */

static int is_map(KernelPrinter *printer, Expr *const *red)
{
    for (size_t i = 1; i < vec_len(printer->kernel->st); i++)
        if (printer->kernel->st[i].loops != printer->kernel->st[0].loops)
            return 0;
    return vec_len(red) == 0;
}

static uint64_t common_loops(KernelPrinter *printer, Expr *const *red)
{
    uint64_t m = printer->kernel->st[0].loops;

    for (size_t i = 1; i < vec_len(printer->kernel->st); i++)
        m &= printer->kernel->st[i].loops;
    for (size_t i = 0; i < vec_len(red); i++)
        m &= red[i]->deps;
    return m;
}

static double kernel_work(KernelPrinter *printer, Expr *const *red)
{
    double w = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        w += loop_elements(printer, printer->kernel->st[i].loops);
    for (size_t i = 0; i < vec_len(red); i++)
        w += loop_elements(printer, red[i]->deps | red[i]->K);
    return w;
}

/* Is argument i the bits of a double, or an integer of up to 64 bits? */
static int is_number(const KernelPrinter *printer, int i)
{
    for (size_t k = 0; k < vec_len(printer->num); k++)
        if (printer->numat[k] == i)
            return 1;
    return 0;
}

static void print_prologue(KernelPrinter *printer, Text *out)
{
    Group *k = printer->group;

    put(out, "{\n");
    for (int i = 0; i < k->narg; i++)
        put_pointer(out, printer->kernel->graph, k, printer->arena, i,
                    dtypes[k->arg[i]->dt].store, dtypes[k->arg[i]->dt].bytes,
                    strf(printer->arena, "b%d", i));
    for (int i = 0; i < k->instr.nword; i++)
        put(out, "    const %s n%d = iv[%d]; (void)n%d;\n",
            printer->gpu && is_number(printer, i) ? "int64_t" : "ix", i, i, i);
    for (size_t i = 0; i < vec_len(printer->num); i++)
        if (printer->num[i]->kind == Xnum)
            put(out, "    const double c%d = number(iv[%d]);\n",
                printer->numat[i], printer->numat[i]);
    for (size_t i = 0; i < vec_len(printer->ext); i++)
        put(out, "    const ix e%zu = b%d[n%d];\n", i,
            add_arg(k, printer->arena, storage((Node *)printer->ext[i])),
            printer->extat[i]);
}

/* Bytes read and written. A gathered table counts at most the elements that are
 * read. */
static double buffer_traffic(KernelPrinter *printer, const Node *buf)
{
    const LoopKernel *kernel = printer->kernel;
    double all = (double)local_bytes(kernel->graph, buf), least = 0, sum = 0;

    for (size_t i = 0; i < vec_len(kernel->ex); i++) {
        const Expr *expr = kernel->ex[i];
        if (!expr->seen || expr->kind != Xload || storage(expr->buf) != buf)
            continue;
        double b = loop_elements(printer, affine_loops(kernel, expr->lin)) *
                   dtypes[expr->buf->dt].bytes;
        least = b > least ? b : least;
    }
    sum = least < all ? least : all;
    for (size_t i = 0; i < vec_len(kernel->st); i++)
        if (storage(kernel->st[i].node) == buf)
            sum += all;
    return sum > 0 ? sum : all;
}

static void set_cost(KernelPrinter *printer)
{
    Group *group = printer->group;
    const Graph *g = printer->kernel->graph;

    for (int i = 0; i < group->narg; i++)
        group->instr.bytes += buffer_traffic(printer, group->arg[i]);
    for (int i = 0; i < group->n; i++)
        group->instr.flops += cost_of(g, group->node[i]).flops;
}

void print_kernel(LoopKernel *kernel)
{
    KernelPrinter printer = { .kernel = kernel,
                              .group = kernel->group,
                              .arena = kernel->arena,
                              .depth = 1,
                              .gpu = kernel->gpu,
                              .text = { .arena = kernel->arena } };
    Text all = { .arena = kernel->arena };
    Expr **red = reductions(&printer);

    printer.stamp = 1;
    order_loops(&printer);
    printer.items = common_loops(&printer, red);
    int map = is_map(&printer, red),
        cols = printer.v >= 0 && (printer.items & BIT(printer.v));
    if (kernel->gpu) {
        map_to_gpu(&printer, red, map || cols);
    } else {
        int64_t items = map    ? print_map(&printer)
                        : cols ? print_columns(&printer)
                               : print_rows(&printer);
        double per = kernel_work(&printer, red) / (double)(items ? items : 1);
        set_items(kernel->group, items,
                  per >= GRAIN ? 1 : (int64_t)(GRAIN / per));
    }
    for (size_t i = 0; i < vec_len(printer.ext); i++)
        add_arg(kernel->group, kernel->arena, storage((Node *)printer.ext[i]));
    print_prologue(&printer, &all);
    putn(&all, printer.text.s, printer.text.len);
    put(&all, "}\n");
    set_text(kernel->group, kernel->arena, all.s);
    set_cost(&printer);
}
