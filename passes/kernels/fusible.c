/* fusible.c: can nodes be one kernel? The head of fuse.c has the rule; this
 * file has kinds of nodes, operands through nodes of no kernel, and the
 * test. */
#include "kernels.h"

enum { MEMBER = 1, PASSED }; /* exchange: a member, a rebuilt node */

/* ---- kinds of nodes ------------------------------------------------------ */

int is_reduction(const Node *n)
{
    return optab[n->op].cls == RED;
}

/* Is it in memory before any kernel runs? */
static int is_source(const Node *n)
{
    return n->op == Oinput || is_lasting(n) || n->op == Ostepval ||
           n->op == Oarg || n->op == Opart;
}

static int in_loop(const Fuse *fuse, const Node *n)
{
    return !is_view(n) && fuse->exchange[n->id] != MEMBER &&
           fuse->target->loops(fuse->graph, n);
}

Family family_of(const Fuse *fuse, const Node *n)
{
    if (is_source(n) || is_view(n) || n->op == Ooutput || n->op == Osum_sq)
        return FAMnone;
    if (fuse->exchange[n->id] == MEMBER)
        return FAMcomm;
    if (n->op == Owrite && !n->host &&
        (is_hosted(n->in[0]) || lies_in_host(n->in[1])))
        return FAMcopy;
    if (fuse->target->loops(fuse->graph, n))
        return FAMloop;
    if (optab[n->op].fam == FAMnone)
        die("fuse: no kernel family for %s", optab[n->op].name);
    return optab[n->op].fam;
}

static int bytes_of(const Node *n)
{
    return dtypes[n->dt].bytes;
}

static int is_constant(const Fuse *fuse, const Node *x)
{
    return x->op == Oconst || x->op == Oiota || fuse->clear[x->id] == 2;
}

/* Is x stored and much smaller than n, a comparison with it? */
static int is_small(const Fuse *fuse, const Node *n, const Node *x)
{
    return op_is(n->op, OPcmp) && !in_loop(fuse, x) && !is_view(x) &&
           4 * local_elems(fuse->graph, x) <= local_elems(fuse->graph, n);
}

/* Is n arithmetic on one large tensor and constants, with several users? Each
 * user can read the tensor instead, so that n is never written. */
static int is_of_one(const Fuse *fuse, const Node *n)
{
    enum { LARGE = 1 << 14 };
    const Node *x = NULL;

    for (int k = 0; k < n->nin; k++) {
        if (is_constant(fuse, n->in[k]))
            continue;
        if (x && n->in[k] != x)
            return 0;
        x = n->in[k];
    }
    return x && !is_reduction(x) && vec_len(fuse->user[n->id]) > 1 &&
           bytes_of(n) >= bytes_of(x) && local_elems(fuse->graph, n) >= LARGE &&
           local_elems(fuse->graph, n) == local_elems(fuse->graph, x);
}

/* Is n rebuilt at each use? 2: and made only of constants. */
static int is_clear(const Fuse *fuse, const Node *n)
{
    switch (n->op) {
    case Oconst:
    case Oiota:
    case Obroadcast:
    case Ostop_gradient:
    case Oslice:
    case Oshard_slice:
    case Odispatch:
    case Ocombine:
    case Orename:
    case Osplit:
    case Ospread:
    case Omerge: return 1;
    case Ocast:
        return bytes_of(n) >= bytes_of(n->in[0]) && !is_reduction(n->in[0]);
    default: break;
    }
    if (!optab[n->op].expr || op_calls(n->op) || n->nin == 0)
        return 0;
    for (int k = 0; k < n->nin; k++)
        if (!is_constant(fuse, n->in[k]) && !is_small(fuse, n, n->in[k]))
            return is_of_one(fuse, n);
    return 2;
}

int passes_by(const Fuse *fuse, const Node *n)
{
    return fuse->clear[n->id] || is_view(n);
}

/* Does a node that reads memory use n, directly or through rebuilt nodes? */
static int memory_use(const Fuse *fuse, const Node *n)
{
    for (size_t i = 0; i < vec_len(fuse->user[n->id]); i++) {
        const Node *node = fuse->user[n->id][i];
        if (is_view(node)
                ? memory_use(fuse, node)
                : !in_loop(fuse, node) && fuse->exchange[n->id] != PASSED)
            return 1;
    }
    return 0;
}

/* ---- operands through rebuilt nodes -------------------------------------- */

static Axis **with(const Fuse *fuse, Axis **v, Axis *a)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i] == a)
            return v;
    Axis **w = NULL;
    for (size_t i = 0; i < vec_len(v); i++)
        vec_push(fuse->arena, w, v[i]);
    vec_push(fuse->arena, w, a);
    return w;
}

/* Returns a number for the index of operand k of n, if n is read at `path`; it
 * differs if the index may differ. */
static uint64_t path_of(const Node *n, int k, uint64_t path)
{
    uint64_t h = mix64(path, (uint64_t)n->op);

    if (is_view(n) || n->op == Oshift || n->op == Oslice)
        return attrs_hash(h, n);
    return mix64(h, KEYP(n) + (uint64_t)k);
}

static Axis **with_all(const Fuse *fuse, Axis **v, const Axes *axes)
{
    for (int i = 0; i < axes->n; i++)
        v = with(fuse, v, axes->v[i]);
    return v;
}

/* Returns operand k of n, which is read as described by `at`. */
static Operand operand_at(const Fuse *fuse, const Node *n, int k,
                          const Operand *at)
{
    Node *x = n->in[k];
    Operand o = { x, at->moved, at->path };
    int all = n->op == Opack || n->op == Ounpack;

    switch (n->op) {
    case Orename: o.moved = with_all(fuse, o.moved, &n->at.rename.from); break;
    case Omerge: o.moved = with_all(fuse, o.moved, &n->at.merge.axes); break;
    case Osplit:
    case Oslice:
    case Opad:
    case Oconcat:
    case Oshift:
    case Oshard_slice: o.moved = with(fuse, o.moved, n_axis(n)); break;
    case Ospread:
        o.moved = with_all(fuse, o.moved, &n->at.spread.blocks);
        break;
    case Ogather:
        if (k > 0)
            return o;
        o.moved = with(fuse, o.moved, n->at.gather.axis);
        break;
    case Opack:
    case Ounpack:
    case Odispatch:
    case Ocombine:
        if (k > 0 && !all)
            return o;
        for (int d = 0; d < x->nd; d++)
            if (all || dim_of(n, x->dim[d].a) < 0)
                o.moved = with(fuse, o.moved, x->dim[d].a);
        break;
    default: return o;
    }
    o.path = path_of(n, k, at->path);
    return o;
}

static int same_operand(const Operand *o, const Operand *q)
{
    if (o->node != q->node || o->path != q->path ||
        vec_len(o->moved) != vec_len(q->moved))
        return 0;
    for (size_t i = 0; i < vec_len(o->moved); i++)
        if (o->moved[i] != q->moved[i])
            return 0;
    return 1;
}

static int add_operand(const Fuse *fuse, Operand **v, Operand o)
{
    for (size_t i = 0; i < vec_len(*v); i++)
        if (same_operand(&(*v)[i], &o))
            return 0;
    vec_push(fuse->arena, *v, o);
    return 1;
}

/* Visits each operand once, however many paths lead to it; `by`: nodes
 * passed. */
static void walk(const Fuse *fuse, const Node *n, const Operand *at,
                 Operand **by, Operand **out)
{
    for (int k = n->op == Owrite; k < n->nin; k++) {
        Operand o = operand_at(fuse, n, k, at);
        if (!passes_by(fuse, o.node))
            add_operand(fuse, out, o);
        else if (add_operand(fuse, by, o))
            walk(fuse, o.node, &o, by, out);
    }
    if (n->map)
        add_operand(fuse, out, (Operand){ .node = n->map });
}

Operand *operands_of(Fuse *fuse, const Node *n)
{
    Operand *by = NULL;

    if (!fuse->operand[n->id])
        walk(fuse, n, &(Operand){ 0 }, &by, &fuse->operand[n->id]);
    return fuse->operand[n->id];
}

Node *made_by(Node *n)
{
    return n->op == Opart ? n->in[0] : n;
}

FuseUnit *unit_root(FuseUnit *unit)
{
    while (unit && unit->into)
        unit = unit->into;
    return unit;
}

FuseUnit *unit_of(const Fuse *fuse, const Node *n)
{
    return unit_root(fuse->unit[n->id]);
}

/* ---- the set that would be one kernel ------------------------------------ */

int set_has(const FuseSet *set, const Node *n)
{
    FuseUnit *u = unit_of(set->fuse, n);

    return n == set->node[vec_len(set->node) - 1] ||
           (u && u->seen == set->stamp);
}

/* Has n users outside the set? */
int is_stored(const FuseSet *set, const Node *n)
{
    if (optab[n->op].cls == SINK)
        return 1;
    for (size_t i = 0; i < vec_len(set->fuse->user[n->id]); i++) {
        Node *node = set->fuse->user[n->id][i];
        if (passes_by(set->fuse, node)
                ? is_stored(set, node)
                : !set_has(set, node) || node->reg != n->reg ||
                      node->call != n->call)
            return 1;
    }
    return 0;
}

const Node *layout_of(const Node *n) /* the node with the stored dims */
{
    return n->op == Owrite ? n->in[0] : n;
}

static int has_axis(const AxisSet *set, const Axis *a)
{
    for (int i = 0; i < set->n; i++)
        if (set->a[i] == a)
            return 1;
    return 0;
}

const AxisSet *axes_here(const Fuse *fuse, const Node *n)
{
    AxisSet **known = &fuse->here[n->id], *s = *known;

    if (s)
        return s;
    *known = s = alloc(fuse->arena, sizeof *s);
    for (int d = 0; d < n->nd; d++)
        if (local_n(fuse->graph, n, d) > 1 || g_isrow(n->dim[d].a))
            s->a[s->n++] = n->dim[d].a;
    return s;
}

static void keep_common(AxisSet *s, const AxisSet *t)
{
    int k = 0;

    for (int i = 0; i < s->n; i++)
        if (has_axis(t, s->a[i]))
            s->a[k++] = s->a[i];
    s->n = k;
}

/* Are the axes of set the slowest axes of n? */
int axes_lead(const Fuse *fuse, const AxisSet *set, const Node *n)
{
    const AxisSet *t = axes_here(fuse, n);

    for (int i = 0; i < set->n; i++)
        if (i >= t->n || !has_axis(set, t->a[i]))
            return 0;
    return 1;
}

static int crosses(const Operand *operand, const AxisSet *set)
{
    for (size_t i = 0; i < vec_len(operand->moved); i++)
        if (has_axis(set, operand->moved[i]))
            return 1;
    return 0;
}

/* Returns the node whose dims are the loops of n, in memory order. */
const Node *space_of(const Node *n)
{
    return is_reduction(n) ? n->in[0] : layout_of(n);
}

/* ---- small links --------------------------------------------------------- */

/* A use of n through rebuilt nodes: the operand of the user, the user. */
typedef struct Use {
    const Node *as, *by;
} Use;

static void add_uses(const Fuse *fuse, const Node *n, Use **out)
{
    for (size_t i = 0; i < vec_len(fuse->user[n->id]); i++) {
        const Node *u = fuse->user[n->id][i];
        if (passes_by(fuse, u))
            add_uses(fuse, u, out);
        else
            vec_push(fuse->arena, *out, ((Use){ n, u }));
    }
}

static int is_late(const Node *n)
{
    return n->again || is_backward(n);
}

/* Is n a value per row that kernels over rows read beside their rows? Each of
 * these kernels then computes it before the row's loop, and stays independent
 * of the others. All users must be near, and one much larger. */
static int is_link(const Fuse *fuse, const Node *n)
{
    enum { NEAR = 64, USES = 4, MUCH = 16 };
    const Graph *g = fuse->graph;
    int much = 0;
    Use *use = NULL;

    if (!(optab[n->op].expr || n->op == Ogather) || n->map ||
        memory_use(fuse, n))
        return 0;
    add_uses(fuse, n, &use);
    if (vec_len(use) < 2 || vec_len(use) > USES)
        return 0;
    for (size_t i = 0; i < vec_len(use); i++) {
        const Node *node = use[i].by;
        if (!in_loop(fuse, node) || node->reg != n->reg ||
            node->call != n->call || node->id - n->id > NEAR ||
            is_late(node) != is_late(n))
            return 0;
        const AxisSet *as = axes_here(fuse, use[i].as);
        int64_t size = local_elems(g, space_of(node));
        much |= size >= MUCH * local_elems(g, n);
        if (size > local_elems(g, use[i].as) &&
            (as->n == 0 || !axes_lead(fuse, as, space_of(node))))
            return 0;
    }
    return much;
}

static void find_places(Fuse *fuse)
{
    int place = 0;

    for (int i = 0; i < fuse->count; i++)
        fuse->place[i] = place += fuse->graph->node[i]->nd > 0;
}

/* Finds users; each once, however often it reads the node. */
static void find_users(Fuse *fuse)
{
    for (int i = 0; i < fuse->count; i++)
        for (int k = 0; k < fuse->graph->node[i]->nin; k++) {
            Node *n = fuse->graph->node[i], ***v = &fuse->user[n->in[k]->id];
            if (!*v || (*v)[vec_len(*v) - 1] != n)
                vec_push(fuse->arena, *v, n);
        }
}

static void find_clear(Fuse *fuse)
{
    for (int i = 0; i < fuse->count; i++) {
        Node *n = fuse->graph->node[i];
        fuse->clear[i] = in_loop(fuse, n) ? (char)is_clear(fuse, n) : 0;
    }
    for (int i = 0; i < fuse->count; i++)
        if (fuse->clear[i] && memory_use(fuse, fuse->graph->node[i]))
            fuse->clear[i] = 0;
    for (int i = fuse->count; i-- > 0;)
        if (!fuse->clear[i] && in_loop(fuse, fuse->graph->node[i]))
            fuse->clear[i] = (char)is_link(fuse, fuse->graph->node[i]);
}

/* Returns the only user of n and its views; null: there are several. */
static Node *last_user(const Fuse *fuse, const Node *n)
{
    do {
        if (vec_len(fuse->user[n->id]) != 1)
            return NULL;
        n = fuse->user[n->id][0];
    } while (is_view(n));
    return fuse->graph->node[n->id];
}

/* Finds row exchanges whose parts have no other readers. */
static void find_exchanges(Fuse *fuse)
{
    RowExchange x;

    for (int i = 0; i < fuse->count; i++) {
        const Node *n = fuse->graph->node[i];
        int sends =
            sends_rows(fuse->graph, n, &x) && last_user(fuse, x.member) == n;
        int back = !sends && returns_rows(fuse->graph, n, &x) &&
                   last_user(fuse, x.alltoall) == x.member &&
                   last_user(fuse, x.member) == n;
        if (!sends && !back)
            continue;
        fuse->exchange[i] = fuse->exchange[x.alltoall->id] = MEMBER;
        fuse->exchange[x.member->id] = sends ? MEMBER : PASSED;
        fuse->partner[sends ? x.member->id : x.alltoall->id] =
            fuse->graph->node[i];
    }
}

/* Marks nodes of no kernel as rebuilt, whatever their users are now. */
static void read_clear(Fuse *fuse)
{
    for (int i = 0; i < fuse->count; i++) {
        const Node *n = fuse->graph->node[i];
        fuse->clear[i] = in_loop(fuse, n) && !n->kernel && !is_reduction(n);
    }
}

static Fuse begin(Graph *g, Arena *a)
{
    Fuse f = { .graph = g, .target = pass_target(g), .arena = a };

    g_renumber(g);
    f.count = (int)vec_len(g->node);
    f.user = alloc(a, ((size_t)f.count + 1) * sizeof *f.user);
    f.clear = alloc(a, (size_t)f.count + 1);
    f.exchange = alloc(a, (size_t)f.count + 1);
    f.partner = alloc(a, ((size_t)f.count + 1) * sizeof *f.partner);
    f.costly = alloc(a, (size_t)f.count + 1);
    f.unit = alloc(a, ((size_t)f.count + 1) * sizeof *f.unit);
    f.operand = alloc(a, ((size_t)f.count + 1) * sizeof *f.operand);
    f.here = alloc(a, ((size_t)f.count + 1) * sizeof *f.here);
    f.seen = alloc(a, ((size_t)f.count + 1) * sizeof *f.seen);
    f.place = alloc(a, ((size_t)f.count + 1) * sizeof *f.place);
    f.before = alloc(a, ((size_t)f.count + 1) * sizeof *f.before);
    f.after = alloc(a, ((size_t)f.count + 1) * sizeof *f.after);
    find_places(&f);
    find_users(&f);
    find_exchanges(&f);
    return f;
}

Fuse fuse_begin(Graph *g, Arena *a)
{
    Fuse f = begin(g, a);

    find_clear(&f);
    return f;
}

Fuse fuse_again(Graph *g, Arena *a)
{
    Fuse f = begin(g, a);

    read_clear(&f);
    return f;
}

/* ---- the rule ------------------------------------------------------------ */

static int is_reduced(const Fuse *fuse, const Node *m)
{
    for (size_t i = 0; i < vec_len(fuse->user[m->id]); i++)
        if (is_reduction(fuse->user[m->id][i]))
            return 1;
    return 0;
}

/* Would reading p from m repeat costly work? No, if p's axes are the slowest of
 * m's: p is then computed once for each of their values. A stored value that is
 * reduced at another index, as for the maximum of a block, is computed for each
 * of these, and again for users of the result. */
static int repeats(const FuseSet *set, const Node *m, const Operand *operand)
{
    const Graph *g = set->fuse->graph;

    if (!set->fuse->costly[operand->node->id])
        return 0;
    const AxisSet *p = axes_here(set->fuse, operand->node);
    const AxisSet *q = axes_here(set->fuse, space_of(m));
    if (operand->moved)
        return (is_stored(set, operand->node) && is_reduced(set->fuse, m)) ||
               local_elems(g, space_of(m)) > local_elems(g, operand->node);
    return q->n > p->n && !axes_lead(set->fuse, p, space_of(m));
}

/* Marks members that are costly to rebuild: a function of a value that is not
 * stored, or a reduction. Node.mark: depends on a reduction of the set. */
static void mark_costly(FuseSet *set)
{
    for (size_t i = 0; i < vec_len(set->node); i++) {
        Node *n = set->node[i];
        Operand *op = operands_of(set->fuse, n);
        int c = is_reduction(n) || op_calls(n->op) || n->op == Orandom ||
                n->op == Odropout || n->op == Odither;
        n->mark = is_reduction(n);
        for (size_t k = 0; k < vec_len(op); k++) {
            if (!set_has(set, op[k].node))
                continue;
            c |= set->fuse->costly[op[k].node->id];
            n->mark |= op[k].node->mark;
        }
        set->fuse->costly[n->id] = (char)c;
    }
}

/* Does n depend on a reduction of the set over one of the axes, through nodes
 * that the walk of this stamp has not visited? */
static int has_sum_over(const FuseSet *set, const Node *n, Axis *const *moved,
                        int stamp)
{
    if (!n->mark || set->fuse->seen[n->id] == stamp)
        return 0;
    set->fuse->seen[n->id] = stamp;
    for (size_t i = 0; i < vec_len(moved) && is_reduction(n); i++)
        if (dim_of(n, moved[i]) >= 0)
            return 1;
    Operand *op = operands_of(set->fuse, n);
    for (size_t k = 0; k < vec_len(op); k++)
        if (set_has(set, op[k].node) &&
            has_sum_over(set, op[k].node, moved, stamp))
            return 1;
    return 0;
}

/* Finds the axes that all stored members and all reductions have. Returns 0 if
 * a stored member does not have them as its slowest. */
static int item_axes(FuseSet *set, AxisSet *axis_set)
{
    const Fuse *fuse = set->fuse;
    int first = 1;

    for (size_t i = 0; i < vec_len(set->node); i++) {
        Node *n = set->node[i];
        if (!is_stored(set, n) && !is_reduction(n))
            continue;
        const AxisSet *t = axes_here(fuse, layout_of(n));
        if (first)
            *axis_set = *t;
        else
            keep_common(axis_set, t);
        first = 0;
    }
    for (size_t i = 0; i < vec_len(set->node); i++) {
        const Node *n = set->node[i];
        if (!is_stored(set, n))
            continue;
        if ((axis_set->n == 0 && axes_here(fuse, layout_of(n))->n) ||
            !axes_lead(fuse, axis_set, layout_of(n)))
            return 0;
    }
    return 1;
}

/* Has the set nodes of two rounds (overflow_fallback.c) or slices
 * (logits_chunks.c)? Each waits for its own. */
static int two_rounds(const FuseSet *set)
{
    int seen = 0;

    for (size_t i = 0; i < vec_len(set->node); i++) {
        int piece = set->node[i]->piece;
        if (!piece)
            continue;
        if (seen && seen != piece)
            return 1;
        seen = piece;
    }
    return 0;
}

/* ---- on a grid, where an item is a block --------------------------------- */

static int64_t items_of(const Graph *g, const Node *n, const AxisSet *set)
{
    int64_t items = 1;

    for (int k = 0; k < set->n; k++) {
        int d = dim_of(n, set->a[k]);
        items *= d < 0 ? 1 : local_n(g, n, d);
    }
    return items;
}

/* Returns the member that reduction n reduces, through views. */
static const Node *reduced(const Node *n)
{
    do
        n = n->in[0];
    while (optab[n->op].cls == VIEW || n->op == Ocast);
    return n;
}

/* Is n the first stage of a two-stage sum, over the fast part of an axis? */
static int is_first_stage(const Node *n)
{
    const Node *s = n->in[0];

    return s->op == Osplit && n_axes(n)->n == 1 &&
           n_axes(n)->v[0] == s->at.split.into.v[1];
}

/* Is n a gather by an index that the set computes and stores? */
static int stores_index(FuseSet *set, const Node *n)
{
    const Node *index = n->op == Ogather ? n->in[1] : NULL;

    while (index && (optab[index->op].cls == VIEW || index->op == Ocast))
        index = index->in[0];
    return index && set_has(set, index) && is_stored(set, index);
}

/* Would one kernel have too few items for the chip while separate kernels have
 * more: a sum of sums, or of values made of large sums, two large results that
 * share few axes, or large rows and their index? Sums of parts of rows are
 * meant for kernels over parts (rounded_sums.c). */
static int too_few(FuseSet *set, const AxisSet *axis_set)
{
    const Graph *g = set->fuse->graph;
    int64_t wanted = set->fuse->target->items;
    int large = 0, named = 0;

    for (size_t i = 0; i < vec_len(set->node) && set->fuse->target->grid; i++) {
        const Node *n = set->node[i], *in = is_reduction(n) ? reduced(n) : n;
        int64_t items = items_of(g, in, axis_set);
        if (in != n && is_reduction(in) && set_has(set, in) &&
            (is_first_stage(in) ||
             (items < wanted * 128 && local_elems(g, in) >= 16 * items)))
            return 1;
        int64_t rows = is_reduction(n) ? items_of(g, n, axis_set) : wanted;
        if (rows < wanted && local_elems(g, n) >= 16 * rows &&
            local_elems(g, space_of(n)) >= 64 * wanted)
            return 1;
        int is_large = items < wanted && local_elems(g, n) >= 64 * wanted;
        large += is_large && is_stored(set, n);
        named |= is_large && stores_index(set, n);
    }
    return large > 1 || named;
}

const char *one_nest(FuseSet *set)
{
    AxisSet O = { 0 };

    if (two_rounds(set))
        return "two rounds or slices";
    if (!item_axes(set, &O))
        return "what both store has no slowest axes in common";
    if (too_few(set, &O))
        return "a sum of sums would have too few items";
    mark_costly(set);
    for (size_t i = 0; i < vec_len(set->node); i++) {
        Operand *op = operands_of(set->fuse, set->node[i]);
        for (size_t k = 0; k < vec_len(op); k++) {
            if (!set_has(set, op[k].node))
                continue;
            int kept =
                op[k].node->mark || (op[k].moved && is_stored(set, op[k].node));
            if (kept && crosses(&op[k], &O))
                return "an item needs another item's result";
            if (op[k].moved &&
                has_sum_over(set, op[k].node, op[k].moved, ++set->fuse->stamp))
                return "a sum made again over other loops has other bits";
            if (repeats(set, set->node[i], &op[k]))
                return "costly work would be done again and again";
        }
    }
    return NULL;
}
