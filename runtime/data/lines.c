/* lines.c: the lines of a file, plain or gzipped. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "data.h"

enum { CHUNK = 1 << 16 };

/* More bytes behind those not yet taken; 0: there are none. */
static int more(TextLines *l)
{
    memmove(l->buf, l->buf + l->at, l->end - l->at);
    l->end -= l->at;
    l->at = 0;
    if (l->cap - l->end < CHUNK)
        l->buf = enlarge(l->buf, l->cap = 2 * l->cap + CHUNK);
    int k = gzread(l->file, l->buf + l->end, CHUNK);
    l->end += k > 0 ? (size_t)k : 0;
    return k > 0;
}

const char *lines_open(TextLines *l, const char *path)
{
    *l = (TextLines){ .file = gzopen(path, "rb") };
    if (!l->file)
        return "cannot be opened";
    l->buf = enlarge(NULL, l->cap = CHUNK);
    gzbuffer(l->file, 4 * CHUNK);
    return NULL;
}

const char *lines_next(TextLines *l, size_t *len)
{
    size_t seen = 0;
    char *nl = NULL;

    for (;;) {
        if (l->end - l->at > seen)
            nl = memchr(l->buf + l->at + seen, '\n', l->end - l->at - seen);
        seen = l->end - l->at;
        if (nl || !more(l))
            break;
    }
    if (!nl && l->at == l->end)
        return NULL;
    const char *line = l->buf + l->at;
    *len = nl ? (size_t)(nl - line) : l->end - l->at;
    l->at += *len + (nl != NULL);
    l->number++;
    while (*len && line[*len - 1] == '\r')
        --*len;
    return line;
}

const char *lines_close(TextLines *l)
{
    int code = Z_OK;

    if (!l->file)
        return NULL;
    gzerror(l->file, &code);
    gzclose(l->file);
    free(l->buf);
    return code == Z_OK || code == Z_STREAM_END ? NULL : "is damaged";
}
