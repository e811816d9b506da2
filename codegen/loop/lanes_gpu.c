/* lanes_gpu.c: the lanes of a thread of a GPU.
 *
 * A thread takes `width` neighbouring elements of a contiguous loop, its lanes,
 * and where a row is cut in a few parts (a rotary embedding's halves) those of
 * all parts. A value that depends on them is an array of lanes,
 *
 *     float t5[8]; LANES(8) t5[l] = t3[l] * t4;
 *
 * which the compiler unrolls into registers; memory is read and written in
 * pieces of up to 16 bytes, as wide as strides and offsets allow. A guard never
 * keeps a piece from being read, it makes it read the buffer's first. */
#include "loop.h"

/* ---- lanes --------------------------------------------------------------- */

int wide_count(const KernelPrinter *printer)
{
    return printer->width * printer->beside;
}

int wide_has(const KernelPrinter *printer, const Expr *expr)
{
    return wide_count(printer) > 1 && (expr->deps & printer->lane);
}

/* Of a loop, elements that come in whole lanes wherever it ends. */
static int64_t whole_of(const Loop *loop)
{
    return !loop->map ? loop->extent->v : loop->per ? loop->per->v : 1;
}

static void weigh(const AffineExpr *at, int u, const Node *buf, int *small,
                  int *large)
{
    const SizeProduct *k = form_stride(at, u);

    if (k && k->v == 1)
        ++*(dtypes[buf->dt].bytes <= 2 ? small : large);
}

/* Most bytes are accessed 16 at a time: 8 lanes of bf16, 4 of fp32. Of 8 its
 * pieces lie apart, so that a warp fills half of each sector. AdamW with
 * gradients in bf16 has five accesses of 2 bytes and four of 4; by their number
 * it would have 8 lanes: a step of Qwen3's widths 49.8 ms, with 4 lanes 46.5
 * (H200, 4 layers, 1/1). Measured and not kept: stores that leave L2 first
 * (.cs), of what AdamW makes in fp32 (16.5 to 16.1 ms of 4/1), of all that it
 * makes (16.4 to 16.2, but 19.2 to 19.5 of Mixtral's widths), its loads so too
 * (the same as without), stores of all loop kernels (a step of 127.7 to 126.1
 * and 127.1 ms, 48.9 to 49.1, 175.2 to 176.0). */
int wide_width(KernelPrinter *printer, int u)
{
    int small = 0, large = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        weigh(printer->kernel->st[i].addr, u,
              storage(printer->kernel->st[i].node), &small, &large);
    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++) {
        const Expr *expr = printer->kernel->ex[i];
        if (expr->seen && expr->kind == Xload)
            weigh(expr->lin, u, expr->buf, &small, &large);
    }
    int w = !small && !large ? 1 : small >= 2 * large ? 8 : 4;
    while (whole_of(&printer->kernel->loop[u]) % w)
        w /= 2;
    return w;
}

void wide_open(KernelPrinter *printer, int u, int width, int x)
{
    printer->lv = u;
    printer->width = width;
    printer->beside = x < 0 ? 1 : (int)printer->kernel->loop[x].extent->v;
    printer->lane = BIT(u) | (printer->beside == 1 ? 0 : BIT(x));
    if (x >= 0 && printer->beside == 1)
        nest_line(printer, "const ix i%d = 0;", x);
}

/* Elements that an access has side by side and aligned, for all lanes. */
static int piece_of(const KernelPrinter *printer, const AffineExpr *at)
{
    int a = printer->width, along = 0;

    for (int i = 0; i < at->nt; i++) {
        const Term *term = &at->term[i];
        if (term->var == printer->lv && (term->k->v != 1 || along++))
            return 1;
        if (term->var >= MAXLOOP &&
            wide_has(printer, printer->kernel->ex[term->var - MAXLOOP]))
            return 1; /* lanes lie where their own index says */
        while (term->var != printer->lv && term->k->v % a)
            a /= 2;
    }
    while (at->hasoff && at->off.c % a)
        a /= 2;
    for (int i = 0; i < MAXATOM; i++)
        while (at->hasoff && at->off.k[i] % a)
            a /= 2;
    return along ? a : 1;
}

/* ---- loads, stores, values ----------------------------------------------- */

const char *wide_each(KernelPrinter *printer)
{
    return wide_count(printer) > 1
               ? strf(printer->arena, "LANES(%d) ", wide_count(printer))
               : "";
}

/* Where the pieces of an access begin; l counts whole ones. */
static const char *address(KernelPrinter *printer, Node *buf,
                           const AffineExpr *at, const char *guard)
{
    printer->whole = 1;
    const char *s = nest_lin(printer, at);
    printer->whole = 0;
    if (guard)
        s = strf(printer->arena, "%s ? %s : 0", guard, s);
    return strf(printer->arena, "b%d + (%s)",
                add_arg(printer->group, printer->arena, buf), s);
}

static const char *each_piece(KernelPrinter *printer)
{
    return printer->beside == 1 ? ""
                                : strf(printer->arena, "PIECES(%d, %d) ",
                                       wide_count(printer), printer->width);
}

/* The first pass that reads it leaves in shared memory what others find there,
 * by the same threads. */
static void load_kept(KernelPrinter *printer, Expr *expr, Node *buf,
                      const AffineExpr *at, int piece)
{
    const char *from = address(printer, buf, at, NULL);
    int t = nest_local(printer, expr), v = printer->lv, w = printer->width;
    const char *place = strf(printer->arena, "kept + v%d", v);

    if (printer->blocks > 1)
        place = strf(printer->arena, "kept + (v%d / %d * %d + TID) * %d", v,
                     printer->team * w, printer->team / printer->blocks, w);
    nest_line(printer, "%s t%d[%d];", dtypes[expr->dt].compute, t, w);
    if (printer->filled)
        nest_line(printer, "load<%d, %d>(t%d, %s);", w, piece, t, place);
    else
        nest_line(printer, "load_kept<%d, %d>(t%d, %s, %s);", w, piece, t, from,
                  place);
    printer->fills = 1;
}

static void load(KernelPrinter *printer, Expr *expr, Node *buf,
                 const AffineExpr *at, Expr *guard)
{
    const char *type = dtypes[expr->dt].compute;
    int piece = guard && wide_has(printer, guard) ? 1 : piece_of(printer, at);
    const char *g = guard ? nest_ref(printer, guard) : NULL;

    if (piece == 1) {
        const char *x = nest_load(printer, buf, at);
        if (g)
            x = strf(printer->arena, "%s ? %s : 0", g, x);
        int t = nest_local(printer, expr);
        nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;", type, t,
                  wide_count(printer), wide_each(printer), t, x);
    } else if (expr == printer->kept) {
        load_kept(printer, expr, buf, at, piece);
    } else {
        const char *from = address(printer, buf, at, g);
        int t = nest_local(printer, expr);
        nest_line(printer, "%s t%d[%d]; %sload<%d, %d>(t%d%s, %s);", type, t,
                  wide_count(printer), each_piece(printer), printer->width,
                  piece, t, printer->beside > 1 ? " + l" : "", from);
        if (g)
            nest_line(printer, "%st%d[l] = %s ? t%d[l] : 0;",
                      wide_each(printer), t, g, t);
    }
    expr->array = 1;
}

uint64_t wide_pass(const KernelPrinter *printer)
{
    return BIT(printer->passes < 63 ? printer->passes : 63);
}

/* Few of a row's lanes are where the number is: three instructions less an
 * element. (Cross entropy with its gradient, 4096 rows of 151936 in bf16, in
 * steps on an H200: 0.83 to 0.75 ms.) What is added elsewhere is 0. */
static void add_one_hot(KernelPrinter *printer, Expr *expr, const OneHot *hot)
{
    const char *base = nest_ref(printer, hot->base);
    const char *at = nest_ref(printer, hot->at);
    const char *number = nest_ref(printer, hot->number);
    const char *index = nest_ref(printer, hot->index);
    int t = nest_local(printer, expr);

    printer->whole = 1;
    const char *first = nest_ref(printer, hot->index);
    printer->whole = 0;
    nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;", dtypes[expr->dt].compute,
              t, wide_count(printer), wide_each(printer), t, base);
    nest_line(printer, "if ((uint32_t)%s - (uint32_t)%s < %d)", at, first,
              printer->width);
    nest_line(printer, "    %st%d[l] += %s == %s ? %s : 0;", wide_each(printer),
              t, at, index, number);
    expr->array = 1;
}

/* Does it, if it is such a sum and lanes are neighbours along the row; else the
 * sum's operands are all made. */
static int in_one_place(KernelPrinter *printer, Expr *expr)
{
    OneHot hot;

    if (!nest_one_hot(printer, expr, &hot) || nest_saved(printer, expr))
        return 0;
    if (wide_has(printer, expr) && printer->lv == printer->v &&
        printer->beside == 1 && !wide_has(printer, hot.at) &&
        !wide_has(printer, hot.number)) {
        add_one_hot(printer, expr, &hot);
        return 1;
    }
    wide_compute(printer, hot.equal);
    wide_compute(printer, hot.choice);
    return 0;
}

/* Of all lanes by one call. */
static void put_quotients(KernelPrinter *printer, Expr *expr)
{
    const char *x = nest_operand(printer, expr, 0),
               *y = nest_operand(printer, expr, 1);
    const char *q = strf(printer->arena, "t%d", nest_local(printer, expr));

    nest_line(printer, "%s",
              text_quotients(printer->arena, q, wide_count(printer), x, y));
    expr->array = 1;
}

static int is_quotient(const Expr *expr)
{
    return expr->kind == Xexpr && expr->of == optab[Odiv].expr &&
           expr->dt == Df32;
}

void wide_compute(KernelPrinter *printer, Expr *expr)
{
    Store *s = nest_saved(printer, expr);

    if (nest_inline(expr) || expr->local)
        return;
    if (expr->kind == Xload && !printer->own &&
        !wide_has(printer, expr)) { /* by all threads */
        expr->passes |= wide_pass(printer);
        printer->apart |= wide_pass(printer);
    }
    if (in_one_place(printer, expr))
        return;
    if (!wide_has(printer, expr)) {
        nest_compute(printer, expr);
    } else if (s) {
        load(printer, expr, storage(s->node), s->addr, NULL);
    } else if (expr->kind == Xload) {
        load(printer, expr, expr->buf, expr->lin, expr->arg[0]);
    } else if (is_quotient(expr) && wide_count(printer) > 1) {
        put_quotients(printer, expr);
    } else {
        const char *x = nest_value(printer, expr);
        int t = nest_local(printer, expr);
        nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[expr->dt].compute, t, wide_count(printer),
                  wide_each(printer), t, x);
        expr->array = 1;
    }
}

static const char *only(KernelPrinter *printer, const Store *store)
{
    if (!printer->own && !(store->loops & printer->lane))
        return "if (lane == 0) ";
    return printer->on ? strf(printer->arena, "if (%s) ", printer->on) : "";
}

void wide_store(KernelPrinter *printer, Store *store)
{
    Node *to = storage(store->node);
    int wide = wide_count(printer) > 1 && (store->loops & printer->lane);
    Expr *val = nest_stored(store);
    int piece = wide ? piece_of(printer, store->addr) : 1, t = val->local;
    const char *x = nest_ref(printer, val);

    if (store->held)
        tile_hold(printer, store, val);
    if (store->unstored)
        return;
    store->apart = printer->team > 1 ? printer->apart : 0;
    if (piece == 1) {
        nest_line(printer, "%s%s%s = %s;", only(printer, store),
                  wide ? wide_each(printer) : "",
                  nest_element(printer, to, store->addr),
                  text_save(printer->arena, to->dt, x));
        return;
    }
    if (!t || !val->array) {
        t = ++printer->nlocal;
        nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[val->dt].compute, t, wide_count(printer),
                  wide_each(printer), t, x);
    }
    nest_line(printer, "%s%sstore<%d, %d>(%s, t%d%s);", only(printer, store),
              each_piece(printer), printer->width, piece,
              address(printer, to, store->addr, NULL), t,
              printer->beside > 1 ? " + l" : "");
}
