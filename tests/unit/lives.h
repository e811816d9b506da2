/* lives.h: the tests' own check of what lives where. */
#ifndef TEST_LIVES_H
#define TEST_LIVES_H

#include "../../ir/plan.h"

/* Null, or where the instructions contradict the buffers: worked out again from
 * the instructions' arguments, knowing nothing of how buffers were placed. */
const char *lives_wrong(Arena *a, const Role *r);

#endif
