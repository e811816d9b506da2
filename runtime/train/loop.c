/* loop.c: when steps run, and what comes between them: validation, checkpoints,
 * samples. What a step does is in the plan.
 *
 * On a GPU a step is launched while the one before it runs, and that one's
 * results are read after: the GPU never waits for the host. A step without a
 * finite gradient has changed nothing and consumes its batch, so it may be
 * noticed one step late; from then on steps are read at once, until one is
 * good. A step that overflowed changed nothing either, but its batch must be
 * run again before the next. The one that is in flight when this is noticed has
 * seen on the GPU that it did, and changed nothing: it runs once more too. */
#include <math.h>
#include <stdlib.h>

#include "run.h"

enum { MAXBAD = 3, MAXCOUNTED = 1 << 26 };
enum { REPLAYED = 2, SLOW = 1 }; /* SLOW: seconds */

/* For a byte model's last line: what counting alone would have reached. */
static const char *beside(Train *t, Data *valid, int64_t samples)
{
    double loss[NGRAM];

    if (t->comm->first || !t->train || data_vocab(valid) != 256 ||
        data_samples(t->train) * t->plan->tokens / data_perstep(t->train) >
            MAXCOUNTED ||
        !ngrams(t->mem, t->train, valid, samples, loss))
        return "";
    return strf(t->mem, " (uniform %.3f, bigram %.3f, trigram %.3f)", log(256),
                loss[1], loss[2]);
}

/* By rank 0's clock, so that all ranks end after the same step. */
static int out_of_time(const Train *train)
{
    return !train->comm->first && train->read && monotonic() >= train->ends;
}

static int stopping(Train *train)
{
    return comm_max(train->comm, signalled()) != 0;
}

/* Mean results over eval_steps steps, always of the same samples; none if a
 * signal comes meanwhile. */
static void validate_on(Train *t, const ValidSet *v)
{
    const Role *r = exec_role(t->x, t->comm->first);
    int64_t n = opts_int(t->plan->opts, "train.eval_steps");
    double *sum = calloc((size_t)r->nout + 1, sizeof *sum);

    if (!sum)
        die("not enough memory");
    for (int64_t k = 0; k < n; k++) {
        if (stopping(t)) {
            free(sum);
            return;
        }
        Feed f = data_feed(v->data, k * data_perstep(v->data));
        StepValues b = step_block(t->plan->opts, t->state.step);
        exec_run(t->x, PGeval, &b, &f);
        for (int i = 0; i < r->nout; i++)
            sum[i] = plain_nan(sum[i] + exec_out(t->x, i) / (double)n);
    }
    int last = t->state.step >= opts_int(t->plan->opts, "train.steps");
    log_valid(t->log, t->state.step, v->name, sum,
              last ? beside(t, v->data, n * data_perstep(v->data)) : "");
    free(sum);
}

void validate(Train *train)
{
    if (role_prog(exec_role(train->x, train->comm->first), PGeval) < 0)
        return;
    for (size_t i = 0; i < vec_len(train->valid); i++)
        validate_on(train, &train->valid[i]);
}

/* What became of a save. */
static void told(Train *train, const Saved *s)
{
    if (!s)
        return;
    train->unsaved = s->bad;
    if (s->bad)
        return;
    train->saved = s->step;
    log_saved(train->log, s);
}

/* The same inputs again, looking for where it begins; then the end. */
static _Noreturn void stop_bad(Train *train, const StepValues *b, const Feed *f)
{
    told(train, saver_wait(train->saver));
    const char *what = exec_checked(train->x, PGstep, b, f);

    if (comm_speaks(train->comm, what != NULL))
        err(NULL, "%d steps in a row without a finite gradient: %s", MAXBAD,
            what ? what : "nothing bad in the run that looked for it");
    exit(FAILED);
}

/* Beyond train.skip_above: said, and perhaps back to the last save. */
static int count_spike(Train *t, const PendingStep *s)
{
    const char *what = spike_seen(t->mem, t->x);
    int rewind = opts_spike(t->plan->opts) == SPIKErewind;

    spike_count(&t->spike, what, s->step + 1);
    if (!what)
        return 0;
    t->state.skipped++;
    log_note(t->log, "step %lld changed nothing: %s\n", (long long)s->step + 1,
             what);
    if (rewind && t->train)
        t->spike.back = s->first + data_perstep(t->train);
    return 1;
}

static void count_bad(Train *train, const StepValues *b, const Feed *f)
{
    double ok = exec_result(train->x, RESULTok);

    if (ok == ok ? ok != 0 : isfinite(exec_result(train->x, RESULTloss))) {
        train->bad = 0;
        return;
    }
    train->state.skipped++;
    if (++train->bad == MAXBAD)
        stop_bad(train, b, f);
}

static void say_start(Train *train)
{
    Text s = { .arena = train->mem };

    start_phase(NULL);
    start_says(&s);
    log_note(train->log, "%s", s.s);
}

static void write_trace(Train *train)
{
    size_t n;
    char *s = exec_trace(train->mem, train->x, PGstep, &n);

    run_file(strf(train->mem, "%s/trace.%lld.json", train->dir,
                  (long long)train->comm->first),
             s, n);
}

/* Rows are counted as they are moved; others have the plan's sizes. */
static double sent_to_experts(const Train *t)
{
    int over = exec_result(t->x, RESULToverflow) > 0;
    double rows = 0, sum = (double)(t->comm->moved - t->moved);

    for (int64_t i = 0; i < t->comm->n; i++)
        for (ProgramKind k = PGstep; k < NPROGRAM; k++) {
            const Program *p = role_program(t->x->rank[i].role, k);
            if (!p || !(k == PGstep || (k == PGfallback && over)))
                continue;
            rows += expert_bytes(p, 1);
            sum += expert_bytes(p, 0);
        }
    return rows > 0 && !t->comm->counts ? -1 : sum / (double)t->comm->n;
}

/* By rank, the seconds of a step of which it waited for no other. Null where
 * nobody knows: ranks of one process take turns, and a device with memory of
 * its own waits by itself, but for a step that is traced. */
static const double *alone(Train *t, double secs)
{
    double among = watch_waited(), mine = secs - (among - t->among);
    int known = !exec_apart(t->x) || t->traced >= 0;

    t->among = among;
    mine = t->traced >= 0 ? t->traced : mine;
    t->traced = -1;
    if (!t->alone || !known)
        return NULL;
    comm_gather(t->comm, &mine, t->alone, sizeof mine);
    return t->alone;
}

static void begin_clocks(Train *t)
{
    t->since = monotonic();
    t->among = watch_waited();
}

/* A step's results are here. */
static void read_step(Train *t, const PendingStep *s)
{
    double end = monotonic(), secs = end - t->since;
    double host = secs - (t->x->waited - t->waited);
    const double *each = alone(t, secs);

    t->since = end;
    t->waited = t->x->waited;
    log_step(t->log, t->x,
             &(Logged){ s->step + 1,
                        s->first + (t->train ? data_perstep(t->train) : 0),
                        s->b.lr, secs, t->late ? host : -1, sent_to_experts(t),
                        each });
    if (t->late && !t->read)
        say_start(t);
    if (t->late && t->read == REPLAYED)
        show_memory(t, 0);
    t->read++;
    if (!count_spike(t, s))
        count_bad(t, &s->b, &s->f);
}

void run_sent(Train *t, ProgramKind program, PendingStep *s, int late)
{
    if (t->train)
        s->f = data_feed(t->train, s->first);
    t->x->late = late;
    exec_run(t->x, program, &s->b, t->train ? &s->f : NULL);
    t->x->late = 0;
}

/* A step's results are here, or that its rows did not fit. behind: null, or the
 * one that was launched after it. */
static void finish(Train *train, PendingStep *s, PendingStep *behind)
{
    int over = exec_result(train->x, RESULToverflow) > 0;

    if (over) {
        run_sent(train, PGfallback, s, 0);
        train->fallbacks++;
    }
    read_step(train, s);
    if (over && behind)
        run_sent(train, PGstep, behind, 1);
}

/* Nothing runs any more, and all results were read. */
static void settle(Train *train)
{
    if (!train->nsent)
        return;
    exec_settle(train->x);
    train->nsent = 0;
    finish(train, &train->sent, NULL);
}

static void one_step(Train *t)
{
    int64_t step = t->state.step;
    PendingStep s = { .step = step,
                      .b = step_block(t->plan->opts, step),
                      .first = t->state.samples };
    int traced = step + 1 == opts_int(t->plan->opts, "train.trace");
    int late = t->late && !t->bad && !traced;

    if (!late)
        settle(t);
    if (traced)
        exec_record(t->x, PGstep);
    if (!t->nsent)
        begin_clocks(t);
    t->moved = t->comm->moved;
    run_sent(t, PGstep, &s, late);
    if (traced) {
        write_trace(t);
        t->traced = exec_alone(t->x, PGstep);
        exec_record(t->x, NPROGRAM);
    }
    t->state.step = step + 1;
    t->state.tokens += t->plan->tokens;
    t->state.samples += t->train ? data_perstep(t->train) : 0;
    if (!late)
        finish(t, &s, NULL);
    else if (t->nsent)
        finish(t, &t->sent, &s);
    t->nsent = late;
    t->sent = s;
}

static int is_time(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* After a step whose results were read. A save in flight is of a step before:
 * it is finished. */
static void compare_ranks(Train *train)
{
    const char *why = NULL;

    if (train->comm->world > 1 && train->agreed != train->state.step)
        why = replicas_differ(train->x, train->state.step, train->agreed);
    train->agreed = train->state.step;
    if (!why)
        return;
    told(train, saver_wait(train->saver));
    if (comm_speaks(train->comm, 0))
        err(NULL, "%s", why);
    exit(err_status);
}

/* Is it time to? At saves, if no key says when; on a GPU it costs a copy. */
static int compares(const Train *t, int saves)
{
    const Opts *o = t->plan->opts;

    return opts_str(o, "train.check_every")
               ? t->state.step > 0 &&
                     is_time(t->state.step, opts_int(o, "train.check_every"))
               : saves && !exec_apart(t->x);
}

static void save(Train *t, SaveHow how)
{
    Text tuned = { .arena = arena_new() };
    double began = monotonic();

    told(t, saver_wait(t->saver));
    if (how == SAVEbeside && monotonic() - began > SLOW)
        log_note(t->log,
                 "training waited %.1f s for the save before: its disk is "
                 "slower than train.save_every\n",
                 monotonic() - began);
    if (t->saved != t->state.step) {
        run_tuned(t->x, &tuned);
        saver_save(t->saver, &t->state, &tuned, how);
    }
    told(t, saver_poll(t->saver));
    arena_free(tuned.arena);
}

/* A spike was met: the values of the last save, the data behind the spike. */
static void go_back(Train *train)
{
    int64_t from = train->state.step;

    settle(train);
    told(train, saver_wait(train->saver));
    int64_t samples = train->spike.back;
    train->spike.back = 0;
    if (train->saved < 0) {
        log_note(train->log,
                 "no checkpoint to go back to: only the batch is skipped\n");
        return;
    }
    spike_back(&train->spike, train->saved);
    exec_pull(train->x);
    ckpt_resume(train->x, train->ckpt, &train->state);
    exec_push(train->x);
    train->state.samples = samples;
    train->agreed = train->saved = train->state.step;
    log_note(train->log,
             "from step %lld back to step %lld, on with sample %lld\n",
             (long long)from, (long long)train->state.step, (long long)samples);
}

static void take_sample(Train *train)
{
    size_t n = 0;
    char *s = sample(train->sampler, train->state.step, &n);

    if (s)
        log_sample(train->log, train->state.step, s, n);
    free(s);
}

int64_t grows_at(const Train *train)
{
    return train->grown < train->args->nramp
               ? train->args->ramp[train->grown].until
               : INT64_MAX;
}

int run_steps(Train *t)
{
    const Opts *o = t->plan->opts;
    int64_t steps = opts_int(o, "train.steps");
    int64_t eval = opts_int(o, "train.eval_every");
    int64_t keep = opts_int(o, "train.save_every");
    int64_t samples = opts_int(o, "train.sample_every");

    while (t->state.step < steps &&
           !comm_max(t->comm, signalled() || out_of_time(t)) &&
           t->state.samples < grows_at(t)) {
        err_status = FAILED;
        one_step(t);
        told(t, saver_poll(t->saver));
        int checks = is_time(t->state.step, eval) && t->state.step < steps;
        int keeps = is_time(t->state.step, keep);
        int speaks = is_time(t->state.step, samples);
        int ends = t->state.step == steps;
        int compare = compares(t, keeps || ends);
        if (checks || keeps || speaks || compare || ends)
            settle(t);
        if (t->spike.back) {
            go_back(t);
            continue;
        }
        if (compare)
            compare_ranks(t);
        if (speaks)
            take_sample(t);
        if (checks)
            validate(t);
        if (keeps)
            save(t, SAVEbeside);
    }
    settle(t);
    if (t->state.step < steps) {
        if (compares(t, 1))
            compare_ranks(t);
        save(t, SAVEwaits);
        if (t->state.samples >= grows_at(t))
            return 1;
        log_note(t->log, "%sstopped at step %lld; resume=1 continues\n",
                 out_of_time(t) ? "train.hours are over: " : "",
                 (long long)t->state.step);
        t->stopped = 1;
        return 0;
    }
    validate(t);
    if (steps > 0)
        save(t, SAVEwaits);
    if (t->fallbacks)
        log_note(t->log,
                 "%lld steps had more rows than route.factor gives room for "
                 "and ran as step.fallback\n",
                 (long long)t->fallbacks);
    return 0;
}
