/* fake_quantize.c: rounds expert rows to e4m3 with one scale per block of 128
 * rows of a column; blocks start at the first row of each expert. An item is a
 * column of an expert, so adjacent items read adjacent elements. */
#include "rows.h"

int fake_quantize_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *x = n->in[0], *map = n->in[1];
    const Node *t[3] = { n, x, NULL };
    MapLayout l = map_layout(g, map);
    RowText o = row_begin(group, a);
    RowWalks columns = { 0 };
    const char *type = dtypes[compute_type(x->dt)].name;
    const Axis *rows = NULL;

    (void)gpu;
    for (int d = 0; d < x->nd; d++)
        if (g_isrow(x->dim[d].a))
            rows = x->dim[d].a;
        else
            row_walk(g, &columns, x, d, t);
    row_buffer(&o, "x", x, x->dt);
    row_buffer(&o, "off", map, Di32);
    row_buffer(&o, "y", n, n->dt);
    row_size(&o, "w", row_count(&columns));
    row_size(&o, "sy", local_stride(g, n, rows));
    row_size(&o, "sx", local_stride(g, x, rows));
    row_offsets(&o, "COLUMN", &columns);
    row_define(&o, "CT", dtypes[compute_type(x->dt)].compute);
    row_define(&o, "X(at)", text_load(a, x->dt, "x[at]"));
    row_define(&o, "MAGNITUDE", strf(a, "magnitude_%s", type));
    row_define(&o, "POW2", strf(a, "floor_pow2_%s", type));
    row_define(&o, "TO_E4M3(v)", text_save(a, De4m3, "v"));
    row_define(&o, "FROM_E4M3(q)", text_load(a, De4m3, "q"));
    row_define(&o, "SAVE(v)", text_save(a, n->dt, "(v)"));
    row_flag(&o, "BLOCK", SCALEBLOCK);
    put(&o.text, "%s", fake_quantize_cuh);
    row_finish(&o, g, l.experts * row_count(&columns), local_elems(g, x));
    return 0;
}
