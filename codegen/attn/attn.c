/* attn.c: read an attention from its body, and what the texts of its forward
 * and backward kernels share: names of sizes and strides, moves between tensors
 * and tiles.
 *
 *     s  = any elementwise function of dots of a query-side with a key-side
 *          operand, of positions, constants and further operands
 *     y  = softmax of s along key
 *     o  = dot(y, v) over key
 *
 * Axes are told apart by where they occur: `query` and `key`; the score's other
 * axes, x0 x1 ..; those that a dot contracts or only v has, d0 d1 .. An operand
 * that lacks an axis has stride 0 along it, so grouped queries (an axis that no
 * key-side operand has) and shared keys (an axis that only some have) need no
 * case of their own. All values between the operands and the results are of the
 * compute type, never rounded: an attention is one value. */
#include <math.h>
#include <string.h>

#include "attn.h"

/* ---- the body ------------------------------------------------------------ */

static const Node *arg_of(const Node *n)
{
    n = unrounded(n);
    return n->op == Oarg ? n : NULL;
}

/* o = dot(y, v): finds v and the score. */
static int read_result(Attn *t)
{
    const Node *o = unrounded(t->body->node[vec_len(t->body->node) - 1]);

    if (o->op != Odot || o->at.dot.axes.n != 1)
        return 0;
    const Axis *key = t->n->op == Ocall ? t->n->at.call.key : t->n->at.attn.key;
    t->key = o->at.dot.axes.v[0];
    if (key && key != t->key)
        return 0;
    for (int k = 0; k < 2; k++) {
        const Node *v = arg_of(o->in[k]);
        const Axis *over;
        t->score = softmax_scores(unrounded(o->in[!k]), &over);
        if (v && t->score && over == t->key) {
            t->v = (int)v->at.arg.index;
            return dim_of(v, t->key) >= 0;
        }
    }
    return 0;
}

static int read_query(Attn *t)
{
    t->query = t->n->op == Ocall ? t->n->at.call.query : t->n->at.attn.query;
    if (!t->query)
        t->query = t->key->root;
    return t->query != t->key && dim_of(t->score, t->query) >= 0 &&
           dim_of(t->score, t->key) >= 0;
}

static int read_dot(Attn *t, const Node *n)
{
    AttnDot *d = &t->dot[t->ndot];

    for (int i = 0; i < t->ndot; i++)
        if (t->dot[i].n == n)
            return 1;
    if (t->ndot == ATDOTS || n->at.dot.axes.n == 0)
        return 0;
    for (int k = 0; k < 2; k++) {
        const Node *q = arg_of(n->in[k]), *p = arg_of(n->in[!k]);
        if (!q || !p || dim_of(q, t->query) < 0 || dim_of(q, t->key) >= 0)
            continue;
        if (dim_of(p, t->key) < 0 || dim_of(p, t->query) >= 0)
            continue;
        *d = (AttnDot){ n, (int)q->at.arg.index, (int)p->at.arg.index, 0 };
        t->ndot++;
        return 1;
    }
    return 0;
}

static int read_score(Attn *t, const Node *n)
{
    if (n->op == Odot)
        return read_dot(t, n);
    if (n->op == Oarg)
        t->leaf |= 1u << n->at.arg.index;
    if (n->op == Oarg || n->op == Oconst || is_position(n))
        return 1;
    if (!optab[n->op].expr)
        return 0;
    for (int k = 0; k < n->nin; k++)
        if (!read_score(t, n->in[k]))
            return 0;
    return 1;
}

int attn_node(const Attn *t, const Node *n)
{
    for (size_t i = 0; i < vec_len(t->body->node); i++)
        if (t->body->node[i] == n)
            return (int)i;
    die("attention: a node outside its body");
}

static int uses_of(const Attn *t, const Node *n)
{
    int uses = 0;

    for (size_t i = 0; i < vec_len(t->body->node); i++)
        for (int k = 0; k < t->body->node[i]->nin; k++)
            uses += t->body->node[i]->in[k] == n;
    return uses;
}

/* A dot, or a sum of dots that nobody else reads: one tile holds it. */
static int is_term(const Attn *t, const Node *n, int top)
{
    if (!top && uses_of(t, n) != 1)
        return 0;
    if (n->op == Odot)
        return 1;
    if (n->op == Ocast && dtypes[n->dt].kind == 'f')
        return is_term(t, n->in[0], 0);
    return n->op == Oadd && is_term(t, n->in[0], 0) && is_term(t, n->in[1], 0);
}

static void mark_dots(Attn *t, const Node *n)
{
    for (int i = 0; i < t->ndot; i++)
        if (t->dot[i].n == n)
            t->dot[i].term = t->nterm;
    for (int k = 0; k < n->nin && n->op != Odot; k++)
        mark_dots(t, n->in[k]);
}

static void read_terms(Attn *t, const Node *n)
{
    for (int i = 0; i < t->nterm; i++)
        if (t->term[i] == n)
            return;
    if (is_term(t, n, 1)) {
        mark_dots(t, n);
        t->term[t->nterm++] = n;
        return;
    }
    for (int k = 0; k < n->nin && optab[n->op].cls == EW; k++)
        read_terms(t, n->in[k]);
}

/* ---- axes ---------------------------------------------------------------- */

const char *attn_code(const Attn *t, const Axis *a)
{
    for (int i = 0; i < t->naxis; i++)
        if (t->axis[i].a == a)
            return t->axis[i].code;
    die("attention: axis '%s' has no part in it", a->name);
}

static int is_x(const Attn *t, const Axis *a)
{
    for (int i = 0; i < t->nx; i++)
        if (t->x[i] == a)
            return 1;
    return 0;
}

static int has_code(const Attn *t, const Axis *a)
{
    for (int i = 0; i < t->naxis; i++)
        if (t->axis[i].a == a)
            return 1;
    return 0;
}

static void code(Attn *t, Axis *a, char *text)
{
    if (t->naxis == ATAXES)
        die("attention: more than %d axes", ATAXES);
    t->axis[t->naxis].a = a;
    t->axis[t->naxis++].code = intern(text);
}

static void code_axes(Attn *t)
{
    Arena *a = t->g->arena;
    int inner = 0;

    code(t, t->query, "q");
    code(t, t->key, "k");
    for (int i = 0; i < t->nx; i++)
        code(t, t->x[i], strf(a, "x%d", i));
    for (int i = 0; i < t->nop; i++)
        for (int d = 0; d < t->n->in[i]->nd; d++)
            if (!has_code(t, t->n->in[i]->dim[d].a))
                code(t, t->n->in[i]->dim[d].a, strf(a, "d%d", inner++));
}

/* Axes of a key-side operand that are packed side by side in its tiles: what
 * its dots contract, or what v brings. */
int attn_inner(const Attn *t, const Node *n, Axis **out)
{
    int k = 0;

    for (int d = 0; d < n->nd; d++)
        if (n->dim[d].a != t->key && n->dim[d].a != t->query &&
            !is_x(t, n->dim[d].a))
            out[k++] = n->dim[d].a;
    return k;
}

/* A dot contracts all inner axes of its operands: both have the same. */
static int dot_fits(const Attn *t, const AttnDot *d)
{
    Axis *q[MAXD], *k[MAXD];
    int nq = attn_inner(t, t->n->in[d->q], q);
    int nk = attn_inner(t, t->n->in[d->k], k);

    if (nq != d->n->at.dot.axes.n || nk != d->n->at.dot.axes.n)
        return 0;
    for (int i = 0; i < nk; i++)
        if (dim_of(t->n->in[d->q], k[i]) < 0)
            return 0;
    return 1;
}

int attn_keyside(const Attn *t, int op)
{
    int yes = op == t->v;

    for (int i = 0; i < t->ndot; i++)
        yes |= t->dot[i].k == op;
    return yes;
}

static int queryside(const Attn *t, int op)
{
    for (int i = 0; i < t->ndot; i++)
        if (t->dot[i].q == op)
            return 1;
    return 0;
}

static int key_axes(const Attn *t, int op, Axis **out)
{
    int n = 0;

    for (int i = 0; i < t->nx; i++)
        if (dim_of(t->n->in[op], t->x[i]) >= 0)
            out[n++] = t->x[i];
    return n;
}

/* Of any two key-side operands, one has all score axes of the other (shared
 * keys): the backward kernel's loops over these axes are nested, and an
 * operand's work is at the depth of its own. */
static int levels_fit(const Attn *t)
{
    Axis *a[MAXD], *b[MAXD];

    for (int p = 0; p < t->nop; p++)
        for (int q = 0; q < t->nop; q++) {
            if (!attn_keyside(t, p) || !attn_keyside(t, q))
                continue;
            int na = key_axes(t, p, a), nb = key_axes(t, q, b);
            for (int i = 0; i < na && na <= nb; i++)
                if (dim_of(t->n->in[q], a[i]) < 0)
                    return 0;
        }
    return 1;
}

/* What the score reads outside of dots is in none: one source of gradients. */
static int leaves_fit(const Attn *t)
{
    for (int op = 0; op < t->nop; op++) {
        int ways = attn_keyside(t, op) + queryside(t, op) + (t->leaf >> op & 1);
        if (ways > 1)
            return 0;
    }
    return 1;
}

/* Tiles lie on the stack: widths of all key-side operands, so that the backward
 * kernel in doubles takes 4 MiB at most. */
static int widths_fit(const Attn *t)
{
    int64_t sum = 0;

    for (int i = 0; i < t->nop; i++) {
        const Node *n = t->n->in[i];
        Axis *in[MAXD];
        int64_t w = 1, k = attn_inner(t, n, in);
        while (k-- > 0)
            w *= n->dim[dim_of(n, in[k])].n;
        if (attn_keyside(t, i))
            sum += w;
    }
    return sum <= 1280;
}

int attn_read(Attn *t, const Graph *g, const Node *n)
{
    *t = (Attn){ .g = g, .n = n, .body = n->body };
    t->nop = n->nin - (n->op == Oattn_bwd ? 3 : 0);
    if (!n->body || !vec_len(n->body->node) || !read_result(t))
        return 0;
    if (!read_query(t) || !read_score(t, t->score) || t->ndot == 0)
        return 0;
    read_terms(t, t->score);
    for (int d = 0; d < t->score->nd; d++) {
        Axis *a = t->score->dim[d].a;
        if (a != t->query && a != t->key)
            t->x[t->nx++] = a;
    }
    code_axes(t);
    for (int i = 0; i < t->ndot; i++)
        if (!dot_fits(t, &t->dot[i]))
            return 0;
    return leaves_fit(t) && levels_fit(t) && widths_fit(t);
}

int attn_can(const Graph *g, const Node *n)
{
    Attn t;

    return attn_read(&t, g, n);
}
