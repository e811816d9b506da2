/* lower.c: lowers groups to the target's kernels, once for each shape of groups
 * with a kernel text. Layers and copies of a stage (fit.c) repeat, so most
 * groups differ from an earlier one only in the nodes they name.
 *
 * The shape of a group is everything that a generator reads, as a row of
 * numbers: its members, and the nodes between them and the values read from
 * memory, each with op, dtype, axes, sizes, sharding types and attributes;
 * nodes and axes are numbered in order of appearance. Names and places are left
 * out. A group with attributes other than numbers and axes has no shape and is
 * lowered each time.
 *
 *     %a = silu %x   %y = mul %a %b      %a.9 = silu %x.9   %y.9 = ...
 *     members 2 3, reads 0 1             the same row: the text, numbers and
 *                                        costs of the first, buffers by number
 *
 * Sanitizer builds lower every group and compare. */
#include "kernels.h"

enum { MOSTSHAPE = 1024, NONE = -1 };

/* Families whose kernels have long texts. */
enum {
    HAVETEXT = 1u << FAMloop | 1u << FAMattn | 1u << FAMattn_bwd |
               1u << FAMtopk | 1u << FAMcumsum | 1u << FAMscatter |
               1u << FAMfake_quantize | 1u << FAMgmm | 1u << FAMgmm_wgrad |
               1u << FAMblocks
};

/* Parts of a node in a shape: its type; its type and its place in memory; all
 * with its operands. */
enum { TYPE, READ, WHOLE };

typedef struct GroupShape {
    const Graph *graph;
    const Group *group;
    Arena *arena;
    int64_t *row; /* vec */
    Node **node;  /* vecs: node per number, which is its mark; its part */
    char *how;
    const Axis **axis;
    int refused;
} GroupShape;

typedef struct Lowered {
    GroupShape shape; /* shape of the lowered group; row, node are read */
    Group made;
    int label, *arg; /* numbers of nodes; label: names the kernel */
    int *view;       /* vec: numbers of Group.view */
    uint64_t expr;   /* Group.expr */
} Lowered;

static void put_number(GroupShape *shape, int64_t x)
{
    vec_push(shape->arena, shape->row, x);
}

/* ---- axes ---------------------------------------------------------------- */

static void put_axis(GroupShape *shape, const Axis *a)
{
    size_t i = 0;

    while (i < vec_len(shape->axis) && shape->axis[i] != a)
        i++;
    put_number(shape, a ? (int64_t)i : NONE);
    if (!a || i < vec_len(shape->axis))
        return;
    vec_push(shape->arena, shape->axis, a);
    put_number(shape, a->role);
    put_number(shape, a->atoms);
    put_number(shape, a->n);
    put_number(shape, a->parts);
    put_number(shape, a->zigzag);
    put_number(shape, a->nfactor);
    for (int k = 0; k < a->nfactor; k++)
        put_axis(shape, a->factor[k]);
    put_axis(shape, a->root);
}

static void put_attr(GroupShape *shape, const Node *n, const AttrInfo *info)
{
    const void *v = attr_at(n, info);
    Axes x = attr_axes(n, info);
    int64_t bits = 0;

    switch (info->type) {
    case ATstr: shape->refused |= n->op != Oresult; return;
    case ATaxis:
    case ATaxes:
        put_number(shape, x.n);
        for (int i = 0; i < x.n; i++)
            put_axis(shape, x.v[i]);
        return;
    default: memcpy(&bits, v, attr_width(info->type)); put_number(shape, bits);
    }
}

/* ---- nodes --------------------------------------------------------------- */

static int is_numbered(const GroupShape *shape, const Node *n)
{
    return n->mark >= 0 && (size_t)n->mark < vec_len(shape->node) &&
           shape->node[n->mark] == n;
}

static void put_type(GroupShape *shape, const Node *n)
{
    put_number(shape, n->op);
    put_number(shape, n->dt);
    put_number(shape, n->stash != 0);
    put_number(shape, n->nd);
    for (int d = 0; d < n->nd; d++) {
        put_axis(shape, n->dim[d].a);
        put_number(shape, n->dim[d].n);
    }
    for (int t = 0; shape->graph->mesh && t < shape->graph->mesh->natom; t++) {
        put_number(shape, n->sh[t].k);
        put_number(shape, n->sh[t].op);
        put_axis(shape, n->sh[t].k == S ? n->sh[t].a : NULL);
    }
}

/* Is it in memory for every reader? */
static int is_end(const Node *n)
{
    return is_lasting(n) || n->op == Oinput || n->op == Ostepval ||
           n->op == Oarg || n->op == Opart || n->op == Oroute;
}

static void put_attrs(GroupShape *shape, const Node *n)
{
    for (int i = 0; i < optab[n->op].nattr; i++)
        put_attr(shape, n, &optab[n->op].attr[i]);
}

/* Appends the graph's order of the axes, in which a mask is counted. */
static void put_order(GroupShape *shape, const Node *n)
{
    for (int d = 0; d < n->nd; d++)
        put_number(shape, axis_at(shape->graph->axis, shape->graph->naxis,
                                  n->dim[d].a));
}

static void put_node(GroupShape *shape, Node *n, int how);

/* Appends operands. A continued sum has only the previous sum's buffer; a route
 * only the type of the values that it routes. */
static void put_operands(GroupShape *shape, Node *n)
{
    if (n->op == Oroute) {
        put_node(shape, n->in[0], TYPE);
        return;
    }
    put_number(shape, n->nin);
    for (int k = 0; k < n->nin; k++)
        if (n->op == Oaccum && k > 0) {
            put_node(shape, n->in[k], READ);
            put_node(shape, storage(n->in[k]), READ);
        } else {
            put_node(shape, n->in[k], WHOLE);
        }
}

/* Appends a composite's body, and which operands are its arguments. */
static void put_body(GroupShape *shape, const Graph *body)
{
    for (size_t i = 0; i < vec_len(body->node); i++) {
        put_node(shape, body->node[i], WHOLE);
        put_attrs(shape, body->node[i]);
    }
}

static void put_node(GroupShape *shape, Node *n, int how)
{
    int known = is_numbered(shape, n);

    put_number(shape, known ? n->mark : NONE);
    if (known)
        shape->refused |=
            how == WHOLE && shape->how[n->mark] == TYPE && !is_end(n);
    if (known || shape->refused)
        return;
    n->mark = (int)vec_len(shape->node);
    vec_push(shape->arena, shape->node, n);
    vec_push(shape->arena, shape->how, (char)how);
    put_type(shape, n);
    put_number(shape, n->map != NULL);
    if (n->map)
        put_node(shape, n->map, TYPE);
    shape->refused |= vec_len(shape->node) > MOSTSHAPE;
    if (n->op != Oroute && n->op != Opart && (how != WHOLE || is_end(n)))
        return;
    put_attrs(shape, n);
    if (n->op == Opart)
        return;
    if (n->body)
        put_body(shape, n->body);
    if (n->op == Odropout || n->op == Odither)
        put_order(shape, n->in[0]);
    put_operands(shape, n);
}

static void put_list(GroupShape *shape, Node *const *v, int n, int how)
{
    put_number(shape, n);
    for (int i = 0; i < n; i++)
        put_node(shape, v[i], how);
}

static void put_mesh(GroupShape *shape, const Mesh *m)
{
    for (int a = 0; m && a < NMESH; a++)
        put_number(shape, m->size[a]);
    for (int t = 0; m && t < m->natom; t++) {
        put_number(shape, m->atom[t].size);
        put_number(shape, m->atom[t].stride);
    }
    put_number(shape, m ? m->natom : NONE);
}

/* Returns the shape of a group. Read values come first, so that members'
 * operands are not followed beyond them. */
static GroupShape shape_of(const Graph *g, const Group *group, Arena *a)
{
    GroupShape s = { .graph = g, .group = group, .arena = a };

    s.refused = !(HAVETEXT >> group->fam & 1);
    if (s.refused)
        return s;
    put_mesh(&s, g->mesh);
    put_number(&s, group->fam);
    put_number(&s, group->host);
    for (int i = 0; i < group->nin; i++)
        put_node(&s, storage(group->in[i]), READ);
    put_list(&s, group->in, group->nin, READ);
    put_list(&s, &group->map, group->map != NULL, READ);
    put_list(&s, group->node, group->n, WHOLE);
    put_list(&s, group->out, group->nout, WHOLE);
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

/* ---- lowered groups ------------------------------------------------------ */

static int number_of(GroupShape *shape, const Node *n)
{
    if (n && !is_numbered(shape, n))
        shape->refused = 1;
    return n && !shape->refused ? n->mark : NONE;
}

static Node *node_at(const GroupShape *shape, int number)
{
    return number < 0 ? NULL : shape->node[number];
}

/* Returns a copy of the words: emit modifies those of each call. */
static Word *own_words(const Group *group, Arena *a)
{
    size_t n = (size_t)group->instr.nword;
    Word *own = alloc(a, (n + 1) * sizeof *own);

    if (n)
        memcpy(own, group->instr.word, n * sizeof *own);
    return own;
}

/* Stores the result of a group; not if it names nodes that are not in its
 * shape. */
static void take_note(Lowered *lowered, const Group *group)
{
    GroupShape *shape = &lowered->shape;

    lowered->made = *group;
    lowered->made.instr.word = own_words(group, shape->arena);
    lowered->label = NONE;
    lowered->arg =
        alloc(shape->arena, ((size_t)group->narg + 1) * sizeof *lowered->arg);
    for (int i = 0; i < group->narg; i++)
        lowered->arg[i] = number_of(shape, group->arg[i]);
    for (size_t i = 0; i < vec_len(group->view); i++)
        vec_push(shape->arena, lowered->view, number_of(shape, group->view[i]));
    for (int i = 0; i < group->nout && lowered->label < 0; i++)
        if (group->out[i]->name == group->instr.label)
            lowered->label = number_of(shape, group->out[i]);
    for (int i = 0; i < group->n && lowered->label < 0; i++)
        if (group->node[i]->name == group->instr.label)
            lowered->label = number_of(shape, group->node[i]);
    shape->refused |= lowered->label < 0;
}

/* Fills the group from an earlier one of the same shape. */
static void fill(Group *group, const GroupShape *shape, Lowered *lowered,
                 Arena *a)
{
    const Group *was = &lowered->made;
    const Node *n = shape->node[lowered->label];

    group->expr = &lowered->expr;
    group->scratch = was->scratch;
    group->ninplace = was->ninplace;
    group->inplace = was->inplace;
    group->instr = was->instr;
    group->instr.word = own_words(was, a);
    group->instr.label = n->name;
    group->instr.file = n->loc ? n->loc->file : NULL;
    group->instr.line = n->loc ? n->loc->line : 0;
    group->maystore = was->maystore;
    group->path = was->path;
    group->text = was->text;
    group->narg = was->narg;
    group->arg = alloc(a, ((size_t)group->narg + 1) * sizeof *group->arg);
    for (int i = 0; i < group->narg; i++)
        group->arg[i] = node_at(shape, lowered->arg[i]);
    for (size_t i = 0; i < vec_len(lowered->view); i++)
        vec_push(a, group->view, node_at(shape, lowered->view[i]));
}

static void lower(Graph *g, Group *group, Arena *a)
{
    const Target *target = pass_target(g);

    (group->host && target->host ? target->host : target)->lower(g, group, a);
    group->instr.launch.host = group->host;
}

#ifdef PLEAT_DEBUG
static int same_word(const Word *x, const Word *y)
{
    return x->type == y->type && !memcmp(&x->at, &y->at, sizeof x->at) &&
           !memcmp(&x->real, &y->real, sizeof x->real);
}

static void compare(Graph *g, const Group *group, Arena *a)
{
    Group x = *group;

    x.scratch = x.narg = x.ninplace = x.maystore = 0;
    x.inplace = NULL;
    x.arg = x.view = NULL;
    x.instr = (Instr){ 0 };
    lower(g, &x, a);
    int same = x.narg == group->narg && x.scratch == group->scratch &&
               x.ninplace == group->ninplace && x.maystore == group->maystore &&
               x.path == group->path && x.instr.kernel == group->instr.kernel &&
               x.instr.label == group->instr.label &&
               x.instr.line == group->instr.line &&
               x.instr.nword == group->instr.nword &&
               x.instr.flops == group->instr.flops &&
               !memcmp(&x.instr.gmm, &group->instr.gmm, sizeof(GmmArgs)) &&
               x.instr.bytes == group->instr.bytes &&
               !memcmp(&x.instr.launch, &group->instr.launch, sizeof(Launch));
    for (int i = 0; i < x.narg && same; i++)
        same = x.arg[i] == group->arg[i];
    same = same && vec_len(x.view) == vec_len(group->view);
    for (size_t i = 0; i < vec_len(x.view) && same; i++)
        same = x.view[i] == group->view[i];
    for (int i = 0; i < x.ninplace && same; i++)
        same = !memcmp(x.inplace[i], group->inplace[i], sizeof *x.inplace);
    for (int i = 0; i < x.instr.nword && same; i++)
        same = same_word(&x.instr.word[i], &group->instr.word[i]);
    if (!same)
        die("lower: %s is not like the kernel of its shape", x.instr.label);
}
#endif

/* ---- entry --------------------------------------------------------------- */

void lower_group(Graph *g, Group *group)
{
    Compile *compile = g->compile;
    Arena *scratch = arena_new();
    GroupShape s = shape_of(g, group, scratch);
    void **slot = NULL;

    for (uint64_t h = hash_row(s.row); !s.refused; h++) {
        slot = table_at(compile->lowered, h);
        if (!*slot || same_row(((Lowered *)*slot)->shape.row, s.row))
            break;
    }
    if (slot && *slot) {
        fill(group, &s, *slot, g->arena);
#ifdef PLEAT_DEBUG
        compare(g, group, scratch);
#endif
    } else if (slot) {
        Arena *a = table_arena(compile->lowered);
        Lowered *m = alloc(a, sizeof *m);
        m->shape = shape_of(g, group, a);
        lower(g, group, a);
        take_note(m, group);
        if (!m->shape.refused) {
            *slot = m;
            group->expr = &m->expr;
        }
    } else {
        lower(g, group, g->arena);
    }
    arena_free(scratch);
}
