/* score.c: text that turns dots into scores, and gradients of scores into
 * gradients of dots, both for one row of a tile.
 *
 *     values     each node of the body between the dots and the softmax becomes
 *                a C local, in the row's head or in the loop over columns
 *     gradients  the same nodes backwards, by the gradient texts of ops.def
 *
 * Gradients go to dots and to what else the score reads and is trained (a slope
 * per head, a bias). */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "codegen.h"

typedef struct ScorePrinter {
    Attn *t;
    Text row, col; /* text outside and inside the column loop */
    int depth;
    const char **val; /* by body node: its value's C name */
    const char **dy;  /* gradient so far: an expression */
    char *dep;        /* a dot's value reaches it */
} ScorePrinter;

static const char *float_type(const Attn *t)
{
    return !strcmp(t->t, "f64") ? "double" : "float";
}

static int isfloat(const Node *n)
{
    return dtypes[n->dt].kind == 'f';
}

static const char *c_type(const Attn *t, const Node *n)
{
    return isfloat(n) ? float_type(t) : dtypes[n->dt].compute;
}

static int varies(const ScorePrinter *s, const Node *n) /* along the columns */
{
    return dim_of(n, s->t->key) >= 0;
}

static const char *local(ScorePrinter *s, const Node *n, const char *expr)
{
    const char *name = strf(s->t->arena, "v%d", attn_node(s->t, n));

    attn_line(varies(s, n) ? &s->col : &s->row, s->depth + varies(s, n),
              "const %s %s = %s;", c_type(s->t, n), name, expr);
    return name;
}

/* ---- values -------------------------------------------------------------- */

static const char *number(const ScorePrinter *s, const Node *n)
{
    double v = n->at.constant.value;

    if (!isfloat(n))
        return strf(s->t->arena, "%lld", (long long)v);
    if (isinf(v))
        return v > 0 ? "INFINITY" : "-INFINITY";
    if (isnan(v))
        return "NAN";
    return strf(s->t->arena, "(%s)%a", float_type(s->t), v);
}

static const char *position(ScorePrinter *s, const Node *n)
{
    Attn *t = s->t;
    const Axis *a = n->dim[0].a;
    AttnPlace p = attn_place(t, a);
    const char *i =
        a == t->query ? "q0 + r" : strf(t->arena, "i_%s", attn_code(t, a));

    if (a == t->key && p.two)
        return local(s, n,
                     strf(t->arena,
                          "(int32_t)k0 + j + (j < (int32_t)"
                          "(%s - k0) ? (int32_t)%s : (int32_t)%s)",
                          p.half, p.at, p.to));
    if (a == t->key)
        return local(s, n, strf(t->arena, "(int32_t)(%s + k0) + j", p.at));
    return local(s, n, strf(t->arena, "(int32_t)(%s)", attn_global(t, a, i)));
}

static const char *load(ScorePrinter *s, const Node *n)
{
    Attn *t = s->t;
    AttnView v = attn_operand(t, (int)n->at.arg.index);
    Text x = { .arena = t->arena };

    if (v.n->nd == 1 && v.n->dt == Di32 && attn_isposition(v.n))
        return position(s, n);
    put(&x, "*(%s", attn_at(t, v));
    if (dim_of(v.n, t->query) >= 0)
        put(&x, " + (q0 + r) * %s", attn_stride(t, v, t->query));
    if (dim_of(v.n, t->key) >= 0)
        put(&x, " + (k0 + j) * %s", attn_stride(t, v, t->key));
    put(&x, ")");
    if (v.n->dt == Dbf16)
        return local(s, n, strf(t->arena, "bf16_f32(%s)", x.s));
    return local(s, n, x.s);
}

static void letters_of(Op op, char *out)
{
    for (const char *p = optab[op].operands; *p; p++)
        if (*p != ' ')
            *out++ = *p;
    *out = 0;
}

/* Operand k of n, of n's kind. */
static const char *operand(const ScorePrinter *s, const Node *n, int k)
{
    const Node *a = n->in[k];
    const char *v = s->val[attn_node(s->t, a)];

    if (isfloat(n) && !isfloat(a) && !(n->op == Owhere && k == 0))
        return strf(s->t->arena, "(%s)%s", float_type(s->t), v);
    return v;
}

static const char *suffix(const Attn *t)
{
    return !strcmp(t->t, "f64") ? "_f64" : "_f32";
}

/* Division by a constant, as all scaling is, multiplies: the score is not
 * rounded on its way, so it may. Null: not a division by a constant. */
static const char *reciprocal(const ScorePrinter *s, const Node *n)
{
    if (n->op != Odiv || !isfloat(n) || n->in[1]->op != Oconst)
        return NULL;
    if (!isfinite(n->in[1]->at.constant.value) ||
        n->in[1]->at.constant.value == 0)
        return NULL;
    return strf(s->t->arena, "(%s)%a", float_type(s->t),
                1 / n->in[1]->at.constant.value);
}

static int term_of(const Attn *t, const Node *n)
{
    for (int i = 0; i < t->nterm; i++)
        if (t->term[i] == n)
            return i;
    return -1;
}

/* ---- a score that is its term, scaled and masked ------------------------- */

static double constant(const Node *n) /* or 0 */
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

/* The factor of a scaling node, and its operand that is scaled. */
static double factor(const Node *n, int *k)
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

/* From the score down to the term; `at` if that node is a scaling passed. */
static double unit(const Attn *t, const Node *at, int *passed)
{
    double c = 1;
    const Node *n = t->score;

    while (term_of(t, n) < 0) {
        int k = 0;
        double f = factor(n, &k);
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

double attn_unit(const Attn *t)
{
    int passed = 0;

    return t->scaled && t->nterm == 1 ? unit(t, NULL, &passed) : 0;
}

/* Left out: what is scaled is the unit's. */
static int is_scaling(const Attn *t, const Node *n)
{
    int passed = 0;

    return t->scaled && t->nterm == 1 && unit(t, n, &passed) > 0 && passed;
}

static const char *elementwise(ScorePrinter *s, const Node *n)
{
    const char *arg[4], *r = reciprocal(s, n);
    char letters[8];
    Text x = { .arena = s->t->arena };

    if (is_scaling(s->t, n)) {
        int k;
        factor(n, &k);
        return operand(s, n, k);
    }
    if (r)
        return local(s, n, strf(x.arena, "%s * %s", operand(s, n, 0), r));
    for (int k = 0; k < n->nin; k++)
        arg[k] = operand(s, n, k);
    letters_of(n->op, letters);
    put_expr(&x, optab[n->op].lower, letters, arg, suffix(s->t));
    return local(s, n, x.s);
}

static void value(ScorePrinter *s, const Node *n)
{
    const char **v = &s->val[attn_node(s->t, n)];
    int term = term_of(s->t, n);

    if (*v)
        return;
    if (term >= 0)
        *v = local(s, n, strf(s->t->arena, s->t->gpu ? "s%d" : "s%d[j]", term));
    else if (attn_isopen(s->t, n)) {
        value(s, n->in[1]);
        *v = s->val[attn_node(s->t, n->in[1])];
    } else if (n->op == Oconst)
        *v = number(s, n);
    else if (n->op == Oarg)
        *v = load(s, n);
    else if (attn_isposition(n))
        *v = position(s, n);
    else {
        for (int k = 0; k < n->nin; k++)
            value(s, n->in[k]);
        *v = elementwise(s, n);
    }
}

/* ---- gradients ----------------------------------------------------------- */

static int passes_gradient(const Node *n)
{
    return isfloat(n) && (optab[n->op].gradkind == 'E' || n->op == Ocast ||
                          n->op == Obroadcast);
}

static int is_wanted(const Attn *t, const Node *n)
{
    return n->op == Oarg && (t->wanted >> n->at.arg.index & 1);
}

static int depends(ScorePrinter *s, const Node *n)
{
    int at = attn_node(s->t, n);
    int yes = term_of(s->t, n) >= 0 || is_wanted(s->t, n);

    if (s->dep[at])
        return s->dep[at] - 1;
    if (!yes && optab[n->op].cls == EW && passes_gradient(n))
        for (int k = 0; k < n->nin; k++)
            yes |= depends(s, n->in[k]);
    s->dep[at] = (char)(1 + yes);
    return yes;
}

static const char *gradient(const ScorePrinter *s, const char *text,
                            const Node *n, const char *dy);

static const char *closed(Arena *a, const char *x) /* parentheses if needed */
{
    x += strspn(x, " ");
    return strpbrk(x, " +-*/(") ? strf(a, "(%s)", x) : x;
}

/* op(x, ..) inside a gradient text, from behind its '(': the op's own lowering.
 * Sets *end behind the ')'. */
static const char *call(const ScorePrinter *s, Op op, const char *p,
                        const Node *n, const char *dy, const char **end)
{
    Arena *a = s->t->arena;
    const char *arg[4], *from = p;
    char letters[8];
    Text x = { .arena = a };
    int k = 0;

    for (int open = 1; open; p++) {
        open += (*p == '(') - (*p == ')');
        if (open == 0 || (open == 1 && *p == ',')) {
            char *part = strf(a, "%.*s", (int)(p - from), from);
            arg[k++] = closed(a, gradient(s, part, n, dy));
            from = p + 1;
        }
    }
    *end = p;
    letters_of(op, letters);
    put(&x, "(");
    put_expr(&x, optab[op].lower, letters, arg, suffix(s->t));
    put(&x, ")");
    return x.s;
}

static const char *variable(const ScorePrinter *s, const char *w, size_t len,
                            const Node *n, const char *dy)
{
    char letters[8];

    if (len == 2 && !strncmp(w, "dy", 2))
        return dy;
    if (len == 1 && *w == 'y')
        return s->val[attn_node(s->t, n)];
    letters_of(n->op, letters);
    const char *at = len == 1 ? strchr(letters, *w) : NULL;
    if (!at)
        die("gradient of %s: unknown name in '%s'", optab[n->op].name, w);
    return operand(s, n, (int)(at - letters));
}

static size_t word(const char *p)
{
    size_t n = 0;

    while (isalnum((unsigned char)p[n]) || p[n] == '_')
        n++;
    return n;
}

/* A gradient text of n's row as C: dy is the gradient of n. */
static const char *gradient(const ScorePrinter *s, const char *p, const Node *n,
                            const char *dy)
{
    Text x = { .arena = s->t->arena };

    while (*p) {
        size_t len = word(p);
        if (len == 0) {
            putn(&x, p++, 1);
        } else if (isdigit((unsigned char)*p)) {
            size_t d = strspn(p, "0123456789.");
            put(&x, "(%s)%.*s", float_type(s->t), (int)d, p);
            p += d;
        } else if (p[len] == '(') {
            int op = op_named(internn(p, len));
            if (op < 0)
                die("gradient of %s: no op in '%s'", optab[n->op].name, p);
            put(&x, "%s", call(s, (Op)op, p + len + 1, n, dy, &p));
        } else {
            put(&x, "%s", variable(s, p, len, n, dy));
            p += len;
        }
    }
    return x.s ? x.s : "0";
}

static void give(ScorePrinter *s, const Node *n, const char *expr)
{
    const char **d = &s->dy[attn_node(s->t, n)];

    *d = *d ? strf(s->t->arena, "%s + (%s)", *d, expr) : expr;
}

static void backward(ScorePrinter *s, const Node *n)
{
    int at = attn_node(s->t, n);
    const char *dy = strf(s->t->arena, "g%d", at);

    if (!s->dy[at])
        return;
    attn_line(&s->col, s->depth + 1, "const %s %s = %s;", float_type(s->t), dy,
              s->dy[at]);
    if (is_wanted(s->t, n))
        attn_line(&s->col, s->depth + 1, "ur%d[j] = ds != 0 ? %s : 0;",
                  (int)n->at.arg.index, dy);
    if (term_of(s->t, n) >= 0)
        return;
    if (attn_isopen(s->t, n)) {
        give(s, n->in[1], dy);
        return;
    }
    for (int k = 0; k < n->nin; k++) {
        const char *text =
            optab[n->op].gradkind == 'E' ? optab[n->op].grad[k] : "dy";
        const char *r = reciprocal(s, n);
        if (depends(s, n->in[k]) && strcmp(text, "0"))
            give(s, n->in[k],
                 r ? strf(s->t->arena, "%s * %s", dy, r)
                   : gradient(s, text, n, dy));
    }
}

static void store_gradients(ScorePrinter *s)
{
    Attn *t = s->t;
    const char *j = t->gpu ? "" : "[j]";

    for (int i = 0; i < t->nterm; i++) {
        int at = attn_node(t, t->term[i]);
        if (s->dy[at])
            attn_line(&s->col, s->depth + 1, "s%d%s = g%d;", i, j, at);
        else
            attn_line(&s->col, s->depth + 1, "s%d%s = 0;", i, j);
    }
}

/* From the score's value on: weight, gradient of the score, and back. */
static void weigh(ScorePrinter *s)
{
    /* clang-format off */
    static const char *const lines[2][3] = {
        { "const %s p = exp_%s(%s - lse[r]);",
          "const %s ds = p * (dp[j] - delta[r]);", "pr[j] = p;" },
        { "const %s p = weight_%s(in ? %s : -INFINITY, lse);",
          "const %s ds = p * (dp - delta);", "pr = p;" },
    };
    /* clang-format on */
    Attn *t = s->t;
    const char *f = float_type(t), *z = s->val[attn_node(t, t->score)];
    const char *const *say = lines[t->gpu != 0];

    attn_line(&s->col, s->depth + 1, say[0], f, t->t, z);
    attn_line(&s->col, s->depth + 1, say[1], f);
    attn_line(&s->col, s->depth + 1, "%s", say[2]);
    depends(s, t->score);
    give(s, t->score, "ds");
    for (int i = attn_node(t, t->score); i >= 0; i--)
        backward(s, t->body->node[i]);
    store_gradients(s);
}

static void tail(ScorePrinter *s, int grad)
{
    Attn *t = s->t;
    Text z = { .arena = t->arena };

    if (grad)
        put(&z, "pr[j] = ");
    for (int i = 0; i < t->nterm && grad; i++)
        put(&z, "s%d[j] = ", i);
    attn_say(t, s->depth, "for (int j = (int)seen; j < at_keys; j++)");
    attn_say(t, s->depth + 1, grad ? "%s0;" : "%ss0[j] = -INFINITY;",
             z.s ? z.s : "");
}

static ScorePrinter score_new(Attn *t, int depth)
{
    size_t n = vec_len(t->body->node);
    ScorePrinter s = { .t = t, .depth = depth };

    s.row.arena = s.col.arena = t->arena;
    s.val = alloc(t->arena, n * sizeof *s.val);
    s.dy = alloc(t->arena, n * sizeof *s.dy);
    s.dep = alloc(t->arena, n);
    value(&s, t->score);
    return s;
}

/* One pair: query q0 + r, key k0 + j, terms s0 s1 .. */
void attn_score1(Attn *t, int depth, int grad)
{
    ScorePrinter s = score_new(t, depth);

    if (grad)
        weigh(&s);
    else
        attn_line(&s.col, depth + 1, "z = in ? %s : -INFINITY;",
                  s.val[attn_node(t, t->score)]);
    put(&t->o, "%s%s", s.row.s ? s.row.s : "", s.col.s);
}

void attn_score(Attn *t, int depth, int grad)
{
    ScorePrinter s = score_new(t, depth);

    if (grad)
        weigh(&s);
    else
        attn_line(&s.col, depth + 1, "s0[j] = %s;",
                  s.val[attn_node(t, t->score)]);
    for (int i = 0; i < t->nterm; i++)
        attn_say(t, depth, "at_%s *restrict s%d = t%d + r * at_ld;", t->t, i,
                 i);
    put(&t->o, "%s", s.row.s ? s.row.s : "");
    attn_say(t, depth, "for (int j = 0; j < (int)seen; j++) {");
    put(&t->o, "%s", s.col.s);
    attn_say(t, depth, "}");
    tail(&s, grad);
}
