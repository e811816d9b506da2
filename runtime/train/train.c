/* train.c: the commands `run`, `run --replay` and `eval`. */
#include "run.h"

/* ---- commands ------------------------------------------------------------ */

static const char *plan_text(Plan *p, const RunArgs *args, size_t *len)
{
    *len = args && args->text ? args->len : 0;
    return *len ? args->text : plan_print(forever, p, len);
}

static void open_all(Train *train, Plan *p, void (*open)(Train *t))
{
    train->plan = p;
    train->mem = forever;
    need_device(p);
    start_phase("data");
    open(train);
    start_phase("ranks");
    train->comm = comm_open(train->mem, p->mesh->world);
    train->traced = -1;
    if (train->comm->n < train->comm->world)
        train->alone = alloc(train->mem,
                             (size_t)train->comm->world * sizeof *train->alone);
}

static void close_all(Train *train)
{
    log_close(train->log);
    exec_close(train->x);
    comm_close(train->comm);
}

int eval_plan(Plan *p)
{
    Train train = { 0 };

    train.dir = run_dir(forever, p);
    train.ckpt = strf(forever, "%s/ckpt", train.dir);
    open_all(&train, p, open_valid);
    train.x = exec_open(p, train.comm);
    train.log = log_open(train.mem, p, train.x, NULL);
    if (!train.valid)
        err(NULL, "eval needs data.valid");
    if (role_prog(&p->role[0], PGeval) < 0)
        err(NULL, "the model has no loss: there is nothing to evaluate");
    if (opts_int(p->opts, "resume") && !ckpt_exists(train.ckpt))
        err(NULL, "%s holds no checkpoint to evaluate", train.dir);
    say_data(&train);
    start_values(&train, opts_int(p->opts, "resume") != 0);
    validate(&train);
    close_all(&train);
    return 0;
}

/* ---- a batch that grows -------------------------------------------------- */

/* Returns the plan for the samples seen so far; p is the whole batch's plan. */
static Plan *plan_now(Train *train, Plan *p)
{
    while (train->state.samples >= grows_at(train))
        train->grown++;
    return train->grown < train->args->nramp
               ? train->args->ramp[train->grown].plan
               : p;
}

/* Opens the next plan of train.ramp, which continues from the last
 * checkpoint. */
static void grow(Train *train, Plan *p)
{
    if (train->unsaved)
        err(NULL,
            "the batch grows at step %ld, from a checkpoint that was not "
            "written",
            train->state.step);
    watch_stop();
    saver_close(train->saver);
    exec_close(train->x);
    train->plan = plan_now(train, p);
    open_data(train);
    open_exec(train);
    log_plan(train->log, train->plan, train->x);
    start_values(train, 1);
    open_saver(train);
    watch_start(&train->x->progress);
    log_note(train->log, "batch %ld from step %ld\n",
             opts_int(train->plan->opts, "train.batch"), train->state.step + 1);
}

static void need_ramp(const Plan *p, const RunArgs *args)
{
    int64_t end;

    if (!args->nramp && ramp(p->opts, 0, &end))
        err(NULL, "train.ramp compiles a plan for each batch: run the model "
                  "file, not a plan");
}

/* Opens the first plan; a resumed run starts with its last batch size. */
static void first_plan(Train *train, Plan *p)
{
    if (train->args->nramp && resumes(p) && ckpt_exists(train->ckpt))
        ckpt_newest(train->mem, train->ckpt, &train->state, NULL);
    open_all(train, plan_now(train, p), open_data);
}

/* Repeats the steps in which a GPU failed, from the last checkpoint, and waits
 * after each call: the failing call ends this process with its name. */
static _Noreturn void run_again(Train *train, int64_t step)
{
    int64_t n = train->train ? data_perstep(train->train) : 0;

    open_exec(train);
    train->log = log_open(train->mem, train->plan, train->x, NULL);
    start_values(train, 1);
    err_status = FAILED;
    for (int64_t k = step; k < step + 2; k++) {
        PendingStep s = { .step = k,
                          .program = program_of_step(train->plan, k + 1),
                          .b = step_block(train->x, k),
                          .first = train->state.samples +
                                   (k - train->state.step) * n };
        run_sent(train, s.program, &s, 0);
    }
    err(NULL,
        "the GPU did not fail again in step %ld, call by call and from the "
        "values of step %ld (PLEAT_SYNC=1 runs all steps so)",
        step + 1, train->state.step);
}

/* ---- repeated steps ------------------------------------------------------ */

static void open_replay(Train *train, Plan *p)
{
    const RunArgs *args = train->args;

    train->dir = run_dir(train->mem, p);
    train->ckpt = strf(train->mem, "%s/ckpt", train->dir);
    need_step(train->mem, train->dir, args->replay);
    char *path =
        ckpt_before(train->mem, train->ckpt, args->replay - 1, &train->state);
    int from = ckpt_has_from(p->opts);
    if (!path && args->begun)
        err(NULL,
            "%s has no checkpoint from which step %ld is reached with the "
            "settings it had since step %ld",
            train->dir, args->replay, args->begun);
    open_all(train, plan_now(train, p), open_data);
    compare_plans(train, args);
    if (!train->comm->first)
        resume_data(&train->changes, train->dir, describe_data(train), -1);
    tune_from(strf(train->mem, "%s/tuned", train->dir));
    open_exec(train);
    train->log = log_open(train->mem, train->plan, train->x, NULL);
    if (role_prog(&train->plan->role[0], PGinit) >= 0)
        exec_run(train->x, PGinit, NULL, NULL);
    exec_pull(train->x);
    if (path)
        ckpt_load(train->x, path, &train->state);
    else if (from)
        ckpt_from_keys(train->x);
    exec_filled(train->x);
    log_note(train->log, "from %s\n", path ? path : "the start");
}

static int replay_plan(Train *train, Plan *p)
{
    open_replay(train, p);
    err_status = FAILED;
    watch_start(&train->x->progress);
    int differ = repeat_to(train->x, train->train, train->log, train->dir,
                           &train->state, train->args->replay);
    watch_stop();
    if (differ && !train->comm->first)
        err(NULL,
            "step %ld is not what the run had: another machine, program or "
            "setting (see `machine`), or a fault of one",
            train->args->replay);
    close_all(train);
    return differ ? FAILED : 0;
}

int run_plan(Plan *p, const RunArgs *run_args)
{
    RunArgs args = run_args ? *run_args : (RunArgs){ 0 };
    Train train = { .plan = p,
                    .mem = forever,
                    .args = &args,
                    .ends = time_limit(p->opts),
                    .changes = { .arena = forever } };

    args.text = plan_text(p, run_args, &args.len);
    opts_check(p->opts);
    need_loss(p);
    need_ramp(p, &args);
    if (args.replay)
        return replay_plan(&train, p);
    name_folders(&train);
    first_plan(&train, p);
    compare_plans(&train, &args);
    if (is_past(&train)) {
        comm_close(train.comm);
        return 0;
    }
    compare_past(&train, p);
    need_from(&train);
    if (resumes(p) && ckpt_exists(train.ckpt))
        tune_from(strf(train.mem, "%s/tuned", train.dir));
    if (failed_step() >= 0)
        run_again(&train, failed_step());
    open_exec(&train);
    compare_machine(&train, p);
    if (!train.comm->first)
        run_make(train.dir, train.ckpt);
    comm_barrier(train.comm);
    train.log = log_open(train.mem, train.plan, train.x, train.dir);
    run_ranks(train.x, train.dir);
    say_products(&train);
    start_phase("values");
    start_values(&train, resumes(p));
    log_resume(train.log, train.state.step);
    if (train.changes.len)
        log_note(train.log, "%s", train.changes.s);
    train.record.step = train.agreed = train.state.step;
    run_folder(train.x, p, train.dir, &args, &train.record);
    open_saver(&train);
    show_memory(&train, 1);
    catch_signals();
    say_data(&train);
    watch_start(&train.x->progress);
    start_phase("first step");
    while (run_steps(&train))
        grow(&train, p);
    err_status = 1;
    watch_stop();
    saver_close(train.saver);
    if (train.unsaved && !train.comm->first)
        warn(NULL, "the last checkpoint, of step %ld, was not written",
             train.state.step);
    int first =
        !train.comm
             ->first; /* the launcher ends all ranks if one has a status */
    close_all(&train);
    return train.unsaved ? FAILED : train.stopped && first ? STOPPED : 0;
}
