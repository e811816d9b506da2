/* rank.h: parts of values on a rank, row maps, models of routes */
#ifndef PLEAT_RANK_H
#define PLEAT_RANK_H

/* ---- shard.c: a rank's part of a value ----------------------------------- */

/* Returns the size of dim d of n on one rank (row axis: capacity). */
int64_t local_n(const Graph *g, const Node *n, int d);
int64_t local_elems(const Graph *g, const Node *n);
int64_t local_bytes(const Graph *g, const Node *n);
/* Returns the local stride along the axis, in elements; 0: n lacks it. */
int64_t local_stride(const Graph *g, const Node *n, const Axis *a);
/* Finds the pieces of dim d of n on one rank in memory order: one, or two of
 * one length if cp's atoms shard a zigzag axis. Returns their number. */
int pieces(const Graph *g, const Node *n, int d, Piece out[MAXPIECE]);
/* Returns the global index of this rank's first element along a dim of one
 * piece. */
RankAffine local_start(const Graph *g, const Node *n, int d);
/* Returns the atoms that shard the axis in two pieces a rank: cp's, or none. */
uint32_t zigzag_atoms(const Mesh *m, const Axis *a);
/* Returns a set of atoms with bits reordered so that slower atoms along the
 * axis are greater: pieces before runs, later atoms before earlier ones. */
uint32_t stride_order(const Mesh *m, const Axis *a, uint32_t atoms);
/* Returns the number of parts into which `atoms` divide an axis. */
int64_t cut_parts(const Mesh *m, const Axis *a, uint32_t atoms);
uint32_t atoms_of(const Graph *g, const Node *n,
                  ShardKind k); /* atoms with kind k */
int is_partial(const Node *n);  /* is it partial over any atom? */
/* Returns the atoms that shard axis a of n. A sharded route map shards its
 * rows, and none of their other axes. */
uint32_t cut_atoms(const Mesh *m, const Node *n, const Axis *a);
/* Returns the start of operand k of a pack, in elements of its last axis, a
 * multiple of PACKALIGN; k = nin: the end. */
int64_t bucket_at(const Node *pack, int k);
/* Layout of a route node's value, one int32 buffer: offsets[E+1] of local
 * experts, then pair[cap] (token * top + slot of each row, -1: padding), then
 * row[pairs] (-1: not on this rank), then, with a budget, the number of rows
 * without a limit. In a stash the offsets are followed by the stacks' row of
 * row 0, and the number of rows is INT32_MAX if that exceeds the stacks. each:
 * rows of every expert if padded, otherwise 0. first: the rank's row of row
 * 0. */
typedef struct MapLayout {
    int64_t experts, cap, each, first, pairs;
    int64_t offset, base, pair, row, total, n; /* base: only in a stash */
} MapLayout;
MapLayout map_layout(const Graph *g, const Node *route);
/* Returns the largest number of blocks of 128 rows that contain `cap` rows if
 * each expert starts a new block. */
int64_t row_blocks(int64_t cap, int64_t experts);
/* Returns the rows of a rank under a balanced router. */
double expected_rows(const Node *route, const MapLayout *layout);
/* Returns the rows of one of its experts, at most its capacity. */
double rows_of_expert(const Graph *g, const Node *route);
/* Returns the axis of its index that counts a token's choices; null: one
 * choice. */
const Axis *route_slot(const Node *route);
/* Is a the row axis of the route: ragged, or in blocks? */
int is_rows(const Node *route, const Axis *a);
Axis *axis_cut_over(const Axes *axes,
                    int atom); /* sharded over atom; null: none */
/* Returns, for an atom over which the route's tokens are sharded, the axis that
 * is sharded instead if they are in blocks; null: they keep their axis. */
Axis *block_axis(const Node *route, int atom);

/* ---- row_exchange.c: exchanges of rows by peer memory -------------------- */

typedef struct RowExchange {
    const Node *alltoall, *member, *map; /* member: dispatch or combine */
    Node *rows;                          /* the rows sent */
    int64_t tokens, pair, width;         /* sizes of a rank, a block, a row */
} RowExchange;
/* sends_rows: is all-to-all n an exchange that sends rows to their ranks?
 * returns_rows: is sum n one of returned rows? */
int sends_rows(const Graph *g, const Node *n, RowExchange *exchange);
int returns_rows(const Graph *g, const Node *n, RowExchange *exchange);

/* ---- route_model.c: distribution of routing ------------------------------ */

typedef struct RouteModel {
    int64_t experts, parts; /* parts: ranks with unequal numbers of experts;
                                     1: equal numbers */
    double chosen;          /* experts of a token, on average */
    int64_t groups, kept;   /* groups of experts; groups of a token */
    double *odds;           /* [experts] */
} RouteModel;

/* choice_of returns the router's index from which e was made; e may drop
 * choices (-1). mean_of returns route.mean for a router that drops choices,
 * otherwise 0. */
const Node *choice_of(const Node *e);
double mean_choices(const Graph *g, const Node *e);
double map_choices(const Node *map); /* expected choices of a token */

void find_groups(Node *map); /* sets groups and kept from its index */
/* Returns the model of the router (groups) and route.assume; even: equal odds
 * whatever route.assume says. */
RouteModel route_model(Arena *a, const Graph *g, const Node *map, int even);
/* Does route.assume give expert i odds of 1/i^*power? uniform: power 0; a file
 * of odds: no. */
int assumed_power(const Opts *opts, double *power);
int routes_even(const Opts *opts);             /* are the odds equal? */
int64_t route_places(const RouteModel *model); /* expert places on all parts */
/* Experts at n places from `first`: route_hit returns the probability
 * that a token has one of them, route_mean the expected number, route_peak the
 * rows of the fullest rank divided by an equal share. */
double route_hit(const RouteModel *model, int64_t first, int64_t n);
double route_pairs(const RouteModel *model, int64_t first, int64_t n);
double route_skew(const RouteModel *model, int64_t ranks);

#endif
