/* fuse.c: groups nodes into kernels.
 *
 * Nodes are visited in order. A loop node joins the kernel of an operand, or
 * merges several of them, if one loop nest can compute all members and no other
 * kernel must run in between; otherwise it starts a kernel. Values with readers
 * outside the kernel are stored, others never reach memory.
 *
 * Some nodes belong to no kernel and are rebuilt at each use: views, constants,
 * iota and small values made only of these, broadcasts, widening casts,
 * windows, moves between tokens and rows, and small values that kernels over
 * rows read once a row.
 *
 * One nest: let O be the axes that all stored members and all reductions have.
 * O are the kernel's items. It must not be empty unless all are scalars, and
 * each stored member must have O as its slowest axes, so that an item is a run
 * of memory: a softmax or norm with its elementwise users is a kernel over
 * rows, a sum over the rows (a column sum) includes only nodes without other
 * users. A member read at a moved index (a window, a gather) may be rebuilt
 * there only if that repeats no costly work and no item needs another's
 * results. A sum is computed at one index only: other loops would add its terms
 * in another order, and a value may be compared with a result derived from it
 * (the gradient of a maximum).
 *
 * A product includes the accumulator that it feeds; a grouped one, if the
 * target supports it, also a second product of which only the sum is read, or
 * the optimizer update of its gradient (product_update.c). A map also quantizes
 * its result (join_rounding.c). */
#include "kernels.h"

/* Largest distance of a reader that joins a kernel, in nodes that are not
 * scalars. A kernel runs at its last member, so joining a distant reader would
 * keep its operands alive until then: the overflow checks of all layers
 * (overflow_fallback.c) lie between a loss and its gradient. */
enum { WINDOW = 160 };

/* Operations between stages outside calls keep their program order. */
static void find_order(Fuse *fuse)
{
    Node *last = NULL;

    for (int i = 0; i < fuse->count; i++) {
        Node *n = fuse->graph->node[i];
        if (!is_transfer(n) || n->call)
            continue;
        if (last && n_chan(last) > n_chan(n))
            die("fuse: %%%s stands after %%%s", n->name, last->name);
        fuse->before[i] = last;
        if (last)
            fuse->after[last->id] = n;
        last = n;
    }
}

/* ---- no kernel in between ------------------------------------------------ */

/* Pushes the operands of n's kernel (or of n) that this stamp has not
 * visited. */
static void push_needs(Fuse *fuse, const Node *n, int stamp, Node ***stack)
{
    Operand *op = operands_of(fuse, n);

    for (size_t k = 0; k < vec_len(op); k++) {
        Node *p = made_by(op[k].node);
        if (fuse->seen[p->id] == stamp)
            continue;
        fuse->seen[p->id] = stamp;
        vec_push(fuse->arena, *stack, p);
    }
    Node *p = fuse->before[n->id];
    if (p && fuse->seen[p->id] != stamp) {
        fuse->seen[p->id] = stamp;
        vec_push(fuse->arena, *stack, p);
    }
}

static void raise_users(Fuse *fuse, const Node *n, int id);

/* Records that unit and its users now wait for node `id`: a finished kernel may
 * need one that grows later. */
static void raise_reach(Fuse *fuse, FuseUnit *unit, int id)
{
    if (unit->reach >= id)
        return;
    unit->reach = id;
    for (size_t i = 0; i < vec_len(unit->node); i++)
        raise_users(fuse, unit->node[i], id);
}

static void raise_users(Fuse *fuse, const Node *n, int id)
{
    for (size_t i = 0; i < vec_len(fuse->user[n->id]); i++) {
        Node *x = fuse->user[n->id][i];
        FuseUnit *u = unit_of(fuse, x);
        if (u)
            raise_reach(fuse, u, id);
        else if (x->id < id) /* already visited */
            raise_users(fuse, x, id);
    }
    Node *next = fuse->after[n->id];
    if (next && unit_of(fuse, next))
        raise_reach(fuse, unit_of(fuse, next), id);
}

/* Does a kernel outside the set depend on the set and feed it? Walks back from
 * the set's operands; a kernel that ends before the set's first node cannot
 * depend on it. */
static int has_detour(FuseSet *set, int first)
{
    Fuse *fuse = set->fuse;
    Node **stack = NULL;

    for (size_t i = 0; i < vec_len(set->node); i++)
        fuse->seen[set->node[i]->id] = set->stamp;
    for (size_t i = 0; i < vec_len(set->node); i++)
        push_needs(fuse, set->node[i], set->stamp, &stack);
    for (size_t i = 0; i < vec_len(set->node); i++)
        fuse->seen[set->node[i]->id] = 0;
    while (vec_len(stack)) {
        size_t at = vec_len(stack) - 1;
        Node *n = stack[at];
        ((VecHead *)(void *)stack)[-1].len = at;
        if (set_has(set, n))
            return 1;
        FuseUnit *u = unit_of(fuse, n);
        if (!u || u->reach < first)
            continue;
        for (size_t k = 0; k < vec_len(u->node); k++) {
            fuse->seen[u->node[k]->id] = set->stamp;
            push_needs(fuse, u->node[k], set->stamp, &stack);
        }
    }
    return 0;
}

/* ---- joining ------------------------------------------------------------- */

static FuseUnit *new_unit(Fuse *fuse, Node *n, Family fam)
{
    FuseUnit *u = alloc(fuse->arena, sizeof *u);

    *u = (FuseUnit){ .fam = fam,
                     .reg = n->reg,
                     .call = n->call,
                     .last = n->id,
                     .reach = n->id,
                     .again = n->again };
    vec_push(fuse->arena, u->node, n);
    vec_push(fuse->arena, fuse->all, u);
    fuse->unit[n->id] = u;
    return u;
}

static void add_members(FuseSet *set, FuseUnit *unit)
{
    for (size_t i = 0; i < vec_len(unit->node); i++) {
        Node *n = unit->node[i];
        size_t k = vec_len(set->node);
        vec_push(set->fuse->arena, set->node, n);
        for (; k > 0 && set->node[k - 1]->id > n->id; k--)
            set->node[k] = set->node[k - 1];
        set->node[k] = n;
    }
}

/* Returns null if n and the units can be one kernel, otherwise the reason. */
static const char *cannot_join(Fuse *fuse, FuseUnit *const *u, int nu, Node *n)
{
    FuseSet s = { .fuse = fuse, .stamp = ++fuse->stamp };

    for (int i = 0; i < nu; i++) {
        u[i]->seen = s.stamp;
        add_members(&s, u[i]);
    }
    vec_push(fuse->arena, s.node, n);
    if (is_large(&s))
        return "the kernel would be too large";
    const char *no = one_nest(&s);
    if (no)
        return no;
    return has_detour(&s, s.node[0]->id) ? "another kernel stands between"
                                         : NULL;
}

static int same_call(const FuseUnit *unit, const Node *n)
{
    return unit->reg == n->reg && unit->call == n->call;
}

/* Finds the kernels of n's operands, the latest first. Recomputed values must
 * not be computed, and stored, by a forward kernel. */
static int candidates(Fuse *fuse, Node *n, FuseUnit **out, int max)
{
    Operand *op = operands_of(fuse, n);
    int k = 0;

    for (size_t i = 0; i < vec_len(op); i++) {
        FuseUnit *u = unit_of(fuse, op[i].node);
        int known = 0;
        for (int j = 0; j < k; j++)
            known |= out[j] == u;
        if (!u || known || u->fam != FAMloop || !same_call(u, n) || k == max ||
            fuse->place[n->id] - fuse->place[u->last] > WINDOW ||
            (n->again && !u->again))
            continue;
        int at = k++;
        for (; at > 0 && out[at - 1]->last < u->last; at--)
            out[at] = out[at - 1];
        out[at] = u;
    }
    return k;
}

static void tie(Fuse *fuse, FuseUnit *const *u, int nu, Node *n)
{
    FuseSet s = { .fuse = fuse };
    FuseUnit *to = u[0];

    for (int i = 0; i < nu; i++) {
        add_members(&s, u[i]);
        to->again |= u[i]->again;
        if (i)
            u[i]->into = to;
    }
    vec_push(fuse->arena, s.node, n);
    to->node = s.node;
    to->last = n->id;
    to->again |= n->again;
    fuse->unit[n->id] = to;
    raise_reach(fuse, to, n->id);
}

static void place_loop(Fuse *fuse, Node *n)
{
    enum { TRY = 8 };
    FuseUnit *cand[TRY], *take[TRY];
    int nc = n->op == Owrite ? 0 : candidates(fuse, n, cand, TRY), nt = 0;

    for (int i = 0; i < nc; i++) {
        take[nt] = cand[i];
        const char *no = cannot_join(fuse, take, nt + 1, n);
        if (no)
            why(fuse->graph, n, "%s reads %%%s from memory: %s",
                optab[n->op].name,
                cand[i]->node[vec_len(cand[i]->node) - 1]->name, no);
        else
            nt++;
    }
    if (nt)
        tie(fuse, take, nt, n);
    else
        new_unit(fuse, n, FAMloop);
}

/* ---- writes -------------------------------------------------------------- */

/* Does n read the state, by the marks of mark_readers()? */
static int reads_state(const FuseSet *set, Node *n, const Node *state)
{
    return storage(n) == state || set->fuse->seen[n->id] == set->stamp;
}

/* Marks the nodes of the set that read the state, directly or through
 * others. */
static void mark_readers(const FuseSet *set, const Node *state)
{
    for (int more = 1; more;) {
        more = 0;
        for (size_t i = 0; i < vec_len(set->node); i++) {
            const Node *n = set->node[i];
            Operand *op = operands_of(set->fuse, n);
            for (size_t k = 0; k < vec_len(op); k++) {
                if (set->fuse->seen[n->id] == set->stamp ||
                    !reads_state(set, op[k].node, state))
                    continue;
                set->fuse->seen[n->id] = set->stamp;
                more = 1;
            }
        }
    }
}

/* Is the kernel a map that reads only the element of the state that it writes?
 * It can then write the state in place, unless another kernel must run after it
 * and read the old value. */
static int is_plain_map(Fuse *fuse, FuseUnit *unit, const Node *state)
{
    FuseSet s = { .fuse = fuse, .node = unit->node, .stamp = ++fuse->stamp };
    const AxisSet *t = axes_here(fuse, state);

    unit->seen = s.stamp;
    mark_readers(&s, state);
    for (size_t i = 0; i < vec_len(unit->node); i++) {
        const Node *n = unit->node[i];
        Operand *op = operands_of(fuse, n);
        const AxisSet *q = axes_here(fuse, layout_of(n));
        if (n->op == Oquantize_blocks)
            continue;
        if (is_reduction(n) ||
            (is_stored(&s, n) && (q->n != t->n || !axes_lead(fuse, q, state))))
            return 0;
        for (size_t k = 0; k < vec_len(op); k++)
            if (op[k].moved && reads_state(&s, op[k].node, state))
                return 0;
    }
    return 1;
}

/* Must v run after u, by operands and by earlier decisions about writes? */
static int depends(Fuse *fuse, FuseUnit *v, const FuseUnit *u)
{
    int stamp = ++fuse->stamp;
    FuseUnit **stack = NULL;

    vec_push(fuse->arena, stack, v);
    while (vec_len(stack)) {
        size_t at = vec_len(stack) - 1;
        FuseUnit *x = unit_root(stack[at]);
        ((VecHead *)(void *)stack)[-1].len = at;
        if (x == u)
            return 1;
        if (x->seen == stamp || x->reg != u->reg)
            continue;
        x->seen = stamp;
        for (size_t i = 0; i < vec_len(x->before); i++)
            vec_push(fuse->arena, stack, x->before[i]);
        for (size_t i = 0; i < vec_len(x->node); i++) {
            Operand *op = operands_of(fuse, x->node[i]);
            for (size_t k = 0; k < vec_len(op); k++) {
                FuseUnit *y = unit_of(fuse, made_by(op[k].node));
                if (y && y->seen != stamp)
                    vec_push(fuse->arena, stack, y);
            }
            Node *p = fuse->before[x->node[i]->id];
            if (p)
                vec_push(fuse->arena, stack, unit_of(fuse, p));
        }
    }
    return 0;
}

/* Adds the other kernels of unit's region that read the state. */
static void add_readers(Fuse *fuse, const Node *n, const FuseUnit *unit,
                        FuseUnit ***out)
{
    for (size_t i = 0; i < vec_len(fuse->user[n->id]); i++) {
        Node *x = fuse->user[n->id][i];
        FuseUnit *v = unit_of(fuse, x);
        if (passes_by(fuse, x))
            add_readers(fuse, x, unit, out);
        else if (v && v != unit && v->reg == unit->reg &&
                 !(x->op == Owrite && x->in[0] == n))
            vec_push(fuse->arena, *out, v);
    }
}

/* Is the value a result of the kernel that only n reads, with the state's
 * layout? */
static int is_own_part(Fuse *fuse, const FuseUnit *unit, const Node *n)
{
    const Node *v = n->in[1];

    return unit->fam == FAMblocks && v->op == Opart &&
           vec_len(fuse->user[v->id]) == 1 && same_order(v, n->in[0]);
}

/* Can unit, which computes the value of write n, write the state too? */
static int may_write(Fuse *fuse, Node *n, FuseUnit *unit,
                     FuseUnit *const *reader)
{
    if (passes_by(fuse, n->in[1]) || !unit || !same_call(unit, n) ||
        vec_len(unit->node) >= MOSTNODES)
        return 0;
    int maps = unit->fam == FAMloop ||
               (unit->fam == FAMblocks && n->in[1]->op != Opart);
    if (!is_own_part(fuse, unit, n) &&
        (!maps || !is_plain_map(fuse, unit, storage(n->in[0]))))
        return 0;
    for (size_t i = 0; i < vec_len(reader); i++)
        if (reader[i] != unit && depends(fuse, reader[i], unit))
            return 0;
    return 1;
}

/* Assigns write n to a kernel. Readers of the state run before that kernel. */
static void join_write(Fuse *fuse, Node *n)
{
    FuseUnit *own = unit_of(fuse, n), *u = unit_of(fuse, made_by(n->in[1])),
             **reader = NULL;

    add_readers(fuse, storage(n->in[0]), own, &reader);
    FuseUnit *writer = may_write(fuse, n, u, reader) ? u : own;
    for (size_t i = 0; i < vec_len(reader); i++)
        if (reader[i] != writer)
            vec_push(fuse->arena, writer->before, reader[i]);
    if (writer == own)
        return;
    own->into = u;
    vec_push(fuse->arena, u->node, n);
    if (n->id > u->last)
        u->last = n->id;
}

static void join_writes(Fuse *fuse)
{
    for (int i = 0; i < fuse->count; i++)
        if (fuse->graph->node[i]->op == Owrite)
            join_write(fuse, fuse->graph->node[i]);
}

/* ---- products and the rest ----------------------------------------------- */

static Node *only_user(const Fuse *fuse, const Node *n)
{
    return vec_len(fuse->user[n->id]) == 1 ? fuse->user[n->id][0] : NULL;
}

static void take_in(Fuse *fuse, FuseUnit *unit, Node *n)
{
    vec_push(fuse->arena, unit->node, n);
    fuse->unit[n->id] = unit;
}

Node *joint_sum(const Fuse *fuse, const Node *n)
{
    Node *sum = only_user(fuse, n);

    if (!fuse->target->sums || n->op != Ogmm || !sum || sum->op != Oadd)
        return NULL;
    const Node *other = sum->in[sum->in[0] == n];
    return other->op == Ogmm && other != n && only_user(fuse, other) == sum &&
                   sum->dt == n->dt && other->again == n->again &&
                   same_section(n, sum) && same_section(other, sum) &&
                   same_order(n, sum) && same_order(other, sum) &&
                   fuse->target->sums(fuse->graph, n, other)
               ? sum
               : NULL;
}

/* Users of one of the products wait for their sum. */
static void take_in_sum(Fuse *fuse, FuseUnit *unit, const Node *n, Node *sum)
{
    take_in(fuse, unit, sum->in[sum->in[0] == n]);
    take_in(fuse, unit, sum);
    unit->last = unit->reach = sum->id;
}

/* Nodes in no kernel are rebuilt there too. */
static void take_in_update(Fuse *fuse, FuseUnit *unit, const Node *x)
{
    Node **member = product_update(fuse, x);

    for (size_t i = 0; i < vec_len(member); i++)
        if (!fuse->clear[member[i]->id] && member[i]->op != Opart)
            take_in(fuse, unit, member[i]);
}

static void place_product(Fuse *fuse, Node *n, Family fam)
{
    FuseUnit *u = new_unit(fuse, n, fam);
    Node *x = only_user(fuse, n);

    if (joint_sum(fuse, n))
        take_in_sum(fuse, u, n, x);
    if (!x || !feeds(fuse->graph, n, x))
        return;
    take_in(fuse, u, x);
    for (size_t i = 0; i < vec_len(fuse->user[x->id]); i++)
        if (fuse->user[x->id][i]->op == Osum_sq)
            take_in(fuse, u, fuse->user[x->id][i]);
    take_in_update(fuse, u, x);
}

static void place_all(Fuse *fuse)
{
    for (int i = 0; i < fuse->count; i++) {
        Node *n = fuse->graph->node[i];
        Family fam = family_of(fuse, n);
        n->mark = 0;
        if (!fuse->unit[i] && (fam == FAMgemm || fam == FAMgmm ||
                               fam == FAMgmm_wgrad || fam == FAMscatter))
            place_product(fuse, n, fam);
    }
    for (int i = 0; i < fuse->count; i++) {
        Node *n = fuse->graph->node[i];
        Family fam = family_of(fuse, n);
        if (fuse->unit[i] || fam == FAMnone || fuse->clear[i])
            continue;
        if (fam == FAMloop) {
            place_loop(fuse, n);
            continue;
        }
        FuseUnit *u = new_unit(fuse, n, fam);
        if (fuse->partner[i])
            take_in(fuse, u, fuse->partner[i]);
    }
}

/* ---- order --------------------------------------------------------------- */

static void wait_for(Fuse *fuse, FuseUnit *unit, Node *n)
{
    Operand *op = operands_of(fuse, n);

    for (size_t i = 0; i < vec_len(op); i++) {
        FuseUnit *v = unit_of(fuse, made_by(op[i].node));
        if (!v || v == unit)
            continue;
        vec_push(fuse->arena, v->next, unit);
        unit->wait++;
    }
    Node *p = fuse->before[n->id];
    if (p) {
        vec_push(fuse->arena, unit_of(fuse, p)->next, unit);
        unit->wait++;
    }
}

/* Returns the smallest last node of a kernel and its users: a kernel with a
 * late member must not delay its users. */
static int due(FuseUnit *unit)
{
    if (unit->due)
        return unit->due;
    unit->due = unit->last + 1;
    for (size_t i = 0; i < vec_len(unit->next); i++) {
        int next = due(unit->next[i]);
        unit->due = next < unit->due ? next : unit->due;
    }
    return unit->due;
}

/* Numbers kernels in order of execution: among those whose operands are
 * computed, the earliest due first. */
static void number_units(Fuse *fuse)
{
    Heap ready = { 0 };
    size_t left = 0;
    int number = 0;

    for (size_t i = 0; i < vec_len(fuse->all); i++) {
        FuseUnit *u = fuse->all[i];
        for (size_t k = 0; !u->into && k < vec_len(u->node); k++)
            wait_for(fuse, u, u->node[k]);
        left += !u->into;
    }
    for (size_t i = 0; i < vec_len(fuse->all); i++)
        for (size_t k = 0; k < vec_len(fuse->all[i]->before); k++) {
            vec_push(fuse->arena, unit_root(fuse->all[i]->before[k])->next,
                     fuse->all[i]);
            fuse->all[i]->wait++;
        }
    for (size_t i = 0; i < vec_len(fuse->all); i++)
        if (!fuse->all[i]->into && !fuse->all[i]->wait)
            heap_add(fuse->arena, &ready, due(fuse->all[i]),
                     fuse->all[i]->last);
    for (; ready.n; left--) {
        FuseUnit *u = unit_of(fuse, fuse->graph->node[heap_take(&ready).id]);
        number++;
        for (size_t i = 0; i < vec_len(u->node); i++)
            u->node[i]->kernel = number;
        for (size_t i = 0; i < vec_len(u->next); i++)
            if (!--u->next[i]->wait)
                heap_add(fuse->arena, &ready, due(u->next[i]),
                         u->next[i]->last);
    }
    if (left)
        die("fuse: %zu kernels wait for each other", left);
}

void pass_fuse(Graph *g)
{
    Arena *a = arena_new();
    Fuse f = fuse_begin(g, a);

    find_order(&f);
    place_all(&f);
    join_rounding(&f);
    join_writes(&f);
    number_units(&f);
    arena_free(a);
}
