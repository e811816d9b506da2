/* scalar_expr.c: the expression of an elementwise op in one element of each
 * operand, as a tree:
 *
 *     "a * sigmoid(a)"            Omul
 *                                /    \
 *                        operand 0    Osigmoid
 *                                        |
 *                                    operand 0
 *
 * Texts are C with names of operands, ops and kernel functions; in a gradient y
 * is the op's result and dy the result's gradient. Equal trees are one
 * object. */
#include <ctype.h>

#include "graph.h"

/* Longer texts precede their prefixes. */
static const ScalarWord words[] = {
    { "||", 2, 2, Olor },         { "&&", 3, 2, Oland },
    { "&", 4, 2, NOP },           { "==", 5, 2, Oeq },
    { "!=", 5, 2, One },          { "<=", 6, 2, Ole },
    { ">=", 6, 2, Oge },          { "<", 6, 2, Olt },
    { ">", 6, 2, Ogt },           { "+", 7, 2, Oadd },
    { "-", 7, 2, Osub },          { "*", 8, 2, Omul },
    { "/", 8, 2, Odiv },          { "%", 8, 2, NOP },
    { "-", 9, 1, Oneg },          { "!", 9, 1, Olnot },
    { "(uint64_t)", 9, 1, NOP },  { "(uint8_t)", 9, 1, NOP },
    { "rbf", 10, 1, NOP },        { "isfin", 10, 1, NOP },
    { "re4m3", 10, 1, NOP },      { "re5m2", 10, 1, NOP },
    { "re8m0", 10, 1, NOP },      { "normal", 10, 2, NOP },
    { "uniform", 10, 2, NOP },    { "uniform_at", 10, 4, NOP },
    { "uniform_of", 10, 4, NOP },
};
/* a ? b : c */
static const ScalarWord choice = { "?", 1, 3, Owhere };

/* ---- one object for equal trees ------------------------------------------ */

static Table *trees;

/* Returns the object of an equal tree. Trees are compared as bytes: ScalarExpr
 * has no padding. */
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

static const ScalarExpr *inner(const ScalarWord *word, Op op, int n,
                               const ScalarExpr *const *in)
{
    ScalarExpr e = { .kind = SCop, .word = word, .op = op, .n = n };

    memcpy(e.in, in, (size_t)n * sizeof *in);
    return shared(e);
}

/* ---- texts --------------------------------------------------------------- */

typedef struct ScalarReader {
    const char *s, *text;
    const char *names; /* names of operands: "c a b" */
} ScalarReader;

static const ScalarExpr *expression(ScalarReader *reader, int level);

static int eat(ScalarReader *reader, const char *word)
{
    size_t n = strlen(word);

    reader->s += strspn(reader->s, " ");
    if (strncmp(reader->s, word, n))
        return 0;
    reader->s += n;
    return 1;
}

static void need(ScalarReader *reader, const char *word)
{
    if (!eat(reader, word))
        die("expression '%s': no '%s' before '%s'", reader->text, word,
            reader->s);
}

/* Reads the next operator with nin operands if it has this level; else null. */
static const ScalarWord *next(ScalarReader *reader, int nin, int level)
{
    reader->s += strspn(reader->s, " ");
    for (int i = 0; i < countof(words); i++) {
        const ScalarWord *word = &words[i];
        size_t n = strlen(word->text);
        if (word->nin != nin || word->level == SCALARCALL ||
            strncmp(reader->s, word->text, n))
            continue;
        reader->s += word->level == level ? n : 0;
        return word->level == level ? word : NULL;
    }
    return NULL;
}

static const ScalarExpr *number(ScalarReader *reader)
{
    ScalarExpr e = { .kind = SCnumber, .op = NOP };
    char *end;

    e.number = strtod(reader->s, &end);
    e.literal = internn(reader->s, (size_t)(end - reader->s));
    reader->s = end;
    return shared(e);
}

static const ScalarExpr *named(const ScalarReader *reader, const char *w,
                               size_t n)
{
    const char *at = n == 1 ? strchr(reader->names, *w) : NULL;

    if (at)
        return leaf(SCoperand, (int)(at - reader->names) / 2);
    if (n == 1 && *w == 'y')
        return leaf(SCresult, 0);
    if (n != 2 || strncmp(w, "dy", 2))
        die("expression '%s': unknown name at '%s'", reader->text, w);
    return leaf(SCgrad, 0);
}

/* Returns the C operator of an op; null: none. */
static const ScalarWord *operator_of(Op op)
{
    for (int i = 0; i < countof(words); i++)
        if (words[i].op == op)
            return &words[i];
    return op == Owhere ? &choice : NULL;
}

static const ScalarWord *function(const char *name)
{
    const ScalarWord *w = &words[countof(words)];

    while (w-- > words)
        if (w->level == SCALARCALL && !strcmp(w->text, name))
            return w;
    return NULL;
}

static const ScalarExpr *call(ScalarReader *reader, const char *name)
{
    const ScalarExpr *in[SCALARIN] = { 0 };
    const ScalarWord *word = function(name);
    int n = 0, op = word ? NOP : op_named(name);

    if (!word && op < 0)
        die("expression '%s': no op '%s'", reader->text, name);
    do
        in[n++] = expression(reader, 1);
    while (n < SCALARIN && eat(reader, ","));
    need(reader, ")");
    if (n != (word ? word->nin : optab[op].nin))
        die("expression '%s': %s has not %d operands", reader->text, name, n);
    return inner(word ? word : operator_of((Op)op), (Op)op, n, in);
}

static const ScalarExpr *unary(ScalarReader *reader)
{
    const ScalarWord *w = next(reader, 1, SCALARCALL - 1);
    const ScalarExpr *e;
    size_t len = 0;

    if (w) {
        e = unary(reader);
        return inner(w, w->op, 1, &e);
    }
    if (eat(reader, "(")) {
        e = expression(reader, 1);
        need(reader, ")");
        return e;
    }
    if (isdigit((unsigned char)*reader->s))
        return number(reader);
    const char *s = reader->s;
    while (isalnum((unsigned char)s[len]) || s[len] == '_')
        len++;
    reader->s += len;
    return eat(reader, "(") ? call(reader, internn(s, len))
                            : named(reader, s, len);
}

/* Parses an expression of precedence `level` or higher: operators of one level
 * associate to the left, ?: to the right. */
static const ScalarExpr *expression(ScalarReader *reader, int level)
{
    const ScalarExpr *in[3];
    const ScalarWord *word;

    if (level == SCALARCALL - 1)
        return unary(reader);
    in[0] = expression(reader, level + 1);
    if (level == 1 && eat(reader, "?")) {
        in[1] = expression(reader, 1);
        need(reader, ":");
        in[2] = expression(reader, 1);
        return inner(&choice, Owhere, 3, in);
    }
    while ((word = next(reader, 2, level))) {
        in[1] = expression(reader, level + 1);
        in[0] = inner(word, word->op, 2, in);
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

/* ---- substitution -------------------------------------------------------- */

/* Trees that replace operands, result and gradient. */
typedef struct Meaning {
    const ScalarExpr *const *operand;
    const ScalarExpr *result, *grad;
} Meaning;

static const ScalarExpr *meant(const ScalarExpr *scalar, const Meaning *meaning)
{
    const ScalarExpr *in[SCALARIN];

    switch (scalar->kind) {
    case SCoperand: return meaning->operand[scalar->operand];
    case SCresult: return meaning->result;
    case SCgrad: return meaning->grad;
    case SCnumber: return scalar;
    default: break;
    }
    for (int i = 0; i < scalar->n; i++)
        in[i] = meant(scalar->in[i], meaning);
    return inner(scalar->word, scalar->op, scalar->n, in);
}

int scalar_is_primitive(Op op)
{
    return optab[op].expr && optab[op].expr->op == op;
}

const ScalarExpr *scalar_open(const ScalarExpr *scalar)
{
    const ScalarExpr *in[SCALARIN];

    if (scalar->kind != SCop)
        return scalar;
    for (int i = 0; i < scalar->n; i++)
        in[i] = scalar_open(scalar->in[i]);
    if (scalar->op == NOP || scalar->word || scalar_is_primitive(scalar->op))
        return inner(scalar->word, scalar->op, scalar->n, in);
    return scalar_open(
        meant(optab[scalar->op].expr, &(Meaning){ in, NULL, NULL }));
}

static int calls(const ScalarExpr *scalar)
{
    int yes = scalar->kind == SCop &&
              (!scalar->word || scalar->word->level == SCALARCALL);

    for (int i = 0; i < scalar->n; i++)
        yes |= calls(scalar->in[i]);
    return yes;
}

int op_calls(Op op)
{
    return optab[op].expr && calls(optab[op].expr);
}

/* ---- derivatives --------------------------------------------------------- */

/* Returns the gradient of operand k for gradient dy of e, whose value is y;
 * null: none. Ops in e pass it on by their rows. */
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
    const OpInfo *info = &optab[op];

    if (info->gradkind != 'A')
        return info->grad[k];
    return back(info->expr, leaf(SCresult, 0), leaf(SCgrad, 0), k);
}
