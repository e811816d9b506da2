/* rows.h: kernels that work along one whole axis: topk, cumsum,
 * drop_to_capacity, route, scatter_add, fake_quantize. */
#ifndef PLEAT_ROWS_H
#define PLEAT_ROWS_H

#include "../text/text.h"

/* Generators for hosts (gpu 0) and GPUs (gpu 1). They return the threads of a
 * block that computes one item; 0: one thread computes an item. */
int topk_lower(Graph *g, Group *group, Arena *a, int gpu);
int cumsum_lower(Graph *g, Group *group, Arena *a, int gpu);
int drop_to_capacity_lower(Graph *g, Group *group, Arena *a, int gpu);
int route_lower(Graph *g, Group *group, Arena *a, int gpu);
int scatter_lower(Graph *g, Group *group, Arena *a, int gpu);
int fake_quantize_lower(Graph *g, Group *group, Arena *a, int gpu);
/* zero_lower: clears a buffer. copy_lower: device-to-host and host-to-device
 * copies of offload. */
void zero_lower(Graph *g, Group *group, Arena *a);
void copy_lower(Graph *g, Group *group, Arena *a);
/* Lowers a group that only dispatches whole rows (16-byte pieces) and returns
 * 1; returns 0 and changes nothing for other groups. */
int dispatch_lower_cuda(Graph *g, Group *group, Arena *a);

/* Loops over axes shared by up to three tensors, outermost first: size, and
 * stride in each tensor (elements; 0: the tensor lacks the axis). */
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
    Text after; /* #undef of its macros */
} RowText;

/* Appends axis d of `of`, with its strides in t; adjacent axes merge where
 * their strides allow it in all tensors. */
void row_walk(const Graph *g, RowWalks *walks, const Node *of, int d,
              const Node *const t[3]);
/* Product of the sizes. */
int64_t row_count(const RowWalks *walks);
/* row_begin, row_finish: start a text, make it the group's kernel of `items`
 * items and `work` operations. row_buffer: declares a pointer to n's buffer. */
RowText row_begin(Group *group, Arena *a);
void row_line(RowText *row, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* row_size, row_start: declare `name`, a word of the kernel. row_define: a
 * macro, until the end of the kernel; `name` may have parameters. row_flag: one
 * that is a number. row_offsets: a macro NAME(p, q) that declares p0, p1, p2:
 * the offsets of element number q of the walks in each tensor. */
void row_size(RowText *row, const char *name, int64_t v);
void row_start(RowText *row, const char *name, RankAffine v);
void row_define(RowText *row, const char *name, const char *value);
void row_flag(RowText *row, const char *name, int64_t v);
void row_offsets(RowText *row, const char *name, const RowWalks *walks);
void row_buffer(RowText *row, const char *name, Node *n, Dtype dt);
void row_finish(RowText *row, const Graph *g, int64_t items, int64_t work);
/* ---- codegen/kernels ----------------------------------------------------- */

extern const char capacity_cuh[], cumsum_cuh[], dispatch_cuh[],
    fake_quantize_cuh[], route_cuh[], scatter_cuh[], sort_cuh[], topk_cuh[];

#endif
