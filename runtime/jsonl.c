/* jsonl.c: the texts of a .jsonl or .jsonl.gz file as one stream of bytes, a
 * zero byte after each: {"text": "..."} on every line.                       */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime.h"

enum { CHUNK = 1 << 16 };

typedef struct Stream {
    gzFile f;                     /* reads plain files too                    */
    char *line;                   /* malloc'd, the current line               */
    size_t len, cap;
    uint8_t *out;
    size_t n, room;
    int64_t number;               /* of the line, from 1                      */
} Stream;

static void *grown(void *p, size_t n)
{
    void *q = realloc(p, n);

    if (!q)
        err(NULL, "out of memory: %zu bytes", n);
    return q;
}

/* The next line without its end; 0: no more. */
static int next_line(Stream *s)
{
    s->len = 0;
    for (;;) {
        if (s->cap - s->len < CHUNK)
            s->line = grown(s->line, s->cap = 2 * s->cap + CHUNK);
        if (!gzgets(s->f, s->line + s->len, CHUNK))
            break;
        s->len += strlen(s->line + s->len);
        if (s->len && s->line[s->len - 1] == '\n')
            break;
    }
    s->number++;
    while (s->len && (s->line[s->len - 1] == '\n' ||
                      s->line[s->len - 1] == '\r'))
        s->line[--s->len] = 0;
    return s->len > 0 || !gzeof(s->f);
}

static const char *take_text(Arena *a, Stream *s)
{
    json_error_t e;
    json_t *j = json_loadb(s->line, s->len, 0, &e);
    const json_t *text = json_object_get(j, "text");
    size_t n = json_string_length(text);

    if (!json_is_string(text)) {
        const char *why = j ? "has no \"text\"" : strf(a, "%s", e.text);
        json_decref(j);
        return strf(a, "line %lld: %s", (long long)s->number, why);
    }
    if (s->room - s->n < n + 1)
        s->out = grown(s->out, s->room = 2 * s->room + n + 1);
    memcpy(s->out + s->n, json_string_value(text), n);
    s->n += n;
    s->out[s->n++] = 0;
    json_decref(j);
    return NULL;
}

/* Null, or what is wrong with the file. The bytes live until the end. */
const char *jsonl_read(Arena *a, const char *path, const uint8_t **data,
                       int64_t *n)
{
    Stream s = {.f = gzopen(path, "rb")};
    const char *why = s.f ? NULL : "cannot be opened";
    int code = Z_OK;

    while (!why && next_line(&s))
        if (s.len)
            why = take_text(a, &s);
    if (s.f && !why) {
        gzerror(s.f, &code);
        why = code == Z_OK || code == Z_STREAM_END ? NULL : "is damaged";
    }
    if (s.f)
        gzclose(s.f);
    free(s.line);
    *data = s.out;
    *n = (int64_t)s.n;
    return why;
}
