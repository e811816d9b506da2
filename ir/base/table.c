/* table.c: hash tables from 64-bit keys, or pairs of them, to pointers. Keys
 * are compared in full; key 0 is allowed. Entries are stored in insertion
 * order; the open-addressing index, at most half full, holds their numbers,
 * which keeps tables small: most live for one pass. */
#include "base.h"

typedef struct Entry {
    uint64_t key, second;
    void *val;
} Entry;

struct Table {
    Arena *arena;
    uint32_t n, cap; /* cap is a power of two */
    uint32_t *first; /* [cap]: 1 + number of an entry; 0: free */
    Entry *entry;    /* capacity cap / 2 */
};

/* Rebuilds the index for cap / 2 entries. */
static void resize(Table *t, uint32_t cap)
{
    Entry *entry = alloc(t->arena, cap / 2 * sizeof *entry);

    if (t->n)
        memcpy(entry, t->entry, t->n * sizeof *entry);
    t->cap = cap;
    t->entry = entry;
    t->first = alloc(t->arena, cap * sizeof *t->first);
}

Table *table_for(Arena *a, size_t n)
{
    Table *t = alloc(a, sizeof *t);
    size_t cap = 16;

    while (cap < 2 * n + 2)
        cap *= 2;
    t->arena = a;
    resize(t, (uint32_t)cap);
    return t;
}

Table *table_new(Arena *a)
{
    return table_for(a, 0);
}

Arena *table_arena(const Table *t)
{
    return t->arena;
}

/* Returns the index place of the key, or the free place for it. */
static uint32_t *find(const Table *t, uint64_t key, uint64_t second)
{
    uint32_t i = (uint32_t)mix64(second, key) & (t->cap - 1), k;

    while ((k = t->first[i]) &&
           (t->entry[k - 1].key != key || t->entry[k - 1].second != second))
        i = (i + 1) & (t->cap - 1);
    return &t->first[i];
}

/* Does the next key need a larger index? Under a sanitizer the index moves more
 * often. */
static int moves(const Table *t)
{
#ifdef __SANITIZE_ADDRESS__
    if (!(t->n & (t->n - 1)))
        return 1;
#endif
    return t->n * 2 >= t->cap;
}

static void move(Table *t)
{
    Table old = *t;

    resize(t, t->n * 2 >= t->cap ? 4 * t->cap : t->cap);
    for (uint32_t i = 0; i < t->n; i++)
        *find(t, t->entry[i].key, t->entry[i].second) = i + 1;
    arena_forget(old.entry, old.cap / 2 * sizeof *old.entry);
}

void **table_at_pair(Table *t, uint64_t key, uint64_t second)
{
    uint32_t *k = find(t, key, second);

    if (!*k) {
        if (moves(t)) {
            move(t);
            k = find(t, key, second);
        }
        t->entry[t->n] = (Entry){ .key = key, .second = second };
        *k = ++t->n;
    }
    return &t->entry[*k - 1].val;
}

void *table_get_pair(const Table *t, uint64_t key, uint64_t second)
{
    uint32_t k = *find(t, key, second);

    return k ? t->entry[k - 1].val : NULL;
}

void **table_at(Table *t, uint64_t key)
{
    return table_at_pair(t, key, 0);
}

void *table_get(const Table *t, uint64_t key)
{
    return table_get_pair(t, key, 0);
}
