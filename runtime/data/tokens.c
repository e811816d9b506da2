/* tokens.c: maps a file of tokens. Its header is checked before use; errors are
 * returned as reasons.
 *
 *   bytes     every byte is a token
 *   text      bytes of a text that may be compressed or in UTF-16
 *   jsonl     the bytes of "text" in every row, a zero after each: rows.c;
 *             csv, tsv, parquet, arrow: the column "text"
 *   uint16    u16 tokens, nothing else (nanogpt: the same); uint32: u32
 *   llmc      256 words of i32: magic, version, tokens; then u16 (20240520,
 *             version 1) or u32 tokens (20240801, version 7)
 *   megatron  x.bin with x.idx: indexed.c
 *   npy       an array: npy.c */
#include <math.h>

#include "../../ir/settings/keys.h"
#include "data.h"

double tokens_at(const Tokens *tokens, int64_t i)
{
    int bytes = elem_bytes(tokens->e);

    return number_get("uiuiiuiff"[tokens->e], bytes,
                      tokens -> data + i * bytes);
}

void tokens_take(const Tokens *tokens, int64_t at, int64_t n, int32_t *out)
{
    const uint8_t *p = tokens->data + at * elem_bytes(tokens->e);

    if (tokens->e == EU16)
        for (int64_t i = 0; i < n; i++)
            out[i] = p[2 * i] | p[2 * i + 1] << 8;
    else if (tokens->e == EI32 || tokens->e == EU32)
        memcpy(out, p, (size_t)n * sizeof *out);
    else if (tokens->e == EU8)
        for (int64_t i = 0; i < n; i++)
            out[i] = p[i];
    else
        for (int64_t i = 0; i < n; i++) {
            double v = tokens_at(tokens, at + i);
            int fits = v >= INT32_MIN && v <= INT32_MAX && v == floor(v);
            out[i] = fits ? (int32_t)v : INT32_MIN;
        }
}

/* Tells the kernel not to read ahead: accesses are scattered. */
void tokens_scattered(const Tokens *tokens)
{
    if (tokens->map)
        madvise((void *)(uintptr_t)tokens->map, (size_t)tokens->size,
                MADV_RANDOM);
}

/* Starts to read tokens from the disk. */
void tokens_ahead(const Tokens *tokens, int64_t at, int64_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    uintptr_t lo =
        (uintptr_t)(tokens->data + at * elem_bytes(tokens->e)) & ~page;

    if (!tokens->own)
        madvise((void *)lo,
                (size_t)((uintptr_t)(tokens->data +
                                     (at + n) * elem_bytes(tokens->e)) -
                         lo),
                MADV_WILLNEED);
}

/* ---- formats ------------------------------------------------------------- */

static const char *open_plain(Arena *a, Tokens *tokens, Elem e)
{
    tokens->e = e;
    tokens->data = tokens->map;
    tokens->n = tokens->size / elem_bytes(e);
    if (tokens->size % elem_bytes(e))
        return strf(a, "has %ld bytes, no multiple of a token's %d",
                    tokens->size, elem_bytes(e));
    return NULL;
}

enum { LLMCHEAD = 1024, LLMCEVAL = 20240522 };
static const struct {
    uint32_t magic, version;
    Elem e;
} llmc[] = { { 20240520, 1, EU16 }, { 20240801, 7, EU32 } };

static const char *open_llmc(Arena *a, Tokens *tokens)
{
    if (tokens->size < LLMCHEAD)
        return "is too short for an llm.c header";
    uint32_t magic = u32_at(tokens->map), version = u32_at(tokens->map + 4);
    int64_t said = (int32_t)u32_at(tokens->map + 8), room;
    tokens->e = NELEM;
    for (int i = 0; i < countof(llmc); i++)
        if (llmc[i].magic == magic && llmc[i].version == version)
            tokens->e = llmc[i].e;
    if (magic == LLMCEVAL)
        return "is an evaluation set of llm.c, which is no stream of tokens";
    if (tokens->e == NELEM)
        return strf(a, "is no llm.c file (magic %u, version %u)", magic,
                    version);
    room = (tokens->size - LLMCHEAD) / elem_bytes(tokens->e);
    if (said < 0 || said > room)
        return strf(a, "is cut off: %ld of %ld tokens", room, said);
    tokens->data = tokens->map + LLMCHEAD;
    tokens->n = said;
    return NULL;
}

static const char *open_uint16(Arena *a, Tokens *tokens)
{
    return open_plain(a, tokens, EU16);
}

static const char *open_uint32(Arena *a, Tokens *tokens)
{
    return open_plain(a, tokens, EU32);
}

static const char *open_bytes(Arena *a, Tokens *tokens)
{
    return open_plain(a, tokens, EU8);
}

static const char *open_text(Arena *a, Tokens *tokens)
{
    return text_coded(tokens->map, (size_t)tokens->size)
               ? texts_read(a, tokens)
               : open_bytes(a, tokens);
}

static const char *(*const openers[])(Arena *a, Tokens *t) = {
    [FORMATbytes] = open_bytes,    [FORMATtext] = open_text,
    [FORMATjsonl] = texts_read,    [FORMATcsv] = texts_read,
    [FORMATtsv] = texts_read,      [FORMATparquet] = texts_read,
    [FORMATarrow] = texts_read,    [FORMATmegatron] = indexed_read,
    [FORMATllmc] = open_llmc,      [FORMATuint16] = open_uint16,
    [FORMATnanogpt] = open_uint16, [FORMATuint32] = open_uint32,
    [FORMATnpy] = npy_read,
};

int format_is_text(int format)
{
    return openers[format] == texts_read || format == FORMATtext ||
           format == FORMATbytes;
}

static const char *map_file(Arena *a, const char *path, int format,
                            int64_t vocab, Tokens *tokens)
{
    *tokens =
        (Tokens){ .path = strf(a, "%s", path), .docs = 1, .format = format };
    const char *why = map_whole(a, path, &tokens->map, &tokens->size);
    if (!why && format == FORMATauto)
        return sniff(a, tokens, vocab);
    if (!why && format != FORMATbytes && format_is_text(format))
        tokens->packed = packed_by(tokens->map, (size_t)tokens->size);
    return why;
}

const char *tokens_kind(Arena *a, const char *path, int format, int64_t vocab,
                        Tokens *kind)
{
    const char *why = map_file(a, path, format, vocab, kind);

    tokens_close(kind);
    return why;
}

const char *tokens_open(Arena *a, const char *path, int format, int64_t vocab,
                        const char *field, Tokens *tokens)
{
    const char *why = map_file(a, path, format, vocab, tokens);

    tokens->field = field ? field : "text";
    if (!why)
        why = openers[tokens->format](a, tokens);
    if (tokens->own)
        tokens->data = tokens->own;
    if (why)
        tokens_close(tokens);
    return why;
}

void tokens_close(Tokens *tokens)
{
    if (tokens->map)
        munmap((void *)(uintptr_t)tokens->map, (size_t)tokens->size);
    if (tokens->idx)
        munmap((void *)(uintptr_t)tokens->idx, (size_t)tokens->idxsize);
    free(tokens->own);
    free(tokens->ends);
    tokens->map = tokens->idx = tokens->data = NULL;
    tokens->own = NULL;
    tokens->ends = NULL;
    tokens->n = tokens->docs = 0;
}

/* ---- documents ----------------------------------------------------------- */

int64_t tokens_doc(const Tokens *tokens, int64_t i, int64_t *start)
{
    if (tokens->idx)
        return indexed_doc(tokens, i, start);
    *start = tokens->ends && i ? tokens->ends[i - 1] : 0;
    return (tokens->ends ? tokens->ends[i] : tokens->n) - *start;
}
