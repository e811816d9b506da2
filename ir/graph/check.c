/* check.c: verifies a graph by the rules of its level. The driver calls it
 * after every pass, so it costs about as much as a pass.
 *
 *     all       operands before users; attributes and axes as infer would set
 *               them; a region reads only what it may; parameters are declared;
 *               rows have their map
 *     placed    no composite, loss or `real` is left; the type of every node is
 *               the result of a strategy of its op
 *     local     and its operands have the types that this strategy reads
 *     legal     a kernel's nodes are of one region, or first of the body and
 *               then of post, and of one call, piece and device
 *
 * Values of the body are visible after it only through accumulators, values of
 * den only in den: reads() has the rules between regions. */
#include <setjmp.h>

#include "graph.h"

typedef struct GraphCheck {
    const Graph *g; /* the graph, or a body in it */
    const Graph *top;
    Table *bodies;          /* checked bodies */
    Table *axes;            /* name -> axis */
    Table *kernels;         /* number -> its first node */
    const Axis *lately[64]; /* cache of checked axes, by bits of the pointer */
    Arena *arena;
    char *why; /* the first violation */
} GraphCheck;

/* Records a violation at n. Returns 1. */
__attribute__((format(printf, 3, 4))) static int
bad(GraphCheck *c, const Node *n, const char *fmt, ...)
{
    Text out = { .arena = c->arena };
    va_list ap;

    va_start(ap, fmt);
    const char *what = vstrf(c->arena, fmt, ap);
    va_end(ap);
    put(&out, "%s: ", programnames[c->top->prog]);
    if (c->g != c->top)
        put(&out, "in a body: ");
    put(&out, "%%%s = %s", n->name ? n->name : "?", optab[n->op].name);
    if (n->loc && n->loc->file)
        put(&out, " (%s:%d)", n->loc->file, n->loc->line);
    put(&out, ": %s", what);
    c->why = out.s;
    return 1;
}

/* Returns the position in the graph; -1: not in it. Ids are positions
 * (nodes()). */
static int64_t place_of(GraphCheck *check, const Node *n)
{
    int here = n->id >= 0 && (size_t)n->id < vec_len(check->g->node) &&
               check->g->node[n->id] == n;

    return here ? n->id : -1;
}

/* ---- all levels ---------------------------------------------------------- */

/* Optional operands: a loss's denominator, an accumulator's start, the step and
 * micro-batch numbers of a dropout, the previous route of a route in a stash,
 * the scales of a scaled product, the map of rows in blocks. */
int takes(Op op, int nin)
{
    int want = optab[op].nin;

    return want < 0 || nin == want ||
           ((op == Oloss || op == Oaccum) && nin == 1) ||
           ((op == Odropout || op == Odither) && nin == 3) ||
           (op == Oroute && nin == 2) ||
           ((op == Ogmm || op == Ogmm_wgrad) && nin == 5) ||
           (op == Odot && nin == 4) || (op == Oquantize_blocks && nin == 2);
}

static int operands(GraphCheck *check, const Node *n, int64_t at)
{
    if (!takes(n->op, n->nin))
        return bad(check, n, "%d operands, not %d", n->nin, optab[n->op].nin);
    for (int i = 0; i < n->nin; i++) {
        int64_t p = n->in[i] ? place_of(check, n->in[i]) : -1;
        if (p < 0)
            return bad(check, n, "operand %d is not in the graph", i + 1);
        if (p >= at)
            return bad(check, n, "operand %d, %%%s, stands below", i + 1,
                       n->in[i]->name ? n->in[i]->name : "?");
    }
    return 0;
}

static const char *attr_wrong(Arena *a, const Node *n, const AttrInfo *info)
{
    Axes x = attr_axes(n, info);

    if (info->use != ATmay && attr_unsaid(n, info) &&
        (info->type == ATaxis || info->type == ATaxes || info->type == ATstr ||
         info->type == ATdtype || info->type == ATscales))
        return strf(a, "lacks '%s'", info->name);
    if (info->use == ATnew && x.v[0] != n_axis(n) &&
        dim_of(n->in[0], x.v[0]) >= 0)
        return strf(a, "its operand has the axis '%s'", x.v[0]->name);
    return NULL;
}

const char *attrs_wrong(Arena *a, const Node *n)
{
    const char *why = NULL;

    for (int i = 0; i < optab[n->op].nattr && !why; i++)
        why = attr_wrong(a, n, &optab[n->op].attr[i]);
    if (why)
        return why;
    const Axes *from = &n->at.rename.from, *to = &n->at.rename.to;
    if (n->op == Orename && from->n != to->n)
        return strf(a, "renames %d axes to %d", from->n, to->n);
    if ((n->op == Odispatch || n->op == Ocombine || n->op == Ogmm ||
         n->op == Ogmm_wgrad || n->op == Ooverflow ||
         n->op == Ofake_quantize) &&
        n->in[is_scaled_product(n) ? 2 : n->nin - 1]->op != Oroute)
        return "its last operand is no route";
    if (n->op == Oroute && n->nin > 1 &&
        (n->in[1]->op != Oroute || !n->at.route.stash ||
         n->in[1]->at.route.stash != n->at.route.stash))
        return "its second operand is no route of its stash";
    return (n->op == Oconcat || n->op == Opack) && n->nin == 0 ? "no operands"
                                                               : NULL;
}

static int attributes(GraphCheck *check, const Node *n)
{
    const char *why = attrs_wrong(check->arena, n);

    return why && bad(check, n, "%s", why);
}

/* Is the padded axis a as g_padded makes it? */
static int pads(const Axis *a)
{
    const Axis *of = a->root;

    return of != a && !of->parts && of->n > a->parts && of->n % a->parts &&
           a->n == sat_mul(of->n / a->parts + 1, a->parts);
}

static int one_axis(GraphCheck *check, const Node *n, Axis *a)
{
    const Axis **lately = &check->lately[KEYP(a) / 16 % 64];
    if (*lately == a)
        return 0;
    void **known = table_at(check->axes, KEYP(a->name));
    if (!*known)
        *known = a;
    *lately = a;
    if (a->parts && !pads(a))
        return bad(check, n, "axis '%s' is no axis in %ld parts with padding",
                   a->name, a->parts);
    return *known != a && bad(check, n, "two axes are called '%s'", a->name);
}

static int axes(GraphCheck *check, const Node *n)
{
    for (int i = 0; i < optab[n->op].nattr; i++) {
        Axes x = attr_axes(n, &optab[n->op].attr[i]);
        for (int k = 0; k < x.n; k++)
            if (one_axis(check, n, x.v[k]))
                return 1;
    }
    for (int i = 0; i < n->nd; i++) {
        if (one_axis(check, n, n->dim[i].a))
            return 1;
        if (n->dim[i].n < 1)
            return bad(check, n, "axis '%s' is %ld", n->dim[i].a->name,
                       n->dim[i].n);
        if (dim_of(n, n->dim[i].a) != i)
            return bad(check, n, "axis '%s' stands twice", n->dim[i].a->name);
    }
    return 0;
}

static jmp_buf failed; /* infer reports errors by err() */
static char *said;

static void hear(const char *msg)
{
    said = strf(forever, "%.*s", (int)strcspn(msg, "\n"), msg);
    longjmp(failed, 1);
}

/* Returns null, or infer's error about n. */
static const char *inferred(GraphCheck *check, Node *n)
{
    void (*hook)(const char *) = err_hook;

    said = NULL;
    err_hook = hear;
    if (!setjmp(failed))
        infer((Graph *)check->g, n);
    err_hook = hook;
    return said;
}

static int dims(GraphCheck *check, const Node *n)
{
    Node copy = *n;

    if (n->op == Omerge && !are_neighbours(n->in[0], &n->at.merge.axes))
        return bad(check, n, "the merged axes are no neighbours");
    const char *wrong = inferred(check, &copy);
    if (wrong)
        return bad(check, n, "%s", wrong);
    int same = copy.nd == n->nd;
    for (int i = 0; i < n->nd && same; i++)
        same = copy.dim[i].a == n->dim[i].a && copy.dim[i].n == n->dim[i].n;
    if (same && copy.dt != n->dt)
        return bad(check, n, "is %s, and its operands make %s",
                   dtypes[n->dt].name, dtypes[copy.dt].name);
    if (same)
        return 0;
    Text have = { .arena = check->arena }, want = have;
    print_dims(&have, n);
    print_dims(&want, &copy);
    return bad(check, n, "is %s, and its operands make %s", have.s, want.s);
}

/* May node n read o of another region? Losses, metrics and updates are read by
 * pass `step`. */
static int reads(const Node *n, const Node *o)
{
    if (any_region(o) || n->op == Oloss || n->op == Ometric || n->op == Oupdate)
        return 1;
    if (o->op == Osum_sq)
        return n->reg == REGpost;
    if (o->op == Oaccum && n->reg == o->reg) /* a sum in place */
        return n->op == Oaccum || n->op == Osum_sq || o->nin == 2;
    if (o->op == Oaccum)
        return n->reg != o->reg && (o->reg == REGden || n->reg == REGpost);
    if (o->reg == REGpre)
        return n->reg != REGden;
    return o->reg == n->reg;
}

static int regions_ok(GraphCheck *check, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (!reads(n, n->in[i]))
            return bad(check, n, "in %s reads %%%s of %s", regions[n->reg],
                       n->in[i]->name ? n->in[i]->name : "?",
                       regions[n->in[i]->reg]);
    return 0;
}

static int rows(GraphCheck *check, const Node *n, int64_t at)
{
    int has = 0;

    for (int i = 0; i < n->nd; i++)
        has |= g_isrow(n->dim[i].a);
    if (has && (!n->map || n->map->op != Oroute))
        return bad(check, n, "has rows and no route");
    if (!has && n->map)
        return bad(check, n, "has a route and no rows");
    if (n->map &&
        (place_of(check, n->map) < 0 || place_of(check, n->map) >= at))
        return bad(check, n, "its route does not stand above");
    return 0;
}

/* ---- single ops ---------------------------------------------------------- */

static int declared(GraphCheck *check, const Node *n)
{
    const char *path = n_name(n);
    const Param *param = g_param((Graph *)check->top, path);

    if (!param)
        return bad(check, n, "'%s' is not in the table", path);
    if ((tensor_kinds[param->kind].cls == Bparam) != (n->op == Oparam))
        return bad(check, n, "'%s' is a %s", path,
                   tensor_kinds[param->kind].name);
    if (!has_dims(n, param->dim, param->nd) || param->dt != n->dt)
        return bad(check, n, "has not the type '%s' is declared with", path);
    return 0;
}

static int integer(GraphCheck *check, const Node *n, int k)
{
    Dtype t = n->in[k]->dt;

    return (dtypes[t].kind != 'i' || t == Dnone) &&
           bad(check, n, "operand %d is %s, not an integer", k + 1,
               dtypes[t].name);
}

/* The indexed axis and the index's own axis must differ. */
static int indexes(GraphCheck *check, const Node *n)
{
    for (int k = n->op == Ogather; k < 2; k++)
        if (dim_of(n->in[k], n_axis(n)) >= 0)
            return bad(check, n, "operand %d has the axis '%s' that is indexed",
                       k + 1, n_axis(n)->name);
    return integer(check, n, 1);
}

static int part(GraphCheck *check, const Node *n)
{
    const Node *node = n->in[0];
    int count = node->op == Oattn              ? 2
                : node->op == Oattn_bwd        ? node->nin - 3
                : node->op == Oquantize_blocks ? 4
                                               : 0;

    if (n->at.part.index < 0 || n->at.part.index >= count)
        return bad(check, n, "part %ld of %d", n->at.part.index, count);
    return node->op == Oattn_bwd &&
           !(gradient_operands(node->body) >> n->at.part.index & 1) &&
           bad(check, n, "operand %ld has no gradient", n->at.part.index + 1);
}

static int write_ok(GraphCheck *check, const Node *n)
{
    const Node *s = n->in[0];

    if (s->op != Oparam && s->op != Ostate)
        return bad(check, n, "writes what is no parameter and no state");
    if (!same_dims(s, n->in[1]) || s->dt != n->in[1]->dt)
        return bad(check, n, "writes a value of another type");
    return 0;
}

static int uses_of_pick(GraphCheck *check, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->op == Opick && n->op != Odot)
            return bad(check, n, "uses an indexed weight outside a product");
    return 0;
}

static int special(GraphCheck *check, const Node *n)
{
    if (uses_of_pick(check, n))
        return 1;
    switch (n->op) {
    case Oparam:
    case Ostate: return declared(check, n);
    case Oarg:
        return check->g == check->top && bad(check, n, "stands outside a body");
    case Opart: return part(check, n);
    case Odrop_to_capacity:
    case Oroute: return integer(check, n, 0);
    case Ogather:
    case Oscatter_add: return indexes(check, n);
    case Opick: return integer(check, n, 1);
    case Owrite: return write_ok(check, n);
    case Oaccum:
        return n->reg != REGden && n->reg != REGbody &&
               bad(check, n, "accumulates in %s", regions[n->reg]);
    default: return 0;
    }
}

/* ---- bodies -------------------------------------------------------------- */

static int nodes(GraphCheck *check, const Graph *g);

/* Do the body's arguments match the operands in type and number, and its last
 * node the result? */
static int binds(GraphCheck *check, const Node *n)
{
    const Graph *graph = n->body;
    size_t len = vec_len(graph->node);
    int nin = n->op == Oattn_bwd ? n->nin - 3 : n->nin;

    if (!len)
        return bad(check, n, "has an empty body");
    for (size_t i = 0; i < len; i++) {
        const Node *a = graph->node[i];
        if (a->op != Oarg)
            continue;
        int64_t k = a->at.arg.index;
        if (k < 0 || k >= nin)
            return bad(check, n, "its body has an argument %ld", k);
        const Node *o = n->in[k];
        if (!same_dims(a, o) || a->dt != o->dt)
            return bad(check, n,
                       "operand %ld has not the type of the body's argument",
                       k + 1);
    }
    const Node *r = graph->node[len - 1];
    if (n->op == Ocall && (!same_dims(r, n) || r->dt != n->dt))
        return bad(check, n, "has not the type of its body's result");
    return 0;
}

static int body(GraphCheck *check, const Node *n)
{
    if (!has_body(n->op))
        return bad(check, n, "has a body");
    if (n->op != Ooptimizer && binds(check, n))
        return 1;
    void **done = table_at(check->bodies, KEYP(n->body));
    if (*done)
        return 0;
    *done = check;
    const Graph *g = check->g;
    int wrong = nodes(check, n->body);
    check->g = g;
    return wrong;
}

/* ---- placed and local ---------------------------------------------------- */

static int leftover(GraphCheck *check, const Node *n)
{
    switch (n->op) {
    case Ocall:
    case Oloss:
    case Ometric:
    case Oupdate:
    case Ooptimizer:
    case Opick: return bad(check, n, "should be gone");
    default: return n->dt == Dreal && bad(check, n, "has no precision");
    }
}

/* Does each sharded axis divide evenly? */
static int divides(GraphCheck *check, const Node *n)
{
    for (int d = 0; d < n->nd; d++) {
        uint32_t atoms = 0;
        for (int t = 0; t < check->g->mesh->natom; t++)
            if (n->sh[t].k == S && n->sh[t].a == n->dim[d].a)
                atoms |= 1u << t;
        int64_t parts = cut_parts(check->g->mesh, n->dim[d].a, atoms);
        if (n->dim[d].n % parts)
            return bad(check, n, "axis '%s' of %ld is cut into %ld",
                       n->dim[d].a->name, n->dim[d].n, parts);
    }
    return 0;
}

/* Is there, over each atom, a strategy of n with n's type as its result? */
static int makes(GraphCheck *check, const Node *n)
{
    ShardStrategy w[MAXWAY];

    if (optab[n->op].cls == SRC || optab[n->op].cls == COMM)
        return 0;
    for (int t = 0; t < check->g->mesh->natom; t++) {
        int k = ways(check->g, n, t, w);
        while (k-- > 0 && !same_shard(&w[k].out, &n->sh[t]))
            ;
        if (k < 0)
            return bad(check, n, "no way to run it makes its type");
    }
    return 0;
}

/* Do an exchange's operand and result have the same memory layout? */
static int lies_alike(GraphCheck *check, const Node *n)
{
    const Node *x = n->in[0];

    for (int d = 0; d < n->nd && n->nin; d++)
        if (n->dim[d].a != x->dim[d].a)
            return bad(check, n,
                       "its axes are in another order than its operand's");
    return 0;
}

static int types(GraphCheck *check, const Node *n)
{
    if (leftover(check, n))
        return 1;
    if (!check->g->mesh)
        return bad(check, n, "has a type and no mesh");
    if (optab[n->op].cls == COMM && lies_alike(check, n))
        return 1;
    if (divides(check, n))
        return 1;
    if (check->g->level == PLACED)
        return makes(check, n);
    if (check->g->level == LEGAL)
        return 0;
    const char *wrong = type_wrong(check->g, n);
    return wrong && bad(check, n, "%s", wrong);
}

/* ---- the whole graph ----------------------------------------------------- */

static int kernel(GraphCheck *check, const Node *n)
{
    if (!n->kernel)
        return n->host && bad(check, n, "is of no kernel of the host");
    if (check->g->level != LEGAL || (size_t)n->kernel > vec_len(check->g->node))
        return bad(check, n, "there is no kernel %d", n->kernel);
    const Node **first =
        (const Node **)table_at(check->kernels, (uint64_t)n->kernel);
    if (!*first)
        *first = n;
    const Node *was = *first;
    if (!was->piece) /* the first node with a piece represents the kernel now */
        *first = n;
    if (was->host != n->host)
        return bad(check, n, "%%%s, of its kernel, runs elsewhere", was->name);
    int last = was->reg == REGbody && n->reg == REGpost && was->call == n->call;
    return ((!last && !same_section(was, n)) ||
            (was->piece && n->piece && was->piece != n->piece)) &&
           bad(check, n, "%%%s, of its kernel, is of another part of the step",
               was->name);
}

static int node(GraphCheck *check, const Node *n, int64_t at)
{
    if (n->id != at)
        return bad(check, n, "stands twice");
    if (operands(check, n, at) || attributes(check, n) || axes(check, n) ||
        dims(check, n) || regions_ok(check, n) || rows(check, n, at) ||
        special(check, n))
        return 1;
    if ((n->body && body(check, n)) || kernel(check, n))
        return 1;
    return check->g == check->top && check->g->level != LOGICAL &&
           types(check, n);
}

static int nodes(GraphCheck *check, const Graph *g)
{
    check->g = g;
    g_renumber((Graph *)g);
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (node(check, g->node[i], (int64_t)i))
            return 1;
    return 0;
}

char *graph_wrong(Arena *a, const Graph *g)
{
    Arena *scratch = arena_new();
    GraphCheck c = {
        .top = g,
        .arena = scratch,
        .axes = table_new(scratch),
        .bodies = table_new(scratch),
        .kernels = table_new(scratch),
    };
    char *why = nodes(&c, g) ? strf(a, "%s", c.why) : NULL;

    arena_free(scratch);
    return why;
}

void check_graph(const Graph *g)
{
    char *why = graph_wrong(forever, g);

    if (why)
        die("check: %s", why);
}
