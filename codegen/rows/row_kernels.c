/* row_kernels.c: kernels that work along one whole axis: here topk and cumsum,
 * in route.c and scatter.c what else there is. Operands may lie in any order:
 * axes become (size, stride ...) and those that lie one inside the other
 * everywhere become one, so few texts serve all layouts. Order of additions is
 * fixed, whatever the number of threads. */
#include "rows.h"

enum { SELECT = 32, GRAIN = 16384 };

/* ---- axes as sizes and strides ------------------------------------------- */

void row_walk(const Graph *g, RowWalks *w, const Node *of, int d,
              const Node *const t[3])
{
    RowWalk x = { local_n(g, of, d), { 0 } };

    for (int i = 0; i < 3; i++)
        x.s[i] = t[i] ? local_stride(g, t[i], of->dim[d].a) : 0;
    if (w->n && x.n > 1) {
        RowWalk *p = &w->at[w->n - 1];
        if (p->s[0] == x.n * x.s[0] && p->s[1] == x.n * x.s[1] &&
            p->s[2] == x.n * x.s[2]) {
            x.n *= p->n;
            *p = x;
            return;
        }
    }
    if (x.n > 1)
        w->at[w->n++] = x;
}

int64_t row_count(const RowWalks *w)
{
    int64_t c = 1;

    for (int i = 0; i < w->n; i++)
        c *= w->at[i].n;
    return c;
}

/* ---- text ---------------------------------------------------------------- */

void row_line(RowText *o, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(&o->text, 1, fmt, ap);
    va_end(ap);
}

int row_size(RowText *o, int64_t v)
{
    return add_size(o->group, o->arena, v);
}

RowText row_begin(Group *k, Arena *a)
{
    RowText o = { k, a, { .arena = a } };

    put(&o.text, "{\n");
    return o;
}

void row_buffer(RowText *o, const char *name, Node *n, Dtype dt)
{
    int i = add_arg(o->group, o->arena, n);

    row_line(o, "%s *const %s = buf[%d];", dtypes[dt].store, name, i);
}

void row_finish(RowText *o, const Graph *g, int64_t items, int64_t work)
{
    Group *k = o->group;
    int64_t per = work / (items ? items : 1) + 1;

    put(&o->text, "}\n");
    set_items(k, items, per >= GRAIN ? 1 : GRAIN / per);
    set_text(k, o->arena, o->text.s);
    set_label(k, o->arena, k->node[0]);
    k->instr.flops = (double)work;
    for (int i = 0; i < k->narg; i++)
        k->instr.bytes += (double)local_bytes(g, k->arg[i]);
}

/* Declare <name>0 <name>1 ..: offsets of the setting number q of the walks. */
void row_decode(RowText *o, const RowWalks *w, const char *q, const char *name,
                int tensors)
{
    row_line(o, "int64_t r%s = %s;", name, q);
    for (int i = 0; i < tensors; i++)
        row_line(o, "int64_t %s%d = 0;", name, i);
    for (int d = w->n - 1; d >= 0; d--) {
        int n = row_size(o, w->at[d].n);
        for (int i = 0; i < tensors; i++)
            if (w->at[d].s[i])
                row_line(o, "%s%d += r%s %% iv[%d] * iv[%d];", name, i, name, n,
                         row_size(o, w->at[d].s[i]));
        row_line(o, "r%s /= iv[%d];", name, n);
    }
    row_line(o, "(void)r%s;", name);
}

/* ---- topk ---------------------------------------------------------------- */

/* Does (x, i) stand before (y, j)? NaN last, ties to the lower index. */
const char row_before[] =
    "#define BEFORE(x, i, y, j) ((x) > (y) || ((y) != (y) && (x) == (x)) || "
    "\\\n"
    "    (((x) == (y) || ((x) != (x) && (y) != (y))) && (i) < (j)))\n";

/* k passes, each for the next in order: for few results. */
static void select_few(RowText *o, const char *ct, const char *x)
{
    row_line(o, "%s last = 0;", ct);
    row_line(o, "int64_t li = -1;");
    row_line(o, "for (int64_t c = 0; c < k; c++) {");
    row_line(o, "    %s best = 0;", ct);
    row_line(o, "    int64_t bi = -1;");
    row_line(o, "    for (int64_t i = 0; i < n; i++) {");
    row_line(o, "        const %s v = %s;", ct, x);
    row_line(o, "        if ((li < 0 || BEFORE(last, li, v, i)) &&");
    row_line(o, "            (bi < 0 || BEFORE(v, i, best, bi)))");
    row_line(o, "            best = v, bi = i;");
    row_line(o, "    }");
    row_line(o, "    y[p1 + c * sy] = (int32_t)bi;");
    row_line(o, "    last = best, li = bi;");
    row_line(o, "}");
}

/* Merge sort of all indices in the item's own work space. */
static void sort_all(RowText *o, const char *ct, const char *x)
{
    row_line(o, "int32_t *s = work + p * 2 * n, *d = s + n;");
    row_line(o, "for (int64_t i = 0; i < n; i++)");
    row_line(o, "    s[i] = (int32_t)i;");
    row_line(o, "for (int64_t w = 1; w < n; w *= 2) {");
    row_line(o, "    for (int64_t f = 0; f < n; f += 2 * w) {");
    row_line(o, "        int64_t m = f + w < n ? f + w : n;");
    row_line(o, "        const int64_t e = m + w < n ? m + w : n, h = m;");
    row_line(o, "        for (int64_t a = f, c = f; c < e; c++) {");
    row_line(o, "            int left = a < h;");
    row_line(o, "            if (left && m < e) {");
    row_line(o, "                int64_t i = s[a];");
    row_line(o, "                const %s v = %s;", ct, x);
    row_line(o, "                const int64_t j = i;");
    row_line(o, "                i = s[m];");
    row_line(o, "                const %s u = %s;", ct, x);
    row_line(o, "                left = BEFORE(v, j, u, i);");
    row_line(o, "            }");
    row_line(o, "            d[c] = left ? s[a++] : s[m++];");
    row_line(o, "        }");
    row_line(o, "    }");
    row_line(o, "    int32_t *t = s;");
    row_line(o, "    s = d, d = t;");
    row_line(o, "}");
    row_line(o, "for (int64_t c = 0; c < k; c++)");
    row_line(o, "    y[p1 + c * sy] = s[c];");
}

/* On a GPU: a warp an item; a lane holds every 32nd value and which of them
 * were chosen. As many rounds as results, each the warp's first in order. */
enum { WARPLANES = 32 };

static void select_warp(RowText *o, const char *ct, const char *x)
{
    row_line(o, "enum { EACH = (N + 31) / 32 };");
    row_line(o, "const int lane = TID & 31;");
    row_line(o, "%s v[EACH];", ct);
    row_line(o, "uint32_t gone = 0;");
    row_line(o, "int32_t mine = 0;");
    put(&o->text, "#pragma unroll\n");
    row_line(o, "for (int j = 0; j < EACH; j++) {");
    row_line(o, "    const int i = j * 32 + lane;");
    row_line(o, "    v[j] = i < N ? %s : (%s)0;", x, ct);
    row_line(o, "    gone |= (i >= N ? 1u : 0u) << j;");
    row_line(o, "}");
    row_line(o, "for (int c = 0; c < k; c++) {");
    row_line(o, "    %s best = 0;", ct);
    row_line(o, "    int bi = -1;");
    put(&o->text, "#pragma unroll\n");
    row_line(o, "    for (int j = 0; j < EACH; j++) {");
    row_line(o, "        const int i = j * 32 + lane;");
    row_line(o, "        if (!(gone >> j & 1) &&");
    row_line(o, "            (bi < 0 || BEFORE(v[j], i, best, bi)))");
    row_line(o, "            best = v[j], bi = i;");
    row_line(o, "    }");
    row_line(o, "    for (int h = 16; h; h >>= 1) {");
    row_line(o, "        const %s u = __shfl_xor_sync(~0u, best, h);", ct);
    row_line(o, "        const int i = __shfl_xor_sync(~0u, bi, h);");
    row_line(o, "        if (i >= 0 && (bi < 0 || BEFORE(u, i, best, bi)))");
    row_line(o, "            best = u, bi = i;");
    row_line(o, "    }");
    row_line(o, "    gone |= (lane == (bi & 31) ? 1u : 0u) << (bi >> 5);");
    row_line(o, "    mine = lane == c ? bi : mine;");
    row_line(o, "}");
    row_line(o, "if (lane < k)");
    row_line(o, "    y[p1 + lane * sy] = mine;");
}

/* Or a block an item: a bitonic sort of all indices, in work space of a power
 * of two of them, -1 behind all others. */
static void sort_block(RowText *o, const char *ct, const char *x)
{
    row_line(o, "const auto value = [&](int64_t i) -> %s { return %s; };", ct,
             x);
    row_line(o, "const auto before = [&](int i, int j) {");
    row_line(o, "    if (i < 0 || j < 0)");
    row_line(o, "        return i >= 0 && j < 0;");
    row_line(o, "    const %s v = value(i), u = value(j);", ct);
    row_line(o, "    return BEFORE(v, i, u, j) ? true : false;");
    row_line(o, "};");
    row_line(o, "int32_t *const s = work + p * room;");
    row_line(o, "for (int i = TID; i < room; i += THREADS)");
    row_line(o, "    s[i] = i < n ? i : -1;");
    row_line(o, "for (int w = 2; w <= room; w *= 2)");
    row_line(o, "    for (int h = w / 2; h; h /= 2) {");
    row_line(o, "        __syncthreads();");
    row_line(o, "        for (int q = TID; q < room / 2; q += THREADS) {");
    row_line(o, "            const int a = q / h * 2 * h + q %% h, b = a + h;");
    row_line(o, "            const int i = s[a], j = s[b];");
    row_line(o, "            if (a & w ? before(i, j) : before(j, i))");
    row_line(o, "                s[a] = j, s[b] = i;");
    row_line(o, "        }");
    row_line(o, "    }");
    row_line(o, "__syncthreads();");
    row_line(o, "for (int c = TID; c < k; c += THREADS)");
    row_line(o, "    y[p1 + c * sy] = s[c];");
}

typedef enum TopkForm { FEW, MANY, WARP, BLOCKS } TopkForm;

static TopkForm topk_form(const Node *n, int64_t len, int gpu)
{
    if (gpu)
        return n->at.topk.k > SELECT || len > WARPLANES * WARPLANES ? BLOCKS
                                                                    : WARP;
    return n->at.topk.k > SELECT ? MANY : FEW;
}

static int64_t power_of_two(int64_t n)
{
    int64_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

/* Opens the text of an item p. */
static void topk_item(RowText *o, TopkForm form, int64_t items, int64_t len)
{
    if (form == MANY || form == BLOCKS)
        row_line(o, "int32_t *const work = buf[%d];", o->group->narg);
    put(&o->text, "%s", row_before);
    if (form == WARP) {
        row_line(o, "enum { N = %lld }; (void)n;", (long long)len);
        row_line(o, "const int64_t p = (int64_t)blockIdx.x * (THREADS / 32) + "
                    "(TID >> 5);");
        row_line(o, "if (p < iv[%d]) {", row_size(o, items));
    } else if (form == BLOCKS) {
        row_line(o, "enum { room = %lld };", (long long)power_of_two(len));
        row_line(o, "const int64_t p = blockIdx.x;");
        row_line(o, "{");
    } else {
        row_line(o, "for (int64_t p = lo; p < hi; p++) {");
    }
}

int topk_lower(Graph *g, Group *k, Arena *a, int gpu)
{
    Node *n = k->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks w = { 0 };
    RowText o = row_begin(k, a);
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
        [FEW] = select_few,
        [MANY] = sort_all,
        [WARP] = select_warp,
        [BLOCKS] = sort_block,
    };
    body[form](&o, ct, v);
    row_line(&o, "}");
    put(&o.text, "#undef BEFORE\n");
    if (form == MANY || form == BLOCKS)
        k->scratch = items * (form == MANY ? 2 * len : power_of_two(len)) * 4;
    row_finish(&o, g, form == WARP ? (items + 7) / 8 : items,
               items * len * (n->at.topk.k > SELECT ? 16 : n->at.topk.k));
    return gpu ? THREADMAP : 0;
}

/* ---- cumsum -------------------------------------------------------------- */

static void sum_items(RowText *o, const RowWalks *w, const char *ct,
                      const char *x, const char *y)
{
    row_line(o, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(o, w, "p", "p", 2);
    row_line(o, "%s s = 0;", ct);
    row_line(o, "for (int64_t i = 0; i < n; i++) {");
    row_line(o, "    s += %s;", x);
    row_line(o, "    y[p1 + i * sy] = %s;", y);
    row_line(o, "}");
    row_line(o, "}");
}

/* For a GPU: a block an item, EACH values after one another a thread. */
static void sum_blocks(RowText *o, const RowWalks *w, const char *ct,
                       const char *x, const char *y)
{
    row_line(o, "enum { EACH = 8 };");
    row_line(o, "const int64_t p = blockIdx.x;");
    row_decode(o, w, "p", "p", 2);
    row_line(o, "%s before = 0;", ct);
    row_line(o, "for (int64_t i0 = 0; i0 < n; i0 += THREADS * EACH) {");
    row_line(o, "    const int64_t from = i0 + TID * EACH;");
    row_line(o, "    %s v[EACH], mine = 0, all;", ct);
    put(&o->text, "#pragma unroll\n");
    row_line(o, "    for (int j = 0; j < EACH; j++) {");
    row_line(o, "        const int64_t i = from + j;");
    row_line(o, "        v[j] = i < n ? %s : (%s)0;", x, ct);
    row_line(o, "        mine += v[j];");
    row_line(o, "    }");
    row_line(o, "    %s s = before + block_before(mine, all);", ct);
    put(&o->text, "#pragma unroll\n");
    row_line(o, "    for (int j = 0; j < EACH; j++) {");
    row_line(o, "        const int64_t i = from + j;");
    row_line(o, "        s += v[j];");
    row_line(o, "        if (i < n)");
    row_line(o, "            y[p1 + i * sy] = %s;", y);
    row_line(o, "    }");
    row_line(o, "    before += all;");
    row_line(o, "}");
}

enum { LONGSUM = 512 }; /* worth a block */

int cumsum_lower(Graph *g, Group *k, Arena *a, int gpu)
{
    Node *n = k->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    RowWalks w = { 0 };
    RowText o = row_begin(k, a);
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
    (blocks ? sum_blocks : sum_items)(&o, &w, dtypes[n->dt].compute,
                                      text_load(a, x->dt, "x[p0 + i * sx]"),
                                      text_save(a, n->dt, "s"));
    row_finish(&o, g, row_count(&w), row_count(&w) * len);
    return blocks ? THREADMAP : 0;
}

void copy_lower(Graph *g, Group *k, Arena *a)
{
    k->instr.kind = Icopy;
    add_arg(k, a, k->in[0]);
    add_arg(k, a, k->out[0]);
    set_label(k, a, k->out[0]);
    k->instr.bytes = (double)local_bytes(g, k->out[0]);
}

void zero_lower(Graph *g, Group *k, Arena *a)
{
    k->instr.kind = Izero;
    add_arg(k, a, k->out[0]);
    set_label(k, a, k->out[0]);
    k->instr.bytes = (double)local_bytes(g, k->arg[0]);
}
