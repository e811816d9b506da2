/* blend.c: assigns the samples of a blend to datasets by Megatron's greedy
 * rule: sample i is from the dataset that is farthest behind its weight, the
 * first of equals: the largest w[d] * max(i, 1) - count[d].
 *
 * The rule needs all counts before i, so they are stored for every BLOCK
 * samples, and the two blocks used last are stored whole, one for reading and
 * one for reading ahead: a run computes each block once, a resumed one from
 * 0. */
#include "data.h"

enum { BLOCK = 4096 };

struct Blend {
    Arena *mem;
    int n; /* datasets */
    double *w;
    int64_t *count; /* vec: [block][n] before the block */
    int64_t *now;   /* [n] counts while a block is computed */
    struct Kept {
        int64_t block; /* -1: none */
        int16_t set[BLOCK];
        int64_t within[BLOCK];
    } kept[2]; /* [block % 2] */
};

Blend *blend_new(Arena *a, const double *w, int n)
{
    Blend *b = alloc(a, sizeof *b);

    b->mem = a;
    b->n = n;
    b->kept[0].block = b->kept[1].block = -1;
    b->w = alloc(a, (size_t)n * sizeof *b->w);
    b->now = alloc(a, (size_t)n * sizeof *b->now);
    memcpy(b->w, w, (size_t)n * sizeof *w);
    for (int i = 0; i < n; i++)
        vec_push(a, b->count, 0);
    return b;
}

static int most_behind(const Blend *blend, int64_t i)
{
    double x = i > 1 ? (double)i : 1, most = 0;
    int at = 0;

    for (int d = 0; d < blend->n; d++) {
        double lag = blend->w[d] * x - (double)blend->now[d];
        if (!d || lag > most) {
            most = lag;
            at = d;
        }
    }
    return at;
}

static void fill_block(Blend *blend, int64_t block)
{
    size_t known = vec_len(blend->count) / (size_t)blend->n;
    struct Kept *k = &blend->kept[block % 2];

    memcpy(blend->now, blend->count + block * blend->n,
           (size_t)blend->n * sizeof *blend->now);
    for (int64_t i = 0; i < BLOCK; i++) {
        int d = most_behind(blend, block * BLOCK + i);
        k->set[i] = (int16_t)d;
        k->within[i] = blend->now[d]++;
    }
    k->block = block;
    if (known == (size_t)block + 1)
        for (int d = 0; d < blend->n; d++)
            vec_push(blend->mem, blend->count, blend->now[d]);
}

int blend_at(Blend *blend, int64_t i, int64_t *within)
{
    int64_t block = i / BLOCK;

    while ((int64_t)vec_len(blend->count) / blend->n <= block)
        fill_block(blend, (int64_t)vec_len(blend->count) / blend->n - 1);
    const struct Kept *k = &blend->kept[block % 2];
    if (k->block != block)
        fill_block(blend, block);
    *within = k->within[i % BLOCK];
    return k->set[i % BLOCK];
}
