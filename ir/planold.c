/* planold.c: what every format of plans has: keys, sources, a hash. A plan that
 * this program does not execute is compiled anew from them. */
#include <string.h>

#include "plan.h"

int64_t plan_format(const char *text, size_t len)
{
    static const char magic[] = "pleat-plan ";
    size_t n = sizeof magic - 1;
    int64_t v = 0;

    if (len < n || memcmp(text, magic, n))
        return 0;
    for (; n < len && n < 24 && lex_isdigit(text[n]); n++)
        v = 10 * v + text[n] - '0';
    return v;
}

/* To the end of a line that is not read; *depth: of braces. */
static void skip_line(Lex *x, int *depth)
{
    const char *from = x->p;

    while (x->p < x->end && *x->p != '\n')
        x->p++;
    if (x->p == from)
        return;
    *depth += x->p[-1] == '{';
    *depth -= x->p == from + 1 && *from == '}';
}

static void read_line(Lex *x, Plan *p, int *depth)
{
    if (*depth) {
        skip_line(x, depth);
    } else if (lex_take(x, "model")) {
        p->model = lex_word(x);
        p->target = lex_word(x);
    } else if (lex_take(x, "option")) {
        const char *key = lex_word(x);
        opts_set(p->opts, key, lex_word(x), NULL);
    } else if (lex_take(x, "source")) {
        Source s = { .file = lex_word(x) };
        s.text = lex_text(x);
        vec_push(x->arena, p->source, s);
    } else if (lex_take(x, "kernel")) {
        lex_word(x);
        lex_text(x);
    } else if (lex_take(x, "prelude")) {
        lex_text(x);
    } else {
        skip_line(x, depth);
    }
}

Plan *plan_rest(Arena *a, const char *text, size_t len, const char *name)
{
    Loc l = { intern(name), 0, NULL };
    size_t n = plan_verify(text, len, &l);
    Lex x = { .arena = a, .p = text, .end = text + n, .file = l.file };
    Plan *p = alloc(a, sizeof *p);
    int depth = 0;

    p->opts = opts_new(a);
    while (lex_next(&x))
        read_line(&x, p, &depth);
    p->nsource = (int)vec_len(p->source);
    return p;
}
