/* loop.c: the training loop: steps, and validation, checkpoints and samples
 * between them. The plan contains the computation of a step.
 *
 * On a GPU a step is launched while the one before runs, whose results are read
 * afterwards: the GPU never waits for the host. A step without a finite
 * gradient updates nothing and consumes its batch, so it may be noticed one
 * step late; steps are then read at once until one is good. A step that
 * overflowed updates nothing either, but its batch must run again before the
 * next. A step in flight at that time has read the overflow flag on the GPU and
 * updated nothing: it runs again too. */
#include "../../ir/settings/keys.h"
#include "run.h"

enum { MAXBAD = 3, MAXCOUNTED = 1 << 26 };
enum { REPLAYED = 2, SLOW = 1 }; /* SLOW: seconds */

/* Returns the end of a byte model's last line: the loss of a trigram model. */
static const char *beside(Train *train, Data *valid, int64_t samples)
{
    double loss[NGRAM];

    if (train->comm->first || !train->train || data_vocab(valid) != 256 ||
        data_samples(train->train) * train->plan->tokens /
                data_perstep(train->train) >
            MAXCOUNTED ||
        !ngrams(train->mem, train->train, valid, samples, loss))
        return "";
    return strf(train->mem, " (uniform %.3f, bigram %.3f, trigram %.3f)",
                log(256), loss[1], loss[2]);
}

/* Is the time limit reached, by rank 0's clock? All ranks end after the same
 * step. */
static int out_of_time(const Train *train)
{
    return !train->comm->first && train->read && monotonic() >= train->ends;
}

static int stopping(Train *train)
{
    return comm_max(train->comm, signalled()) != 0;
}

/* Calls err() if an index was beyond its axis: an error of the data or the
 * model. */
static void check_indices(const Train *train)
{
    const Role *role = exec_role(train->x, train->comm->first);

    for (int i = 0; i < role->nout; i++) {
        const Scalar *out = &role->out[i];
        if (out->result != RESULTbeyond || !(exec_out(train->x, i) > 0))
            continue;
        const Buf *b = &role->buf[out->buf];
        err_status = 1;
        if (comm_speaks(train->comm, 0))
            err(&(Loc){ b->file, b->line, NULL },
                "an index into axis '%.*s' is %s%.0f, beyond its end",
                (int)strcspn(out->own, "'"), out->own,
                strchr(out->own, '-') ? "-" : "", exec_out(train->x, i));
        exit(err_status);
    }
}

/* Reports mean results over eval_steps steps, always of the same samples;
 * nothing if a signal arrives. */
static void validate_on(Train *train, const ValidSet *set)
{
    const Role *r = exec_role(train->x, train->comm->first);
    int64_t n = opts_int(train->plan->opts, "train.eval_steps");
    double *sum = calloc((size_t)r->nout + 1, sizeof *sum);

    if (!sum)
        die("not enough memory");
    for (int64_t k = 0; k < n; k++) {
        if (stopping(train)) {
            free(sum);
            return;
        }
        Feed f = data_feed(set->data, k * data_perstep(set->data));
        StepValues b = step_block(train->x, train->state.step);
        exec_run(train->x, PGeval, &b, &f);
        check_indices(train);
        for (int i = 0; i < r->nout; i++)
            sum[i] = plain_nan(sum[i] + exec_out(train->x, i) / (double)n);
    }
    int last = train->state.step >= opts_int(train->plan->opts, "train.steps");
    log_valid(train->log, train->state.step, set->name, sum,
              last ? beside(train, set->data, n * data_perstep(set->data))
                   : "");
    free(sum);
}

void validate(Train *train)
{
    if (role_prog(exec_role(train->x, train->comm->first), PGeval) < 0)
        return;
    for (size_t i = 0; i < vec_len(train->valid); i++)
        validate_on(train, &train->valid[i]);
}

/* Reports the result of a save. */
static void told(Train *train, const Saved *saved)
{
    if (!saved)
        return;
    train->unsaved = saved->bad;
    if (saved->bad)
        return;
    train->saved = saved->step;
    log_saved(train->log, saved);
}

/* Runs the step again to find the first bad tensor, reports it, and ends the
 * run. */
static _Noreturn void stop_bad(Train *train, const StepValues *values,
                               const Feed *feed)
{
    told(train, saver_wait(train->saver));
    const char *what = exec_checked(train->x, PGstep, values, feed);

    if (comm_speaks(train->comm, what != NULL))
        err(NULL, "%d steps in a row without a finite gradient: %s", MAXBAD,
            what ? what : "nothing bad in the run that looked for it");
    exit(FAILED);
}

/* Reports a step beyond train.skip_above and may schedule a return to the last
 * save. */
static int count_spike(Train *train, const PendingStep *step)
{
    const char *what = spike_seen(train->mem, train->x);
    int rewind = opts_spike(train->plan->opts) == SPIKErewind;

    spike_count(&train->spike, what, step->step + 1);
    if (!what)
        return 0;
    train->state.skipped++;
    log_note(train->log, "step %ld changed nothing: %s\n", step->step + 1,
             what);
    if (rewind && train->train)
        train->spike.back = step->first + data_perstep(train->train);
    return 1;
}

static void count_bad(Train *train, const StepValues *values, const Feed *feed)
{
    double ok = exec_result(train->x, RESULTok);

    if (ok == ok ? ok != 0 : isfinite(exec_result(train->x, RESULTloss))) {
        train->bad = 0;
        return;
    }
    train->state.skipped += ok == ok; /* NaN: the step updated the weights */
    if (++train->bad == MAXBAD)
        stop_bad(train, values, feed);
}

static void say_start(Train *train)
{
    Text s = { .arena = train->mem };

    start_phase(NULL);
    start_says(&s);
    log_note(train->log, "%s", s.s);
}

static void write_trace(Train *train, ProgramKind program)
{
    size_t n;
    char *s = exec_trace(train->mem, train->x, program, &n);

    run_file(
        strf(train->mem, "%s/trace.%ld.json", train->dir, train->comm->first),
        s, n);
}

/* Returns bytes sent to experts: row exchanges count their rows, others have
 * the plan's sizes. */
static double sent_to_experts(const Train *train, ProgramKind program)
{
    int over = exec_result(train->x, RESULToverflow) > 0;
    double rows = 0, sum = (double)(train->comm->moved - train->moved);

    for (int64_t i = 0; i < train->comm->n; i++)
        for (ProgramKind k = PGstep; k < NPROGRAM; k++) {
            const Program *p = role_program(train->x->rank[i].role, k);
            if (!p || !(k == program || (k == PGfallback && over)))
                continue;
            rows += expert_bytes(p, 1);
            sum += expert_bytes(p, 0);
        }
    return rows > 0 && !train->comm->counts ? -1 : sum / (double)train->comm->n;
}

/* Returns per rank the seconds of a step without waits for other ranks. Null if
 * unknown: ranks of one process take turns, and the waits of a device with its
 * own memory are known only in a traced step. */
static const double *alone(Train *train, double secs)
{
    double among = watch_waited(), mine = secs - (among - train->among);
    int known = !exec_apart(train->x) || train->traced >= 0;

    train->among = among;
    mine = train->traced >= 0 ? train->traced : mine;
    train->traced = -1;
    if (!train->alone || !known)
        return NULL;
    comm_gather(train->comm, &mine, train->alone, sizeof mine);
    return train->alone;
}

static void begin_clocks(Train *train)
{
    train->since = monotonic();
    train->among = watch_waited();
}

/* Reads and reports the results of a step. */
static void read_step(Train *train, const PendingStep *step)
{
    double end = monotonic(), secs = end - train->since;
    double host = secs - (train->x->waited - train->waited);
    const double *each = alone(train, secs);

    check_indices(train);

    train->since = end;
    train->waited = train->x->waited;
    log_step(train->log, train->x,
             &(Logged){ step->step + 1, step->program,
                        step->first +
                            (train->train ? data_perstep(train->train) : 0),
                        step->b.lr, secs, train->late ? host : -1,
                        sent_to_experts(train, step->program), each });
    if (train->late && !train->read)
        say_start(train);
    if (train->late && train->read == REPLAYED)
        show_memory(train, 0);
    train->read++;
    if (!count_spike(train, step))
        count_bad(train, &step->b, &step->f);
}

void run_sent(Train *train, ProgramKind program, PendingStep *step, int late)
{
    if (train->train)
        step->f = data_feed(train->train, step->first);
    train->x->late = late;
    exec_run(train->x, program, &step->b, train->train ? &step->f : NULL);
    train->x->late = 0;
}

/* Waits for a step's results; if its rows overflowed, runs it again. behind:
 * null, or the step launched after it, which then runs again too. */
static void finish(Train *train, PendingStep *step, PendingStep *behind)
{
    int over = exec_result(train->x, RESULToverflow) > 0;

    if (over) {
        run_sent(train, PGfallback, step, 0);
        train->fallbacks++;
    }
    read_step(train, step);
    if (over && behind)
        run_sent(train, behind->program, behind, 1);
}

/* Waits until nothing runs and all results are read. */
static void settle(Train *train)
{
    if (!train->nsent)
        return;
    exec_settle(train->x);
    train->nsent = 0;
    finish(train, &train->sent, NULL);
}

static void one_step(Train *train)
{
    int64_t step = train->state.step;
    PendingStep s = { .step = step,
                      .program = program_of_step(train->plan, step + 1),
                      .b = step_block(train->x, step),
                      .first = train->state.samples };
    int traced = step + 1 == opts_int(train->plan->opts, "train.trace");
    int late = train->late && !train->bad && !traced;

    if (!late)
        settle(train);
    if (traced)
        exec_record(train->x, s.program);
    if (!train->nsent)
        begin_clocks(train);
    train->moved = train->comm->moved;
    run_sent(train, s.program, &s, late);
    if (traced) {
        write_trace(train, s.program);
        train->traced = exec_alone(train->x, s.program);
        exec_record(train->x, NPROGRAM);
    }
    train->state.step = step + 1;
    train->state.tokens += train->plan->tokens;
    train->state.samples += train->train ? data_perstep(train->train) : 0;
    if (!late)
        finish(train, &s, NULL);
    else if (train->nsent)
        finish(train, &train->sent, &s);
    train->nsent = late;
    train->sent = s;
}

static int is_time(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Compares replicas after a step whose results were read. A pending save of an
 * earlier step is completed first. */
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

/* Are replicas compared after this step? The default is at saves; on a GPU it
 * costs a copy. */
static int compares(const Train *train, int saves)
{
    const Opts *opts = train->plan->opts;

    return opts_str(opts, "train.check_every")
               ? train->state.step > 0 &&
                     is_time(train->state.step,
                             opts_int(opts, "train.check_every"))
               : saves && !exec_apart(train->x);
}

static void save(Train *train, SaveHow how)
{
    Text tuned = { .arena = arena_new() };
    double began = monotonic();

    told(train, saver_wait(train->saver));
    if (how == SAVEbeside && monotonic() - began > SLOW)
        log_note(train->log,
                 "training waited %.1f s for the save before: its disk is "
                 "slower than train.save_every\n",
                 monotonic() - began);
    if (train->saved != train->state.step) {
        run_tuned(train->x, &tuned);
        saver_save(train->saver, &train->state, &tuned, how);
    }
    told(train, saver_poll(train->saver));
    arena_free(tuned.arena);
}

/* Returns to the values of the last save and continues with the data after the
 * spike. */
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
    exec_filled(train->x);
    train->state.samples = samples;
    train->agreed = train->saved = train->state.step;
    log_note(train->log, "from step %ld back to step %ld, on with sample %ld\n",
             from, train->state.step, samples);
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

int run_steps(Train *train)
{
    const Opts *opts = train->plan->opts;
    int64_t steps = opts_int(opts, "train.steps");
    int64_t eval = opts_int(opts, "train.eval_every");
    int64_t keep = opts_int(opts, "train.save_every");
    int64_t samples = opts_int(opts, "train.sample_every");

    while (train->state.step < steps &&
           !comm_max(train->comm, signalled() || out_of_time(train)) &&
           train->state.samples < grows_at(train)) {
        err_status = FAILED;
        one_step(train);
        told(train, saver_poll(train->saver));
        int checks =
            is_time(train->state.step, eval) && train->state.step < steps;
        int keeps = is_time(train->state.step, keep);
        int speaks = is_time(train->state.step, samples);
        int ends = train->state.step == steps;
        int compare = compares(train, keeps || ends);
        if (checks || keeps || speaks || compare || ends)
            settle(train);
        if (train->spike.back) {
            go_back(train);
            continue;
        }
        if (compare)
            compare_ranks(train);
        if (speaks)
            take_sample(train);
        if (checks)
            validate(train);
        if (keeps)
            save(train, SAVEbeside);
    }
    settle(train);
    if (train->state.step < steps) {
        if (compares(train, 1))
            compare_ranks(train);
        save(train, SAVEwaits);
        if (train->state.samples >= grows_at(train))
            return 1;
        log_note(train->log, "%sstopped at step %ld; resume=1 continues\n",
                 out_of_time(train) ? "train.hours are over: " : "",
                 train->state.step);
        train->stopped = 1;
        return 0;
    }
    validate(train);
    if (steps > 0)
        save(train, SAVEwaits);
    if (train->fallbacks)
        log_note(train->log,
                 "%ld steps had more rows than route.factor gives room for "
                 "and ran as step.fallback\n",
                 train->fallbacks);
    return 0;
}
