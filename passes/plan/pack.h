/* pack.h: rectangles of time and bytes, in as little memory as we can. */
#ifndef PLEAT_PACK_H
#define PLEAT_PACK_H

#include "../../ir/plan/plan.h"

/* A buffer to be placed: alive at the times born..dies, both included. */
typedef struct Rect {
    int born, dies;
    int64_t bytes;
    int64_t fixed;  /* the offset it must have, or -1 */
    int64_t offset; /* the result */
} Rect;

typedef struct Packed {
    int64_t height, bound; /* bytes; bound: the largest load */
    int64_t work;          /* units spent, about 10 ns each */
    const char *how;       /* what found it */
} Packed;

enum { PACKWORK = 30000000 }; /* default limit of work */
/* goal: a height that is low enough; 0: what is near the bound. */
Packed pack(Arena *a, Rect *rect, int n, int64_t goal, int64_t work);
/* pack_search.c: offsets under cap, by search; born and dies are sections,
 * bytes multiples of the alignment, none fixed. The order of rect is the order
 * of trial. Takes from *work; zero when it found none (rect's offsets are then
 * undefined). */
int pack_under(Arena *a, Rect *rect, int n, int64_t cap, int64_t *work);
/* Null when no two rectangles overlap, all lie in [0, height) and are aligned;
 * otherwise what is wrong. Knows nothing of how they were placed. */
const char *pack_wrong(Arena *a, const Rect *rect, int n, int64_t height);

#endif
