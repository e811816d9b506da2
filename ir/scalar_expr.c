/* scalar_expr.c: what an elementwise op computes of one element of each
 * operand, as a tree:
 *
 *     "a * sigmoid(a)"            Omul
 *                                /    \
 *                        operand 0    Osigmoid
 *                                        |
 *                                    operand 0
 *
 * Texts are C with the names of operands, of ops, and of what only kernels
 * call; in a gradient y is the op's result and dy what comes back to it. Equal
 * trees are one object. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ir.h"

/* Longer texts before those they begin with. */
static const ScalarWord words[] = {
    { "||", 2, 2, Olor },        { "&&", 3, 2, Oland },
    { "&", 4, 2, NOP },          { "==", 5, 2, Oeq },
    { "!=", 5, 2, One },         { "<=", 6, 2, Ole },
    { ">=", 6, 2, Oge },         { "<", 6, 2, Olt },
    { ">", 6, 2, Ogt },          { "+", 7, 2, Oadd },
    { "-", 7, 2, Osub },         { "*", 8, 2, Omul },
    { "/", 8, 2, Odiv },         { "%", 8, 2, NOP },
    { "-", 9, 1, Oneg },         { "!", 9, 1, Olnot },
    { "(uint64_t)", 9, 1, NOP }, { "(uint8_t)", 9, 1, NOP },
    { "rbf", 10, 1, NOP },       { "isfin", 10, 1, NOP },
    { "re4m3", 10, 1, NOP },     { "re5m2", 10, 1, NOP },
    { "re8m0", 10, 1, NOP },     { "normal", 10, 2, NOP },
    { "uniform", 10, 2, NOP },   { "uniform_at", 10, 4, NOP },
};
/* a ? b : c */
static const ScalarWord choice = { "?", 1, 3, Owhere };

/* ---- one object for equal trees ------------------------------------------ */

static Table *trees;

/* Compared as bytes: ScalarExpr has no gaps. */
static const ScalarExpr *shared(ScalarExpr e)
{
    uint64_t h = 0, word[sizeof e / 8];

    memcpy(word, &e, sizeof e);
    for (size_t i = 0; i < sizeof e / 8; i++)
        h = mix64(h, word[i]);
    if (!trees)
        trees = table_new(forever);
    for (;; h++) {
        void **slot = table_at(trees, h);
        if (*slot && memcmp(*slot, &e, sizeof e))
            continue;
        if (!*slot)
            *slot = memcpy(alloc(forever, sizeof e), &e, sizeof e);
        return *slot;
    }
}

static const ScalarExpr *leaf(ScalarKind kind, int operand)
{
    return shared((ScalarExpr){ .kind = kind, .operand = operand, .op = NOP });
}

static const ScalarExpr *inner(const ScalarWord *w, Op op, int n,
                               const ScalarExpr *const *in)
{
    ScalarExpr e = { .kind = SCop, .word = w, .op = op, .n = n };

    memcpy(e.in, in, (size_t)n * sizeof *in);
    return shared(e);
}

/* ---- texts --------------------------------------------------------------- */

typedef struct ScalarReader {
    const char *s, *text;
    const char *names; /* of operands: "c a b" */
} ScalarReader;

static const ScalarExpr *expression(ScalarReader *r, int level);

static int eat(ScalarReader *r, const char *word)
{
    size_t n = strlen(word);

    r->s += strspn(r->s, " ");
    if (strncmp(r->s, word, n))
        return 0;
    r->s += n;
    return 1;
}

static void need(ScalarReader *r, const char *word)
{
    if (!eat(r, word))
        die("expression '%s': no '%s' before '%s'", r->text, word, r->s);
}

/* The operator of that many operands that comes next, if it is of the level. */
static const ScalarWord *next(ScalarReader *r, int nin, int level)
{
    r->s += strspn(r->s, " ");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const ScalarWord *w = &words[i];
        size_t n = strlen(w->text);
        if (w->nin != nin || w->level == SCALARCALL ||
            strncmp(r->s, w->text, n))
            continue;
        r->s += w->level == level ? n : 0;
        return w->level == level ? w : NULL;
    }
    return NULL;
}

static const ScalarExpr *number(ScalarReader *r)
{
    ScalarExpr e = { .kind = SCnumber, .op = NOP };
    char *end;

    e.number = strtod(r->s, &end);
    e.literal = internn(r->s, (size_t)(end - r->s));
    r->s = end;
    return shared(e);
}

static const ScalarExpr *named(const ScalarReader *r, const char *w, size_t n)
{
    const char *at = n == 1 ? strchr(r->names, *w) : NULL;

    if (at)
        return leaf(SCoperand, (int)(at - r->names) / 2);
    if (n == 1 && *w == 'y')
        return leaf(SCresult, 0);
    if (n != 2 || strncmp(w, "dy", 2))
        die("expression '%s': unknown name at '%s'", r->text, w);
    return leaf(SCgrad, 0);
}

/* The operator of C that an op is; null: none. */
static const ScalarWord *operator_of(Op op)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].op == op)
            return &words[i];
    return op == Owhere ? &choice : NULL;
}

static const ScalarWord *function(const char *name)
{
    const ScalarWord *w = &words[sizeof words / sizeof *words];

    while (w-- > words)
        if (w->level == SCALARCALL && !strcmp(w->text, name))
            return w;
    return NULL;
}

static const ScalarExpr *call(ScalarReader *r, const char *name)
{
    const ScalarExpr *in[SCALARIN] = { 0 };
    const ScalarWord *w = function(name);
    int n = 0, op = w ? NOP : op_named(name);

    if (!w && op < 0)
        die("expression '%s': no op '%s'", r->text, name);
    do
        in[n++] = expression(r, 1);
    while (n < SCALARIN && eat(r, ","));
    need(r, ")");
    if (n != (w ? w->nin : optab[op].nin))
        die("expression '%s': %s has not %d operands", r->text, name, n);
    return inner(w ? w : operator_of((Op)op), (Op)op, n, in);
}

static const ScalarExpr *unary(ScalarReader *r)
{
    const ScalarWord *w = next(r, 1, SCALARCALL - 1);
    const ScalarExpr *e;
    size_t len = 0;

    if (w) {
        e = unary(r);
        return inner(w, w->op, 1, &e);
    }
    if (eat(r, "(")) {
        e = expression(r, 1);
        need(r, ")");
        return e;
    }
    if (isdigit((unsigned char)*r->s))
        return number(r);
    const char *s = r->s;
    while (isalnum((unsigned char)s[len]) || s[len] == '_')
        len++;
    r->s += len;
    return eat(r, "(") ? call(r, internn(s, len)) : named(r, s, len);
}

/* What binds at least as closely as `level`: operators of one level from left
 * to right, a choice from right to left. */
static const ScalarExpr *expression(ScalarReader *r, int level)
{
    const ScalarExpr *in[3];
    const ScalarWord *w;

    if (level == SCALARCALL - 1)
        return unary(r);
    in[0] = expression(r, level + 1);
    if (level == 1 && eat(r, "?")) {
        in[1] = expression(r, 1);
        need(r, ":");
        in[2] = expression(r, 1);
        return inner(&choice, Owhere, 3, in);
    }
    while ((w = next(r, 2, level))) {
        in[1] = expression(r, level + 1);
        in[0] = inner(w, w->op, 2, in);
    }
    return in[0];
}

const ScalarExpr *scalar_parse(const char *text, const char *names)
{
    ScalarReader r = { text, text, names };
    const ScalarExpr *e = expression(&r, 1);

    if (*r.s)
        die("expression '%s': nothing may stand at '%s'", text, r.s);
    return e;
}

/* ---- made of others ------------------------------------------------------ */

/* e with what stands for its operands, result and gradient. */
typedef struct Meaning {
    const ScalarExpr *const *operand;
    const ScalarExpr *result, *grad;
} Meaning;

static const ScalarExpr *meant(const ScalarExpr *e, const Meaning *m)
{
    const ScalarExpr *in[SCALARIN];

    switch (e->kind) {
    case SCoperand: return m->operand[e->operand];
    case SCresult: return m->result;
    case SCgrad: return m->grad;
    case SCnumber: return e;
    default: break;
    }
    for (int i = 0; i < e->n; i++)
        in[i] = meant(e->in[i], m);
    return inner(e->word, e->op, e->n, in);
}

int scalar_is_primitive(Op op)
{
    return optab[op].expr && optab[op].expr->op == op;
}

const ScalarExpr *scalar_open(const ScalarExpr *e)
{
    const ScalarExpr *in[SCALARIN];

    if (e->kind != SCop)
        return e;
    for (int i = 0; i < e->n; i++)
        in[i] = scalar_open(e->in[i]);
    if (e->op == NOP || e->word || scalar_is_primitive(e->op))
        return inner(e->word, e->op, e->n, in);
    return scalar_open(meant(optab[e->op].expr, &(Meaning){ in, NULL, NULL }));
}

static int calls(const ScalarExpr *e)
{
    int yes = e->kind == SCop && (!e->word || e->word->level == SCALARCALL);

    for (int i = 0; i < e->n; i++)
        yes |= calls(e->in[i]);
    return yes;
}

int op_calls(Op op)
{
    return optab[op].expr && calls(optab[op].expr);
}

/* ---- derivatives --------------------------------------------------------- */

/* What comes to operand k when dy comes to e, whose value is y; null: nothing.
 * The rows of the ops in e say how each passes it on. */
static const ScalarExpr *back(const ScalarExpr *e, const ScalarExpr *y,
                              const ScalarExpr *dy, int k)
{
    const ScalarExpr *sum = NULL;

    if (e->kind == SCoperand)
        return e->operand == k ? dy : NULL;
    for (int i = 0; i < e->n; i++) {
        const ScalarExpr *d = e->op == NOP ? NULL : scalar_grad(e->op, i);
        if (!d)
            continue;
        d = meant(d, &(Meaning){ e->in, y, dy });
        d = back(e->in[i], e->in[i], d, k);
        if (sum && d)
            d = inner(operator_of(Oadd), Oadd, 2,
                      (const ScalarExpr *[]){ sum, d });
        sum = d ? d : sum;
    }
    return sum;
}

const ScalarExpr *scalar_grad(Op op, int k)
{
    const OpInfo *o = &optab[op];

    if (o->gradkind != 'A')
        return o->grad[k];
    return back(o->expr, leaf(SCresult, 0), leaf(SCgrad, 0), k);
}
