/* scaled_products.c: products of numbers of 8 bits as they are stored, where
 * the target has a kernel that multiplies those and applies their scales. Of
 * experts:
 *
 *   q [row hidden]  s [row hb]  p [expert ffn hidden]  t [expert fb hb]
 *
 *     %v = cast (dequantize %q %s)
 *     %u = cast (dequantize %p %t)     =>
 *     %y = gmm %v %u %map hidden              %y = gmm %q %p %map %s %t hidden
 *
 * A product of matrices is the same without experts and map, of any axes that
 * are blocks of rows and columns when they are taken as one.
 *
 * The gradient of an expert's weight is a product of blocks of 128 rows, in the
 * order in which tensor cores read them, blocks first, a column's rows last:
 *
 *     %v = fake_quantize %x %map     =>
 *     %u = fake_quantize %y %map
 *     %w = gmm_wgrad %v %u %map         %w = gmm_wgrad %q %p %map %s %t
 *
 * A weight that is kept so is rounded by such a kernel too, into its place:
 *
 *     %s = pow2_scale (amax %w) 448      =>
 *     write q (quantize %w %s)              %b = quantize_blocks %w
 *     write t (div 1 %s)                    write q (part %b 0)
 *                                           write t (part %b 1)
 *
 * A token has a row with each of its experts. Where they are many, the token is
 * rounded, not its rows: a block is of one row, so the bits are the same.
 *
 *     %r = dispatch %x %map              %b = quantize_blocks %x
 *     %b = quantize_blocks %r %map  =>   dispatch (part %b 0) %map
 *     part %b 0; part %b 1               dispatch (part %b 1) %map
 *
 * Where columns of rows are rounded too, the kernel reads each row where its
 * token lies, if nothing else reads the rows (quantize_blocks %x %map).
 *
 * Numbers and scales that a step makes come from one kernel, in each order in
 * which products read them; others who read them, as products that dequantize
 * do, read the same, and what is rounded again for the backward is so at the
 * same scales. Elsewhere, and where blocks lie otherwise, the product is
 * of what its operands are dequantized to, which is the same but for the order
 * of its sum. */
#include "quant.h"

/* x, if q is what it is rounded to in its blocks, at the largest power of two
 * that a block's largest number allows; or null. */
static Node *rounded(const Node *q)
{
    if (q->op != Oquantize || q->dt != De4m3 || q->in[0]->dt != Dbf16)
        return NULL;
    Node *x = q->in[0];
    const Node *s = q->in[1], *most = s->op == Opow2_scale ? s->in[0] : NULL;
    if (!most || most->op != Oamax || most->in[0] != x ||
        !constant_is(s->in[1], E4M3MAX))
        return NULL;
    const Axes *cut = &q->at.quantize.axes;
    int same = most->at.amax.layout == q->at.quantize.layout;
    for (int i = 0; i < cut->n; i++)
        same &= axes_at(&most->at.amax.axes, cut->v[i]) >= 0;
    return same ? x : NULL;
}

/* Is t what 1 stands for in the numbers q? */
static int is_inverse(const Node *t, const Node *q)
{
    return t->op == Odiv && constant_is(t->in[0], 1) && t->in[1] == q->in[1];
}

/* x, if d dequantizes what it was rounded to, and the blocks lie along its last
 * axes; or null. */
static Node *rounded_to_blocks(const Node *d)
{
    const Node *q = d->in[0];
    Node *x = rounded(q);

    if (!x || !is_inverse(d->in[1], q))
        return NULL;
    const Axes *cut = &d->at.dequantize.axes;
    int same = q->at.quantize.layout == d->at.dequantize.layout;
    for (int i = 0; i < cut->n; i++)
        same &= axes_at(&q->at.quantize.axes, cut->v[i]) >= 0 &&
                axes_at(cut, x->dim[x->nd - 1 - i].a) >= 0;
    return same ? x : NULL;
}

static Node *as_it_is(Node *n, const Node *by)
{
    n->again = by->again;
    n->sh = by->sh;
    return g_placed(n, by);
}

/* Part i, as x; of those from 2 on the axis that is summed over lies last. */
static Node *part_as(Graph *g, Node *blocks, int i, const Node *x, int sum)
{
    Node *p = g_placed(as_it_is(new_part(g, blocks, i, x->dt, x), x), blocks);
    Dim last = p->dim[sum];

    p->dim[sum] = p->dim[p->nd - 1];
    p->dim[p->nd - 1] = last;
    return p;
}

/* What rounds x is found by x, of rows; of others by the numbers `by`, which
 * may be made of it in several places. */
static uint64_t key_of(const Node *x, const Node *by)
{
    return KEYP(x->map ? x : by);
}

static Node *new_blocks(Graph *g, Node *x, ScaleLayout layout, const Axes *axes,
                        const Node *by)
{
    Node *in[2] = { x, x->map };
    Node *n = g_node(g, Oquantize_blocks, by->loc, x->map ? 2 : 1, in);

    n->at.quantize_blocks.layout = layout;
    n->at.quantize_blocks.axes = *axes;
    return as_it_is(infer(g, n), by);
}

/* What rounds x in blocks along its last axes, for all products of that, as
 * `by` makes it by itself. The scale of `by` finds it too. */
static Node *blocks_of(Graph *g, Table *made, Node *x, ScaleLayout layout,
                       const Axes *axes, const Node *by)
{
    Node **n = (Node **)table_at(made, key_of(x, by));

    if (!*n)
        *n = new_blocks(g, x, layout, axes, by);
    Node *blocks = *n;
    if (by->op == Oquantize && !table_get(made, KEYP(by->in[1])))
        *table_at(made, KEYP(by->in[1])) = blocks;
    return blocks;
}

/* Operand k of product n, which d dequantizes: numbers and scales by one
 * kernel, as the product reads them. */
static void round_once(Graph *g, Table *made, Node *n, int k, const Node *d)
{
    Node *x = rounded_to_blocks(d);

    if (!x)
        return;
    Node *blocks = blocks_of(g, made, x, d->at.dequantize.layout,
                             &d->at.dequantize.axes, d->in[0]);
    int sum = dim_of(x, n->at.gmm.axes.v[0]), at = sum < x->nd - 1 ? 2 : 0;
    n->in[k] = part_as(g, blocks, at, d->in[0], sum);
    n->in[3 + k] = part_as(g, blocks, at + 1, d->in[1], sum);
}

static int grouped_product(Graph *g, Table *made, Node *n)
{
    ScaledOperands of;

    if (!multiplies_numbers(g, n, &of))
        return 0;
    const Node *rows = of.rows, *w = of.w;
    Node **in = alloc(g->arena, 5 * sizeof *in);
    in[0] = rows->in[0];
    in[1] = w->in[0];
    in[2] = n->in[2];
    in[3] = rows->in[1];
    in[4] = w->in[1];
    n->in = in;
    n->nin = 5;
    round_once(g, made, n, 0, rows);
    round_once(g, made, n, 1, w);
    return 1;
}

/* Are the blocks along the two axes, the last among them, those of matrices of
 * which the other counts the rows and all behind it the columns? */
static int is_square(const Graph *g, const Node *x, const Axes *cut)
{
    int at = cut->n == 2 ? x->nd - 1 : 0;
    int64_t columns = 1, last = local_n(g, x, x->nd - 1);

    if (!at || axes_at(cut, x->dim[at].a) < 0)
        return 0;
    for (; columns *= local_n(g, x, at), axes_at(cut, x->dim[at - 1].a) < 0;)
        at--;
    return columns % 8 == 0 && local_n(g, x, at - 1) % 8 == 0 &&
           (columns == last || last % SCALEBLOCK == 0);
}

/* What makes numbers and scales of such blocks of a weight, as q is; null. */
static Node *square_blocks(Graph *g, Table *made, const Node *q)
{
    Node *x = rounded(q);

    return x && q->at.quantize.layout == SCALEsquare &&
                   is_square(g, x, &q->at.quantize.axes)
               ? blocks_of(g, made, x, SCALEsquare, &q->at.quantize.axes, q)
               : NULL;
}

static int dense_product(Graph *g, Table *made, Node *n)
{
    ScaledOperands of;

    if (!multiplies_numbers(g, n, &of))
        return 0;
    const Node *rows = of.rows, *w = of.w;
    Node **in = alloc(g->arena, 4 * sizeof *in);
    in[0] = rows->in[0];
    in[1] = w->in[0];
    in[2] = rows->in[1];
    in[3] = w->in[1];
    n->in = in;
    n->nin = 4;
    Node *x = rounded_to_blocks(rows);
    if (x) {
        Node *blocks = blocks_of(g, made, x, rows->at.dequantize.layout,
                                 &rows->at.dequantize.axes, rows->in[0]);
        for (int i = 0; i < 2; i++)
            in[2 * i] = part_as(g, blocks, i, in[2 * i], x->nd - 1);
    }
    Node *blocks = is_inverse(w->in[1], w->in[0])
                       ? square_blocks(g, made, w->in[0])
                       : NULL;
    for (int i = 0; blocks && i < 2; i++)
        in[1 + 2 * i] = part_as(g, blocks, i, w->in[i], w->in[i]->nd - 1);
    return 1;
}

/* Operands of d are what a product reads, where a kernel makes that. */
static void share_blocks(Graph *g, Table *made, Node *d)
{
    const Node *x = rounded_to_blocks(d);
    Node *blocks = x ? (Node *)table_get(made, key_of(x, d->in[0])) : NULL;

    if (!blocks)
        return;
    Node **in = alloc(g->arena, 2 * sizeof *in);
    for (int i = 0; i < 2; i++)
        in[i] = part_as(g, blocks, i, d->in[i], d->in[i]->nd - 1);
    d->in = in;
}

/* What rounds again for the backward, elementwise, takes its scale from the
 * kernel that has rounded for the forward: 1 over what that says 1 stands for,
 * a power of two, so exact. */
static void share_scale(Graph *g, Table *made, Node *n)
{
    Node *s = n->op == Oquantize || n->op == Odiv ? n->in[1] : NULL;
    Node *blocks = s ? table_get(made, KEYP(s)) : NULL;

    if (!blocks || n->again <= s->again || blocks->again != s->again ||
        blocks->reg != s->reg)
        return;
    Node *inverse = part_as(g, blocks, 1, s, s->nd - 1);
    Node *one = g_const(g, n->loc, s->dt, 1);
    Node **in = alloc(g->arena, 2 * sizeof *in);
    in[0] = n->in[0];
    in[1] = as_it_is(g_ew(g, Odiv, n->loc, one, inverse, NULL), s);
    g_placed(in[1], n)->again = n->again;
    n->in = in;
}

/* ---- weights that are kept ----------------------------------------------- */

/* What the write stores, if a kernel makes it of a weight; null. */
static Node *kept_part(Graph *g, Table *made, const Node *n)
{
    Node *v = n->in[1], *numbers = square_blocks(g, made, v);

    if (numbers)
        return part_as(g, numbers, 0, v, v->nd - 1);
    Node *blocks = v->op == Odiv && constant_is(v->in[0], 1)
                       ? table_get(made, KEYP(v->in[1]))
                       : NULL;
    return blocks && blocks->reg == v->reg ? part_as(g, blocks, 1, v, v->nd - 1)
                                           : NULL;
}

/* Scales are known by their numbers, which may stand behind them. */
static int keep_weights(Graph *g, Table *made)
{
    int any = 0;

    for (int last = 0; last < 2; last++)
        for (size_t i = 0, n = vec_len(g->node); i < n; i++) {
            Node *w = g->node[i];
            if (w->op != Owrite || (w->in[1]->op == Odiv) != last)
                continue;
            Node *part = kept_part(g, made, w);
            w->in[1] = part ? part : w->in[1];
            any |= part != NULL;
        }
    return any;
}

/* ---- gradients of experts' weights --------------------------------------- */

/* The rows of bf16, [row column], that n is rounded of in columns; null. */
static Node *columns_rounded(const Node *n)
{
    while (n->op == Ocast && n->dt == n->in[0]->dt)
        n = n->in[0];
    Node *x = n->op == Ofake_quantize ? n->in[0] : NULL;

    return x && x->dt == Dbf16 && x->nd == 2 && g_isrow(x->dim[0].a) &&
                   x->map == n->in[1]
               ? x
               : NULL;
}

/* Part i of blocks of rows: [block column row], or scales [block column]. Ranks
 * that have rows of their own have blocks of their own. */
static Node *columns_part(Graph *g, Node *blocks, int i)
{
    Node *x = blocks->in[0];
    MapLayout l = map_layout(g, x->map);
    int64_t places = row_blocks(l.cap, l.experts);
    for (int t = 0; g->mesh && t < g->mesh->natom; t++)
        if (x->map->sh[t].k == S)
            places *= g->mesh->atom[t].size;
    Axis *block =
        g_axis(g, strf(g->arena, "row'blocks%lld", (long long)places));
    Axis *row = g_axis(g, "row'by128");
    Node like = { .nd = i == 2 ? 3 : 2,
                  .dim = {
                      { block, places }, x->dim[1], { row, SCALEBLOCK } } };
    Node *p = new_part(g, blocks, i, i == 2 ? De4m3 : Df32, &like);

    Shard sh[MAXATOM];
    for (int t = 0; t < MAXATOM; t++)
        sh[t] =
            x->map->sh[t].k == S ? (Shard){ S, Radd, block } : blocks->sh[t];
    as_it_is(p, blocks)->sh = g_type(g, sh);
    return p;
}

static int weight_gradient(Graph *g, Table *made, Node *n)
{
    Node *x[2] = { columns_rounded(n->in[0]), columns_rounded(n->in[1]) };

    if (!x[0] || !x[1] || !pass_target(g)->scaled(g, n))
        return 0;
    Node **in = alloc(g->arena, 5 * sizeof *in);
    in[2] = n->in[2];
    for (int k = 0; k < 2; k++) {
        Axes columns = g_axes(g, &x[k]->dim[1].a, 1);
        Node *blocks = blocks_of(g, made, x[k], SCALEwide, &columns, n->in[k]);
        in[k] = columns_part(g, blocks, 2);
        in[3 + k] = columns_part(g, blocks, 3);
    }
    n->in = in;
    n->nin = 5;
    return 1;
}

/* ---- rows of tokens ------------------------------------------------------ */

/* What the rows x are of, each as often as a token has experts, whole on each
 * rank; null. */
static Node *tokens_of(const Graph *g, const Node *x)
{
    Node *token = x->op == Odispatch && !x->stash ? x->in[0] : NULL;
    Axis *last = x->dim[x->nd - 1].a;

    while (token && token->op == Obroadcast && token->nin == 1)
        token = token->in[0];
    if (!token || token->map || !token->nd ||
        token->dim[token->nd - 1].a != last)
        return NULL;
    for (int t = 0; g->mesh && t < g->mesh->natom; t++)
        if (token->sh[t].k == P ||
            (token->sh[t].k == S && token->sh[t].a == last))
            return NULL;
    return token;
}

/* Are they rounded so many times over that rounding tokens moves fewer bytes:
 * of a row 3 bytes an element, or 1 and 4 of its token's? Rows of no token are
 * 0, whose scale is 1. */
static int repeats_tokens(const Graph *g, const Node *x, const Node *token)
{
    return !map_layout(g, x->in[1]).each &&
           local_elems(g, x) > 2 * local_elems(g, token);
}

/* Do tokens lie as the index of the rows' map counts them? */
static int in_order(const Node *x, const Node *token)
{
    const Node *e = x->in[1]->in[0];
    int n = 0;

    for (int d = 0; d < e->nd; d++)
        if (e->dim[d].a != route_slot(x->in[1]) &&
            (n >= token->nd || token->dim[n++].a != e->dim[d].a))
            return 0;
    return n + 1 == token->nd;
}

/* Rows of part i of tokens that n rounds, as `by`, which reads that of rows. */
static void dispatch_part(Graph *g, Node *n, Node *by)
{
    Node *token = n->in[0], like = *token;
    Node **in = alloc(g->arena, 2 * sizeof *in);

    like.dim[like.nd - 1] = by->dim[by->nd - 1];
    in[0] = as_it_is(new_part(g, n, (int)by->at.part.index, by->dt, &like), n);
    in[1] = by->in[0]->in[1];
    by->op = Odispatch;
    memset(&by->at, 0, sizeof by->at);
    by->in = in;
    by->nin = 2;
    infer(g, by);
}

/* Rows whose columns are rounded too, and that nothing else reads, are read
 * where their tokens lie. */
static void gather_rows(Graph *g, const Table *turned)
{
    Table *uses = use_table(g);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        Node *x = table_get(turned, KEYP(n)) && n->nin > 1 ? n->in[0] : NULL,
             *token = x ? tokens_of(g, x) : NULL;
        if (!token || (uintptr_t)table_get(uses, KEYP(x)) > 1 ||
            n->in[1] != x->in[1] || !in_order(x, token))
            continue;
        Node **in = alloc(g->arena, 2 * sizeof *in);
        in[0] = token;
        in[1] = n->in[1];
        n->in = in;
    }
}

static void round_tokens(Graph *g)
{
    size_t n = vec_len(g->node);
    Table *turned = table_new(g->arena), *of = table_new(g->arena);

    for (size_t i = 0; i < n; i++) {
        Node *p = g->node[i];
        if (p->op == Opart && p->in[0]->op == Oquantize_blocks &&
            p->at.part.index > 1)
            *table_at(turned, KEYP(p->in[0])) = p;
    }
    gather_rows(g, turned);
    for (size_t i = 0; i < n; i++) {
        Node *p = g->node[i], *rows = p->op == Opart ? p->in[0] : NULL, *x;
        if (!rows || rows->op != Oquantize_blocks || rows->nin < 2 ||
            table_get(turned, KEYP(rows)) || !(x = tokens_of(g, rows->in[0])) ||
            !repeats_tokens(g, rows->in[0], x))
            continue;
        Node **tokens = (Node **)table_at(of, KEYP(rows));
        if (!*tokens) {
            *tokens = g_node(g, Oquantize_blocks, rows->loc, 1, &x);
            (*tokens)->at.quantize_blocks = rows->at.quantize_blocks;
            as_it_is(infer(g, *tokens), rows)->sh = x->sh;
        }
        dispatch_part(g, *tokens, p);
    }
}

void scaled_products(Graph *g)
{
    Table *made = table_new(g->arena); /* see blocks_of */
    int any = 0;

    if (!pass_target(g)->scaled)
        return;
    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->op == Ogmm)
            any |= grouped_product(g, made, n);
        else if (n->op == Odot)
            any |= dense_product(g, made, n);
        else if (n->op == Ogmm_wgrad)
            any |= weight_gradient(g, made, n);
    }
    any |= keep_weights(g, made);
    for (size_t i = 0, n = vec_len(g->node); any && i < n; i++) {
        share_scale(g, made, g->node[i]);
        if (g->node[i]->op == Odequantize)
            share_blocks(g, made, g->node[i]);
    }
    if (any) {
        g_sort(g);
        g_tidy(g); /* what reads rows is counted */
        round_tokens(g);
        g_sort(g);
    }
}
