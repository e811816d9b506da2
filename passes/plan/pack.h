/* pack.h: packing of rectangles of time and bytes into minimal height. */
#ifndef PLEAT_PACK_H
#define PLEAT_PACK_H

#include "../../ir/plan/plan.h"

/* A buffer, live at times born..dies, inclusive. */
typedef struct Rect {
    int born, dies;
    int64_t bytes;
    int64_t fixed;  /* required offset, or -1 */
    int64_t offset; /* the result */
} Rect;

typedef struct Packed {
    int64_t height, bound; /* bytes; bound: the largest load */
    int64_t work;          /* work units spent, about 10 ns each */
    const char *how;       /* method that found it */
} Packed;

enum { PACKWORK = 30000000 }; /* default limit of work units */
/* Sets the offsets. goal: a height that is low enough; 0: near the bound. */
Packed pack(Arena *a, Rect *rect, int n, int64_t goal, int64_t work);
/* pack_search.c: searches for offsets below cap. born and dies are sections,
 * bytes are multiples of the alignment, none is fixed. Rectangles are tried in
 * the order of rect. Subtracts from *work. Returns 0 if it found none (offsets
 * are then undefined). */
int pack_under(Arena *a, Rect *rect, int n, int64_t cap, int64_t *work);
/* Returns null if no two rectangles overlap and all are in [0, height) and
 * aligned, otherwise the error. Independent of the packer. */
const char *pack_wrong(Arena *a, const Rect *rect, int n, int64_t height);

#endif
