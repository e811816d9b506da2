/* lanes_gpu.c: the lanes of a GPU thread.
 *
 * A thread computes `width` adjacent elements of a contiguous loop, its lanes;
 * where a row is in a few parts (the halves of a rotary embedding), those of
 * all parts. A value that varies over lanes is an array,
 *
 *     float t5[8]; LANES(8) t5[l] = t3[l] * t4;
 *
 * which the compiler unrolls into registers. Memory is accessed in vectors of
 * up to 16 bytes, as strides and offsets allow. A false guard does not skip the
 * load of a vector: the load is redirected to the start of the buffer. */
#include "loop.h"

/* ---- lanes --------------------------------------------------------------- */

int lane_count(const KernelPrinter *printer)
{
    return printer->width * printer->beside;
}

int has_lanes(const KernelPrinter *printer, const Expr *expr)
{
    return lane_count(printer) > 1 && (expr->deps & printer->lane);
}

/* The largest number of elements that divides the loop's end in any case. */
static int64_t lane_divisor(const Loop *loop)
{
    return !loop->map ? loop->extent->v : loop->per ? loop->per->v : 1;
}

static void count_access(const AffineExpr *at, int u, const Node *buf,
                         int *small, int *large)
{
    const SizeProduct *k = affine_stride(at, u);

    if (k && k->v == 1)
        ++*(dtypes[buf->dt].bytes <= 2 ? small : large);
}

/* Lanes of loop u: the width that makes most bytes 16-byte accesses, 8 for
 * bf16, 4 for fp32. The number of accesses alone would give AdamW with bf16
 * gradients 8 lanes, which is slower: decisions/lane-width.md. */
int lane_width(KernelPrinter *printer, int u)
{
    int small = 0, large = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        count_access(printer->kernel->st[i].addr, u,
                     storage(printer->kernel->st[i].node), &small, &large);
    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++) {
        const Expr *expr = printer->kernel->ex[i];
        if (expr->seen && expr->kind == Xload)
            count_access(expr->lin, u, expr->buf, &small, &large);
    }
    int w = !small && !large ? 1 : small >= 2 * large ? 8 : 4;
    while (lane_divisor(&printer->kernel->loop[u]) % w)
        w /= 2;
    return w;
}

void lanes_open(KernelPrinter *printer, int u, int width, int x)
{
    printer->lv = u;
    printer->width = width;
    printer->beside = x < 0 ? 1 : (int)printer->kernel->loop[x].extent->v;
    printer->lane = BIT(u) | (printer->beside == 1 ? 0 : BIT(x));
    if (x >= 0 && printer->beside == 1)
        text_line(printer, "const ix i%d = 0;", x);
}

/* Elements of a vector access: contiguous and aligned for all lanes; 1:
 * scalar. */
static int vector_of(const KernelPrinter *printer, const AffineExpr *at)
{
    int a = printer->width, along = 0;

    for (int i = 0; i < at->nt; i++) {
        const Term *term = &at->term[i];
        if (term->var == printer->lv && (term->k->v != 1 || along++))
            return 1;
        if (term->var >= MAXLOOP &&
            has_lanes(printer, printer->kernel->ex[term->var - MAXLOOP]))
            return 1; /* each lane has an index of its own */
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

const char *each_lane(KernelPrinter *printer)
{
    return lane_count(printer) > 1
               ? strf(printer->arena, "LANES(%d) ", lane_count(printer))
               : "";
}

/* Address of the vectors of an access; l counts whole vectors. */
static const char *vector_address(KernelPrinter *printer, Node *buf,
                                  const AffineExpr *at, const char *guard)
{
    printer->whole = 1;
    const char *s = affine_text(printer, at);
    printer->whole = 0;
    if (guard)
        s = strf(printer->arena, "%s ? %s : 0", guard, s);
    return strf(printer->arena, "b%d + (%s)",
                add_arg(printer->group, printer->arena, buf), s);
}

static const char *vectors_prefix(KernelPrinter *printer)
{
    return printer->beside == 1 ? ""
                                : strf(printer->arena, "PIECES(%d, %d) ",
                                       lane_count(printer), printer->width);
}

/* The first pass over a row stores the loaded vectors in shared memory; later
 * passes load them from there, in the same threads. */
static void print_kept_load(KernelPrinter *printer, Expr *expr, Node *buf,
                            const AffineExpr *at, int piece)
{
    const char *from = vector_address(printer, buf, at, NULL);
    int t = declare_local(printer, expr), v = printer->lv, w = printer->width;
    const char *place = strf(printer->arena, "kept + v%d", v);

    if (printer->blocks > 1)
        place = strf(printer->arena, "kept + (v%d / %d * %d + TID) * %d", v,
                     printer->team * w, printer->team / printer->blocks, w);
    text_line(printer, "%s t%d[%d];", dtypes[expr->dt].compute, t, w);
    if (printer->filled)
        text_line(printer, "load<%d, %d>(t%d, %s);", w, piece, t, place);
    else
        text_line(printer, "load_kept<%d, %d>(t%d, %s, %s);", w, piece, t, from,
                  place);
    printer->fills = 1;
}

static void print_load(KernelPrinter *printer, Expr *expr, Node *buf,
                       const AffineExpr *at, Expr *guard)
{
    const char *type = dtypes[expr->dt].compute;
    int piece = guard && has_lanes(printer, guard) ? 1 : vector_of(printer, at);
    const char *g = guard ? value_name(printer, guard) : NULL;

    if (piece == 1) {
        const char *x = load_text(printer, buf, at);
        if (g)
            x = strf(printer->arena, "%s ? %s : 0", g, x);
        int t = declare_local(printer, expr);
        text_line(printer, "%s t%d[%d]; %st%d[l] = %s;", type, t,
                  lane_count(printer), each_lane(printer), t, x);
    } else if (expr == printer->kept) {
        print_kept_load(printer, expr, buf, at, piece);
    } else {
        const char *from = vector_address(printer, buf, at, g);
        int t = declare_local(printer, expr);
        text_line(printer, "%s t%d[%d]; %sload<%d, %d>(t%d%s, %s);", type, t,
                  lane_count(printer), vectors_prefix(printer), printer->width,
                  piece, t, printer->beside > 1 ? " + l" : "", from);
        if (g)
            text_line(printer, "%st%d[l] = %s ? t%d[l] : 0;",
                      each_lane(printer), t, g, t);
    }
    expr->array = 1;
}

uint64_t pass_bit(const KernelPrinter *printer)
{
    return BIT(printer->passes < 63 ? printer->passes : 63);
}

/* Adds the number only in the thread whose lanes contain the index: three
 * instructions less per element (decisions/one-hot-sum.md). The summand is 0
 * elsewhere. */
static void add_one_hot(KernelPrinter *printer, Expr *expr, const OneHot *hot)
{
    const char *base = value_name(printer, hot->base);
    const char *at = value_name(printer, hot->at);
    const char *number = value_name(printer, hot->number);
    const char *index = value_name(printer, hot->index);
    int t = declare_local(printer, expr);

    printer->whole = 1;
    const char *first = value_name(printer, hot->index);
    printer->whole = 0;
    text_line(printer, "%s t%d[%d]; %st%d[l] = %s;", dtypes[expr->dt].compute,
              t, lane_count(printer), each_lane(printer), t, base);
    text_line(printer, "if ((uint32_t)%s - (uint32_t)%s < %d)", at, first,
              printer->width);
    text_line(printer, "    %st%d[l] += %s == %s ? %s : 0;", each_lane(printer),
              t, at, index, number);
    expr->array = 1;
}

/* Prints expr by add_one_hot if it is a one-hot sum and lanes are adjacent
 * along the row; else computes the operands that were left out. */
static int print_one_hot(KernelPrinter *printer, Expr *expr)
{
    OneHot hot;

    if (!is_one_hot_sum(printer, expr, &hot) || finished_store(printer, expr))
        return 0;
    if (has_lanes(printer, expr) && printer->lv == printer->v &&
        printer->beside == 1 && !has_lanes(printer, hot.at) &&
        !has_lanes(printer, hot.number)) {
        add_one_hot(printer, expr, &hot);
        return 1;
    }
    print_lane_value(printer, hot.equal);
    print_lane_value(printer, hot.choice);
    return 0;
}

/* The quotients of all lanes by one call. */
static void put_quotients(KernelPrinter *printer, Expr *expr)
{
    const char *x = converted_operand(printer, expr, 0),
               *y = converted_operand(printer, expr, 1);
    const char *q = strf(printer->arena, "t%d", declare_local(printer, expr));

    text_line(printer, "%s",
              text_quotients(printer->arena, q, lane_count(printer), x, y));
    expr->array = 1;
}

static int is_quotient(const Expr *expr)
{
    return expr->kind == Xexpr && expr->of == optab[Odiv].expr &&
           expr->dt == Df32;
}

void print_lane_value(KernelPrinter *printer, Expr *expr)
{
    Store *s = finished_store(printer, expr);

    if (is_inline(expr) || expr->local)
        return;
    if (expr->kind == Xload && !printer->per_thread &&
        !has_lanes(printer, expr)) { /* all threads load it */
        expr->passes |= pass_bit(printer);
        printer->unsynced |= pass_bit(printer);
    }
    if (print_one_hot(printer, expr))
        return;
    if (!has_lanes(printer, expr)) {
        print_value(printer, expr);
    } else if (s) {
        print_load(printer, expr, storage(s->node), s->addr, NULL);
    } else if (expr->kind == Xload) {
        print_load(printer, expr, expr->buf, expr->lin, expr->arg[0]);
    } else if (is_quotient(expr) && lane_count(printer) > 1) {
        put_quotients(printer, expr);
    } else {
        const char *x = expr_text(printer, expr);
        int t = declare_local(printer, expr);
        text_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[expr->dt].compute, t, lane_count(printer),
                  each_lane(printer), t, x);
        expr->array = 1;
    }
}

static const char *store_condition(KernelPrinter *printer, const Store *store)
{
    if (!printer->per_thread && !(store->loops & printer->lane))
        return "if (lane == 0) ";
    return printer->active ? strf(printer->arena, "if (%s) ", printer->active)
                           : "";
}

void print_lane_store(KernelPrinter *printer, Store *store)
{
    Node *to = storage(store->node);
    int wide = lane_count(printer) > 1 && (store->loops & printer->lane);
    Expr *val = value_to_store(store);
    int piece = wide ? vector_of(printer, store->addr) : 1, t = val->local;
    const char *x = value_name(printer, val);

    if (store->held)
        tile_store(printer, store, val);
    if (store->unstored)
        return;
    store->unsynced = printer->team > 1 ? printer->unsynced : 0;
    if (piece == 1) {
        text_line(printer, "%s%s%s = %s;", store_condition(printer, store),
                  wide ? each_lane(printer) : "",
                  element_text(printer, to, store->addr),
                  text_save(printer->arena, to->dt, x));
        return;
    }
    if (!t || !val->array) {
        t = ++printer->nlocal;
        text_line(printer, "%s t%d[%d]; %st%d[l] = %s;",
                  dtypes[val->dt].compute, t, lane_count(printer),
                  each_lane(printer), t, x);
    }
    text_line(printer, "%s%sstore<%d, %d>(%s, t%d%s);",
              store_condition(printer, store), vectors_prefix(printer),
              printer->width, piece,
              vector_address(printer, to, store->addr, NULL), t,
              printer->beside > 1 ? " + l" : "");
}
