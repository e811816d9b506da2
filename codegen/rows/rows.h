/* rows.h: kernels along one whole axis. */
#ifndef PLEAT_ROWS_H
#define PLEAT_ROWS_H

#include "../text/text.h"

void topk_lower(Graph *g, Group *k, Arena *a); /* row_kernels.c */
void zero_lower(Graph *g, Group *k, Arena *a); /* row_kernels.c */
void cumsum_lower(Graph *g, Group *k, Arena *a);
void drop_to_capacity_lower(Graph *g, Group *k, Arena *a);
void route_lower(Graph *g, Group *k, Arena *a);
void scatter_lower(Graph *g, Group *k, Arena *a);
/* For a GPU; 1: an item is a block of 256 threads, 0: a thread. */
int topk_lower_cuda(Graph *g, Group *k, Arena *a);
int cumsum_lower_cuda(Graph *g, Group *k, Arena *a);
int keep_lower_cuda(Graph *g, Group *k, Arena *a);
int route_lower_cuda(Graph *g, Group *k, Arena *a);
int scatter_lower_cuda(Graph *g, Group *k, Arena *a);
/* 1: the group is a dispatch of whole rows, and lowered; 0: nothing done. */
int dispatch_lower_cuda(Graph *g, Group *k, Arena *a);

/* Axes of up to three tensors, from the outermost: size, strides. */
typedef struct RowWalk {
    int64_t n, s[3];
} RowWalk;
typedef struct RowWalks {
    int n;
    RowWalk at[2 * MAXD];
} RowWalks;
typedef struct RowText {
    Group *k;
    Arena *a;
    Text t;
} RowText;

int64_t row_stride(const Graph *g, const Node *n, const Axis *a);
/* One more: axis d of `of`, with its strides in t. */
void row_walk(const Graph *g, RowWalks *w, const Node *of, int d,
              const Node *const t[3]);
int64_t row_count(const RowWalks *w);
RowText row_begin(Group *k, Arena *a);
void row_line(RowText *o, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int row_size(RowText *o, int64_t v); /* its index in iv */
void row_buffer(RowText *o, const char *name, Node *n, Dtype dt);
void row_finish(RowText *o, const Graph *g, int64_t items, int64_t work);
/* Declare <name>0 <name>1 ..: offsets of the setting number q of the walks. */
void row_decode(RowText *o, const RowWalks *w, const char *q, const char *name,
                int tensors);
const char *row_load(Arena *a, Dtype dt, const char *x);
const char *row_save(Arena *a, Dtype dt, const char *x);
extern const char row_before[]; /* #define BEFORE(x, i, y, j): see topk */

#endif
