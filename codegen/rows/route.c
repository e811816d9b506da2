/* route.c: expert rows of token-expert pairs. drop_to_capacity drops pairs
 * beyond an expert's capacity; route makes the routing map; dispatch copies
 * token rows to expert rows. */
#include "rows.h"

/* ---- drop_to_capacity ---------------------------------------------------- */

/* Counting sort of the pairs by expert into `sorted`; off[x] is the end of
 * expert x. */
static void put_sort_by_expert(RowText *row, const RowWalks *walks)
{
    row_line(row, "int32_t *const off = work + p * (experts + 2 * n);");
    row_line(row, "int32_t *const sorted = off + experts;");
    row_line(row, "for (int64_t x = 0; x < experts; x++)");
    row_line(row, "    off[x] = 0;");
    row_line(row, "for (int64_t q = 0; q < n; q++) {");
    row_decode(row, walks, "q", "q", 2);
    row_line(row, "    const int64_t x = e[p1 + q1];");
    row_line(row, "    y[p0 + q0] = e[p1 + q1];");
    row_line(row, "    if ((uint64_t)x < (uint64_t)experts)");
    row_line(row, "        off[x]++;");
    row_line(row, "}");
    row_line(row, "for (int64_t x = 0, sum = 0; x < experts; x++) {");
    row_line(row, "    const int32_t many = off[x];");
    row_line(row, "    off[x] = (int32_t)sum;");
    row_line(row, "    sum += many;");
    row_line(row, "}");
    row_line(row, "for (int64_t q = 0; q < n; q++) {");
    row_decode(row, walks, "q", "q", 2);
    row_line(row, "    const int64_t x = e[p1 + q1];");
    row_line(row, "    if ((uint64_t)x < (uint64_t)experts)");
    row_line(row, "        sorted[off[x]++] = (int32_t)q;");
    row_line(row, "}");
}

/* Declares the weight of pair q, rounded to fewer bits. Equal tokens have
 * weights that are equal up to the order of sums, which depends on the fold;
 * rounding makes these ties, and the earlier token is kept in every fold. */
static void put_rounded_weight(RowText *row, const RowWalks *walks,
                               const char *q, const char *name, Dtype dt)
{
    const char *ct = dtypes[compute_type(dt)].compute;

    row_decode(row, walks, q, name, 3);
    row_line(row, "const %s v%s = coarse_%s(%s);", ct, name,
             dtypes[compute_type(dt)].name,
             text_load(row->arena, dt, strf(row->arena, "g[p2 + %s2]", name)));
}

/* Stable merge sort of s[0..len) by weight, largest first; d is a buffer of the
 * same size. */
static void put_sort_by_weight(RowText *row, const RowWalks *walks, Dtype dt)
{
    row_line(row, "for (int64_t u = 1; u < len; u *= 2) {");
    row_line(row, "for (int64_t f = 0; f < len; f += 2 * u) {");
    row_line(row, "    int64_t m = f + u < len ? f + u : len;");
    row_line(row, "    const int64_t end = m + u < len ? m + u : len, h = m;");
    row_line(row, "    for (int64_t a = f, c = f; c < end; c++) {");
    row_line(row, "        int left = a < h;");
    row_line(row, "        if (left && m < end) {");
    put_rounded_weight(row, walks, "s[a]", "l", dt);
    put_rounded_weight(row, walks, "s[m]", "r", dt);
    row_line(row, "            left = BEFORE(vl, 0, vr, 1);");
    row_line(row, "        }");
    row_line(row, "        d[c] = left ? s[a++] : s[m++];");
    row_line(row, "    }");
    row_line(row, "}");
    row_line(row, "int32_t *t = s;");
    row_line(row, "s = d, d = t;");
    row_line(row, "}");
}

/* GPU: one block per expert. It lists the expert's pairs in order, then finds
 * the largest weight that at least `room` pairs reach, bit by bit. Of the pairs
 * with exactly this weight the first are kept. */
static void put_expert_pairs(RowText *row, const RowWalks *walks)
{
    row_line(row, "enum { EACH = 8 };");
    row_line(row, "int before = 0, len = 0;");
    row_line(row, "for (int q = TID; q < n; q += THREADS) {");
    row_decode(row, walks, "q", "q", 2);
    row_line(row, "    const int64_t w = e[p1 + q1];");
    row_line(row, "    (void)q0;");
    row_line(row, "    before += w >= 0 && w < x;");
    row_line(row, "    len += w == x;");
    row_line(row, "}");
    row_line(row, "before = block_sum(before), len = block_sum(len);");
    row_line(row, "int32_t *const s = work + p * n + before;");
    row_line(row, "for (int i0 = 0, at = 0; i0 < n; i0 += THREADS * EACH) {");
    row_line(row, "    const int from = i0 + TID * EACH;");
    row_line(row, "    int have = 0, all;");
    row_line(row, "    for (int j = 0; j < EACH && from + j < n; j++) {");
    row_decode(row, walks, "from + j", "q", 2);
    row_line(row, "        const int64_t w = e[p1 + q1];");
    row_line(row, "        have |= (w == x ? 1 : 0) << j;");
    row_line(
        row,
        "        if (w == x || (x == 0 && (uint64_t)w >= (uint64_t)experts))");
    row_line(row, "            y[p0 + q0] = e[p1 + q1];");
    row_line(row, "    }");
    row_line(row, "    int to = at + block_before(__popc(have), all);");
    row_line(row, "    for (int j = 0; j < EACH; j++)");
    row_line(row, "        if (have >> j & 1)");
    row_line(row, "            s[to++] = from + j;");
    row_line(row, "    at += all;");
    row_line(row, "}");
    row_line(row, "__syncthreads();");
}

static void put_drop_smallest(RowText *row, const RowWalks *walks, Dtype dt)
{
    Dtype ct = compute_type(dt);

    row_line(row, "const auto key = [&](int i) {");
    put_rounded_weight(row, walks, "s[i]", "k", dt);
    row_line(row, "    (void)k0, (void)k1;");
    row_line(row, "    return order_key(vk);");
    row_line(row, "};");
    row_line(row, "uint64_t edge = 0;");
    row_line(row, "for (int b = %d; b >= 0; b--) {", ct == Df64 ? 63 : 31);
    row_line(row, "    const uint64_t t = edge | (uint64_t)1 << b;");
    row_line(row, "    int many = 0;");
    row_line(row, "    for (int i = TID; i < len; i += THREADS)");
    row_line(row, "        many += key(i) >= t;");
    row_line(row, "    edge = block_sum(many) >= room ? t : edge;");
    row_line(row, "}");
    row_line(row, "int more = 0;");
    row_line(row, "for (int i = TID; i < len; i += THREADS)");
    row_line(row, "    more += key(i) > edge;");
    row_line(row, "more = block_sum(more);");
    row_line(row, "for (int i0 = 0; i0 < len; i0 += THREADS) {");
    row_line(row, "    const int i = i0 + TID;");
    row_line(row, "    const uint64_t w = i < len ? key(i) : 0;");
    row_line(row, "    int all, same = i < len && w == edge;");
    row_line(row, "    const int at = more + block_before(same, all);");
    row_line(row, "    if (i < len && (w < edge || (same && at >= room))) {");
    row_decode(row, walks, "s[i]", "q", 1);
    row_line(row, "        y[p0 + q0] = -1;");
    row_line(row, "    }");
    row_line(row, "    more += all;");
    row_line(row, "}");
}

static void capacity_blocks(RowText *row, const RowWalks *item,
                            const RowWalks *pair, const Node *n)
{
    row_line(row, "const int x = (int)(blockIdx.x %% experts);");
    row_line(row, "const int64_t p = blockIdx.x / experts;");
    row_decode(row, item, "p", "p", 3);
    row_line(row, "(void)p2;");
    put_expert_pairs(row, pair);
    row_line(row, "if (len <= room)");
    row_line(row, "    return;");
    if (!n->at.drop_to_capacity.first) {
        put_drop_smallest(row, pair, n->in[1]->dt);
        return;
    }
    row_line(row, "for (int i = (int)room + TID; i < len; i += THREADS) {");
    row_decode(row, pair, "s[i]", "q", 1);
    row_line(row, "    y[p0 + q0] = -1;");
    row_line(row, "}");
}

static void capacity_items(RowText *row, const RowWalks *item,
                           const RowWalks *pair, const Node *n)
{
    put(&row->text, "%s", row_before);
    row_line(row, "for (int64_t p = lo; p < hi; p++) {");
    row_decode(row, item, "p", "p", 3);
    row_line(row, "(void)p2;");
    put_sort_by_expert(row, pair);
    row_line(row, "for (int64_t x = 0; x < experts; x++) {");
    row_line(row,
             "const int64_t from = x ? off[x - 1] : 0, len = off[x] - from;");
    row_line(row, "if (len <= room)");
    row_line(row, "    continue;");
    row_line(row, "int32_t *s = sorted + from, *d = s + n;");
    if (!n->at.drop_to_capacity.first)
        put_sort_by_weight(row, pair, n->in[1]->dt);
    else
        row_line(row, "(void)d;");
    row_line(row, "for (int64_t i = room; i < len; i++) {");
    row_decode(row, pair, "s[i]", "q", 1);
    row_line(row, "    y[p0 + q0] = -1;");
    row_line(row, "}");
    row_line(row, "}");
    row_line(row, "}");
    put(&row->text, "#undef BEFORE\n");
}

/* Threads of a block that scans n pairs twice. The scan is bound by latency:
 * decisions/route-blocks.md. */
static int pair_scan_threads(int64_t n)
{
    enum { MANYPAIRS = 1 << 15, MANYTHREADS = 1024 };

    return n < MANYPAIRS ? THREADMAP : MANYTHREADS;
}

/* Per micro-batch, over all tokens in the order of the result's axes. */
int drop_to_capacity_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *e = n->in[0], *weight = n->in[1];
    const Node *t[3] = { n, e, weight };
    RowWalks item = { 0 }, pair = { 0 };
    RowText o = row_begin(group, a);

    for (int d = 0; d < n->nd; d++)
        row_walk(g, g_ismicro(n->dim[d].a) ? &item : &pair, n, d, t);
    int64_t items = row_count(&item), pairs = row_count(&pair),
            x = n->at.drop_to_capacity.axis->n;
    row_buffer(&o, "e", e, e->dt);
    if (!n->at.drop_to_capacity.first)
        row_buffer(&o, "g", weight, weight->dt);
    row_buffer(&o, "y", n, n->dt);
    row_line(&o, "int32_t *const work = buf[%d];", group->narg);
    row_line(&o, "const int64_t n = iv[%d], experts = iv[%d], room = iv[%d];",
             row_size(&o, pairs), row_size(&o, x),
             row_size(&o, n->at.drop_to_capacity.rows));
    if (gpu)
        capacity_blocks(&o, &item, &pair, n);
    else
        capacity_items(&o, &item, &pair, n);
    group->scratch = items * (gpu ? pairs : x + 2 * pairs) * 4;
    row_finish(&o, g, gpu ? items * x : items, items * pairs * 16);
    return gpu ? pair_scan_threads(pairs) : 0;
}

/* ---- route --------------------------------------------------------------- */

/* Global index of this rank's first expert. */
static RankAffine first_expert(const Graph *g, const Node *route)
{
    Node x = *route;

    x.nd = 1;
    x.dim[0] = (Dim){ route->at.route.axis, route->at.route.axis->n };
    return local_start(g, &x, 0);
}

/* Size of the index tensor's axis `top`, and its stride in elements. */
static void top_layout(const Graph *g, const Node *route, int64_t *top,
                       int64_t *behind)
{
    const Node *e = route->in[0];

    *top = *behind = 1;
    for (int d = 0; d < e->nd; d++)
        if (e->dim[d].a == route_slot(route)) {
            *top = local_n(g, e, d);
            *behind = local_stride(g, e, e->dim[d].a);
        }
}

/* Count the pairs of each expert; the prefix sum gives its first row. */
#define COUNT_PAIRS                                  \
    "    for (int64_t p = lo; p < hi; p++) {\n"      \
    "    for (int64_t x = 0; x <= experts; x++)\n"   \
    "        off[x] = 0;\n"                          \
    "    for (int64_t i = 0; i < pairs; i++) {\n"    \
    "        const int64_t x = EXPERT(i);\n"         \
    "        if ((uint64_t)x < (uint64_t)experts)\n" \
    "            off[x + 1]++;\n"                    \
    "    }\n"                                        \
    "    for (int64_t x = 0; x < experts; x++)\n"    \
    "        off[x + 1] += off[x];\n"

/* Count, prefix sum, assign rows in the order of pairs. The counters then point
 * to the next expert's first row and are shifted back. */
static const char route_text[] = COUNT_PAIRS
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

/* Every expert has `each` rows; rows without a pair are -1. */
static const char padded_text[] =
    "    for (int64_t p = lo; p < hi; p++) {\n"
    "    for (int64_t x = 0; x <= experts; x++)\n"
    "        off[x] = (int32_t)(x * each);\n"
    "    for (int64_t i = 0; i < cap; i++)\n"
    "        pair[i] = -1;\n"
    "    for (int64_t i = 0; i < pairs; i++) {\n"
    "        const int64_t x = EXPERT(i);\n"
    "        row[i] = -1;\n"
    "        if ((uint64_t)x >= (uint64_t)experts || off[x] >= (x + 1) * "
    "each)\n"
    "            continue;\n"
    "        row[i] = off[x]++;\n"
    "        pair[row[i]] = (int32_t)i;\n"
    "    }\n"
    "    for (int64_t x = 0; x <= experts; x++)\n"
    "        off[x] = (int32_t)(x * each);\n"
    "    }\n"
    "#undef EXPERT\n";

/* Keeps the window of `cap` rows that starts at row `from`; `total` gets the
 * number of all rows. */
static const char budget_text[] =
    COUNT_PAIRS "    *total = off[experts];\n"
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

/* GPU: two launches; each block has a range of pairs. Launch 0 counts the pairs
 * of each expert per block. Launch 1 adds the counts of earlier blocks and
 * assigns rows in the order of pairs. WIDE experts are processed at a time: a
 * warp ranks its 32 pairs within their experts, and one thread per expert sums
 * over warps. BEGIN(x, before): first row of expert x if `before` pairs belong
 * to earlier experts. Rows 0 .. END(x) exist. CUT clamps to the capacity.
 * decisions/route-blocks.md compares it with one block per expert. */
static const char route_blocks[] =
    "    enum { WIDE = 256, WARPS = THREADS / 32 };\n"
    "    __shared__ int32_t many[WARPS][WIDE], next[WIDE];\n"
    "    const int lane = TID & 31, warp = TID >> 5, me = (int)blockIdx.x;\n"
    "    const int64_t end = (me + 1) * each_block;\n"
    "    const int64_t lo = me * each_block, hi = end < pairs ? end : pairs;\n"
    "    int64_t below = 0;\n"
    "    if (PADDED && !launch)\n"
    "        for (int64_t i = me * THREADS + TID; i < cap;\n"
    "             i += blocks * THREADS)\n"
    "            pair[i] = -1;\n"
    "    for (int64_t x0 = 0; x0 < experts; x0 += WIDE) {\n"
    "        const int wide = experts - x0 < WIDE ? experts - x0 : WIDE;\n"
    "        for (int s = 0; s < wide; s += THREADS) {\n"
    "            const int x = s + TID;\n"
    "            int32_t mine = 0, mine_before = 0, all;\n"
    "            if (launch && x < wide) {\n"
    "#pragma unroll 32\n"
    "                for (int b = 0; b < blocks; b++) {\n"
    "                    const int32_t n = count[b * experts + x0 + x];\n"
    "                    mine_before += b < me ? n : 0;\n"
    "                    mine += n;\n"
    "                }\n"
    "            }\n"
    "            const int64_t r =\n"
    "                BEGIN(x0 + x, below + block_before(mine, all));\n"
    "            below += all;\n"
    "            if (x < wide)\n"
    "                next[x] = launch ? (int32_t)r + mine_before : 0;\n"
    "            if (x < wide && launch && me == 0)\n"
    "                off[x0 + x] = CUT(r);\n"
    "        }\n"
    "        for (int64_t i0 = lo; i0 < hi; i0 += THREADS) {\n"
    "            const int64_t i = i0 + TID;\n"
    "            const int64_t w = i < hi ? EXPERT(i) - x0 : -1;\n"
    "            const int x = w >= 0 && w < wide ? (int)w : -1;\n"
    "            int rank = 0, same = 0;\n"
    "            for (int l = 0; l < 32; l++) {\n"
    "                const int is = __shfl_sync(~0u, x, l) == x ? 1 : 0;\n"
    "                same += is;\n"
    "                rank += l < lane ? is : 0;\n"
    "            }\n"
    "            for (int e = lane; e < wide; e += 32)\n"
    "                many[warp][e] = 0;\n"
    "            __syncwarp();\n"
    "            if (x >= 0 && rank == same - 1)\n"
    "                many[warp][x] = same;\n"
    "            __syncthreads();\n"
    "            for (int e = TID; e < wide; e += THREADS) {\n"
    "                int32_t to = next[e];\n"
    "#pragma unroll\n"
    "                for (int v = 0; v < WARPS; v++) {\n"
    "                    const int32_t n = many[v][e];\n"
    "                    many[v][e] = to;\n"
    "                    to += n;\n"
    "                }\n"
    "                next[e] = to;\n"
    "            }\n"
    "            __syncthreads();\n"
    "            const int64_t r = x >= 0 ? many[warp][x] + rank : -1;\n"
    "            if (!launch && x0 == 0 && i < hi)\n"
    "                row[i] = -1;\n"
    "            if (launch && r >= 0 && r < END(x0 + x))\n"
    "                row[i] = (int32_t)r, pair[r] = (int32_t)i;\n"
    "            __syncwarp();\n"
    "        }\n"
    "        for (int e = TID; e < wide && !launch; e += THREADS)\n"
    "            count[me * experts + x0 + e] = next[e];\n"
    "    }\n"
    "    if (launch && me == 0 && TID == 0) {\n"
    "        off[experts] = CUT(BEGIN(experts, below));\n"
    "        TOTAL(below);\n"
    "    }\n"
    "#undef EXPERT\n"
    "#undef BEGIN\n"
    "#undef END\n"
    "#undef CUT\n"
    "#undef PADDED\n"
    "#undef TOTAL\n";

/* Writes the first row of this route in the stashed stacks: after the previous
 * route's rows, rounded up to blocks of 128. If its capacity does not fit
 * there, `total` reports an overflow. */
static void put_stash(RowText *row, const Graph *g, Node *n, int gpu)
{
    MapLayout l = map_layout(g, n);

    row_line(row, gpu ? "if (launch && blockIdx.x == 0 && TID == 0) {" : "{");
    if (n->nin > 1) {
        int64_t rows = map_layout(g, n->in[1]).experts;
        row_line(row, "    const int64_t rows = iv[%d];", row_size(row, rows));
        row_line(row, "    const int64_t base = last[rows + 1] + "
                      "(int64_t)((last[rows] + 127) & ~127);");
    } else {
        row_line(row, "    const int64_t base = 0;");
    }
    row_line(row, "    const int64_t most = iv[%d];",
             row_size(row, n->at.route.stash - l.cap));
    row_line(row,
             "    off[experts + 1] = (int32_t)(base < most ? base : most);");
    row_line(row, "    if (base > most)");
    row_line(row, "        *total = INT32_MAX;");
    row_line(row, "}");
}

typedef struct RouteGrid {
    int64_t blocks;
    int threads; /* threads of a block */
} RouteGrid;

/* Defines the macros of route_blocks; returns the grid of both launches. */
static RouteGrid put_route_macros(RowText *row, const MapLayout *layout,
                                  int budget)
{
    enum { BLOCKS = 128 };
    int threads = pair_scan_threads(layout->pairs);
    int64_t pairs = layout->pairs, round = (int64_t)threads * BLOCKS;
    int64_t each = (pairs + round - 1) / round * threads;
    int64_t blocks = (pairs + each - 1) / each;
    int padded = layout->each > 0;

    row_line(row, "const int64_t each_block = iv[%d], blocks = iv[%d];",
             row_size(row, each), row_size(row, blocks));
    row_line(row, "int32_t *const count = buf[%d];", row->group->narg);
    put(&row->text, "#define BEGIN(x, before) (%s)\n",
        padded   ? "(x) * each"
        : budget ? "(before) - from"
                 : "(before)");
    put(&row->text, "#define END(x) (%s)\n",
        padded ? "((x) + 1) * each" : "cap");
    put(&row->text,
        "#define CUT(r) (int32_t)((r) < 0 ? 0 : (r) < cap ? (r) : cap)\n"
        "#define PADDED %d\n#define TOTAL(n) %s(n)\n",
        padded, budget ? "*total = (int32_t)" : "(void)");
    row->group->scratch = blocks * layout->experts * 4;
    return (RouteGrid){ blocks, threads };
}

int route_lower(Graph *g, Group *group, Arena *a, int gpu)
{
    Node *n = group->node[0], *e = n->in[0];
    MapLayout l = map_layout(g, n);
    RowText o = row_begin(group, a);
    int64_t top, behind;

    top_layout(g, n, &top, &behind);
    row_buffer(&o, "e", e, e->dt);
    row_buffer(&o, "map", n, Di32);
    row_line(
        &o, "const int64_t pairs = iv[%d], experts = iv[%d], cap = iv[%d];",
        row_size(&o, l.pairs), row_size(&o, l.experts), row_size(&o, l.cap));
    row_line(&o,
             "int32_t *const off = map + iv[%d], *const pair = map + iv[%d], "
             "*const row = map + iv[%d];",
             row_size(&o, l.offset), row_size(&o, l.pair), row_size(&o, l.row));
    row_line(&o, "const int64_t first = iv[%d], top = iv[%d], in = iv[%d];",
             add_int(group, a, first_expert(g, n)), row_size(&o, top),
             row_size(&o, behind));
    put(&o.text, "#define EXPERT(i) (e[%s] - first)\n",
        behind == 1
            ? "i"
            : "((i) / top / in * top + (i) % top) * in + (i) / top % in");
    row_line(&o, "(void)top, (void)in;");
    if (l.each)
        row_line(&o, "const int64_t each = iv[%d];", row_size(&o, l.each));
    if (n->at.route.budget > 0)
        row_line(
            &o,
            "int32_t *const total = map + iv[%d]; const int64_t from = iv[%d];",
            row_size(&o, l.total), row_size(&o, l.first));
    if (n->at.route.stash && n->nin > 1)
        row_buffer(&o, "last", n->in[1], Di32);
    int plain = !l.each && !(n->at.route.budget > 0);
    RouteGrid grid = { 1, 0 };
    if (gpu)
        grid = put_route_macros(&o, &l, n->at.route.budget > 0);
    put(&o.text, "%s",
        gpu      ? route_blocks
        : plain  ? route_text
        : l.each ? padded_text
                 : budget_text);
    if (n->at.route.stash)
        put_stash(&o, g, n, gpu);
    row_finish(&o, g, grid.blocks, l.pairs * 4);
    group->instr.launch.then = gpu ? grid.blocks : 0;
    group->instr.launch.pairs = gpu;
    return grid.threads;
}

/* ---- dispatch ------------------------------------------------------------ */

/* Is x stored in the order of its axes, up to renamed, split and merged
 * axes? */
static int is_plain(const Node *x)
{
    while (x->op == Orename || x->op == Osplit || x->op == Omerge)
        x = x->in[0];
    return !is_view(x);
}

/* The tensor whose rows group's dispatch n copies (without a broadcast over
 * top), or null if it is not in memory. */
static Node *row_source(const Group *group, const Node *n)
{
    Node *x = n->in[0];

    if (x->op == Obroadcast)
        x = x->in[0];
    for (int i = 0; i < group->nin && is_plain(x); i++)
        if (storage(group->in[i]) == storage(x))
            return x;
    return NULL;
}

/* Elements of a row if row r of n equals token pair[r] / top of x as stored:
 * token axes first, in the order of the index tensor, then the other axes of n.
 * Else 0. */
static int64_t dispatched_row_elems(const Graph *g, const Node *n,
                                    const Node *x)
{
    const Node *e = n->in[1]->in[0];
    int64_t wide = 1;
    int d = 0, first = 0;

    while (first < n->nd && is_rows(n->in[1], n->dim[first].a))
        first++;
    if (n->dt != x->dt || !first)
        return 0;
    for (int i = 0; i < e->nd; i++) {
        if (e->dim[i].a == route_slot(n->in[1]))
            continue;
        if (d == x->nd || x->dim[d].a != e->dim[i].a ||
            local_n(g, x, d) != local_n(g, e, i))
            return 0;
        d++;
    }
    if (x->nd - d != n->nd - first)
        return 0;
    for (int i = first; i < n->nd; i++, d++) {
        if (x->dim[d].a != n->dim[i].a)
            return 0;
        wide *= local_n(g, x, d);
    }
    return wide;
}

/* One warp per token, 16 bytes a lane, EACH loads in flight: each row is read
 * once and written to all its expert rows. */
static const char copy_token[] =
    "    const int64_t t = (int64_t)blockIdx.x * (THREADS / 32) + (TID >> 5);\n"
    "    if (t >= tokens)\n"
    "        return;\n"
    "    const uint4 *const from = x + t * PIECES;\n"
    "    const int32_t *const to = map + row + t * top;\n"
    "    for (int c0 = TID & 31; c0 < PIECES; c0 += 32 * EACH) {\n"
    "        uint4 v[EACH];\n"
    "#pragma unroll\n"
    "        for (int j = 0; j < EACH; j++)\n"
    "            if (c0 + 32 * j < PIECES)\n"
    "                v[j] = from[c0 + 32 * j];\n"
    "        for (int i = 0; i < top; i++) {\n"
    "            const int64_t r = to[i];\n"
    "#pragma unroll\n"
    "            for (int j = 0; j < EACH; j++)\n"
    "                if (r >= 0 && c0 + 32 * j < PIECES)\n"
    "                    y[r * PIECES + c0 + 32 * j] = v[j];\n"
    "        }\n"
    "    }\n";

/* One warp per expert row, for maps with rows that have no token and become
 * zero. */
static const char copy_row[] =
    "    const int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + (TID >> 5);\n"
    "    if (r >= map[experts])\n"
    "        return;\n"
    "    const int at = map[pair + r];\n"
    "    const uint4 *const from = x + at / top * PIECES;\n"
    "    for (int c = TID & 31; c < PIECES; c += 32)\n"
    "        y[r * PIECES + c] = at >= 0 ? from[c] : uint4 { 0, 0, 0, 0 };\n";

int dispatch_lower_cuda(Graph *g, Group *group, Arena *a)
{
    Node *n = group->n == 1 ? group->node[0] : NULL;
    Node *x = n && n->op == Odispatch && group->out[0] == n
                  ? row_source(group, n)
                  : NULL;
    int64_t bytes = x ? dispatched_row_elems(g, n, x) * dtypes[n->dt].bytes : 0;
    int64_t top, behind;

    if (!bytes || bytes % 16)
        return 0;
    Node *map = n->in[1];
    MapLayout l = map_layout(g, map);
    top_layout(g, map, &top, &behind);
    RowText o = row_begin(group, a);
    int at[3] = { add_arg(group, a, map), add_arg(group, a, x),
                  add_arg(group, a, n) };
    row_line(&o, "const int32_t *const map = buf[%d];", at[0]);
    row_line(&o, "const uint4 *const x = buf[%d];", at[1]);
    put_pointer(&o.text, g, group, a, at[2], "uint4", 16, "y");
    row_line(&o, "const int64_t top = iv[%d];", row_size(&o, top));
    row_line(&o, "enum { EACH = 8, PIECES = %ld };", bytes / 16);
    if (l.each) {
        row_line(&o, "const int64_t experts = iv[%d], pair = iv[%d];",
                 row_size(&o, l.experts), row_size(&o, l.pair));
        put(&o.text, "%s", copy_row);
    } else {
        row_line(&o, "const int64_t tokens = iv[%d], row = iv[%d];",
                 row_size(&o, l.pairs / top), row_size(&o, l.row));
        put(&o.text, "%s", copy_token);
    }
    row_finish(&o, g, ((l.each ? l.cap : l.pairs / top) + 7) / 8, 1);
    return 1;
}
