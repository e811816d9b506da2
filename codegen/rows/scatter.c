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

/* Declares x, the local index of the global index q. two: the axis has two
 * zigzag pieces on each rank. */
static void put_local_index(RowText *row, int two)
{
    row_line(row, two ? "int64_t x = (int64_t)e[p2 + q2] - first;"
                      : "const int64_t x = (int64_t)e[p2 + q2] - first;");
    if (two) {
        row_line(row, "if ((uint64_t)x >= (uint64_t)half) {");
        row_line(row, "    x += first - second;");
        row_line(row, "    x = (uint64_t)x < (uint64_t)half ? x + half : -1;");
        row_line(row, "}");
    }
}

static void scatter_text(RowText *row, const Node *n, const Node *out,
                         const Scatter *scatter, int adds, int two)
{
    Dtype dt = out->dt;
    int wide = dt == Dbf16; /* sums in fp32 workspace */
    const char *to = wide ? "work[x * 64 + l]" : "y[p0 + x * sx + l]";

    row_line(row, "for (int64_t p = lo; p < hi; p++) {");
    row_line(row, "const int64_t f = p %% nb * %d;", COLUMNS);
    row_line(row, "const int64_t w = width - f < %d ? width - f : %d;", COLUMNS,
             COLUMNS);
    row_decode(row, &scatter->item, "p / nb", "p", 3);
    row_line(row, "p0 += f, p1 += f * sv;");
    if (wide)
        row_line(row, "float *const work = (float *)buf[%d] + p * n * %d;",
                 row->group->narg, COLUMNS);
    if (!adds) {
        row_line(row, "for (int64_t x = 0; x < n; x++)");
        row_line(row, "    for (int64_t l = 0; l < w; l++)");
        row_line(row, "        %s = 0;", to);
    }
    row_line(row, "for (int64_t q = 0; q < many; q++) {");
    row_decode(row, &scatter->sum, "q", "q", 3);
    put_local_index(row, two);
    row_line(row, "if ((uint64_t)x >= (uint64_t)n)");
    row_line(row, "    continue;");
    put(&row->text, "#pragma GCC ivdep\n");
    row_line(row, "for (int64_t l = 0; l < w; l++)");
    row_line(row, "    %s += %s;", to,
             text_load(row->arena, n->in[0]->dt, "v[p1 + q1 + l * sv]"));
    row_line(row, "}");
    if (wide) {
        row_line(row, "for (int64_t x = 0; x < n; x++)");
        row_line(row, "    for (int64_t l = 0; l < w; l++)");
        row_line(row, "        y[p0 + x * sx + l] = %s;",
                 text_save(row->arena, dt, to));
    }
    row_line(row, "}");
}

/* GPU kernel. Each block owns every parts-th index x and 256 columns of the
 * contiguous axis, or a multiple of 256: every block scans all indices, so
 * there are no more blocks than keep the GPU busy. Frequent indices (common
 * tokens) are often adjacent, so the indices of one block are interleaved; one
 * very frequent index is divided over blocks by columns
 * (decisions/scatter-blocks.md). A block scans 256 indices at a time and
 * appends its own to a list in order. When the list is full, or at the end,
 * each thread adds its columns with AHEAD loads in flight; a repeated index
 * continues from the earlier sum. bf16 results are summed in fp32 workspace of
 * the same layout. */
enum { SCATTERBLOCKS = 1024 }; /* most thread blocks of a launch */

static void put_hits(RowText *row, const Scatter *scatter, int two)
{
    row_line(row, "const int64_t q = i0 + TID;");
    row_line(row, "int64_t to_x = 0, to_v = 0;");
    row_line(row, "int hit = 0, all;");
    row_line(row, "if (q < many) {");
    row_decode(row, &scatter->sum, "q", "q", 3);
    row_line(row, "(void)q0;");
    put_local_index(row, two);
    row_line(row, "hit = (uint64_t)x < (uint64_t)n && x %% parts == part;");
    row_line(row, "to_x = x * sx, to_v = q1;");
    row_line(row, "}");
    row_line(row, "const int at = have + block_before(hit, all);");
    row_line(row, "if (hit)");
    row_line(row, "    place[at] = to_x, value[at] = to_v;");
    row_line(row, "have += all;");
    row_line(row, "if (have <= THREADS && i0 + THREADS < many)");
    row_line(row, "    continue;");
    row_line(row, "__syncthreads();");
}

/* Loop over the columns of the block. A column belongs to one thread, so sums
 * need no barrier. */
static void put_columns(RowText *row)
{
    row_line(row, "for (int64_t l = l0; l < width; l += nb * THREADS)");
}

static void scatter_blocks(RowText *row, const Node *n, const Node *out,
                           const Scatter *scatter, int adds, int two)
{
    Dtype sum = compute_type(out->dt);
    const char *ct = dtypes[compute_type(n->in[0]->dt)].compute;

    row_line(row, "enum { AHEAD = 8 };");
    row_line(row, "__shared__ int64_t place[2 * THREADS], value[2 * THREADS];");
    row_line(row, "int have = 0;");
    if (sum != out->dt)
        row_line(row, "%s *const sum = buf[%d];", dtypes[sum].store,
                 row->group->narg);
    else
        row_line(row, "%s *const sum = y;", dtypes[sum].store);
    row_line(row,
             "const int64_t p = blockIdx.x, l0 = p %% nb * THREADS + TID;");
    row_line(row, "const int64_t part = p / nb %% parts;");
    row_decode(row, &scatter->item, "p / nb / parts", "p", 3);
    if (!adds || sum != out->dt) {
        put_columns(row);
        row_line(row, "    for (int64_t x = part; x < n; x += parts)");
        row_line(row, "        sum[p0 + x * sx + l] = %s;",
                 !adds ? "0"
                       : text_load(row->arena, out->dt, "y[p0 + x * sx + l]"));
    }
    row_line(row, "for (int64_t i0 = 0; i0 < many; i0 += THREADS) {");
    put_hits(row, scatter, two);
    put_columns(row);
    row_line(row, "for (int h = 0; h < have; h += AHEAD) {");
    row_line(row, "    int64_t x[AHEAD];");
    row_line(row, "    %s w[AHEAD];", ct);
    row_line(row, "    %s z[AHEAD];", dtypes[sum].store);
    put(&row->text, "#pragma unroll\n");
    row_line(row, "    for (int j = 0; j < AHEAD; j++) {");
    row_line(row, "        const bool in = h + j < have;");
    row_line(row, "        x[j] = in ? p0 + place[h + j] + l : -1;");
    row_line(
        row, "        w[j] = in ? %s : (%s)0;",
        text_load(row->arena, n->in[0]->dt, "v[p1 + value[h + j] + l * sv]"),
        ct);
    row_line(row, "        z[j] = in ? sum[x[j]] : 0;");
    row_line(row, "    }");
    put(&row->text, "#pragma unroll\n");
    row_line(row, "    for (int j = 0; j < AHEAD; j++) {");
    put(&row->text, "#pragma unroll\n");
    row_line(row, "        for (int i = 0; i < j; i++)");
    row_line(row, "            z[j] = x[i] == x[j] ? z[i] : z[j];");
    row_line(row, "        z[j] += w[j];");
    row_line(row, "    }");
    put(&row->text, "#pragma unroll\n");
    row_line(row, "    for (int j = 0; j < AHEAD; j++)");
    row_line(row, "        if (h + j < have)");
    row_line(row, "            sum[x[j]] = z[j];");
    row_line(row, "}");
    row_line(row, "have = 0;");
    row_line(row, "}");
    if (sum != out->dt) {
        put_columns(row);
        row_line(row, "    for (int64_t x = part; x < n; x += parts)");
        row_line(row, "        y[p0 + x * sx + l] = %s;",
                 text_save(row->arena, out->dt, "sum[p0 + x * sx + l]"));
    }
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
    Piece p[MAXPIECE];
    int two = pieces(g, out, at, p) == 2;

    row_buffer(&o, "v", n->in[0], n->in[0]->dt);
    row_buffer(&o, "e", n->in[1], n->in[1]->dt);
    row_buffer(&o, "y", out, out->dt);
    row_line(&o, "const int64_t n = iv[%d], sx = iv[%d], first = iv[%d];",
             row_size(&o, len),
             row_size(&o, local_stride(g, out, n->at.scatter_add.axis)),
             add_int(group, a, p[0].start));
    if (two)
        row_line(&o, "const int64_t half = n / 2, second = iv[%d];",
                 add_int(group, a, p[1].start));
    row_line(&o, "const int64_t width = iv[%d], nb = iv[%d], sv = iv[%d];",
             row_size(&o, s.width), row_size(&o, nb), row_size(&o, s.sv));
    row_line(&o, "const int64_t many = iv[%d];",
             row_size(&o, row_count(&s.sum)));
    if (gpu) {
        row_line(&o, "const int64_t parts = iv[%d];", row_size(&o, parts));
        scatter_blocks(&o, n, out, &s, adds, two);
    } else {
        scatter_text(&o, n, out, &s, adds, two);
    }
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
