/* binidx.c: writes tokens in the format of Megatron-LM's IndexedDatasetBuilder,
 * to the byte. x.bin has the tokens of all documents; x.idx, little-endian:
 * nine bytes "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences, u64
 * documents + 1, i32 lengths and i64 byte offsets of sequences, i64 first
 * sequence of each document and the end. A document is one sequence, an empty
 * one none. */
#include "data.h"

enum { TU16 = 8, TI32 = 4, BATCH = 1 << 14 };

struct BinIdx {
    Output *out[2];        /* .bin, .idx */
    int wide;              /* tokens are i32 */
    int32_t *len;          /* malloc'd: lengths of documents */
    int64_t n, cap, limit; /* limit: largest token + 1 */
};

void binidx_drop(BinIdx *idx)
{
    for (int i = 0; i < 2; i++)
        if (idx->out[i])
            output_drop(idx->out[i]);
    free(idx->len);
}

static _Noreturn void failed(BinIdx *idx, const char *path)
{
    int why = errno;

    binidx_drop(idx);
    err(NULL, "cannot write %s: %s", path, strerror(why));
}

BinIdx *binidx_create(const char *prefix, int64_t vocab)
{
    BinIdx *b = alloc(forever, sizeof *b);

    for (int i = 0; i < 2; i++) {
        const char *path = strf(forever, "%s.%s", prefix, i ? "idx" : "bin");
        b->out[i] = output_open(forever, path, i ? OUTindex : OUTtokens);
        if (!b->out[i])
            failed(b, path);
    }
    b->wide = vocab >= 65500; /* Megatron's rule, not 65536 */
    b->limit = b->wide ? INT32_MAX : UINT16_MAX;
    return b;
}

static void put_tokens(BinIdx *idx, const int32_t *token, int64_t n)
{
    uint16_t small[BATCH];

    for (int64_t k; n > 0; token += k, n -= k) {
        k = n < BATCH ? n : BATCH;
        for (int64_t i = 0; i < k; i++) {
            if (token[i] < 0 || token[i] > idx->limit)
                die("token %d does not fit %s", (int)token[i],
                    idx->out[0]->path);
            small[i] = (uint16_t)token[i];
        }
        const void *p = idx->wide ? (const void *)token : small;
        if (!fwrite(p, (size_t)k * (idx->wide ? 4 : 2), 1, idx->out[0]->file))
            failed(idx, idx->out[0]->path);
    }
}

void binidx_add(BinIdx *idx, const int32_t *token, int64_t n)
{
    if (n > INT32_MAX)
        err(NULL, "document %ld has %ld tokens; %s holds at most %d of one",
            idx->n + 1, n, idx->out[1]->path, INT32_MAX);
    if (idx->n == idx->cap) {
        idx->cap = idx->cap ? 2 * idx->cap : 1 << 12;
        idx->len = realloc(idx->len, (size_t)idx->cap * sizeof *idx->len);
        if (!idx->len)
            err(NULL, "out of memory: %ld documents", idx->cap);
    }
    put_tokens(idx, token, n);
    idx->len[idx->n++] = (int32_t)n;
}

static void put64(FILE *f, int64_t v)
{
    fwrite(&v, sizeof v, 1, f); /* output_commit returns its error */
}

static void put_index(const BinIdx *idx, FILE *f)
{
    int64_t sequences = 0, at = 0;

    for (int64_t i = 0; i < idx->n; i++)
        sequences += idx->len[i] > 0;
    fwrite("MMIDIDX\0", 9, 1, f);
    put64(f, 1);
    fputc(idx->wide ? TI32 : TU16, f);
    put64(f, sequences);
    put64(f, idx->n + 1);
    for (int64_t i = 0; i < idx->n; i++)
        if (idx->len[i])
            fwrite(&idx->len[i], sizeof *idx->len, 1, f);
    for (int64_t i = 0; i < idx->n; at += idx->len[i++])
        if (idx->len[i])
            put64(f, at * (idx->wide ? 4 : 2));
    put64(f, sequences = 0);
    for (int64_t i = 0; i < idx->n; i++)
        put64(f, sequences += idx->len[i] > 0);
}

void binidx_close(BinIdx *bin_idx)
{
    put_index(bin_idx, bin_idx->out[1]->file);
    if (output_commit(bin_idx->out, 2))
        err(NULL, "cannot write %s: %s", bin_idx->out[1]->path,
            strerror(errno));
    free(bin_idx->len);
}
