/* live.h: lifetimes of the buffers of a plan. */
#ifndef PLEAT_LIVE_H
#define PLEAT_LIVE_H

#include "../plan/plan.h"

typedef struct SlotLife {
    int buf, first, last;
    int64_t at;
    int held;  /* until streams of others are done with it, or last */
    int grows; /* it has what runs of its phase add to */
} SlotLife;

typedef struct SlotLives {
    Arena *arena;
    const Role *r;
    int prog;
    SlotLife *of; /* by buffer; first -1: never named */
    int from, to; /* instructions of a stage's calls; from > to: none*/
    int *behind;  /* by instruction: the first that is behind it */
    int *there;   /* ... with all behind that who writes in the host's memory */
} SlotLives;

SlotLife *no_lives(Arena *a, int n);
/* What instructions say of a program's buffers. Null, or what one reads that
 * was never written; life_wrong() says it as others find more. */
const char *lives_of(Arena *a, const Role *role, int prog, SlotLives *lives);
const char *life_wrong(const SlotLives *lives, const char *what, int buf,
                       int instr);
int only_writes(const Instr *instr, int i); /* 1 where a kernel does not say */
/* Does a join at this instruction make buf a part of another? Then it may lie
 * where that one does, and is alive up to the instruction before. */
int joined(const Role *role, int buf, int instr);
/* ... in the last run of a phase: from there on the other one keeps its bytes
 * for the runs that have no join. */
int joined_last(const Role *role, int buf, int instr);
/* Is this instruction a join in the last row of a call? What it joins and what
 * comes of it, each a buffer of its own, take the same bytes through the table:
 * parts in all rows before, the other one from there on. */
int joins_in_table(const Program *program, int instr);
/* Is buf such a part, or such a result? */
int is_table_part(const Role *role, int buf);
int is_table_whole(const Role *role, int buf);
/* Null, or a buffer whose born and dies are not what the instructions say. */
const char *lives_loose(Arena *a, const Role *role, int prog);

#endif
