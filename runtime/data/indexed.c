/* indexed.c: Megatron's indexed datasets. x.bin has only tokens; x.idx has the
 * sequences, little-endian and unaligned:
 *
 *     0  "MMIDIDX\0\0"     9  u64 version, 1      17  u8 type of a token
 *    18  u64 sequences    26  u64 document bounds: documents + 1
 *    34  i32 length[sequences]       in tokens
 *        i64 pointer[sequences]      bytes in x.bin
 *        i64 bound[bounds]           sequences, from 0 to all of them
 *        i8  mode[sequences]        of multimodal sets only, not read
 *
 * Both files stay mapped, and the index is not copied. Entries are checked when
 * they are used. */
#include "data.h"

enum { HEAD = 34, PERSEQ = 12 };

static int64_t i64_at(const uint8_t *p)
{
    int64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Returns the start of a sequence in tokens; -1: outside the file or inside a
 * token. */
static int64_t begin_of(const Tokens *tokens, int64_t i, int64_t len)
{
    int64_t at = i64_at(tokens->idx + HEAD + 4 * tokens->docs + 8 * i);
    int size = elem_bytes(tokens->e);

    if (at < 0 || len < 0 || at % size || at / size > tokens->size / size - len)
        return -1;
    return at / size;
}

int64_t indexed_doc(const Tokens *tokens, int64_t i, int64_t *start)
{
    int64_t len = (int32_t)u32_at(tokens->idx + HEAD + 4 * i);

    *start = begin_of(tokens, i, len);
    return *start < 0 ? -1 : len;
}

/* Returns 1 if the counts do not fit the file's size, otherwise 0. */
static int bad_counts(const Tokens *tokens, int64_t nseq, int64_t nbound)
{
    int64_t rest = tokens->idxsize - HEAD;

    if (nseq < 0 || nseq > rest / PERSEQ)
        return 1;
    rest -= nseq * PERSEQ;
    if (nbound < 1 || nbound > rest / 8)
        return 1;
    const uint8_t *bound = tokens->idx + HEAD + nseq * PERSEQ;
    return i64_at(bound) != 0 || i64_at(bound + 8 * (nbound - 1)) != nseq;
}

static const char *read_head(Arena *a, const char *path, Tokens *tokens)
{
    static const Elem elems[] = { NELEM, EU8,  EI8,  EI16, EI32,
                                  EI64,  EF64, EF32, EU16 };
    const char *why = map_whole(a, path, &tokens->idx, &tokens->idxsize);

    if (why)
        return strf(a, "%s %s", path, why);
    if (tokens->idxsize < HEAD || memcmp(tokens->idx, "MMIDIDX\0\0", 9))
        return strf(a, "%s is no Megatron index", path);
    if (i64_at(tokens->idx + 9) != 1)
        return strf(a, "%s is of version %ld, 1 is known", path,
                    i64_at(tokens->idx + 9));
    int code = tokens->idx[17];
    if (code < 1 || code > 8 || elems[code] == EF32 || elems[code] == EF64)
        return strf(a, "%s: token type %d is not known", path, code);
    tokens->e = elems[code];
    int64_t nseq = i64_at(tokens->idx + 18), nbound = i64_at(tokens->idx + 26);
    if (bad_counts(tokens, nseq, nbound))
        return strf(a,
                    "%s is damaged: %ld sequences and %ld document bounds in "
                    "%ld bytes",
                    path, nseq, nbound, tokens->idxsize);
    tokens->docs = nseq;
    return NULL;
}

/* The index has the same name with the extension .idx. A .bin takes any such
 * index; another file only one that covers exactly its bytes. */
char *indexed_path(Arena *a, const char *path, int64_t size)
{
    char *idx = strf(a, "%.*s.idx", file_stem(path), path);
    Tokens tokens = { .size = size };
    int64_t start, n;

    if (!strcmp(idx, path) || access(idx, R_OK))
        return NULL;
    if (ends_with(path, ".bin"))
        return idx;
    const char *why = read_head(a, idx, &tokens);
    n = !why && tokens.docs ? indexed_doc(&tokens, tokens.docs - 1, &start)
                            : -1;
    int whole = n >= 0 && (start + n) * elem_bytes(tokens.e) == size;
    if (tokens.idx)
        munmap((void *)(uintptr_t)tokens.idx, (size_t)tokens.idxsize);
    return whole ? idx : NULL;
}

const char *indexed_read(Arena *a, Tokens *tokens)
{
    char *idx = indexed_path(a, tokens->path, tokens->size);
    int64_t start = 0, len = 0;

    if (!idx)
        return "has no .idx beside it, as Megatron's data have";
    const char *why = read_head(a, idx, tokens);
    if (!why && tokens->docs)
        len = indexed_doc(tokens, tokens->docs - 1, &start);
    if (!why && len < 0)
        why = strf(a, "is cut off: %s names more tokens than it has", idx);
    tokens->data = tokens->map;
    tokens->n = start + (len < 0 ? 0 : len);
    return why;
}
