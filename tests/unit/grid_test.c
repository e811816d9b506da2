/* grid_test: kernels for GPUs against the reference interpreter: the graphs of
 * kernel_test with the texts of target=cuda, run on this machine by tests/emu.
 * Without a C++ compiler it fails. */
#include "../../codegen/codegen.h"
#include "../emu/emurun.h"
#include "hostrun.h"
#include "trials.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *word; /* in the names of those that run */

static int wanted(const Trial *t)
{
    return strstr(t->name, word) != NULL;
}

static int judge(Trial *t)
{
    double worst = 0, size;

    host_run(t->g, t->k, (int)vec_len(t->k), emurun_step, NULL);
    for (int o = 0; o < t->nout; o++) {
        double *got = host_get(t->g, t->sink[o]->in[0], t->g->arena);
        worst = fmax(worst, trial_differs(t, o, t->want[o], got, &size) / size);
    }
    if (worst <= t->limit)
        printf("ok - grid %s: %.1e\n", t->name, worst);
    else
        printf("not ok - grid %s: differs by %.1e of the largest\n", t->name,
               worst);
    return !(worst <= t->limit);
}

/* grid_test                        all
 * grid_test word                   those with the word in their names
 * grid_test random first count     that many random graphs */
int main(int argc, char **argv)
{
    Arena *a = arena_new();
    Trial *list = NULL;
    Group **all = NULL;
    int bad = 0;

    setenv("PLEAT_OPT", "0", 1); /* compilers take most of the time */
    word = argc == 2 ? argv[1] : "";
    if (argc > 3) {
        list = trial_random(a, &T_cuda, NULL, atoi(argv[2]), atoi(argv[3]));
    } else {
        list = trial_patterns(a, &T_cuda, trial_rows(a, &T_cuda, NULL), 3);
        list = trial_random(a, &T_cuda, list, 0, 20);
    }
    for (size_t i = 0; i < vec_len(list); i++)
        for (size_t k = 0; k < vec_len(list[i].k) && wanted(&list[i]); k++)
            vec_push(a, all, list[i].k[k]);
    if (!emurun_compile(a, all, (int)vec_len(all)))
        return printf("not ok - grid: kernels do not compile\n"), 1;
    for (size_t i = 0; i < vec_len(list); i++)
        if (wanted(&list[i]))
            bad |= judge(&list[i]);
    emurun_close();
    return bad;
}
