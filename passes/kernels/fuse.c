/* fuse.c: group nodes into kernels.
 *
 * Nodes are taken in order. A loop node joins the kernel of an operand, or ties
 * several of them together, when one nest of loops can make them all and no
 * other kernel stands between; else it starts a kernel. What is used outside
 * its kernel is stored, the rest never reaches memory.
 *
 * Some nodes belong to no kernel, they are rebuilt wherever they are used:
 * views, constants, iota and what little is made of them only, broadcasts,
 * widening casts, windows, moves between tokens and rows, and small values that
 * kernels over rows read once a row.
 *
 * One nest: let O be the axes that all stored members and all reductions have.
 * O are the kernel's items. It must not be empty unless all are scalars, and
 * each stored member must have O as its slowest axes, so that an item is a run
 * of memory: a softmax or norm with what follows it is a kernel over rows, a
 * sum over the rows (a column sum) takes in only what nobody else needs. A
 * member read at a moved index (a window, a gather) may be rebuilt there only
 * if that repeats no costly work and no item needs another's results. No sum is
 * made at two indices: over other loops its terms come in another order, and a
 * value may be compared with what was made of it (the gradient of a maximum).
 *
 * A product takes in the accumulator that it feeds; a grouped one, where the
 * target can, another whose sum with it is all that is read. */
#include "kernels.h"

#include <string.h>

/* A kernel takes in no reader that stands farther off, in nodes other than
 * scalars: what all layers watch for (overflow_fallback.c) stands between a
 * loss and its gradient. A kernel runs where its last member stands: a sum that
 * an accumulator far behind took in would keep what it reads until then. */
enum { WINDOW = 160 };

/* What stages do together outside calls keeps the order in which it stands. */
static void find_order(Fuse *f)
{
    Node *last = NULL;

    for (int i = 0; i < f->count; i++) {
        Node *n = f->graph->node[i];
        if (!is_transfer(n) || n->call)
            continue;
        if (last && n_chan(last) > n_chan(n))
            die("fuse: %%%s stands after %%%s", n->name, last->name);
        f->before[i] = last;
        if (last)
            f->after[last->id] = n;
        last = n;
    }
}

/* ---- no kernel between --------------------------------------------------- */

/* Push what the kernel of n (or n itself) needs and the stamp has not seen. */
static void push_needs(Fuse *f, const Node *n, int stamp, Node ***stack)
{
    Operand *op = operands_of(f, n);

    for (size_t k = 0; k < vec_len(op); k++) {
        Node *p = op[k].node->op == Opart ? op[k].node->in[0] : op[k].node;
        if (f->seen[p->id] == stamp)
            continue;
        f->seen[p->id] = stamp;
        vec_push(f->arena, *stack, p);
    }
    Node *p = f->before[n->id];
    if (p && f->seen[p->id] != stamp) {
        f->seen[p->id] = stamp;
        vec_push(f->arena, *stack, p);
    }
}

static void raise_users(Fuse *f, const Node *n, int id);

/* u and what needs it now wait for the node of that id. A kernel that has been
 * made may need one that grows later. */
static void raise_reach(Fuse *f, FuseUnit *u, int id)
{
    if (u->reach >= id)
        return;
    u->reach = id;
    for (size_t i = 0; i < vec_len(u->node); i++)
        raise_users(f, u->node[i], id);
}

static void raise_users(Fuse *f, const Node *n, int id)
{
    for (size_t i = 0; i < vec_len(f->user[n->id]); i++) {
        Node *x = f->user[n->id][i];
        FuseUnit *u = unit_of(f, x);
        if (u)
            raise_reach(f, u, id);
        else if (x->id < id) /* passed by, not yet to come */
            raise_users(f, x, id);
    }
    Node *next = f->after[n->id];
    if (next && unit_of(f, next))
        raise_reach(f, unit_of(f, next), id);
}

/* Does a kernel outside the set need the set and lead to it? Walk back from
 * what the set reads; what reaches no further than to before the set's first
 * node cannot depend on it. */
static int has_detour(FuseSet *s, int first)
{
    Fuse *f = s->fuse;
    Node **stack = NULL;

    for (size_t i = 0; i < vec_len(s->node); i++)
        f->seen[s->node[i]->id] = s->stamp;
    for (size_t i = 0; i < vec_len(s->node); i++)
        push_needs(f, s->node[i], s->stamp, &stack);
    for (size_t i = 0; i < vec_len(s->node); i++)
        f->seen[s->node[i]->id] = 0;
    while (vec_len(stack)) {
        size_t at = vec_len(stack) - 1;
        Node *n = stack[at];
        ((VecHead *)(void *)stack)[-1].len = at;
        if (set_has(s, n))
            return 1;
        FuseUnit *u = unit_of(f, n);
        if (!u || u->reach < first)
            continue;
        for (size_t k = 0; k < vec_len(u->node); k++) {
            f->seen[u->node[k]->id] = s->stamp;
            push_needs(f, u->node[k], s->stamp, &stack);
        }
    }
    return 0;
}

/* ---- joining ------------------------------------------------------------- */

static FuseUnit *new_unit(Fuse *f, Node *n, Family fam)
{
    FuseUnit *u = alloc(f->arena, sizeof *u);

    *u = (FuseUnit){ .fam = fam,
                     .reg = n->reg,
                     .call = n->call,
                     .last = n->id,
                     .reach = n->id,
                     .again = n->again };
    vec_push(f->arena, u->node, n);
    vec_push(f->arena, f->all, u);
    f->unit[n->id] = u;
    return u;
}

static void add_members(FuseSet *s, FuseUnit *u)
{
    for (size_t i = 0; i < vec_len(u->node); i++) {
        Node *n = u->node[i];
        size_t k = vec_len(s->node);
        vec_push(s->fuse->arena, s->node, n);
        for (; k > 0 && s->node[k - 1]->id > n->id; k--)
            s->node[k] = s->node[k - 1];
        s->node[k] = n;
    }
}

/* Null when n and the units can be one kernel, else why not. */
static const char *cannot_join(Fuse *f, FuseUnit *const *u, int nu, Node *n)
{
    FuseSet s = { .fuse = f, .stamp = ++f->stamp };

    for (int i = 0; i < nu; i++) {
        u[i]->seen = s.stamp;
        add_members(&s, u[i]);
    }
    vec_push(f->arena, s.node, n);
    if (is_large(&s))
        return "the kernel would be too large";
    const char *no = one_nest(&s);
    if (no)
        return no;
    return has_detour(&s, s.node[0]->id) ? "another kernel stands between"
                                         : NULL;
}

static int same_call(const FuseUnit *u, const Node *n)
{
    return u->reg == n->reg && u->call == n->call;
}

/* What is recomputed for the backward must not be made, and stored, by a
 * forward kernel. Kernels of n's operands, the latest first. */
static int candidates(Fuse *f, Node *n, FuseUnit **out, int max)
{
    Operand *op = operands_of(f, n);
    int k = 0;

    for (size_t i = 0; i < vec_len(op); i++) {
        FuseUnit *u = unit_of(f, op[i].node);
        int known = 0;
        for (int j = 0; j < k; j++)
            known |= out[j] == u;
        if (!u || known || u->fam != FAMloop || !same_call(u, n) || k == max ||
            f->place[n->id] - f->place[u->last] > WINDOW ||
            (n->again && !u->again))
            continue;
        int at = k++;
        for (; at > 0 && out[at - 1]->last < u->last; at--)
            out[at] = out[at - 1];
        out[at] = u;
    }
    return k;
}

static void tie(Fuse *f, FuseUnit *const *u, int nu, Node *n)
{
    FuseSet s = { .fuse = f };
    FuseUnit *to = u[0];

    for (int i = 0; i < nu; i++) {
        add_members(&s, u[i]);
        to->again |= u[i]->again;
        if (i)
            u[i]->into = to;
    }
    vec_push(f->arena, s.node, n);
    to->node = s.node;
    to->last = n->id;
    to->again |= n->again;
    f->unit[n->id] = to;
    raise_reach(f, to, n->id);
}

static void place_loop(Fuse *f, Node *n)
{
    enum { TRY = 8 };
    FuseUnit *cand[TRY], *take[TRY];
    int nc = n->op == Owrite ? 0 : candidates(f, n, cand, TRY), nt = 0;

    for (int i = 0; i < nc; i++) {
        take[nt] = cand[i];
        const char *no = cannot_join(f, take, nt + 1, n);
        if (no)
            why(f->graph, n, "%s reads %%%s from memory: %s", optab[n->op].name,
                cand[i]->node[vec_len(cand[i]->node) - 1]->name, no);
        else
            nt++;
    }
    if (nt)
        tie(f, take, nt, n);
    else
        new_unit(f, n, FAMloop);
}

/* ---- writes -------------------------------------------------------------- */

/* Does n read the state, by what mark_readers() has marked? */
static int reads_state(const FuseSet *s, Node *n, const Node *state)
{
    return storage(n) == state || s->fuse->seen[n->id] == s->stamp;
}

/* Marks the nodes of the set that read the state, by others of it too. */
static void mark_readers(const FuseSet *s, const Node *state)
{
    for (int more = 1; more;) {
        more = 0;
        for (size_t i = 0; i < vec_len(s->node); i++) {
            const Node *n = s->node[i];
            Operand *op = operands_of(s->fuse, n);
            for (size_t k = 0; k < vec_len(op); k++) {
                if (s->fuse->seen[n->id] == s->stamp ||
                    !reads_state(s, op[k].node, state))
                    continue;
                s->fuse->seen[n->id] = s->stamp;
                more = 1;
            }
        }
    }
}

/* A state is written in place by the kernel that makes its value when that is a
 * plain map, which reads no other element of the state than the one it writes,
 * and no other kernel must both follow it and read the old value. */
static int is_plain_map(Fuse *f, FuseUnit *u, const Node *state)
{
    FuseSet s = { .fuse = f, .node = u->node, .stamp = ++f->stamp };
    AxisSet t = axes_here(f->graph, state);

    u->seen = s.stamp;
    mark_readers(&s, state);
    for (size_t i = 0; i < vec_len(u->node); i++) {
        const Node *n = u->node[i];
        Operand *op = operands_of(f, n);
        AxisSet q = axes_here(f->graph, layout_of(n));
        if (is_reduction(n) ||
            (is_stored(&s, n) &&
             (q.n != t.n || !axes_lead(f->graph, &q, state))))
            return 0;
        for (size_t k = 0; k < vec_len(op); k++)
            if (op[k].moved && reads_state(&s, op[k].node, state))
                return 0;
    }
    return 1;
}

/* Must v run after u? By operands, and by what has been decided about
 * writes. */
static int depends(Fuse *f, FuseUnit *v, const FuseUnit *u)
{
    int stamp = ++f->stamp;
    FuseUnit **stack = NULL;

    vec_push(f->arena, stack, v);
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
            vec_push(f->arena, stack, x->before[i]);
        for (size_t i = 0; i < vec_len(x->node); i++) {
            Operand *op = operands_of(f, x->node[i]);
            for (size_t k = 0; k < vec_len(op); k++) {
                const Node *p = op[k].node;
                FuseUnit *y = unit_of(f, p->op == Opart ? p->in[0] : p);
                if (y && y->seen != stamp)
                    vec_push(f->arena, stack, y);
            }
            Node *p = f->before[x->node[i]->id];
            if (p)
                vec_push(f->arena, stack, unit_of(f, p));
        }
    }
    return 0;
}

/* Kernels of u's region, other than u, that read the state. */
static void add_readers(Fuse *f, const Node *n, const FuseUnit *u,
                        FuseUnit ***out)
{
    for (size_t i = 0; i < vec_len(f->user[n->id]); i++) {
        Node *x = f->user[n->id][i];
        FuseUnit *v = unit_of(f, x);
        if (passes_by(f, x))
            add_readers(f, x, u, out);
        else if (v && v != u && v->reg == u->reg &&
                 !(x->op == Owrite && x->in[0] == n))
            vec_push(f->arena, *out, v);
    }
}

/* Can u, which makes the value of the write n, write the state too? */
static int may_write(Fuse *f, Node *n, FuseUnit *u, FuseUnit *const *reader)
{
    if (passes_by(f, n->in[1]) || !u || u->fam != FAMloop || !same_call(u, n) ||
        vec_len(u->node) >= MOSTNODES || !is_plain_map(f, u, storage(n->in[0])))
        return 0;
    for (size_t i = 0; i < vec_len(reader); i++)
        if (reader[i] != u && depends(f, reader[i], u))
            return 0;
    return 1;
}

/* What reads a state runs before the kernel that writes it, whichever that
 * is. */
static void join_write(Fuse *f, Node *n)
{
    FuseUnit *own = unit_of(f, n), *u = unit_of(f, n->in[1]), **reader = NULL;

    add_readers(f, storage(n->in[0]), own, &reader);
    FuseUnit *writer = may_write(f, n, u, reader) ? u : own;
    for (size_t i = 0; i < vec_len(reader); i++)
        if (reader[i] != writer)
            vec_push(f->arena, writer->before, reader[i]);
    if (writer == own)
        return;
    own->into = u;
    vec_push(f->arena, u->node, n);
    if (n->id > u->last)
        u->last = n->id;
}

static void join_writes(Fuse *f)
{
    for (int i = 0; i < f->count; i++)
        if (f->graph->node[i]->op == Owrite)
            join_write(f, f->graph->node[i]);
}

/* ---- products and the rest ----------------------------------------------- */

static Node *only_user(const Fuse *f, const Node *n)
{
    return vec_len(f->user[n->id]) == 1 ? f->user[n->id][0] : NULL;
}

static int same_place(const Node *x, const Node *y)
{
    return x->reg == y->reg && x->call == y->call;
}

static void take_in(Fuse *f, FuseUnit *u, Node *n)
{
    vec_push(f->arena, u->node, n);
    f->unit[n->id] = u;
}

Node *joint_sum(const Fuse *f, const Node *n)
{
    Node *sum = only_user(f, n);

    if (!f->target->sums || n->op != Ogmm || !sum || sum->op != Oadd)
        return NULL;
    const Node *other = sum->in[sum->in[0] == n];
    return other->op == Ogmm && other != n && only_user(f, other) == sum &&
                   sum->dt == n->dt && other->again == n->again &&
                   same_place(n, sum) && same_place(other, sum) &&
                   same_order(n, sum) && same_order(other, sum) &&
                   f->target->sums(f->graph, n, other)
               ? sum
               : NULL;
}

/* All that waits for one of the products waits for their sum. */
static void take_in_sum(Fuse *f, FuseUnit *u, const Node *n, Node *sum)
{
    take_in(f, u, sum->in[sum->in[0] == n]);
    take_in(f, u, sum);
    u->last = u->reach = sum->id;
}

static void place_product(Fuse *f, Node *n, Family fam)
{
    FuseUnit *u = new_unit(f, n, fam);
    Node *x = only_user(f, n);

    if (joint_sum(f, n))
        take_in_sum(f, u, n, x);
    if (!x || !feeds(f->graph, n, x))
        return;
    take_in(f, u, x);
    for (size_t i = 0; i < vec_len(f->user[x->id]); i++)
        if (f->user[x->id][i]->op == Osum_sq)
            take_in(f, u, f->user[x->id][i]);
}

static void place_all(Fuse *f)
{
    for (int i = 0; i < f->count; i++) {
        Node *n = f->graph->node[i];
        Family fam = family_of(f, n);
        n->mark = 0;
        if (!f->unit[i] && (fam == FAMgemm || fam == FAMgmm ||
                            fam == FAMgmm_wgrad || fam == FAMscatter))
            place_product(f, n, fam);
    }
    for (int i = 0; i < f->count; i++) {
        Node *n = f->graph->node[i];
        Family fam = family_of(f, n);
        if (f->unit[i] || fam == FAMnone || f->clear[i])
            continue;
        if (fam == FAMloop) {
            place_loop(f, n);
            continue;
        }
        FuseUnit *u = new_unit(f, n, fam);
        if (f->partner[i])
            take_in(f, u, f->partner[i]);
    }
}

/* ---- order --------------------------------------------------------------- */

static void wait_for(Fuse *f, FuseUnit *u, Node *n)
{
    Operand *op = operands_of(f, n);

    for (size_t i = 0; i < vec_len(op); i++) {
        Node *p = op[i].node;
        FuseUnit *v = unit_of(f, p->op == Opart ? p->in[0] : p);
        if (!v || v == u)
            continue;
        vec_push(f->arena, v->next, u);
        u->wait++;
    }
    Node *p = f->before[n->id];
    if (p) {
        vec_push(f->arena, unit_of(f, p)->next, u);
        u->wait++;
    }
}

/* The earliest last node of a kernel and of what waits for it: one that took in
 * a late node keeps nobody waiting. */
static int due(FuseUnit *u)
{
    if (u->due)
        return u->due;
    u->due = u->last + 1;
    for (size_t i = 0; i < vec_len(u->next); i++) {
        int next = due(u->next[i]);
        u->due = next < u->due ? next : u->due;
    }
    return u->due;
}

/* Kernels whose operands are there, those that are due earliest first. */
static void number_units(Fuse *f)
{
    Heap ready = { 0 };
    size_t left = 0;
    int number = 0;

    for (size_t i = 0; i < vec_len(f->all); i++) {
        FuseUnit *u = f->all[i];
        for (size_t k = 0; !u->into && k < vec_len(u->node); k++)
            wait_for(f, u, u->node[k]);
        left += !u->into;
    }
    for (size_t i = 0; i < vec_len(f->all); i++)
        for (size_t k = 0; k < vec_len(f->all[i]->before); k++) {
            vec_push(f->arena, unit_root(f->all[i]->before[k])->next,
                     f->all[i]);
            f->all[i]->wait++;
        }
    for (size_t i = 0; i < vec_len(f->all); i++)
        if (!f->all[i]->into && !f->all[i]->wait)
            heap_add(f->arena, &ready, due(f->all[i]), f->all[i]->last);
    for (; ready.n; left--) {
        FuseUnit *u = unit_of(f, f->graph->node[heap_take(&ready).id]);
        number++;
        for (size_t i = 0; i < vec_len(u->node); i++)
            u->node[i]->kernel = number;
        for (size_t i = 0; i < vec_len(u->next); i++)
            if (!--u->next[i]->wait)
                heap_add(f->arena, &ready, due(u->next[i]), u->next[i]->last);
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
    join_writes(&f);
    number_units(&f);
    arena_free(a);
}
