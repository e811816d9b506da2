/* shrink.c: a model that fails becomes a smaller one that fails alike.
 * Steps change the text, and a change stays when the compiler is still wrong:
 * what is no model any more, the front end refuses. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "spans.h"

enum { MOSTTRIES = 3000 };

typedef struct Shrink {
    Arena *a;
    char *text;
    const char *file; /* of what is tried */
    Report *r;
    unsigned which;
    Check c;
    Outcome was;
    int tries, params;
} Shrink;

/* ---- does it still fail? ------------------------------------------------- */

/* As it did: a difference that is no rounding, or the same message. */
static int alike(const Outcome *was, const Outcome *is)
{
    if (was->v != is->v)
        return 0;
    if (was->v == WRONG)
        return is->apart >= (was->apart < 1e4 ? was->apart / 10 : 1e3);
    return was->v == SLOW || same_message(was->what, is->what);
}

static int try(Shrink *s, const char *text)
{
    if (s->tries >= MOSTTRIES || !strcmp(text, s->text))
        return 0;
    s->tries++;
    write_all(s->file, OUTown, text, strlen(text));
    examine(s->file, s->which, s->r);
    if (!alike(&s->was, &s->r->o[s->c]))
        return 0;
    s->text = strf(s->a, "%s", text);
    return 1;
}

/* ---- lines --------------------------------------------------------------- */

static int line_count(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static const char *line_at(const char *text, int i)
{
    while (i-- > 0)
        text += strcspn(text, "\n") + 1;
    return text;
}

static char *without_lines(Arena *a, const char *text, int from, int n)
{
    int begin = (int)(line_at(text, from) - text);
    int end = (int)(line_at(text, from + n) - text);

    return replaced(a, text, begin, end, "");
}

static int is_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static int word_in(const char *text, const char *w, size_t n)
{
    for (const char *s = text; (s = memmem(s, strlen(s), w, n)); s++)
        if ((s == text || !is_letter(s[-1])) && !is_letter(s[n]))
            return 1;
    return 0;
}

/* Does nothing after the line read the locals it makes? */
static int is_dead(const char *text, int i)
{
    const char *s = line_at(text, i), *after = line_at(text, i + 1);

    s += strspn(s, " ");
    if (strncmp(s, "local ", 6) || !strncmp(s, "local function", 14))
        return 0;
    for (s += 6; *s && *s != '=' && *s != '\n';) {
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"
                             "WXYZ0123456789_");
        if (n && word_in(after, s, n))
            return 0;
        s += n ? n : 1;
    }
    return 1;
}

static char *without_dead(Arena *a, const char *text)
{
    char *s = strf(a, "%s", text);

    for (int i = line_count(s); i-- > 0;)
        if (is_dead(s, i))
            s = without_lines(a, s, i, 1);
    return s;
}

/* Changed text, and what nobody reads any more left out. */
static int try_clean(Shrink *s, const char *text)
{
    return try(s, without_dead(s->a, text)) || try(s, text);
}

static int fewer_lines(Shrink *s)
{
    int did = 0;

    for (int n = line_count(s->text) / 2; n > 0; n /= 2)
        for (int i = line_count(s->text) - n; i >= 0; i--)
            if (try_clean(s, without_lines(s->a, s->text, i, n)))
                did = 1;
    return did;
}

/* Every reader of the local gets its expression, and the line goes. Null: it is
 * no local of one name, or one of several readers of more than a name. */
static char *inlined(Arena *a, const char *text, int i)
{
    const char *s = line_at(text, i), *after = line_at(text, i + 1);
    char name[32];
    int n = 0, readers = 0;

    if (sscanf(s, " local %31[a-z0-9A-Z_] = %n", name, &n) != 1 || !n)
        return NULL;
    char *value = strf(a, "%.*s", (int)strcspn(s + n, "\n"), s + n);
    int plain =
        value[strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789")] == 0;
    size_t len = strlen(name);
    Text t = { .arena = a };
    putn(&t, text, (size_t)(s - text));
    for (const char *p = after; *p; p++) {
        int here =
            !strncmp(p, name, len) && !is_letter(p[-1]) && !is_letter(p[len]);
        readers += here;
        putn(&t, here ? value : p, here ? strlen(value) : 1);
        p += here ? len - 1 : 0;
    }
    return readers == 1 || plain ? t.s : NULL;
}

static int fewer_names(Shrink *s)
{
    int did = 0;

    for (int i = line_count(s->text); i-- > 0;) {
        const char *text = inlined(s->a, s->text, i);
        if (text && strlen(text) < strlen(s->text) + 60)
            did |= try(s, text);
    }
    return did;
}

/* ---- expressions --------------------------------------------------------- */

typedef struct Shape {
    Shrink *s;
    char *out; /* shared: "axes"; empty: none */
} Shape;

enum { SHAPETEXT = 400 };

static void find_shape(void *ctx)
{
    const Shape *x = ctx;
    Graph *g = trace(x->s->file, opts_new(forever), TRACEquiet).g;
    Text t = { .arena = forever };

    put(&t, "%s", "");
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op != Ooutput || strcmp(n->at.output.name, "shape") ||
            dtypes[n->in[0]->dt].kind != 'f')
            continue;
        for (int d = 0; d < n->in[0]->nd; d++)
            if (strcmp(n->in[0]->dim[d].a->name, "micro"))
                put(&t, " %s=%lld", n->in[0]->dim[d].a->name,
                    (long long)n->in[0]->dim[d].n);
        snprintf(x->out, SHAPETEXT, ".%s", t.s);
    }
}

/* " a=3 b=2" of an expression that is a real tensor; null: it is not. */
static const char *shape_of(Shrink *s, const Phrase *e)
{
    static char *shared;
    Outcome o = { 0 };

    if (!shared)
        shared = shared_memory(SHAPETEXT);
    *shared = 0;
    const char *text = replaced(
        s->a, s->text, e->from, e->to,
        strf(s->a, "shape_(%.*s)", e->to - e->from, s->text + e->from));
    text = strf(s->a,
                "local function shape_(x) output(\"shape\", x) return x "
                "end\n%s",
                text);
    write_all(s->file, OUTown, text, strlen(text));
    apart(find_shape, &(Shape){ s, shared }, 10, &o);
    return *shared ? strf(s->a, "%s", shared + 1) : NULL;
}

/* The text with those axes declared. */
static char *declared(Arena *a, const char *text, const char *shape)
{
    const char *open = strstr(text, "axes {");
    char *s = strf(a, "%s", text);

    while (open && *(shape += strspn(shape, " "))) {
        size_t n = strcspn(shape, "=");
        const char *close = strchr(open, '}');
        char *all = strf(a, "%.*s", close ? (int)(close - open) : 0, open);
        size_t size = strcspn(shape, " ");
        if (close && !word_in(all, shape, n))
            s = replaced(a, s, (int)(open - text) + 6, (int)(open - text) + 6,
                         strf(a, " %.*s,", (int)size, shape));
        shape += size;
    }
    return s;
}

static char *axes_of(Arena *a, const char *shape)
{
    Text t = { .arena = a };

    put(&t, "%s", "");
    while (*(shape += strspn(shape, " "))) {
        size_t n = strcspn(shape, "=");
        put(&t, "%s%.*s", t.len ? " " : "", (int)n, shape);
        shape += strcspn(shape, " ");
    }
    return t.s;
}

/* In place of an expression a parameter of its shape. */
static int as_param(Shrink *s, const Phrase *e)
{
    if (!strncmp(s->text + e->from, "param(", 6) || e->to - e->from < 4)
        return 0;
    const char *shape = shape_of(s, e);
    if (!shape)
        return 0;
    char *text = replaced(s->a, s->text, e->from, e->to,
                          strf(s->a, "param(\"x%d\", \"%s\", normal(1))",
                               s->params++, axes_of(s->a, shape)));
    return try_clean(s, declared(s->a, text, shape));
}

/* In place of an expression one of its parts. */
static int as_part(Shrink *s, const Phrase *v, const Phrase *e)
{
    for (int k = 0; k < e->npart; k++) {
        const Phrase *p = &v[e->part[k]];
        char *part = strf(s->a, "%.*s", p->to - p->from, s->text + p->from);
        if (try_clean(s, replaced(s->a, s->text, e->from, e->to, part)))
            return 1;
    }
    return 0;
}

static int simpler(Shrink *s, int params)
{
    int did = 0;

    for (int i = (int)vec_len(spans_of(s->a, s->text)); i-- > 0;) {
        Phrase *v = spans_of(s->a, s->text);
        if (i < (int)vec_len(v) &&
            (as_part(s, v, &v[i]) || (params && as_param(s, &v[i])))) {
            did = 1;
            i = (int)vec_len(spans_of(s->a, s->text)) < i + 2
                    ? (int)vec_len(spans_of(s->a, s->text))
                    : i + 2;
        }
    }
    return did;
}

/* ---- axes ---------------------------------------------------------------- */

/* The i-th "name=size" of axes { }; 0: past the end. */
static int axis_entry(const char *text, int i, int *from, int *len, int *size)
{
    const char *p = strstr(text, "axes {");

    if (!p)
        return 0;
    p += 6;
    for (;;) {
        p += strspn(p, " ,\n");
        if (*p == '}' || !*p)
            return 0;
        if (i-- == 0)
            break;
        p += strcspn(p, ",}");
    }
    *from = (int)(p - text);
    *len = (int)strcspn(p, " ,}=");
    *size = atoi(p + strcspn(p, "=") + 1);
    return 1;
}

static int try_size(Shrink *s, int from, int len, int size, int n)
{
    char *name = strf(s->a, "%.*s", len, s->text + from);
    int end = from + (int)strcspn(s->text + from, ",}");

    return n > 0 && n < size &&
           try(s, replaced(s->a, s->text, from, end,
                           strf(s->a, "%s=%d", name, n)));
}

static int smaller_axes(Shrink *s)
{
    int from, len, size, did = 0;

    for (int i = 0; axis_entry(s->text, i, &from, &len, &size); i++)
        did |= try_size(s, from, len, size, 1) ||
               try_size(s, from, len, size, 2) ||
               try_size(s, from, len, size, size / 2) ||
               try_size(s, from, len, size, size - 1);
    return did;
}

/* No quoted text names the axis. */
static char *without_axis(Arena *a, const char *text, const char *name)
{
    size_t n = strlen(name);
    Text t = { .arena = a };
    int inside = 0;

    for (const char *p = text; *p;) {
        inside ^= *p == '"';
        if (inside && !strncmp(p, name, n) && strchr("\" ", p[-1]) &&
            strchr("\" ", p[n])) {
            p += n + (p[n] == ' ');
            continue;
        }
        putn(&t, p++, 1);
    }
    return t.s;
}

static int fewer_axes(Shrink *s)
{
    int from, len, size, did = 0;

    for (int i = 0; axis_entry(s->text, i, &from, &len, &size); i++) {
        char *name = strf(s->a, "%.*s", len, s->text + from);
        int end = from + (int)strcspn(s->text + from, ",}");
        end += s->text[end] == ',';
        end += s->text[end] == ' ';
        char *text = replaced(s->a, s->text, from, end, "");
        if (try(s, text) || try(s, without_axis(s->a, text, name))) {
            did = 1;
            i--;
        }
    }
    return did;
}

/* Numbers need the reference; what stops the compiler does not. */
static unsigned needed(Check c, const Outcome *o)
{
    return 1u << c | (o->v == WRONG) << CKreference |
           (checktab[c].how == BITS) << CKhost;
}

char *shrink(Arena *a, const char *text, const char *file, Check c, Report *r)
{
    Shrink s = { .a = a, .file = file, .r = r, .c = c, .which = ALLCHECKS };
    int did;

    s.text = strf(a, "%s", text);
    write_all(file, OUTown, text, strlen(text));
    examine(file, s.which, r);
    s.was = r->o[c];
    s.which = needed(c, &s.was);
    if (!outcome_bad(&s.was))
        return s.text;
    do {
        did = fewer_lines(&s);
        did |= simpler(&s, 1);
        did |= smaller_axes(&s);
        did |= fewer_axes(&s);
        did |= fewer_names(&s);
    } while (did && s.tries < MOSTTRIES);
    write_all(file, OUTown, s.text, strlen(s.text));
    examine(file, ALLCHECKS, r);
    return s.text;
}
