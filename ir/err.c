/* err.c: two kinds of failure. err() is the user's: it names the place, shows
 * the source line and the other ends (notes), and exits. die() is ours: it says
 * so and aborts. Message shape:
 *
 *     mixtral.lua:42: error: dot: axis 'k' is 4096 in 'a' and 2048 in 'b'
 *         y = linear(h, w2)
 *     mixtral.lua:38: note: 'a' made here
 *         h = silu(linear(x, w1)) */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "plan.h"

int err_status = 1;
void (*err_hook)(const char *msg);

typedef struct SourceText {
    const char *file, *text;
    size_t len;
} SourceText;

typedef struct Hint {
    const char *word, *text;
} Hint;

static SourceText *sources; /* vec */
static Hint *hints;         /* vec */
static Text notes = { .arena = 0 };

void source_add(const char *file, const char *text, size_t len)
{
    char *copy = alloc(forever, len + 1);
    memcpy(copy, text, len);
    SourceText s = { intern(file), copy, len };
    for (size_t i = 0; i < vec_len(sources); i++)
        if (sources[i].file == s.file) {
            sources[i] = s;
            return;
        }
    vec_push(forever, sources, s);
}

/* The line's text without its indent; null: no such source or line. */
static const char *line_of(const Loc *l, size_t *len)
{
    const SourceText *s = 0;
    for (size_t i = 0; i < vec_len(sources); i++)
        if (!strcmp(sources[i].file, l->file))
            s = &sources[i];
    if (!s || l->line < 1)
        return 0;
    const char *p = s->text, *end = s->text + s->len;
    for (int i = 1; i < l->line; i++) {
        p = memchr(p, '\n', (size_t)(end - p));
        if (!p)
            return 0;
        p++;
    }
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    end = nl ? nl : end;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (end[-1] == '\r' || end[-1] == ' '))
        end--;
    *len = (size_t)(end - p);
    return p;
}

static void put_source(Text *out, const Loc *l)
{
    size_t n;
    const char *s = line_of(l, &n);
    if (!s || !n)
        return;
    put(out, "    ");
    putn(out, s, n < 200 ? n : 200);
    put(out, "\n");
}

static void put_place(Text *out, const Loc *l)
{
    if (l && l->file && l->line)
        put(out, "%s:%d: ", l->file, l->line);
    else if (l && l->file)
        put(out, "%s: ", l->file);
}

/* `place: kind: message`, the source line, then who called. */
static void put_message(Text *out, const Loc *l, const char *kind,
                        const char *fmt, va_list ap)
{
    put_place(out, l);
    put(out, "%s: ", kind);
    char *s = vstrf(out->arena, fmt, ap);
    putn(out, s, strlen(s));
    put(out, "\n");
    if (!l || !l->file)
        return;
    put_source(out, l);
    const Loc *below = l;
    for (l = l->up; l && l->file; below = l, l = l->up) {
        if (l->file == below->file && l->line == below->line)
            continue;
        put_place(out, l);
        put(out, "note: called from here\n");
        put_source(out, l);
    }
}

void note(const Loc *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!notes.arena)
        notes.arena = forever;
    put_message(&notes, l, "note", fmt, ap);
    va_end(ap);
}

void err_hint(const char *word, const char *text)
{
    Hint h = { strf(forever, "'%s'", word), text };
    vec_push(forever, hints, h);
}

/* Message and pending notes as one text; the notes are then gone. */
static Text compose(const Loc *l, const char *kind, const char *fmt, va_list ap)
{
    Text out = { .arena = forever };
    put_message(&out, l, kind, fmt, ap);
    if (notes.len)
        putn(&out, notes.s, notes.len);
    notes.len = 0;
    return out;
}

/* With colours where people read it: places bold, kinds in colour. */
static void show(const char *s)
{
    static const struct {
        const char *kind, *colour;
    } kinds[] = { { "error: ", "31" },
                  { "warning: ", "35" },
                  { "note: ", "36" } };
    if (!isatty(2) || getenv("NO_COLOR")) {
        fputs(s, stderr);
        return;
    }
    for (size_t n; *s; s += n) {
        const char *at = NULL;
        n = strcspn(s, "\n");
        n += s[n] == '\n';
        for (size_t i = 0; i < 3 && !at; i++) {
            at = strstr(s, kinds[i].kind);
            if (!at || at >= s + n || (at > s && at[-1] != ' '))
                at = NULL;
            else
                fprintf(stderr, "\033[1m%.*s\033[%sm%s\033[0m", (int)(at - s),
                        s, kinds[i].colour, kinds[i].kind);
            if (at)
                at += strlen(kinds[i].kind);
        }
        at = at ? at : s;
        fwrite(at, 1, (size_t)(s + n - at), stderr);
    }
}

void warn(const Loc *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Text out = compose(l, "warning", fmt, ap);
    va_end(ap);
    show(out.s);
}

static _Noreturn void end(Text out, int status)
{
    if (err_hook)
        err_hook(out.s);
    fflush(stdout);
    show(out.s);
    exit(status);
}

void err(const Loc *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Text out = compose(l, "error", fmt, ap);
    va_end(ap);
    for (size_t i = 0; l && i < vec_len(hints); i++)
        if (strstr(out.s, hints[i].word))
            put(&out, "note: %s\n", hints[i].text);
    end(out, err_status);
}

void err_usage(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Text out = compose(NULL, "error", fmt, ap);
    va_end(ap);
    end(out, 2);
}

void die(const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fputs("internal error: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs("\n(a bug in this program, not in the model)\n", stderr);
    abort();
}
