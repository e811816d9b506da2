/* heap.c: order by keys: a heap, and comparisons for qsort and bsearch. */
#include <string.h>
#include "plan.h"

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

void heap_add(Arena *a, Heap *h, int64_t key, int id)
{
    Keyed x = { key, id };
    int i = h->n++;

    if (vec_len(h->at) < (size_t)h->n)
        vec_push(a, h->at, x);
    for (; i > 0 && by_key(&x, &h->at[(i - 1) / 2]) < 0; i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = x;
}

Keyed heap_take(Heap *h)
{
    Keyed top = h->at[0], x = h->at[--h->n];
    int i = 0;

    for (int c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && by_key(&h->at[c + 1], &h->at[c]) < 0)
            c++;
        if (by_key(&h->at[c], &x) >= 0)
            break;
        h->at[i] = h->at[c];
    }
    h->at[i] = x;
    return top;
}
