/* start.c: preparation of a run: its folder, comparison with earlier starts,
 * initial values, data, disk space for checkpoints. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../../ir/settings/keys.h"
#include "run.h"

/* ---- the folder --------------------------------------------------------- */

int64_t failed_step(void)
{
    const char *s = getenv("PLEAT_AGAIN");

    return s ? atoll(s) : -1;
}

int resumes(const Plan *p)
{
    return opts_int(p->opts, "resume") || failed_step() >= 0;
}

/* err() where a file of the user has the name of a run's. A run that was killed
 * before it wrote config.lua has an empty ckpt and at most begun files. */
static void need_free(const Train *train)
{
    static const char begun[] = "ckpt metrics.jsonl plan ranks";
    static const char later[] = "data hf machine memory model tokenizer.json "
                                "tokenizer_config.json tuned";
    const char *config = strf(train->mem, "%s/config.lua", train->dir);
    int why, empty = folder_exists(train->ckpt) &&
                     !folder_names(train->mem, train->ckpt, &why);
    char **name = config_read(train->mem, config)
                      ? NULL
                      : folder_names(train->mem, train->dir, &why);

    for (size_t i = 0; i < vec_len(name); i++)
        if (has_word(later, ' ', name[i]) ||
            (!empty && has_word(begun, ' ', name[i])))
            err(NULL,
                "%s/%s is no run's, as there is no %s: name=... takes a new "
                "folder or a run's",
                train->dir, name[i], config);
}

void name_folders(Train *train)
{
    train->dir = run_dir(train->mem, train->plan);
    train->ckpt = strf(train->mem, "%s/ckpt", train->dir);
    if (!ckpt_exists(train->ckpt))
        need_free(train);
    else if (!resumes(train->plan))
        err(NULL,
            "%s holds checkpoints; resume=1 continues it, name=... starts "
            "another run",
            train->dir);
}

void show_memory(Train *train, int loud)
{
    Text s = { .arena = train->mem };

    exec_usage(train->x, &s);
    if (!s.len || train->comm->first)
        return;
    run_file(strf(train->mem, "%s/memory", train->dir), s.s, s.len);
    if (loud)
        log_note(train->log, "%s", s.s);
}

const char *describe_data(Train *train)
{
    Text s = { .arena = train->mem };

    put(&s, "%s", "");
    if (train->train)
        put_data(&s, "train", train->train);
    for (size_t i = 0; i < vec_len(train->valid); i++)
        put_data(&s, "valid", train->valid[i].data);
    return s.s ? s.s : "";
}

/* Returns the samples read by the last checkpoint in file order; -1: the order
 * is or was another. */
static int64_t read_in_order(Train *train, const Plan *p)
{
    const Settings *c =
        config_read(train->mem, strf(train->mem, "%s/config.lua", train->dir));
    State s;

    return c && opts_sample_order(c->given) == ORDERfiles &&
                   opts_sample_order(p->opts) == ORDERfiles &&
                   ckpt_newest(train->mem, train->ckpt, &s, NULL)
               ? s.samples
               : -1;
}

void compare_past(Train *train, const Plan *p)
{
    if (train->comm->first)
        return;
    train->record.data = describe_data(train);
    if (!resumes(p) || !ckpt_exists(train->ckpt))
        return;
    resume_settings(&train->changes, train->dir, p);
    resume_data(&train->changes, train->dir, train->record.data,
                read_in_order(train, p));
}

void compare_machine(Train *train, const Plan *p)
{
    Text s = { .arena = train->mem };

    if (train->comm->first)
        return;
    put_version(&s, 0);
    put_machine(&s);
    train->record.machine = s.s;
    if (resumes(p) && ckpt_exists(train->ckpt))
        resume_machine(&train->changes, train->dir, s.s);
}

void need_loss(const Plan *p)
{
    if (role_prog(&p->role[0], PGstep) < 0)
        err(NULL, "the model has no loss: there is nothing to train; write "
                  "loss(\"lm\", t)");
}

/* Checks the source of initial values before the run's folder is created. */
void need_from(const Train *train)
{
    const char *from = opts_str(train->plan->opts, "from");

    if (!from && opts_str(train->plan->opts, "adapter"))
        err(NULL, "adapter: the weights that it belongs to are not given "
                  "(from=FOLDER)");
    if (from && !train->comm->first &&
        !(resumes(train->plan) && ckpt_exists(train->ckpt)) &&
        access(from, R_OK))
        err(NULL, "from: %s: %s", from, strerror(errno));
}

/* A run that has completed its steps leaves its folder unchanged. */
int is_past(Train *train)
{
    int64_t steps = opts_int(train->plan->opts, "train.steps"), done = -1;
    State s;

    if (!train->comm->first && resumes(train->plan) &&
        ckpt_last(train->ckpt) > steps &&
        ckpt_newest(train->mem, train->ckpt, &s, NULL))
        done = s.step;
    done = comm_max(train->comm, done);
    if (done > steps && !train->comm->first)
        printf(
            "%s has done %ld steps, train.steps=%ld: nothing is left to do\n",
            train->dir, done, steps);
    return done > steps;
}

/* ---- the run ------------------------------------------------------------ */

/* Calls err() if ranks have different plans, which would make them wait
 * forever. */
void compare_plans(Train *train, const RunArgs *args)
{
    XXH128_hash_t h = XXH3_128bits(args->text, args->len);
    uint64_t mine[2] = { h.low64, h.high64 }, first[2] = { h.low64, h.high64 };

    train->state.plan = strf(train->mem, "%016lx%016lx", mine[1], mine[0]);
    comm_share(train->comm, first, sizeof first);
    int differ = memcmp(mine, first, sizeof mine) != 0;
    if (comm_max(train->comm, differ))
        err(NULL, "rank %ld has another plan than rank 0", train->comm->first);
}

void start_values(Train *train, int resume)
{
    const Opts *opts = train->plan->opts;
    const char *plan = train->state.plan;
    int from = ckpt_has_from(opts);

    if (resume && !ckpt_exists(train->ckpt)) {
        log_note(train->log, "%s holds nothing to resume: the run starts\n",
                 train->dir);
        resume = 0;
    }
    if (role_prog(&train->plan->role[0], PGinit) >= 0) {
        /* The first step is launched while the initialization runs. */
        train->x->late = train->late && !resume && !from;
        exec_run(train->x, PGinit, NULL, NULL);
        train->x->late = 0;
    }
    start_phase("from the GPU");
    if (resume || from)
        exec_pull(train->x);
    start_phase("checkpoint");
    train->saved = -1;
    if (resume && ckpt_resume(train->x, train->ckpt, &train->state)) {
        train->saved = train->state.step;
        log_note(train->log, "resume at step %ld\n", train->state.step);
        if (train->state.seed != (uint64_t)opts_int(opts, "seed"))
            err(NULL, "the run in %s has seed %lu", train->dir,
                train->state.seed);
    } else if (from) {
        ckpt_from_keys(train->x);
    }
    start_phase("to the GPU");
    if (resume || from)
        exec_filled(train->x);
    train->state.plan = plan;
    train->state.seed = (uint64_t)opts_int(opts, "seed");
}

void open_valid(Train *train)
{
    const char *s = opts_str(train->plan->opts, "data.valid"), *path;
    ValidSet v = { 0 };

    train->valid = NULL;
    for (int i = 0; s && opts_named(s, i, &v.name, &path); i++) {
        v.data = data_open_at(train->mem, train->plan, "data.valid", path, 0);
        if (v.data)
            vec_push(train->mem, train->valid, v);
    }
    if (!v.name &&
        (v.data = data_open(train->mem, train->plan, "data.valid", 0)))
        vec_push(train->mem, train->valid, v);
}

void open_data(Train *train)
{
    train->train =
        data_open(train->mem, train->plan, "data.train", DATAshuffle);
    open_valid(train);
    if (!train->train && plan_input(train->plan, 0) &&
        opts_int(train->plan->opts, "train.steps") > 0)
        err(NULL, "data.train is not set and the model has inputs "
                  "(data.train=book.txt)");
}

void open_exec(Train *train)
{
    train->x = exec_open(train->plan, train->comm);
    train->late = exec_apart(train->x);
    if (opts_int(train->plan->opts, "train.sample_every"))
        train->sampler = sampler_open(train->mem, train->x);
}

/* Prints a line for each source of data. */
void say_data(Train *train)
{
    Text s = { .arena = train->mem };

    if (train->train)
        data_says(train->train, &s);
    for (size_t i = 0; i < vec_len(train->valid); i++)
        data_says(train->valid[i].data, &s);
    if (s.len)
        log_note(train->log, "%s", s.s);
}

/* Warns if ranks compute products by different kernels, which changes last
 * bits. */
void say_products(Train *train)
{
    if (train->x->dev->can & OWNproducts)
        return;
    int64_t h = blas_hash();

    if (comm_max(train->comm, h) != -comm_max(train->comm, -h))
        log_note(train->log,
                 "some ranks do not compute products with %s as rank 0 does: "
                 "results depend on where ranks run\n",
                 blas_kind());
    if (blas_note())
        log_note(train->log, "%s\n", blas_note());
}

/* Checks memory and disk space for checkpoints before the first step. Saves run
 * beside training except after the last step. */
void open_saver(Train *train)
{
    const Opts *opts = train->plan->opts;
    int64_t steps = opts_int(opts, "train.steps"),
            keep = opts_int(opts, "train.keep");
    int64_t every = opts_int(opts, "train.save_every");
    SaveHow how =
        every && train->state.step + every < steps ? SAVEbeside : SAVEwaits;
    Text s = { .arena = train->mem };

    start_phase("checkpoints");
    if (train->state.step < steps && !train->comm->first)
        ckpt_room(train->ckpt, ckpt_bytes(train->mem, train->plan), keep,
                  every ? (steps - train->state.step + every - 1) / every : 1);
    train->saver =
        saver_open(train->x, train->ckpt, keep, train->saved, how, &s);
    if (s.len)
        log_note(train->log, "%s", s.s);
}
