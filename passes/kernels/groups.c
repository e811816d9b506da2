/* groups.c: builds the kernels defined by Node.kernel, with the values that
 * each reads and stores. fuse.c assigns the numbers, sched.c renumbers in
 * execution order. */
#include "kernels.h"

static void add_once(Arena *a, Node ***v, int *n, Node *x)
{
    for (int i = 0; i < *n; i++)
        if ((*v)[i] == x)
            return;
    vec_push(a, *v, x);
    ++*n;
}

static void add_inputs(Fuse *fuse, Group *group, FuseUnit *unit, Node *n)
{
    Operand *op = operands_of(fuse, n);

    for (size_t i = 0; i < vec_len(op); i++)
        if (unit_of(fuse, made_by(op[i].node)) != unit)
            add_once(fuse->arena, &group->in, &group->nin, viewed(op[i].node));
}

/* Returns the write of the kernel that stores the part; null: none. */
static Node *write_of(const Group *group, const Node *part)
{
    for (int i = 1; i < group->n; i++)
        if (group->node[i]->op == Owrite && group->node[i]->in[1] == part)
            return group->node[i];
    return NULL;
}

/* Adds the results of a node with several: its parts, or their writes. */
static void add_parts(Fuse *fuse, Group *group, Node *n)
{
    for (size_t i = 0; i < vec_len(fuse->user[n->id]); i++) {
        Node *part = fuse->user[n->id][i];
        Node *w = write_of(group, part);
        if (part->op == Opart)
            add_once(fuse->arena, &group->out, &group->nout, w ? w : part);
    }
}

/* Is member i stored? A product with an accumulator stores the accumulator, two
 * products their sum, an update its writes. */
static int is_result(const Group *group, int i)
{
    const Node *n = group->node[i];

    if (group->fam == FAMgmm)
        return i + 1 == group->n;
    return group_updates(group) ? optab[n->op].cls == SINK && n->op != Oaccum
                                : i > 0 || group->n == 1;
}

static void add_results(Fuse *fuse, Group *group, FuseUnit *unit)
{
    FuseSet s = { .fuse = fuse, .stamp = ++fuse->stamp, .node = unit->node };

    unit->seen = s.stamp;
    for (size_t i = 0; i < vec_len(unit->node); i++) {
        Node *n = unit->node[i];
        if (unit->fam == FAMblocks && n->op == Oquantize_blocks)
            add_parts(fuse, group, n);
        else if (unit->fam == FAMloop || unit->fam == FAMblocks
                     ? is_stored(&s, n)
                     : is_result(group, (int)i))
            add_once(fuse->arena, &group->out, &group->nout, n);
    }
}

static Group *group_of(Fuse *fuse, FuseUnit *unit)
{
    Group *k = alloc(fuse->arena, sizeof *k);

    k->fam = unit->fam;
    k->reg = unit->reg;
    k->call = unit->call;
    k->host = unit->node[0]->host;
    k->n = (int)vec_len(unit->node);
    k->node = unit->node;
    for (int i = 0; i < k->n; i++) {
        add_inputs(fuse, k, unit, unit->node[i]);
        if (unit->node[i]->map)
            k->map = unit->node[i]->map;
    }
    if (unit->fam == FAMattn || unit->fam == FAMattn_bwd)
        add_parts(fuse, k, unit->node[0]);
    else
        add_results(fuse, k, unit);
    return k;
}

static void add_member(Fuse *fuse, FuseUnit **unit, Node *n)
{
    FuseUnit *fuse_unit = unit[n->kernel];

    if (!fuse_unit) {
        fuse_unit = unit[n->kernel] = alloc(fuse->arena, sizeof *fuse_unit);
        *fuse_unit = (FuseUnit){ .fam = family_of(fuse, n),
                                 .reg = n->reg,
                                 .call = n->call };
    }
    if (n->op == Oquantize_blocks && fuse_unit->fam == FAMloop)
        fuse_unit->fam = FAMblocks;
    vec_push(fuse->arena, fuse_unit->node, n);
    fuse->unit[n->id] = fuse_unit;
}

static int count_kernels(const Graph *g)
{
    int most = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->kernel > most)
            most = g->node[i]->kernel;
    return most;
}

/* Returns kernels by number, null: unused number. Members are in graph order,
 * followed by writes, which fuse adds last. */
static FuseUnit **units_of(Fuse *fuse, int n)
{
    FuseUnit **unit = alloc(fuse->arena, ((size_t)n + 1) * sizeof *unit);

    for (int write = 0; write < 2; write++)
        for (int i = 0; i < fuse->count; i++)
            if (fuse->graph->node[i]->kernel &&
                (fuse->graph->node[i]->op == Owrite) == write)
                add_member(fuse, unit, fuse->graph->node[i]);
    return unit;
}

static int in_joint_sum(const Node *sum, const Node *n)
{
    return sum && (n == sum || n == sum->in[0] || n == sum->in[1]);
}

/* Is n in the update that is fused with product `first`? */
static int in_update(Fuse *fuse, const Node *first, const Node *n)
{
    Node **user = fuse->user[first->id];
    Node **member = vec_len(user) ? product_update(fuse, user[0]) : NULL;

    for (size_t i = 0; i < vec_len(member); i++)
        if (member[i] == n)
            return 1;
    return 0;
}

/* Returns null, or the reason why n cannot be in a kernel with this unit. */
static const char *member_wrong(Fuse *fuse, FuseUnit *unit, const Node *n)
{
    const Node *first = unit->node[0];

    if (n->op == Oquantize_blocks && n != first && unit->fam == FAMblocks)
        return may_round(fuse, unit, n) ? NULL
                                        : "that does not make whole blocks";
    if (unit->fam != FAMloop && unit->fam != FAMblocks)
        return n == first || fuse->partner[first->id] == n ||
                       feeds(fuse->graph, first, n) || n->op == Osum_sq ||
                       in_joint_sum(joint_sum(fuse, first), n) ||
                       in_update(fuse, first, n)
                   ? NULL
                   : strf(fuse->arena,
                          "a kernel of %s takes in only what adds it up",
                          optab[first->op].name);
    if (n->op == Owrite && n != first)
        return unit_of(fuse, made_by(n->in[1])) == unit
                   ? NULL
                   : "it does not make what it writes";
    return n == first || family_of(fuse, n) == FAMloop
               ? NULL
               : "it is no loop as that is";
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
            if (who->op != Owrite && who->op != Oquantize_blocks)
                vec_push(a, s.node, u->node[i]);
        }
        if (u && !why && (u->fam == FAMloop || u->fam == FAMblocks) && s.node)
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
