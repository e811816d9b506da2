/* search_from.c: `pleat search .. from=runs/x`: what a run measured corrects
 * what is predicted. Its plan predicts a step, of that `open` seconds of
 * transfers that nothing hides; it has measured another time. Kernels and open
 * transfers have a factor each, k to the power of their share of the step:
 *
 *     measured = (secs - open) k^(1 - s) + open k^s,     s = open / secs
 *
 * so a run without transfers says nothing about them. Every prediction of the
 * search takes both factors. */
#include <math.h>
#include <string.h>

#include "../../ir/settings/keys.h"
#include "search.h"

enum { FEWEST = 3 }; /* measured steps; the first one begins cold */

/* ---- before the model is traced ------------------------------------------ */

/* Is it one with which a plan is compiled, and not what a search chooses? */
static int is_taken(const Opts *opts, const KeyInfo *key)
{
    return opts_given(opts, key_name(key)) && !run_key(key_name(key)) &&
           !is_fold_key(key);
}

static void take_axes(Opts *keys, const Plan *p, const Axis *batch)
{
    const char *key, *value;

    for (int i = 0; opts_each(p->opts, i, &key, &value); i++)
        if (key_of_model(key) && !opts_given(keys, key) &&
            !(batch && !strcmp(key, strf(forever, "axes.%s", batch->name))))
            opts_set(keys, key, value, NULL);
}

static void take_keys(Opts *keys, const Plan *p)
{
    int other = opts_given(keys, "world") || opts_given(keys, "cluster.chip");

    for (const KeyInfo *key = keytab; key->name; key++) {
        const char *name = key_name(key);
        int machine = !strcmp(key->table, "cluster") ||
                      !strcmp(name, "fold.host") || !strcmp(name, "world");
        if (is_taken(p->opts, key) && !opts_given(keys, name) &&
            !(machine && other))
            opts_set(keys, name, opts_str(p->opts, name), NULL);
    }
    if (!opts_given(keys, "target") && !opts_given(keys, "cluster.chip"))
        opts_set(keys, "target", p->target, NULL);
    if (!other)
        opts_set(keys, "world",
                 strf(forever, "%lld", (long long)p->mesh->world), NULL);
}

MeasuredRun *search_from(const Args *args)
{
    MeasuredRun *m = alloc(forever, sizeof *m);

    if (!opts_given(args->keys, "from"))
        return NULL;
    m->dir = folder_of(opts_str(args->keys, "from"));
    if (!m->dir)
        err(NULL, "search: from=%s is no run's folder",
            opts_str(args->keys, "from"));
    m->plan = plan_at(m->dir);
    if (opts_given(m->plan->opts, "train.ramp"))
        err(NULL, "search: the steps of from=%s are of several sizes", m->dir);
    take_axes(args->keys, m->plan,
              g_role(trace(args->file, args->keys, TRACEquiet).g, ROLEbatch));
    take_keys(args->keys, m->plan);
    return m;
}

/* ---- what it measured ---------------------------------------------------- */

static const char *chip_of(const Opts *opts, const Target *target)
{
    const char *device = opts_str(opts, "cluster.device");

    return device ? device
                  : machine_name(machine_row(opts, target ? target->machine
                                                          : MACHINEh200));
}

/* k of the formula at the head. */
static double surplus(double work, double open, double measured)
{
    double share = open / (work + open), low = -50, high = 50;

    for (int i = 0; i < 100; i++) {
        double middle = (low + high) / 2;
        double secs =
            work * exp(middle * (1 - share)) + open * exp(middle * share);
        low = secs < measured ? middle : low;
        high = secs < measured ? high : middle;
    }
    return exp(low);
}

static void read_steps(MeasuredRun *m)
{
    const RunLog *run = run_log(forever, m->dir);
    int64_t after = run->settings ? run->settings->from_step : 0;

    m->secs = 1e-3 * series_median(run, "step_ms", after, &m->steps);
    if (m->steps < FEWEST)
        err(NULL,
            "search: from=%s has measured %zu steps, at least %d say "
            "what its plan takes",
            m->dir, m->steps, FEWEST);
    m->predicted = plan_secs(m->plan, PGstep);
    double work = plan_bare(m->plan, PGstep), open = m->predicted - work;
    double k = surplus(work, open, m->secs), share = open / m->predicted;
    m->kernels = pow(k, 1 - share);
    m->transfers = pow(k, share);
}

static void read_point(MeasuredRun *m, const Search *search)
{
    const Plan *p = m->plan;
    double batch = (double)search->batch * (double)p->tokens / search->tokens;
    double micros = (double)(p->mesh->size[Mdp] * plan_micros(p, PGstep));

    memcpy(m->point.size, p->mesh->size, sizeof m->point.size);
    m->point.vpp = opts_int(p->opts, "fold.vpp");
    m->point.zero = opts_int(p->opts, "fold.zero");
    m->point.schedule = (int)opts_pp_schedule(p->opts);
    m->point.batch = (int64_t)(batch / micros + 0.5);
    m->here =
        p->mesh->world == search->world && (double)p->tokens == search->tokens;
}

void search_measure(Space *space)
{
    MeasuredRun *m = space->from;
    const char *was = chip_of(m->plan->opts, target_named(m->plan->target));
    const char *now = chip_of(space->s.model[0].g->opts, space->s.target);

    if (strcmp(was, now))
        err(NULL,
            "search: from=%s was measured on '%s', and the plans searched are "
            "for '%s'",
            m->dir, was, now);
    check_same_model(space->args, m->plan, m->dir,
                     "; a search carries on from a run of its own model");
    read_steps(m);
    read_point(m, &space->s);
}

/* ---- corrected ----------------------------------------------------------- */

int was_measured(const Space *space, const Candidate *candidate)
{
    const MeasuredRun *m = space->from;
    const Point *a = &candidate->p, *b = m ? &m->point : NULL;

    return m && m->here && candidate->known == PRICEcompiled &&
           !memcmp(a->size, b->size, sizeof a->size) && a->vpp == b->vpp &&
           a->zero == b->zero && a->schedule == b->schedule &&
           a->batch == b->batch;
}

Forecast search_corrected(const Space *space, Forecast predicted)
{
    const MeasuredRun *m = space->from;
    Forecast f = predicted;

    if (!m)
        return f;
    f.open *= m->transfers;
    f.idle *= m->kernels;
    f.again *= m->kernels;
    f.secs = (predicted.secs - predicted.open) * m->kernels + f.open;
    return f;
}

/* Seconds without the correction. */
double search_predicted(const Space *space, const Candidate *candidate)
{
    const MeasuredRun *m = space->from;
    double secs = search_estimate(space, candidate), open = candidate->f.open;

    return m ? (secs - open) / m->kernels + open / m->transfers : secs;
}
