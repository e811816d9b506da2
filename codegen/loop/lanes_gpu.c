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

int wide_count(const KernelPrinter *n)
{
    return n->width * n->beside;
}

int wide_has(const KernelPrinter *n, const Expr *e)
{
    return wide_count(n) > 1 && (e->deps & n->lane);
}

/* Of a loop, elements that come in whole lanes wherever it ends. */
static int64_t whole_of(const Loop *l)
{
    return !l->map ? l->n->v : l->per ? l->per->v : 1;
}

static void weigh(const AffineExpr *at, int u, const Node *buf, int *small,
                  int *large)
{
    const SizeProduct *k = form_stride(at, u);

    if (k && k->v == 1)
        ++*(dtypes[buf->dt].bytes <= 2 ? small : large);
}

/* Most accesses are 16 bytes: 8 lanes of bf16, 4 of fp32. */
int wide_width(KernelPrinter *n, int u)
{
    int small = 0, large = 0;

    for (size_t i = 0; i < vec_len(n->c->st); i++)
        weigh(n->c->st[i].addr, u, storage(n->c->st[i].n), &small, &large);
    for (size_t i = 0; i < vec_len(n->c->ex); i++) {
        const Expr *e = n->c->ex[i];
        if (e->seen && e->kind == Xload)
            weigh(e->lin, u, e->buf, &small, &large);
    }
    int w = !small && !large ? 1 : small >= large ? 8 : 4;
    while (whole_of(&n->c->loop[u]) % w)
        w /= 2;
    return w;
}

void wide_open(KernelPrinter *n, int u, int width, int x)
{
    n->lv = u;
    n->width = width;
    n->beside = x < 0 ? 1 : (int)n->c->loop[x].n->v;
    n->lane = BIT(u) | (n->beside == 1 ? 0 : BIT(x));
    if (x >= 0 && n->beside == 1)
        nest_line(n, "const ix i%d = 0;", x);
}

/* Elements that an access has side by side and aligned, for all lanes. */
static int piece_of(const KernelPrinter *n, const AffineExpr *at)
{
    int a = n->width, along = 0;

    for (int i = 0; i < at->nt; i++) {
        const Term *t = &at->t[i];
        if (t->var == n->lv && (t->k->v != 1 || along++))
            return 1;
        if (t->var >= MAXLOOP && wide_has(n, n->c->ex[t->var - MAXLOOP]))
            return 1; /* lanes lie where their own index says */
        while (t->var != n->lv && t->k->v % a)
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

const char *wide_each(KernelPrinter *n)
{
    return wide_count(n) > 1 ? strf(n->a, "LANES(%d) ", wide_count(n)) : "";
}

/* Where the pieces of an access begin; l counts whole ones. */
static const char *address(KernelPrinter *n, Node *buf, const AffineExpr *at,
                           const char *guard)
{
    n->whole = 1;
    const char *s = nest_lin(n, at);
    n->whole = 0;
    if (guard)
        s = strf(n->a, "%s ? %s : 0", guard, s);
    return strf(n->a, "b%d + (%s)", add_arg(n->k, n->a, buf), s);
}

static const char *each_piece(KernelPrinter *n)
{
    return n->beside == 1
               ? ""
               : strf(n->a, "PIECES(%d, %d) ", wide_count(n), n->width);
}

static void load(KernelPrinter *n, Expr *e, Node *buf, const AffineExpr *at,
                 Expr *guard)
{
    const char *type = dtypes[e->dt].compute;
    int piece = guard && wide_has(n, guard) ? 1 : piece_of(n, at);
    const char *g = guard ? nest_ref(n, guard) : NULL;

    if (piece == 1) {
        const char *x = nest_element(n, buf, at);
        if (buf->dt == Dbf16)
            x = strf(n->a, "bf16_f32(%s)", x);
        if (g)
            x = strf(n->a, "%s ? %s : 0", g, x);
        int t = nest_local(n, e);
        nest_line(n, "%s t%d[%d]; %st%d[l] = %s;", type, t, wide_count(n),
                  wide_each(n), t, x);
    } else {
        const char *from = address(n, buf, at, g);
        int t = nest_local(n, e);
        nest_line(n, "%s t%d[%d]; %sload<%d, %d>(t%d%s, %s);", type, t,
                  wide_count(n), each_piece(n), n->width, piece, t,
                  n->beside > 1 ? " + l" : "", from);
        if (g)
            nest_line(n, "%st%d[l] = %s ? t%d[l] : 0;", wide_each(n), t, g, t);
    }
    e->array = 1;
}

uint64_t wide_pass(const KernelPrinter *n)
{
    return BIT(n->passes < 63 ? n->passes : 63);
}

void wide_compute(KernelPrinter *n, Expr *e)
{
    Store *s = nest_saved(n, e);

    if (nest_inline(e) || e->local)
        return;
    if (e->kind == Xload && !n->own && !wide_has(n, e)) { /* by all threads */
        e->passes |= wide_pass(n);
        n->apart |= wide_pass(n);
    }
    if (!wide_has(n, e)) {
        nest_compute(n, e);
    } else if (s) {
        load(n, e, storage(s->n), s->addr, NULL);
    } else if (e->kind == Xload) {
        load(n, e, e->buf, e->lin, e->arg[0]);
    } else {
        const char *x = nest_value(n, e);
        int t = nest_local(n, e);
        nest_line(n, "%s t%d[%d]; %st%d[l] = %s;", dtypes[e->dt].compute, t,
                  wide_count(n), wide_each(n), t, x);
        e->array = 1;
    }
}

static const char *only(KernelPrinter *n, const Store *s)
{
    if (!n->own && !(s->loops & n->lane))
        return "if (lane == 0) ";
    return n->on ? strf(n->a, "if (%s) ", n->on) : "";
}

void wide_store(KernelPrinter *n, Store *s)
{
    Node *to = storage(s->n);
    int wide = wide_count(n) > 1 && (s->loops & n->lane);
    int piece = wide ? piece_of(n, s->addr) : 1, t = s->val->local;
    const char *x = nest_ref(n, s->val);

    s->apart = n->team > 1 ? n->apart : 0;
    if (piece == 1) {
        nest_line(n, "%s%s%s = %s;", only(n, s), wide ? wide_each(n) : "",
                  nest_element(n, to, s->addr), nest_stored(n, to, x));
        return;
    }
    if (!t || !s->val->array) {
        t = ++n->nlocal;
        nest_line(n, "%s t%d[%d]; %st%d[l] = %s;", dtypes[s->val->dt].compute,
                  t, wide_count(n), wide_each(n), t, x);
    }
    nest_line(n, "%s%sstore<%d, %d>(%s, t%d%s);", only(n, s), each_piece(n),
              n->width, piece, address(n, to, s->addr, NULL), t,
              n->beside > 1 ? " + l" : "");
}
