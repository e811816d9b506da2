/* kernel_size.c: how large a kernel's text would be.
 *
 * A member that is read at several indices is written out once for each
 * (codegen/loop/loop.c), and so is what it reads: a chain of concats of a value
 * with itself has twice as many copies of its first member as of its second. So
 * the copies are counted, not the members. A copy is known by the moves between
 * the member and what is stored; two ways with the same moves are one copy. */
#include "kernels.h"

enum { MOSTAXES = 20, MOSTCOPIES = 256 };

/* Places at which members are read: lists in one array. */
typedef struct ReadSites {
    int n, first[MOSTNODES]; /* by member: 1 + number of a copy */
    struct {
        uint64_t path;
        int next;
    } at[MOSTCOPIES];
} ReadSites;

static int count_axes(const FuseSet *s)
{
    const Axis *a[MOSTNODES * MAXD];
    int n = 0;

    for (size_t i = 0; i < vec_len(s->node); i++) {
        const Node *x = space_of(s->node[i]);
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

static int member_at(const FuseSet *s, const Node *n)
{
    int i = (int)vec_len(s->node);

    while (i-- > 0 && s->node[i] != n)
        ;
    return i;
}

/* 0 when there is no room for it. */
static int add_copy(ReadSites *c, int member, uint64_t path)
{
    for (int i = c->first[member]; i; i = c->at[i - 1].next)
        if (c->at[i - 1].path == path)
            return 1;
    if (c->n == MOSTCOPIES)
        return 0;
    c->at[c->n].path = path;
    c->at[c->n].next = c->first[member];
    c->first[member] = ++c->n;
    return 1;
}

/* Where a copy of n at `path` reads o. A sum has loops of its own, others where
 * the index has taken the usual ones. */
static uint64_t further(const Node *n, uint64_t path, const Operand *o)
{
    uint64_t p = path && is_reduction(n) ? mix64(path, (uint64_t)n->op) : path;

    return o->path ? mix64(p, o->path) : p;
}

static int copies_fit(const FuseSet *s)
{
    ReadSites c = { 0 };

    for (int m = (int)vec_len(s->node); m-- > 0;) { /* users first */
        const Node *n = s->node[m];
        Operand *op = operands_of(s->fuse, n);
        if (is_stored(s, n) && !add_copy(&c, m, 0))
            return 0;
        for (size_t k = 0; k < vec_len(op); k++) {
            int to = set_has(s, op[k].node) ? member_at(s, op[k].node) : -1;
            for (int i = c.first[m]; i && to >= 0; i = c.at[i - 1].next) {
                if (!add_copy(&c, to, further(n, c.at[i - 1].path, &op[k])))
                    return 0;
            }
        }
    }
    return 1;
}

int is_large(const FuseSet *s)
{
    return vec_len(s->node) > MOSTNODES || count_axes(s) > MOSTAXES ||
           !copies_fit(s);
}
