/* lives.h: the tests' own check of what lives where. */
#ifndef TEST_LIVES_H
#define TEST_LIVES_H

#include "../../ir/plan/plan.h"

/* Null, or where the instructions contradict the buffers: worked out again from
 * the instructions' arguments, knowing nothing of how buffers were placed. */
const char *lives_wrong(Arena *a, const Role *r);
/* After instruction `instr` nothing reads these bytes before they are
 * written again; with `last` only after the last run of the instruction's
 * phase. Instruction -1: before the first. By instruction; what is alive at the
 * end stays. A runtime may fill them with 0xff (NaN in every float type): no
 * number may change. Of a stage's table: only what is private to a call, after
 * each of its rows. */
typedef struct LastUse {
    int instr;
    int64_t offset, bytes;
    int last;
} LastUse;
LastUse *deaths(Arena *a, const Role *role, int prog); /* vec */

#endif
