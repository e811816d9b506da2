/* pipe.h: splits graphs into pipeline stages. */
#ifndef PLEAT_PIPE_H
#define PLEAT_PIPE_H

#include "../core/core.h"

/* ---- stages.c ------------------------------------------------------------ */

/* Returns the chunks of a pipeline for the traced model; null: one stage. Calls
 * err() if fold.layout does not fit the model. */
Stages *stages_cut(Graph *logical);
/* Returns the index of the unit that contains a scope; -1: none. */
int unit_at(const Stages *st, const Scope *scope);

/* ---- shared by pipe*.c --------------------------------------------------- */

/* Place of a node of the body; chunk -1: in each call that reads it. */
typedef struct Assignment {
    int chunk;
    WorkKind work;
} Assignment;

/* A value that another stage reads: at the start of the F, or else B or I, of
 * the chunk that needs it first. */
typedef struct StageRead {
    Node *node;
    int stage, edge, chan;
} StageRead;

/* The graph of a stage under construction: its nodes by the ids of the original
 * graph, and lists that become its nodes. */
typedef struct StagePart {
    Graph *graph;
    Node **at;   /* [id]: the value on this stage */
    Node **all;  /* [id]: the value after a pp_sum to all stages */
    Table *anew; /* (node, call) -> copy computed by that call */
    Node **source, **before, **body, **post; /* vecs; body: calls in order
                                     of time */
} StagePart;

/* Stages that have a parameter or state. */
typedef struct Holders {
    char *has;  /* [stage]: a body there reads it */
    int *owner; /* stage that writes it; -1: not known yet. Shared by the
                                     parameters of one optimizer update. */
} Holders;

typedef struct Pipe {
    Graph *graph; /* the original graph */
    Arena *arena;
    const Schedule *schedule;
    int splits, stages, chunks;
    Assignment *spot;    /* [id] */
    int *first;          /* [id][stage]: first moment at which the stage
                                     needs it, INT_MAX: never */
    Table *held;         /* path -> Holders, the same for all programs */
    StageTransfer *edge; /* vec */
    StageRead *cross;    /* vec */
    int chan;            /* next free channel, and place in the order of
                                     operations of all stages */
    StagePart *part;     /* [stage] */
    int *home;           /* [id]: see pipe_post.c */
} Pipe;

/* Splits all programs of a model, at LOCAL or later: `next` of each becomes the
 * graph of the next stage. */
void pipe_programs(Graph *const *g);

/* pipe_own.c. A moment is a place in the order of a micro-batch's calls. */
/* Returns the k-th value that n reads, its row map after the operands; or
 * null. */
Node *read_by(const Node *n, int k);
int pipe_stage_at(const Pipe *pipe, const Node *n); /* -1: in no call */
Assignment pipe_moment(const Pipe *pipe, int moment);
void pipe_needs(Pipe *pipe); /* sets first */
void pipe_hold(Pipe *pipe);  /* adds the needs of pipe's bodies to held */
Holders *pipe_held(const Table *held, const char *path);
int pipe_owner(const Table *held, const char *path); /* -1: none yet */

/* Returns held for g alone, after pass grad. */
Table *pipe_alone(Graph *g);

const Schedule *pipe_schedule(Graph *g, int *splits);
void pipe_assign(Pipe *pipe); /* sets spot, first */
void pipe_post(Pipe *pipe);   /* builds post of each stage */
/* Appends a copy of n with operands `in` to a list of stage s. */
Node *pipe_copy(Pipe *pipe, int s, Node ***list, const Node *n,
                Node *const *in);
/* Returns n, which is in den or pre or a source, on stage s. */
Node *pipe_shared(Pipe *pipe, int s, Node *n);

#endif
