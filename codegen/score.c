/* score.c: text that turns dots into scores, and gradients of scores into
 * gradients of dots, both for one row of a tile.
 *
 *     values     each node of the body between the dots and the softmax becomes
 *                a C local, in the row's head or in the loop over columns
 *     gradients  the same nodes backwards, by the gradient texts of ops.def
 *     bounds     which differences key - query the mask lets through, where it
 *                compares positions: tiles outside are skipped
 *
 * Gradients go to dots and to what else the score reads and is trained (a slope
 * per head, a bias).                                                         */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "codegen.h"

typedef struct Score {
    Attn *t;
    Text row, col;                /* text outside and inside the column loop  */
    int depth;
    const char **val;             /* by body node: its value's C name         */
    const char **dy;              /* gradient so far: an expression           */
    char *dep;                    /* a dot's value reaches it                 */
} Score;

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

static int varies(const Score *s, const Node *n)    /* along the columns      */
{
    return dim_of(n, s->t->key) >= 0;
}

static const char *local(Score *s, const Node *n, const char *expr)
{
    const char *name = strf(s->t->arena, "v%d", attn_node(s->t, n));

    attn_line(varies(s, n) ? &s->col : &s->row, s->depth + varies(s, n),
              "const %s %s = %s;", c_type(s->t, n), name, expr);
    return name;
}

/* ---- values -------------------------------------------------------------- */

static const char *number(const Score *s, const Node *n)
{
    if (!isfloat(n))
        return strf(s->t->arena, "%lld", (long long)n->f);
    if (isinf(n->f))
        return n->f > 0 ? "INFINITY" : "-INFINITY";
    if (isnan(n->f))
        return "NAN";
    return strf(s->t->arena, "(%s)%a", float_type(s->t), n->f);
}

static const char *position(Score *s, const Node *n)
{
    Attn *t = s->t;
    const Axis *a = n->dim[0].a;
    AttnPlace p = attn_place(t, a);
    const char *i = a == t->query ? "q0 + r"
                  : strf(t->arena, "i_%s", attn_code(t, a));

    if (a == t->key && p.two)
        return local(s, n, strf(t->arena, "(int32_t)k0 + j + (j < (int32_t)"
                     "(%s - k0) ? (int32_t)%s : (int32_t)%s)", p.half, p.at,
                     p.to));
    if (a == t->key)
        return local(s, n, strf(t->arena, "(int32_t)(%s + k0) + j", p.at));
    return local(s, n, strf(t->arena, "(int32_t)(%s)", attn_global(t, a, i)));
}

static const char *load(Score *s, const Node *n)
{
    Attn *t = s->t;
    AttnView v = attn_operand(t, (int)n->i);
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

/* Operand k of n, of n's kind.                                               */
static const char *operand(const Score *s, const Node *n, int k)
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
 * rounded on its way, so it may. Null: not a division by a constant.         */
static const char *reciprocal(const Score *s, const Node *n)
{
    if (n->op != Odiv || !isfloat(n) || n->in[1]->op != Oconst)
        return NULL;
    if (!isfinite(n->in[1]->f) || n->in[1]->f == 0)
        return NULL;
    return strf(s->t->arena, "(%s)%a", float_type(s->t), 1 / n->in[1]->f);
}

static int term_of(const Attn *t, const Node *n)
{
    for (int i = 0; i < t->nterm; i++)
        if (t->term[i] == n)
            return i;
    return -1;
}

/* ---- a score that is its term, scaled and masked ------------------------- */

static double constant(const Node *n)                    /* or 0              */
{
    while (n->op == Ocast || n->op == Ospread)
        n = n->in[0];
    return n->op == Oconst && isfinite(n->f) ? n->f : 0;
}

static int is_masking(const Node *n)
{
    const Node *x = n->op == Owhere ? n->in[2] : NULL;

    while (x && (x->op == Ocast || x->op == Ospread))
        x = x->in[0];
    return x && x->op == Oconst && isinf(x->f) && x->f < 0;
}

/* The factor of a scaling node, and its operand that is scaled.              */
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

/* From the score down to the term; `at` if that node is a scaling passed.    */
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
        else if (n->op != Ocast && n->op != Ospread)
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

/* Left out: what is scaled is the unit's.                                    */
static int is_scaling(const Attn *t, const Node *n)
{
    int passed = 0;

    return t->scaled && t->nterm == 1 && unit(t, n, &passed) > 0 && passed;
}

static const char *elementwise(Score *s, const Node *n)
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

static int is_open(const Attn *t, const Node *n);

static void value(Score *s, const Node *n)
{
    const char **v = &s->val[attn_node(s->t, n)];
    int term = term_of(s->t, n);

    if (*v)
        return;
    if (term >= 0)
        *v = local(s, n, strf(s->t->arena, s->t->gpu ? "s%d" : "s%d[j]", term));
    else if (is_open(s->t, n)) {
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
                          n->op == Ospread);
}

static int is_wanted(const Attn *t, const Node *n)
{
    return n->op == Oarg && (t->wanted >> n->i & 1);
}

static int depends(Score *s, const Node *n)
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

static const char *gradient(const Score *s, const char *text, const Node *n,
                            const char *dy);

static const char *closed(Arena *a, const char *x)  /* parentheses if needed  */
{
    x += strspn(x, " ");
    return strpbrk(x, " +-*/(") ? strf(a, "(%s)", x) : x;
}

/* op(x, ..) inside a gradient text, from behind its '(': the op's own lowering.
 * Sets *end behind the ')'.                                                  */
static const char *call(const Score *s, Op op, const char *p, const Node *n,
                        const char *dy, const char **end)
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

static const char *variable(const Score *s, const char *w, size_t len,
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

/* A gradient text of n's row as C: dy is the gradient of n.                  */
static const char *gradient(const Score *s, const char *p, const Node *n,
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

static void give(Score *s, const Node *n, const char *expr)
{
    const char **d = &s->dy[attn_node(s->t, n)];

    *d = *d ? strf(s->t->arena, "%s + (%s)", *d, expr) : expr;
}

static void backward(Score *s, const Node *n)
{
    int at = attn_node(s->t, n);
    const char *dy = strf(s->t->arena, "g%d", at);

    if (!s->dy[at])
        return;
    attn_line(&s->col, s->depth + 1, "const %s %s = %s;", float_type(s->t), dy,
              s->dy[at]);
    if (is_wanted(s->t, n))
        attn_line(&s->col, s->depth + 1, "ur%d[j] = ds != 0 ? %s : 0;",
                  (int)n->i, dy);
    if (term_of(s->t, n) >= 0)
        return;
    if (is_open(s->t, n)) {
        give(s, n->in[1], dy);
        return;
    }
    for (int k = 0; k < n->nin; k++) {
        const char *text = optab[n->op].gradkind == 'E'
                         ? optab[n->op].grad[k] : "dy";
        const char *r = reciprocal(s, n);
        if (depends(s, n->in[k]) && strcmp(text, "0"))
            give(s, n->in[k], r ? strf(s->t->arena, "%s * %s", dy, r)
                                : gradient(s, text, n, dy));
    }
}

static void store_gradients(Score *s)
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

/* From the score's value on: weight, gradient of the score, and back.        */
static void weigh(Score *s)
{
    static const char *const lines[2][3] = {
        { "const %s p = exp_%s(%s - lse[r]);",
          "const %s ds = p * (dp[j] - delta[r]);", "pr[j] = p;" },
        { "const %s p = weight_%s(in ? %s : -INFINITY, lse);",
          "const %s ds = p * (dp - delta);", "pr = p;" },
    };
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

static void tail(Score *s, int grad)
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

static Score score_new(Attn *t, int depth)
{
    size_t n = vec_len(t->body->node);
    Score s = { .t = t, .depth = depth };

    s.row.arena = s.col.arena = t->arena;
    s.val = alloc(t->arena, n * sizeof *s.val);
    s.dy = alloc(t->arena, n * sizeof *s.dy);
    s.dep = alloc(t->arena, n);
    value(&s, t->score);
    return s;
}

/* One pair: query q0 + r, key k0 + j, terms s0 s1 ..                         */
void attn_score1(Attn *t, int depth, int grad)
{
    Score s = score_new(t, depth);

    if (grad)
        weigh(&s);
    else
        attn_line(&s.col, depth + 1, "z = in ? %s : -INFINITY;",
                  s.val[attn_node(t, t->score)]);
    put(&t->o, "%s%s", s.row.s ? s.row.s : "", s.col.s);
}

void attn_score(Attn *t, int depth, int grad)
{
    Score s = score_new(t, depth);

    if (grad)
        weigh(&s);
    else
        attn_line(&s.col, depth + 1, "s0[j] = %s;",
                  s.val[attn_node(t, t->score)]);
    for (int i = 0; i < t->nterm; i++)
        attn_say(t, depth, "at_%s *restrict s%d = t%d + r * at_ld;", t->t,
                  i, i);
    put(&t->o, "%s", s.row.s ? s.row.s : "");
    attn_say(t, depth, "for (int j = 0; j < (int)seen; j++) {");
    put(&t->o, "%s", s.col.s);
    attn_say(t, depth, "}");
    tail(&s, grad);
}

/* ---- bounds of a mask ---------------------------------------------------- */

typedef struct Bounds { double lo, hi; } Bounds;    /* of key - query         */
typedef struct Linear { double q, k, c; int ok; } Linear;

static const Bounds everything = { -INFINITY, INFINITY };

/* The axis n's value is the position along, or null.                         */
static const Axis *axis_of_position(const Attn *t, const Node *n)
{
    if (n->op == Oarg) {
        const Node *x = t->n->in[n->i];
        while ((x->op == Ocast || x->op == Orotate) && x->in[0]->nd == 1)
            x = x->in[0];
        return x->nd == 1 && attn_isposition(x) ? n->dim[0].a : NULL;
    }
    return n->nd == 1 && attn_isposition(n) ? n->dim[0].a : NULL;
}

static Linear scaled(Linear x, double f)
{
    return (Linear){ x.q * f, x.k * f, x.c * f, x.ok };
}

static Linear plus(Linear x, Linear y)
{
    return (Linear){ x.q + y.q, x.k + y.k, x.c + y.c, x.ok && y.ok };
}

/* n as q * query + k * key + c.                                              */
static Linear line_of(const Attn *t, const Node *n)
{
    const Axis *a = axis_of_position(t, n);

    if (a)
        return (Linear){ a == t->query, a == t->key, 0,
                       a == t->query || a == t->key };
    switch (n->op) {
    case Oconst: return (Linear){ 0, 0, n->f, 1 };
    case Ocast: case Ospread: case Ostop_gradient:
        return line_of(t, n->in[0]);
    case Oneg: return scaled(line_of(t, n->in[0]), -1);
    case Oadd: return plus(line_of(t, n->in[0]), line_of(t, n->in[1]));
    case Osub:
        return plus(line_of(t, n->in[0]), scaled(line_of(t, n->in[1]), -1));
    default: return (Linear){ 0, 0, 0, 0 };
    }
}

static Bounds both(Bounds x, Bounds y)
{
    return (Bounds){ fmax(x.lo, y.lo), fmin(x.hi, y.hi) };
}

static Bounds either(Bounds x, Bounds y)
{
    return (Bounds){ fmin(x.lo, y.lo), fmax(x.hi, y.hi) };
}

/* a <= b (or a < b): differences d for which it can hold, whole numbers.     */
static Bounds ordered(const Attn *t, const Node *a, const Node *b, int strict)
{
    Linear x = plus(line_of(t, a), scaled(line_of(t, b), -1));

    if (!x.ok || x.k != -x.q || fabs(x.k) != 1)
        return everything;
    if (x.k > 0)                               /* d <= -c                     */
        return (Bounds){ -INFINITY, floor(-x.c - (strict ? 0.5 : 0)) };
    return (Bounds){ ceil(x.c + (strict ? 0.5 : 0)), INFINITY };
}

static Bounds where_holds(const Attn *t, const Node *c)
{
    const Node *a = c->nin > 0 ? c->in[0] : NULL;
    const Node *b = c->nin > 1 ? c->in[1] : NULL;

    switch (c->op) {
    case Ole: return ordered(t, a, b, 0);
    case Olt: return ordered(t, a, b, 1);
    case Oge: return ordered(t, b, a, 0);
    case Ogt: return ordered(t, b, a, 1);
    case Oeq: return both(ordered(t, a, b, 0), ordered(t, b, a, 0));
    case Oland: return both(where_holds(t, a), where_holds(t, b));
    case Olor: return either(where_holds(t, a), where_holds(t, b));
    case Ocast: case Ospread: return where_holds(t, a);
    default: return everything;
    }
}

/* Does the condition hold just where the bounds of it say?                   */
static int is_exact(const Attn *t, const Node *c)
{
    switch (c->op) {
    case Ole: case Olt: case Oge: case Ogt: {
        Bounds b = where_holds(t, c);
        return !isinf(b.lo) || !isinf(b.hi);
    }
    case Oland: return is_exact(t, c->in[0]) && is_exact(t, c->in[1]);
    case Ocast: case Ospread: return is_exact(t, c->in[0]);
    default: return 0;
    }
}

/* t->open: the text is for tiles in which every exact condition holds.       */
static int is_open(const Attn *t, const Node *n)
{
    return t->open && n->op == Owhere && is_exact(t, n->in[0]);
}

/* Anything but bounds of the tile that hides a pair.                         */
int attn_hides(const Attn *t)
{
    for (size_t i = 0; i < vec_len(t->body->node); i++) {
        const Node *n = t->body->node[i];
        if (n->op == Owhere && !is_open(t, n))
            return 1;
    }
    return !t->open;
}

/* Infinite of that sign; 0: positive and finite.                             */
static int is_const(const Node *n, double sign)
{
    while (n->op == Ocast || n->op == Ospread)
        n = n->in[0];
    if (n->op != Oconst)
        return 0;
    if (sign != 0)
        return isinf(n->f) && n->f * sign > 0;
    return n->f > 0 && isfinite(n->f);
}

/* Differences for which n can be anything but -inf.                          */
static Bounds seen(const Attn *t, const Node *n)
{
    switch (n->op) {
    case Owhere:
        if (is_const(n->in[2], -1))
            return both(where_holds(t, n->in[0]), seen(t, n->in[1]));
        return everything;
    case Oadd: return both(seen(t, n->in[0]), seen(t, n->in[1]));
    case Omul: case Odiv:
        return is_const(n->in[1], 0) ? seen(t, n->in[0]) : everything;
    case Ocast: case Ospread: return seen(t, n->in[0]);
    default: return everything;
    }
}

const char *attn_unseen(Attn *t, const char *q0, const char *q1,
                        const char *k0, const char *k1)
{
    Bounds b = seen(t, t->score);
    Text x = { .arena = t->arena };

    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_place(t, t->query);
    if (!isinf(b.hi))
        put(&x, "%s - (%s) > %.0f", attn_global(t, t->key, k0),
            attn_global(t, t->query, strf(t->arena, "%s - 1", q1)), b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s - (%s) < %.0f", x.s ? " || " : "",
            attn_global(t, t->key, strf(t->arena, "%s - 1", k1)),
            attn_global(t, t->query, q0), b.lo + 0.0);
    return x.s;
}

/* Text of the condition that all exact conditions of the score hold for queries
 * [q0, q1) and keys [k0, k1); null: there is none.                           */
const char *attn_allseen(Attn *t, const char *q0, const char *q1,
                         const char *k0, const char *k1)
{
    Bounds b = everything;
    Text x = { .arena = t->arena };

    for (size_t i = 0; i < vec_len(t->body->node); i++) {
        const Node *n = t->body->node[i];
        if (n->op == Owhere && is_exact(t, n->in[0]))
            b = both(b, where_holds(t, n->in[0]));
    }
    if (isinf(b.lo) && isinf(b.hi))
        return NULL;
    attn_place(t, t->query);
    if (!isinf(b.hi))
        put(&x, "%s - (%s) <= %.0f",
            attn_global(t, t->key, strf(t->arena, "%s - 1", k1)),
            attn_global(t, t->query, q0), b.hi + 0.0);
    if (!isinf(b.lo))
        put(&x, "%s%s - (%s) >= %.0f", x.s ? " && " : "",
            attn_global(t, t->key, k0),
            attn_global(t, t->query, strf(t->arena, "%s - 1", q1)), b.lo + 0.0);
    return x.s;
}

/* How many keys from k0 on the queries [q0, q0 + rows) can see; null: all.   */
const char *attn_seen(Attn *t, const char *q0, const char *rows,
                      const char *k0)
{
    Bounds b = seen(t, t->score);

    if (isinf(b.hi))
        return NULL;
    AttnPlace q = attn_place(t, t->query), k = attn_place(t, t->key);
    if (!q.two && !k.two)
        return strf(t->arena, "%s + %s + %s - (%s + %s) + %.0f", q.at, q0, rows,
                    k.at, k0, b.hi + 0.0);
    const char *last = attn_global(t, t->query, strf(t->arena, "%s + %s - 1",
                                                     q0, rows));
    if (!k.two)
        return strf(t->arena, "%s + 1 - (%s + %s) + %.0f", last, k.at, k0,
                    b.hi + 0.0);
    return strf(t->arena, "at_upto(%s + %.0f, %s, %s, %s) - %s", last,
                b.hi + 0.0, k.half, k.at, k.to, k0);
}

/* The share of all pairs of query and key that the mask lets through.        */
double attn_share(const Attn *t)
{
    Bounds b = seen(t, t->score);
    double nq = (double)t->score->dim[dim_of(t->score, t->query)].n;
    double nk = (double)t->score->dim[dim_of(t->score, t->key)].n, sum = 0;

    for (double q = 0; q < nq; q++)
        sum += fmax(0, fmin(nk - 1, q + b.hi) - fmax(0, q + b.lo) + 1);
    return sum / (nq * nk);
}
