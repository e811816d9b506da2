/* start.c: what comes before the first step: the run's folder and what it says
 * of the run before, values, data, room for checkpoints. */
#define _GNU_SOURCE
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

void name_folders(Train *t)
{
    t->dir = run_dir(t->mem, t->plan);
    t->ckpt = strf(t->mem, "%s/ckpt", t->dir);
    if (!resumes(t->plan) && ckpt_exists(t->ckpt))
        err(NULL,
            "%s holds checkpoints; resume=1 continues it, name=... "
            "starts another run",
            t->dir);
}

void show_memory(Train *t, int loud)
{
    Text s = { .arena = t->mem };

    exec_usage(t->x, &s);
    if (!s.len || t->comm->first)
        return;
    run_file(strf(t->mem, "%s/memory", t->dir), s.s, s.len);
    if (loud)
        log_note(t->log, "%s", s.s);
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

void compare_past(Train *t, const Plan *p)
{
    if (t->comm->first)
        return;
    t->record.data = describe_data(t);
    if (!resumes(p) || !ckpt_exists(t->ckpt))
        return;
    resume_settings(&t->changes, t->dir, p);
    resume_data(&t->changes, t->dir, t->record.data);
}

void compare_machine(Train *t, const Plan *p)
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

/* Where the first values come from must be there before a folder is made. */
void need_from(const Train *t)
{
    const char *from = opts_str(t->plan->opts, "from");

    if (from && !t->comm->first &&
        !(resumes(t->plan) && ckpt_exists(t->ckpt)) && access(from, R_OK))
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
        printf("%s has done %lld steps, train.steps=%lld: nothing is left to "
               "do\n",
               t->dir, (long long)done, (long long)steps);
    return done > steps;
}

/* ---- the run ------------------------------------------------------------ */

/* Plans that differ between ranks would wait for each other in different
 * steps. */
void compare_plans(Train *t, const RunArgs *a)
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

void start_values(Train *t, int resume)
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

void open_data(Train *t)
{
    t->train = data_open(t->mem, t->plan, "data.train", DATAshuffle);
    open_valid(t);
    if (!t->train && plan_input(t->plan, 0) &&
        opts_int(t->plan->opts, "train.steps") > 0)
        err(NULL, "data.train is not set and the model has inputs");
}

void open_exec(Train *t)
{
    t->x = exec_open(t->plan, t->comm);
    t->late = exec_apart(t->x);
    if (opts_int(t->plan->opts, "train.sample_every"))
        t->sampler = sampler_open(t->mem, t->x);
}

/* Who computes products decides on their last bits. */
void say_products(Train *t)
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
