/* train.c: `run`. Start values, the loop over steps, validation,
 * checkpoints. What a step does is in the plan; here is when.
 *
 * On a GPU a step is launched while the one before it runs, and that one's
 * results are read after: the GPU never waits for the host. A step without a
 * finite gradient has changed nothing and consumes its batch, so it may be
 * noticed one step late; from then on steps are read at once, until one is
 * good. A step that overflowed changed nothing either, but its batch must be
 * run again before the next. The one that is in flight when this is noticed has
 * seen on the GPU that it did, and changed nothing: it runs once more too. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "train.h"

typedef struct PendingStep { /* a step whose results are not read yet */
    int64_t step;            /* from 0 */
    StepValues b;
    Feed f;
    int64_t first; /* sample */
} PendingStep;

typedef struct ValidSet {
    const char *name;
    Data *data;
} ValidSet;

typedef struct Train {
    Plan *plan;
    Arena *mem;
    Exec *x;
    Comm *comm;
    Data *train;
    ValidSet *valid; /* vec */
    Log *log;
    const char *dir, *ckpt; /* run folder, its checkpoints */
    State state;
    Saver *saver;
    int64_t saved;     /* step of the last checkpoint; -1: none */
    int unsaved;       /* the last save failed */
    int64_t fallbacks; /* steps whose rows came in rounds */
    int bad;           /* steps in a row without an update */
    Spike spike;
    int64_t agreed; /* after that step ranks held the same */
    int late;       /* may results be read a step late? */
    int nsent;
    PendingStep sent;
    double since, waited; /* when the step before was read; seconds */
    double ends;          /* when train.hours are over */
    int64_t read;         /* steps read by this process */
    Sampler *sampler;     /* null: not asked for */
    const RunArgs *args;
    RunRecord record; /* rank 0's, of this start */
    Text changes;
    int grown; /* plans of train.ramp done */
} Train;

enum { MAXBAD = 3, MAXRESULT = 256, FAILED = 3, MAXCOUNTED = 1 << 26 };
enum { REPLAYED = 2, SLOW = 1 }; /* SLOW: seconds */

/* A GPU failed in this step and perhaps in the next (gpu_fault.c); -1: no. */
static int64_t failed_step(void)
{
    const char *s = getenv("PLEAT_AGAIN");

    return s ? atoll(s) : -1;
}

static int resumes(const Plan *p)
{
    return opts_int(p->opts, "resume") || failed_step() >= 0;
}

/* ---- run folder ---------------------------------------------------------- */

static void name_folders(Train *t)
{
    t->dir = run_dir(t->mem, t->plan);
    t->ckpt = strf(t->mem, "%s/ckpt", t->dir);
    if (!resumes(t->plan) && ckpt_exists(t->ckpt))
        err(NULL,
            "%s holds checkpoints; resume=1 continues it, name=... "
            "starts another run",
            t->dir);
}

/* To the run's folder, and printed when the run begins. */
static void show_memory(Train *t, int loud)
{
    Text s = { .arena = t->mem };

    exec_usage(t->x, &s);
    if (!s.len || t->comm->first)
        return;
    run_file(strf(t->mem, "%s/memory", t->dir), s.s, s.len);
    if (loud)
        log_note(t->log, "%s", s.s);
}

/* What the data are, for the run's folder. */
static const char *describe_data(Train *t)
{
    Text s = { .arena = t->mem };

    put(&s, "%s", "");
    if (t->train)
        put_data(&s, "train", t->train);
    for (size_t i = 0; i < vec_len(t->valid); i++)
        put_data(&s, "valid", t->valid[i].data);
    return s.s ? s.s : "";
}

/* Of a run that goes on: what is not as it was, a line each. By rank 0, before
 * anything is loaded or written. */
static void compare_past(Train *t, const Plan *p)
{
    if (t->comm->first)
        return;
    t->record.data = describe_data(t);
    if (!resumes(p) || !ckpt_exists(t->ckpt))
        return;
    resume_settings(&t->changes, t->dir, p);
    resume_data(&t->changes, t->dir, t->record.data);
}

/* The same of the machine, once it has opened its libraries. */
static void compare_machine(Train *t, const Plan *p)
{
    Text s = { .arena = t->mem };

    if (t->comm->first)
        return;
    put_version(&s, 0);
    put_machine(&s);
    t->record.machine = s.s;
    if (resumes(p) && ckpt_exists(t->ckpt))
        resume_machine(&t->changes, t->dir, s.s);
}

/* ---- start --------------------------------------------------------------- */

/* Plans that differ between ranks would wait for each other in different
 * steps. */
static void compare_plans(Train *t, const RunArgs *a)
{
    XXH128_hash_t h = XXH3_128bits(a->text, a->len);
    uint64_t mine[2] = { h.low64, h.high64 }, first[2] = { h.low64, h.high64 };

    t->state.plan = strf(t->mem, "%016llx%016llx", (unsigned long long)mine[1],
                         (unsigned long long)mine[0]);
    comm_share(t->comm, first, sizeof first);
    int differ = memcmp(mine, first, sizeof mine) != 0;
    if (comm_max(t->comm, differ))
        err(NULL, "rank %lld has another plan than rank 0",
            (long long)t->comm->first);
}

static void start_values(Train *t, int resume)
{
    const Opts *o = t->plan->opts;
    const char *plan = t->state.plan, *from = opts_str(o, "from");

    if (resume && !ckpt_exists(t->ckpt)) {
        log_note(t->log, "%s holds nothing to resume: the run starts\n",
                 t->dir);
        resume = 0;
    }
    if (role_prog(&t->plan->role[0], PGinit) >= 0)
        exec_run(t->x, PGinit, NULL, NULL);
    start_phase("from the GPU");
    if (resume || from)
        exec_pull(t->x);
    start_phase("checkpoint");
    t->saved = -1;
    if (resume && ckpt_resume(t->x, t->ckpt, &t->state)) {
        t->saved = t->state.step;
        log_note(t->log, "resume at step %lld\n", (long long)t->state.step);
        if (t->state.seed != (uint64_t)opts_int(o, "seed"))
            err(NULL, "the run in %s has seed %llu", t->dir,
                (unsigned long long)t->state.seed);
    } else if (from) {
        ckpt_from(t->x, from);
    }
    start_phase("to the GPU");
    if (resume || from)
        exec_push(t->x);
    t->state.plan = plan;
    t->state.seed = (uint64_t)opts_int(o, "seed");
}

static void open_valid(Train *t)
{
    const char *s = opts_str(t->plan->opts, "data.valid"), *path;
    ValidSet v = { 0 };

    t->valid = NULL;
    for (int i = 0; s && opts_named(s, i, &v.name, &path); i++) {
        v.data = data_open_at(t->mem, t->plan, "data.valid", path, 0);
        if (v.data)
            vec_push(t->mem, t->valid, v);
    }
    if (!v.name && (v.data = data_open(t->mem, t->plan, "data.valid", 0)))
        vec_push(t->mem, t->valid, v);
}

static void open_data(Train *t)
{
    t->train = data_open(t->mem, t->plan, "data.train", DATAshuffle);
    open_valid(t);
    if (!t->train && plan_input(t->plan, 0) &&
        opts_int(t->plan->opts, "train.steps") > 0)
        err(NULL, "data.train is not set and the model has inputs");
}

/* ---- the loop ------------------------------------------------------------ */

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
static int out_of_time(const Train *t)
{
    return !t->comm->first && t->read && monotonic() >= t->ends;
}

static int stopping(Train *t)
{
    return comm_max(t->comm, signalled()) != 0;
}

/* Mean results over eval_steps steps, always of the same samples; none if a
 * signal comes meanwhile. */
static void validate_on(Train *t, const ValidSet *v)
{
    const Role *r = exec_role(t->x, t->comm->first);
    int64_t n = opts_int(t->plan->opts, "train.eval_steps");
    double sum[MAXRESULT] = { 0 };

    for (int64_t k = 0; k < n; k++) {
        if (stopping(t))
            return;
        Feed f = data_feed(v->data, k * data_perstep(v->data));
        StepValues b = step_block(t->plan->opts, t->state.step);
        exec_run(t->x, PGeval, &b, &f);
        for (int i = 0; i < r->nout && i < MAXRESULT; i++)
            sum[i] = plain_nan(sum[i] + exec_out(t->x, i) / (double)n);
    }
    int last = t->state.step >= opts_int(t->plan->opts, "train.steps");
    log_valid(t->log, t->state.step, v->name, sum,
              last ? beside(t, v->data, n * data_perstep(v->data)) : "");
}

static void validate(Train *t)
{
    if (role_prog(exec_role(t->x, t->comm->first), PGeval) < 0)
        return;
    for (size_t i = 0; i < vec_len(t->valid); i++)
        validate_on(t, &t->valid[i]);
}

/* What became of a save. */
static void told(Train *t, const Saved *s)
{
    if (!s)
        return;
    t->unsaved = s->bad;
    if (s->bad)
        return;
    t->saved = s->step;
    log_saved(t->log, s);
}

/* The same inputs again, looking for where it begins; then the end. */
static _Noreturn void stop_bad(Train *t, const StepValues *b, const Feed *f)
{
    told(t, saver_wait(t->saver));
    const char *what = exec_checked(t->x, PGstep, b, f);

    if (comm_speaks(t->comm, what != NULL))
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

static void count_bad(Train *t, const StepValues *b, const Feed *f)
{
    double ok = exec_result(t->x, RESULTok);

    if (ok == ok ? ok != 0 : isfinite(exec_result(t->x, RESULTloss))) {
        t->bad = 0;
        return;
    }
    t->state.skipped++;
    if (++t->bad == MAXBAD)
        stop_bad(t, b, f);
}

/* Who computes products decides on their last bits. */
static void say_products(Train *t)
{
    if (t->x->dev->can & OWNproducts)
        return;
    int64_t h = blas_hash();

    if (comm_max(t->comm, h) != -comm_max(t->comm, -h))
        log_note(t->log,
                 "some ranks do not compute products with %s as rank 0 does: "
                 "results depend on where ranks run\n",
                 blas_kind());
    if (blas_note())
        log_note(t->log, "%s\n", blas_note());
}

static void say_start(Train *t)
{
    Text s = { .arena = t->mem };

    start_phase(NULL);
    start_says(&s);
    log_note(t->log, "%s", s.s);
}

static void write_trace(Train *t)
{
    size_t n;
    char *s = exec_trace(t->mem, t->x, PGstep, &n);

    run_file(
        strf(t->mem, "%s/trace.%lld.json", t->dir, (long long)t->comm->first),
        s, n);
}

/* A step's results are here. */
static void read_instr(Train *t, const PendingStep *s)
{
    double end = monotonic(), secs = end - t->since;
    double host = secs - (t->x->waited - t->waited);

    t->since = end;
    t->waited = t->x->waited;
    log_step(t->log, t->x,
             &(Logged){ s->step + 1,
                        s->first + (t->train ? data_perstep(t->train) : 0),
                        s->b.lr, secs, t->late ? host : -1 });
    if (t->late && !t->read)
        say_start(t);
    if (t->late && t->read == REPLAYED)
        show_memory(t, 0);
    t->read++;
    if (!count_spike(t, s))
        count_bad(t, &s->b, &s->f);
}

static void run_sent(Train *t, ProgramKind program, PendingStep *s, int late)
{
    if (t->train)
        s->f = data_feed(t->train, s->first);
    t->x->late = late;
    exec_run(t->x, program, &s->b, t->train ? &s->f : NULL);
    t->x->late = 0;
}

/* A step's results are here, or that its rows did not fit. behind: null, or the
 * one that was launched after it. */
static void finish(Train *t, PendingStep *s, PendingStep *behind)
{
    int over = exec_result(t->x, RESULToverflow) > 0;

    if (over) {
        run_sent(t, PGfallback, s, 0);
        t->fallbacks++;
    }
    read_instr(t, s);
    if (over && behind)
        run_sent(t, PGstep, behind, 1);
}

/* Nothing runs any more, and all results were read. */
static void settle(Train *t)
{
    if (!t->nsent)
        return;
    exec_settle(t->x);
    t->nsent = 0;
    finish(t, &t->sent, NULL);
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
        t->since = monotonic();
    run_sent(t, PGstep, &s, late);
    if (traced) {
        write_trace(t);
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
static void compare_ranks(Train *t)
{
    const char *why = NULL;

    if (t->comm->world > 1 && t->agreed != t->state.step)
        why = replicas_differ(t->x, t->state.step, t->agreed);
    t->agreed = t->state.step;
    if (!why)
        return;
    told(t, saver_wait(t->saver));
    if (comm_speaks(t->comm, 0))
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
static void go_back(Train *t)
{
    int64_t from = t->state.step;

    settle(t);
    told(t, saver_wait(t->saver));
    int64_t samples = t->spike.back;
    t->spike.back = 0;
    if (t->saved < 0) {
        log_note(t->log, "no checkpoint to go back to: only the batch is "
                         "skipped\n");
        return;
    }
    spike_back(&t->spike, t->saved);
    exec_pull(t->x);
    ckpt_resume(t->x, t->ckpt, &t->state);
    exec_push(t->x);
    t->state.samples = samples;
    t->agreed = t->saved = t->state.step;
    log_note(t->log, "from step %lld back to step %lld, on with sample %lld\n",
             (long long)from, (long long)t->state.step, (long long)samples);
}

static void take_sample(Train *t)
{
    size_t n = 0;
    char *s = sample(t->sampler, t->state.step, &n);

    if (s)
        log_sample(t->log, t->state.step, s, n);
    free(s);
}

/* The batch grows at this sample. */
static int64_t until(const Train *t)
{
    return t->grown < t->args->nramp ? t->args->ramp[t->grown].until
                                     : INT64_MAX;
}

/* Until the end, a signal, the last of train.hours, or a larger batch; 1: it
 * was the batch. */
static int loop(Train *t)
{
    const Opts *o = t->plan->opts;
    int64_t steps = opts_int(o, "train.steps");
    int64_t eval = opts_int(o, "train.eval_every");
    int64_t keep = opts_int(o, "train.save_every");
    int64_t samples = opts_int(o, "train.sample_every");

    while (t->state.step < steps &&
           !comm_max(t->comm, signalled() || out_of_time(t)) &&
           t->state.samples < until(t)) {
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
        if (t->state.samples >= until(t))
            return 1;
        log_note(t->log, "%sstopped at step %lld; resume=1 continues\n",
                 out_of_time(t) ? "train.hours are over: " : "",
                 (long long)t->state.step);
        return 0;
    }
    validate(t);
    if (steps > 0)
        save(t, SAVEwaits);
    if (t->fallbacks)
        log_note(t->log,
                 "%lld steps had more rows than route.factor gives "
                 "room for and ran as step.fallback\n",
                 (long long)t->fallbacks);
    return 0;
}

/* ---- commands ------------------------------------------------------------ */

static const char *plan_text(Plan *p, const RunArgs *a, size_t *len)
{
    *len = a && a->text ? a->len : 0;
    return *len ? a->text : plan_print(forever, p, len);
}

static void open_all(Train *t, Plan *p)
{
    t->plan = p;
    t->mem = forever;
    need_device(p);
    start_phase("data");
    open_data(t);
    start_phase("ranks");
    t->comm = comm_open(t->mem, p->mesh->world);
}

static void close_all(Train *t)
{
    log_close(t->log);
    exec_close(t->x);
    comm_close(t->comm);
}

int eval_plan(Plan *p)
{
    Train t = { 0 };

    t.dir = run_dir(forever, p);
    t.ckpt = strf(forever, "%s/ckpt", t.dir);
    open_all(&t, p);
    t.x = exec_open(p, t.comm);
    t.log = log_open(t.mem, p, t.x, NULL);
    if (!t.valid)
        err(NULL, "eval needs data.valid");
    if (opts_int(p->opts, "resume") && !ckpt_exists(t.ckpt))
        err(NULL, "%s holds no checkpoint to evaluate", t.dir);
    start_values(&t, opts_int(p->opts, "resume") != 0);
    validate(&t);
    close_all(&t);
    return 0;
}

/* ---- a batch that grows -------------------------------------------------- */

/* The plan for the samples seen so far; p is the one for the whole batch. */
static Plan *plan_now(Train *t, Plan *p)
{
    while (t->state.samples >= until(t))
        t->grown++;
    return t->grown < t->args->nramp ? t->args->ramp[t->grown].plan : p;
}

static void open_exec(Train *t)
{
    t->x = exec_open(t->plan, t->comm);
    t->late = exec_apart(t->x);
    if (opts_int(t->plan->opts, "train.sample_every"))
        t->sampler = sampler_open(t->mem, t->x);
}

/* Before the first step: is there room for checkpoints, here and on the disk? A
 * save beside training is one with steps behind it. */
static void open_saver(Train *t)
{
    const Opts *o = t->plan->opts;
    int64_t steps = opts_int(o, "train.steps"),
            keep = opts_int(o, "train.keep");
    int64_t every = opts_int(o, "train.save_every");
    SaveHow how =
        every && t->state.step + every < steps ? SAVEbeside : SAVEwaits;
    Text s = { .arena = t->mem };

    start_phase("checkpoints");
    if (t->state.step < steps && !t->comm->first)
        ckpt_room(t->ckpt, ckpt_bytes(t->mem, t->plan), keep,
                  every ? (steps - t->state.step + every - 1) / every : 1);
    t->saver = saver_open(t->x, t->ckpt, keep, t->saved, how, &s);
    if (s.len)
        log_note(t->log, "%s", s.s);
}

/* The next plan goes on from the checkpoint that was just written. */
static void grow(Train *t, Plan *p)
{
    if (t->unsaved)
        err(NULL,
            "the batch grows at step %lld, from a checkpoint that was not "
            "written",
            (long long)t->state.step);
    watch_stop();
    saver_close(t->saver);
    exec_close(t->x);
    t->plan = plan_now(t, p);
    open_data(t);
    open_exec(t);
    log_plan(t->log, t->plan, t->x);
    start_values(t, 1);
    open_saver(t);
    watch_start(&t->x->progress);
    log_note(t->log, "batch %lld from step %lld\n",
             (long long)opts_int(t->plan->opts, "train.batch"),
             (long long)t->state.step + 1);
}

static void need_ramp(const Plan *p, const RunArgs *a)
{
    int64_t end;

    if (!a->nramp && ramp(p->opts, 0, &end))
        err(NULL, "train.ramp compiles a plan for each batch: run the model "
                  "file, not a plan");
}

/* A run that is continued begins with the batch it had. */
static void first_plan(Train *t, Plan *p)
{
    if (t->args->nramp && resumes(p) && ckpt_exists(t->ckpt))
        ckpt_newest(t->mem, t->ckpt, &t->state, NULL);
    open_all(t, plan_now(t, p));
}

/* The steps in which a GPU failed, from the last checkpoint's values, each call
 * waited for: the one that fails ends this process with its name. */
static _Noreturn void run_again(Train *t, int64_t step)
{
    int64_t n = t->train ? data_perstep(t->train) : 0;

    open_exec(t);
    t->log = log_open(t->mem, t->plan, t->x, NULL);
    start_values(t, 1);
    err_status = FAILED;
    for (int64_t k = step; k < step + 2; k++) {
        PendingStep s = { .step = k,
                          .b = step_block(t->plan->opts, k),
                          .first = t->state.samples + (k - t->state.step) * n };
        run_sent(t, PGstep, &s, 0);
    }
    err(NULL,
        "the GPU did not fail again in step %lld, call by call and from "
        "the values of step %lld (PLEAT_SYNC=1 runs all steps so)",
        (long long)step + 1, (long long)t->state.step);
}

/* ---- a step again -------------------------------------------------------- */

static void open_replay(Train *t, Plan *p)
{
    const RunArgs *a = t->args;

    t->dir = run_dir(t->mem, p);
    t->ckpt = strf(t->mem, "%s/ckpt", t->dir);
    need_step(t->mem, t->dir, a->replay);
    char *path = ckpt_before(t->mem, t->ckpt, a->replay - 1, &t->state);
    const char *from = opts_str(p->opts, "from");
    if (!path && a->begun)
        err(NULL,
            "%s has no checkpoint from which step %lld is reached with the "
            "settings it had since step %lld",
            t->dir, (long long)a->replay, (long long)a->begun);
    open_all(t, plan_now(t, p));
    compare_plans(t, a);
    if (!t->comm->first)
        resume_data(&t->changes, t->dir, describe_data(t));
    tune_from(strf(t->mem, "%s/tuned", t->dir));
    open_exec(t);
    t->log = log_open(t->mem, t->plan, t->x, NULL);
    if (role_prog(&t->plan->role[0], PGinit) >= 0)
        exec_run(t->x, PGinit, NULL, NULL);
    exec_pull(t->x);
    if (path)
        ckpt_load(t->x, path, &t->state);
    else if (from)
        ckpt_from(t->x, from);
    exec_push(t->x);
    log_note(t->log, "from %s\n", path ? path : "the start");
}

static int replay_plan(Train *t, Plan *p)
{
    open_replay(t, p);
    err_status = FAILED;
    watch_start(&t->x->progress);
    int differ =
        repeat_to(t->x, t->train, t->log, t->dir, &t->state, t->args->replay);
    watch_stop();
    if (differ && !t->comm->first)
        err(NULL,
            "step %lld is not what the run had: another machine, program or "
            "setting (see `machine`), or a fault of one",
            (long long)t->args->replay);
    close_all(t);
    return differ ? FAILED : 0;
}

/* Where the first values come from must be there before a folder is made. */
static void need_from(const Train *t)
{
    const char *from = opts_str(t->plan->opts, "from");

    if (from && !t->comm->first &&
        !(resumes(t->plan) && ckpt_exists(t->ckpt)) && access(from, R_OK))
        err(NULL, "from: %s: %s", from, strerror(errno));
}

/* A run that has done more steps than are asked for has nothing to do, and its
 * folder stays as it is. */
static int is_past(Train *t)
{
    int64_t steps = opts_int(t->plan->opts, "train.steps"), done = -1;
    State s;

    if (!t->comm->first && resumes(t->plan) && ckpt_last(t->ckpt) > steps &&
        ckpt_newest(t->mem, t->ckpt, &s, NULL))
        done = s.step;
    done = comm_max(t->comm, done);
    if (done > steps && !t->comm->first)
        printf("%s has done %lld steps, train.steps=%lld: nothing is left to "
               "do\n",
               t->dir, (long long)done, (long long)steps);
    return done > steps;
}

int run_plan(Plan *p, const RunArgs *a)
{
    RunArgs args = a ? *a : (RunArgs){ 0 };
    Train t = { .plan = p,
                .mem = forever,
                .args = &args,
                .ends = time_limit(p->opts),
                .changes = { .arena = forever } };

    args.text = plan_text(p, a, &args.len);
    opts_check(p->opts);
    need_ramp(p, &args);
    if (args.replay)
        return replay_plan(&t, p);
    name_folders(&t);
    first_plan(&t, p);
    compare_plans(&t, &args);
    if (is_past(&t)) {
        comm_close(t.comm);
        return 0;
    }
    compare_past(&t, p);
    need_from(&t);
    if (resumes(p) && ckpt_exists(t.ckpt))
        tune_from(strf(t.mem, "%s/tuned", t.dir));
    if (failed_step() >= 0)
        run_again(&t, failed_step());
    open_exec(&t);
    compare_machine(&t, p);
    if (!t.comm->first) {
        run_make(t.ckpt);
        run_lock(t.dir);
    }
    comm_barrier(t.comm);
    t.log = log_open(t.mem, t.plan, t.x, t.dir);
    run_ranks(t.x, t.dir);
    say_products(&t);
    start_phase("values");
    start_values(&t, resumes(p));
    if (t.changes.len)
        log_note(t.log, "%s", t.changes.s);
    t.record.step = t.agreed = t.state.step;
    run_folder(t.x, p, t.dir, &args, &t.record);
    open_saver(&t);
    show_memory(&t, 1);
    catch_signals();
    watch_start(&t.x->progress);
    start_phase("first step");
    while (loop(&t))
        grow(&t, p);
    err_status = 1;
    watch_stop();
    saver_close(t.saver);
    if (t.unsaved && !t.comm->first)
        warn(NULL, "the last checkpoint, of step %lld, was not written",
             (long long)t.state.step);
    close_all(&t);
    return t.unsaved ? FAILED : 0;
}
