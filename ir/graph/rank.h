/* rank.h: parts of values on a rank, row maps, models of routes */
#ifndef PLEAT_RANK_H
#define PLEAT_RANK_H

/* ---- shard.c: what a rank holds ------------------------------------------ */

/* Size on one rank of dim d of n (capacity for the row axis). */
int64_t local_n(const Graph *g, const Node *n, int d);
int64_t local_elems(const Graph *g, const Node *n);
int64_t local_bytes(const Graph *g, const Node *n);
/* Elements between neighbours along the axis there; 0: n lacks it. */
int64_t local_stride(const Graph *g, const Node *n, const Axis *a);
/* The pieces of dim d of n on one rank, in the order they lie: one, or two of
 * one length when cp's atoms cut a zigzag axis. Returns how many. */
int pieces(const Graph *g, const Node *n, int d, Piece out[MAXPIECE]);
/* Global index of this rank's first element along a dim of one piece. */
RankAffine local_start(const Graph *g, const Node *n, int d);
/* Atoms that cut the axis in pieces: cp's, or none. */
uint32_t zigzag_atoms(const Mesh *m, const Axis *a);
/* A set of atoms as numbers in which what is slower along the axis is greater:
 * pieces before runs, later atoms before earlier ones. */
uint32_t stride_order(const Mesh *m, const Axis *a, uint32_t atoms);
/* Parts that n elements of an axis must divide into when `atoms` cut it. */
int64_t cut_parts(const Mesh *m, const Axis *a, uint32_t atoms);
uint32_t atoms_of(const Graph *g, const Node *n, ShardKind k); /* typed k */
int is_partial(const Node *n); /* over any atom */
/* Atoms that cut axis a of n. Where a route map is cut its rows are, and none
 * of their other axes. */
uint32_t cut_atoms(const Mesh *m, const Node *n, const Axis *a);
/* Where operand k of a pack begins, in elements of its last axis; k = nin:
 * where they end. Each begins at a multiple of PACKALIGN. */
int64_t bucket_at(const Node *pack, int k);
/* A route node's value, int32, one buffer: offsets[E+1] of local experts, then
 * pair[cap] (token * top + slot of each row, -1: padding), then row[pairs]
 * (-1: not here), then, with a budget, the number of rows if there were room
 * for all. In a stash the row of the stacks that row 0 is stands behind the
 * offsets, and the number of rows is INT32_MAX where that was too far up. each:
 * rows of every expert when padded, else 0. first: the rank's row that row 0
 * is. */
typedef struct MapLayout {
    int64_t experts, cap, each, first, pairs;
    int64_t offset, base, pair, row, total, n; /* base: if there is one */
} MapLayout;
MapLayout map_layout(const Graph *g, const Node *route);
/* Blocks of 128 rows that `cap` rows may lie in, where each of the experts
 * begins with a block of its own. */
int64_t row_blocks(int64_t cap, int64_t experts);
/* Of a rank, by a router that treats all experts alike. */
double expected_rows(const Node *route, const MapLayout *layout);
/* Of one of its experts, of which there is room for. */
double rows_of_expert(const Graph *g, const Node *route);
/* The axis of its index that counts the choices of a token; null: one each. */
const Axis *route_slot(const Node *route);
/* Does the axis number rows of the route: ragged ones, or those in blocks? */
int is_rows(const Node *route, const Axis *a);
Axis *axis_cut_over(const Axes *axes,
                    int atom); /* one cut over it; null: none */
/* Over an atom where the route's tokens are cut, the axis that is cut in their
 * stead where they stand in blocks; null: they keep their own. */
Axis *block_axis(const Node *route, int atom);

/* ---- row_exchange.c: exchanges of rows by peer memory -------------------- */

typedef struct RowExchange {
    const Node *alltoall, *member, *map; /* member: dispatch or combine */
    Node *rows;                          /* what is sent */
    int64_t tokens, pair, width;         /* of a rank, a block, a row */
} RowExchange;
/* Is all-to-all n one that takes rows to their ranks, sum n one of rows that
 * came back? */
int sends_rows(const Graph *g, const Node *n, RowExchange *exchange);
int returns_rows(const Graph *g, const Node *n, RowExchange *exchange);

/* ---- route_model.c: which experts tokens choose, before they do ---------- */

typedef struct RouteModel {
    int64_t experts, parts; /* parts: ranks that may hold unequal numbers of
                                     them; 1: none */
    double chosen;          /* of experts, on average */
    int64_t groups, kept;   /* of groups */
    double *odds;           /* of each expert */
} RouteModel;

/* The router's own index, behind e, which may leave choices out (-1); the mean
 * that route.mean says of one that does, else 0. */
const Node *choice_of(const Node *e);
double mean_choices(const Graph *g, const Node *e);
double map_choices(const Node *map); /* of a token, expected */

void find_groups(Node *map); /* attributes groups and kept, from its index */
/* By the router, which may be limited to groups, and by route.assume; even: all
 * experts are as likely whatever that says. */
RouteModel route_model(Arena *a, const Graph *g, const Node *map, int even);
/* Does route.assume say odds of 1/i^*power of the i-th expert? uniform: 0; a
 * file of odds: no. */
int assumed_power(const Opts *opts, double *power);
int routes_even(const Opts *opts);             /* of equal odds? */
int64_t route_places(const RouteModel *model); /* for experts, on all parts */
/* Probability that a token has one of the experts at n places from `first`, how
 * many of them it is expected to have, and the rows of the rank that has most
 * of them over an equal share. */
double route_hit(const RouteModel *model, int64_t first, int64_t n);
double route_pairs(const RouteModel *model, int64_t first, int64_t n);
double route_skew(const RouteModel *model, int64_t ranks);

#endif
