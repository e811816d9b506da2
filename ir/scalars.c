/* scalars.c: what a program is given and gives: the step block and the result
 * block, by their names in a plan. */
#include <string.h>

#include "plan.h"

const char *const stepvalues[NSTEPVALUE] = {
    "lr", "bc1", "bc2", "step", "micro", "hold", "skip_loss", "skip_gnorm",
};
/* Behind a dot comes a name that the model gives. */
static const char *const results[NRESULT] = {
    [RESULTloss] = "loss",  [RESULTgrad_norm] = "grad_norm",
    [RESULTok] = "ok",      [RESULToverflow] = "overflow",
    [RESULTterm] = "loss.", [RESULTmetric] = "metric.",
};

int64_t scalar_elems(const Scalar *s)
{
    return s->dim.n ? s->dim.n : 1;
}

int result_named(Scalar *s)
{
    for (int k = 0; k < NRESULT; k++) {
        size_t n = strlen(results[k]);
        int own = results[k][n - 1] == '.';
        if (!strncmp(s->name, results[k], n) && (s->name[n] != 0) == own) {
            s->result = (ResultKind)k;
            s->own = s->name + (own ? n : 0);
            return 1;
        }
    }
    return 0;
}

int role_value(const Role *r, StepValue v)
{
    for (int i = 0; i < r->nin; i++)
        if (r->in[i].value == v)
            return i;
    return -1;
}

int role_result(const Role *r, ResultKind k)
{
    for (int i = 0; i < r->nout; i++)
        if (r->out[i].result == k)
            return i;
    return -1;
}
