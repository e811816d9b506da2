/* lower.c: a target's kernels for groups, made once for each shape of those
 * that have a text of their own. Layers repeat, and so do copies of a stage
 * (fit.c): most groups differ from an earlier one only in which nodes they
 * name.
 *
 * The shape of a group is all that a generator reads of it, as a row of
 * numbers: its members and what stands between them and what they read from
 * memory, each with op, dtype, axes, sizes, sharding types and attributes;
 * nodes and axes are numbered as they come. Names and places are left out. What
 * has other attributes than numbers and axes has no shape and is lowered each
 * time.
 *
 *     %a = silu %x   %y = mul %a %b      %a.9 = silu %x.9   %y.9 = ...
 *     members 2 3, reads 0 1             the same row: the text, numbers and
 *                                        costs of the first, buffers by number
 *
 * Sanitizer builds make each kernel and compare. */
#include <string.h>

#include "kernels.h"

enum { MOSTSHAPE = 1024, NONE = -1 };

/* Families whose kernels are texts of some length. */
enum {
    HAVETEXT = 1u << FAMloop | 1u << FAMattn | 1u << FAMattn_bwd |
               1u << FAMtopk | 1u << FAMcumsum | 1u << FAMscatter
};

/* How a node counts: by its type; so, and as what is read; with all that it is
 * made of. */
enum { TYPE, READ, WHOLE };

typedef struct GroupShape {
    const Graph *graph;
    const Group *group;
    Arena *arena;
    int64_t *row; /* vec */
    Node **node;  /* vecs: by number, which is its mark; how it counts */
    char *how;
    const Axis **axis;
    int refused;
} GroupShape;

typedef struct Lowered {
    GroupShape shape; /* of the group that was lowered; row, node are read */
    Group made;
    int label, *arg; /* numbers of nodes; label: its name is the kernel's */
} Lowered;

static void put_number(GroupShape *s, int64_t x)
{
    vec_push(s->arena, s->row, x);
}

/* ---- axes ---------------------------------------------------------------- */

static void put_axis(GroupShape *s, const Axis *a)
{
    size_t i = 0;

    while (i < vec_len(s->axis) && s->axis[i] != a)
        i++;
    put_number(s, a ? (int64_t)i : NONE);
    if (!a || i < vec_len(s->axis))
        return;
    vec_push(s->arena, s->axis, a);
    put_number(s, a->role);
    put_number(s, a->atoms);
    put_number(s, a->n);
    put_number(s, a->parts);
    put_number(s, a->zigzag);
    put_number(s, a->nfactor);
    for (int k = 0; k < a->nfactor; k++)
        put_axis(s, a->factor[k]);
    put_axis(s, a->root);
}

static void put_attr(GroupShape *s, const Node *n, const AttrInfo *t)
{
    const void *v = attr_at(n, t);
    Axes x = attr_axes(n, t);
    int64_t bits = 0;

    switch (t->type) {
    case ATstr: s->refused |= n->op != Oresult; return;
    case ATaxis:
    case ATaxes:
        put_number(s, x.n);
        for (int i = 0; i < x.n; i++)
            put_axis(s, x.v[i]);
        return;
    default: memcpy(&bits, v, attr_width(t->type)); put_number(s, bits);
    }
}

/* ---- nodes --------------------------------------------------------------- */

static int is_numbered(const GroupShape *s, const Node *n)
{
    return n->mark >= 0 && (size_t)n->mark < vec_len(s->node) &&
           s->node[n->mark] == n;
}

static void put_type(GroupShape *s, const Node *n)
{
    put_number(s, n->op);
    put_number(s, n->dt);
    put_number(s, n->stash != 0);
    put_number(s, n->nd);
    for (int d = 0; d < n->nd; d++) {
        put_axis(s, n->dim[d].a);
        put_number(s, n->dim[d].n);
    }
    for (int t = 0; s->graph->mesh && t < s->graph->mesh->natom; t++) {
        put_number(s, n->sh[t].k);
        put_number(s, n->sh[t].op);
        put_axis(s, n->sh[t].k == S ? n->sh[t].a : NULL);
    }
}

/* Is it in memory, whoever reads it? */
static int is_end(const Node *n)
{
    return is_lasting(n) || n->op == Oinput || n->op == Ostepval ||
           n->op == Oarg || n->op == Opart || n->op == Oroute;
}

static void put_attrs(GroupShape *s, const Node *n)
{
    for (int i = 0; i < optab[n->op].nattr; i++)
        put_attr(s, n, &optab[n->op].attr[i]);
}

/* The place of the axes in the graph: a mask is counted in that order. */
static void put_order(GroupShape *s, const Node *n)
{
    for (int d = 0; d < n->nd; d++)
        put_number(s, axis_at(s->graph->axis, s->graph->naxis, n->dim[d].a));
}

static void put_node(GroupShape *s, Node *n, int how);

/* A sum that goes on where another lies is of that only what is there; a route
 * says how its rows lie, of what it routes the type is enough. */
static void put_operands(GroupShape *s, Node *n)
{
    if (n->op == Oroute) {
        put_node(s, n->in[0], TYPE);
        return;
    }
    put_number(s, n->nin);
    for (int k = 0; k < n->nin; k++)
        if (n->op == Oaccum && k > 0) {
            put_node(s, n->in[k], READ);
            put_node(s, storage(n->in[k]), READ);
        } else {
            put_node(s, n->in[k], WHOLE);
        }
}

/* A composite's: of its operands, too, which they are. */
static void put_body(GroupShape *s, const Graph *body)
{
    for (size_t i = 0; i < vec_len(body->node); i++) {
        put_node(s, body->node[i], WHOLE);
        put_attrs(s, body->node[i]);
    }
}

static void put_node(GroupShape *s, Node *n, int how)
{
    int known = is_numbered(s, n);

    put_number(s, known ? n->mark : NONE);
    if (known)
        s->refused |= how == WHOLE && s->how[n->mark] == TYPE && !is_end(n);
    if (known || s->refused)
        return;
    n->mark = (int)vec_len(s->node);
    vec_push(s->arena, s->node, n);
    vec_push(s->arena, s->how, (char)how);
    put_type(s, n);
    put_number(s, n->map != NULL);
    if (n->map)
        put_node(s, n->map, TYPE);
    s->refused |= vec_len(s->node) > MOSTSHAPE;
    if (n->op != Oroute && (how != WHOLE || is_end(n)))
        return;
    put_attrs(s, n);
    if (n->body)
        put_body(s, n->body);
    if (n->op == Odropout)
        put_order(s, n->in[0]);
    put_operands(s, n);
}

static void put_list(GroupShape *s, Node *const *v, int n, int how)
{
    put_number(s, n);
    for (int i = 0; i < n; i++)
        put_node(s, v[i], how);
}

/* What it reads comes first: no member is looked for behind that. */
static GroupShape shape_of(const Graph *g, const Group *k, Arena *a)
{
    GroupShape s = { .graph = g, .group = k, .arena = a };

    s.refused = !(HAVETEXT >> k->fam & 1);
    if (s.refused)
        return s;
    put_number(&s, (int64_t)(uintptr_t)g->mesh);
    put_number(&s, k->fam);
    for (int i = 0; i < k->nin; i++)
        put_node(&s, storage(k->in[i]), READ);
    put_list(&s, k->in, k->nin, READ);
    put_list(&s, &k->map, k->map != NULL, READ);
    put_list(&s, k->node, k->n, WHOLE);
    put_list(&s, k->out, k->nout, WHOLE);
    return s;
}

static uint64_t hash_row(const int64_t *row)
{
    uint64_t h = 0;

    for (size_t i = 0; i < vec_len(row); i++)
        h = mix64(h, (uint64_t)row[i]);
    return h;
}

static int same_row(const int64_t *a, const int64_t *b)
{
    return vec_len(a) == vec_len(b) && !memcmp(a, b, vec_len(a) * sizeof *a);
}

/* ---- what was made ------------------------------------------------------- */

static int number_of(GroupShape *s, const Node *n)
{
    if (n && !is_numbered(s, n))
        s->refused = 1;
    return n && !s->refused ? n->mark : NONE;
}

/* Emit writes into a call's words: each has its own. */
static Word *own_words(const Group *k, Arena *a)
{
    size_t n = (size_t)k->instr.nword;
    Word *own = alloc(a, (n + 1) * sizeof *own);

    if (n)
        memcpy(own, k->instr.word, n * sizeof *own);
    return own;
}

/* Notes what the group became; refused: it names what its shape has not. */
static void take_note(Lowered *m, const Group *k)
{
    GroupShape *s = &m->shape;

    m->made = *k;
    m->made.instr.word = own_words(k, s->arena);
    m->label = NONE;
    m->arg = alloc(s->arena, ((size_t)k->narg + 1) * sizeof *m->arg);
    for (int i = 0; i < k->narg; i++)
        m->arg[i] = number_of(s, k->arg[i]);
    for (int i = 0; i < k->nout && m->label < 0; i++)
        if (k->out[i]->name == k->instr.label)
            m->label = number_of(s, k->out[i]);
    for (int i = 0; i < k->n && m->label < 0; i++)
        if (k->node[i]->name == k->instr.label)
            m->label = number_of(s, k->node[i]);
    s->refused |= m->label < 0 || k->view != NULL;
}

/* The group k of shape s is like m. */
static void fill(Group *k, const GroupShape *s, const Lowered *m, Arena *a)
{
    const Group *was = &m->made;
    const Node *n = s->node[m->label];

    k->scratch = was->scratch;
    k->ninplace = was->ninplace;
    k->inplace = was->inplace;
    k->instr = was->instr;
    k->instr.word = own_words(was, a);
    k->instr.label = n->name;
    k->instr.file = n->loc ? n->loc->file : NULL;
    k->instr.line = n->loc ? n->loc->line : 0;
    k->maystore = was->maystore;
    k->path = was->path;
    k->text = was->text;
    k->narg = was->narg;
    k->arg = alloc(a, ((size_t)k->narg + 1) * sizeof *k->arg);
    for (int i = 0; i < k->narg; i++)
        k->arg[i] = m->arg[i] < 0 ? NULL : s->node[m->arg[i]];
}

#ifdef PLEAT_DEBUG
static int same_word(const Word *x, const Word *y)
{
    return x->type == y->type && !memcmp(&x->at, &y->at, sizeof x->at) &&
           !memcmp(&x->real, &y->real, sizeof x->real);
}

static void compare(Graph *g, const Group *k, Arena *a)
{
    Group x = *k;

    x.scratch = x.ninplace = x.maystore = 0;
    x.inplace = NULL;
    x.instr = (Instr){ 0 };
    pass_target(g)->lower(g, &x, a);
    int same =
        x.narg == k->narg && x.scratch == k->scratch &&
        x.ninplace == k->ninplace && x.maystore == k->maystore &&
        x.path == k->path && x.instr.kernel == k->instr.kernel &&
        x.instr.label == k->instr.label && x.instr.line == k->instr.line &&
        x.instr.nword == k->instr.nword && x.instr.flops == k->instr.flops &&
        x.instr.bytes == k->instr.bytes &&
        !memcmp(&x.instr.launch, &k->instr.launch, sizeof(Launch));
    for (int i = 0; i < x.narg && same; i++)
        same = x.arg[i] == k->arg[i];
    for (int i = 0; i < x.ninplace && same; i++)
        same = !memcmp(x.inplace[i], k->inplace[i], sizeof *x.inplace);
    for (int i = 0; i < x.instr.nword && same; i++)
        same = same_word(&x.instr.word[i], &k->instr.word[i]);
    if (!same)
        die("lower: %s is not like the kernel of its shape", x.instr.label);
}
#endif

/* ---- entry --------------------------------------------------------------- */

void lower_group(Graph *g, Group *k)
{
    Compile *c = g->compile;
    Arena *scratch = arena_new();
    GroupShape s = shape_of(g, k, scratch);
    void **slot = NULL;

    for (uint64_t h = hash_row(s.row); !s.refused; h++) {
        slot = table_at(c->lowered, h);
        if (!*slot || same_row(((Lowered *)*slot)->shape.row, s.row))
            break;
    }
    if (slot && *slot) {
        fill(k, &s, *slot, g->arena);
#ifdef PLEAT_DEBUG
        compare(g, k, scratch);
#endif
    } else if (slot) {
        Arena *a = table_arena(c->lowered);
        Lowered *m = alloc(a, sizeof *m);
        m->shape = shape_of(g, k, a);
        pass_target(g)->lower(g, k, a);
        take_note(m, k);
        if (!m->shape.refused)
            *slot = m;
    } else {
        pass_target(g)->lower(g, k, g->arena);
    }
    arena_free(scratch);
}
