/* graph.c: axes, parameters, nodes, and functions that build them; merges equal
 * nodes, drops dead ones and names nodes, which every pass needs. */
#include "graph.h"

const char *const turnwords[NTURNS] = { "", "alone", "pairs", "paired" };
const char *const levels[NLEVEL] = { "logical", "placed", "local", "legal" };
const char *const initkinds[NINIT] = { "-",     "normal", "uniform",
                                       "const", "copy",   "pack" };
const char *const families[NFAMILY] = {
    "loop",  "gemm",     "gmm",           "gmm_wgrad", "blocks",
    "attn",  "attn_bwd", "topk",          "cumsum",    "drop_to_capacity",
    "route", "scatter",  "fake_quantize", "comm",      "zero",
    "copy",  "none",
};

Graph *g_new(Arena *a, const char *name)
{
    Graph *g = alloc(a, sizeof *g);

    g->arena = a;
    g->name = intern(name);
    g->prog = PGstep;
    g->types = table_new(a);
    scopes_init(g);
    return g;
}

Graph *g_like(const Graph *g)
{
    Graph *h = alloc(g->arena, sizeof *h);

    *h = *g;
    h->node = NULL;
    h->group = NULL;
    h->next = NULL;
    h->bypath = NULL;
    h->nbypath = 0;
    h->nbefore = 0;
    h->axis = NULL; /* the axes are shared, the list is not */
    for (int i = 0; i < g->naxis; i++)
        vec_push(g->arena, h->axis, g->axis[i]);
    return h;
}

Axis *g_axis(Graph *g, const char *name)
{
    name = intern(name);
    for (int i = 0; i < g->naxis; i++)
        if (g->axis[i]->name == name)
            return g->axis[i];
    Axis *x = alloc(g->arena, sizeof *x);
    x->name = name;
    x->root = x;
    for (int r = ROLEmicro; r <= ROLErow;
         r++) /* no model axis has these names */
        if (!strcmp(name, axisroles[r]))
            x->role = (AxisRole)r;
    vec_push(g->arena, g->axis, x);
    g->naxis++;
    return x;
}

Axis *g_instance(Graph *g, const Axis *of)
{
    const char *name;
    int k = 2, i;

    do {
        name = intern(strf(g->arena, "%s'%d", of->name, k++));
        for (i = 0; i < g->naxis && g->axis[i]->name != name; i++)
            ;
    } while (i < g->naxis);
    Axis *x = g_axis(g, name);
    x->root = of->root;
    return x;
}

Param *g_param(Graph *g, const char *path)
{
    if (!g->bypath)
        g->bypath = table_new(g->arena);
    for (; g->nbypath < vec_len(g->param); g->nbypath++)
        *table_at(g->bypath, KEYP(g->param[g->nbypath]->path)) =
            g->param[g->nbypath];
    return table_get(g->bypath, KEYP(intern(path)));
}

int is_member(const Param *param, const char *bucket)
{
    return 1 << param->kind & PARAMETERS && param->bucket && param->at >= 0 &&
           (!bucket || param->bucket == bucket);
}

Param *param_companion(const Graph *g, const Param *param, TensorKind kind)
{
    for (size_t i = 0; i < vec_len(g->param); i++) {
        Param *p = g->param[i];
        if (p->kind == kind &&
            (p->of ? p->of == param->path
                   : param->bucket && p->bucket == param->bucket))
            return p;
    }
    return NULL;
}

int64_t param_elems(const Param *param)
{
    int64_t n = 1;

    for (int d = 0; d < param->nd; d++)
        n *= param->dim[d].n;
    return n;
}

Node *g_node(Graph *g, Op op, const Loc *loc, int nin, Node *const *in)
{
    Node *n = alloc(g->arena, sizeof *n);

    n->op = op;
    n->reg = REGbody;
    n->loc = loc;
    n->nin = nin;
    n->in = alloc(g->arena, ((size_t)nin + 1) * sizeof *n->in);
    n->scope = g->top;
    n->sh = whole_type;
    n->buf = -1;
    for (int i = 0; i < nin; i++)
        n->in[i] = in[i];
    n->id = (int)vec_len(g->node);
    vec_push(g->arena, g->node, n);
    return n;
}

Node *g_placed(Node *n, const Node *by)
{
    n->scope = by->scope;
    n->reg = by->reg;
    n->call = by->call;
    if (!n->loc)
        n->loc = by->loc;
    return n;
}

Node *g_ew(Graph *g, Op op, const Loc *loc, Node *a, Node *b, Node *c)
{
    Node *in[3] = { a, b, c };
    int nin = c ? 3 : b ? 2 : 1;

    return infer(g, g_placed(g_node(g, op, loc, nin, in), a));
}

Node *g_const(Graph *g, const Loc *loc, Dtype dt, double v)
{
    Node *n = g_node(g, Oconst, loc, 0, NULL);

    n->dt = dt;
    n->at.constant.value = v;
    return infer(g, n);
}

Node *g_iota(Graph *g, Axis *a, const Node *by)
{
    Node *n = g_placed(g_node(g, Oiota, by->loc, 0, NULL), by);

    n->dt = Di32;
    n->at.iota.axis = a;
    return infer(g, n);
}

Node *g_cast(Graph *g, Node *a, Dtype dt)
{
    if (a->dt == dt)
        return a;
    Node *n = g_placed(g_node(g, Ocast, a->loc, 1, &a), a);
    n->at.cast.to = dt;
    return infer(g, n);
}

Node *g_red(Graph *g, Op op, Node *a, Axis **ax, int n)
{
    if (n == 0)
        return a;
    Node *r = g_placed(g_node(g, op, a->loc, 1, &a), a);
    *n_axes(r) = g_axes(g, ax, n);
    return infer(g, r);
}

Node *g_sumto(Graph *g, Node *a, const Node *to)
{
    Axis *gone[MAXD];
    int n = axes_lacking(to, a, gone);

    return g_red(g, Osum, a, gone, n);
}

Node *g_broadcast(Graph *g, Node *a, const Node *to)
{
    if (same_dims(a, to))
        return a;
    Node *n = g_placed(g_node(g, Obroadcast, a->loc, 1, &a), a);
    n->nd = to->nd;
    memcpy(n->dim, to->dim, sizeof n->dim);
    return infer(g, n);
}

/* Reorders n's axes as in `to`; axes that `to` lacks follow in their order. */
static void reorder(Node *n, const Node *to)
{
    Dim d[MAXD];
    int k = 0;

    for (int i = 0; i < to->nd; i++) {
        int at = dim_of(n, to->dim[i].a);
        if (at >= 0)
            d[k++] = n->dim[at];
    }
    for (int i = 0; i < n->nd; i++)
        if (dim_of(to, n->dim[i].a) < 0)
            d[k++] = n->dim[i];
    memcpy(n->dim, d, (size_t)k * sizeof *d);
}

Node *g_dot(Graph *g, const Loc *loc, Node *a, Node *b, Axis **ax, int n,
            const Node *order)
{
    Node *in[2] = { a, b };
    Node *r = g_placed(g_node(g, Odot, loc, 2, in), a);

    r->at.dot.axes = g_axes(g, ax, n);
    infer(g, r);
    if (order)
        reorder(r, order);
    return r;
}

Node *g_copyof(Graph *g, const Node *n, Node *const *in)
{
    Node *r = g_node(g, n->op, n->loc, n->nin, in);
    Node **own = r->in;
    int id = r->id;

    *r = *n;
    r->in = own;
    r->id = id;
    r->name = NULL;
    r->tmp = NULL;
    r->mark = 0;
    return r;
}

void g_renumber(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->id = (int)i;
}

int axes_lacking(const Node *n, const Node *of, Axis **out)
{
    int k = 0;

    for (int i = 0; i < of->nd; i++)
        if (!has_dim(n, of->dim[i].a))
            out[k++] = of->dim[i].a;
    return k;
}

int same_order(const Node *a, const Node *b)
{
    for (int i = 0; i < a->nd; i++)
        if (a->dim[i].a != b->dim[i].a)
            return 0;
    return a->nd == b->nd;
}

int64_t g_elems(const Node *n)
{
    int64_t e = 1;

    for (int i = 0; i < n->nd; i++)
        if (__builtin_mul_overflow(e, n->dim[i].n, &e) || e > MOSTELEMS)
            err(n->loc, "%s has more than 2^53 elements",
                n->name                       ? n->name
                : optab[n->op].shared[SHname] ? n_name(n)
                                              : optab[n->op].name);
    return e;
}

int has_dims(const Node *n, const Dim *d, int nd)
{
    for (int i = 0; i < nd; i++) {
        int k = dim_of(n, d[i].a);
        if (k < 0 || n->dim[k].n != d[i].n)
            return 0;
    }
    return nd == n->nd;
}

int same_dims(const Node *a, const Node *b)
{
    return has_dims(b, a->dim, a->nd);
}

int is_backward(const Node *n)
{
    return n->scope->part == PARTbackward;
}

int any_region(const Node *n)
{
    return n->op == Oinput || n->op == Oparam || n->op == Ostate ||
           n->op == Ostepval || n->op == Oarg || n->op == Oconst;
}

int constant_is(const Node *n, double v)
{
    return n->op == Oconst && n->at.constant.value == v;
}

int is_lasting(const Node *n)
{
    return n->op == Oparam || n->op == Ostate;
}

int is_hosted(const Node *n)
{
    return n->op == Ostate && n->at.state.host;
}

int lies_in_host(Node *n)
{
    n = storage(n);
    return n->op == Ooffload || n->host || is_hosted(n);
}

int is_position(const Node *n)
{
    while (n->op == Orename)
        n = n->in[0];
    return n->op == Oiota;
}

int same_section(const Node *a, const Node *b)
{
    return a->reg == b->reg && a->call == b->call;
}

int is_transfer(const Node *n)
{
    return n->op == Osend || n->op == Orecv || n->op == Opp_sum;
}

int axes_at(const Axes *axes, const Axis *a)
{
    return axis_at(axes->v, axes->n, a);
}

int axis_at(Axis *const *v, int n, const Axis *a)
{
    for (int i = 0; i < n; i++)
        if (v[i] == a)
            return i;
    return -1;
}

int g_ismicro(const Axis *a)
{
    return a->role == ROLEmicro;
}

Axis *g_role(const Graph *g, AxisRole role)
{
    for (int i = 0; i < g->naxis; i++)
        if (g->axis[i]->role == role)
            return g->axis[i];
    return NULL;
}

double g_tokens(const Graph *g)
{
    const Node *best = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (n->op == Oinput &&
            (!best || names_tokens(best->at.input.name, best->dt,
                                   n->at.input.name, n->dt)))
            best = n;
    }
    return best ? (double)g_elems(best) : 0;
}

int axis_covers(const Axis *a, AxisRole role)
{
    if (a->role == role)
        return 1;
    for (int i = 0; i < a->nfactor; i++)
        if (axis_covers(a->factor[i], role))
            return 1;
    return 0;
}

Axis *g_micro(Graph *g)
{
    return g_axis(g, axisroles[ROLEmicro]);
}

int g_is_data(Graph *g, const Node *n)
{
    return dim_of(n, g_micro(g)) >= 0 || n->map;
}

/* Is axis a of x the batch, or a part of it made by split()? */
static int is_of_batch(const Node *x, const Axis *a)
{
    while (!axis_covers(a, ROLEbatch)) {
        int k = 0;
        if (x->op == Osplit && axes_at(&x->at.split.into, a) >= 0)
            a = x->at.split.axis;
        else if (x->op == Orename && axes_at(&x->at.rename.to, a) >= 0)
            a = x->at.rename.from.v[axes_at(&x->at.rename.to, a)];
        while (k < x->nin && dim_of(x->in[k], a) < 0)
            k++;
        if (k == x->nin)
            return 0;
        x = x->in[k];
    }
    return 1;
}

int g_over_batch(Graph *g, const Node *n)
{
    int over = 0, left = 0;

    if (optab[n->op].cls != RED && (n->op != Odot || !g_is_data(g, n)))
        return 0;
    for (int i = 0; i < n_axes(n)->n; i++) {
        if (axis_covers(n_axes(n)->v[i], ROLEbatch))
            return 1;
        for (int k = 0; k < n->nin; k++)
            over |= dim_of(n->in[k], n_axes(n)->v[i]) >= 0 &&
                    is_of_batch(n->in[k], n_axes(n)->v[i]);
    }
    for (int i = 0; i < n->nd && over; i++)
        left |= is_of_batch(n, n->dim[i].a);
    return over && !left;
}

/* ---- equal nodes, dead nodes --------------------------------------------- */

/* Returns the region for comparison: sources are equal in every region. */
static Region region_of(const Node *n)
{
    return any_region(n) ? REGbody : n->reg;
}

/* Hashes op and operands: few nodes agree in these and are not equal. Nodes
 * without operands hash their other fields. */
static uint64_t hash_of(const Node *n)
{
    uint64_t h = mix64(mix64(n->op, n->dt), region_of(n));

    for (int i = 0; i < n->nin; i++)
        h = mix64(h, KEYP(n->in[i]));
    if (n->nin)
        return h;
    h = attrs_hash(mix64(h, (uint64_t)n->again), n);
    for (int i = 0; i < n->nd; i++)
        h = mix64(mix64(h, KEYP(n->dim[i].a)), (uint64_t)n->dim[i].n);
    return h;
}

static int same_body(Graph *a, Graph *b);

/* Are all fields but the operands equal? */
static int same_kind(const Node *a, const Node *b)
{
    if (a->op != b->op || a->dt != b->dt || region_of(a) != region_of(b) ||
        a->nin != b->nin || a->nd != b->nd || a->again != b->again ||
        a->call != b->call || a->piece != b->piece || !same_attrs(a, b))
        return 0;
    for (int i = 0; i < a->nd; i++)
        if (a->dim[i].a != b->dim[i].a || a->dim[i].n != b->dim[i].n)
            return 0;
    return same_type(a->sh, b->sh) && same_body(a->body, b->body);
}

static int same_node(const Node *a, const Node *b)
{
    if (a->nin != b->nin)
        return 0;
    for (int i = 0; i < a->nin; i++)
        if (a->in[i] != b->in[i])
            return 0;
    return same_kind(a, b);
}

/* Are two bodies equal, with operands compared by node number? */
static int same_body(Graph *a, Graph *b)
{
    if (a == b || !a || !b)
        return a == b;
    if (vec_len(a->node) != vec_len(b->node))
        return 0;
    g_renumber(a);
    g_renumber(b);
    for (size_t i = 0; i < vec_len(a->node); i++) {
        const Node *x = a->node[i], *y = b->node[i];
        if (!same_kind(x, y))
            return 0;
        for (int k = 0; k < x->nin; k++)
            if (x->in[k]->id != y->in[k]->id)
                return 0;
    }
    return 1;
}

static int mergeable(const Node *n)
{
    return optab[n->op].cls != SINK && n->op != Oarg && n->op != Oinput &&
           !is_transfer(n);
}

/* Hash set of nodes. first: [power of two] buckets, 1 + index in `node` of the
 * bucket's last node. Small, since passes tidy often. */
typedef struct NodeSet {
    uint32_t mask, *first, *next, *hash; /* next, hash: per index */
    Node *const *node;
} NodeSet;

static NodeSet node_set(Arena *scratch, const Graph *g)
{
    size_t n = vec_len(g->node), size = 64;

    while (size < n)
        size *= 2;
    return (NodeSet){ .mask = (uint32_t)size - 1,
                      .first = alloc(scratch, size * sizeof(uint32_t)),
                      .next = alloc(scratch, (n + 1) * sizeof(uint32_t)),
                      .hash = alloc(scratch, (n + 1) * sizeof(uint32_t)),
                      .node = g->node };
}

/* Returns the earlier node equal to node i, or node i itself after adding
 * it. */
static Node *canonical(NodeSet *set, uint32_t i)
{
    Node *n = set->node[i];
    uint64_t h = hash_of(n);
    uint32_t *first = &set->first[h & set->mask];
    set->hash[i] = (uint32_t)(h >> 32);
    for (uint32_t k = *first; k; k = set->next[k - 1])
        if (set->hash[k - 1] == set->hash[i] && same_node(set->node[k - 1], n))
            return set->node[k - 1];
    set->next[i] = *first;
    *first = i + 1;
    return n;
}

/* Copies a model's marks from a merged node to the node that replaces it. */
static void mark_like(Graph *g, Node *n, const Node *gone)
{
    unsigned one = gone->scope->marks & MARKSONE;

    if (one && gone->scope->part == PARTmodel && n->scope->part == PARTmodel)
        n->scope = g_marked(g, n->scope, n->scope->marks | one);
}

static void merge_equal(Graph *g, Arena *scratch)
{
    size_t n = vec_len(g->node);
    NodeSet set = node_set(scratch, g);
    Node **to = alloc(scratch, (n + 1) * sizeof *to);

    g_renumber(g);
    for (size_t i = 0; i < n; i++) {
        Node *x = g->node[i];
        for (int k = 0; k < x->nin; k++)
            x->in[k] = to[x->in[k]->id];
        if (x->map)
            x->map = to[x->map->id];
        to[i] = mergeable(x) ? canonical(&set, (uint32_t)i) : x;
        mark_like(g, to[i], x);
    }
}

static int is_root(const Node *n)
{
    return (optab[n->op].cls == SINK && n->op != Oaccum && n->op != Osum_sq) ||
           is_transfer(n);
}

static void mark_live(Node *n)
{
    if (n->mark)
        return;
    n->mark = 1;
    for (int i = 0; i < n->nin; i++)
        mark_live(n->in[i]);
    if (n->map)
        mark_live(n->map);
}

int has_body(Op op)
{
    return optab[op].cls == COMP || op == Ooptimizer;
}

static int has_root(const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (is_root(g->node[i]))
            return 1;
    return 0;
}

/* Drops dead nodes. Operands precede users, so one backward sweep marks all
 * live nodes; a body (no sinks) keeps its last node's operands and its
 * arguments. */
static void drop_dead(Graph *g)
{
    size_t n = vec_len(g->node), k = 0;
    int rooted = has_root(g);

    for (size_t i = 0; i < n; i++)
        g->node[i]->mark = 0;
    for (size_t i = 0; i < n; i++)
        if (is_root(g->node[i]) || g->node[i]->op == Oarg)
            mark_live(g->node[i]);
    if (!rooted && n)
        mark_live(g->node[n - 1]);
    for (size_t i = 0; i < n; i++)
        if (g->node[i]->mark)
            g->node[k++] = g->node[i];
    vec_cut(g->node, k);
}

void g_tidy(Graph *g)
{
    Arena *scratch = arena_new();

    merge_equal(g, scratch);
    drop_dead(g);
    g_renumber(g);
    arena_free(scratch);
}

/* ---- names --------------------------------------------------------------- */

/* A dot with a parameter takes the parameter's last name. */
static const char *stem(const Node *n)
{
    for (int i = 0; i < n->nin && (n->op == Odot || n->op == Ogmm); i++)
        if (n->in[i]->op == Oparam) {
            const char *dot = strrchr(n->in[i]->at.param.path, '.');
            return dot ? dot + 1 : n->in[i]->at.param.path;
        }
    if (n->op == Ocall || n->op == Oinput)
        return n_name(n);
    return optab[n->op].name;
}

/* Composes the name in `text`, which it overwrites. */
static const char *base_name(Text *text, const Node *n)
{
    const char *last;

    if (n->op == Oparam || n->op == Ostate)
        return intern(n_name(n));
    last = stem(n);
    if (!*n->scope->path)
        return intern(last);
    text->len = 0;
    putn(text, n->scope->path, strlen(n->scope->path));
    putn(text, ".", 1);
    putn(text, last, strlen(last));
    return internn(text->s, text->len);
}

static const char *numbered(Text *text, const char *base, int k)
{
    text->len = 0;
    putn(text, base, strlen(base));
    putn(text, ".", 1);
    put_int(text, k);
    return internn(text->s, text->len);
}

void g_names(Graph *g)
{
    size_t first = 0;

    while (first < vec_len(g->node) && g->node[first]->name)
        first++;
    if (first == vec_len(g->node))
        return;
    Arena *scratch = arena_new();
    Table *used = table_for(scratch, vec_len(g->node));
    Table *next = table_new(scratch);
    Text text = { .arena = scratch };
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->name)
            *table_at(used, KEYP(g->node[i]->name)) = g->node[i];
    for (size_t i = first; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        if (n->name)
            continue;
        const char *base = base_name(&text, n), *name = base;
        void **last = table_at(next, KEYP(base)); /* last number of this name */
        uintptr_t k = (uintptr_t)*last;
        for (k = k ? k : 1; table_get(used, KEYP(name));)
            name = numbered(&text, base, (int)++k);
        *last = (void *)k;
        *table_at(used, KEYP(name)) = n;
        n->name = name;
    }
    arena_free(scratch);
}
