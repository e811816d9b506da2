/* table.h: a map from 64-bit keys, or pointers, to pointers. */
#ifndef PLEAT_TABLE_H
#define PLEAT_TABLE_H

typedef struct Table Table;
Table *table_new(Arena *a);
Table *table_for(Arena *a, size_t n); /* with room for so many */
Arena *table_arena(const Table *t);
/* Slot, made when missing; it moves when the next key comes. */
void **table_at(Table *t, uint64_t key);
void *table_get(const Table *t, uint64_t key); /* null: missing */
/* The same for keys of two words; with second = 0, those above. */
void **table_at_pair(Table *t, uint64_t key, uint64_t second);
void *table_get_pair(const Table *t, uint64_t key, uint64_t second);
#define KEYP(p) ((uint64_t)(uintptr_t)(p))
/* Hash step. Two (h, x) may give one hash, and do where h is an address: no
 * identity. Who finds something by it compares what was hashed. */
static inline uint64_t mix64(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9ull;
    return h ^ (h >> 29);
}

#endif
