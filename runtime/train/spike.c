/* spike.c: reaction to steps whose loss or gradient norm exceeds
 * train.skip_above. The plan has updated nothing in them. The run continues
 * with the next batch, or from the last save with the data after the spike. */
#include "train.h"

enum {
    INROW = 10, /* consecutive skipped steps that end a run */
    AGAIN = 3   /* most returns to one save */
};

static const char *above(Arena *a, const Exec *exec, ResultKind result,
                         const char *what, double limit)
{
    double v = exec_result(exec, result);

    return v > limit ? strf(a, "%s %.6g is above %.6g", what, v, limit) : NULL;
}

const char *spike_seen(Arena *a, const Exec *exec)
{
    double loss = exec_result(exec, RESULTloss),
           norm = exec_result(exec, RESULTgrad_norm);

    if (exec_result(exec, RESULTok) != 0 || !isfinite(loss) || isinf(norm))
        return NULL;
    const char *what = above(a, exec, RESULTloss, "loss", exec->limits.loss);
    return what ? what
                : above(a, exec, RESULTgrad_norm, "gnorm", exec->limits.gnorm);
}

void spike_count(Spike *spike, const char *what, int64_t step)
{
    if (!what)
        spike->row = 0;
    else if (++spike->row == INROW)
        err(NULL,
            "%d steps in a row are beyond train.skip_above: in step %ld %s",
            INROW, step, what);
}

void spike_back(Spike *spike, int64_t saved)
{
    spike->times = spike->saved == saved ? spike->times + 1 : 1;
    spike->saved = saved;
    spike->row = 0;
    if (spike->times > AGAIN)
        err(NULL,
            "spikes led back to step %ld %d times: other data do not help",
            saved, AGAIN);
}
