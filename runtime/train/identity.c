/* identity.c: identity of a run's data: sizes and hashes of its files and the
 * order of its samples. A resumed run must find the same data, at any path.
 *
 *     train file 11357 all a1b2..  LICENSE        bytes, hash; path
 *     train samples 340 from 0 of part 0          used samples of a part
 *     train order c3d4..                          hash over the first samples
 *
 * The hash of a large file covers its beginning, its end and pieces between
 * ("some"). A path follows two blanks and is not compared. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "train.h"

/* Bytes of a file that is hashed whole; bytes and number of pieces of larger
 * files; samples whose order is hashed. */
enum { WHOLE = 16 << 20, PIECE = 64 << 10, PIECES = 128, ORDERED = 1024 };

static void put_hash(Text *out, XXH3_state_t *x_x_h3_state_t)
{
    XXH128_hash_t h = XXH3_128bits_digest(x_x_h3_state_t);

    put(out, "%016lx%016lx", h.high64, h.low64);
}

/* Hashes bytes of a mapped file. Shuffled data are mapped for random access, so
 * the kernel is told to read ahead. */
static void add_bytes(XXH3_state_t *x_x_h3_state_t, const uint8_t *p, int64_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
    uintptr_t at = (uintptr_t)p & ~page;

    madvise((void *)at, (size_t)((uintptr_t)(p + n) - at), MADV_WILLNEED);
    XXH3_128bits_update(x_x_h3_state_t, p, (size_t)n);
}

static void put_bytes(Text *out, const char *what, const char *path,
                      const uint8_t *p, int64_t n)
{
    XXH3_state_t x;

    XXH3_128bits_reset(&x);
    if (n <= WHOLE)
        add_bytes(&x, p, n);
    for (int64_t i = 0; n > WHOLE && i < PIECES; i++)
        add_bytes(&x, p + (n - PIECE) / (PIECES - 1) * i, PIECE);
    if (n > WHOLE)
        add_bytes(&x, p + n - PIECE, PIECE);
    put(out, "%s file %ld %s ", what, n, n <= WHOLE ? "all" : "some");
    put_hash(out, &x);
    put(out, "  %s\n", path_absolute(out->arena, path, NULL));
}

static void put_file(Text *out, const char *what, const SampleFile *file)
{
    const Tokens *tokens = &file->t;

    if (tokens->map)
        put_bytes(out, what, tokens->path, tokens->map, tokens->size);
    else
        put_bytes(out, what, tokens->path, tokens->data,
                  tokens->n * elem_bytes(tokens->e));
    if (tokens->idx)
        put_bytes(out, what, strf(out->arena, "%s (index)", tokens->path),
                  tokens->idx, tokens->idxsize);
}

/* Returns the index of this file among all. */
static int64_t file_number(const Samples *samples, const Tokens *tokens)
{
    int64_t n = 0;

    for (size_t i = 0; i < vec_len(samples->part); i++)
        for (size_t k = 0; k < vec_len(samples->part[i].file); k++, n++)
            if (&samples->part[i].file[k].t == tokens)
                return n;
    return -1;
}

static void put_order(Text *out, const char *what, const Samples *samples)
{
    const char *input = samples->part[0].file[0].input;
    XXH3_state_t x;

    XXH3_128bits_reset(&x);
    for (int64_t i = 0; i < ORDERED; i++) {
        SampleReader r = samples_read(samples, i, 0, input ? input : "");
        int64_t at[2] = { file_number(samples, r.t), 0 };
        reader_next(&r, &at[1]);
        XXH3_128bits_update(&x, at, sizeof at);
    }
    put(out, "%s order ", what);
    put_hash(out, &x);
    put(out, "\n");
}

void put_data(Text *out, const char *what, const Data *data)
{
    const Samples *samples = data_source(data);

    for (size_t i = 0; i < vec_len(samples->part); i++) {
        const Corpus *corpus = &samples->part[i];
        for (size_t k = 0; k < vec_len(corpus->file); k++)
            put_file(out, what, &corpus->file[k]);
        if (!corpus->order) /* else the order covers it */
            put(out, "%s samples %ld from %ld of part %zu\n", what, corpus->n,
                corpus->lo, i);
    }
    put_order(out, what, samples);
}
