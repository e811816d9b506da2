/* live.h: lifetimes of the buffers of a plan. */
#ifndef PLEAT_LIVE_H
#define PLEAT_LIVE_H

#include "../plan/plan.h"

typedef struct SlotLife {
    int buf, first, last;
    int64_t at;
    int held;  /* end of its use by other streams, or last */
    int grows; /* runs of its phase accumulate in it */
} SlotLife;

typedef struct SlotLives {
    Arena *arena;
    const Role *r;
    int prog;
    SlotLife *of; /* [buffer]; first -1: never named */
    int from, to; /* instructions of a stage's calls; from > to: none */
    int *behind;  /* [instruction]: first one known to run after it */
    int *there;   /* [instruction]: ... on all streams that write host memory */
} SlotLives;

SlotLife *no_lives(Arena *a, int n);
/* Computes the lifetimes of a program's buffers. Returns null, or a message
 * about an instruction that reads a buffer which was never written. */
const char *lives_of(Arena *a, const Role *role, int prog, SlotLives *lives);
const char *life_wrong(const SlotLives *lives, const char *what, int buf,
                       int instr);
int only_writes(const Instr *instr,
                int i); /* 1 if a kernel does not state it */
/* Is buf joined into another buffer at this instruction? It may then be inside
 * that one, and is live up to the instruction before. */
int joined(const Role *role, int buf, int instr);
/* Is it joined in the last run of a phase? The other buffer then owns the bytes
 * for the runs without the join. */
int joined_last(const Role *role, int buf, int instr);
/* Is this instruction a join in the last row of a call? Its parts and its
 * result, separate buffers, share bytes through the table: parts in all rows
 * before it, the result from there on. */
int joins_in_table(const Program *program, int instr);
/* Is buf a part or the result of such a join? */
int is_table_part(const Role *role, int buf);
int is_table_whole(const Role *role, int buf);
/* Returns null, or a message about a buffer whose born and dies differ from the
 * computed lifetime. */
const char *lives_loose(Arena *a, const Role *role, int prog);

#endif
