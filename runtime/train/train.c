/* train.c: the commands `run`, `run --replay` and `eval`. */
#include "run.h"

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
    while (t->state.samples >= grows_at(t))
        t->grown++;
    return t->grown < t->args->nramp ? t->args->ramp[t->grown].plan : p;
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
    while (run_steps(&t))
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
