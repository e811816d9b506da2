/* loop_schedule.c: a loop kernel as a whole: the order of its loops, what is an
 * item, and the stores. Three forms, by what the stores and reductions have in
 * common:
 *
 *   map       no reduction, all stores run over the same loops. An item is one
 *             element; the last loop is contiguous and left to the compiler.
 *   rows      an item is one setting of the loops that every result has. In it
 *             come passes over the other loops: reductions first, then stores,
 *             which use their results.
 *   columns   as rows, but the contiguous loop v is one of the item's loops: an
 *             item is a block of its elements, everything runs over arrays. */
#include "loop.h"

#include <string.h>

enum { GRAIN = 16384 }; /* elements worth a thread */

/* ---- order of loops ------------------------------------------------------ */

static uint64_t loops_of(const LoopKernel *c, const AffineExpr *l)
{
    uint64_t m = 0;

    for (int i = 0; i < l->nt; i++)
        if (l->t[i].var < MAXLOOP)
            m |= BIT(l->t[i].var);
    (void)c;
    return m;
}

/* Put the loops of access l that are not ordered yet outside those that are, by
 * falling stride. */
static void order_by(KernelPrinter *n, const AffineExpr *l, uint64_t *left)
{
    int add[MAXLOOP], k = 0;
    uint64_t m = loops_of(n->c, l) & *left;

    for (int u = 0; u < n->c->nloop; u++) {
        if (!(m & BIT(u)))
            continue;
        int at = k++;
        int factors = form_stride(l, u)->n;
        for (; at > 0 && form_stride(l, add[at - 1])->n < factors; at--)
            add[at] = add[at - 1];
        add[at] = u;
    }
    memmove(n->order + k, n->order, (size_t)n->norder * sizeof *n->order);
    memcpy(n->order, add, (size_t)k * sizeof *add);
    n->norder += k;
    *left &= ~m;
}

static int count_bits(uint64_t m)
{
    int k = 0;

    for (; m; m &= m - 1)
        k++;
    return k;
}

/* Accesses, stores first, then loads in use. */
static const AffineExpr **accesses(KernelPrinter *n)
{
    LoopKernel *c = n->c;
    const AffineExpr **v = NULL;

    for (size_t i = 0; i < vec_len(c->st); i++)
        vec_push(n->a, v, c->st[i].addr);
    for (size_t i = 0; i < vec_len(c->ex); i++)
        if (c->ex[i]->seen && c->ex[i]->kind == Xload)
            vec_push(n->a, v, c->ex[i]->lin);
    return v;
}

static uint64_t all_loops(KernelPrinter *n)
{
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(n->c->st); i++)
        m |= n->c->st[i].loops;
    for (size_t i = 0; i < vec_len(n->c->ex); i++)
        if (n->c->ex[i]->seen)
            m |= n->c->ex[i]->K;
    return m;
}

static void order_loops(KernelPrinter *n)
{
    const AffineExpr **acc = accesses(n), *big = acc[0];
    uint64_t left = all_loops(n), all = left;

    for (size_t i = 1; i < vec_len(acc); i++)
        if (count_bits(loops_of(n->c, acc[i])) >
            count_bits(loops_of(n->c, big)))
            big = acc[i];
    order_by(n, big, &left);
    for (size_t i = 0; i < vec_len(acc); i++)
        order_by(n, acc[i], &left);
    for (int u = 0; u < n->c->nloop; u++)
        if (left & BIT(u)) {
            memmove(n->order + 1, n->order,
                    (size_t)n->norder++ * sizeof *n->order);
            n->order[0] = u;
        }
    n->v = -1;
    if (n->norder) {
        int u = n->order[n->norder - 1];
        const SizeProduct *k = form_stride(big, u);
        n->v = (all & BIT(u)) && k && k->n == 0 ? u : -1;
    }
}

/* ---- forms --------------------------------------------------------------- */

static Expr **reductions(KernelPrinter *n)
{
    Expr **r = NULL;

    for (size_t i = 0; i < vec_len(n->c->ex); i++)
        if (n->c->ex[i]->seen && n->c->ex[i]->kind == Xred)
            vec_push(n->a, r, n->c->ex[i]);
    return r;
}

/* The next setting: the last index counts up, with carry. */
static void advance(KernelPrinter *n, const int *u, int k)
{
    for (int i = k - 1; i >= 0; i--) {
        int at = nest_size(n, n->c->loop[u[i]].n);
        if (i == 0)
            nest_line(n, "%si%d++;", k > 1 ? "    " : "", u[i]);
        else
            nest_line(n, "%sif (++i%d == n%d && !(i%d = 0))",
                      i < k - 1 ? "    " : "", u[i], at, u[i]);
    }
}

/* A ragged loop outside ends where its rows do. */
static void cap_items(KernelPrinter *n, const int *u, int k, const char *per)
{
    if (!k || !n->c->loop[u[0]].map)
        return;
    const SizeProduct *m = form_count(n, u, 1, k);
    const char *end = nest_limit(n, u[0]);
    if (m->n)
        end = strf(n->a, "%s * n%d", end, nest_size(n, m));
    if (per)
        end = strf(n->a, "%s * %s", end, per);
    nest_line(n, "if (hi > %s)", end);
    nest_line(n, "    hi = %s;", end);
}

static int64_t map_form(KernelPrinter *n)
{
    int u[MAXLOOP];
    uint64_t all = n->c->st[0].loops;
    LoopBody b = form_stage(n, all);
    int k = form_items(n, all, u);

    cap_items(n, u, k, NULL);
    nest_need(n, b.root, b.nroot);
    if (k <= 1) {
        if (k == 0)
            nest_line(n, "for (ix p = lo; p < hi; p++) {");
        else
            nest_line(n, "#pragma GCC ivdep"),
                nest_line(n, "for (ix i%d = lo; i%d < hi; i%d++) {", u[0], u[0],
                          u[0]);
        Braces s = nest_enter(n, all);
        nest_body(n, &b, NULL);
        nest_leave(n, s);
        return form_count(n, u, 0, k)->v;
    }
    int v = u[k - 1], size = nest_size(n, n->c->loop[v].n);
    form_decode(n, u, k - 1, strf(n->a, "lo / n%d", size));
    nest_line(n,
              "for (ix p = lo, f = lo %% n%d, w; p < hi; "
              "p += w - f, f = 0) {",
              size);
    Braces s = nest_enter(n, all & ~BIT(v));
    nest_line(n, "w = n%d - f < hi - p ? n%d : f + hi - p;", size, size);
    nest_need(n, b.root, b.nroot);
    nest_plain(n, v, &b, "f", "w");
    advance(n, u, k - 1);
    nest_leave(n, s);
    return form_count(n, u, 0, k)->v;
}

/* All stores of an item, those over the same loops together. */
static void stages(KernelPrinter *n, int block_of)
{
    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *st = &n->c->st[i];
        Braces s[MAXLOOP];
        int ns;
        if (st->done)
            continue;
        uint64_t rest = st->loops & ~n->items;
        LoopBody b = form_stage(n, st->loops);
        b.block = block_of + 1;
        nest_need(n, b.root, b.nroot);
        if (block_of >= 0) {
            int last = nest_outer(n, rest, &b, s, &ns);
            if (last >= 0) {
                s[ns++] = nest_open(n, last);
                nest_need(n, b.root, b.nroot);
            }
            nest_block(n, block_of, &b);
        } else {
            int last = nest_outer(n, rest, &b, s, &ns);
            if (last >= 0)
                nest_inner(n, last, &b);
            else
                for (int j = 0; j < b.nst; j++)
                    nest_store(n, b.st[j]);
        }
        nest_leave_all(n, s, ns);
        for (int j = 0; j < b.nst; j++)
            b.st[j]->done = 1;
    }
}

static int64_t rows_form(KernelPrinter *n)
{
    int u[MAXLOOP], k = form_items(n, n->items, u);
    Expr **v = form_values(n);

    cap_items(n, u, k, NULL);
    if (n->items)
        nest_need(n, v, (int)vec_len(v));
    form_decode(n, u, k, "lo");
    nest_line(n, "for (ix p = lo; p < hi; p++) {");
    Braces s = nest_enter(n, n->items);
    nest_need(n, v, (int)vec_len(v));
    stages(n, -1);
    advance(n, u, k);
    nest_leave(n, s);
    return form_count(n, u, 0, k)->v;
}

static int64_t columns_form(KernelPrinter *n)
{
    int u[MAXLOOP], v = n->v, k = form_items(n, n->items & ~BIT(v), u);
    Expr **x = form_values(n);
    int size = nest_size(n, n->c->loop[v].n);
    const char *end = nest_limit(n, v);

    nest_line(n, "const ix nb = (n%d + %d) / %d;", size, BLOCK - 1, BLOCK);
    cap_items(n, u, k, "nb");
    nest_need(n, x, (int)vec_len(x));
    nest_line(n, "for (ix p = lo; p < hi; p++) {");
    n->items &= ~BIT(v);
    Braces s = nest_enter(n, n->items);
    nest_line(n, "const ix v%d = p %% nb * %d;", v, BLOCK);
    nest_line(n, "const ix w%d = %s - v%d < %d ? %s : v%d + %d;", v, end, v,
              BLOCK, end, v, BLOCK);
    form_decode(n, u, k, "p / nb");
    nest_need(n, x, (int)vec_len(x));
    n->items |= BIT(v);
    stages(n, v);
    nest_leave(n, s);
    return form_count(n, u, 0, k)->v *
           ((n->c->loop[v].n->v + BLOCK - 1) / BLOCK);
}

/* ---- the kernel ---------------------------------------------------------- */

static int is_map(KernelPrinter *n, Expr *const *red)
{
    for (size_t i = 1; i < vec_len(n->c->st); i++)
        if (n->c->st[i].loops != n->c->st[0].loops)
            return 0;
    return vec_len(red) == 0;
}

static uint64_t common_loops(KernelPrinter *n, Expr *const *red)
{
    uint64_t m = n->c->st[0].loops;

    for (size_t i = 1; i < vec_len(n->c->st); i++)
        m &= n->c->st[i].loops;
    for (size_t i = 0; i < vec_len(red); i++)
        m &= red[i]->deps;
    return m;
}

static double work(KernelPrinter *n, Expr *const *red)
{
    double w = 0;

    for (size_t i = 0; i < vec_len(n->c->st); i++)
        w += form_elements(n, n->c->st[i].loops);
    for (size_t i = 0; i < vec_len(red); i++)
        w += form_elements(n, red[i]->deps | red[i]->K);
    return w;
}

/* The bits of a double, or an integer that may need 64 of them. */
static int is_number(const KernelPrinter *n, int i)
{
    for (size_t k = 0; k < vec_len(n->num); k++)
        if (n->numat[k] == i)
            return 1;
    return 0;
}

static void prologue(KernelPrinter *n, Text *t)
{
    Group *k = n->k;

    put(t, "{\n");
    for (int i = 0; i < k->narg; i++)
        put(t, "    %s *const b%d = buf[%d];\n", dtypes[k->arg[i]->dt].store, i,
            i);
    for (int i = 0; i < k->instr.nword; i++)
        put(t, "    const %s n%d = iv[%d]; (void)n%d;\n",
            n->gpu && is_number(n, i) ? "int64_t" : "ix", i, i, i);
    for (size_t i = 0; i < vec_len(n->num); i++)
        if (n->num[i]->kind == Xnum)
            put(t, "    const double c%d = number(iv[%d]);\n", n->numat[i],
                n->numat[i]);
    for (size_t i = 0; i < vec_len(n->ext); i++)
        put(t, "    const ix e%zu = b%d[n%d];\n", i,
            add_arg(k, n->a, storage((Node *)n->ext[i])), n->extat[i]);
}

/* Bytes read and written: of a table that is looked up no more than there are
 * elements that look. */
static double traffic(KernelPrinter *n, const Node *buf)
{
    const LoopKernel *c = n->c;
    double all = (double)local_bytes(c->g, buf), least = 0, sum = 0;

    for (size_t i = 0; i < vec_len(c->ex); i++) {
        const Expr *e = c->ex[i];
        if (!e->seen || e->kind != Xload || storage(e->buf) != buf)
            continue;
        double b =
            form_elements(n, lin_deps(c, e->lin)) * dtypes[e->buf->dt].bytes;
        least = b > least ? b : least;
    }
    sum = least < all ? least : all;
    for (size_t i = 0; i < vec_len(c->st); i++)
        if (storage(c->st[i].n) == buf)
            sum += all;
    return sum > 0 ? sum : all;
}

static void set_cost(KernelPrinter *n)
{
    Group *k = n->k;
    const Graph *g = n->c->g;

    for (int i = 0; i < k->narg; i++)
        k->instr.bytes += traffic(n, k->arg[i]);
    for (int i = 0; i < k->n; i++)
        k->instr.flops += cost_of(g, k->node[i]).flops;
}

void kern_print(LoopKernel *c)
{
    KernelPrinter n = { .c = c,
                        .k = c->k,
                        .a = c->a,
                        .depth = 1,
                        .gpu = c->gpu,
                        .t = { .arena = c->a } };
    Text all = { .arena = c->a };
    Expr **red = reductions(&n);

    n.stamp = 1;
    order_loops(&n);
    n.items = common_loops(&n, red);
    int map = is_map(&n, red), cols = n.v >= 0 && (n.items & BIT(n.v));
    if (c->gpu) {
        threads_form(&n, red, map || cols);
    } else {
        int64_t items = map    ? map_form(&n)
                        : cols ? columns_form(&n)
                               : rows_form(&n);
        double per = work(&n, red) / (double)(items ? items : 1);
        set_items(c->k, items, per >= GRAIN ? 1 : (int64_t)(GRAIN / per));
    }
    for (size_t i = 0; i < vec_len(n.ext); i++)
        add_arg(c->k, c->a, storage((Node *)n.ext[i]));
    prologue(&n, &all);
    putn(&all, n.t.s, n.t.len);
    put(&all, "}\n");
    set_text(c->k, c->a, all.s);
    set_cost(&n);
}
