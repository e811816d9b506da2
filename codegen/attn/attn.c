/* attn.c: reads an attention from its body:
 *
 *     s  = an elementwise function of dots of a query-side with a key-side
 *          operand, of positions, constants and further operands
 *     y  = softmax of s along key
 *     o  = dot(y, v) over key
 *
 * Axes are classified by their occurrence: `query` and `key`; the other axes of
 * the score, x0 x1 ..; axes that a dot contracts or only v has, d0 d1 .. An
 * operand that lacks an axis has stride 0 along it, so grouped queries (an axis
 * that no key-side operand has) and shared keys (an axis that only some have)
 * are not special cases. Values between operands and results have the
 * computation type and are not rounded. */
#include "attn.h"

/* ---- the body ------------------------------------------------------------ */

static const Node *arg_of(const Node *n)
{
    n = unrounded(n);
    return n->op == Oarg ? n : NULL;
}

/* o = dot(y, v): finds v and the score. */
static int read_result(Attn *attn)
{
    const Node *o = unrounded(attn->body->node[vec_len(attn->body->node) - 1]);

    if (o->op != Odot || o->at.dot.axes.n != 1)
        return 0;
    const Axis *key = attn->node->op == Ocall ? attn->node->at.call.key
                                              : attn->node->at.attn.key;
    attn->key = o->at.dot.axes.v[0];
    if (key && key != attn->key)
        return 0;
    for (int k = 0; k < 2; k++) {
        const Node *v = arg_of(o->in[k]);
        const Axis *over;
        attn->score = softmax_scores(unrounded(o->in[!k]), &over);
        if (v && attn->score && over == attn->key) {
            attn->values = (int)v->at.arg.index;
            return dim_of(v, attn->key) >= 0;
        }
    }
    return 0;
}

static int read_query(Attn *attn)
{
    attn->query = attn->node->op == Ocall ? attn->node->at.call.query
                                          : attn->node->at.attn.query;
    if (!attn->query)
        attn->query = attn->key->root;
    return attn->query != attn->key && dim_of(attn->score, attn->query) >= 0 &&
           dim_of(attn->score, attn->key) >= 0;
}

static int read_dot(Attn *attn, const Node *n)
{
    AttnDot *dot = &attn->dot[attn->ndot];

    for (int i = 0; i < attn->ndot; i++)
        if (attn->dot[i].n == n)
            return 1;
    if (attn->ndot == ATDOTS || n->at.dot.axes.n == 0)
        return 0;
    for (int k = 0; k < 2; k++) {
        const Node *q = arg_of(n->in[k]), *p = arg_of(n->in[!k]);
        if (!q || !p || dim_of(q, attn->query) < 0 || dim_of(q, attn->key) >= 0)
            continue;
        if (dim_of(p, attn->key) < 0 || dim_of(p, attn->query) >= 0)
            continue;
        *dot = (AttnDot){ n, (int)q->at.arg.index, (int)p->at.arg.index, 0 };
        attn->ndot++;
        return 1;
    }
    return 0;
}

static int read_score(Attn *attn, const Node *n)
{
    if (n->op == Odot)
        return read_dot(attn, n);
    if (n->op == Oarg)
        attn->leaf |= 1u << n->at.arg.index;
    if (n->op == Oarg || n->op == Oconst || is_position(n))
        return 1;
    if (!optab[n->op].expr)
        return 0;
    for (int k = 0; k < n->nin; k++)
        if (!read_score(attn, n->in[k]))
            return 0;
    return 1;
}

int attn_node(const Attn *attn, const Node *n)
{
    for (size_t i = 0; i < vec_len(attn->body->node); i++)
        if (attn->body->node[i] == n)
            return (int)i;
    die("attention: a node outside its body");
}

int attn_body_users(const Attn *attn, const Node *n)
{
    int uses = 0;

    for (size_t i = 0; i < vec_len(attn->body->node); i++)
        for (int k = 0; k < attn->body->node[i]->nin; k++)
            uses += attn->body->node[i]->in[k] == n;
    return uses;
}

/* Is n a dot, or a sum of dots without other users, so that one tile holds
 * it? */
static int is_term(const Attn *attn, const Node *n, int top)
{
    if (!top && attn_body_users(attn, n) != 1)
        return 0;
    if (n->op == Odot)
        return 1;
    if (n->op == Ocast && dtypes[n->dt].kind == 'f')
        return is_term(attn, n->in[0], 0);
    return n->op == Oadd && is_term(attn, n->in[0], 0) &&
           is_term(attn, n->in[1], 0);
}

static void mark_dots(Attn *attn, const Node *n)
{
    for (int i = 0; i < attn->ndot; i++)
        if (attn->dot[i].n == n)
            attn->dot[i].term = attn->nterm;
    for (int k = 0; k < n->nin && n->op != Odot; k++)
        mark_dots(attn, n->in[k]);
}

static void read_terms(Attn *attn, const Node *n)
{
    for (int i = 0; i < attn->nterm; i++)
        if (attn->term[i] == n)
            return;
    if (is_term(attn, n, 1)) {
        mark_dots(attn, n);
        attn->term[attn->nterm++] = n;
        return;
    }
    for (int k = 0; k < n->nin && optab[n->op].cls == EW; k++)
        read_terms(attn, n->in[k]);
}

/* ---- axes ---------------------------------------------------------------- */

static const char *find_axis_name(const Attn *attn, const Axis *a)
{
    for (int i = 0; i < attn->naxis; i++)
        if (attn->axis[i].a == a)
            return attn->axis[i].code;
    return NULL;
}

const char *attn_axis(const Attn *attn, const Axis *a)
{
    const char *s = find_axis_name(attn, a);

    if (!s)
        die("attention: axis '%s' has no part in it", a->name);
    return s;
}

static void add_axis_name(Attn *attn, Axis *a, char *text)
{
    if (attn->naxis == ATAXES)
        die("attention: more than %d axes", ATAXES);
    attn->axis[attn->naxis].a = a;
    attn->axis[attn->naxis++].code = intern(text);
}

static void name_axes(Attn *attn)
{
    Arena *a = attn->graph->arena;
    int inner = 0;

    add_axis_name(attn, attn->query, "q");
    add_axis_name(attn, attn->key, "k");
    for (int i = 0; i < attn->nx; i++)
        add_axis_name(attn, attn->x[i], strf(a, "x%d", i));
    for (int i = 0; i < attn->nop; i++)
        for (int d = 0; d < attn->node->in[i]->nd; d++)
            if (!find_axis_name(attn, attn->node->in[i]->dim[d].a))
                add_axis_name(attn, attn->node->in[i]->dim[d].a,
                              strf(a, "d%d", inner++));
}

/* Axes of a key-side operand that are packed as columns of its tiles:
 * contracted axes, or those that only v has. */
int attn_inner_axes(const Attn *attn, const Node *n, Axis **out)
{
    int k = 0;

    for (int d = 0; d < n->nd; d++)
        if (n->dim[d].a != attn->key && n->dim[d].a != attn->query &&
            axis_at(attn->x, attn->nx, n->dim[d].a) < 0)
            out[k++] = n->dim[d].a;
    return k;
}

/* Does the dot contract all inner axes of its operands, and have both the
 * same? */
static int dot_fits(const Attn *attn, const AttnDot *dot)
{
    Axis *q[MAXD], *k[MAXD];
    int nq = attn_inner_axes(attn, attn->node->in[dot->q], q);
    int nk = attn_inner_axes(attn, attn->node->in[dot->k], k);

    if (nq != dot->n->at.dot.axes.n || nk != dot->n->at.dot.axes.n)
        return 0;
    for (int i = 0; i < nk; i++)
        if (dim_of(attn->node->in[dot->q], k[i]) < 0)
            return 0;
    return 1;
}

int attn_is_keyside(const Attn *attn, int op)
{
    return op == attn->values || attn_contracted(attn, op);
}

static int is_queryside(const Attn *attn, int op)
{
    for (int i = 0; i < attn->ndot; i++)
        if (attn->dot[i].q == op)
            return 1;
    return 0;
}

static int score_axes_of(const Attn *attn, int op, Axis **out)
{
    int n = 0;

    for (int i = 0; i < attn->nx; i++)
        if (dim_of(attn->node->in[op], attn->x[i]) >= 0)
            out[n++] = attn->x[i];
    return n;
}

/* Does one of any two key-side operands have all score axes of the other
 * (shared keys)? The backward kernel nests its loops over these axes, and
 * handles each operand at its own depth. */
static int levels_fit(const Attn *attn)
{
    Axis *a[MAXD], *b[MAXD];

    for (int p = 0; p < attn->nop; p++)
        for (int q = 0; q < attn->nop; q++) {
            if (!attn_is_keyside(attn, p) || !attn_is_keyside(attn, q))
                continue;
            int na = score_axes_of(attn, p, a), nb = score_axes_of(attn, q, b);
            for (int i = 0; i < na && na <= nb; i++)
                if (dim_of(attn->node->in[q], a[i]) < 0)
                    return 0;
        }
    return 1;
}

/* Does each operand have a single source of gradients: dots or other uses? */
static int leaves_fit(const Attn *attn)
{
    for (int op = 0; op < attn->nop; op++) {
        int ways = attn_is_keyside(attn, op) + is_queryside(attn, op) +
                   (attn->leaf >> op & 1);
        if (ways > 1)
            return 0;
    }
    return 1;
}

/* Do tiles fit on the stack? The limit on the widths of key-side operands keeps
 * the backward kernel in doubles below 4 MiB. */
static int widths_fit(const Attn *attn)
{
    int64_t sum = 0;

    for (int i = 0; i < attn->nop; i++) {
        const Node *n = attn->node->in[i];
        Axis *in[MAXD];
        int64_t w = 1, k = attn_inner_axes(attn, n, in);
        while (k-- > 0)
            w *= n->dim[dim_of(n, in[k])].n;
        if (attn_is_keyside(attn, i))
            sum += w;
    }
    return sum <= 1280;
}

static int refused(Attn *attn, const char *why)
{
    attn->why = why;
    return 0;
}

int attn_read(Attn *attn, const Graph *g, const Node *n)
{
    *attn = (Attn){ .graph = g, .node = n, .body = n->body };
    attn->nop = n->nin - (n->op == Oattn_bwd ? 3 : 0);
    if (!n->body || !vec_len(n->body->node) || !read_result(attn))
        return refused(attn, "the values depend on the queries");
    if (!read_query(attn))
        return refused(attn, "the scores have no axis of queries");
    if (!read_score(attn, attn->score))
        return refused(attn, "an operation on scores is not elementwise");
    if (attn->ndot == 0)
        return refused(attn, "the scores have no dot of queries and keys");
    read_terms(attn, attn->score);
    for (int d = 0; d < attn->score->nd; d++) {
        Axis *a = attn->score->dim[d].a;
        if (a != attn->query && a != attn->key)
            attn->x[attn->nx++] = a;
    }
    name_axes(attn);
    for (int i = 0; i < attn->ndot; i++)
        if (!dot_fits(attn, &attn->dot[i]))
            return refused(attn, "a dot sums not all axes of one operand");
    if (!leaves_fit(attn))
        return refused(attn, "a tensor is read by a dot and beside it");
    if (!levels_fit(attn))
        return refused(attn, "two tensors with keys have different heads");
    return widths_fit(attn) ||
           refused(attn, "keys and values are wider than 1280");
}

const char *attn_refused(const Graph *g, const Node *n)
{
    Attn attn;

    return attn_read(&attn, g, n) ? NULL : attn.why;
}
