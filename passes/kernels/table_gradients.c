/* table_gradients.c: sparse gradients of tables, such as an embedding, of which
 * a step reads few rows. A dense gradient, nearly all zeros, would be cleared,
 * added to, and read twice, for its norm and by the optimizer:
 *
 *     %d = scatter_add %v %e axis=vocab     %t = index of each token
 *     %g = accum %d        [vocab hidden]   %f = index of the first equal one
 *     %m = mul %g %g                        %r = accum (scatter_add %v %f)
 *     %s = sum %m                                           [row hidden]
 *     %u = mul %g %b                  =>    %p = accum (scatter_add (%f == %t ?
 *                                                %t + 1 : 0) %e)   [vocab]
 *                                           %s = sum (mul %r %r)
 *                                           %x = gather %r (%p - 1)
 *                                           %u = mul %x %b
 *
 * Each row is summed in the same order, and the gather of row -1 is 0, so the
 * gradient is equal; the sum of squares has another order. Conditions: one
 * micro-batch a rank and step, a gradient that is not sharded, and an optimizer
 * that reads it element by element. Indices of tokens are exact in fp32.
 * Measured: decisions/table-gradients.md. */
#include "kernels.h"

enum { FEW = 4, MOSTTOKENS = 1 << 22 }; /* FEW: rows of the table per token */

/* Replacement of an accumulator. */
typedef struct TableRows {
    Node *sum;   /* [row rest] */
    Node *place; /* [table], fp32: 1 + index of its row, or 0 */
    Node *value; /* node of post; null: not needed yet */
} TableRows;

typedef struct TableGradients {
    Table *rows; /* accumulator -> its TableRows */
    Table *sum;  /* sum of squares -> its accumulator */
} TableGradients;

/* ---- conditions ---------------------------------------------------------- */

static int is_whole(const Node *scatter)
{
    return scatter->sh == whole_type && scatter->in[0]->sh == whole_type &&
           scatter->in[1]->sh == whole_type;
}

/* Is it laid out as by scattered(): the table's axis, then those of a row? */
static int lies_by_rows(const Node *scatter)
{
    const Node *v = scatter->in[0], *e = scatter->in[1];
    int k = 1;

    for (int d = 0; d < v->nd; d++)
        if (dim_of(e, v->dim[d].a) < 0)
            if (k >= scatter->nd || scatter->dim[k++].a != v->dim[d].a)
                return 0;
    return k == scatter->nd &&
           scatter->dim[0].a == scatter->at.scatter_add.axis;
}

static int is_table(const Node *n, const int *uses)
{
    const Node *s = n->op == Oaccum ? n->in[0] : NULL;

    return s && n->of && n->nin == 1 && n->at.accum.op == Radd &&
           n->sh == whole_type && s->op == Oscatter_add && s->dt == n->dt &&
           uses[s->id] == 1 && is_whole(s) && lies_by_rows(s) &&
           same_order(n, s) && g_elems(s->in[1]) <= MOSTTOKENS &&
           n->dim[0].n >= FEW * g_elems(s->in[1]);
}

/* Returns the value whose squares scalar n sums; null: none. */
static Node *summed(const Node *n)
{
    const Node *m = n->op == Osum && n->reg == REGpost ? n->in[0] : NULL;

    return m && n->nd == 0 && m->op == Omul && m->in[0] == m->in[1] ? m->in[0]
                                                                    : NULL;
}

static int reads_elements(const Node *n)
{
    return n->reg == REGpost && optab[n->op].cls == EW;
}

static void find(const TableGradients *tables, const Graph *g)
{
    int *uses = use_counts(g, g->arena);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (is_table(n, uses))
            *table_at(tables->rows, KEYP(n)) =
                alloc(g->arena, sizeof(TableRows));
        for (int k = 0; k < n->nin && !reads_elements(n); k++)
            if (table_get(tables->rows, KEYP(n->in[k])))
                *table_at(tables->rows, KEYP(n->in[k])) = NULL;
        if (summed(n))
            *table_at(tables->sum, KEYP(n)) = summed(n);
    }
}

/* ---- rewriting ----------------------------------------------------------- */

/* Numbers of what has these dims, the last fastest. */
static Node *numbers(Cursor b, const Dim *dim, int nd)
{
    Node *all = b_const(b, Df32, 0);

    for (int d = 0; d < nd; d++) {
        if (dim[d].n == 1)
            continue;
        Node *i = b_node(b, Oiota, 0, NULL);
        i->at.iota.axis = dim[d].a;
        i->dim[i->nd++] = dim[d];
        Node *size = b_const(b, Df32, (double)dim[d].n);
        Node *at = b_cast(b, infer(b.g, i), Df32);
        all = b_op2(b, Oadd, b_op2(b, Omul, all, size), at);
    }
    return all;
}

/* Of each token the number of the first with the same entry. */
static Node *first_alike(Cursor b, Node *e)
{
    Axis *was[MAXD], *other[MAXD];
    Dim dim[MAXD];

    for (int d = 0; d < e->nd; d++) {
        was[d] = e->dim[d].a;
        other[d] = g_instance(b.g, was[d]);
        dim[d] = (Dim){ other[d], e->dim[d].n };
    }
    Node *others = b_node(b, Orename, 1, &e);
    others->at.rename.from = g_axes(b.g, was, e->nd);
    others->at.rename.to = g_axes(b.g, other, e->nd);
    Node *alike = b_op2(b, Oeq, e, infer(b.g, others));
    Node *none = b_const(b, Df32, MOSTTOKENS);
    Node *n = b_op3(b, Owhere, alike, numbers(b, dim, e->nd), none);
    return b_red(b, Omin, n, other, e->nd);
}

/* Sums of v along an axis, at its places e. */
static Node *scattered(Cursor b, Node *v, Node *e, Dim along, Dtype dt)
{
    Node *n = b_node(b, Oscatter_add, 2, (Node *[]){ v, e });

    n->at.scatter_add.axis = along.a;
    n->dt = dt;
    n->dim[n->nd++] = along;
    for (int d = 0; d < v->nd; d++)
        if (dim_of(e, v->dim[d].a) < 0)
            n->dim[n->nd++] = v->dim[d];
    Node *a = g_accum(b.g, infer(b.g, n), Radd);
    a->dt = dt;
    return a;
}

static void make_rows(Graph *g, const Node *a, TableRows *rows)
{
    Cursor b = cursor_at(g, a);
    Node *v = a->in[0]->in[0], *e = a->in[0]->in[1];
    Node *all = numbers(b, e->dim, e->nd), *first = first_alike(b, e);
    Node *none = b_const(b, Df32, -1);
    Node *negative = b_op2(b, Olt, e, b_const(b, e->dt, 0));
    Node *row = b_op3(b, Owhere, negative, none, first);
    Node *zero = b_const(b, Df32, 0);
    Node *next = b_op2(b, Oadd, all, b_const(b, Df32, 1));
    Node *place = b_op3(b, Owhere, b_op2(b, Oeq, first, all), next, zero);
    Dim sums = { g_instance(g, a->dim[0].a), g_elems(e) };

    rows->sum = scattered(b, v, b_cast(b, row, Di32), sums, a->dt);
    rows->place = scattered(b, place, e, a->dim[0], Df32);
}

/* What the accumulator was, where n reads it. */
static Node *gathered(Cursor b, TableRows *rows)
{
    if (rows->value)
        return rows->value;
    Node *at = b_op2(b, Osub, rows->place, b_const(b, Df32, 1));
    return rows->value =
               b_gather(b, rows->sum, b_cast(b, at, Di32), rows->sum->dim[0].a);
}

static Node *by_rows(Graph *g, Node *n, void *ctx)
{
    const TableGradients *tables = ctx;
    const Node *a = table_get(tables->sum, KEYP(n));
    TableRows *rows = a ? table_get(tables->rows, KEYP(a)) : NULL;

    if (rows)
        return g_total(g, b_op2(cursor_at(g, n), Omul, rows->sum, rows->sum));
    rows = table_get(tables->rows, KEYP(n));
    if (rows)
        make_rows(g, n, rows);
    for (int k = 0; k < n->nin; k++) {
        rows = table_get(tables->rows, KEYP(n->in[k]));
        if (rows)
            n->in[k] = gathered(cursor_at(g, n), rows);
    }
    return n;
}

void pass_table_gradients(Graph *g)
{
    TableGradients tables = { table_new(g->arena), table_new(g->arena) };

    if (program_turns(g) > 1)
        return;
    g_renumber(g);
    find(&tables, g);
    rewrite(g, by_rows, &tables);
}
