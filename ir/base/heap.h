/* heap.h: order by keys: comparisons for qsort and bsearch, and a heap. */
#ifndef PLEAT_HEAP_H
#define PLEAT_HEAP_H

#include <stdint.h>

typedef struct Keyed {
    int64_t key;
    int id; /* decides among equal keys */
} Keyed;
/* For qsort and bsearch, ascending: Keyed, int64_t, double, pointers, text. */
int by_key(const void *a, const void *b);
int by_value(const void *a, const void *b);
int by_double(const void *a, const void *b);
int by_pointer(const void *a, const void *b);
int by_text(const void *a, const void *b);
/* Of n ascending numbers the first that is not below `least`; n: none is. */
int first_from(const int64_t *v, int n, int64_t least);

/* The least on top; all zero: empty. */
typedef struct Heap {
    Keyed *at; /* vec, n of it in use */
    int n;
} Heap;
void heap_add(Arena *a, Heap *heap, int64_t key, int id);
Keyed heap_take(Heap *heap);

#endif
