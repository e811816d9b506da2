/* heap.c: a heap, and comparisons for qsort and bsearch. */
#include "base.h"

int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int first_from(const int64_t *v, int n, int64_t least)
{
    int lo = 0, hi = n;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (v[mid] < least)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int by_pointer(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int by_key(const void *a, const void *b)
{
    const Keyed *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key)
                            : (x->id > y->id) - (x->id < y->id);
}

void heap_add(Arena *a, Heap *heap, int64_t key, int id)
{
    Keyed x = { key, id };
    int i = heap->n++;

    if (vec_len(heap->at) < (size_t)heap->n)
        vec_push(a, heap->at, x);
    for (; i > 0 && by_key(&x, &heap->at[(i - 1) / 2]) < 0; i = (i - 1) / 2)
        heap->at[i] = heap->at[(i - 1) / 2];
    heap->at[i] = x;
}

Keyed heap_take(Heap *heap)
{
    Keyed top = heap->at[0], x = heap->at[--heap->n];
    int i = 0;

    for (int c; (c = 2 * i + 1) < heap->n; i = c) {
        if (c + 1 < heap->n && by_key(&heap->at[c + 1], &heap->at[c]) < 0)
            c++;
        if (by_key(&heap->at[c], &x) >= 0)
            break;
        heap->at[i] = heap->at[c];
    }
    heap->at[i] = x;
    return top;
}
