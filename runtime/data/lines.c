/* lines.c: the lines of a file, plain, gzipped, or .zst, which libzstd reads
 * where it is found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "data.h"

enum { CHUNK = 1 << 16 };

/* ZSTD_inBuffer and ZSTD_outBuffer */
typedef struct ZstdBuffer {
    void *p;
    size_t size, at;
} ZstdBuffer;

/* As gzread; -1: what was read is no frame of zstd. */
static int zstd_read(TextLines *l, char *to, size_t n)
{
    ZstdBuffer out = { to, n, 0 };

    for (int over = 0; !out.at && !over && !dl.ZSTD_isError(l->rest);) {
        if (l->taken == l->read) {
            l->taken = 0;
            l->read = fread(l->packed, 1, CHUNK, l->file);
            over = !l->read; /* but for what the stream still holds */
        }
        ZstdBuffer in = { l->packed, l->read, l->taken };
        size_t rest = dl.ZSTD_decompressStream(l->zstd, &out, &in);
        l->rest = over && !out.at ? l->rest : rest;
        l->taken = in.at;
    }
    return dl.ZSTD_isError(l->rest) ? -1 : (int)out.at;
}

static const char *zstd_open(TextLines *l, const char *path)
{
    if (!dl_open(LIBzstd))
        return strf(forever, "needs libzstd: %s", dl_why(LIBzstd));
    l->file = fopen(path, "rb");
    if (!l->file)
        return "cannot be opened";
    l->zstd = dl.ZSTD_createDStream();
    l->packed = enlarge(NULL, CHUNK);
    l->buf = enlarge(NULL, l->cap = CHUNK);
    return NULL;
}

static const char *zstd_close(TextLines *l)
{
    int bad = l->rest != 0 || ferror(l->file);

    fclose(l->file);
    dl.ZSTD_freeDStream(l->zstd);
    free(l->packed);
    free(l->buf);
    return bad ? "is damaged" : NULL;
}

/* More bytes behind those not yet taken; 0: there are none. */
static int more(TextLines *l)
{
    memmove(l->buf, l->buf + l->at, l->end - l->at);
    l->end -= l->at;
    l->at = 0;
    if (l->cap - l->end < CHUNK)
        l->buf = enlarge(l->buf, l->cap = 2 * l->cap + CHUNK);
    int k = l->zstd ? zstd_read(l, l->buf + l->end, CHUNK)
                    : gzread(l->file, l->buf + l->end, CHUNK);
    l->end += k > 0 ? (size_t)k : 0;
    return k > 0;
}

const char *lines_open(TextLines *l, const char *path)
{
    *l = (TextLines){ 0 };
    if (ends_with(path, ".zst"))
        return zstd_open(l, path);
    l->file = gzopen(path, "rb");
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

    if (!l->file || l->zstd)
        return l->zstd ? zstd_close(l) : NULL;
    gzerror(l->file, &code);
    gzclose(l->file);
    free(l->buf);
    return code == Z_OK || code == Z_STREAM_END ? NULL : "is damaged";
}
