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
    char *buf;                    /* malloc'd; the current line is in it      */
    size_t at, end, cap;          /* read so far, and not yet taken           */
    uint8_t *out;
    size_t n, room;
    int64_t *ends; size_t docs, slots;
    int64_t number;               /* of the line, from 1                      */
} Stream;

static void *grown(void *p, size_t n)
{
    void *q = realloc(p, n);

    if (!q)
        err(NULL, "out of memory: %zu bytes", n);
    return q;
}

/* More bytes behind those not yet taken; 0: there are none. */
static int more(Stream *s)
{
    memmove(s->buf, s->buf + s->at, s->end - s->at);
    s->end -= s->at;
    s->at = 0;
    if (s->cap - s->end < CHUNK)
        s->buf = grown(s->buf, s->cap = 2 * s->cap + CHUNK);
    int k = gzread(s->f, s->buf + s->end, CHUNK);
    s->end += k > 0 ? (size_t)k : 0;
    return k > 0;
}

/* The next line without its end, which may be missing at the file's end; null:
 * no more.                                                                   */
static const char *next_line(Stream *s, size_t *len)
{
    size_t seen = 0;
    char *nl = NULL;

    for (;;) {
        if (s->end - s->at > seen)
            nl = memchr(s->buf + s->at + seen, '\n', s->end - s->at - seen);
        seen = s->end - s->at;
        if (nl || !more(s))
            break;
    }
    if (!nl && s->at == s->end)
        return NULL;
    const char *line = s->buf + s->at;
    *len = nl ? (size_t)(nl - line) : s->end - s->at;
    s->at += *len + (nl != NULL);
    s->number++;
    while (*len && line[*len - 1] == '\r')
        --*len;
    return line;
}

static void keep(Stream *s, const char *text, size_t n)
{
    if (s->room - s->n < n + 1)
        s->out = grown(s->out, s->room = 2 * s->room + n + 1);
    if (n)
        memcpy(s->out + s->n, text, n);
    s->n += n;
    s->out[s->n++] = 0;
    if (s->docs == s->slots)
        s->ends = grown(s->ends, sizeof *s->ends *
                        (s->slots = 2 * s->slots + 64));
    s->ends[s->docs++] = (int64_t)s->n;
}

static const char *take_text(Arena *a, Stream *s, const char *line, size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(line, len, JSON_ALLOW_NUL, &e);
    const json_t *text = json_object_get(j, "text");
    const char *why = NULL;

    if (json_is_string(text))
        keep(s, json_string_value(text), json_string_length(text));
    else
        why = strf(a, "line %lld: %s", (long long)s->number,
                   j ? "has no \"text\"" : e.text);
    json_decref(j);
    return why;
}

/* Null, or what is wrong with the file. */
const char *jsonl_read(Arena *a, const char *path, uint8_t **data, int64_t *n,
                       int64_t **ends, int64_t *docs)
{
    Stream s = {.f = gzopen(path, "rb")};
    const char *why = s.f ? NULL : "cannot be opened", *line;
    size_t len;
    int code = Z_OK;

    while (!why && (line = next_line(&s, &len)))
        if (len)
            why = take_text(a, &s, line, len);
    if (s.f) {
        gzerror(s.f, &code);
        if (code != Z_OK && code != Z_STREAM_END)
            why = "is damaged";
        gzclose(s.f);
    }
    if (!why && !s.docs)
        why = "has no texts";
    free(s.buf);
    *data = s.out;
    *n = (int64_t)s.n;
    *ends = s.ends;
    *docs = (int64_t)s.docs;
    return why;
}
