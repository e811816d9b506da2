/* jsonl.c: the texts of a file as one stream of bytes, a zero byte after each:
 * {"text": "..."} on every line, or a table's column "text". */
#include "data.h"

typedef struct Stream {
    TextLines in;
    uint8_t *out;
    size_t n, room;
    int64_t *ends;
    size_t docs, slots;
} Stream;

static void keep(Stream *stream, const char *text, size_t n)
{
    if (stream->room - stream->n < n + 1)
        stream->out =
            enlarge(stream->out, stream->room = 2 * stream->room + n + 1);
    if (n)
        memcpy(stream->out + stream->n, text, n);
    stream->n += n;
    stream->out[stream->n++] = 0;
    if (stream->docs == stream->slots)
        stream->ends =
            enlarge(stream->ends, sizeof *stream->ends *
                                      (stream->slots = 2 * stream->slots + 64));
    stream->ends[stream->docs++] = (int64_t)stream->n;
}

static const char *take_text(Arena *a, Stream *stream, const char *line,
                             size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(line, len, JSON_ALLOW_NUL, &e);
    const json_t *text = json_object_get(j, "text");
    const char *why = NULL;

    if (json_is_string(text))
        keep(stream, json_string_value(text), json_string_length(text));
    else
        why = strf(a, "line %ld: %s", stream->in.number,
                   j ? "has no \"text\"" : e.text);
    json_decref(j);
    return why;
}

static const char *give(const Stream *stream, Tokens *tokens, const char *why)
{
    tokens->e = EU8;
    tokens->own = stream->out;
    tokens->n = (int64_t)stream->n;
    tokens->ends = stream->ends;
    tokens->docs = (int64_t)stream->docs;
    return why || stream->docs ? why : "has no texts";
}

const char *jsonl_read(Arena *a, Tokens *tokens)
{
    Stream s = { 0 };
    const char *why = lines_open(&s.in, tokens->path), *line, *broken;
    size_t len;

    while (!why && (line = lines_next(&s.in, &len)))
        if (len)
            why = take_text(a, &s, line, len);
    broken = lines_close(&s.in);
    return give(&s, tokens, broken ? broken : why);
}

const char *table_read(Arena *a, Tokens *tokens)
{
    Stream s = { 0 };
    TextRows rows;
    const char *why = rows_open(&rows, tokens->path, tokens->format, "text");
    const char *text;
    size_t n;

    while (!why && (text = rows_next(&rows, &n)))
        keep(&s, text, n);
    why = why ? why : rows.why;
    why = why ? strf(a, "%s", why) : NULL;
    rows_close(&rows);
    return give(&s, tokens, why);
}
