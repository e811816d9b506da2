/* row_kernels.c: kernels along one whole axis: topk and cumsum; route.c and
 * scatter.c have the others. Operands may have any layout: axes become (size,
 * strides), and axes that are contiguous in all tensors merge, so few texts
 * cover all layouts. The order of additions does not depend on the number of
 * threads. */
#include "rows.h"

/* SELECT: largest k selected by passes. GRAIN: least operations of a thread. */
enum { SELECT = 32, GRAIN = 16384 };

/* ---- axes as sizes and strides ------------------------------------------- */

void row_walk(const Graph *g, RowWalks *walks, const Node *of, int d,
              const Node *const t[3])
{
    RowWalk x = { local_n(g, of, d), { 0 } };

    for (int i = 0; i < 3; i++)
        x.s[i] = t[i] ? local_stride(g, t[i], of->dim[d].a) : 0;
    if (walks->n && x.n > 1) {
        RowWalk *walk = &walks->at[walks->n - 1];
        if (walk->s[0] == x.n * x.s[0] && walk->s[1] == x.n * x.s[1] &&
            walk->s[2] == x.n * x.s[2]) {
            x.n *= walk->n;
            *walk = x;
            return;
        }
    }
    if (x.n > 1)
        walks->at[walks->n++] = x;
}

int64_t row_count(const RowWalks *walks)
{
    int64_t c = 1;

    for (int i = 0; i < walks->n; i++)
        c *= walks->at[i].n;
    return c;
}

/* ---- text ---------------------------------------------------------------- */

void row_line(RowText *row, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&row->text, 1, fmt, ap);
    va_end(ap);
}

int row_size(RowText *row, int64_t v)
{
    return add_size(row->group, row->arena, v);
}

RowText row_begin(Group *group, Arena *a)
{
    RowText o = { group, a, { .arena = a } };

    put(&o.text, "{\n");
    return o;
}

void row_buffer(RowText *row, const char *name, Node *n, Dtype dt)
{
    int i = add_arg(row->group, row->arena, n);

    row_line(row, "%s *const %s = buf[%d];", dtypes[dt].store, name, i);
}

void row_finish(RowText *row, const Graph *g, int64_t items, int64_t work)
{
    Group *group = row->group;
    int64_t per = work / (items ? items : 1) + 1;

    put(&row->text, "}\n");
    set_items(group, items, per >= GRAIN ? 1 : GRAIN / per);
    set_text(group, row->arena, row->text.s);
    set_label(group, row->arena, group->node[0]);
    group->instr.flops = (double)work;
    for (int i = 0; i < group->narg; i++)
        group->instr.bytes += (double)local_bytes(g, group->arg[i]);
}

void row_decode(RowText *row, const RowWalks *walks, const char *q,
                const char *name, int tensors)
{
    row_line(row, "int64_t r%s = %s;", name, q);
    for (int i = 0; i < tensors; i++)
        row_line(row, "int64_t %s%d = 0;", name, i);
    for (int d = walks->n - 1; d >= 0; d--) {
        int n = row_size(row, walks->at[d].n);
        for (int i = 0; i < tensors; i++)
            if (walks->at[d].s[i])
                row_line(row, "%s%d += r%s %% iv[%d] * iv[%d];", name, i, name,
                         n, row_size(row, walks->at[d].s[i]));
        row_line(row, "r%s /= iv[%d];", name, n);
    }
    row_line(row, "(void)r%s;", name);
}

/* ---- topk ---------------------------------------------------------------- */

/* Does (x, i) precede (y, j)? Larger values first, NaN last, ties by the lower
 * index. */
const char row_before[] =
    "#define BEFORE(x, i, y, j) ((x) > (y) || ((y) != (y) && (x) == (x)) || "
    "\\\n"
    "    (((x) == (y) || ((x) != (x) && (y) != (y))) && (i) < (j)))\n";

/* k passes, one per result: for small k. */
static void topk_passes(RowText *row, const char *ct, const char *x)
{
    row_line(row, "%s last = 0;", ct);
    row_line(row, "int64_t li = -1;");
    row_line(row, "for (int64_t c = 0; c < k; c++) {");
    row_line(row, "    %s best = 0;", ct);
    row_line(row, "    int64_t bi = -1;");
    row_line(row, "    for (int64_t i = 0; i < n; i++) {");
    row_line(row, "        const %s v = %s;", ct, x);
    row_line(row, "        if ((li < 0 || BEFORE(last, li, v, i)) &&");
    row_line(row, "            (bi < 0 || BEFORE(v, i, best, bi)))");
    row_line(row, "            best = v, bi = i;");
    row_line(row, "    }");
    row_line(row, "    y[p1 + c * sy] = (int32_t)bi;");
    row_line(row, "    last = best, li = bi;");
    row_line(row, "}");
}

/* Merge sort of all indices in the item's workspace. */
static void topk_sort(RowText *row, const char *ct, const char *x)
{
    row_line(row, "int32_t *s = work + p * 2 * n, *d = s + n;");
    row_line(row, "for (int64_t i = 0; i < n; i++)");
    row_line(row, "    s[i] = (int32_t)i;");
    row_line(row, "for (int64_t w = 1; w < n; w *= 2) {");
    row_line(row, "    for (int64_t f = 0; f < n; f += 2 * w) {");
    row_line(row, "        int64_t m = f + w < n ? f + w : n;");
    row_line(row, "        const int64_t e = m + w < n ? m + w : n, h = m;");
    row_line(row, "        for (int64_t a = f, c = f; c < e; c++) {");
    row_line(row, "            int left = a < h;");
    row_line(row, "            if (left && m < e) {");
    row_line(row, "                int64_t i = s[a];");
    row_line(row, "                const %s v = %s;", ct, x);
    row_line(row, "                const int64_t j = i;");
    row_line(row, "                i = s[m];");
    row_line(row, "                const %s u = %s;", ct, x);
    row_line(row, "                left = BEFORE(v, j, u, i);");
    row_line(row, "            }");
    row_line(row, "            d[c] = left ? s[a++] : s[m++];");
    row_line(row, "        }");
    row_line(row, "    }");
    row_line(row, "    int32_t *t = s;");
    row_line(row, "    s = d, d = t;");
    row_line(row, "}");
    row_line(row, "for (int64_t c = 0; c < k; c++)");
    row_line(row, "    y[p1 + c * sy] = s[c];");
}

/* GPU, small k: one warp per item. Lane l has the order keys of elements l, l +
 * 32, .. and a mask of those already taken. Each of k rounds takes the first
 * element of the warp. */
enum { WARPLANES = 32 };

static void topk_warp(RowText *row, const char *ct, const char *x)
{
    row_line(row, "enum { EACH = (N + 31) / 32 };");
    row_line(row, "const int lane = TID & 31;");
    row_line(row, "typedef decltype(order_key((%s)0)) Key;", ct);
    row_line(row, "Key v[EACH];");
    row_line(row, "uint32_t gone = 0;");
    row_line(row, "int32_t mine = 0;");
    put(&row->text, "#pragma unroll\n");
    row_line(row, "for (int j = 0; j < EACH; j++) {");
    row_line(row, "    const int i = j * 32 + lane;");
    row_line(row, "    v[j] = i < N ? order_key(%s) : 0;", x);
    row_line(row, "    gone |= (i >= N ? 1u : 0u) << j;");
    row_line(row, "}");
    row_line(row, "for (int c = 0; c < k; c++) {");
    row_line(row, "    Key best = 0;");
    row_line(row, "    int bi = -1;");
    put(&row->text, "#pragma unroll\n");
    row_line(row, "    for (int j = 0; j < EACH; j++)");
    row_line(row, "        if (!(gone >> j & 1) && (bi < 0 || v[j] > best))");
    row_line(row, "            best = v[j], bi = j * 32 + lane;");
    row_line(row, "    bi = warp_first(best, bi);");
    row_line(row, "    gone |= (lane == (bi & 31) ? 1u : 0u) << (bi >> 5);");
    row_line(row, "    mine = lane == c ? bi : mine;");
    row_line(row, "}");
    row_line(row, "if (lane < k)");
    row_line(row, "    y[p1 + lane * sy] = mine;");
}

/* GPU, large k: one block per item. Bitonic sort of all indices in workspace
 * padded to a power of two; padding is -1 and sorts last. */
static void topk_block(RowText *row, const char *ct, const char *x)
{
    row_line(row, "const auto value = [&](int64_t i) -> %s { return %s; };", ct,
             x);
    row_line(row, "const auto before = [&](int i, int j) {");
    row_line(row, "    if (i < 0 || j < 0)");
    row_line(row, "        return i >= 0 && j < 0;");
    row_line(row, "    const %s v = value(i), u = value(j);", ct);
    row_line(row, "    return BEFORE(v, i, u, j) ? true : false;");
    row_line(row, "};");
    row_line(row, "int32_t *const s = work + p * room;");
    row_line(row, "for (int i = TID; i < room; i += THREADS)");
    row_line(row, "    s[i] = i < n ? i : -1;");
    row_line(row, "for (int w = 2; w <= room; w *= 2)");
    row_line(row, "    for (int h = w / 2; h; h /= 2) {");
    row_line(row, "        __syncthreads();");
    row_line(row, "        for (int q = TID; q < room / 2; q += THREADS) {");
    row_line(row,
             "            const int a = q / h * 2 * h + q %% h, b = a + h;");
    row_line(row, "            const int i = s[a], j = s[b];");
    row_line(row, "            if (a & w ? before(i, j) : before(j, i))");
    row_line(row, "                s[a] = j, s[b] = i;");
    row_line(row, "        }");
    row_line(row, "    }");
    row_line(row, "__syncthreads();");
    row_line(row, "for (int c = TID; c < k; c += THREADS)");
    row_line(row, "    y[p1 + c * sy] = s[c];");
}

/* Host: k passes, or a sort. GPU: a warp or a block per item. */
typedef enum TopkForm { TOPKpasses, TOPKsort, TOPKwarp, TOPKblock } TopkForm;

static TopkForm topk_form(const Node *n, int64_t len, int gpu)
{
    if (gpu)
        return n->at.topk.k > SELECT || len > WARPLANES * WARPLANES ? TOPKblock
                                                                    : TOPKwarp;
    return n->at.topk.k > SELECT ? TOPKsort : TOPKpasses;
}

static int64_t power_of_two(int64_t n)
{
    int64_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

/* Begins the text that computes item p. */
static void topk_item(RowText *row, TopkForm form, int64_t items, int64_t len)
{
    if (form == TOPKsort || form == TOPKblock)
        row_line(row, "int32_t *const work = buf[%d];", row->group->narg);
    put(&row->text, "%s", row_before);
    if (form == TOPKwarp) {
        row_line(row, "enum { N = %ld }; (void)n;", len);
        row_line(row,
                 "const int64_t p = (int64_t)blockIdx.x * (THREADS / 32) + "
                 "(TID >> 5);");
        row_line(row, "if (p < iv[%d]) {", row_size(row, items));
    } else if (form == TOPKblock) {
        row_line(row, "enum { room = %ld };", power_of_two(len));
        row_line(row, "const int64_t p = blockIdx.x;");
        row_line(row, "{");
    } else {
        row_line(row, "for (int64_t p = lo; p < hi; p++) {");
    }
}

int topk_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks w = { 0 };
    RowText o = row_begin(group, a);
    int at = dim_of(x, n->at.topk.axis);
    int64_t len = local_n(g, x, at);
    TopkForm form = topk_form(n, len, gpu);
    const char *ct = dtypes[compute_type(x->dt)].compute;

    for (int d = 0; d < x->nd; d++)
        if (d != at)
            row_walk(g, &w, x, d, t);
    row_buffer(&o, "x", x, x->dt);
    row_buffer(&o, "y", n, Di32);
    row_line(
        &o, "const int64_t n = iv[%d], sx = iv[%d], k = iv[%d], sy = iv[%d];",
        row_size(&o, len), row_size(&o, local_stride(g, x, n->at.topk.axis)),
        row_size(&o, n->at.topk.k),
        row_size(&o, local_stride(g, n, n->at.topk.new)));
    int64_t items = row_count(&w);
    topk_item(&o, form, items, len);
    row_decode(&o, &w, "p", "p", 2);
    const char *v = text_load(a, x->dt, "x[p0 + i * sx]");
    static void (*const body[])(RowText *, const char *, const char *) = {
        [TOPKpasses] = topk_passes,
        [TOPKsort] = topk_sort,
        [TOPKwarp] = topk_warp,
        [TOPKblock] = topk_block,
    };
    body[form](&o, ct, v);
    row_line(&o, "}");
    put(&o.text, "#undef BEFORE\n");
    if (form == TOPKsort || form == TOPKblock)
        group->scratch =
            items * (form == TOPKsort ? 2 * len : power_of_two(len)) * 4;
    row_finish(&o, g, form == TOPKwarp ? (items + 7) / 8 : items,
               items * len * (n->at.topk.k > SELECT ? 16 : n->at.topk.k));
    return gpu ? THREADMAP : 0;
}

/* ---- cumsum -------------------------------------------------------------- */

static void cumsum_items(RowText *row, const RowWalks *walks, const char *ct,
                         const char *x, const char *y)
{
    row_line(row, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(row, walks, "p", "p", 2);
    row_line(row, "%s s = 0;", ct);
    row_line(row, "for (int64_t i = 0; i < n; i++) {");
    row_line(row, "    s += %s;", x);
    row_line(row, "    y[p1 + i * sy] = %s;", y);
    row_line(row, "}");
    row_line(row, "}");
}

/* GPU: one block per item; a thread sums EACH consecutive values. */
static void cumsum_blocks(RowText *row, const RowWalks *walks, const char *ct,
                          const char *x, const char *y)
{
    row_line(row, "enum { EACH = 8 };");
    row_line(row, "const int64_t p = blockIdx.x;");
    row_decode(row, walks, "p", "p", 2);
    row_line(row, "%s before = 0;", ct);
    row_line(row, "for (int64_t i0 = 0; i0 < n; i0 += THREADS * EACH) {");
    row_line(row, "    const int64_t from = i0 + TID * EACH;");
    row_line(row, "    %s v[EACH], mine = 0, all;", ct);
    put(&row->text, "#pragma unroll\n");
    row_line(row, "    for (int j = 0; j < EACH; j++) {");
    row_line(row, "        const int64_t i = from + j;");
    row_line(row, "        v[j] = i < n ? %s : (%s)0;", x, ct);
    row_line(row, "        mine += v[j];");
    row_line(row, "    }");
    row_line(row, "    %s s = before + block_before(mine, all);", ct);
    put(&row->text, "#pragma unroll\n");
    row_line(row, "    for (int j = 0; j < EACH; j++) {");
    row_line(row, "        const int64_t i = from + j;");
    row_line(row, "        s += v[j];");
    row_line(row, "        if (i < n)");
    row_line(row, "            y[p1 + i * sy] = %s;", y);
    row_line(row, "    }");
    row_line(row, "    before += all;");
    row_line(row, "}");
}

enum { LONGSUM = 512 }; /* elements worth a block */

int cumsum_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks w = { 0 };
    RowText o = row_begin(group, a);
    int at = dim_of(x, n->at.cumsum.axis);
    int64_t len = local_n(g, x, at);
    int blocks = gpu && len >= LONGSUM;

    for (int d = 0; d < x->nd; d++)
        if (d != at)
            row_walk(g, &w, x, d, t);
    row_buffer(&o, "x", x, x->dt);
    row_buffer(&o, "y", n, n->dt);
    row_line(&o, "const int64_t n = iv[%d], sx = iv[%d], sy = iv[%d];",
             row_size(&o, len),
             row_size(&o, local_stride(g, x, n->at.cumsum.axis)),
             row_size(&o, local_stride(g, n, n->at.cumsum.axis)));
    (blocks ? cumsum_blocks : cumsum_items)(
        &o, &w, dtypes[n->dt].compute, text_load(a, x->dt, "x[p0 + i * sx]"),
        text_save(a, n->dt, "s"));
    row_finish(&o, g, row_count(&w), row_count(&w) * len);
    return blocks ? THREADMAP : 0;
}

void copy_lower(Graph *g, Group *group, Arena *a)
{
    group->instr.kind = Icopy;
    add_arg(group, a, group->in[0]);
    add_arg(group, a, group->out[0]);
    set_label(group, a, group->out[0]);
    group->instr.bytes = (double)local_bytes(g, group->out[0]);
}

void zero_lower(Graph *g, Group *group, Arena *a)
{
    group->instr.kind = Izero;
    add_arg(group, a, group->out[0]);
    set_label(group, a, group->out[0]);
    group->instr.bytes = (double)local_bytes(g, group->arg[0]);
}
