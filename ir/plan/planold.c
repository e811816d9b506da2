/* planold.c: the parts common to all formats of plans: keys, sources, a hash. A
 * plan of another format is compiled again from them. */
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

/* Skips a line; *depth: nesting of braces. */
static void skip_line(Lex *lex, int *depth)
{
    const char *from = lex->p;

    while (lex->p < lex->end && *lex->p != '\n')
        lex->p++;
    if (lex->p == from)
        return;
    *depth += lex->p[-1] == '{';
    *depth -= lex->p == from + 1 && *from == '}';
}

static void read_line(Lex *lex, Plan *p, int *depth)
{
    if (*depth) {
        skip_line(lex, depth);
    } else if (lex_take(lex, "model")) {
        p->model = lex_word(lex);
        p->target = lex_word(lex);
    } else if (lex_take(lex, "option")) {
        const char *key = lex_word(lex);
        opts_set(p->opts, key, lex_word(lex), NULL);
    } else if (lex_take(lex, "source")) {
        Source s = { .file = lex_word(lex) };
        s.text = lex_text(lex);
        vec_push(lex->arena, p->source, s);
    } else if (lex_take(lex, "kernel")) {
        lex_word(lex);
        lex_text(lex);
    } else if (lex_take(lex, "prelude") || lex_take(lex, "host")) {
        lex_text(lex);
    } else {
        skip_line(lex, depth);
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
