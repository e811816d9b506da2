/* route.c: which rows pairs of token and expert have: keep, which drops what an
 * expert has no room for, and route, which makes the map.                    */
#include "codegen.h"

#include <string.h>

/* ---- keep ---------------------------------------------------------------- */

/* The pairs of each expert one after another in s, off[x] behind its last.   */
static void sort_by_expert(RowText *o, const RowWalks *w)
{
    row_line(o, "int32_t *const off = work + p * (experts + 2 * n);");
    row_line(o, "int32_t *const sorted = off + experts;");
    row_line(o, "for (int64_t x = 0; x < experts; x++)");
    row_line(o, "    off[x] = 0;");
    row_line(o, "for (int64_t q = 0; q < n; q++) {");
    row_decode(o, w, "q", "q", 2);
    row_line(o, "    const int64_t x = e[p1 + q1];");
    row_line(o, "    y[p0 + q0] = e[p1 + q1];");
    row_line(o, "    if ((uint64_t)x < (uint64_t)experts)");
    row_line(o, "        off[x]++;");
    row_line(o, "}");
    row_line(o, "for (int64_t x = 0, sum = 0; x < experts; x++) {");
    row_line(o, "    const int32_t many = off[x];");
    row_line(o, "    off[x] = (int32_t)sum;");
    row_line(o, "    sum += many;");
    row_line(o, "}");
    row_line(o, "for (int64_t q = 0; q < n; q++) {");
    row_decode(o, w, "q", "q", 2);
    row_line(o, "    const int64_t x = e[p1 + q1];");
    row_line(o, "    if ((uint64_t)x < (uint64_t)experts)");
    row_line(o, "        sorted[off[x]++] = (int32_t)q;");
    row_line(o, "}");
}

static void weight_of(RowText *o, const RowWalks *w, const char *q,
                      const char *name, const char *ct, Dtype dt)
{
    row_decode(o, w, q, name, 3);
    row_line(o, "const %s v%s = %s;", ct, name,
             row_load(o->a, dt, strf(o->a, "g[p2 + %s2]", name)));
}

/* Stable merge sort of s[0..len) by weight, largest first; d: as much room.  */
static void sort_by_weight(RowText *o, const RowWalks *w, Dtype dt)
{
    const char *ct = dtypes[compute_type(dt)].compute;

    row_line(o, "for (int64_t u = 1; u < len; u *= 2) {");
    row_line(o, "for (int64_t f = 0; f < len; f += 2 * u) {");
    row_line(o, "    int64_t m = f + u < len ? f + u : len;");
    row_line(o, "    const int64_t end = m + u < len ? m + u : len, h = m;");
    row_line(o, "    for (int64_t a = f, c = f; c < end; c++) {");
    row_line(o, "        int left = a < h;");
    row_line(o, "        if (left && m < end) {");
    weight_of(o, w, "s[a]", "l", ct, dt);
    weight_of(o, w, "s[m]", "r", ct, dt);
    row_line(o, "            left = BEFORE(vl, 0, vr, 1);");
    row_line(o, "        }");
    row_line(o, "        d[c] = left ? s[a++] : s[m++];");
    row_line(o, "    }");
    row_line(o, "}");
    row_line(o, "int32_t *t = s;");
    row_line(o, "s = d, d = t;");
    row_line(o, "}");
}

/* Of each micro-batch all tokens, in the order of the result's axes.         */
void keep_lower(Graph *g, Group *k, Arena *a)
{
    Node *n = k->node[0], *e = n->in[0], *weight = n->in[1];
    const Node *t[3] = { n, e, weight };
    RowWalks item = { 0 }, pair = { 0 };
    RowText o = row_begin(k, a);

    for (int d = 0; d < n->nd; d++)
        row_walk(g, strcmp(n->dim[d].a->name, "micro") ? &pair : &item, n, d,
                 t);
    row_buffer(&o, "e", e, e->dt);
    if (!n->j)
        row_buffer(&o, "g", weight, weight->dt);
    row_buffer(&o, "y", n, n->dt);
    row_line(&o, "int32_t *const work = buf[%d];", k->narg);
    row_line(&o, "const int64_t n = iv[%d], experts = iv[%d], room = iv[%d];",
             row_size(&o, row_count(&pair)), row_size(&o, n->A[0]->n),
             row_size(&o, n->i));
    put(&o.t, "%s", row_before);
    row_line(&o, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(&o, &item, "p", "p", 3);
    row_line(&o, "(void)p2;");
    sort_by_expert(&o, &pair);
    row_line(&o, "for (int64_t x = 0; x < experts; x++) {");
    row_line(&o, "const int64_t from = x ? off[x - 1] : 0, "
             "len = off[x] - from;");
    row_line(&o, "if (len <= room)");
    row_line(&o, "    continue;");
    row_line(&o, "int32_t *s = sorted + from, *d = s + n;");
    if (!n->j)
        sort_by_weight(&o, &pair, weight->dt);
    else
        row_line(&o, "(void)d;");
    row_line(&o, "for (int64_t i = room; i < len; i++) {");
    row_decode(&o, &pair, "s[i]", "q", 1);
    row_line(&o, "    y[p0 + q0] = -1;");
    row_line(&o, "}");
    row_line(&o, "}");
    row_line(&o, "}");
    put(&o.t, "#undef BEFORE\n");
    k->scratch = row_count(&item) * (n->A[0]->n + 2 * row_count(&pair)) * 4;
    row_finish(&o, g, row_count(&item),
               row_count(&item) * row_count(&pair) * 16);
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
            *behind = row_stride(g, e, e->dim[d].a);
        }
}

/* Count the pairs of each expert and sum up: where its rows begin.           */
#define COUNT_PAIRS \
    "    for (int64_t p = lo; p < hi; p++) {\n" \
    "    for (int64_t x = 0; x <= experts; x++)\n" \
    "        off[x] = 0;\n" \
    "    for (int64_t i = 0; i < pairs; i++) {\n" \
    "        const int64_t x = EXPERT(i);\n" \
    "        if ((uint64_t)x < (uint64_t)experts)\n" \
    "            off[x + 1]++;\n" \
    "    }\n" \
    "    for (int64_t x = 0; x < experts; x++)\n" \
    "        off[x + 1] += off[x];\n"

/* Count, sum up, place in the order of pairs; the counters end one place late
 * and are moved back.                                                        */
static const char route_text[] =
    COUNT_PAIRS
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
    COUNT_PAIRS
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
    RowText o = row_begin(k, a);
    int64_t top, behind;

    around_top(g, e, &top, &behind);
    row_buffer(&o, "e", e, e->dt);
    row_buffer(&o, "map", n, Di32);
    row_line(&o, "const int64_t pairs = iv[%d], experts = iv[%d], "
             "cap = iv[%d];", row_size(&o, l.pairs), row_size(&o, l.experts),
             row_size(&o, l.cap));
    row_line(&o, "int32_t *const off = map + iv[%d], "
             "*const pair = map + iv[%d], *const row = map + iv[%d];",
             row_size(&o, l.offset), row_size(&o, l.pair),
             row_size(&o, l.row));
    row_line(&o, "const int64_t first = iv[%d], top = iv[%d], in = iv[%d];",
             add_int(k, a, first_expert(g, n)), row_size(&o, top),
             row_size(&o, behind));
    put(&o.t, "#define EXPERT(i) (e[((i) / top / in * top + (i) %% top) * in + "
        "(i) / top %% in] - first)\n");
    if (l.each)
        row_line(&o, "const int64_t each = iv[%d];", row_size(&o, l.each));
    if (n->f > 0)
        row_line(&o, "int32_t *const total = map + iv[%d]; "
                 "const int64_t from = iv[%d];", row_size(&o, l.total),
                 row_size(&o, l.first));
    int plain = !l.each && !(n->f > 0), blocks = gpu && plain;
    put(&o.t, "%s", blocks ? route_blocks : plain ? route_text
                  : l.each ? padded_text : budget_text);
    row_finish(&o, g, blocks ? l.experts : 1, l.pairs * 4);
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
