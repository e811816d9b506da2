/* pipe.h: a graph of each pipeline stage. */
#ifndef PLEAT_PIPE_H
#define PLEAT_PIPE_H

#include "../core/core.h"

/* ---- stages.c ------------------------------------------------------------ */

/* The chunks of a pipeline, from the traced model; null: one stage. err() when
 * fold.layout does not fit it. */
Stages *stages_cut(Graph *logical);
/* Index of the unit that a scope lies in; -1: of no unit. */
int unit_at(const Stages *st, const Scope *scope);

/* ---- pipe*.c: what they share -------------------------------------------- */

/* Where a node of the body runs; chunk -1: in each call that reads it. */
typedef struct Assignment {
    int chunk;
    WorkKind work;
} Assignment;

/* A value that another stage reads: at the start of its F, or else B or I, of
 * the chunk that is the first to need it. */
typedef struct StageRead {
    Node *node;
    int stage, edge, chan;
} StageRead;

/* The graph of a stage being made: nodes of the same id in the graph that is
 * cut, and lists that become its nodes. */
typedef struct StagePart {
    Graph *graph;
    Node **at;   /* by id: the value on this stage */
    Node **all;  /* by id: after it went to all stages */
    Table *anew; /* (node, call) -> made anew for that call */
    Node **source, **before, **body, **post; /* vecs; body: calls in the
                                     order of time */
} StagePart;

/* Which stages have a parameter or state. */
typedef struct Holders {
    char *has;  /* by stage: a body there reads it */
    int *owner; /* who writes it; -1: not known yet. Shared with all that the
                                     optimizer takes together. */
} Holders;

typedef struct Pipe {
    Graph *graph; /* what is cut */
    Arena *arena;
    const Schedule *schedule;
    int splits, stages, chunks;
    Assignment *spot;    /* by id */
    int *first;          /* by id and stage: the first moment at which the
                                     stage needs it, INT_MAX: never */
    Table *held;         /* path -> Holders, the same for all programs */
    StageTransfer *edge; /* vec */
    StageRead *cross;    /* vec */
    int chan;            /* next free channel, and place in the order
                                     of what all stages do */
    StagePart *part;     /* by stage */
    int *home;           /* by id: see pipe_post.c */
} Pipe;

/* All programs of a model, from LOCAL on: `next` of each becomes the graph of
 * the next stage. */
void pipe_programs(Graph *const *g);

/* pipe_own.c. A moment: a place in the order of the calls of a micro-batch. */
/* The k-th value that n reads, its row map behind the operands; or null. */
Node *read_by(const Node *n, int k);
int pipe_stage_at(const Pipe *pipe, const Node *n); /* -1: of no call */
Assignment pipe_moment(const Pipe *pipe, int moment);
void pipe_needs(Pipe *pipe); /* first */
void pipe_hold(Pipe *pipe);  /* adds to held what the bodies of pipe need */
Holders *pipe_held(const Table *held, const char *path);
int pipe_owner(const Table *held, const char *path); /* -1: none yet */

/* held of g alone; from grad on. */
Table *pipe_alone(Graph *g);

const Schedule *pipe_schedule(Graph *g, int *splits);
void pipe_assign(Pipe *pipe); /* spot, first */
void pipe_post(Pipe *pipe);   /* what follows the bodies */
/* A copy of n, with operands in, at the end of a list of stage s. */
Node *pipe_copy(Pipe *pipe, int s, Node ***list, const Node *n,
                Node *const *in);
/* n, of den or pre or standing ready, on stage s. */
Node *pipe_shared(Pipe *pipe, int s, Node *n);

#endif
