/* vectorize_gpu.c: the text of what one thread of a GPU computes, on its lanes
 * (lanes_gpu.c). Loops inside an item run one after another, but for those that
 * a team of threads deals out (map_gpu.c). */
#include "loop.h"

#include <string.h>

static void wide_need(KernelPrinter *n, Expr *const *root, int nroot);

enum { UNROLL = 4, UNROLLED = 8 };

/* ---- loops inside an item ------------------------------------------------ */

static void open_loop(KernelPrinter *n, int u, int innermost, Braces *s)
{
    const Loop *l = &n->c->loop[u];
    const char *first = "0", *step = "1";

    if (u == n->shared)
        first = "group", step = strf(n->a, "%d", n->groups);
    if (innermost)
        nest_line(n, "#pragma unroll %d",
                  l->map                ? 1
                  : l->n->v <= UNROLLED ? UNROLLED
                                        : UNROLL);
    nest_line(n, "for (ix i%d = %s; i%d < %s; i%d += %s) {", u, first, u,
              nest_limit(n, u), u, step);
    *s = nest_enter(n, BIT(u));
}

/* One after another, each with what can be computed in it. */
static int open_loops(KernelPrinter *n, uint64_t K, const LoopBody *b,
                      Braces *s)
{
    int k = 0;

    for (int i = 0; i < n->norder; i++) {
        int u = n->order[i];
        if (!(K & BIT(u)))
            continue;
        K &= ~BIT(u);
        open_loop(n, u, !K, &s[k++]);
        wide_need(n, b->root, b->nroot);
    }
    return k;
}

/* The sum of exp(x - top) where top is the largest x of the same loops: it can
 * be made on the way when what was summed is scaled as top grows (Milakov and
 * Gimelshein 2018), so that long rows are read once less. */
static Expr *softened(const KernelPrinter *n, const Expr *top)
{
    for (size_t i = 0; i < vec_len(n->c->ex); i++) {
        Expr *e = n->c->ex[i];
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

static void find_softened(KernelPrinter *n, Expr **r, int nr)
{
    n->top = n->soft = NULL;
    for (int i = 0; n->c->form == STAGEdealt && i < nr && !n->soft; i++)
        if (r[i]->op == Omax && r[i]->dt == Df32 &&
            (n->soft = softened(n, r[i])))
            n->top = r[i];
}

/* Nothing is summed while all are -inf. */
static void soften(KernelPrinter *n, const char *x)
{
    int t = n->top->local, s = n->soft->local, was = ++n->nlocal;
    int from = ++n->nlocal;

    nest_line(n, "const float t%d = t%d;", was, t);
    nest_line(n, "%st%d = %s > t%d ? %s : t%d;", wide_each(n), t, x, t, x, t);
    nest_line(n, "const float t%d = t%d > -INFINITY ? t%d : 0;", from, t, t);
    nest_line(n, "t%d *= exp_f32(t%d - t%d);", s, was, from);
    nest_line(n, "%st%d += exp_f32(%s - t%d);", wide_each(n), s, x, from);
}

/* What the innermost lines do: all that is needed, sums, stores. */
static void innermost(KernelPrinter *n, const LoopBody *b)
{
    wide_need(n, b->root, b->nroot);
    for (int i = 0; i < b->nacc; i++) {
        Expr *r = b->acc[i];
        int along = (r->K & n->lane) != 0, wide = wide_has(n, r);
        const char *x = nest_ref(n, r->arg[0]);
        if (r == n->top) {
            soften(n, x);
            continue;
        }
        const char *t = strf(n->a, wide ? "t%d[l]" : "t%d", r->local);
        const char *how = strf(
            n->a, "%s%s", along && n->on ? strf(n->a, "if (%s) ", n->on) : "",
            along || wide ? wide_each(n) : "");
        nest_gather(n, r, how, t, x);
    }
    for (int i = 0; i < b->nst; i++)
        wide_store(n, b->st[i]);
}

static void declare(KernelPrinter *n, Expr *r)
{
    const char *type = dtypes[r->dt].compute, *first = nest_first(r);
    int wide = wide_has(n, r), t = nest_local(n, r);

    if (wide)
        nest_line(n, "%s t%d[%d]; %st%d[l] = %s;", type, t, wide_count(n),
                  wide_each(n), t, first);
    else
        nest_line(n, "%s t%d = %s;", type, t, first);
    r->array = wide;
}

/* ---- loops dealt out to a team ------------------------------------------- */

typedef struct LoopSplit {
    int u[MAXLOOP], k, flat;
    int64_t per;
} LoopSplit;

/* Does something sum over one of these loops for each step of another? */
static int sums_inside(KernelPrinter *n, uint64_t K)
{
    for (size_t i = 0; i < vec_len(n->c->ex); i++) {
        const Expr *e = n->c->ex[i];
        if (e->seen && e->kind == Xred && (e->K & K) && (e->deps & K))
            return 1;
    }
    return 0;
}

/* The last loop is dealt out, or all of them as one when it is short. */
static LoopSplit deal_of(KernelPrinter *n, uint64_t K)
{
    LoopSplit d = { .per = 1 };
    int ragged = 0;

    for (int i = 0; i < n->norder; i++)
        if (K & BIT(n->order[i])) {
            d.u[d.k++] = n->order[i];
            ragged |= n->c->loop[n->order[i]].map != NULL;
        }
    int last = d.u[d.k - 1];
    d.per = n->c->loop[last].n->v / wide_width(n, last);
    d.flat = d.k > 1 && !ragged && d.per * 2 < n->team && !sums_inside(n, K);
    return d;
}

/* Pieces of work that a team would deal out. */
int64_t wide_pieces(KernelPrinter *n, uint64_t K)
{
    LoopSplit d = deal_of(n, K);

    return d.flat ? form_count(n, d.u, 0, d.k - 1)->v * d.per : d.per;
}

/* Does it read what a pass before it has stored for the item? That was dealt
 * out along another loop, so other threads did: the team meets in between. */
static void meet_team(KernelPrinter *n, const LoopBody *b)
{
    Expr **x = nest_reached(n, b->root, b->nroot);
    int reads = 0;

    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        const Store *s = &n->c->st[i];
        if (s->done && !s->seen && !s->flat && (s->loops & ~n->items))
            for (size_t k = 0; k < vec_len(x); k++)
                reads |= x[k] == s->val;
    }
    if (!reads)
        return;
    nest_line(n, "team_meet<%d>();", n->team);
    n->apart = 0;
    for (size_t i = 0; i < vec_len(n->c->st); i++)
        n->c->st[i].seen |= n->c->st[i].done;
}

/* For find_inplace: this pass reads them. */
static void note_reads(KernelPrinter *n, const LoopBody *b)
{
    Expr **x = nest_reached(n, b->root, b->nroot);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload)
            x[i]->passes |= wide_pass(n);
}

static void dealt(KernelPrinter *n, uint64_t K, const LoopBody *b)
{
    LoopSplit d = deal_of(n, K);
    Braces s[MAXLOOP];
    int u = d.u[d.k - 1], w = wide_width(n, u), ns = 0;
    const char *name = strf(n->a, w > 1 ? "v%d" : "i%d", u);
    uint64_t open = d.flat ? K : BIT(u);

    if (!d.flat)
        meet_team(n, b);
    note_reads(n, b);
    if (d.flat) {
        nest_line(n, "for (ix f = lane; f < %lld; f += %d) {",
                  (long long)wide_pieces(n, K), n->team);
        n->depth++;
        nest_line(n, "const ix %s = f %% %lld * %d;", name, (long long)d.per,
                  w);
        form_decode(n, d.u, d.k - 1, strf(n->a, "f / %lld", (long long)d.per));
        n->depth--;
    } else {
        ns = open_loops(n, K & ~BIT(u), b, s);
        nest_line(n, "#pragma unroll %d", b->nst ? 1 : UNROLL);
        nest_line(n, "for (ix %s = lane * %d; %s < %s; %s += %d) {", name, w,
                  name, nest_limit(n, u), name, n->team * w);
    }
    s[ns++] = nest_enter(n, open);
    wide_open(n, u, w, -1);
    n->own = 1;
    n->flat = d.flat;
    innermost(n, b);
    n->apart |= wide_pass(n);
    n->passes++;
    for (int i = 0; i < b->nst; i++)
        b->st[i]->flat = d.flat;
    n->flat = n->own = 0;
    n->lane = 0;
    n->width = n->beside = 1;
    nest_leave_all(n, s, ns);
}

/* ---- reductions ---------------------------------------------------------- */

/* Its rounding depends on the order of what is added. */
static int is_rounded_sum(const Expr *e)
{
    return e->kind == Xred && e->op == Osum && (e->dt == Df32 || e->dt == Df64);
}

static void note_order(KernelPrinter *n, Expr *r, SumOrder order)
{
    if (!is_rounded_sum(r))
        return;
    n->c->uneven |= r->summed && r->summed != (int)order;
    r->summed = (int)order;
}

/* Threads of an item meet where they add up, and only there: a sum of what each
 * has of a held row is its own. */
static void fold(KernelPrinter *n, Expr *r)
{
    const char *op = optab[r->op].name;
    int team = !n->own && (!n->lane || (r->K & n->lane));
    int group = n->shared >= 0 && (r->K & BIT(n->shared));

    note_order(n, r,
               r == n->soft          ? SUMscaled
               : team && n->team > 1 ? SUMteam
                                     : SUMthread);
    if (team)
        nest_line(n, "t%d = team_%s<%d>(t%d);", r->local, op, n->team,
                  r->local);
    else if (group)
        nest_line(n, "%st%d%s = group_%s<%d, %d>(t%d%s);",
                  r->array ? wide_each(n) : "", r->local, r->array ? "[l]" : "",
                  op, n->team, n->groups, r->local, r->array ? "[l]" : "");
    if (team || group)
        n->apart = 0;
}

/* Of all threads: what each has summed is scaled by the largest of all. */
static void fold_softened(KernelPrinter *n)
{
    int t = n->top->local, s = n->soft->local, own = ++n->nlocal;

    nest_line(n, "const float t%d = t%d;", own, t);
    fold(n, n->top);
    nest_line(n, "t%d *= exp_f32(t%d - t%d);", s, own, t);
    fold(n, n->soft);
}

/* What is stored on the only way along a row, as it comes: it may lie where an
 * operand lay. */
static void stream(KernelPrinter *n, uint64_t K, LoopBody *b)
{
    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *s = &n->c->st[i];
        if (s->done || s->loops != (n->items | K))
            continue;
        nest_add_store(n, b, s);
    }
}

static void pass(KernelPrinter *n, Expr **r, int nr)
{
    LoopBody b = nest_sums(n, r, nr);
    uint64_t K = r[0]->K;
    Braces s[MAXLOOP];

    if (n->streams)
        stream(n, K, &b);
    wide_need(n, b.root, b.nroot);
    if (!n->own && !n->lane) {
        if (!n->streams)
            nest_ride(n, K, &b);
        Expr *around[] = { n->top, n->soft }; /* of a sum that this one is in */
        find_softened(n, r, nr);
        Expr *top = n->top;
        for (int i = 0; i < nr; i++)
            declare(n, r[i]);
        if (top)
            declare(n, n->soft);
        dealt(n, K, &b);
        if (top)
            fold_softened(n);
        n->top = around[0];
        n->soft = around[1];
        for (int i = 0; i < nr; i++)
            if (r[i] != top)
                fold(n, r[i]);
        n->c->nstage += n->streams;
        for (int i = 0; i < b.nst; i++)
            b.st[i]->done = 1, b.st[i]->stage = n->streams ? n->c->nstage : 0;
    } else {
        for (int i = 0; i < nr; i++)
            declare(n, r[i]);
        int ns = open_loops(n, K & ~n->bound, &b, s);
        innermost(n, &b);
        nest_leave_all(n, s, ns);
        for (int i = 0; i < nr; i++)
            fold(n, r[i]);
    }
}

static void wide_need(KernelPrinter *n, Expr *const *root, int nroot)
{
    nest_walk(n, root, nroot, wide_compute, pass);
}

static int is_plain(const Expr *e)
{
    int k = 0;

    while (k < e->lin->nt && e->lin->t[k].var < MAXLOOP)
        k++;
    return k == e->lin->nt && !e->arg[0];
}

/* What is read of a held row, and numbers of an item that need no sum of it,
 * such as what a row's place is looked up by, are on their way before threads
 * wait for each other. */
static void need_early(KernelPrinter *n, Expr **all)
{
    Expr **x = nest_reached(n, all, (int)vec_len(all));
    char *late = alloc(n->a, vec_len(n->c->ex) + 1);

    for (size_t i = 0; i < vec_len(x); i++)
        if (x[i]->kind == Xload && wide_has(n, x[i]) &&
            !(x[i]->deps & ~n->bound) && is_plain(x[i]))
            wide_compute(n, x[i]);
    for (size_t i = 0; i < vec_len(x); i++) {
        Expr *e = x[i];
        const AffineExpr *l = e->lin;
        late[e->id] = e->kind == Xred || wide_has(n, e) ||
                      (e->deps & ~n->bound) || nest_saved(n, e);
        for (int k = 0; k < e->na; k++)
            late[e->id] |= e->arg[k] && late[e->arg[k]->id];
        for (int k = 0; l && k < l->nt; k++)
            late[e->id] |=
                l->t[k].var >= MAXLOOP && late[l->t[k].var - MAXLOOP];
        if (!late[e->id])
            wide_compute(n, e);
    }
}

/* Of a stage's loops K, those that sums depend on which it needs. */
static uint64_t loops_of_sums(KernelPrinter *n, uint64_t K, const LoopBody *b)
{
    Expr **x = nest_reached(n, b->root, b->nroot);
    uint64_t m = 0;

    for (size_t i = 0; i < vec_len(x); i++)
        if (is_rounded_sum(x[i]))
            m |= x[i]->deps & K;
    return m;
}

/* A stage of which the team makes the sums together: all of its threads are at
 * the same element of the loops `each`. */
static void together(KernelPrinter *n, uint64_t K, uint64_t each,
                     const LoopBody *b)
{
    Braces s[MAXLOOP];

    meet_team(n, b);
    int ns = open_loops(n, each, b, s);
    if (K & ~each)
        dealt(n, K & ~each, b);
    else
        innermost(n, b);
    nest_leave_all(n, s, ns);
    n->passes++;
}

/* What is left of a stage is its loops K. */
static void stage(KernelPrinter *n, uint64_t K, const LoopBody *b)
{
    int team = K && !n->own && !n->lane;
    uint64_t each = 0;
    Braces s[MAXLOOP];

    if (team && n->c->form == STAGEtogether)
        each = loops_of_sums(n, K, b);
    if (each) {
        together(n, K, each, b);
    } else if (team) {
        dealt(n, K, b);
    } else {
        int ns = open_loops(n, K, b, s);
        innermost(n, b);
        nest_leave_all(n, s, ns);
    }
}

/* Of a row that is held, all values are made before the first is stored: what
 * is read twice can then be read once. */
void wide_stages(KernelPrinter *n)
{
    Expr **all = form_values(n);

    if (n->row) {
        need_early(n, all);
        wide_need(n, all, (int)vec_len(all));
    }
    for (size_t i = 0; i < vec_len(n->c->st); i++) {
        Store *st = &n->c->st[i];
        if (st->done)
            continue;
        LoopBody b = form_stage(n, st->loops);
        wide_need(n, b.root, b.nroot);
        stage(n, st->loops & ~n->bound, &b);
        for (int j = 0; j < b.nst; j++)
            b.st[j]->done = 1;
    }
}
