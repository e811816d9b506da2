/* vectorize_gpu.c: the text of what one thread of a GPU computes, on its lanes
 * (lanes_gpu.c). Loops inside an item run one after another, but for those that
 * a team of threads deals out (map_gpu.c). */
#include "loop.h"

static void wide_need(KernelPrinter *printer, Expr *const *root, int nroot);

enum { UNROLL = 4, UNROLLED = 8, KEPTUNROLL = 2 };

/* ---- loops inside an item ------------------------------------------------ */

static void open_loop(KernelPrinter *printer, int u, int innermost, Braces *out)
{
    const Loop *loop = &printer->kernel->loop[u];
    const char *first = "0", *by = "1";

    if (u == printer->shared)
        first = "group", by = strf(printer->arena, "%d", printer->groups);
    if (innermost)
        nest_line(printer, "#pragma unroll %d",
                  loop->map                     ? 1
                  : loop->extent->v <= UNROLLED ? UNROLLED
                                                : UNROLL);
    nest_line(printer, "for (ix i%d = %s; i%d < %s; i%d += %s) {", u, first, u,
              nest_limit(printer, u), u, by);
    *out = nest_enter(printer, BIT(u));
}

/* One after another, each with what can be computed in it. */
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
        wide_need(printer, body->root, body->nroot);
    }
    return k;
}

/* The sum of exp(x - top) where top is the largest x of the same loops: it can
 * be made on the way when what was summed is scaled as top grows (Milakov and
 * Gimelshein 2018), so that long rows are read once less. */
static Expr *softened(const KernelPrinter *printer, const Expr *top)
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

static void find_softened(KernelPrinter *printer, Expr **r, int nr)
{
    printer->top = printer->soft = NULL;
    for (int i = 0;
         printer->kernel->form == STAGEdealt && i < nr && !printer->soft; i++)
        if (r[i]->op == Omax && r[i]->dt == Df32 &&
            (printer->soft = softened(printer, r[i])))
            printer->top = r[i];
}

/* Nothing is summed while all are -inf. */
static void soften(KernelPrinter *printer, const char *x)
{
    int t = printer->top->local, s = printer->soft->local,
        was = ++printer->nlocal;
    int from = ++printer->nlocal;
    const char *exp = nest_exp(printer, printer->soft->arg[0]);

    nest_line(printer, "const float t%d = t%d;", was, t);
    nest_line(printer, "%st%d = fmaxf(%s, t%d);", wide_each(printer), t, x, t);
    nest_line(printer, "const float t%d = t%d > -INFINITY ? t%d : 0;", from, t,
              t);
    nest_line(printer, "t%d *= %s(t%d - t%d);", s, exp, was, from);
    nest_line(printer, "%st%d += %s(%s - t%d);", wide_each(printer), s, exp, x,
              from);
}

/* What the innermost lines do: all that is needed, sums, stores. */
static void innermost(KernelPrinter *printer, const LoopBody *body)
{
    wide_need(printer, body->root, body->nroot);
    for (int i = 0; i < body->nacc; i++) {
        Expr *r = body->acc[i];
        int along = (r->K & printer->lane) != 0, wide = wide_has(printer, r);
        const char *x = nest_ref(printer, r->arg[0]);
        if (r == printer->top) {
            soften(printer, x);
            continue;
        }
        const char *t = strf(printer->arena, wide ? "t%d[l]" : "t%d", r->local);
        const char *how = strf(
            printer->arena, "%s%s",
            along && printer->on ? strf(printer->arena, "if (%s) ", printer->on)
                                 : "",
            along || wide ? wide_each(printer) : "");
        nest_gather(printer, r, how, t, x);
    }
    for (int i = 0; i < body->nst; i++)
        wide_store(printer, body->st[i]);
}

static void declare(KernelPrinter *printer, Expr *expr)
{
    const char *type = dtypes[expr->dt].compute, *first = nest_first(expr);
    int wide = wide_has(printer, expr), t = nest_local(printer, expr);

    if (wide)
        nest_line(printer, "%s t%d[%d]; %st%d[l] = %s;", type, t,
                  wide_count(printer), wide_each(printer), t, first);
    else
        nest_line(printer, "%s t%d = %s;", type, t, first);
    expr->array = wide;
}

/* ---- loops dealt out to a team ------------------------------------------- */

typedef struct LoopSplit {
    int loop[MAXLOOP], k, flat;
    int64_t per;
} LoopSplit;

/* Does something sum over one of these loops for each round of another? */
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

/* The last loop is dealt out, or all of them as one when it is short. */
static LoopSplit deal_of(KernelPrinter *printer, uint64_t K)
{
    LoopSplit d = { .per = 1 };
    int ragged = 0;

    for (int i = 0; i < printer->norder; i++)
        if (K & BIT(printer->order[i])) {
            d.loop[d.k++] = printer->order[i];
            ragged |= printer->kernel->loop[printer->order[i]].map != NULL;
        }
    int last = d.loop[d.k - 1];
    d.per = printer->kernel->loop[last].extent->v / wide_width(printer, last);
    d.flat = d.k > 1 && !ragged && d.per * 2 < printer->team &&
             !sums_inside(printer, K);
    return d;
}

/* Pieces of work that a team would deal out. */
int64_t wide_pieces(KernelPrinter *printer, uint64_t K)
{
    LoopSplit d = deal_of(printer, K);

    return d.flat ? form_count(printer, d.loop, 0, d.k - 1)->v * d.per : d.per;
}

/* Does it read what a pass before it has stored for the item? That was dealt
 * out along another loop, so other threads did: the team meets in between. */
static void meet_team(KernelPrinter *printer, const LoopBody *body)
{
    Expr **x = nest_reached(printer, body->root, body->nroot);
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
        nest_line(printer, "cluster_meet();");
    else
        nest_line(printer, "team_meet<%d>();", printer->team);
    printer->apart = 0;
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++)
        printer->kernel->st[i].seen |= printer->kernel->st[i].done;
}

/* For find_inplace: this pass reads them. */
static void note_reads(KernelPrinter *printer, const LoopBody *body)
{
    Expr **x = nest_reached(printer, body->root, body->nroot);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload)
            x[i]->passes |= wide_pass(printer);
}

/* Each thread's pieces of loop u. */
static void along(KernelPrinter *printer, int u, const char *name, int w)
{
    nest_line(printer, "for (ix %s = lane * %d; %s < %s; %s += %d) {", name, w,
              name, nest_limit(printer, u), name, printer->team * w);
}

static void dealt(KernelPrinter *printer, uint64_t K, const LoopBody *body)
{
    LoopSplit d = deal_of(printer, K);
    Braces s[MAXLOOP];
    int u = d.loop[d.k - 1], w = wide_width(printer, u), ns = 0;
    const char *name = strf(printer->arena, w > 1 ? "v%d" : "i%d", u);
    uint64_t open = d.flat ? K : BIT(u);

    if (!d.flat)
        meet_team(printer, body);
    note_reads(printer, body);
    if (d.flat) {
        nest_line(printer, "for (ix f = lane; f < %ld; f += %d) {",
                  wide_pieces(printer, K), printer->team);
        printer->depth++;
        nest_line(printer, "const ix %s = f %% %ld * %d;", name, d.per, w);
        form_decode(printer, d.loop, d.k - 1,
                    strf(printer->arena, "f / %ld", d.per));
        printer->depth--;
    } else {
        ns = open_loops(printer, K & ~BIT(u), body, s);
        nest_line(printer, "#pragma unroll %d",
                  !body->nst        ? UNROLL
                  : printer->filled ? KEPTUNROLL
                                    : 1);
        along(printer, u, name, w);
    }
    s[ns++] = nest_enter(printer, open);
    wide_open(printer, u, w, -1);
    printer->own = 1;
    printer->flat = d.flat;
    innermost(printer, body);
    printer->apart |= wide_pass(printer);
    printer->passes++;
    printer->filled |= printer->fills;
    for (int i = 0; i < body->nst; i++)
        body->st[i]->flat = d.flat;
    printer->flat = printer->own = 0;
    printer->lane = 0;
    printer->width = printer->beside = 1;
    nest_leave_all(printer, s, ns);
}

/* ---- reductions ---------------------------------------------------------- */

/* Its rounding depends on the order of what is added. */
static int is_rounded_sum(const Expr *expr)
{
    return expr->kind == Xred && expr->op == Osum &&
           (expr->dt == Df32 || expr->dt == Df64);
}

static void note_order(KernelPrinter *printer, Expr *expr, SumOrder order)
{
    if (!is_rounded_sum(expr))
        return;
    printer->kernel->uneven |= expr->summed && expr->summed != (int)order;
    expr->summed = (int)order;
}

/* Threads of an item meet where they add up, and only there: a sum of what each
 * has of a held row is its own. */
static void fold(KernelPrinter *printer, Expr *expr)
{
    const char *op = optab[expr->op].name;
    int team = !printer->own && (!printer->lane || (expr->K & printer->lane));
    int group = printer->shared >= 0 && (expr->K & BIT(printer->shared));

    note_order(printer, expr,
               expr == printer->soft       ? SUMscaled
               : team && printer->team > 1 ? SUMteam
                                           : SUMthread);
    if (team && printer->blocks > 1)
        nest_line(printer, "t%d = cluster_%s<%d, %d>(t%d);", expr->local, op,
                  printer->blocks, printer->folds++, expr->local);
    else if (team)
        nest_line(printer, "t%d = team_%s<%d>(t%d);", expr->local, op,
                  printer->team, expr->local);
    else if (group)
        nest_line(printer, "%st%d%s = group_%s<%d, %d>(t%d%s);",
                  expr->array ? wide_each(printer) : "", expr->local,
                  expr->array ? "[l]" : "", op, printer->team, printer->groups,
                  expr->local, expr->array ? "[l]" : "");
    if (team || group)
        printer->apart = 0;
}

/* Of all threads: what each has summed is scaled by the largest of all. */
static void fold_softened(KernelPrinter *printer)
{
    int t = printer->top->local, s = printer->soft->local,
        own = ++printer->nlocal;

    nest_line(printer, "const float t%d = t%d;", own, t);
    fold(printer, printer->top);
    nest_line(printer, "t%d *= %s(t%d - t%d);", s,
              nest_exp(printer, printer->soft->arg[0]), own, t);
    fold(printer, printer->soft);
}

/* What is stored on the only way along a row, as it comes: it may lie where an
 * operand lay. */
static void stream(KernelPrinter *printer, uint64_t K, LoopBody *body)
{
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *store = &printer->kernel->st[i];
        if (store->done || store->loops != (printer->items | K))
            continue;
        nest_add_store(printer, body, store);
    }
}

static void pass(KernelPrinter *printer, Expr **r, int nr)
{
    LoopBody b = nest_sums(printer, r, nr);
    uint64_t K = r[0]->K;
    Braces s[MAXLOOP];

    if (printer->streams)
        stream(printer, K, &b);
    wide_need(printer, b.root, b.nroot);
    if (!printer->own && !printer->lane) {
        if (!printer->streams)
            nest_ride(printer, K, &b);
        Expr *around[] = { printer->top,
                           printer->soft }; /* of a sum that this one is in */
        find_softened(printer, r, nr);
        Expr *top = printer->top;
        for (int i = 0; i < nr; i++)
            declare(printer, r[i]);
        if (top)
            declare(printer, printer->soft);
        dealt(printer, K, &b);
        if (top)
            fold_softened(printer);
        printer->top = around[0];
        printer->soft = around[1];
        for (int i = 0; i < nr; i++)
            if (r[i] != top)
                fold(printer, r[i]);
        printer->kernel->nstage += printer->streams;
        for (int i = 0; i < b.nst; i++)
            b.st[i]->done = 1,
            b.st[i]->stage = printer->streams ? printer->kernel->nstage : 0;
    } else {
        for (int i = 0; i < nr; i++)
            declare(printer, r[i]);
        int ns = open_loops(printer, K & ~printer->bound, &b, s);
        innermost(printer, &b);
        nest_leave_all(printer, s, ns);
        for (int i = 0; i < nr; i++)
            fold(printer, r[i]);
    }
}

static void wide_need(KernelPrinter *printer, Expr *const *root, int nroot)
{
    nest_walk(printer, root, nroot, wide_compute, pass);
}

static int is_plain(const Expr *expr)
{
    int k = 0;

    while (k < expr->lin->nt && expr->lin->term[k].var < MAXLOOP)
        k++;
    return k == expr->lin->nt && !expr->arg[0];
}

/* What is read of a held row, and numbers of an item that need no sum of it,
 * such as what a row's place is looked up by, or an element of it at a label,
 * are on their way before threads wait for each other. */
static void need_early(KernelPrinter *printer, Expr **all)
{
    Expr **x = nest_reached(printer, all, (int)vec_len(all));
    char *late = alloc(printer->arena, vec_len(printer->kernel->ex) + 1);
    OneHot hot;

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload && wide_has(printer, x[i]) &&
            !(x[i]->deps & ~printer->bound) && is_plain(x[i]))
            wide_compute(printer, x[i]);
    for (size_t i = 0; i < vec_len(x); i++) {
        Expr *expr = x[i];
        const AffineExpr *affine = expr->lin;
        late[expr->id] = expr->kind == Xred || wide_has(printer, expr) ||
                         (expr->deps & ~printer->bound) ||
                         nest_saved(printer, expr);
        for (int k = 0; k < expr->na; k++)
            late[expr->id] |= expr->arg[k] && late[expr->arg[k]->id];
        if (nest_one_hot(printer, expr, &hot))
            late[expr->id] |= late[hot.at->id] || late[hot.number->id];
        for (int k = 0; affine && k < affine->nt; k++)
            late[expr->id] |= affine->term[k].var >= MAXLOOP &&
                              late[affine->term[k].var - MAXLOOP];
        if (!late[expr->id])
            wide_compute(printer, expr);
    }
}

/* Of a stage's loops K, those that sums depend on which it needs. */
static uint64_t loops_of_sums(KernelPrinter *printer, uint64_t K,
                              const LoopBody *body)
{
    Expr **x = nest_reached(printer, body->root, body->nroot);
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(x); i++)
        if (is_rounded_sum(x[i]))
            m |= x[i]->deps & K;
    return m;
}

/* A stage of which the team makes the sums together: all of its threads are at
 * the same element of the loops `each`. */
static void together(KernelPrinter *printer, uint64_t K, uint64_t each,
                     const LoopBody *body)
{
    Braces s[MAXLOOP];

    meet_team(printer, body);
    int ns = open_loops(printer, each, body, s);
    if (K & ~each)
        dealt(printer, K & ~each, body);
    else
        innermost(printer, body);
    nest_leave_all(printer, s, ns);
    printer->passes++;
}

/* What is left of a stage is its loops K. */
static void stage(KernelPrinter *printer, uint64_t K, const LoopBody *body)
{
    int team = K && !printer->own && !printer->lane;
    uint64_t each = 0;
    Braces s[MAXLOOP];

    if (team && printer->kernel->form == STAGEtogether)
        each = loops_of_sums(printer, K, body);
    if (each) {
        together(printer, K, each, body);
    } else if (team) {
        dealt(printer, K, body);
    } else {
        int ns = open_loops(printer, K, body, s);
        innermost(printer, body);
        nest_leave_all(printer, s, ns);
    }
}

/* Of a row that is held, all values are made before the first is stored: what
 * is read twice can then be read once. */
void wide_stages(KernelPrinter *printer)
{
    Expr **all = form_values(printer);

    if (printer->row || printer->kept)
        need_early(printer, all);
    if (printer->row) {
        printer->kernel->held = printer->items | printer->row;
        wide_need(printer, all, (int)vec_len(all));
    }
    for (size_t i = 0; i < vec_len(printer->kernel->st); i++) {
        Store *st = &printer->kernel->st[i];
        if (st->done)
            continue;
        LoopBody b = form_stage(printer, st->loops);
        wide_need(printer, b.root, b.nroot);
        stage(printer, st->loops & ~printer->bound, &b);
        for (int j = 0; j < b.nst; j++)
            b.st[j]->done = 1;
    }
}
