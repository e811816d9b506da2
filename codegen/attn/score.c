/* score.c: text that computes scores from dots, and gradients of dots from
 * gradients of scores, for one row of a tile.
 *
 *     values     each node of the body between the dots and the softmax becomes
 *                a C local, before or in the loop over columns
 *     gradients  the same nodes in reverse, by the gradients of ops.def
 *
 * Gradients go to dots and to trained operands that the score reads (a slope
 * per head, a bias). */
#include "attn.h"

typedef struct ScorePrinter {
    Attn *attn;
    Text row, col; /* text outside and inside the column loop */
    int depth;
    const char **val; /* C name of each body node's value */
    const char **dy;  /* its gradient so far, an expression */
    char *dep;        /* 1 + whether it depends on a dot; 0: unknown */
} ScorePrinter;

static const char *float_type(const Attn *attn)
{
    return dtypes[attn->dt].compute;
}

static int isfloat(const Node *n)
{
    return dtypes[n->dt].kind == 'f';
}

static const char *c_type(const Attn *attn, const Node *n)
{
    return isfloat(n) ? float_type(attn) : dtypes[n->dt].compute;
}

static int varies_by_column(const ScorePrinter *s,
                            const Node *n) /* along the columns */
{
    return dim_of(n, s->attn->key) >= 0;
}

static const char *local(ScorePrinter *printer, const Node *n, const char *expr)
{
    const char *name =
        strf(printer->attn->arena, "v%d", attn_node(printer->attn, n));

    put_line(varies_by_column(printer, n) ? &printer->col : &printer->row,
             printer->depth + varies_by_column(printer, n), "const %s %s = %s;",
             c_type(printer->attn, n), name, expr);
    return name;
}

/* ---- values -------------------------------------------------------------- */

static const char *number(const ScorePrinter *printer, const Node *n)
{
    double v = n->at.constant.value;

    if (!isfloat(n))
        return strf(printer->attn->arena, "%ld", (int64_t)v);
    if (isinf(v))
        return v > 0 ? "INFINITY" : "-INFINITY";
    if (isnan(v))
        return "NAN";
    return strf(printer->attn->arena, "(%s)%a", float_type(printer->attn), v);
}

static const char *position(ScorePrinter *printer, const Node *n)
{
    Attn *attn = printer->attn;
    const Axis *a = n->dim[0].a;
    AttnPlace p = attn_index_map(attn, a);
    const char *i = a == attn->query
                        ? "q0 + r"
                        : strf(attn->arena, "i_%s", attn_axis(attn, a));

    if (a == attn->key && p.two)
        return local(printer, n,
                     strf(attn->arena,
                          "(int32_t)k0 + j + (j < (int32_t)(%s - k0) ? "
                          "(int32_t)%s : (int32_t)%s)",
                          p.half, p.at, p.to));
    if (a == attn->key)
        return local(printer, n,
                     strf(attn->arena, "(int32_t)(%s + k0) + j", p.at));
    return local(printer, n,
                 strf(attn->arena, "(int32_t)(%s)", attn_global(attn, a, i)));
}

static const char *load(ScorePrinter *printer, const Node *n)
{
    Attn *attn = printer->attn;
    AttnView v = attn_operand(attn, (int)n->at.arg.index);
    Text x = { .arena = attn->arena };

    if (v.n->nd == 1 && v.n->dt == Di32 && is_position(v.n))
        return position(printer, n);
    put(&x, "*(%s", attn_row_pointer(attn, v));
    if (dim_of(v.n, attn->query) >= 0)
        put(&x, " + (q0 + r) * %s", attn_stride_name(attn, v, attn->query));
    if (dim_of(v.n, attn->key) >= 0)
        put(&x, " + (k0 + j) * %s", attn_stride_name(attn, v, attn->key));
    put(&x, ")");
    return local(printer, n, text_load(attn->arena, v.n->dt, x.s));
}

/* Operand k of n, converted to n's type. */
static const char *operand(const ScorePrinter *printer, const Node *n, int k)
{
    const Node *a = n->in[k];
    const char *v = printer->val[attn_node(printer->attn, a)];

    if (isfloat(n) && !isfloat(a) && !(n->op == Owhere && k == 0))
        return strf(printer->attn->arena, "(%s)%s", float_type(printer->attn),
                    v);
    return v;
}

/* C text of `scalar` with n's operands; dy: the gradient of n. */
static const char *scalar_text(const ScorePrinter *printer,
                               const ScalarExpr *scalar, const Node *n,
                               const char *dy)
{
    const char *arg[SCALARIN];
    Text x = { .arena = printer->attn->arena };

    for (int k = 0; k < n->nin; k++)
        arg[k] = operand(printer, n, k);
    put_scalar(&x, scalar,
               &(ScalarNames){ arg, printer->val[attn_node(printer->attn, n)],
                               dy, printer->attn->dt });
    return x.s;
}

/* Product with the reciprocal for a division by a constant, as all scaling is:
 * scores are not rounded in between. Null: n is not such a division. */
static const char *reciprocal(const ScorePrinter *printer, const Node *n)
{
    if (n->op != Odiv || !isfloat(n) || n->in[1]->op != Oconst)
        return NULL;
    if (!isfinite(n->in[1]->at.constant.value) ||
        n->in[1]->at.constant.value == 0)
        return NULL;
    return strf(printer->attn->arena, "(%s)%a", float_type(printer->attn),
                1 / n->in[1]->at.constant.value);
}

static int term_of(const Attn *attn, const Node *n)
{
    for (int i = 0; i < attn->nterm; i++)
        if (attn->term[i] == n)
            return i;
    return -1;
}

/* ---- scores that are a scaled and masked term ---------------------------- */

static double constant(const Node *n) /* 0: not a finite constant */
{
    while (n->op == Ocast || n->op == Obroadcast)
        n = n->in[0];
    return n->op == Oconst && isfinite(n->at.constant.value)
               ? n->at.constant.value
               : 0;
}

static int is_masking(const Node *n)
{
    const Node *x = n->op == Owhere ? n->in[2] : NULL;

    while (x && (x->op == Ocast || x->op == Obroadcast))
        x = x->in[0];
    return x && x->op == Oconst && isinf(x->at.constant.value) &&
           x->at.constant.value < 0;
}

/* The factor of a scaling node (0: none); *k gets its scaled operand. */
static double scale_factor(const Node *n, int *k)
{
    double f = n->nin == 2 ? constant(n->in[1]) : 0;

    *k = 0;
    if (n->op == Odiv && isfloat(n))
        return f != 0 ? 1 / f : 0;
    if (n->op != Omul || !isfloat(n))
        return 0;
    if (f == 0) {
        *k = 1;
        f = constant(n->in[0]);
    }
    return f;
}

/* Product of the factors from the score down to its term; 0 if another op or a
 * further use of a node is in between. *passed: `at` is one of the scaling
 * nodes. */
static double unit_of(const Attn *attn, const Node *at, int *passed)
{
    double c = 1;
    const Node *n = attn->score;

    while (term_of(attn, n) < 0) {
        int k = 0;
        double f = scale_factor(n, &k);
        if (n != attn->score && attn_body_users(attn, n) > 1)
            return 0;
        if (f != 0)
            *passed |= n == at;
        else if (is_masking(n))
            k = 1, f = 1;
        else if (n->op != Ocast && n->op != Obroadcast)
            return 0;
        c *= f != 0 ? f : 1;
        n = n->in[k];
    }
    return c > 0 ? c : 0;
}

double attn_unit(const Attn *attn)
{
    int passed = 0;

    return attn->scaled && attn->nterm == 1 ? unit_of(attn, NULL, &passed) : 0;
}

/* Is n a scaling node whose factor is part of the unit? */
static int is_scaling(const Attn *attn, const Node *n)
{
    int passed = 0;

    return attn->scaled && attn->nterm == 1 && unit_of(attn, n, &passed) > 0 &&
           passed;
}

static const char *elementwise(ScorePrinter *printer, const Node *n)
{
    const char *r = reciprocal(printer, n);

    if (is_scaling(printer->attn, n)) {
        int k;
        scale_factor(n, &k);
        return operand(printer, n, k);
    }
    if (r)
        return local(
            printer, n,
            strf(printer->attn->arena, "%s * %s", operand(printer, n, 0), r));
    return local(printer, n, scalar_text(printer, optab[n->op].expr, n, NULL));
}

static void value(ScorePrinter *printer, const Node *n)
{
    const char **v = &printer->val[attn_node(printer->attn, n)];
    int term = term_of(printer->attn, n);

    if (*v)
        return;
    if (term >= 0)
        *v = local(printer, n,
                   strf(printer->attn->arena,
                        printer->attn->gpu ? "s%d" : "s%d[j]", term));
    else if (attn_is_exact_mask(printer->attn, n)) {
        value(printer, n->in[1]);
        *v = printer->val[attn_node(printer->attn, n->in[1])];
    } else if (n->op == Oconst)
        *v = number(printer, n);
    else if (n->op == Oarg)
        *v = load(printer, n);
    else if (is_position(n))
        *v = position(printer, n);
    else {
        for (int k = 0; k < n->nin; k++)
            value(printer, n->in[k]);
        *v = elementwise(printer, n);
    }
}

/* ---- gradients ----------------------------------------------------------- */

static int is_wanted(const Attn *attn, const Node *n)
{
    return n->op == Oarg && (attn->wanted >> n->at.arg.index & 1);
}

static int depends(ScorePrinter *printer, const Node *n)
{
    int at = attn_node(printer->attn, n);
    int yes = term_of(printer->attn, n) >= 0 || is_wanted(printer->attn, n);

    if (printer->dep[at])
        return printer->dep[at] - 1;
    if (!yes && optab[n->op].cls == EW)
        for (int k = 0; k < n->nin; k++)
            yes |= passes_gradient(n, k) && depends(printer, n->in[k]);
    printer->dep[at] = (char)(1 + yes);
    return yes;
}

/* The gradient of operand k of n from dy, the gradient of n. */
static const char *gradient(const ScorePrinter *printer, const Node *n, int k,
                            const char *dy)
{
    const char *r = reciprocal(printer, n);

    if (optab[n->op].gradkind != 'E')
        return dy;
    if (r)
        return strf(printer->attn->arena, "%s * %s", dy, r);
    return scalar_text(printer, scalar_open(optab[n->op].grad[k]), n, dy);
}

static void add_gradient(ScorePrinter *printer, const Node *n, const char *expr)
{
    const char **d = &printer->dy[attn_node(printer->attn, n)];

    *d = *d ? strf(printer->attn->arena, "(%s) + (%s)", *d, expr) : expr;
}

static void backward(ScorePrinter *printer, const Node *n)
{
    int at = attn_node(printer->attn, n);
    const char *dy = strf(printer->attn->arena, "g%d", at);

    if (!printer->dy[at])
        return;
    put_line(&printer->col, printer->depth + 1, "const %s %s = %s;",
             float_type(printer->attn), dy, printer->dy[at]);
    if (is_wanted(printer->attn, n))
        put_line(&printer->col, printer->depth + 1,
                 "ur%d[j] = ds != 0 ? %s : 0;", (int)n->at.arg.index, dy);
    if (term_of(printer->attn, n) >= 0)
        return;
    if (attn_is_exact_mask(printer->attn, n)) {
        add_gradient(printer, n->in[1], dy);
        return;
    }
    for (int k = 0; k < n->nin; k++)
        if (passes_gradient(n, k) && depends(printer, n->in[k]))
            add_gradient(printer, n->in[k], gradient(printer, n, k, dy));
}

static void store_gradients(ScorePrinter *printer)
{
    Attn *attn = printer->attn;
    const char *j = attn->gpu ? "" : "[j]";

    for (int i = 0; i < attn->nterm; i++) {
        int at = attn_node(attn, attn->term[i]);
        if (printer->dy[at])
            put_line(&printer->col, printer->depth + 1, "s%d%s = g%d;", i, j,
                     at);
        else
            put_line(&printer->col, printer->depth + 1, "s%d%s = 0;", i, j);
    }
}

/* Prints the score's weight, its gradient, and the gradients of the body in
 * reverse order. */
static void put_backward_row(ScorePrinter *printer)
{
    /* clang-format off */
    static const char *const lines[2][3] = {
        { "const %s p = exp_%s(%s - lse[r]);",
          "const %s ds = p * (dp[j] - delta[r]);", "pr[j] = p;" },
        { "const %s p = weight_%s(in ? %s : -INFINITY, lse);",
          "const %s ds = p * (dp - delta);", "pr = p;" },
    };
    /* clang-format on */
    Attn *attn = printer->attn;
    const char *f = float_type(attn),
               *z = printer->val[attn_node(attn, attn->score)];
    const char *const *say = lines[attn->gpu != 0];

    put_line(&printer->col, printer->depth + 1, say[0], f, attn->type, z);
    put_line(&printer->col, printer->depth + 1, say[1], f);
    put_line(&printer->col, printer->depth + 1, "%s", say[2]);
    depends(printer, attn->score);
    add_gradient(printer, attn->score, "ds");
    for (int i = attn_node(attn, attn->score); i >= 0; i--)
        backward(printer, attn->body->node[i]);
    store_gradients(printer);
}

static void put_masked_columns(ScorePrinter *printer, int grad)
{
    Attn *attn = printer->attn;
    Text z = { .arena = attn->arena };

    if (grad)
        put(&z, "pr[j] = ");
    for (int i = 0; i < attn->nterm && grad; i++)
        put(&z, "s%d[j] = ", i);
    attn_line(attn, printer->depth,
              "for (int j = (int)seen; j < at_keys; j++)");
    attn_line(attn, printer->depth + 1, grad ? "%s0;" : "%ss0[j] = -INFINITY;",
              z.s ? z.s : "");
}

static ScorePrinter score_new(Attn *attn, int depth)
{
    size_t n = vec_len(attn->body->node);
    ScorePrinter s = { .attn = attn, .depth = depth };

    s.row.arena = s.col.arena = attn->arena;
    s.val = alloc(attn->arena, n * sizeof *s.val);
    s.dy = alloc(attn->arena, n * sizeof *s.dy);
    s.dep = alloc(attn->arena, n);
    value(&s, attn->score);
    return s;
}

/* One pair: query q0 + r, key k0 + j, terms s0 s1 .. */
void attn_score1(Attn *attn, int depth, int grad)
{
    ScorePrinter s = score_new(attn, depth);

    if (grad)
        put_backward_row(&s);
    else
        put_line(&s.col, depth + 1, "z = in ? %s : -INFINITY;",
                 s.val[attn_node(attn, attn->score)]);
    put(&attn->out, "%s%s", s.row.s ? s.row.s : "", s.col.s);
}

void attn_score(Attn *attn, int depth, int grad)
{
    ScorePrinter s = score_new(attn, depth);

    if (grad)
        put_backward_row(&s);
    else
        put_line(&s.col, depth + 1, "s0[j] = %s;",
                 s.val[attn_node(attn, attn->score)]);
    for (int i = 0; i < attn->nterm; i++)
        attn_line(attn, depth, "at_%s *restrict s%d = t%d + r * at_ld;",
                  attn->type, i, i);
    put(&attn->out, "%s", s.row.s ? s.row.s : "");
    attn_line(attn, depth, "for (int j = 0; j < (int)seen; j++) {");
    put(&attn->out, "%s", s.col.s);
    attn_line(attn, depth, "}");
    put_masked_columns(&s, grad);
}
