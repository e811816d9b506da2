/* stream.c: reads the text of a file, decompressed and in UTF-8. The first
 * bytes determine compression and encoding: gzip by zlib; zstd, bzip2 and xz by
 * libraries opened at run time; a byte order mark is dropped, UTF-16 becomes
 * UTF-8. Consecutive streams of one file are one text. */
#include <utf8proc.h>
#include <zlib.h>

#include "data.h"

enum { CHUNK = 1 << 16, XZMEMORY = 1 << 30 };

/* Input, or output buffer: ZSTD_inBuffer and ZSTD_outBuffer. */
typedef struct PackedSpan {
    char *p;
    size_t size, at;
} PackedSpan;

typedef enum UnpackStep { STEPdamaged = -1, STEPend, STEPon } UnpackStep;

typedef struct PackedKind {
    const char *name, *mark;
    size_t n; /* bytes of the mark */
    int lib;  /* -1: linked */
    void *(*open)(void);
    UnpackStep (*step)(void *state, PackedSpan *in, PackedSpan *out);
    void (*close)(void *state);
} PackedKind;

struct TextStream {
    FILE *file;
    const PackedKind *codec; /* null: not compressed */
    void *state;
    const char *why;
    char packed[CHUNK]; /* bytes read, not yet decompressed */
    PackedSpan in;
    int inside, full; /* inside a stream; the last step filled its output */
    char raw[CHUNK];  /* decompressed bytes, not yet decoded */
    size_t nraw;
    int begun, wide; /* UTF-16: 1 little-endian, 2 big-endian */
};

/* ---- zstd ---------------------------------------------------------------- */

static void *zstd_open(void)
{
    enum { WINDOWLOG = 100, LARGEST = 31 }; /* zstd --long=31 */
    void *stream = dl.ZSTD_createDStream();

    if (stream)
        dl.ZSTD_DCtx_setParameter(stream, WINDOWLOG, LARGEST);
    return stream;
}

static UnpackStep zstd_step(void *state, PackedSpan *in, PackedSpan *out)
{
    size_t rest = dl.ZSTD_decompressStream(state, out, in);

    return dl.ZSTD_isError(rest) ? STEPdamaged : rest ? STEPon : STEPend;
}

static void zstd_close(void *state)
{
    dl.ZSTD_freeDStream(state);
}

/* ---- gzip, bzip2, xz ----------------------------------------------------- */

typedef struct BzStream { /* bz_stream */
    char *next_in;
    unsigned avail_in, total_in[2];
    char *next_out;
    unsigned avail_out, total_out[2];
    void *state, *alloc, *free, *opaque;
} BzStream;

typedef struct XzStream { /* lzma_stream */
    char *next_in;
    size_t avail_in;
    uint64_t total_in;
    char *next_out;
    size_t avail_out;
    uint64_t total_out;
    void *alloc, *state, *reserved[4];
    uint64_t seek, reserved2;
    size_t reserved3[2];
    int reserved4[2];
} XzStream;

/* Three libraries with one interface: a stream of type T, calls that begin,
 * advance and end it, and codes: end of the stream, no progress. `again` begins
 * the next stream. */
#define UNPACKER(name, T, begin, step, finish, again, END, STUCK) \
    static void *name##_open(void)                                \
    {                                                             \
        T *z = enlarge(NULL, sizeof *z);                          \
        memset(z, 0, sizeof *z);                                  \
        return begin ? NULL : z;                                  \
    }                                                             \
    static UnpackStep name##_step(void *state, PackedSpan *in,    \
                                  PackedSpan *out)                \
    {                                                             \
        T *z = state;                                             \
        z->next_in = (void *)(in->p + in->at);                    \
        z->avail_in = (unsigned)(in->size - in->at);              \
        z->next_out = (void *)(out->p + out->at);                 \
        z->avail_out = (unsigned)(out->size - out->at);           \
        int code = step;                                          \
        in->at = in->size - z->avail_in;                          \
        out->at = out->size - z->avail_out;                       \
        if (code == END)                                          \
            return again ? STEPdamaged : STEPend;                 \
        return code == 0 || code == STUCK ? STEPon : STEPdamaged; \
    }                                                             \
    static void name##_close(void *z)                             \
    {                                                             \
        finish;                                                   \
        free(z);                                                  \
    }

static int bzip_again(BzStream *z)
{
    dl.BZ2_bzDecompressEnd(z);
    memset(z, 0, sizeof *z);
    return dl.BZ2_bzDecompressInit(z, 0, 0);
}

UNPACKER(gzip, z_stream, inflateInit2(z, 15 + 16), inflate(z, Z_NO_FLUSH),
         inflateEnd(z), inflateReset(z), 1, Z_BUF_ERROR)
UNPACKER(bzip, BzStream, dl.BZ2_bzDecompressInit(z, 0, 0),
         dl.BZ2_bzDecompress(z), dl.BZ2_bzDecompressEnd(z), bzip_again(z), 4, 0)
UNPACKER(xz, XzStream, dl.lzma_stream_decoder(z, XZMEMORY, 0),
         dl.lzma_code(z, 0), dl.lzma_end(z),
         dl.lzma_stream_decoder(z, XZMEMORY, 0), 1, 10)

/* clang-format off */
static const PackedKind codecs[] = {
    { "gzip", "\x1f\x8b\x08", 3, -1, gzip_open, gzip_step, gzip_close },
    { "zstd", "\x28\xb5\x2f\xfd", 4, LIBzstd, zstd_open, zstd_step, zstd_close },
    { "bzip2", "BZh", 3, LIBbz2, bzip_open, bzip_step, bzip_close },
    { "xz", "\xfd" "7zXZ\0", 6, LIBlzma, xz_open, xz_step, xz_close },
};
/* clang-format on */

static const PackedKind *codec_of(const uint8_t *s, size_t n)
{
    static const uint8_t bzip[2][6] = { "\x31\x41\x59\x26\x53\x59",
                                        "\x17\x72\x45\x38\x50\x90" };

    if (n >= 8 && !memcmp(s + 1, "\x2a\x4d\x18", 3) && *s >> 4 == 5)
        return &codecs[1]; /* a skippable frame */
    for (int i = 0; i < countof(codecs); i++)
        if (n > codecs[i].n && !memcmp(s, codecs[i].mark, codecs[i].n) &&
            (codecs[i].lib != LIBbz2 || /* a text may begin so */
             (n >= 10 &&
              (!memcmp(s + 4, bzip[0], 6) || !memcmp(s + 4, bzip[1], 6)))))
            return &codecs[i];
    return NULL;
}

const char *packed_by(const uint8_t *s, size_t n)
{
    const PackedKind *codec = codec_of(s, n);

    return codec ? codec->name : NULL;
}

int text_coded(const uint8_t *s, size_t n)
{
    return packed_by(s, n) != NULL ||
           (n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3)) ||
           (n >= 2 && (!memcmp(s, "\xff\xfe", 2) || !memcmp(s, "\xfe\xff", 2)));
}

/* ---- unpacking ----------------------------------------------------------- */

/* Reads more bytes. Returns 0 at the end of the file. */
static int refill(TextStream *s)
{
    s->in = (PackedSpan){ s->packed, fread(s->packed, 1, CHUNK, s->file), 0 };
    if (ferror(s->file))
        s->why = "cannot be read";
    return s->in.size > 0;
}

static size_t unpack_some(TextStream *s, char *to, size_t n)
{
    PackedSpan out = { to, n, 0 };

    while (!out.at && !s->why) {
        if (s->in.at == s->in.size && !(s->inside && s->full) && !refill(s)) {
            if (s->inside && !s->why)
                s->why = "is cut off";
            break;
        }
        while (!s->inside && s->in.at < s->in.size && !s->packed[s->in.at])
            s->in.at++; /* padding between streams */
        if (!s->inside && s->in.at == s->in.size)
            continue;
        UnpackStep step = s->codec->step(s->state, &s->in, &out);
        if (step == STEPdamaged)
            s->why = "is damaged";
        s->inside = step == STEPon;
        s->full = out.at == out.size;
    }
    return s->why ? 0 : out.at;
}

size_t stream_raw(TextStream *s, char *to, size_t n)
{
    if (s->codec)
        return unpack_some(s, to, n);
    n = fread(to, 1, n, s->file);
    if (ferror(s->file))
        s->why = "cannot be read";
    return n;
}

/* ---- encodings ----------------------------------------------------------- */

/* Converts UTF-16 to UTF-8, at most 3 bytes for 2; an incomplete pair stays in
 * raw. */
static size_t narrow(TextStream *s, int over, char *to)
{
    const uint8_t *p = (const uint8_t *)s->raw;
    int high = s->wide == 1; /* index of the high byte */
    size_t n = 0, at = 0, len;

    for (; s->nraw - at >= 2; at += len) {
        int32_t c = p[at + high] << 8 | p[at + !high], low = 0;
        len = c >= 0xd800 && c < 0xdc00 ? 4 : 2;
        if (s->nraw - at < len)
            break;
        if (len == 4)
            low = p[at + 2 + high] << 8 | p[at + 2 + !high];
        if (len == 4 ? low < 0xdc00 || low > 0xdfff
                     : c >= 0xdc00 && c <= 0xdfff) {
            s->why = "is no valid UTF-16";
            break;
        }
        c = len == 4 ? 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00) : c;
        n += (size_t)utf8proc_encode_char(c, (uint8_t *)to + n);
    }
    memmove(s->raw, s->raw + at, s->nraw -= at);
    if (over && s->nraw && !s->why)
        s->why = "is cut off inside a character of UTF-16";
    return n;
}

/* Reads the byte order mark. */
static void take_mark(TextStream *s)
{
    size_t mark = 0;

    s->begun = 1;
    if (s->nraw >= 2 &&
        (!memcmp(s->raw, "\xff\xfe", 2) || !memcmp(s->raw, "\xfe\xff", 2))) {
        s->wide = s->raw[0] == '\xff' ? 1 : 2;
        mark = 2;
    } else if (s->nraw >= 3 && !memcmp(s->raw, "\xef\xbb\xbf", 3)) {
        mark = 3;
    }
    memmove(s->raw, s->raw + mark, s->nraw -= mark);
}

size_t stream_read(TextStream *s, Bytes *to)
{
    size_t n = 0, before = to->n;
    int over = 0;

    if (to->cap - to->n < 2 * CHUNK)
        to->s = enlarge(to->s, to->cap = 2 * to->cap + 2 * CHUNK);
    while (to->n == before && !over && !s->why) {
        do { /* a mark may come in parts */
            n = stream_raw(s, s->raw + s->nraw, CHUNK - s->nraw);
            s->nraw += n;
            over = !n;
        } while (!s->begun && s->nraw < 3 && !over);
        if (!s->begun)
            take_mark(s);
        if (s->wide) {
            to->n += narrow(s, over, to->s + to->n);
        } else {
            memcpy(to->s + to->n, s->raw, s->nraw);
            to->n += s->nraw;
            s->nraw = 0;
        }
    }
    return to->n - before;
}

/* ---- interface ----------------------------------------------------------- */

const char *stream_open(Arena *a, TextStream **out, const char *path)
{
    uint8_t first[10];
    FILE *file = file_stream(path);

    *out = NULL;
    if (!file)
        return strf(a, "cannot be read: %s", file_why());
    size_t n = fread(first, 1, sizeof first, file);
    const PackedKind *codec = codec_of(first, n);
    rewind(file);
    if (codec && codec->lib >= 0 && !dl_open((Lib)codec->lib)) {
        fclose(file);
        return dl_missing(a, (Lib)codec->lib);
    }
    TextStream *s = *out = enlarge(NULL, sizeof *s);
    memset(s, 0, sizeof *s);
    s->file = file;
    s->codec = codec;
    if (codec && !(s->state = codec->open()))
        s->why = "cannot be unpacked: no memory";
    return s->why;
}

const char *stream_close(TextStream *s)
{
    const char *why = s ? s->why : NULL;

    if (!s)
        return NULL;
    fclose(s->file);
    if (s->state)
        s->codec->close(s->state);
    free(s);
    return why;
}
