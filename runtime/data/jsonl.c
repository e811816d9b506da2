/* jsonl.c: the texts of a .jsonl or .jsonl.gz file as one stream of bytes, a
 * zero byte after each: {"text": "..."} on every line. */
#include <jansson.h>
#include <string.h>

#include "data.h"

typedef struct Stream {
    TextLines in;
    uint8_t *out;
    size_t n, room;
    int64_t *ends;
    size_t docs, slots;
} Stream;

static void keep(Stream *s, const char *text, size_t n)
{
    if (s->room - s->n < n + 1)
        s->out = enlarge(s->out, s->room = 2 * s->room + n + 1);
    if (n)
        memcpy(s->out + s->n, text, n);
    s->n += n;
    s->out[s->n++] = 0;
    if (s->docs == s->slots)
        s->ends =
            enlarge(s->ends, sizeof *s->ends * (s->slots = 2 * s->slots + 64));
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
        why = strf(a, "line %lld: %s", (long long)s->in.number,
                   j ? "has no \"text\"" : e.text);
    json_decref(j);
    return why;
}

/* Null, or what is wrong with the file. */
const char *jsonl_read(Arena *a, const char *path, uint8_t **data, int64_t *n,
                       int64_t **ends, int64_t *docs)
{
    Stream s = { 0 };
    const char *why = lines_open(&s.in, path), *line, *broken;
    size_t len;

    while (!why && (line = lines_next(&s.in, &len)))
        if (len)
            why = take_text(a, &s, line, len);
    broken = lines_close(&s.in);
    why = broken ? broken : why;
    if (!why && !s.docs)
        why = "has no texts";
    *data = s.out;
    *n = (int64_t)s.n;
    *ends = s.ends;
    *docs = (int64_t)s.docs;
    return why;
}
