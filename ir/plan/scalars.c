/* scalars.c: what a program is given and gives: the step block and the result
 * block, by their names in a plan. */
#include "plan.h"

const char *const stepvalues[NSTEPVALUE] = {
    "lr",   "bc1",       "bc2",        "step",           "micro",
    "hold", "skip_loss", "skip_gnorm", "optimizer_step",
};
/* Behind a dot comes a name that the model gives. */
static const char *const results[NRESULT] = {
    [RESULTloss] = "loss",    [RESULTgrad_norm] = "grad_norm",
    [RESULTok] = "ok",        [RESULToverflow] = "overflow",
    [RESULTterm] = "loss.",   [RESULTmetric] = "metric.",
    [RESULTreach] = "reach.", [RESULTbeyond] = "beyond.",
};

int64_t scalar_elems(const Scalar *scalar)
{
    return scalar->dim.n ? scalar->dim.n : 1;
}

int result_named(Scalar *scalar)
{
    for (int k = 0; k < NRESULT; k++) {
        size_t n = strlen(results[k]);
        int own = results[k][n - 1] == '.';
        if (!strncmp(scalar->name, results[k], n) &&
            (scalar->name[n] != 0) == own) {
            scalar->result = (ResultKind)k;
            scalar->own = scalar->name + (own ? n : 0);
            return 1;
        }
    }
    return 0;
}

int role_value(const Role *role, StepValue v)
{
    for (int i = 0; i < role->nin; i++)
        if (role->in[i].value == v)
            return i;
    return -1;
}

int role_result(const Role *role, ResultKind k)
{
    for (int i = 0; i < role->nout; i++)
        if (role->out[i].result == k)
            return i;
    return -1;
}
