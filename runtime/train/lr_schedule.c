/* lr_schedule.c: values that change from step to step. The learning rate has a
 * linear warm-up, then a schedule from lr down to min_lr. A schedule is a
 * function that returns the remaining share of lr - min_lr. The formulas are
 * those of Megatron-Core (optimizer_param_scheduler); `decay` is a share of the
 * steps, not their number. The batch grows as by Megatron's
 * rampup-batch-size. */
#include "../../ir/settings/keys.h"
#include "train.h"

typedef struct ScheduleTime { /* position in a run, in steps */
    double step, warm, steps; /* current; of warm-up; in all */
    double decay;             /* last steps, in which wsd decays */
    enum decay_style style;
} ScheduleTime;

typedef double Curve(const ScheduleTime *);

static const double PI = 3.14159265358979323846;

/* Returns the position between the end of the warm-up and the end of the run, 0
 * to 1. */
static double progress(const ScheduleTime *time)
{
    double t = time->steps > time->warm
                   ? (time->step - time->warm) / (time->steps - time->warm)
                   : 0;

    return t > 1 ? 1 : t;
}

static double linear(const ScheduleTime *time)
{
    return 1 - progress(time);
}

static double cosine(const ScheduleTime *time)
{
    return 0.5 * (1 + cos(PI * progress(time)));
}

/* Warm-up, stable, decay (Hu et al. 2024, section 4). */
static double wsd(const ScheduleTime *time)
{
    double start = time->steps - time->decay;

    if (time->step < start || time->decay <= 0)
        return 1;
    double t = (time->step - start) / time->decay;
    t = t > 1 ? 1 : t;
    switch (time->style) {
    case DECAYexponential: return 2 * pow(0.5, t) - 1;
    case DECAYlinear: return 1 - t;
    case DECAYcosine: return 0.5 * (1 + cos(PI * t));
    case DECAYminus_sqrt: return 1 - sqrt(t);
    }
    die("decay style %d", time->style);
}

static Curve *const curves[] = {
    [LRlinear] = linear, [LRcosine] = cosine, [LRwsd] = wsd
};

/* Returns lr sqrt(warmup / step), steps counted from 1, at least min_lr
 * (Vaswani et al. 2017, equation 3, with lr reached at the end of the
 * warm-up). */
static double inverse_sqrt(double lr, double min, double warm, double step)
{
    double r = lr * sqrt((warm > 1 ? warm : 1) / (step + 1));

    return r > min ? r : min;
}

double rate(const Opts *opts, int64_t step)
{
    double lr = opts_num(opts, "train.lr"),
           min = opts_num(opts, "train.min_lr");
    int schedule = (int)opts_lr_schedule(opts); /* -1: points of a curve */
    ScheduleTime s = { .step = (double)step,
                       .warm = (double)opts_int(opts, "train.warmup"),
                       .steps = (double)opts_int(opts, "train.steps"),
                       .style = opts_decay_style(opts) };

    s.decay = floor(opts_num(opts, "train.decay") * s.steps + 0.5);
    if (s.step < s.warm)
        return lr * (s.step + 1) / s.warm;
    if (schedule == LRconstant)
        return lr;
    if (schedule == LRinverse_sqrt)
        return inverse_sqrt(lr, min, s.warm, s.step);
    double left = schedule < 0 ? opts_curve(opts_str(opts, "train.schedule"),
                                            progress(&s))
                               : curves[schedule](&s);
    return min + (lr - min) * left;
}

int64_t ramp(const Opts *opts, int i, int64_t *until)
{
    const char *s = opts_str(opts, "train.ramp");
    long long first, more, samples;
    int64_t batch = opts_int(opts, "train.batch");

    if (!s || !*s)
        return 0;
    if (sscanf(s, "%lld,%lld,%lld", &first, &more, &samples) != 3)
        die("train.ramp=%s was not checked", s);
    if (batch < first || (batch - first) % more)
        err(opts_loc(opts, "train.ramp"),
            "train.ramp: from %lld by %lld does not reach train.batch=%ld",
            first, more, batch);
    int64_t n = (batch - first) / more;
    *until = i < n ? samples * (i + 1) / n : 0;
    return i < n ? first + i * more : 0;
}

StepValues step_block(const Exec *exec, int64_t step)
{
    double betas[2], t = (double)(step - exec->began + 1);

    opts_pair(exec->plan->opts, "train.betas", betas);
    return (StepValues){ rate(exec->plan->opts, step), 1 - pow(betas[0], t),
                         1 - pow(betas[1], t), step };
}
