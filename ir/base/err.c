/* err.c: errors. err() reports an error of the user: it prints the place, the
 * source line and notes with related places, and exits. die() reports an
 * internal error and aborts. A message:
 *
 *     mixtral.lua:42: error: dot: axis 'k' is 4096 in 'a' and 2048 in 'b'
 *         y = linear(h, w2)
 *     mixtral.lua:38: note: 'a' made here
 *         h = silu(linear(x, w1)) */
#include <unistd.h>
#include "base.h"

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

/* Returns the line's text without its indent; null: no such source or line. */
static const char *line_of(const Loc *loc, size_t *len)
{
    const SourceText *text = 0;
    for (size_t i = 0; i < vec_len(sources); i++)
        if (!strcmp(sources[i].file, loc->file))
            text = &sources[i];
    if (!text || loc->line < 1)
        return 0;
    const char *p = text->text, *end = text->text + text->len;
    for (int i = 1; i < loc->line; i++) {
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

static void put_source(Text *out, const Loc *loc)
{
    size_t n;
    const char *s = line_of(loc, &n);
    if (!s || !n)
        return;
    put(out, "    ");
    putn(out, s, n < 200 ? n : 200);
    put(out, "\n");
}

static void put_place(Text *out, const Loc *loc)
{
    if (loc && loc->file && loc->line)
        put(out, "%s:%d: ", loc->file, loc->line);
    else if (loc && loc->file)
        put(out, "%s: ", loc->file);
}

/* Appends `place: kind: message`, the source line and the callers' places. */
static void put_message(Text *out, const Loc *loc, const char *kind,
                        const char *fmt, va_list ap)
{
    put_place(out, loc);
    put(out, "%s: ", kind);
    char *s = vstrf(out->arena, fmt, ap);
    putn(out, s, strlen(s));
    put(out, "\n");
    if (!loc || !loc->file)
        return;
    put_source(out, loc);
    const Loc *below = loc;
    for (loc = loc->up; loc && loc->file; below = loc, loc = loc->up) {
        if (loc->file == below->file && loc->line == below->line)
            continue;
        put_place(out, loc);
        put(out, "note: called from here\n");
        put_source(out, loc);
    }
}

void note(const Loc *loc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!notes.arena)
        notes.arena = forever;
    put_message(&notes, loc, "note", fmt, ap);
    va_end(ap);
}

void err_hint(const char *word, const char *text)
{
    Hint h = { strf(forever, "'%s'", word), text };
    vec_push(forever, hints, h);
}

/* Returns message and pending notes as one text and clears the notes. */
static Text compose(const Loc *loc, const char *kind, const char *fmt,
                    va_list ap)
{
    Text out = { .arena = forever }, shown = { .arena = forever };
    unsigned char before = 0;
    put_message(&out, loc, kind, fmt, ap);
    if (notes.len)
        putn(&out, notes.s, notes.len);
    notes.len = 0;
    put_visible(&shown, out.s, out.len, &before);
    return shown;
}

/* Prints a message, in colour on a terminal: places bold, kinds coloured. */
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

void warn(const Loc *loc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Text out = compose(loc, "warning", fmt, ap);
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

void err(const Loc *loc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Text out = compose(loc, "error", fmt, ap);
    va_end(ap);
    for (size_t i = 0; loc && i < vec_len(hints); i++)
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

void err_internal(const Loc *loc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Text out = compose(loc, "internal error", fmt, ap);
    va_end(ap);
    put(&out, REPORT_LINE);
    err_status = INTERNAL_ERROR;
    end(out, err_status);
}

void die(const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fputs("internal error: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs("\n" REPORT_LINE, stderr);
    abort();
}
