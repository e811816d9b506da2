/* table.h: hash tables from 64-bit keys, or pointers, to pointers. */
#ifndef PLEAT_TABLE_H
#define PLEAT_TABLE_H

typedef struct Table Table;
Table *table_new(Arena *a);
Table *table_for(Arena *a, size_t n); /* capacity: n */
Arena *table_arena(const Table *t);
/* Returns the key's slot, created if missing and valid until the next
 * insertion. */
void **table_at(Table *t, uint64_t key);
void *table_get(const Table *t, uint64_t key); /* null: missing */
/* table_at and table_get for keys of two words; second = 0 gives those
 * above. */
void **table_at_pair(Table *t, uint64_t key, uint64_t second);
void *table_get_pair(const Table *t, uint64_t key, uint64_t second);
#define KEYP(p) ((uint64_t)(uintptr_t)(p))
/* Hash step. Different (h, x) may give one hash, so users of the hash compare
 * the hashed data too. */
static inline uint64_t mix64(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9ull;
    return h ^ (h >> 29);
}

#endif
