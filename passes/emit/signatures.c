/* signatures.c: what a kernel declares (instruction.h), from its group, whoever
 * wrote its text: how it uses its operands, how they lie, and a hash of what it
 * computes of them.
 *
 *     %s = sum(%x * %x, hidden)        x operand 0, s operand 1
 *     ->   loop; 0: operand 0 of axes 0 1; 1: mul 0 0 of axes 0 1;
 *          2: sum 1 over 1, of axis 0; operand 1 is 2
 *
 * Nodes and axes count as they come, so that layers, and models that differ in
 * names alone, have the same hash. Sizes are those of operands; keys of random
 * numbers are words. */
#include <string.h>

#include "emit.h"

/* ---- what is computed ---------------------------------------------------- */

typedef struct ExpressionHash {
    const Group *k;
    Table *node, *axis; /* -> 1 + number */
    uint64_t nodes, axes, h;
} ExpressionHash;

static void add(ExpressionHash *x, uint64_t v)
{
    x->h = mix64(x->h, v);
}

/* A word of a table, whose rows may get other numbers. */
static void add_name(ExpressionHash *x, const char *s)
{
    for (; *s; s++)
        add(x, (unsigned char)*s);
}

static uint64_t axis_number(ExpressionHash *x, const Axis *a)
{
    void **at = table_at(x->axis, KEYP(a));

    if (!*at)
        *at = (void *)(uintptr_t)++x->axes;
    return (uint64_t)(uintptr_t)*at;
}

/* A rename is of pairs, and what is summed over axes, in no order; others are
 * lists. */
static void add_axes(ExpressionHash *x, const Node *n, Axes v)
{
    int any =
        optab[n->op].cls == RED || optab[n->op].cls == EIN || n->op == Orename;
    uint64_t all = (uint64_t)v.n;

    for (int d = 0; d < v.n; d++) {
        uint64_t a = axis_number(x, v.v[d]);
        if (n->op == Orename)
            a = mix64(a, axis_number(x, n->at.rename.to.v[d]));
        all = any ? all + mix64(1, a) : mix64(all, a);
    }
    add(x, all);
}

static void add_attrs(ExpressionHash *x, const Node *n)
{
    Node plain = { .op = n->op, .at = n->at };

    if (n->op == Orandom)
        plain.at.random.key = 0;
    if (n->op == Odropout)
        plain.at.dropout.key = 0;
    for (int i = 0; i < optab[n->op].nattr; i++) {
        const AttrInfo *t = &optab[n->op].attr[i];
        uint64_t bits = 0;
        if (t->type == ATint || t->type == ATreal)
            memcpy(&bits, attr_at(&plain, t), sizeof bits);
        else if (t->type == ATaxis || t->type == ATaxes)
            add_axes(x, n, attr_axes(n, t));
        else if (t->type != ATstr) /* a name */
            bits = *(const unsigned *)attr_at(n, t);
        add(x, bits);
    }
}

/* The operand that n lies in; -1: none. */
static int operand_of(const Group *k, const Node *n)
{
    for (int i = 0; i < k->narg; i++)
        if (k->arg[i] && storage(k->arg[i]) == storage((Node *)(uintptr_t)n))
            return i;
    return -1;
}

static int is_read(const Group *k, const Node *n)
{
    for (int i = 0; i < k->nin; i++)
        if (k->in[i] == n)
            return 1;
    return 0;
}

/* An accumulator that the kernel clears: what is added to it is not its own. */
static int is_cleared(const Group *k, const Node *n)
{
    for (int i = 0; i < k->n; i++)
        if (k->node[i] == n)
            return 0;
    return n->op == Oaccum;
}

/* Numbers n behind what it is computed of. */
static uint64_t visit(ExpressionHash *x, const Node *n)
{
    uint64_t of[MAXIN + 1] = { 0 };

    if (!n || table_get(x->node, KEYP(n)))
        return n ? (uint64_t)(uintptr_t)table_get(x->node, KEYP(n)) : 0;
    int leaf = is_read(x->k, n) || is_cleared(x->k, n);
    int count = leaf ? 0 : n->nin;
    for (int i = 0; i < count; i++)
        of[i] = visit(x, n->in[i]);
    of[count] = visit(x, n->map);
    for (size_t i = 0; n->body && i < vec_len(n->body->node); i++)
        visit(x, n->body->node[i]);
    add_name(x, leaf ? "" : optab[n->op].name);
    add(x, leaf ? (uint64_t)operand_of(x->k, n) : 0);
    add_name(x, dtypes[n->dt].name);
    for (int d = 0; d < n->nd; d++)
        add(x, axis_number(x, n->dim[d].a));
    for (int i = 0; i <= count; i++)
        add(x, of[i]);
    if (!leaf)
        add_attrs(x, n);
    *table_at(x->node, KEYP(n)) = (void *)(uintptr_t)++x->nodes;
    return x->nodes;
}

static uint64_t expression_hash(Arena *a, const Group *k)
{
    ExpressionHash x = { .k = k, .node = table_new(a), .axis = table_new(a) };

    add_name(&x, families[k->fam]);
    for (int i = 0; i < k->n; i++)
        visit(&x, k->node[i]);
    for (int i = 0; i < k->nout; i++) {
        add(&x, visit(&x, k->out[i]));
        add(&x, (uint64_t)operand_of(k, k->out[i]));
    }
    return x.h;
}

/* ---- operands ------------------------------------------------------------ */

/* What k does to n, whose buffer is its own. */
static char use_of(const Group *k, const Node *n)
{
    const Node *made = made_in(k, n);
    int reads = !made || (accumulates(k, made) && !k->stores);

    for (int i = 0; i < k->nin; i++)
        reads |= storage(k->in[i]) == n;
    return !made ? 'r' : reads ? 'b' : 'w';
}

static KernelOperand operand(Arena *a, const Graph *g, const Node *n)
{
    int map = n->op == Oroute;
    int64_t *v = alloc(a, sizeof *v * (size_t)(n->nd + 1));

    for (int d = 0; d < n->nd; d++)
        v[d] = local_n(g, n, d);
    if (map)
        v[0] = local_elems(g, n);
    return (KernelOperand){ n->dt, map ? 1 : n->nd, v, 0 };
}

/* 1 + the operand of k that says where rows of n begin in their stack. */
static int base_of(const Group *k, const Node *n)
{
    return n->stash ? 1 + operand_of(k, n->map) : 0;
}

static void declare_operands(ProgramBuilder *m, const Group *k, const Instr *s,
                             KernelSignature *d)
{
    char *use = alloc(m->arena, (size_t)s->nbuf + 1);

    d->use = use;
    d->op = alloc(m->arena, sizeof *d->op * (size_t)(s->nbuf + 1));
    for (int i = 0; i < s->nbuf; i++) {
        const Node *n = i < k->narg && k->arg[i] ? storage(k->arg[i]) : NULL;
        use[i] = s->buf[i] < 0 ? '-' : n ? use_of(k, n) : 'w';
        if (n && s->buf[i] >= 0) {
            d->op[i] = operand(m->arena, m->graph, n);
            d->op[i].base = base_of(k, n);
        } else if (s->buf[i] >= 0)
            d->op[i] = (KernelOperand){ Du8, 1, &k->scratch, 0 };
    }
}

/* ---- a call -------------------------------------------------------------- */

struct Signatures {
    KernelSignature *all; /* vec */
    Table *at;            /* hash -> 1 + number */
};

Signatures *signatures_new(Arena *a)
{
    Signatures *x = alloc(a, sizeof *x);

    x->at = table_new(a);
    return x;
}

void signatures_give(const Signatures *x, Plan *p)
{
    p->nsig = (int)vec_len(x->all);
    p->sig = x->all;
}

void sign_call(ProgramBuilder *m, const Group *k, Instr *s)
{
    Signatures *x = m->sigs;
    KernelSignature d = { .kernel = s->kernel,
                          .launch = s->launch,
                          .nword = s->nword,
                          .word = s->word };

    d.expr = expression_hash(m->arena, k);
    declare_operands(m, k, s, &d);
    set_signature_hash(m->arena, &d);
    void **at = table_at(x->at, d.hash);
    if (!*at) {
        vec_push(m->arena, x->all, d);
        *at = (void *)(uintptr_t)vec_len(x->all);
    }
    s->call = (KernelArgs){ (int64_t)(uintptr_t)*at - 1, d.hash };
    bind_signature(m->arena, &d, s);
}
