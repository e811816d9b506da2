/* schedule_test: pipeline schedules against published numbers, against a
 * machine that runs their rows where a send ends only when it is received, and
 * against damage. Layout strings against the stages they mean.               */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/plan.h"

static jmp_buf heard;
static char message[4096];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

static Schedule *try_make(Arena *a, const char *kind, int p, int v, int m)
{
    Schedule *volatile s = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        s = schedule_make(a, kind, p, v, m, NULL);
    err_hook = NULL;
    return s;
}

static Timing time_of(Arena *a, const Schedule *s)
{
    static const double unit[NJOB] = { [WF] = 1, [WI] = 1, [WW] = 1 };
    double *cost = alloc(a, sizeof *cost * NJOB * (size_t)s->chunks);

    for (int i = 0; i < NJOB * s->chunks; i++)
        cost[i] = unit[i / s->chunks];
    return schedule_time(a, s, cost, 0);
}

/* ---- published ----------------------------------------------------------- */

/* planning-and-reliability 2.6: F = I = W = 1, B = 2, no transfers.          */
static void published(void **state)
{
    static const struct Row {
        const char *kind;
        int p, v, m;
        double makespan;
        int peak[8];
    } rows[] = {
        { "1f1b", 4, 1, 8, 33, { 4, 3, 2, 1 } },
        { "1f1b", 8, 1, 24, 93, { 8, 7, 6, 5, 4, 3, 2, 1 } },
        { "1f1b", 8, 1, 64, 213, { 8, 7, 6, 5, 4, 3, 2, 1 } },
        { "zerobubble", 4, 1, 8, 27, { 4, 4, 4, 4 } },
        { "zerobubble", 8, 1, 24, 79, { 8, 8, 8, 8, 8, 8, 8, 8 } },
        { "zerobubble", 8, 1, 64, 199, { 8, 8, 8, 8, 8, 8, 8, 8 } },
        { "dualpipev", 4, 2, 10, 66, { 9, 9, 9, 9 } },
    };
    (void)state;
    Arena *a = arena_new();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct Row *w = &rows[i];
        Timing t = time_of(a, try_make(a, w->kind, w->p, w->v, w->m));
        assert_true(t.makespan == w->makespan);
        for (int r = 0; r < w->p; r++) {
            assert_int_equal(t.peak[r], w->peak[r]);
            assert_true(t.busy[r] == 3.0 * w->m * w->v);
        }
    }
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
