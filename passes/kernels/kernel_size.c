/* kernel_size.c: estimates the length of a kernel's text.
 *
 * A member that is read at several indices is printed once for each
 * (codegen/loop/loop.c), and so are its operands: a chain of concats of a value
 * with itself has twice as many copies of its first member as of its second. So
 * copies are counted, not members. A copy is identified by the moves between
 * the member and the stored value; two paths with the same moves are one
 * copy. */
#include "kernels.h"

enum { MOSTAXES = 20, MOSTCOPIES = 256 };

/* Indices at which members are read: lists in one array. */
typedef struct ReadSites {
    int n, first[MOSTNODES]; /* [member]: 1 + number of a copy */
    struct {
        uint64_t path;
        int next;
    } at[MOSTCOPIES];
} ReadSites;

static int count_axes(const FuseSet *set)
{
    const Axis *a[MOSTNODES * MAXD];
    int n = 0;

    for (size_t i = 0; i < vec_len(set->node); i++) {
        const Node *x = space_of(set->node[i]);
        for (int d = 0; d < x->nd; d++) {
            int k = 0;
            while (k < n && a[k] != x->dim[d].a)
                k++;
            a[k] = x->dim[d].a;
            n += k == n;
        }
    }
    return n;
}

static int member_at(const FuseSet *set, const Node *n)
{
    int i = (int)vec_len(set->node);

    while (i-- > 0 && set->node[i] != n)
        ;
    return i;
}

/* Adds a copy. Returns 0 if there are too many. */
static int add_copy(ReadSites *sites, int member, uint64_t path)
{
    for (int i = sites->first[member]; i; i = sites->at[i - 1].next)
        if (sites->at[i - 1].path == path)
            return 1;
    if (sites->n == MOSTCOPIES)
        return 0;
    sites->at[sites->n].path = path;
    sites->at[sites->n].next = sites->first[member];
    sites->first[member] = ++sites->n;
    return 1;
}

/* Returns the path at which a copy of n at `path` reads operand. A sum has its
 * own loops, and other ones if the index already uses these. */
static uint64_t further(const Node *n, uint64_t path, const Operand *operand)
{
    uint64_t p = path && is_reduction(n) ? mix64(path, (uint64_t)n->op) : path;

    return operand->path ? mix64(p, operand->path) : p;
}

static int copies_fit(const FuseSet *set)
{
    ReadSites c = { 0 };

    for (int m = (int)vec_len(set->node); m-- > 0;) { /* users first */
        const Node *n = set->node[m];
        Operand *op = operands_of(set->fuse, n);
        if (is_stored(set, n) && !add_copy(&c, m, 0))
            return 0;
        for (size_t k = 0; k < vec_len(op); k++) {
            int to = set_has(set, op[k].node) ? member_at(set, op[k].node) : -1;
            for (int i = c.first[m]; i && to >= 0; i = c.at[i - 1].next) {
                if (!add_copy(&c, to, further(n, c.at[i - 1].path, &op[k])))
                    return 0;
            }
        }
    }
    return 1;
}

int is_large(const FuseSet *set)
{
    return vec_len(set->node) > MOSTNODES || count_axes(set) > MOSTAXES ||
           !copies_fit(set);
}
