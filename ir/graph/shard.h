/* shard.h: sharding types. Over each atom of the ranks (mesh.c) a value is
 * whole, sharded, or partial (struct Shard); its type is MAXATOM of these.
 * graph.h includes it after node.h. */
#ifndef PLEAT_SHARD_H
#define PLEAT_SHARD_H

/* ---- shard.c ------------------------------------------------------------- */

static inline int same_shard(const Shard *x, const Shard *y)
{
    return x->k == y->k && (x->k != S || x->a == y->a) &&
           (x->k != P || x->op == y->op);
}
/* Returns the object of a type: equal types are one object in normal form (an
 * axis only for S, a reduction only for P). whole_type: nothing is sharded or
 * partial. */
extern const Shard whole_type[MAXATOM];
const Shard *g_type(Graph *g, const Shard *sh);
/* Returns the type with axis b in place of a. */
const Shard *g_type_along(Graph *g, const Shard *sh, const Axis *a, Axis *b);
int same_type(const Shard *x, const Shard *y);

/* ---- sharding_rules.c: sharding strategies of ops ------------------------ */

/* A strategy of a node over one atom: types of operands and result. */
typedef struct ShardStrategy {
    Shard out, in[MAXIN];
} ShardStrategy;
enum { MAXWAY = 48 };
/* Finds all strategies, whatever the sizes. Returns their number; sources and
 * collectives have none. */
int ways(const Graph *g, const Node *n, int atom, ShardStrategy *strategy);
/* Returns null if a strategy of n has its operands' types and its type,
 * otherwise an explanation. For graphs at level LOCAL. */
const char *type_wrong(const Graph *g, const Node *n);

/* ---- reshard.c: conversion of types -------------------------------------- */

/* One collective, which changes the types of all its atoms at once. */
typedef struct Reshard {
    Op op;
    Axis *a, *b;
    uint32_t atoms;
} Reshard;
/* Finds the next collective that converts type shard[] towards want[] and
 * updates shard[]. Returns 0 if they are equal. Steps that shrink the value
 * come first. A scalar may go from R to P(add) (position 0 keeps it, others
 * have 0); die() for any other value that would have to become partial. */
int reshard_step(const Mesh *m, Shard *shard, const Shard *want,
                 Reshard *reshard);
void reshard_attrs(Node *n, const Reshard *reshard); /* n has reshard's op */
/* bytes_as: bytes of n on one rank with type shard[]; moved_bytes: bytes that a
 * rank receives in a step that starts from type shard[]. */
double bytes_as(const Graph *g, const Node *n, const Shard *shard);
double bytes_sent(const Graph *g, const Node *n, const Shard *shard,
                  const Reshard *reshard);

#endif
