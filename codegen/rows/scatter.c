/* scatter.c: scatter_add, out[.. x ..] = sum of the values whose index is x,
 * added in the order of the indices. */
#include "rows.h"

enum { COLUMNS = 64 }; /* columns of an item on hosts */

typedef struct Scatter {
    RowWalks item, in, sum; /* offsets in out, values, indices */
    int64_t width;          /* size of the contiguous axis, cut into COLUMNS */
    int64_t sv;             /* stride of that axis in the values */
} Scatter;

/* out[.. x ..] = sum of v where e = x. The axes of out are items, except the
 * last one that e lacks: it is cut into blocks. Axes that out lacks are
 * summed. */
static Scatter scatter_axes(const Graph *g, const Node *n, const Node *out)
{
    const Node *v = n->in[0], *e = n->in[1], *t[3] = { out, v, e };
    Scatter s = { .width = 1 };
    int last = out->nd - 1, block = -1;

    if (last >= 0 && out->dim[last].a != n->at.scatter_add.axis &&
        dim_of(e, out->dim[last].a) < 0)
        block = last;
    for (int d = 0; d < out->nd; d++)
        if (d != block && out->dim[d].a != n->at.scatter_add.axis)
            row_walk(g, &s.item, out, d, t);
    if (block >= 0) {
        s.width = local_n(g, out, block);
        s.sv = local_stride(g, v, out->dim[block].a);
    }
    for (int d = 0; d < e->nd; d++)
        if (dim_of(out, e->dim[d].a) < 0)
            row_walk(g, &s.sum, e, d, t);
    for (int d = 0; d < v->nd; d++)
        if (dim_of(out, v->dim[d].a) < 0 && dim_of(e, v->dim[d].a) < 0)
            row_walk(g, &s.sum, v, d, t);
    return s;
}

enum { SCATTERBLOCKS = 1024 }; /* most thread blocks of a launch */

/* Declarations and macros of scatter.cuh; nb, parts: see there. */
static void put_scatter(RowText *row, const Graph *g, const Node *n, Node *out,
                        const Scatter *scatter, int64_t nb, int64_t parts)
{
    int at = dim_of(out, n->at.scatter_add.axis), wide = out->dt == Dbf16;
    Dtype value = n->in[0]->dt;
    Piece p[MAXPIECE] = { 0 };
    int two = pieces(g, out, at, p) == 2;

    row_buffer(row, "v", n->in[0], value);
    row_buffer(row, "e", n->in[1], n->in[1]->dt);
    row_buffer(row, "y", out, out->dt);
    row_line(row, "void *const room = %s;",
             wide ? strf(row->arena, "buf[%d]", row->group->narg) : "y");
    row_size(row, "n", local_n(g, out, at));
    row_size(row, "sx", local_stride(g, out, n->at.scatter_add.axis));
    row_start(row, "first", p[0].start);
    row_start(row, "second", p[1].start);
    row_size(row, "half", local_n(g, out, at) / 2);
    row_size(row, "width", scatter->width);
    row_size(row, "sv", scatter->sv);
    row_size(row, "nb", nb);
    row_size(row, "parts", parts);
    row_size(row, "many", row_count(&scatter->sum));
    row_offsets(row, "ITEM", &scatter->item);
    row_offsets(row, "SUM", &scatter->sum);
    row_define(row, "V(at)", text_load(row->arena, value, "v[at]"));
    row_define(row, "Y(at)", text_load(row->arena, out->dt, "y[at]"));
    row_define(row, "SAVE(s)", text_save(row->arena, out->dt, "(s)"));
    row_define(row, "CT", dtypes[compute_type(value)].compute);
    row_define(row, "ST", wide ? "float" : dtypes[out->dt].store);
    row_flag(row, "WIDE", wide);
    row_flag(row, "TWO", two);
    row_flag(row, "ADDS", out->op == Oaccum);
    row_flag(row, "COLUMNS", COLUMNS);
}

int scatter_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *out = group->out[0];
    int at = dim_of(out, n->at.scatter_add.axis), adds = out->op == Oaccum;
    Scatter s = scatter_axes(g, n, out);
    RowText o = row_begin(group, a);
    int64_t wide = gpu ? THREADMAP : COLUMNS;
    int64_t nb = (s.width + wide - 1) / wide, len = local_n(g, out, at);
    while (gpu && nb > 1 && row_count(&s.item) * nb > SCATTERBLOCKS)
        nb = (nb + 1) / 2;
    int64_t items = row_count(&s.item) * nb;
    int64_t parts = gpu ? (SCATTERBLOCKS + items - 1) / items : 1;
    if (parts > len)
        parts = len;

    put_scatter(&o, g, n, out, &s, nb, parts);
    row_flag(&o, "GRID", gpu);
    put(&o.text, "%s", scatter_cuh);
    if (out->dt == Dbf16)
        group->scratch =
            gpu ? local_elems(g, out) * 4 : items * len * COLUMNS * 4;
    row_finish(&o, g, items * parts, items * wide * (len + row_count(&s.sum)));
    if (adds) /* reads and writes only rows with an index */
        group->instr.bytes =
            (double)(local_bytes(g, n->in[0]) + local_bytes(g, n->in[1]) +
                     2 * local_elems(g, n->in[0]) * dtypes[out->dt].bytes);
    return gpu ? THREADMAP : 0;
}
