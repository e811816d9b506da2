/* value_print.c: the text of a kernel's values: operands at hand, addresses,
 * expressions. Numbers, sizes and strides are arguments, so the text depends on
 * structure only. */
#include "loop.h"

#include <math.h>
#include <string.h>

void nest_line(KernelPrinter *n, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&n->t, n->depth, fmt, ap);
    va_end(ap);
}

/* ---- arguments ----------------------------------------------------------- */

int nest_size(KernelPrinter *n, const SizeProduct *m)
{
    for (size_t i = 0; i < vec_len(n->size); i++)
        if (n->size[i] == m)
            return n->sizeat[i];
    int at = add_size(n->k, n->a, m->v);
    vec_push(n->a, n->size, m);
    vec_push(n->a, n->sizeat, at);
    return at;
}

static int int_of_off(KernelPrinter *n, const AffineExpr *l)
{
    for (size_t i = 0; i < vec_len(n->off); i++)
        if (!memcmp(&n->off[i]->off, &l->off, sizeof l->off))
            return n->offat[i];
    int at = add_int(n->k, n->a, l->off);
    vec_push(n->a, n->off, l);
    vec_push(n->a, n->offat, at);
    return at;
}

static int int_of_ex(KernelPrinter *n, Expr *e)
{
    for (size_t i = 0; i < vec_len(n->num); i++)
        if (n->num[i] == e)
            return n->numat[i];
    WordType type = e->kind == Xnum   ? WORDreal
                    : e->kind == Xkey ? WORDkey
                                      : WORDint;
    int at = add_word(n->k, n->a, (Word){ type, e->iv, e->f });
    vec_push(n->a, n->num, e);
    vec_push(n->a, n->numat, at);
    return at;
}

/* Rows that hold something: an int32 in the route node's buffer. */
static int extent_of(KernelPrinter *n, const Node *map)
{
    for (size_t i = 0; i < vec_len(n->ext); i++)
        if (n->ext[i] == map)
            return (int)i;
    MapLayout l = map_layout(n->c->g, map);
    int at = add_size(n->k, n->a, l.offset + l.experts);
    vec_push(n->a, n->ext, map);
    vec_push(n->a, n->extat, at);
    return (int)vec_len(n->ext) - 1;
}

const char *nest_limit(KernelPrinter *n, int loop)
{
    const Loop *l = &n->c->loop[loop];

    if (!l->map)
        return strf(n->a, "n%d", nest_size(n, l->n));
    const char *e = strf(n->a, "e%d", extent_of(n, l->map));
    return l->per ? strf(n->a, "%s * n%d", e, nest_size(n, l->per)) : e;
}

/* ---- values -------------------------------------------------------------- */

static int plain_number(double f)
{
    double a = fabs(f);

    return a == 0 || a == 0.5 || a == 1 || a == 2 || a == 3 || a == 4;
}

static const char *number(KernelPrinter *n, Expr *e)
{
    const char *s = e->dt == Df32 ? "f" : "";

    if (e->dt == Di32 || e->dt == Di64)
        return plain_number(e->f) && e->f == floor(e->f)
                   ? strf(n->a, e->f < 0 ? "(%g)" : "%g", e->f)
                   : strf(n->a, "(%s)c%d", dtypes[e->dt].compute,
                          int_of_ex(n, e));
    if (isinf(e->f))
        return e->f < 0 ? "(-INFINITY)" : "INFINITY";
    if (plain_number(e->f))
        return strf(n->a, signbit(e->f) ? "(%.1f%s)" : "%.1f%s", e->f, s);
    return strf(n->a, e->dt == Df32 ? "(float)c%d" : "c%d", int_of_ex(n, e));
}

/* How a value that is at hand is written. */
const char *nest_ref(KernelPrinter *n, Expr *e)
{
    switch (e->kind) {
    case Xnum: return number(n, e);
    case Xkey:
    case Xint: return strf(n->a, "n%d", int_of_ex(n, e));
    case Xlin:
        return e->dt == Di64 ? strf(n->a, "(%s)", nest_lin(n, e->lin))
                             : strf(n->a, "(int32_t)(%s)", nest_lin(n, e->lin));
    default: break;
    }
    if (!e->local)
        die("a value is used before it is computed");
    if (e->array && n->gpu)
        return strf(n->a, "t%d[l]", e->local);
    if (e->array)
        return strf(n->a, "t%d[i%d - v%d]", e->local, e->array - 1,
                    e->array - 1);
    return strf(n->a, "t%d", e->local);
}

/* Its index; of a loop whose elements are a thread's lanes, that of lane l, or
 * in a whole piece that of its first. */
static const char *loop_text(KernelPrinter *n, int u)
{
    if (n->width * n->beside == 1 || !(n->lane & BIT(u)))
        return strf(n->a, "i%d", u);
    if (u != n->lv)
        return strf(n->a, "(l / %d)", n->width);
    if (n->stride)
        return strf(n->a, "(v%d + l / %d * %d%s)", u, n->width, n->stride,
                    n->whole ? "" : strf(n->a, " + l %% %d", n->width));
    if (n->whole)
        return strf(n->a, "v%d", u);
    return n->beside > 1 ? strf(n->a, "(v%d + l %% %d)", u, n->width)
                         : strf(n->a, "(v%d + l)", u);
}

static const char *term_text(KernelPrinter *n, const Term *t)
{
    const char *v = t->var < MAXLOOP ? loop_text(n, t->var)
                                     : nest_ref(n, n->c->ex[t->var - MAXLOOP]);

    return t->k->n ? strf(n->a, "%s * n%d", v, nest_size(n, t->k)) : v;
}

const char *nest_lin(KernelPrinter *n, const AffineExpr *l)
{
    const char *s = "";

    for (int i = 0; i < l->nt; i++)
        s = strf(n->a, "%s%s%s", s, *s ? " + " : "", term_text(n, &l->t[i]));
    if (l->hasoff)
        s = strf(n->a, "%s%sn%d", s, *s ? " + " : "", int_of_off(n, l));
    return *s ? s : "0";
}

const char *nest_element(KernelPrinter *n, Node *buf, const AffineExpr *at)
{
    return strf(n->a, "b%d[%s]", add_arg(n->k, n->a, buf), nest_lin(n, at));
}

const char *nest_load(KernelPrinter *n, Node *buf, const AffineExpr *at)
{
    const char *s = nest_element(n, buf, at);

    return buf->dt == Dbf16 ? strf(n->a, "bf16_f32(%s)", s) : s;
}

static const char *operand(KernelPrinter *n, const Expr *e, int i)
{
    const char *s = nest_ref(n, e->arg[i]);

    if (e->arg[i]->dt == e->dt || (e->raw >> i & 1))
        return s;
    return strf(n->a, "(%s)%s", dtypes[e->dt].compute, s);
}

const char *nest_value(KernelPrinter *n, Expr *e)
{
    const char *arg[SCALARIN];
    Text t = { .arena = n->a };

    if (e->kind == Xload) {
        const char *s = nest_load(n, e->buf, e->lin);
        return e->arg[0] ? strf(n->a, "%s ? %s : 0", nest_ref(n, e->arg[0]), s)
                         : s;
    }
    for (int i = 0; i < e->na; i++)
        arg[i] = operand(n, e, i);
    put_scalar(&t, e->of, &(ScalarNames){ .operand = arg, .dt = e->calls });
    return t.s;
}
