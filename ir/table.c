/* table.c: open addressing from 64-bit keys, or pairs of them, to pointers.
 * Keys are compared whole. Key 0 is allowed. */
#include "ir.h"

typedef struct Slot64 {
    uint64_t key, second;
    void *val;
    int used;
} Slot64;

struct Table {
    Arena *arena;
    size_t n, cap; /* cap is a power of two */
    Slot64 *slot;
};

Table *table_for(Arena *a, size_t n)
{
    Table *t = alloc(a, sizeof *t);

    t->arena = a;
    t->cap = 64;
    while (t->cap < 2 * n + 2)
        t->cap *= 2;
    t->slot = alloc(a, t->cap * sizeof *t->slot);
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

static Slot64 *find(const Table *t, uint64_t key, uint64_t second)
{
    size_t i = mix64(second, key) & (t->cap - 1);

    while (t->slot[i].used &&
           (t->slot[i].key != key || t->slot[i].second != second))
        i = (i + 1) & (t->cap - 1);
    return &t->slot[i];
}

/* Does the next key need other slots? Where a sanitizer watches, they change
 * more often. */
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

    if (t->n * 2 >= t->cap)
        t->cap *= 4;
    t->slot = alloc(t->arena, t->cap * sizeof *t->slot);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slot[i].used)
            *find(t, old.slot[i].key, old.slot[i].second) = old.slot[i];
    arena_forget(old.slot, old.cap * sizeof *old.slot);
}

void **table_at_pair(Table *t, uint64_t key, uint64_t second)
{
    Slot64 *s = find(t, key, second);

    if (!s->used) {
        if (moves(t)) {
            move(t);
            s = find(t, key, second);
        }
        *s = (Slot64){ .key = key, .second = second, .used = 1 };
        t->n++;
    }
    return &s->val;
}

void *table_get_pair(const Table *t, uint64_t key, uint64_t second)
{
    const Slot64 *s = find(t, key, second);

    return s->used ? s->val : NULL;
}

void **table_at(Table *t, uint64_t key)
{
    return table_at_pair(t, key, 0);
}

void *table_get(const Table *t, uint64_t key)
{
    return table_get_pair(t, key, 0);
}
