/* lines.c: the lines of a file, plain, gzipped, or .zst, which libzstd reads
 * where it is found. */
#include <zlib.h>

#include "data.h"

enum { CHUNK = 1 << 16 };

/* ZSTD_inBuffer and ZSTD_outBuffer */
typedef struct ZstdBuffer {
    void *p;
    size_t size, at;
} ZstdBuffer;

/* As gzread; -1: what was read is no frame of zstd. */
static int zstd_read(TextLines *lines, char *to, size_t n)
{
    ZstdBuffer out = { to, n, 0 };

    for (int over = 0; !out.at && !over && !dl.ZSTD_isError(lines->rest);) {
        if (lines->taken == lines->read) {
            lines->taken = 0;
            lines->read = fread(lines->packed, 1, CHUNK, lines->file);
            over = !lines->read; /* but for what the stream still holds */
        }
        ZstdBuffer in = { lines->packed, lines->read, lines->taken };
        size_t rest = dl.ZSTD_decompressStream(lines->zstd, &out, &in);
        lines->rest = over && !out.at ? lines->rest : rest;
        lines->taken = in.at;
    }
    return dl.ZSTD_isError(lines->rest) ? -1 : (int)out.at;
}

static const char *zstd_open(TextLines *lines, const char *path)
{
    if (!dl_open(LIBzstd))
        return strf(forever, "needs libzstd: %s", dl_why(LIBzstd));
    lines->file = fopen(path, "rb");
    if (!lines->file)
        return "cannot be opened";
    lines->zstd = dl.ZSTD_createDStream();
    lines->packed = enlarge(NULL, CHUNK);
    lines->buf = enlarge(NULL, lines->cap = CHUNK);
    return NULL;
}

static const char *zstd_close(TextLines *lines)
{
    int bad = lines->rest != 0 || ferror(lines->file);

    fclose(lines->file);
    dl.ZSTD_freeDStream(lines->zstd);
    free(lines->packed);
    free(lines->buf);
    return bad ? "is damaged" : NULL;
}

/* More bytes behind those not yet taken; 0: there are none. */
static int more(TextLines *lines)
{
    memmove(lines->buf, lines->buf + lines->at, lines->end - lines->at);
    lines->end -= lines->at;
    lines->at = 0;
    if (lines->cap - lines->end < CHUNK)
        lines->buf = enlarge(lines->buf, lines->cap = 2 * lines->cap + CHUNK);
    int k = lines->zstd ? zstd_read(lines, lines->buf + lines->end, CHUNK)
                        : gzread(lines->file, lines->buf + lines->end, CHUNK);
    lines->end += k > 0 ? (size_t)k : 0;
    return k > 0;
}

const char *lines_open(TextLines *lines, const char *path)
{
    *lines = (TextLines){ 0 };
    if (ends_with(path, ".zst"))
        return zstd_open(lines, path);
    lines->file = gzopen(path, "rb");
    if (!lines->file)
        return "cannot be opened";
    lines->buf = enlarge(NULL, lines->cap = CHUNK);
    gzbuffer(lines->file, 4 * CHUNK);
    return NULL;
}

const char *lines_next(TextLines *lines, size_t *len)
{
    size_t seen = 0;
    char *nl = NULL;

    for (;;) {
        if (lines->end - lines->at > seen)
            nl = memchr(lines->buf + lines->at + seen, '\n',
                        lines->end - lines->at - seen);
        seen = lines->end - lines->at;
        if (nl || !more(lines))
            break;
    }
    if (!nl && lines->at == lines->end)
        return NULL;
    const char *line = lines->buf + lines->at;
    *len = nl ? (size_t)(nl - line) : lines->end - lines->at;
    lines->at += *len + (nl != NULL);
    lines->number++;
    while (*len && line[*len - 1] == '\r')
        --*len;
    return line;
}

const char *lines_close(TextLines *lines)
{
    int code = Z_OK;

    if (!lines->file || lines->zstd)
        return lines->zstd ? zstd_close(lines) : NULL;
    gzerror(lines->file, &code);
    gzclose(lines->file);
    free(lines->buf);
    return code == Z_OK || code == Z_STREAM_END ? NULL : "is damaged";
}
