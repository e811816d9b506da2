/* heap.h: comparisons for qsort and bsearch, and a heap. */
#ifndef PLEAT_HEAP_H
#define PLEAT_HEAP_H

#include <stdint.h>

typedef struct Keyed {
    int64_t key;
    int id; /* orders equal keys */
} Keyed;
/* Comparisons in ascending order: Keyed, int64_t, double, pointers, text. */
int by_key(const void *a, const void *b);
int by_value(const void *a, const void *b);
int by_double(const void *a, const void *b);
int by_pointer(const void *a, const void *b);
int by_text(const void *a, const void *b);
/* Returns the index of the first of n ascending numbers that is at least
 * `least`; n: none. */
int first_from(const int64_t *v, int n, int64_t least);

/* Heap with the smallest key on top; zero-initialized: empty. */
typedef struct Heap {
    Keyed *at; /* vec, n of it in use */
    int n;
} Heap;
void heap_add(Arena *a, Heap *heap, int64_t key, int id);
Keyed heap_take(Heap *heap);

#endif
