/* sharding.h: both grids laid over the ranks, a type for every value, the
 * collectives that follow. */
#ifndef PLEAT_SHARDING_H
#define PLEAT_SHARDING_H

#include "../core/core.h"
#include "../model/model.h"

/* ---- fold.c sharding.c: what is known before they run -------------------- */

Mesh *fold_mesh(Graph *g);   /* by the options alone */
void fold_experts(Graph *g); /* fills Param.expert; needs g->mesh */
/* A parameter lies on one grid in all programs, whichever of them picks experts
 * of it: by the model, before they are made, and by what step found. */
void fold_model(Graph *g);
void experts_like(Graph *g, const Graph *step);
const Shard *param_type(Graph *g, const Param *p); /* needs g->mesh */

/* ---- versions.c: values in the types that users ask for ------------------ */

/* A type a value exists in besides its own, and where. */
typedef struct Version {
    Shard sh[MAXATOM];
    Region reg;
    const Scope *again; /* the backward that makes it once more; null: none */
    Node *node;         /* null where nodes are not made */
    struct Version *next;
} Version;

typedef struct Partitioner {
    Graph *graph;
    Arena *arena;
    int build;      /* make nodes; else only note types */
    Version **have; /* by node id, in order of making */
    int *uses;
    char *free; /* made anew in any type at no cost */
    char *grid; /* 1: on the expert grid */
} Partitioner;

typedef Shard OperandShards[MAXIN][MAXATOM]; /* types asked of operands */

Partitioner *partitioner_new(Graph *g, int build);
/* Operand k of n in the type asked for. */
Node *demand(Partitioner *part, const Node *n, int k, const Shard *want);
/* What operand k of a node that is made anew must be for the node to be
 * want. */
void type_through(const Partitioner *part, const Node *n, int k,
                  const Shard *want, Shard *out);
Shard shard_through(const Node *n, int k, const Shard *want); /* of one atom */
/* Is n, resharded over the atom, made anew of operands that are resharded and
 * smaller? */
int is_sent_by_operands(const Node *n, int atom, const Shard *want);

/* ---- sharding.c sharding_report.c ---------------------------------------- */

/* Choose n's type, into out[MAXATOM], and what it asks of its operands; when n
 * has its type already (level PLACED), only the latter: out repeats it. */
void choose_strategy(Partitioner *part, Node *n, Shard *out,
                     OperandShards need);
Partitioner *place_nodes(Graph *g); /* all of them; the caller's to free */
void report_sharding(const Partitioner *part);

/* ---- exchange_way.c ------------------------------------------------------ */

typedef enum Way { WAYgather, WAYranks, WAYpeer, WAYhosts, NWAY } Way;

/* Tokens of a rank, by the map that says where they go. */
typedef struct TokenFlow {
    const Graph *graph;
    const Node *map;
    uint32_t now, before; /* atoms among whose ranks they go, and went */
    int64_t tokens, wide; /* bytes of one */
    RouteModel even;      /* room is made for */
} TokenFlow;

Way way_of(const TokenFlow *flow, int two); /* levels: one there is, or two */
/* Rows of a block for one of so many peers: room for all tokens where nothing
 * may overflow, since no program takes what did not fit. */
int64_t block_rows(const TokenFlow *flow, int64_t tokens, int64_t peers);
/* Of those of so many tokens, when all choices are as likely. */
double rows_for(const TokenFlow *flow, int64_t tokens, int64_t peers);
/* A line of -d why. */
void report_assumed_routes(const TokenFlow *flow, int64_t pair);
double map_load(const Node *map); /* of the rows it has room for: expected */

void attn_bwd_apart(Graph *g); /* attn_bwd.c, whatever the target is */

#endif
