/* vectorize_gpu.c: text of a GPU thread, on its lanes (lanes_gpu.c). Loops
 * inside an item run sequentially, except those that a team divides
 * (map_gpu.c). */
#include "loop.h"

static void lane_need(KernelPrinter *printer, Expr *const *root, int nroot);

/* Unrolling: of loops, of short loops as a whole, of passes over kept rows. */
enum { UNROLL = 4, UNROLLED = 8, KEPTUNROLL = 2 };

/* ---- loops inside an item ------------------------------------------------ */

static void open_loop(KernelPrinter *printer, int u, int innermost, Braces *out)
{
    const Loop *loop = &printer->kernel->loop[u];
    const char *first = "0", *by = "1";

    if (u == printer->shared)
        first = "group", by = strf(printer->arena, "%d", printer->groups);
    if (innermost)
        text_line(printer, "#pragma unroll %d",
                  loop->map                     ? 1
                  : loop->extent->v <= UNROLLED ? UNROLLED
                                                : UNROLL);
    text_line(printer, "for (ix i%d = %s; i%d < %s; i%d += %s) {", u, first, u,
              loop_end(printer, u), u, by);
    *out = scope_enter(printer, BIT(u));
}

/* Opens the loops of K, each followed by the values that can be computed in
 * it. */
static int open_loops(KernelPrinter *printer, uint64_t K, const LoopBody *body,
                      Braces *out)
{
    int k = 0;

    for (int i = 0; i < printer->norder; i++) {
        int u = printer->order[i];
        if (!(K & BIT(u)))
            continue;
        K &= ~BIT(u);
        open_loop(printer, u, !K, &out[k++]);
        lane_need(printer, body->root, body->nroot);
    }
    return k;
}

/* The sum of exp(x - top) over the same loops as top, the maximum of x; null if
 * there is none. Both can be computed in one pass if the sum is rescaled as the
 * maximum grows (Milakov and Gimelshein 2018). */
static Expr *online_sum_of(const KernelPrinter *printer, const Expr *top)
{
    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++) {
        Expr *e = printer->kernel->ex[i];
        const Expr *f = e->seen && e->kind == Xred ? e->arg[0] : NULL;
        if (!f || e->local || e->op != Osum || e->K != top->K ||
            e->dt != Df32 || f->kind != Xexpr || f->of != optab[Oexp].expr)
            continue;
        const Expr *d = f->arg[0];
        if (d->kind == Xexpr && d->dt == Df32 && d->of == optab[Osub].expr &&
            d->arg[0] == top->arg[0] && d->arg[1] == top)
            return e;
    }
    return NULL;
}

static void find_online_softmax(KernelPrinter *printer, Expr **r, int nr)
{
    printer->max = printer->sum = NULL;
    for (int i = 0;
         printer->kernel->form == STAGEdealt && i < nr && !printer->sum; i++)
        if (r[i]->op == Omax && r[i]->dt == Df32 &&
            (printer->sum = online_sum_of(printer, r[i])))
            printer->max = r[i];
}

/* The sum is not updated while all x are -inf. */
static void print_online_update(KernelPrinter *printer, const char *x)
{
    int t = printer->max->local, s = printer->sum->local,
        was = ++printer->nlocal;
    int from = ++printer->nlocal;
    const char *exp = exp_function(printer, printer->sum->arg[0]);

    text_line(printer, "const float t%d = t%d;", was, t);
    text_line(printer, "%st%d = fmaxf(%s, t%d);", each_lane(printer), t, x, t);
    text_line(printer, "const float t%d = t%d > -INFINITY ? t%d : 0;", from, t,
              t);
    text_line(printer, "t%d *= %s(t%d - t%d);", s, exp, was, from);
    text_line(printer, "%st%d += %s(%s - t%d);", each_lane(printer), s, exp, x,
              from);
}

/* The innermost lines: needed values, accumulations, stores. */
static void print_innermost(KernelPrinter *printer, const LoopBody *body)
{
    lane_need(printer, body->root, body->nroot);
    for (int i = 0; i < body->nacc; i++) {
        Expr *r = body->acc[i];
        int along = (r->K & printer->lane) != 0, wide = has_lanes(printer, r);
        const char *x = value_name(printer, r->arg[0]);
        if (r == printer->max) {
            print_online_update(printer, x);
            continue;
        }
        const char *t = strf(printer->arena, wide ? "t%d[l]" : "t%d", r->local);
        const char *how =
            strf(printer->arena, "%s%s",
                 along && printer->active
                     ? strf(printer->arena, "if (%s) ", printer->active)
                     : "",
                 along || wide ? each_lane(printer) : "");
        print_accumulate(printer, r, how, t, x);
    }
    for (int i = 0; i < body->nst; i++)
        print_lane_store(printer, body->st[i]);
}

static void declare_reduction(KernelPrinter *printer, Expr *expr)
{
    const char *type = dtypes[expr->dt].compute, *first = identity(expr);
    int wide = has_lanes(printer, expr), t = declare_local(printer, expr);

    if (wide)
        text_line(printer, "%s t%d[%d]; %st%d[l] = %s;", type, t,
                  lane_count(printer), each_lane(printer), t, first);
    else
        text_line(printer, "%s t%d = %s;", type, t, first);
    expr->array = wide;
}

/* ---- loops divided among a team ------------------------------------------ */

typedef struct LoopSplit {
    int loop[MAXLOOP], k, flat;
    int64_t per;
} LoopSplit;

/* Is there a reduction over one of these loops inside another of them? */
static int sums_inside(KernelPrinter *printer, uint64_t K)
{
    for (size_t i = 0; i < vec_len(printer->kernel->ex); i++) {
        const Expr *expr = printer->kernel->ex[i];
        if (expr->seen && expr->kind == Xred && (expr->K & K) &&
            (expr->deps & K))
            return 1;
    }
    return 0;
}

/* The last loop is divided, or all loops, flattened, if it is short. */
static LoopSplit split_of(KernelPrinter *printer, uint64_t K)
{
    LoopSplit d = { .per = 1 };
    int ragged = 0;

    for (int i = 0; i < printer->norder; i++)
        if (K & BIT(printer->order[i])) {
            d.loop[d.k++] = printer->order[i];
            ragged |= printer->kernel->loop[printer->order[i]].map != NULL;
        }
    int last = d.loop[d.k - 1];
    d.per = printer->kernel->loop[last].extent->v / lane_width(printer, last);
    d.flat = d.k > 1 && !ragged && d.per * 2 < printer->team &&
             !sums_inside(printer, K);
    return d;
}

/* Vectors that a team divides. */
int64_t team_vectors(KernelPrinter *printer, uint64_t K)
{
    LoopSplit d = split_of(printer, K);

    return d.flat ? loop_product(printer, d.loop, 0, d.k - 1)->v * d.per
                  : d.per;
}

/* Prints a barrier if the body reads a value that an earlier pass has stored
 * for the item: that pass was divided along another loop, so other threads
 * stored it. */
static void print_team_barrier(KernelPrinter *printer, const LoopBody *body)
{
    Expr **x = needed_values(printer, body->root, body->nroot);
    int reads = 0;

    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        const Store *store = &printer->kernel->st[i];
        if (store->done && !store->seen && !store->flat &&
            (store->loops & ~printer->items))
            for (size_t k = 0; k < vec_len(x); k++)
                reads |= x[k] == store->val;
    }
    if (!reads)
        return;
    if (printer->blocks > 1)
        text_line(printer, "cluster_meet();");
    else
        text_line(printer, "team_meet<%d>();", printer->team);
    printer->unsynced = 0;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        printer->kernel->st[i].seen |= printer->kernel->st[i].done;
}

/* Records which loads this pass makes, for find_inplace. */
static void record_loads(KernelPrinter *printer, const LoopBody *body)
{
    Expr **x = needed_values(printer, body->root, body->nroot);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload)
            x[i]->passes |= pass_bit(printer);
}

/* The loop over a thread's vectors of loop u. */
static void print_vector_loop(KernelPrinter *printer, int u, const char *name,
                              int w)
{
    text_line(printer, "for (ix %s = lane * %d; %s < %s; %s += %d) {", name, w,
              name, loop_end(printer, u), name, printer->team * w);
}

static void print_divided(KernelPrinter *printer, uint64_t K,
                          const LoopBody *body)
{
    LoopSplit d = split_of(printer, K);
    Braces s[MAXLOOP];
    int u = d.loop[d.k - 1], w = lane_width(printer, u), ns = 0;
    const char *name = strf(printer->arena, w > 1 ? "v%d" : "i%d", u);
    uint64_t open = d.flat ? K : BIT(u);

    if (!d.flat)
        print_team_barrier(printer, body);
    record_loads(printer, body);
    if (d.flat) {
        text_line(printer, "for (ix f = lane; f < %ld; f += %d) {",
                  team_vectors(printer, K), printer->team);
        printer->depth++;
        text_line(printer, "const ix %s = f %% %ld * %d;", name, d.per, w);
        put_indices(printer, d.loop, d.k - 1,
                    strf(printer->arena, "f / %ld", d.per));
        printer->depth--;
    } else {
        ns = open_loops(printer, K & ~BIT(u), body, s);
        text_line(printer, "#pragma unroll %d",
                  !body->nst        ? UNROLL
                  : printer->filled ? KEPTUNROLL
                                    : 1);
        print_vector_loop(printer, u, name, w);
    }
    s[ns++] = scope_enter(printer, open);
    lanes_open(printer, u, w, -1);
    printer->per_thread = 1;
    printer->flat = d.flat;
    print_innermost(printer, body);
    printer->unsynced |= pass_bit(printer);
    printer->passes++;
    printer->filled |= printer->fills;
    for (int i = 0; i < body->nst; i++)
        body->st[i]->flat = d.flat;
    printer->flat = printer->per_thread = 0;
    printer->lane = 0;
    printer->width = printer->beside = 1;
    scope_leave_all(printer, s, ns);
}

/* ---- reductions ---------------------------------------------------------- */

/* Does its rounding depend on the order of additions? */
static int is_rounded_sum(const Expr *expr)
{
    return expr->kind == Xred && expr->op == Osum &&
           (expr->dt == Df32 || expr->dt == Df64);
}

static void record_order(KernelPrinter *printer, Expr *expr, SumOrder order)
{
    if (!is_rounded_sum(expr))
        return;
    printer->kernel->uneven |= expr->summed && expr->summed != (int)order;
    expr->summed = (int)order;
}

/* Folds a reduction over the threads of an item. A sum over the part of a held
 * row that one thread has needs no fold. */
static void fold_threads(KernelPrinter *printer, Expr *expr)
{
    const char *op = optab[expr->op].name;
    int team =
        !printer->per_thread && (!printer->lane || (expr->K & printer->lane));
    int group = printer->shared >= 0 && (expr->K & BIT(printer->shared));

    record_order(printer, expr,
                 expr == printer->sum        ? SUMscaled
                 : team && printer->team > 1 ? SUMteam
                                             : SUMthread);
    if (team && printer->blocks > 1)
        text_line(printer, "t%d = cluster_%s<%d, %d>(t%d);", expr->local, op,
                  printer->blocks, printer->folds++, expr->local);
    else if (team)
        text_line(printer, "t%d = team_%s<%d>(t%d);", expr->local, op,
                  printer->team, expr->local);
    else if (group)
        text_line(printer, "%st%d%s = group_%s<%d, %d>(t%d%s);",
                  expr->array ? each_lane(printer) : "", expr->local,
                  expr->array ? "[l]" : "", op, printer->team, printer->groups,
                  expr->local, expr->array ? "[l]" : "");
    if (team || group)
        printer->unsynced = 0;
}

/* Folds maximum and sum of an online softmax: each thread's sum is rescaled to
 * the common maximum. */
static void fold_online_softmax(KernelPrinter *printer)
{
    int t = printer->max->local, s = printer->sum->local,
        own = ++printer->nlocal;

    text_line(printer, "const float t%d = t%d;", own, t);
    fold_threads(printer, printer->max);
    text_line(printer, "t%d *= %s(t%d - t%d);", s,
              exp_function(printer, printer->sum->arg[0]), own, t);
    fold_threads(printer, printer->sum);
}

/* Adds the stores that the only pass along a row makes. Their results may use
 * an operand's buffer. */
static void add_streamed_stores(KernelPrinter *printer, uint64_t K,
                                LoopBody *body)
{
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *store = &printer->kernel->st[i];
        if (store->done || store->loops != (printer->items | K))
            continue;
        body_add_store(printer, body, store);
    }
}

static void print_lane_reductions(KernelPrinter *printer, Expr **r, int nr)
{
    LoopBody b = reduction_body(printer, r, nr);
    uint64_t K = r[0]->K;
    Braces s[MAXLOOP];

    if (printer->streams)
        add_streamed_stores(printer, K, &b);
    lane_need(printer, b.root, b.nroot);
    if (!printer->per_thread && !printer->lane) {
        if (!printer->streams)
            store_while_reducing(printer, K, &b);
        Expr *around[] = { printer->max,
                           printer->sum }; /* those of an enclosing sum */
        find_online_softmax(printer, r, nr);
        Expr *top = printer->max;
        for (int i = 0; i < nr; i++)
            declare_reduction(printer, r[i]);
        if (top)
            declare_reduction(printer, printer->sum);
        print_divided(printer, K, &b);
        if (top)
            fold_online_softmax(printer);
        printer->max = around[0];
        printer->sum = around[1];
        for (int i = 0; i < nr; i++)
            if (r[i] != top)
                fold_threads(printer, r[i]);
        printer->kernel->nstage += printer->streams;
        for (int i = 0; i < b.nst; i++)
            b.st[i]->done = 1,
            b.st[i]->stage = printer->streams ? printer->kernel->nstage : 0;
    } else {
        for (int i = 0; i < nr; i++)
            declare_reduction(printer, r[i]);
        int ns = open_loops(printer, K & ~printer->bound, &b, s);
        print_innermost(printer, &b);
        scope_leave_all(printer, s, ns);
        for (int i = 0; i < nr; i++)
            fold_threads(printer, r[i]);
    }
}

static void lane_need(KernelPrinter *printer, Expr *const *root, int nroot)
{
    compute_needed(printer, root, nroot, print_lane_value,
                   print_lane_reductions);
}

static int is_plain(const Expr *expr)
{
    int k = 0;

    while (k < expr->lin->nt && expr->lin->term[k].var < MAXLOOP)
        k++;
    return k == expr->lin->nt && !expr->arg[0];
}

/* Issues the loads of a held row, and values of an item that depend on no sum
 * (gathered rows, the element at a label), before the first barrier. */
static void print_early_loads(KernelPrinter *printer, Expr **all)
{
    Expr **x = needed_values(printer, all, (int)vec_len(all));
    char *late = alloc(printer->arena, vec_len(printer->kernel->ex) + 1);
    OneHot hot;

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload && has_lanes(printer, x[i]) &&
            !(x[i]->deps & ~printer->bound) && is_plain(x[i]))
            print_lane_value(printer, x[i]);
    for (size_t i = 0; i < vec_len(x); i++) {
        Expr *expr = x[i];
        const AffineExpr *affine = expr->lin;
        late[expr->id] = expr->kind == Xred || has_lanes(printer, expr) ||
                         (expr->deps & ~printer->bound) ||
                         finished_store(printer, expr);
        for (int k = 0; k < expr->na; k++)
            late[expr->id] |= expr->arg[k] && late[expr->arg[k]->id];
        if (is_one_hot_sum(printer, expr, &hot))
            late[expr->id] |= late[hot.at->id] || late[hot.number->id];
        for (int k = 0; affine && k < affine->nt; k++)
            late[expr->id] |= affine->term[k].var >= MAXLOOP &&
                              late[affine->term[k].var - MAXLOOP];
        if (!late[expr->id])
            print_lane_value(printer, expr);
    }
}

/* The loops of K that the sums of a stage depend on. */
static uint64_t loops_of_sums(KernelPrinter *printer, uint64_t K,
                              const LoopBody *body)
{
    Expr **x = needed_values(printer, body->root, body->nroot);
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(x); i++)
        if (is_rounded_sum(x[i]))
            m |= x[i]->deps & K;
    return m;
}

/* A stage whose sums the team computes together: all threads are at the same
 * element of the loops `each`. */
static void print_together(KernelPrinter *printer, uint64_t K, uint64_t each,
                           const LoopBody *body)
{
    Braces s[MAXLOOP];

    print_team_barrier(printer, body);
    int ns = open_loops(printer, each, body, s);
    if (K & ~each)
        print_divided(printer, K & ~each, body);
    else
        print_innermost(printer, body);
    scope_leave_all(printer, s, ns);
    printer->passes++;
}

/* K: loops of the stage that are not open. */
static void print_stage(KernelPrinter *printer, uint64_t K,
                        const LoopBody *body)
{
    int team = K && !printer->per_thread && !printer->lane;
    uint64_t each = 0;
    Braces s[MAXLOOP];

    if (team && printer->kernel->form == STAGEtogether)
        each = loops_of_sums(printer, K, body);
    if (each) {
        print_together(printer, K, each, body);
    } else if (team) {
        print_divided(printer, K, body);
    } else {
        int ns = open_loops(printer, K, body, s);
        print_innermost(printer, body);
        scope_leave_all(printer, s, ns);
    }
}

/* All values of a held row are computed before the first store, so a value that
 * is used twice is read once. */
void print_stages(KernelPrinter *printer)
{
    Expr **all = stored_values(printer);

    if (printer->row || printer->kept)
        print_early_loads(printer, all);
    if (printer->row) {
        printer->kernel->held = printer->items | printer->row;
        lane_need(printer, all, (int)vec_len(all));
    }
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *st = &printer->kernel->st[i];
        if (st->done)
            continue;
        LoopBody b = begin_stage(printer, st->loops);
        lane_need(printer, b.root, b.nroot);
        print_stage(printer, st->loops & ~printer->bound, &b);
        for (int j = 0; j < b.nst; j++)
            b.st[j]->done = 1;
    }
}
