/* row_copies.c: replicates the computation on rows for the rows of other maps,
 * and adds the results where rows become tokens again:
 *
 *     %r = dispatch %x %m                %r  = dispatch %x %m0
 *     %y = gmm %r %w %m                  %y  = gmm %r %w %m0
 *     %u = combine %y %m       =>        %u  = combine %y %m0
 *     %o = sum %u top                    %o  = sum %u top
 *                                        %r1 = dispatch %x %m1 ..
 *                                        %s  = add %o %o1
 *
 * Each pair has a row in one of the maps, so only zeros are added. */
#include "model.h"

/* Updates the lists of users with nodes made since the last call. */
static void list_users(RowCopies *copies)
{
    const Graph *g = copies->graph;

    for (size_t i = vec_len(copies->user); i < vec_len(g->node); i++) {
        vec_push(copies->arena, copies->user, NULL);
        for (int k = 0; k < g->node[i]->nin; k++)
            vec_push(copies->arena, copies->user[g->node[i]->in[k]->id],
                     g->node[i]);
    }
}

/* Returns n if it converts rows to tokens, or the sum over choices right after
 * it; null: it does not. */
static Node *way_out(const RowCopies *copies, Node *n)
{
    Node **user = copies->user[n->id];

    return vec_len(user) == 1 && user[0]->op == Osum ? user[0] : n;
}

/* Copies n and its operands in rows of map `of` to rows of `map`. to: node ->
 * copy; instead: replacements of operands that are not rows, or null. */
static Node *copy_rows(Graph *g, Node *n, const Node *of, Node *map, Table *to,
                       Table *instead)
{
    Node *in[MAXIN], *known = table_get(to, KEYP(n));
    int any = 0;

    if (n == of)
        return map;
    if (known)
        return known;
    for (int k = 0; k < n->nin; k++) {
        int rows = n->in[k] == of || n->in[k]->map == of ||
                   (n->in[k]->op == Ocombine && n->op == Osum);
        Node *other = instead ? table_get(instead, KEYP(n->in[k])) : NULL;
        in[k] = rows    ? copy_rows(g, n->in[k], of, map, to, instead)
                : other ? other
                        : n->in[k];
        any |= rows;
    }
    if (!any && n->map != of)
        return n;
    Node *c = g_copyof(g, n, in);
    if (n->map == of)
        c->map = map;
    *table_at(to, KEYP(n)) = c;
    return c;
}

static Node *sum_of_copies(const RowCopies *copies, Node *out, Node *const *map,
                           int n, Table *instead)
{
    Graph *g = copies->graph;
    Node *sum = out;

    for (int k = 1; k < n; k++) {
        Node *c = copy_rows(g, out, map[0], map[k], table_new(copies->arena),
                            instead);
        sum = g_placed(g_ew(g, Oadd, out->loc, sum, c, NULL), out);
    }
    return sum;
}

/* Replaces x by `by` in its listed users. */
static void replace_uses(RowCopies *copies, const Node *x, Node *by)
{
    Node **user = copies->user[x->id];

    copies->user[x->id] = NULL;
    list_users(copies);
    for (size_t i = 0; i < vec_len(user); i++) {
        for (int k = 0; k < user[i]->nin; k++)
            if (user[i]->in[k] == x)
                user[i]->in[k] = by;
        vec_push(copies->arena, copies->user[by->id], user[i]);
    }
}

void sum_rows_of_maps(RowCopies *copies, Node *const *map, int n,
                      Table *instead)
{
    const Node *m = map[0];

    list_users(copies);
    Node **user = copies->user[m->id];
    for (size_t i = 0, count = vec_len(user); i < count; i++) {
        if (user[i]->op != Ocombine || user[i]->in[1] != m)
            continue;
        Node *out = way_out(copies, user[i]);
        replace_uses(copies, out, sum_of_copies(copies, out, map, n, instead));
        user = copies->user[m->id];
    }
}
