/* start.c: what comes before the first step: the run's folder and what it says
 * of the run before, values, data, room for checkpoints. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

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

void name_folders(Train *train)
{
    train->dir = run_dir(train->mem, train->plan);
    train->ckpt = strf(train->mem, "%s/ckpt", train->dir);
    if (!resumes(train->plan) && ckpt_exists(train->ckpt))
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

const char *describe_data(Train *t)
{
    Text s = { .arena = t->mem };

    put(&s, "%s", "");
    if (t->train)
        put_data(&s, "train", t->train);
    for (size_t i = 0; i < vec_len(t->valid); i++)
        put_data(&s, "valid", t->valid[i].data);
    return s.s ? s.s : "";
}

/* Samples that the last checkpoint has read in the order of files; -1: in
 * another order, then or now. */
static int64_t read_in_order(Train *t, const Plan *p)
{
    const Settings *c =
        config_read(t->mem, strf(t->mem, "%s/config.lua", t->dir));
    State s;

    return c && opts_sample_order(c->given) == ORDERfiles &&
                   opts_sample_order(p->opts) == ORDERfiles &&
                   ckpt_newest(t->mem, t->ckpt, &s, NULL)
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

/* Where the first values come from must be there before a folder is made. */
void need_from(const Train *train)
{
    const char *from = opts_str(train->plan->opts, "from");

    if (from && !train->comm->first &&
        !(resumes(train->plan) && ckpt_exists(train->ckpt)) &&
        access(from, R_OK))
        err(NULL, "from: %s: %s", from, strerror(errno));
}

/* A run that has done more steps than are asked for has nothing to do, and its
 * folder stays as it is. */
int is_past(Train *t)
{
    int64_t steps = opts_int(t->plan->opts, "train.steps"), done = -1;
    State s;

    if (!t->comm->first && resumes(t->plan) && ckpt_last(t->ckpt) > steps &&
        ckpt_newest(t->mem, t->ckpt, &s, NULL))
        done = s.step;
    done = comm_max(t->comm, done);
    if (done > steps && !t->comm->first)
        printf(
            "%s has done %lld steps, train.steps=%lld: nothing is left to do\n",
            t->dir, (long long)done, (long long)steps);
    return done > steps;
}

/* ---- the run ------------------------------------------------------------ */

/* Plans that differ between ranks would wait for each other in different
 * steps. */
void compare_plans(Train *train, const RunArgs *a)
{
    XXH128_hash_t h = XXH3_128bits(a->text, a->len);
    uint64_t mine[2] = { h.low64, h.high64 }, first[2] = { h.low64, h.high64 };

    train->state.plan =
        strf(train->mem, "%016llx%016llx", (unsigned long long)mine[1],
             (unsigned long long)mine[0]);
    comm_share(train->comm, first, sizeof first);
    int differ = memcmp(mine, first, sizeof mine) != 0;
    if (comm_max(train->comm, differ))
        err(NULL, "rank %lld has another plan than rank 0",
            (long long)train->comm->first);
}

void start_values(Train *train, int resume)
{
    const Opts *o = train->plan->opts;
    const char *plan = train->state.plan, *from = opts_str(o, "from");

    if (resume && !ckpt_exists(train->ckpt)) {
        log_note(train->log, "%s holds nothing to resume: the run starts\n",
                 train->dir);
        resume = 0;
    }
    if (role_prog(&train->plan->role[0], PGinit) >= 0)
        exec_run(train->x, PGinit, NULL, NULL);
    start_phase("from the GPU");
    if (resume || from)
        exec_pull(train->x);
    start_phase("checkpoint");
    train->saved = -1;
    if (resume && ckpt_resume(train->x, train->ckpt, &train->state)) {
        train->saved = train->state.step;
        log_note(train->log, "resume at step %lld\n",
                 (long long)train->state.step);
        if (train->state.seed != (uint64_t)opts_int(o, "seed"))
            err(NULL, "the run in %s has seed %llu", train->dir,
                (unsigned long long)train->state.seed);
    } else if (from) {
        ckpt_from(train->x, from);
    }
    start_phase("to the GPU");
    if (resume || from)
        exec_push(train->x);
    train->state.plan = plan;
    train->state.seed = (uint64_t)opts_int(o, "seed");
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

void open_data(Train *t)
{
    t->train = data_open(t->mem, t->plan, "data.train", DATAshuffle);
    open_valid(t);
    if (!t->train && plan_input(t->plan, 0) &&
        opts_int(t->plan->opts, "train.steps") > 0)
        err(NULL, "data.train is not set and the model has inputs "
                  "(data.train=book.txt)");
}

void open_exec(Train *t)
{
    t->x = exec_open(t->plan, t->comm);
    t->late = exec_apart(t->x);
    if (opts_int(t->plan->opts, "train.sample_every"))
        t->sampler = sampler_open(t->mem, t->x);
}

/* Who computes products decides on their last bits. */
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

/* Before the first step: is there room for checkpoints, here and on the disk? A
 * save beside training is one with steps behind it. */
void open_saver(Train *t)
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
