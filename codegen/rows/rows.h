/* rows.h: kernels along one whole axis. */
#ifndef PLEAT_ROWS_H
#define PLEAT_ROWS_H

#include "../text/text.h"

/* For a host or a GPU; there: the threads of a block that an item is, 0: an
 * item is a thread. */
int topk_lower(Graph *g, Group *group, Arena *a, int gpu);
int cumsum_lower(Graph *g, Group *group, Arena *a, int gpu);
int drop_to_capacity_lower(Graph *g, Group *group, Arena *a, int gpu);
int route_lower(Graph *g, Group *group, Arena *a, int gpu);
int scatter_lower(Graph *g, Group *group, Arena *a, int gpu);
int fake_quantize_lower(Graph *g, Group *group, Arena *a, int gpu);
void zero_lower(Graph *g, Group *group, Arena *a);
void copy_lower(Graph *g, Group *group, Arena *a); /* offload, reload */
/* 1: the group is a dispatch of whole rows, and lowered; 0: nothing done. */
int dispatch_lower_cuda(Graph *g, Group *group, Arena *a);

/* Axes of up to three tensors, from the outermost: size, strides. */
typedef struct RowWalk {
    int64_t n, s[3];
} RowWalk;
typedef struct RowWalks {
    int n;
    RowWalk at[2 * MAXD];
} RowWalks;
typedef struct RowText {
    Group *group;
    Arena *arena;
    Text text;
} RowText;

/* One more: axis d of `of`, with its strides in t. */
void row_walk(const Graph *g, RowWalks *walks, const Node *of, int d,
              const Node *const t[3]);
int64_t row_count(const RowWalks *walks);
RowText row_begin(Group *group, Arena *a);
void row_line(RowText *row, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int row_size(RowText *row, int64_t v); /* its index in iv */
void row_buffer(RowText *row, const char *name, Node *n, Dtype dt);
void row_finish(RowText *row, const Graph *g, int64_t items, int64_t work);
/* Declare <name>0 <name>1 ..: offsets of the setting number q of the walks. */
void row_decode(RowText *row, const RowWalks *walks, const char *q,
                const char *name, int tensors);
extern const char row_before[]; /* #define BEFORE(x, i, y, j): see topk */

#endif
