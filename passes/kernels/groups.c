/* groups.c: the kernels that nodes say they belong to (Node.kernel), with what
 * each reads and stores. fuse.c gives the numbers, sched.c others, in the order
 * in which kernels run. */
#include "kernels.h"

static void add_once(Arena *a, Node ***v, int *n, Node *x)
{
    for (int i = 0; i < *n; i++)
        if ((*v)[i] == x)
            return;
    vec_push(a, *v, x);
    ++*n;
}

static void add_inputs(Fuse *f, Group *k, FuseUnit *u, Node *n)
{
    Operand *op = operands_of(f, n);

    for (size_t i = 0; i < vec_len(op); i++)
        if (unit_of(f, op[i].node) != u)
            add_once(f->arena, &k->in, &k->nin, viewed(op[i].node));
}

/* Of a product with its accumulator the latter is stored, of two products their
 * sum. */
static void add_results(Fuse *f, Group *k, FuseUnit *u)
{
    FuseSet s = { .fuse = f, .stamp = ++f->stamp, .node = u->node };

    u->seen = s.stamp;
    for (size_t i = 0; i < vec_len(u->node); i++) {
        Node *n = u->node[i];
        if (u->fam == FAMloop  ? is_stored(&s, n)
            : u->fam == FAMgmm ? (int)i + 1 == k->n
                               : i > 0 || k->n == 1)
            add_once(f->arena, &k->out, &k->nout, n);
    }
}

/* Results of a node with several are its parts. */
static void add_parts(Fuse *f, Group *k, Node *n)
{
    k->out = NULL;
    k->nout = 0;
    for (size_t i = 0; i < vec_len(f->user[n->id]); i++)
        if (f->user[n->id][i]->op == Opart)
            add_once(f->arena, &k->out, &k->nout, f->user[n->id][i]);
}

static Group *group_of(Fuse *f, FuseUnit *u)
{
    Group *k = alloc(f->arena, sizeof *k);

    k->fam = u->fam;
    k->reg = u->reg;
    k->call = u->call;
    k->n = (int)vec_len(u->node);
    k->node = u->node;
    for (int i = 0; i < k->n; i++) {
        add_inputs(f, k, u, u->node[i]);
        if (u->node[i]->map)
            k->map = u->node[i]->map;
    }
    add_results(f, k, u);
    if (u->fam == FAMattn || u->fam == FAMattn_bwd || u->fam == FAMblocks)
        add_parts(f, k, u->node[0]);
    return k;
}

static void add_member(Fuse *f, FuseUnit **unit, Node *n)
{
    FuseUnit *u = unit[n->kernel];

    if (!u) {
        u = unit[n->kernel] = alloc(f->arena, sizeof *u);
        *u = (FuseUnit){ .fam = family_of(f, n),
                         .reg = n->reg,
                         .call = n->call };
    }
    vec_push(f->arena, u->node, n);
    f->unit[n->id] = u;
}

static int count_kernels(const Graph *g)
{
    int most = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->kernel > most)
            most = g->node[i]->kernel;
    return most;
}

/* By number, null where there is none. Members stand in the graph's order;
 * writes, which fuse adds last, behind. */
static FuseUnit **units_of(Fuse *f, int n)
{
    FuseUnit **unit = alloc(f->arena, ((size_t)n + 1) * sizeof *unit);

    for (int write = 0; write < 2; write++)
        for (int i = 0; i < f->count; i++)
            if (f->graph->node[i]->kernel &&
                (f->graph->node[i]->op == Owrite) == write)
                add_member(f, unit, f->graph->node[i]);
    return unit;
}

static int in_joint_sum(const Node *sum, const Node *n)
{
    return sum && (n == sum || n == sum->in[0] || n == sum->in[1]);
}

/* Null, or why n cannot be in that kernel, whatever else is. */
static const char *member_wrong(const Fuse *f, const FuseUnit *u, const Node *n)
{
    const Node *first = u->node[0];

    if (u->fam != FAMloop)
        return n == first || f->partner[first->id] == n ||
                       feeds(f->graph, first, n) || n->op == Osum_sq ||
                       in_joint_sum(joint_sum(f, first), n)
                   ? NULL
                   : strf(f->arena,
                          "a kernel of %s takes in only what adds it up",
                          optab[first->op].name);
    if (n->op == Owrite && n != first)
        return unit_of(f, n->in[1]) == u ? NULL
                                         : "it does not make what it writes";
    return family_of(f, n) == FAMloop ? NULL : "it is no loop as that is";
}

void check_kernels(Graph *g)
{
    Arena *a = arena_new();
    Fuse f = fuse_again(g, a);
    int n = count_kernels(g);
    FuseUnit **unit = units_of(&f, n);

    for (int k = 1; k <= n; k++) {
        FuseUnit *u = unit[k];
        FuseSet s = { .fuse = &f, .stamp = ++f.stamp };
        const char *why = NULL;
        const Node *who = NULL;
        for (size_t i = 0; u && !why && i < vec_len(u->node); i++) {
            who = u->node[i];
            u->seen = s.stamp;
            why = member_wrong(&f, u, who);
            if (who->op != Owrite)
                vec_push(a, s.node, u->node[i]);
        }
        if (u && !why && u->fam == FAMloop && s.node)
            why = one_nest(&s);
        if (why)
            err(who->loc, "%s: %%%s cannot be in kernel=%d with %%%s: %s",
                programnames[g->prog], who->name, k, u->node[0]->name, why);
    }
    arena_free(a);
}

Group **groups_of(Graph *g, Arena *a)
{
    Fuse f = fuse_again(g, a);
    int n = count_kernels(g);
    FuseUnit **unit = units_of(&f, n);
    Group **out = NULL;

    for (int i = 1; i <= n; i++)
        if (unit[i])
            vec_push(a, out, group_of(&f, unit[i]));
    return out;
}
