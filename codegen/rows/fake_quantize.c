/* fake_quantize.c: rounds expert rows to e4m3 with one scale per block of 128
 * rows of a column; blocks start at the first row of each expert. An item is a
 * column of an expert, so adjacent items read adjacent elements. */
#include "rows.h"

static void put_scale_block(RowText *row, const Node *x, Dtype out)
{
    const char *ct = dtypes[compute_type(x->dt)].compute;
    const char *type = dtypes[compute_type(x->dt)].name;
    const char *v = text_load(row->arena, x->dt, "x[p1 + r * sx]");
    const char *q = text_save(row->arena, De4m3, strf(row->arena, "%s * s", v));

    row_line(row, "%s a = 0;", ct);
    row_line(row, "for (int64_t r = r0; r < r1; r++) {");
    row_line(row, "    const %s v = magnitude_%s(%s);", ct, type, v);
    row_line(row, "    a = v > a ? v : a;");
    row_line(row, "}");
    row_line(row, "%s most = (%s)%d / a;", ct, ct, E4M3MAX);
    row_line(row, "most = most < (%s)3.4028234663852886e38", ct);
    row_line(row, "           ? most : (%s)3.4028234663852886e38;", ct);
    row_line(row, "const %s s = floor_pow2_%s(a == 0 ? 1 : most + (a - a));",
             ct, type);
    row_line(row, "for (int64_t r = r0; r < r1; r++) {");
    row_line(row, "    const e4m3_t q = %s;", q);
    row_line(row, "    y[p0 + r * sy] = %s;",
             text_save(row->arena, out,
                       strf(row->arena, "(%s)%s * (1 / s)", ct,
                            text_load(row->arena, De4m3, "q"))));
    row_line(row, "}");
}

int fake_quantize_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *x = n->in[0], *map = n->in[1];
    const Node *t[3] = { n, x, NULL };
    MapLayout l = map_layout(g, map);
    RowText o = row_begin(group, a);
    RowWalks columns = { 0 };
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
    row_line(&o, "const int64_t w = iv[%d], sy = iv[%d], sx = iv[%d];",
             row_size(&o, row_count(&columns)),
             row_size(&o, local_stride(g, n, rows)),
             row_size(&o, local_stride(g, x, rows)));
    row_line(&o, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(&o, &columns, "p % w", "p", 2);
    row_line(&o, "const int64_t end = off[p / w + 1];");
    row_line(&o, "for (int64_t r0 = off[p / w]; r0 < end; r0 += %d) {",
             SCALEBLOCK);
    row_line(&o, "const int64_t r1 = end - r0 < %d ? end : r0 + %d;",
             SCALEBLOCK, SCALEBLOCK);
    put_scale_block(&o, x, n->dt);
    row_line(&o, "}");
    row_line(&o, "}");
    row_finish(&o, g, l.experts * row_count(&columns), local_elems(g, x));
    return 0;
}
