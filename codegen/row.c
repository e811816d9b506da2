/* row.c: kernels that work along one whole axis: topk, cumsum, keep, route,
 * scatter_add. Operands may lie in any order: axes become (size, stride ...)
 * and those that lie one inside the other everywhere become one, so few texts
 * serve all layouts. Order of additions is fixed, whatever the number of
 * threads.                                                                   */
#include "codegen.h"

#include <string.h>

enum { COLUMNS = 64, SELECT = 32, GRAIN = 16384 };

/* ---- axes as sizes and strides ------------------------------------------- */

typedef struct Walk { int64_t n, s[3]; } Walk;
typedef struct Walks { int n; Walk at[2 * MAXD]; } Walks;

static int64_t stride_of(const Graph *g, const Node *n, const Axis *a)
{
    int64_t s = 1;
    int at = dim_of(n, a);

    for (int d = n->nd - 1; d > at; d--)
        s *= local_n(g, n, d);
    return at < 0 ? 0 : s;
}

static void add_walk(const Graph *g, Walks *w, const Node *of, int d,
                     const Node *const t[3])
{
    Walk x = { local_n(g, of, d), { 0 } };

    for (int i = 0; i < 3; i++)
        x.s[i] = t[i] ? stride_of(g, t[i], of->dim[d].a) : 0;
    if (w->n && x.n > 1) {
        Walk *p = &w->at[w->n - 1];
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

static int64_t count(const Walks *w)
{
    int64_t c = 1;

    for (int i = 0; i < w->n; i++)
        c *= w->at[i].n;
    return c;
}

/* ---- text ---------------------------------------------------------------- */

typedef struct Out { Group *k; Arena *a; Text t; } Out;

__attribute__((format(printf, 2, 3)))
static void line(Out *o, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *s = vstrf(o->a, fmt, ap);
    va_end(ap);
    put(&o->t, "    ");
    putn(&o->t, s, strlen(s));
    put(&o->t, "\n");
}

static int size(Out *o, int64_t v)
{
    return add_size(o->k, o->a, v);
}

static Out begin(Group *k, Arena *a)
{
    Out o = { k, a, { .arena = a } };

    size(&o, 0);
    size(&o, 1);
    put(&o.t, "{\n");
    return o;
}

static void buffer(Out *o, const char *name, Node *n, Dtype dt)
{
    int i = add_arg(o->k, o->a, n);

    line(o, "%s *const %s = buf[%d];", dtypes[dt].store, name, i);
}

static void finish(Out *o, const Graph *g, int64_t items, int64_t work)
{
    Group *k = o->k;
    int64_t per = work / (items ? items : 1) + 1;

    put(&o->t, "}\n");
    k->step.iv[0] = aff(items);
    k->step.iv[1] = aff(per >= GRAIN ? 1 : GRAIN / per);
    set_text(k, o->a, o->t.s);
    set_label(k, o->a, k->node[0]);
    k->step.flops = (double)work;
    for (int i = 0; i < k->narg; i++)
        k->step.bytes += (double)local_bytes(g, k->arg[i]);
}

/* Declare <name>0 <name>1 ..: offsets of the setting number q of the walks.  */
static void decode(Out *o, const Walks *w, const char *q, const char *name,
                   int tensors)
{
    line(o, "int64_t r%s = %s;", name, q);
    for (int i = 0; i < tensors; i++)
        line(o, "int64_t %s%d = 0;", name, i);
    for (int d = w->n - 1; d >= 0; d--) {
        int n = size(o, w->at[d].n);
        for (int i = 0; i < tensors; i++)
            if (w->at[d].s[i])
                line(o, "%s%d += r%s %% iv[%d] * iv[%d];", name, i, name, n,
                     size(o, w->at[d].s[i]));
        line(o, "r%s /= iv[%d];", name, n);
    }
    line(o, "(void)r%s;", name);
}

static const char *load(Arena *a, Dtype dt, const char *x)
{
    return dt == Dbf16 ? strf(a, "bf16_f32(%s)", x) : x;
}

static const char *save(Arena *a, Dtype dt, const char *x)
{
    return dt == Dbf16 ? strf(a, "f32_bf16(%s)", x)
                       : strf(a, "(%s)(%s)", dtypes[dt].store, x);
}

/* ---- topk ---------------------------------------------------------------- */

/* Does (x, i) stand before (y, j)? NaN last, ties to the lower index.        */
static const char before[] =
    "#define BEFORE(x, i, y, j) "
    "((x) > (y) || ((y) != (y) && (x) == (x)) || \\\n"
    "    (((x) == (y) || ((x) != (x) && (y) != (y))) && (i) < (j)))\n";

/* k passes, each for the next in order: for few results.                     */
static void select_few(Out *o, const char *ct, const char *x)
{
    line(o, "%s last = 0;", ct);
    line(o, "int64_t li = -1;");
    line(o, "for (int64_t c = 0; c < k; c++) {");
    line(o, "    %s best = 0;", ct);
    line(o, "    int64_t bi = -1;");
    line(o, "    for (int64_t i = 0; i < n; i++) {");
    line(o, "        const %s v = %s;", ct, x);
    line(o, "        if ((li < 0 || BEFORE(last, li, v, i)) &&");
    line(o, "            (bi < 0 || BEFORE(v, i, best, bi)))");
    line(o, "            best = v, bi = i;");
    line(o, "    }");
    line(o, "    y[p1 + c * sy] = (int32_t)bi;");
    line(o, "    last = best, li = bi;");
    line(o, "}");
}

/* Merge sort of all indices in the item's own work space.                    */
static void sort_all(Out *o, const char *ct, const char *x)
{
    line(o, "int32_t *s = work + p * 2 * n, *d = s + n;");
    line(o, "for (int64_t i = 0; i < n; i++)");
    line(o, "    s[i] = (int32_t)i;");
    line(o, "for (int64_t w = 1; w < n; w *= 2) {");
    line(o, "    for (int64_t f = 0; f < n; f += 2 * w) {");
    line(o, "        int64_t m = f + w < n ? f + w : n;");
    line(o, "        const int64_t e = m + w < n ? m + w : n, h = m;");
    line(o, "        for (int64_t a = f, c = f; c < e; c++) {");
    line(o, "            int left = a < h;");
    line(o, "            if (left && m < e) {");
    line(o, "                int64_t i = s[a];");
    line(o, "                const %s v = %s;", ct, x);
    line(o, "                const int64_t j = i;");
    line(o, "                i = s[m];");
    line(o, "                const %s u = %s;", ct, x);
    line(o, "                left = BEFORE(v, j, u, i);");
    line(o, "            }");
    line(o, "            d[c] = left ? s[a++] : s[m++];");
    line(o, "        }");
    line(o, "    }");
    line(o, "    int32_t *t = s;");
    line(o, "    s = d, d = t;");
    line(o, "}");
    line(o, "for (int64_t c = 0; c < k; c++)");
    line(o, "    y[p1 + c * sy] = s[c];");
}

void topk_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    Walks w = { 0 };
    Out o = begin(k, a);
    int at = dim_of(x, n->A[0]);
    int64_t len = local_n(g, x, at);
    const char *ct = dtypes[compute_type(x->dt)].compute;

    for (int d = 0; d < x->nd; d++)
        if (d != at)
            add_walk(g, &w, x, d, t);
    buffer(&o, "x", x, x->dt);
    buffer(&o, "y", n, Di32);
    line(&o, "const int64_t n = iv[%d], sx = iv[%d], k = iv[%d], sy = iv[%d];",
         size(&o, len), size(&o, stride_of(g, x, n->A[0])), size(&o, n->i),
         size(&o, stride_of(g, n, n->B[0])));
    int many = n->i > SELECT;
    if (many)
        line(&o, "int32_t *const work = buf[%d];", k->narg);
    put(&o.t, "%s", before);
    line(&o, "for (int64_t p = lo; p < hi; p++) {");
    decode(&o, &w, "p", "p", 2);
    const char *v = load(a, x->dt, "x[p0 + i * sx]");
    if (many)
        sort_all(&o, ct, v);
    else
        select_few(&o, ct, v);
    line(&o, "}");
    put(&o.t, "#undef BEFORE\n");
    k->scratch = many ? count(&w) * 2 * len * 4 : 0;
    finish(&o, g, count(&w), count(&w) * len * (many ? 16 : n->i));
}

/* ---- cumsum -------------------------------------------------------------- */

void cumsum_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], *x = n->in[0];
    const Node *t[3] = { x, n, NULL };
    Walks w = { 0 };
    Out o = begin(k, a);
    int at = dim_of(x, n->A[0]);
    int64_t len = local_n(g, x, at);

    for (int d = 0; d < x->nd; d++)
        if (d != at)
            add_walk(g, &w, x, d, t);
    buffer(&o, "x", x, x->dt);
    buffer(&o, "y", n, n->dt);
    line(&o, "const int64_t n = iv[%d], sx = iv[%d], sy = iv[%d];",
         size(&o, len), size(&o, stride_of(g, x, n->A[0])),
         size(&o, stride_of(g, n, n->A[0])));
    line(&o, "for (int64_t p = lo; p < hi; p++) {");
    decode(&o, &w, "p", "p", 2);
    line(&o, "%s s = 0;", dtypes[n->dt].compute);
    line(&o, "for (int64_t i = 0; i < n; i++) {");
    line(&o, "    s += %s;", load(a, x->dt, "x[p0 + i * sx]"));
    line(&o, "    y[p1 + i * sy] = %s;", save(a, n->dt, "s"));
    line(&o, "}");
    line(&o, "}");
    finish(&o, g, count(&w), count(&w) * len);
}

/* ---- keep ---------------------------------------------------------------- */

/* The pairs of each expert one after another in s, off[x] behind its last.   */
static void sort_by_expert(Out *o, const Walks *w)
{
    line(o, "int32_t *const off = work + p * (experts + 2 * n);");
    line(o, "int32_t *const sorted = off + experts;");
    line(o, "for (int64_t x = 0; x < experts; x++)");
    line(o, "    off[x] = 0;");
    line(o, "for (int64_t q = 0; q < n; q++) {");
    decode(o, w, "q", "q", 2);
    line(o, "    const int64_t x = e[p1 + q1];");
    line(o, "    y[p0 + q0] = e[p1 + q1];");
    line(o, "    if ((uint64_t)x < (uint64_t)experts)");
    line(o, "        off[x]++;");
    line(o, "}");
    line(o, "for (int64_t x = 0, sum = 0; x < experts; x++) {");
    line(o, "    const int32_t many = off[x];");
    line(o, "    off[x] = (int32_t)sum;");
    line(o, "    sum += many;");
    line(o, "}");
    line(o, "for (int64_t q = 0; q < n; q++) {");
    decode(o, w, "q", "q", 2);
    line(o, "    const int64_t x = e[p1 + q1];");
    line(o, "    if ((uint64_t)x < (uint64_t)experts)");
    line(o, "        sorted[off[x]++] = (int32_t)q;");
    line(o, "}");
}

static void weight_of(Out *o, const Walks *w, const char *q, const char *name,
                      const char *ct, Dtype dt)
{
    decode(o, w, q, name, 3);
    line(o, "const %s v%s = %s;", ct, name,
         load(o->a, dt, strf(o->a, "g[p2 + %s2]", name)));
}

/* Stable merge sort of s[0..len) by weight, largest first; d: as much room.  */
static void sort_by_weight(Out *o, const Walks *w, Dtype dt)
{
    const char *ct = dtypes[compute_type(dt)].compute;

    line(o, "for (int64_t u = 1; u < len; u *= 2) {");
    line(o, "for (int64_t f = 0; f < len; f += 2 * u) {");
    line(o, "    int64_t m = f + u < len ? f + u : len;");
    line(o, "    const int64_t end = m + u < len ? m + u : len, h = m;");
    line(o, "    for (int64_t a = f, c = f; c < end; c++) {");
    line(o, "        int left = a < h;");
    line(o, "        if (left && m < end) {");
    weight_of(o, w, "s[a]", "l", ct, dt);
    weight_of(o, w, "s[m]", "r", ct, dt);
    line(o, "            left = BEFORE(vl, 0, vr, 1);");
    line(o, "        }");
    line(o, "        d[c] = left ? s[a++] : s[m++];");
    line(o, "    }");
    line(o, "}");
    line(o, "int32_t *t = s;");
    line(o, "s = d, d = t;");
    line(o, "}");
}

/* Of each micro-batch all tokens, in the order of the result's axes.         */
void keep_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], *e = n->in[0], *weight = n->in[1];
    const Node *t[3] = { n, e, weight };
    Walks item = { 0 }, pair = { 0 };
    Out o = begin(k, a);

    for (int d = 0; d < n->nd; d++)
        add_walk(g, strcmp(n->dim[d].a->name, "micro") ? &pair : &item, n, d,
                 t);
    buffer(&o, "e", e, e->dt);
    if (!n->j)
        buffer(&o, "g", weight, weight->dt);
    buffer(&o, "y", n, n->dt);
    line(&o, "int32_t *const work = buf[%d];", k->narg);
    line(&o, "const int64_t n = iv[%d], experts = iv[%d], room = iv[%d];",
         size(&o, count(&pair)), size(&o, n->A[0]->n), size(&o, n->i));
    put(&o.t, "%s", before);
    line(&o, "for (int64_t p = lo; p < hi; p++) {");
    decode(&o, &item, "p", "p", 3);
    line(&o, "(void)p2;");
    sort_by_expert(&o, &pair);
    line(&o, "for (int64_t x = 0; x < experts; x++) {");
    line(&o, "const int64_t from = x ? off[x - 1] : 0, len = off[x] - from;");
    line(&o, "if (len <= room)");
    line(&o, "    continue;");
    line(&o, "int32_t *s = sorted + from, *d = s + n;");
    if (!n->j)
        sort_by_weight(&o, &pair, weight->dt);
    else
        line(&o, "(void)d;");
    line(&o, "for (int64_t i = room; i < len; i++) {");
    decode(&o, &pair, "s[i]", "q", 1);
    line(&o, "    y[p0 + q0] = -1;");
    line(&o, "}");
    line(&o, "}");
    line(&o, "}");
    put(&o.t, "#undef BEFORE\n");
    k->scratch = count(&item) * (n->A[0]->n + 2 * count(&pair)) * 4;
    finish(&o, g, count(&item), count(&item) * count(&pair) * 16);
}

/* ---- route --------------------------------------------------------------- */

/* Global number of this rank's first expert.                                 */
static Aff first_expert(const Graph *g, const Node *route)
{
    Node x = *route;

    x.nd = 1;
    x.dim[0] = (Dim){ route->A[0], route->A[0]->n };
    return local_start(g, &x, 0);
}

/* Elements of the index tensor's axes behind `top`, and top's size.          */
static void around_top(const Graph *g, const Node *e, int64_t *top,
                       int64_t *behind)
{
    *top = *behind = 1;
    for (int d = 0; d < e->nd; d++)
        if (!strcmp(e->dim[d].a->name, "top")) {
            *top = local_n(g, e, d);
            *behind = stride_of(g, e, e->dim[d].a);
        }
}

/* Count, sum up, place in the order of pairs; the counters end one place late
 * and are moved back.                                                        */
static const char route_text[] =
    "    for (int64_t p = lo; p < hi; p++) {\n"
    "    for (int64_t x = 0; x <= experts; x++)\n"
    "        off[x] = 0;\n"
    "    for (int64_t i = 0; i < pairs; i++) {\n"
    "        const int64_t x = EXPERT(i);\n"
    "        if ((uint64_t)x < (uint64_t)experts)\n"
    "            off[x + 1]++;\n"
    "    }\n"
    "    for (int64_t x = 0; x < experts; x++)\n"
    "        off[x + 1] += off[x];\n"
    "    for (int64_t i = 0; i < pairs; i++) {\n"
    "        const int64_t x = EXPERT(i);\n"
    "        row[i] = -1;\n"
    "        if ((uint64_t)x >= (uint64_t)experts)\n"
    "            continue;\n"
    "        row[i] = off[x]++;\n"
    "        if (row[i] < cap)\n"
    "            pair[row[i]] = (int32_t)i;\n"
    "        else\n"
    "            row[i] = -1;\n"
    "    }\n"
    "    for (int64_t x = experts; x > 0; x--)\n"
    "        off[x] = off[x - 1] < cap ? off[x - 1] : (int32_t)cap;\n"
    "    off[0] = 0;\n"
    "    }\n"
    "#undef EXPERT\n";

/* Every expert has `each` rows, those without a pair are -1.                 */
static const char padded_text[] =
    "    for (int64_t p = lo; p < hi; p++) {\n"
    "    for (int64_t x = 0; x <= experts; x++)\n"
    "        off[x] = (int32_t)(x * each);\n"
    "    for (int64_t i = 0; i < cap; i++)\n"
    "        pair[i] = -1;\n"
    "    for (int64_t i = 0; i < pairs; i++) {\n"
    "        const int64_t x = EXPERT(i);\n"
    "        row[i] = -1;\n"
    "        if ((uint64_t)x >= (uint64_t)experts || off[x] >= (x + 1) * each)\n"
    "            continue;\n"
    "        row[i] = off[x]++;\n"
    "        pair[row[i]] = (int32_t)i;\n"
    "    }\n"
    "    for (int64_t x = 0; x <= experts; x++)\n"
    "        off[x] = (int32_t)(x * each);\n"
    "    }\n"
    "#undef EXPERT\n";

/* A window of the rows, `cap` from `from` on; how many there are in all.     */
static const char budget_text[] =
    "    for (int64_t p = lo; p < hi; p++) {\n"
    "    for (int64_t x = 0; x <= experts; x++)\n"
    "        off[x] = 0;\n"
    "    for (int64_t i = 0; i < pairs; i++) {\n"
    "        const int64_t x = EXPERT(i);\n"
    "        if ((uint64_t)x < (uint64_t)experts)\n"
    "            off[x + 1]++;\n"
    "    }\n"
    "    for (int64_t x = 0; x < experts; x++)\n"
    "        off[x + 1] += off[x];\n"
    "    *total = off[experts];\n"
    "    for (int64_t i = 0; i < pairs; i++) {\n"
    "        const int64_t x = EXPERT(i);\n"
    "        row[i] = -1;\n"
    "        if ((uint64_t)x >= (uint64_t)experts)\n"
    "            continue;\n"
    "        const int64_t r = off[x]++ - from;\n"
    "        if (r < 0 || r >= cap)\n"
    "            continue;\n"
    "        row[i] = (int32_t)r;\n"
    "        pair[r] = (int32_t)i;\n"
    "    }\n"
    "    for (int64_t x = experts; x > 0; x--) {\n"
    "        const int64_t r = off[x - 1] - from;\n"
    "        off[x] = (int32_t)(r < 0 ? 0 : r < cap ? r : cap);\n"
    "    }\n"
    "    off[0] = 0;\n"
    "    }\n"
    "#undef EXPERT\n";

/* For a GPU: a block of 256 an expert. It counts the pairs of the experts
 * before its own, then lists its own in their order.                         */
static const char route_blocks[] =
    "    const int x = (int)blockIdx.x;\n"
    "    int before = 0, mine = 0;\n"
    "    for (int i = TID; i < pairs; i += THREADS) {\n"
    "        const int64_t w = EXPERT(i);\n"
    "        before += w >= 0 && w < x;\n"
    "        mine += w == x;\n"
    "    }\n"
    "    before = block_sum(before);\n"
    "    mine = block_sum(mine);\n"
    "    if (TID == 0)\n"
    "        off[x] = before < cap ? before : (int)cap;\n"
    "    if (TID == 0 && x == experts - 1)\n"
    "        off[experts] = before + mine < cap ? before + mine : (int)cap;\n"
    "    for (int i0 = 0; i0 < pairs; i0 += THREADS) {\n"
    "        const int i = i0 + TID;\n"
    "        const int64_t w = i < pairs ? EXPERT(i) : -1;\n"
    "        int total;\n"
    "        const int r = before + block_rank(w == x, total);\n"
    "        if (w == x)\n"
    "            row[i] = r < cap ? r : -1;\n"
    "        if (w == x && r < cap)\n"
    "            pair[r] = i;\n"
    "        if (x == 0 && i < pairs && (uint64_t)w >= (uint64_t)experts)\n"
    "            row[i] = -1;\n"
    "        before += total;\n"
    "    }\n"
    "#undef EXPERT\n";

static int route(Graph *g, Group *k, Arena *a, int gpu)
{
    Node *n = k->node[0], *e = n->in[0];
    MapLayout l = map_layout(g, n);
    Out o = begin(k, a);
    int64_t top, behind;

    around_top(g, e, &top, &behind);
    buffer(&o, "e", e, e->dt);
    buffer(&o, "map", n, Di32);
    line(&o, "const int64_t pairs = iv[%d], experts = iv[%d], cap = iv[%d];",
         size(&o, l.pairs), size(&o, l.experts), size(&o, l.cap));
    line(&o, "int32_t *const off = map + iv[%d], *const pair = map + iv[%d],"
         " *const row = map + iv[%d];", size(&o, l.offset), size(&o, l.pair),
         size(&o, l.row));
    line(&o, "const int64_t first = iv[%d], top = iv[%d], in = iv[%d];",
         add_int(k, a, first_expert(g, n)), size(&o, top), size(&o, behind));
    put(&o.t, "#define EXPERT(i) (e[((i) / top / in * top + (i) %% top) * in + "
        "(i) / top %% in] - first)\n");
    if (l.each)
        line(&o, "const int64_t each = iv[%d];", size(&o, l.each));
    if (n->f > 0)
        line(&o, "int32_t *const total = map + iv[%d]; const int64_t from = "
             "iv[%d];", size(&o, l.total), size(&o, l.first));
    int plain = !l.each && !(n->f > 0), blocks = gpu && plain;
    put(&o.t, "%s", blocks ? route_blocks : plain ? route_text
                  : l.each ? padded_text : budget_text);
    finish(&o, g, blocks ? l.experts : 1, l.pairs * 4);
    return blocks;
}

void route_lower(Graph *g, Group *k, Arena *a)
{
    route(g, k, a, 0);
}

int route_lower_cuda(Graph *g, Group *k, Arena *a)
{
    return route(g, k, a, 1);
}

/* ---- scatter_add --------------------------------------------------------- */

typedef struct Scatter {
    Walks item, in, sum;          /* offsets of out, values, indices          */
    int64_t width;                /* of the contiguous axis, cut into blocks  */
    int64_t sv;                   /* its stride in the values                 */
} Scatter;

/* out[.. x ..] = sum of v where e = x: axes of out are items, but for the last
 * that e lacks, which is cut into blocks; axes that out lacks are summed.    */
static Scatter scatter_axes(const Graph *g, const Node *n, const Node *out)
{
    const Node *v = n->in[0], *e = n->in[1], *t[3] = { out, v, e };
    Scatter s = { .width = 1 };
    int last = out->nd - 1, block = -1;

    if (last >= 0 && out->dim[last].a != n->A[0] &&
        dim_of(e, out->dim[last].a) < 0)
        block = last;
    for (int d = 0; d < out->nd; d++)
        if (d != block && out->dim[d].a != n->A[0])
            add_walk(g, &s.item, out, d, t);
    if (block >= 0) {
        s.width = local_n(g, out, block);
        s.sv = stride_of(g, v, out->dim[block].a);
    }
    for (int d = 0; d < e->nd; d++)
        if (dim_of(out, e->dim[d].a) < 0)
            add_walk(g, &s.sum, e, d, t);
    for (int d = 0; d < v->nd; d++)
        if (dim_of(out, v->dim[d].a) < 0 && dim_of(e, v->dim[d].a) < 0)
            add_walk(g, &s.sum, v, d, t);
    return s;
}

/* x: the local place that index q names; two: of an axis in two pieces.      */
static void put_place(Out *o, int two)
{
    line(o, two ? "int64_t x = (int64_t)e[p2 + q2] - first;"
                : "const int64_t x = (int64_t)e[p2 + q2] - first;");
    if (two) {
        line(o, "if ((uint64_t)x >= (uint64_t)half) {");
        line(o, "    x += first - second;");
        line(o, "    x = (uint64_t)x < (uint64_t)half ? x + half : -1;");
        line(o, "}");
    }
}

static void scatter_text(Out *o, const Node *n, const Node *out,
                         const Scatter *s, int adds, int two)
{
    Dtype dt = out->dt;
    int wide = dt == Dbf16;                   /* sums in fp32 work space      */
    const char *to = wide ? "work[x * 64 + l]" : "y[p0 + x * sx + l]";

    line(o, "for (int64_t p = lo; p < hi; p++) {");
    line(o, "const int64_t f = p %% nb * %d;", COLUMNS);
    line(o, "const int64_t w = width - f < %d ? width - f : %d;", COLUMNS,
         COLUMNS);
    decode(o, &s->item, "p / nb", "p", 3);
    line(o, "p0 += f, p1 += f * sv;");
    if (wide)
        line(o, "float *const work = (float *)buf[%d] + p * n * %d;",
             o->k->narg, COLUMNS);
    if (!adds) {
        line(o, "for (int64_t x = 0; x < n; x++)");
        line(o, "    for (int64_t l = 0; l < w; l++)");
        line(o, "        %s = 0;", to);
    }
    line(o, "for (int64_t q = 0; q < many; q++) {");
    decode(o, &s->sum, "q", "q", 3);
    put_place(o, two);
    line(o, "if ((uint64_t)x >= (uint64_t)n)");
    line(o, "    continue;");
    put(&o->t, "#pragma GCC ivdep\n");
    line(o, "for (int64_t l = 0; l < w; l++)");
    line(o, "    %s += %s;", to, load(o->a, n->in[0]->dt,
                                      "v[p1 + q1 + l * sv]"));
    line(o, "}");
    if (wide) {
        line(o, "for (int64_t x = 0; x < n; x++)");
        line(o, "    for (int64_t l = 0; l < w; l++)");
        line(o, "        y[p0 + x * sx + l] = f32_bf16(%s);", to);
    }
    line(o, "}");
}

/* For a GPU: a block is 256 columns of the contiguous axis and one of `parts`
 * ranges of places; a thread adds up its column, index after index.          */
enum { PARTS = 64 };

static void scatter_blocks(Out *o, const Node *n, const Node *out,
                           const Scatter *s, int adds, int two)
{
    Dtype dt = out->dt;
    const char *x = load(o->a, n->in[0]->dt, "v[p1 + q1 + l * sv]");

    line(o, "const int64_t p = blockIdx.x, l = (p %% nb) * THREADS + TID;");
    line(o, "const int64_t from = n * (p / nb %% parts) / parts;");
    line(o, "const int64_t to = n * (p / nb %% parts + 1) / parts;");
    decode(o, &s->item, "p / nb / parts", "p", 3);
    if (!adds) {
        line(o, "for (int64_t x = from; x < to; x++)");
        line(o, "    if (l < width)");
        line(o, "        y[p0 + x * sx + l] = 0;");
    }
    line(o, "for (int64_t q = 0; q < many; q++) {");
    decode(o, &s->sum, "q", "q", 3);
    put_place(o, two);
    line(o, "if (x < from || x >= to || l >= width)");
    line(o, "    continue;");
    line(o, "const %s old = %s;", dtypes[dt].compute,
         load(o->a, dt, "y[p0 + x * sx + l]"));
    line(o, "y[p0 + x * sx + l] = %s;",
         save(o->a, dt, strf(o->a, "old + %s", x)));
    line(o, "}");
}

static int scatter(Graph *g, Group *k, Arena *a, int gpu)
{
    Node *n = k->node[0], *out = k->out[0];
    int at = dim_of(out, n->A[0]), adds = out->op == Oaccum;
    Scatter s = scatter_axes(g, n, out);
    Out o = begin(k, a);
    int64_t wide = gpu && out->dt != Dbf16 ? THREADMAP : COLUMNS;
    int64_t nb = (s.width + wide - 1) / wide, items = count(&s.item) * nb;
    int64_t len = local_n(g, out, at);
    int blocks = wide == THREADMAP;
    Piece p[MAXPIECE];
    int two = pieces(g, out, at, p) == 2;

    buffer(&o, "v", n->in[0], n->in[0]->dt);
    buffer(&o, "e", n->in[1], n->in[1]->dt);
    buffer(&o, "y", out, out->dt);
    line(&o, "const int64_t n = iv[%d], sx = iv[%d], first = iv[%d];",
         size(&o, len), size(&o, stride_of(g, out, n->A[0])),
         add_int(k, a, p[0].start));
    if (two)
        line(&o, "const int64_t half = n / 2, second = iv[%d];",
             add_int(k, a, p[1].start));
    line(&o, "const int64_t width = iv[%d], nb = iv[%d], sv = iv[%d];",
         size(&o, s.width), size(&o, nb), size(&o, s.sv));
    line(&o, "const int64_t many = iv[%d];", size(&o, count(&s.sum)));
    int64_t parts = blocks ? len < PARTS ? len : PARTS : 1;
    if (blocks) {
        line(&o, "const int64_t parts = iv[%d];", size(&o, parts));
        scatter_blocks(&o, n, out, &s, adds, two);
    } else {
        scatter_text(&o, n, out, &s, adds, two);
    }
    k->scratch = out->dt == Dbf16 ? items * len * COLUMNS * 4 : 0;
    finish(&o, g, items * parts, items * wide * (len + count(&s.sum)));
    return blocks;
}

void scatter_lower(Graph *g, Group *k, Arena *a)
{
    scatter(g, k, a, 0);
}

int scatter_lower_cuda(Graph *g, Group *k, Arena *a)
{
    return scatter(g, k, a, 1);
}

void zero_lower(Graph *g, Group *k, Arena *a)
{
    k->step.kind = Szero;
    add_arg(k, a, k->out[0]);
    set_label(k, a, k->out[0]);
    k->step.bytes = (double)local_bytes(g, k->arg[0]);
}
