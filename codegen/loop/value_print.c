/* value_print.c: text of a kernel's values: names, addresses, expressions.
 * Numbers, sizes and strides are arguments, so the text depends on structure
 * only. */
#include "loop.h"

void text_line(KernelPrinter *printer, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&printer->text, printer->depth, fmt, ap);
    va_end(ap);
}

/* ---- arguments ----------------------------------------------------------- */

int size_arg(KernelPrinter *printer, const SizeProduct *product)
{
    for (size_t i = 0; i < vec_len(printer->size); i++)
        if (printer->size[i] == product)
            return printer->sizeat[i];
    int at = add_size(printer->group, printer->arena, product->v);
    vec_push(printer->arena, printer->size, product);
    vec_push(printer->arena, printer->sizeat, at);
    return at;
}

static int offset_arg(KernelPrinter *printer, const AffineExpr *affine)
{
    for (size_t i = 0; i < vec_len(printer->off); i++)
        if (!memcmp(&printer->off[i]->off, &affine->off, sizeof affine->off))
            return printer->offat[i];
    int at = add_int(printer->group, printer->arena, affine->off);
    vec_push(printer->arena, printer->off, affine);
    vec_push(printer->arena, printer->offat, at);
    return at;
}

static int number_arg(KernelPrinter *printer, Expr *expr)
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

/* Index of the ragged extent e<i>: the number of rows, an int32 in the route
 * node's buffer. */
static int ragged_extent(KernelPrinter *printer, const Node *map)
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

const char *loop_end(KernelPrinter *printer, int loop)
{
    const Loop *l = &printer->kernel->loop[loop];

    if (!l->map)
        return strf(printer->arena, "n%d", size_arg(printer, l->extent));
    const char *e = strf(printer->arena, "e%d", ragged_extent(printer, l->map));
    return l->per
               ? strf(printer->arena, "%s * n%d", e, size_arg(printer, l->per))
               : e;
}

/* ---- values -------------------------------------------------------------- */

static int is_literal(double f)
{
    double a = fabs(f);

    return a == 0 || a == 0.5 || a == 1 || a == 2 || a == 3 || a == 4;
}

static const char *number_text(KernelPrinter *printer, Expr *expr)
{
    const char *s = expr->dt == Df32 ? "f" : "";

    if (expr->dt == Di32 || expr->dt == Di64)
        return is_literal(expr->f) && expr->f == floor(expr->f)
                   ? strf(printer->arena, expr->f < 0 ? "(%g)" : "%g", expr->f)
                   : strf(printer->arena, "(%s)c%d", dtypes[expr->dt].compute,
                          number_arg(printer, expr));
    if (isinf(expr->f))
        return expr->f < 0 ? "(-INFINITY)" : "INFINITY";
    if (is_literal(expr->f))
        return strf(printer->arena, signbit(expr->f) ? "(%.1f%s)" : "%.1f%s",
                    expr->f, s);
    return strf(printer->arena, expr->dt == Df32 ? "(float)c%d" : "c%d",
                number_arg(printer, expr));
}

/* C text of a computed value. */
const char *value_name(KernelPrinter *printer, Expr *expr)
{
    switch (expr->kind) {
    case Xnum: return number_text(printer, expr);
    case Xkey:
    case Xint: return strf(printer->arena, "n%d", number_arg(printer, expr));
    case Xlin:
        return expr->dt == Di64 ? strf(printer->arena, "(%s)",
                                       affine_text(printer, expr->lin))
                                : strf(printer->arena, "(int32_t)(%s)",
                                       affine_text(printer, expr->lin));
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

/* Index of loop u. If its elements are lanes: the index of lane l, or of the
 * first lane of a whole vector access. */
static const char *loop_index_text(KernelPrinter *printer, int u)
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
            ? loop_index_text(printer, term->var)
            : value_name(printer, printer->kernel->ex[term->var - MAXLOOP]);

    return term->k->n
               ? strf(printer->arena, "%s * n%d", v, size_arg(printer, term->k))
               : v;
}

const char *affine_text(KernelPrinter *printer, const AffineExpr *affine)
{
    const char *s = "";

    for (int i = 0; i < affine->nt; i++)
        s = strf(printer->arena, "%s%s%s", s, *s ? " + " : "",
                 term_text(printer, &affine->term[i]));
    if (affine->hasoff)
        s = strf(printer->arena, "%s%sn%d", s, *s ? " + " : "",
                 offset_arg(printer, affine));
    return *s ? s : "0";
}

const char *element_text(KernelPrinter *printer, Node *buf,
                         const AffineExpr *at)
{
    const char *index = affine_text(printer, at);

    return strf(printer->arena, "b%d[%s]",
                add_arg(printer->group, printer->arena, buf), index);
}

const char *load_text(KernelPrinter *printer, Node *buf, const AffineExpr *at)
{
    return text_load(printer->arena, buf->dt, element_text(printer, buf, at));
}

const char *converted_operand(KernelPrinter *printer, const Expr *expr, int i)
{
    const char *s = value_name(printer, expr->arg[i]);

    if (expr->arg[i]->dt == expr->dt || (expr->raw >> i & 1))
        return s;
    return strf(printer->arena, "(%s)%s", dtypes[expr->dt].compute, s);
}

/* An exponential of a low-precision exponent uses the GPU's own instruction, a
 * quarter of the instructions of exp_f32. A row of logits has two exponentials
 * per element. */
const char *exp_function(const KernelPrinter *printer, const Expr *expr)
{
    return printer->gpu && expr->dt == Df32 && (expr->raw & RAWROUGH)
               ? "exp_near_f32"
               : "exp_f32";
}

const char *expr_text(KernelPrinter *printer, Expr *expr)
{
    const char *arg[SCALARIN];
    Text out = { .arena = printer->arena };

    if (expr->kind == Xload) {
        const char *s = load_text(printer, expr->buf, expr->lin);
        return expr->arg[0] ? strf(printer->arena, "%s ? %s : 0",
                                   value_name(printer, expr->arg[0]), s)
                            : s;
    }
    for (int i = 0; i < expr->na; i++)
        arg[i] = converted_operand(printer, expr, i);
    if (expr->of == optab[Oexp].expr && expr->calls == Df32)
        return strf(printer->arena, "%s(%s)", exp_function(printer, expr),
                    arg[0]);
    put_scalar(&out, expr->of,
               &(ScalarNames){ .operand = arg, .dt = expr->calls });
    return out.s;
}
