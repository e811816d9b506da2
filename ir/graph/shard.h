/* shard.h: sharding types. Over each atom of the ranks (mesh.c) a value is
 * whole, cut, or terms of a sum (struct Shard); its type is MAXATOM of these.
 * A part of ir.h, which includes it behind what it speaks of. */
#ifndef PLEAT_SHARD_H
#define PLEAT_SHARD_H

/* ---- shard.c ------------------------------------------------------------- */

static inline int same_shard(const Shard *x, const Shard *y)
{
    return x->k == y->k && (x->k != S || x->a == y->a) &&
           (x->k != P || x->op == y->op);
}
/* A type as nodes of a graph have it: equal types are one object, whose shards
 * are plain (no axis but of S, no reduction but of P). Nothing is cut or
 * partial: whole_type. */
extern const Shard whole_type[MAXATOM];
const Shard *g_type(Graph *g, const Shard *sh);
/* The same type of what has axis b where that has a. */
const Shard *g_type_along(Graph *g, const Shard *sh, const Axis *a, Axis *b);
int same_type(const Shard *x, const Shard *y);

/* ---- sharding_rules.c: how an op may be cut ------------------------------ */

/* One way to run a node over one atom: what it makes of which operand types. */
typedef struct ShardStrategy {
    Shard out, in[MAXIN];
} ShardStrategy;
enum { MAXWAY = 48 };
/* All ways, whatever the sizes; those of the node's class first by its axes.
 * Sources and collectives have none. */
int ways(const Graph *g, const Node *n, int atom, ShardStrategy *strategy);
/* Null when each operand's type is what some way of n asks for and n's type
 * what it makes; otherwise what is wrong. For graphs at level LOCAL. */
const char *type_wrong(const Graph *g, const Node *n);

/* ---- reshard.c: from one type to another --------------------------------- */

/* One collective; it changes the types of all its atoms at once. */
typedef struct Reshard {
    Op op;
    Axis *a, *b;
    uint32_t atoms;
} Reshard;
/* The next step that takes a value of type shard[] towards want[], which
 * becomes its type; 0: it is there. Steps that shrink the value come first. A
 * scalar may go from R to P(add) (op add: position 0 keeps it, others have 0);
 * any other value that should become partial is our fault. */
int reshard_step(const Mesh *m, Shard *shard, const Shard *want,
                 Reshard *reshard);
void reshard_attrs(Node *n, const Reshard *reshard); /* n is of reshard's op */
/* Bytes of n on one rank if its type were shard[], and bytes one rank receives
 * for the step r that starts from type shard[]. */
double bytes_as(const Graph *g, const Node *n, const Shard *shard);
double bytes_sent(const Graph *g, const Node *n, const Shard *shard,
                  const Reshard *reshard);

#endif
