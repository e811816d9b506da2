/* bpe.c: byte pair encoding. A word starts as its bytes (or characters);
 * neighbours whose pair has the lowest rank, the leftmost pair of equals, are
 * merged until no pair has a rank: short words by a scan of the ranks, long
 * ones with a heap.
 *
 * A few words make up most of a text, so each encoder caches the short ones. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tokenizer.h"

enum { MEMOBITS = 15, SCAN = 40, NORANK = INT32_MAX };

void *enlarge(void *p, size_t bytes)
{
    void *q = realloc(p, bytes);

    if (!q)
        err(NULL, "out of memory: %zu bytes", bytes);
    return q;
}

void bytes_add(Bytes *bytes, const char *s, size_t n)
{
    if (bytes->cap - bytes->n < n)
        bytes->s = enlarge(bytes->s, bytes->cap = 2 * bytes->cap + n);
    if (n)
        memcpy(bytes->s + bytes->n, s, n);
    bytes->n += n;
}

void encode_id(Encoder *encoder, int32_t id)
{
    if (encoder->n == encoder->cap) {
        encoder->cap = 2 * encoder->cap + 64;
        encoder->id =
            enlarge(encoder->id, (size_t)encoder->cap * sizeof *encoder->id);
    }
    encoder->id[encoder->n++] = id;
}

/* ---- tables -------------------------------------------------------------- */

static uint64_t power_above(int64_t n)
{
    uint64_t size = 16;

    while (size < 2 * (uint64_t)n)
        size *= 2;
    return size;
}

int32_t bpe_find(const Bpe *bpe, const char *s, size_t n)
{
    for (uint64_t i = XXH3_64bits(s, n);; i++) {
        int32_t id = bpe->slot[i & bpe->mask];
        if (id < 0 ||
            ((size_t)bpe->len[id] == n && !memcmp(bpe->text[id], s, n)))
            return id;
    }
}

void bpe_index(Arena *a, Bpe *bpe, int64_t nmerge)
{
    uint64_t size = power_above(bpe->nid), msize = power_above(nmerge);

    bpe->slot = alloc(a, size * sizeof *bpe->slot);
    bpe->merge = alloc(a, msize * sizeof *bpe->merge);
    bpe->mask = size - 1;
    bpe->mmask = msize - 1;
    memset(bpe->slot, -1, size * sizeof *bpe->slot);
    for (uint64_t i = 0; i < msize; i++)
        bpe->merge[i].id = -1;
    for (int32_t id = 0; id < bpe->nid; id++) {
        if (!bpe->text[id])
            continue;
        uint64_t i = XXH3_64bits(bpe->text[id], (size_t)bpe->len[id]);
        while (bpe->slot[i & bpe->mask] >= 0)
            i++;
        bpe->slot[i & bpe->mask] = id;
    }
}

static const Merge *slot_of(const Bpe *bpe, uint64_t pair)
{
    uint64_t i = pair * 0x9e3779b97f4a7c15ull;

    for (i ^= i >> 29;; i++) {
        const Merge *m = &bpe->merge[i & bpe->mmask];
        if (m->id < 0 || m->pair == pair)
            return m;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Adds a merge. A repeated pair gets the later rank. */
void bpe_merge(Bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right);
    Merge *m = &bpe->merge[slot_of(bpe, pair) - bpe->merge];

    *m = (Merge){ pair, rank, id };
}

static int32_t rank_of(const Bpe *bpe, int32_t left, int32_t right)
{
    const Merge *m = slot_of(bpe, pair_of(left, right));

    return m->id < 0 ? NORANK : m->rank;
}

static int32_t merged(const Bpe *bpe, int32_t left, int32_t right)
{
    return slot_of(bpe, pair_of(left, right))->id;
}

/* ---- symbols: initial tokens of a word ----------------------------------- */

static int64_t fallback(const Bpe *bpe, const char *s, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++)
        if ((out[i] = bpe->byte[(uint8_t)s[i]]) < 0)
            return 0;
    return (int64_t)n;
}

static size_t char_len(const char *s, size_t n)
{
    size_t k = 1;

    while (k < n && ((uint8_t)s[k] & 0xc0) == 0x80)
        k++;
    return k;
}

/* Writes the initial tokens of a word to out [n]. A character without a token
 * becomes unk, or is dropped. Returns their number. */
static int64_t symbols(const Bpe *bpe, const char *s, size_t n, int32_t *out)
{
    int64_t k = 0;
    int wasunk = 0;

    for (size_t i = 0, len; i < n; i += len) {
        len = bpe->bytelevel ? 1 : char_len(s + i, n - i);
        int32_t id = bpe->bytelevel ? bpe->byte[(uint8_t)s[i]]
                                    : bpe_find(bpe, s + i, len);
        int64_t more = 0;
        if (id >= 0)
            out[k++] = id;
        else if (!bpe->bytelevel)
            k += more = fallback(bpe, s + i, len, out + k);
        if (id < 0 && !more && bpe->unk >= 0) {
            if (!(wasunk && bpe->fuse))
                out[k++] = bpe->unk;
            wasunk = 1;
        } else if (id >= 0 || !bpe->fuse) {
            wasunk = 0;
        }
    }
    return k;
}

/* ---- merging ------------------------------------------------------------- */

static int64_t merge_short(const Bpe *bpe, int32_t *x, int64_t n)
{
    int32_t rank[SCAN];

    for (int64_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(bpe, x[i], x[i + 1]);
    while (n > 1) {
        int64_t at = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[at])
                at = i;
        if (rank[at] == NORANK)
            break;
        x[at] = merged(bpe, x[at], x[at + 1]);
        n--;
        for (int64_t i = at + 1; i < n; i++) {
            x[i] = x[i + 1];
            rank[i - 1] = rank[i];
        }
        if (at + 1 < n)
            rank[at] = rank_of(bpe, x[at], x[at + 1]);
        if (at > 0)
            rank[at - 1] = rank_of(bpe, x[at - 1], x[at]);
    }
    return n;
}

static void heap_push(Encoder *encoder, uint64_t key)
{
    int64_t i = encoder->nheap++;

    for (int64_t up; i > 0 && encoder->heap[up = (i - 1) / 2] > key; i = up)
        encoder->heap[i] = encoder->heap[up];
    encoder->heap[i] = key;
}

static uint64_t heap_pop(Encoder *encoder)
{
    uint64_t least = encoder->heap[0], key = encoder->heap[--encoder->nheap];
    int64_t i = 0;

    for (int64_t k; (k = 2 * i + 1) < encoder->nheap; i = k) {
        k += k + 1 < encoder->nheap && encoder->heap[k + 1] < encoder->heap[k];
        if (encoder->heap[k] >= key)
            break;
        encoder->heap[i] = encoder->heap[k];
    }
    encoder->heap[i] = key;
    return least;
}

/* Pushes the pair that starts at i, if it has a rank: ordered by rank, then
 * place. */
static void heap_pair(Encoder *encoder, int32_t i)
{
    int32_t rank = i < 0 || encoder->next[i] < 0
                       ? NORANK
                       : rank_of(&encoder->t->bpe, encoder->symbol[i],
                                 encoder->symbol[encoder->next[i]]);

    if (rank != NORANK)
        heap_push(encoder, pair_of(rank, i));
}

/* Merges a long word. A pushed pair may be outdated: the pair at its place then
 * has another rank. Each merge pushes at most two pairs, so 3 n entries are
 * enough. */
static int64_t merge_long(Encoder *encoder, int64_t n)
{
    const Bpe *bpe = &encoder->t->bpe;
    int64_t left = 0;

    for (int32_t i = 0; i < n; i++) {
        encoder->prev[i] = i - 1;
        encoder->next[i] = i + 1 < n ? i + 1 : -1;
    }
    encoder->nheap = 0;
    for (int32_t i = 0; i < n; i++)
        heap_pair(encoder, i);
    while (encoder->nheap) {
        uint64_t key = heap_pop(encoder);
        int32_t i = (int32_t)key, k = encoder->next[i];
        if (encoder->symbol[i] < 0 || k < 0 ||
            rank_of(bpe, encoder->symbol[i], encoder->symbol[k]) !=
                (int32_t)(key >> 32))
            continue;
        encoder->symbol[i] =
            merged(bpe, encoder->symbol[i], encoder->symbol[k]);
        encoder->symbol[k] = -1;
        encoder->next[i] = encoder->next[k];
        if (encoder->next[i] >= 0)
            encoder->prev[encoder->next[i]] = i;
        heap_pair(encoder, encoder->prev[i]);
        heap_pair(encoder, i);
    }
    for (int64_t i = 0; i < n; i++)
        if (encoder->symbol[i] >= 0)
            encoder->symbol[left++] = encoder->symbol[i];
    return left;
}

static void make_room(Encoder *encoder, size_t n)
{
    if (n > INT32_MAX / 2)
        err(NULL, "a word of %zu bytes is too long", n);
    if (encoder->room >= (int64_t)n)
        return;
    encoder->room = (int64_t)n;
    encoder->symbol = enlarge(encoder->symbol, n * sizeof *encoder->symbol);
    encoder->prev = enlarge(encoder->prev, n * sizeof *encoder->prev);
    encoder->next = enlarge(encoder->next, n * sizeof *encoder->next);
    encoder->heap = enlarge(encoder->heap, 3 * n * sizeof *encoder->heap);
}

/* ---- words --------------------------------------------------------------- */

static void put_ids(Encoder *encoder, const int32_t *id, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        encode_id(encoder, id[i]);
}

static int64_t short_word(const Bpe *bpe, const char *s, size_t n, int32_t *x)
{
    if (bpe->whole && (*x = bpe_find(bpe, s, n)) >= 0)
        return 1;
    return merge_short(bpe, x, symbols(bpe, s, n, x));
}

static void long_word(Encoder *encoder, const char *s, size_t n)
{
    const Bpe *bpe = &encoder->t->bpe;
    int32_t id = bpe->whole ? bpe_find(bpe, s, n) : -1;

    if (id >= 0) {
        encode_id(encoder, id);
        return;
    }
    make_room(encoder, n);
    int64_t k = symbols(bpe, s, n, encoder->symbol);
    put_ids(encoder, encoder->symbol, merge_long(encoder, k));
}

void bpe_word(Encoder *encoder, const char *s, size_t n)
{
    int32_t x[SCAN];

    if (n > SCAN) {
        long_word(encoder, s, n);
        return;
    }
    if (!encoder->memo)
        encoder->memo = enlarge(NULL, sizeof *encoder->memo << MEMOBITS),
        memset(encoder->memo, 0, sizeof *encoder->memo << MEMOBITS);
    WordMemo *m = &encoder->memo[XXH3_64bits(s, n) >> (64 - MEMOBITS)];
    if (m->len == n && !memcmp(m->text, s, n)) {
        put_ids(encoder, m->id, m->n);
        return;
    }
    int64_t k = short_word(&encoder->t->bpe, s, n, x);
    if (k <= SHORTIDS) {
        m->len = (uint8_t)n;
        m->n = (uint8_t)k;
        memcpy(m->text, s, n);
        memcpy(m->id, x, (size_t)k * sizeof *x);
    }
    put_ids(encoder, x, k);
}
