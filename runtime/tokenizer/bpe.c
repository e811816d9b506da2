/* bpe.c: byte pair encoding. A word starts as its bytes (or characters); the
 * neighbours whose pair has the least rank, the leftmost of those, are merged
 * until no pair has a rank: in short words by a scan of the ranks, in long ones
 * with a heap.
 *
 * Few words make up most of a text, so each encoder remembers the short ones.*/
#include <stdlib.h>
#include <string.h>
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

void bytes_add(Bytes *b, const char *s, size_t n)
{
    if (b->cap - b->n < n)
        b->s = enlarge(b->s, b->cap = 2 * b->cap + n);
    if (n)
        memcpy(b->s + b->n, s, n);
    b->n += n;
}

void encode_id(Encoder *e, int32_t id)
{
    if (e->n == e->cap) {
        e->cap = 2 * e->cap + 64;
        e->id = enlarge(e->id, (size_t)e->cap * sizeof *e->id);
    }
    e->id[e->n++] = id;
}

/* ---- tables -------------------------------------------------------------- */

static uint64_t power_above(int64_t n)
{
    uint64_t size = 16;

    while (size < 2 * (uint64_t)n)
        size *= 2;
    return size;
}

int32_t bpe_find(const Bpe *b, const char *s, size_t n)
{
    for (uint64_t i = XXH3_64bits(s, n);; i++) {
        int32_t id = b->slot[i & b->mask];
        if (id < 0 || ((size_t)b->len[id] == n && !memcmp(b->text[id], s, n)))
            return id;
    }
}

void bpe_index(Bpe *b, int nmerge)
{
    uint64_t size = power_above(b->nid), msize = power_above(nmerge);

    b->slot = alloc(forever, size * sizeof *b->slot);
    b->merge = alloc(forever, msize * sizeof *b->merge);
    b->mask = size - 1;
    b->mmask = msize - 1;
    memset(b->slot, -1, size * sizeof *b->slot);
    for (uint64_t i = 0; i < msize; i++)
        b->merge[i].id = -1;
    for (int32_t id = 0; id < b->nid; id++) {
        if (!b->text[id])
            continue;
        uint64_t i = XXH3_64bits(b->text[id], (size_t)b->len[id]);
        while (b->slot[i & b->mask] >= 0)
            i++;
        b->slot[i & b->mask] = id;
    }
}

static const Merge *slot_of(const Bpe *b, uint64_t pair)
{
    uint64_t i = pair * 0x9e3779b97f4a7c15ull;

    for (i ^= i >> 29;; i++) {
        const Merge *m = &b->merge[i & b->mmask];
        if (m->id < 0 || m->pair == pair)
            return m;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The same pair again: the later rank holds, as in a dictionary. */
void bpe_merge(Bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right);
    Merge *m = &b->merge[slot_of(b, pair) - b->merge];

    *m = (Merge){ pair, rank, id };
}

static int32_t rank_of(const Bpe *b, int32_t left, int32_t right)
{
    const Merge *m = slot_of(b, pair_of(left, right));

    return m->id < 0 ? NORANK : m->rank;
}

static int32_t merged(const Bpe *b, int32_t left, int32_t right)
{
    return slot_of(b, pair_of(left, right))->id;
}

/* ---- symbols: what a word starts as -------------------------------------- */

static int64_t fallback(const Bpe *b, const char *s, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++)
        if ((out[i] = b->byte[(uint8_t)s[i]]) < 0)
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

/* out has room for n. What has no token becomes unk, or nothing. */
static int64_t symbols(const Bpe *b, const char *s, size_t n, int32_t *out)
{
    int64_t k = 0;
    int wasunk = 0;

    for (size_t i = 0, len; i < n; i += len) {
        len = b->bytelevel ? 1 : char_len(s + i, n - i);
        int32_t id =
            b->bytelevel ? b->byte[(uint8_t)s[i]] : bpe_find(b, s + i, len);
        int64_t more = 0;
        if (id >= 0)
            out[k++] = id;
        else if (!b->bytelevel)
            k += more = fallback(b, s + i, len, out + k);
        if (id < 0 && !more && b->unk >= 0) {
            if (!(wasunk && b->fuse))
                out[k++] = b->unk;
            wasunk = 1;
        } else if (id >= 0 || !b->fuse) {
            wasunk = 0;
        }
    }
    return k;
}

/* ---- merging ------------------------------------------------------------- */

static int64_t merge_short(const Bpe *b, int32_t *x, int64_t n)
{
    int32_t rank[SCAN];

    for (int64_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(b, x[i], x[i + 1]);
    while (n > 1) {
        int64_t at = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[at])
                at = i;
        if (rank[at] == NORANK)
            break;
        x[at] = merged(b, x[at], x[at + 1]);
        n--;
        for (int64_t i = at + 1; i < n; i++) {
            x[i] = x[i + 1];
            rank[i - 1] = rank[i];
        }
        if (at + 1 < n)
            rank[at] = rank_of(b, x[at], x[at + 1]);
        if (at > 0)
            rank[at - 1] = rank_of(b, x[at - 1], x[at]);
    }
    return n;
}

static void heap_push(Encoder *e, uint64_t key)
{
    int64_t i = e->nheap++;

    for (int64_t up; i > 0 && e->heap[up = (i - 1) / 2] > key; i = up)
        e->heap[i] = e->heap[up];
    e->heap[i] = key;
}

static uint64_t heap_pop(Encoder *e)
{
    uint64_t least = e->heap[0], key = e->heap[--e->nheap];
    int64_t i = 0;

    for (int64_t k; (k = 2 * i + 1) < e->nheap; i = k) {
        k += k + 1 < e->nheap && e->heap[k + 1] < e->heap[k];
        if (e->heap[k] >= key)
            break;
        e->heap[i] = e->heap[k];
    }
    e->heap[i] = key;
    return least;
}

/* The pair that starts at i, if it has a rank: rank, then place. */
static void heap_pair(Encoder *e, int32_t i)
{
    int32_t rank = i < 0 || e->next[i] < 0 ? NORANK
                                           : rank_of(&e->t->bpe, e->symbol[i],
                                                     e->symbol[e->next[i]]);

    if (rank != NORANK)
        heap_push(e, pair_of(rank, i));
}

/* A pair that was pushed may be gone: then its rank is no longer that of what
 * starts at its place. Each merge pushes two at most, so 3 n are enough. */
static int64_t merge_long(Encoder *e, int64_t n)
{
    const Bpe *b = &e->t->bpe;
    int64_t left = 0;

    for (int32_t i = 0; i < n; i++) {
        e->prev[i] = i - 1;
        e->next[i] = i + 1 < n ? i + 1 : -1;
    }
    e->nheap = 0;
    for (int32_t i = 0; i < n; i++)
        heap_pair(e, i);
    while (e->nheap) {
        uint64_t key = heap_pop(e);
        int32_t i = (int32_t)key, k = e->next[i];
        if (e->symbol[i] < 0 || k < 0 ||
            rank_of(b, e->symbol[i], e->symbol[k]) != (int32_t)(key >> 32))
            continue;
        e->symbol[i] = merged(b, e->symbol[i], e->symbol[k]);
        e->symbol[k] = -1;
        e->next[i] = e->next[k];
        if (e->next[i] >= 0)
            e->prev[e->next[i]] = i;
        heap_pair(e, e->prev[i]);
        heap_pair(e, i);
    }
    for (int64_t i = 0; i < n; i++)
        if (e->symbol[i] >= 0)
            e->symbol[left++] = e->symbol[i];
    return left;
}

static void make_room(Encoder *e, size_t n)
{
    if (n > INT32_MAX / 2)
        err(NULL, "a word of %zu bytes is too long", n);
    if (e->room >= (int64_t)n)
        return;
    e->room = (int64_t)n;
    e->symbol = enlarge(e->symbol, n * sizeof *e->symbol);
    e->prev = enlarge(e->prev, n * sizeof *e->prev);
    e->next = enlarge(e->next, n * sizeof *e->next);
    e->heap = enlarge(e->heap, 3 * n * sizeof *e->heap);
}

/* ---- words --------------------------------------------------------------- */

static void put_ids(Encoder *e, const int32_t *id, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        encode_id(e, id[i]);
}

static int64_t short_word(const Bpe *b, const char *s, size_t n, int32_t *x)
{
    if (b->whole && (*x = bpe_find(b, s, n)) >= 0)
        return 1;
    return merge_short(b, x, symbols(b, s, n, x));
}

static void long_word(Encoder *e, const char *s, size_t n)
{
    const Bpe *b = &e->t->bpe;
    int32_t id = b->whole ? bpe_find(b, s, n) : -1;

    if (id >= 0) {
        encode_id(e, id);
        return;
    }
    make_room(e, n);
    int64_t k = symbols(b, s, n, e->symbol);
    put_ids(e, e->symbol, merge_long(e, k));
}

void bpe_word(Encoder *e, const char *s, size_t n)
{
    int32_t x[SCAN];

    if (n > SCAN) {
        long_word(e, s, n);
        return;
    }
    if (!e->memo)
        e->memo = enlarge(NULL, sizeof *e->memo << MEMOBITS),
        memset(e->memo, 0, sizeof *e->memo << MEMOBITS);
    WordMemo *m = &e->memo[XXH3_64bits(s, n) >> (64 - MEMOBITS)];
    if (m->len == n && !memcmp(m->text, s, n)) {
        put_ids(e, m->id, m->n);
        return;
    }
    int64_t k = short_word(&e->t->bpe, s, n, x);
    if (k <= SHORTIDS) {
        m->len = (uint8_t)n;
        m->n = (uint8_t)k;
        memcpy(m->text, s, n);
        memcpy(m->id, x, (size_t)k * sizeof *x);
    }
    put_ids(e, x, k);
}
