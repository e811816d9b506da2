/* value_print.c: the text of a kernel's values: operands at hand, addresses,
 * expressions. Numbers, sizes and strides are arguments, so the text depends on
 * structure only. */
#include "loop.h"

void nest_line(KernelPrinter *printer, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&printer->text, printer->depth, fmt, ap);
    va_end(ap);
}

/* ---- arguments ----------------------------------------------------------- */

int nest_size(KernelPrinter *printer, const SizeProduct *product)
{
    for (size_t i = 0; i < vec_len(printer->size); i++)
        if (printer->size[i] == product)
            return printer->sizeat[i];
    int at = add_size(printer->group, printer->arena, product->v);
    vec_push(printer->arena, printer->size, product);
    vec_push(printer->arena, printer->sizeat, at);
    return at;
}

static int int_of_off(KernelPrinter *printer, const AffineExpr *affine)
{
    for (size_t i = 0; i < vec_len(printer->off); i++)
        if (!memcmp(&printer->off[i]->off, &affine->off, sizeof affine->off))
            return printer->offat[i];
    int at = add_int(printer->group, printer->arena, affine->off);
    vec_push(printer->arena, printer->off, affine);
    vec_push(printer->arena, printer->offat, at);
    return at;
}

static int int_of_ex(KernelPrinter *printer, Expr *expr)
{
    for (size_t i = 0; i < vec_len(printer->num); i++)
        if (printer->num[i] == expr)
            return printer->numat[i];
    WordType type = expr->kind == Xnum   ? WORDreal
                    : expr->kind == Xkey ? WORDkey
                                         : WORDint;
    int at = add_word(printer->group, printer->arena,
                      (Word){ type, expr->iv, expr->f });
    vec_push(printer->arena, printer->num, expr);
    vec_push(printer->arena, printer->numat, at);
    return at;
}

/* Rows that hold something: an int32 in the route node's buffer. */
static int extent_of(KernelPrinter *printer, const Node *map)
{
    for (size_t i = 0; i < vec_len(printer->ext); i++)
        if (printer->ext[i] == map)
            return (int)i;
    MapLayout l = map_layout(printer->kernel->graph, map);
    int at = add_size(printer->group, printer->arena, l.offset + l.experts);
    vec_push(printer->arena, printer->ext, map);
    vec_push(printer->arena, printer->extat, at);
    return (int)vec_len(printer->ext) - 1;
}

const char *nest_limit(KernelPrinter *printer, int loop)
{
    const Loop *l = &printer->kernel->loop[loop];

    if (!l->map)
        return strf(printer->arena, "n%d", nest_size(printer, l->extent));
    const char *e = strf(printer->arena, "e%d", extent_of(printer, l->map));
    return l->per
               ? strf(printer->arena, "%s * n%d", e, nest_size(printer, l->per))
               : e;
}

/* ---- values -------------------------------------------------------------- */

static int plain_number(double f)
{
    double a = fabs(f);

    return a == 0 || a == 0.5 || a == 1 || a == 2 || a == 3 || a == 4;
}

static const char *number(KernelPrinter *printer, Expr *expr)
{
    const char *s = expr->dt == Df32 ? "f" : "";

    if (expr->dt == Di32 || expr->dt == Di64)
        return plain_number(expr->f) && expr->f == floor(expr->f)
                   ? strf(printer->arena, expr->f < 0 ? "(%g)" : "%g", expr->f)
                   : strf(printer->arena, "(%s)c%d", dtypes[expr->dt].compute,
                          int_of_ex(printer, expr));
    if (isinf(expr->f))
        return expr->f < 0 ? "(-INFINITY)" : "INFINITY";
    if (plain_number(expr->f))
        return strf(printer->arena, signbit(expr->f) ? "(%.1f%s)" : "%.1f%s",
                    expr->f, s);
    return strf(printer->arena, expr->dt == Df32 ? "(float)c%d" : "c%d",
                int_of_ex(printer, expr));
}

/* How a value that is at hand is written. */
const char *nest_ref(KernelPrinter *printer, Expr *expr)
{
    switch (expr->kind) {
    case Xnum: return number(printer, expr);
    case Xkey:
    case Xint: return strf(printer->arena, "n%d", int_of_ex(printer, expr));
    case Xlin:
        return expr->dt == Di64
                   ? strf(printer->arena, "(%s)", nest_lin(printer, expr->lin))
                   : strf(printer->arena, "(int32_t)(%s)",
                          nest_lin(printer, expr->lin));
    default: break;
    }
    if (!expr->local)
        die("a value is used before it is computed");
    if (expr->array && printer->gpu)
        return strf(printer->arena, "t%d[l]", expr->local);
    if (expr->array)
        return strf(printer->arena, "t%d[i%d - v%d]", expr->local,
                    expr->array - 1, expr->array - 1);
    return strf(printer->arena, "t%d", expr->local);
}

/* Its index; of a loop whose elements are a thread's lanes, that of lane l, or
 * in a whole piece that of its first. */
static const char *loop_text(KernelPrinter *printer, int u)
{
    if (printer->width * printer->beside == 1 || !(printer->lane & BIT(u)))
        return strf(printer->arena, "i%d", u);
    if (u != printer->lv)
        return strf(printer->arena, "(l / %d)", printer->width);
    if (printer->stride)
        return strf(printer->arena, "(v%d + l / %d * %d%s)", u, printer->width,
                    printer->stride,
                    printer->whole
                        ? ""
                        : strf(printer->arena, " + l %% %d", printer->width));
    if (printer->whole)
        return strf(printer->arena, "v%d", u);
    return printer->beside > 1
               ? strf(printer->arena, "(v%d + l %% %d)", u, printer->width)
               : strf(printer->arena, "(v%d + l)", u);
}

static const char *term_text(KernelPrinter *printer, const Term *term)
{
    const char *v =
        term->var < MAXLOOP
            ? loop_text(printer, term->var)
            : nest_ref(printer, printer->kernel->ex[term->var - MAXLOOP]);

    return term->k->n ? strf(printer->arena, "%s * n%d", v,
                             nest_size(printer, term->k))
                      : v;
}

const char *nest_lin(KernelPrinter *printer, const AffineExpr *affine)
{
    const char *s = "";

    for (int i = 0; i < affine->nt; i++)
        s = strf(printer->arena, "%s%s%s", s, *s ? " + " : "",
                 term_text(printer, &affine->term[i]));
    if (affine->hasoff)
        s = strf(printer->arena, "%s%sn%d", s, *s ? " + " : "",
                 int_of_off(printer, affine));
    return *s ? s : "0";
}

const char *nest_element(KernelPrinter *printer, Node *buf,
                         const AffineExpr *at)
{
    return strf(printer->arena, "b%d[%s]",
                add_arg(printer->group, printer->arena, buf),
                nest_lin(printer, at));
}

const char *nest_load(KernelPrinter *printer, Node *buf, const AffineExpr *at)
{
    return text_load(printer->arena, buf->dt, nest_element(printer, buf, at));
}

const char *nest_operand(KernelPrinter *printer, const Expr *expr, int i)
{
    const char *s = nest_ref(printer, expr->arg[i]);

    if (expr->arg[i]->dt == expr->dt || (expr->raw >> i & 1))
        return s;
    return strf(printer->arena, "(%s)%s", dtypes[expr->dt].compute, s);
}

/* A rough exponent gets no more than a GPU's own instruction: a quarter of
 * those that round well, of which a row of logits has two an element. */
const char *nest_exp(const KernelPrinter *printer, const Expr *expr)
{
    return printer->gpu && expr->dt == Df32 && (expr->raw & RAWROUGH)
               ? "exp_near_f32"
               : "exp_f32";
}

const char *nest_value(KernelPrinter *printer, Expr *expr)
{
    const char *arg[SCALARIN];
    Text out = { .arena = printer->arena };

    if (expr->kind == Xload) {
        const char *s = nest_load(printer, expr->buf, expr->lin);
        return expr->arg[0] ? strf(printer->arena, "%s ? %s : 0",
                                   nest_ref(printer, expr->arg[0]), s)
                            : s;
    }
    for (int i = 0; i < expr->na; i++)
        arg[i] = nest_operand(printer, expr, i);
    if (expr->of == optab[Oexp].expr && expr->calls == Df32)
        return strf(printer->arena, "%s(%s)", nest_exp(printer, expr), arg[0]);
    put_scalar(&out, expr->of,
               &(ScalarNames){ .operand = arg, .dt = expr->calls });
    return out.s;
}
