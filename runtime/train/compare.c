/* compare.c: precision.compare: runs a model in two precisions from the same
 * values and on the same data. Prints losses and gradient norms of each step,
 * then the parameters with the largest difference of gradients in the first
 * step, taken from first moments. Writes no files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum { SHOWN = 5 };

/* A first moment after the first step: the parts of the ranks here. */
typedef struct HeldMoment {
    const Tensor *tensor;
    int64_t rank, n;
    double *v;
} HeldMoment;

typedef struct Course {
    double *loss, *norm; /* per step */
    HeldMoment *moment;  /* vec */
} Course;

typedef struct Apart { /* a parameter's difference, over all ranks */
    double apart, sum; /* sums of squares: of differences, of the reference */
} Apart;

typedef struct Worst {
    const Tensor *tensor; /* the parameter */
    double apart;
} Worst;

static double element(const uint8_t *p, Dtype dt, int64_t i)
{
    return dt == Dbf16  ? (double)bf16_to_f32(((const uint16_t *)p)[i])
           : dt == Df64 ? ((const double *)p)[i]
                        : (double)((const float *)p)[i];
}

typedef struct Reading {
    const uint8_t *p;
    Dtype dt;
    HeldMoment *to;
} Reading;

static void read_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    Reading *reading = ctx;

    (void)global;
    for (int64_t i = 0; i < n; i++)
        reading->to->v[reading->to->n++] =
            element(reading->p, reading->dt, local + i);
}

/* Reads each part once, from one of the ranks that hold it. */
static void read_moments(Exec *x, Course *course)
{
    exec_pull(x);
    for (int64_t r = x->comm->first; r < x->comm->first + x->comm->n; r++) {
        const Role *role = exec_role(x, r);
        for (int i = 0; i < role->ntensor; i++) {
            const Tensor *t = &role->tensor[i];
            if (!tensor_is(t, MOMENTS) || strncmp(t->name, "optim.m.", 8) ||
                !tensor_owner(x->plan->mesh, t, r))
                continue;
            HeldMoment m = { t, r, 0, NULL };
            m.v = alloc(forever, (size_t)(tensor_held(t) + 1) * sizeof *m.v);
            Reading reading = { exec_buf(x, r, t->buf), t->dt, &m };
            tensor_runs(x->plan->mesh, t, r, read_run, &reading);
            vec_push(forever, course->moment, m);
        }
    }
}

static Course run_course(Comm *comm, Plan *p, int64_t steps)
{
    Train train = { .plan = p, .mem = forever, .comm = comm, .traced = -1 };
    Course course = { alloc(forever, (size_t)steps * sizeof *course.loss),
                      alloc(forever, (size_t)steps * sizeof *course.norm),
                      NULL };

    train.dir = run_dir(train.mem, p);
    train.ckpt = strf(train.mem, "%s/ckpt", train.dir);
    open_data(&train);
    open_exec(&train);
    train.log = log_open(train.mem, p, train.x, NULL);
    start_values(&train, resumes(p));
    for (int64_t i = 0; i < steps; i++) {
        StepValues b = step_block(train.x, train.state.step + i);
        Feed f = { 0 };
        if (train.train)
            f = data_feed(train.train,
                          train.state.samples + i * data_perstep(train.train));
        exec_exact(train.x, PGstep, &b, train.train ? &f : NULL);
        course.loss[i] = exec_result(train.x, RESULTloss);
        course.norm[i] = exec_result(train.x, RESULTgrad_norm);
        if (!i)
            read_moments(train.x, &course);
    }
    log_close(train.log);
    exec_close(train.x);
    return course;
}

/* Returns differences by role and tensor of p: tensor k of role i is at i *
 * most + k. */
static Apart *apart_here(const Plan *p, int64_t most, const Course *course)
{
    Apart *v = alloc(forever, (size_t)(p->nrole * most + 1) * sizeof *v);

    if (vec_len(course[0].moment) != vec_len(course[1].moment))
        return v;
    for (size_t i = 0; i < vec_len(course->moment); i++) {
        const HeldMoment *a = &course[0].moment[i], *b = &course[1].moment[i];
        int role = role_of(p, a->rank);
        Apart *to = &v[role * most + (a->tensor - p->role[role].tensor)];
        for (int64_t k = 0; k < a->n && a->n == b->n; k++) {
            to->apart += (a->v[k] - b->v[k]) * (a->v[k] - b->v[k]);
            to->sum += b->v[k] * b->v[k];
        }
    }
    return v;
}

static int by_apart(const void *a, const void *b)
{
    double x = ((const Worst *)a)->apart, y = ((const Worst *)b)->apart;

    return (x < y) - (x > y);
}

static const Tensor *parameter_at(const Role *role, int64_t i)
{
    return &role->tensor[role->tensor[i].of];
}

/* Returns a vec of all parameters, the largest difference first. */
static Worst *worst_of(Comm *comm, const Plan *p, const Course *course)
{
    int64_t most = 0, n;
    Worst *worst = NULL;

    for (int i = 0; i < p->nrole; i++)
        most = most < p->role[i].ntensor ? p->role[i].ntensor : most;
    n = p->nrole * most;
    int64_t groups = comm->world / comm->n;
    Apart *here = apart_here(p, most, course);
    Apart *all = alloc(forever, (size_t)(groups * n + 1) * sizeof *all);
    if (groups == 1)
        all = here;
    else
        comm_gather(comm, here, all, n * (int64_t)sizeof *here);
    for (int64_t i = 0; i < n; i++) {
        Apart sum = { 0, 0 };
        for (int64_t k = 0; k < groups; k++) {
            sum.apart += all[k * n + i].apart;
            sum.sum += all[k * n + i].sum;
        }
        if (sum.sum > 0)
            vec_push(forever, worst,
                     ((Worst){ parameter_at(&p->role[i / most], i % most),
                               sqrt(sum.apart / sum.sum) }));
    }
    if (worst)
        qsort(worst, vec_len(worst), sizeof *worst, by_apart);
    return worst;
}

static double percent(double x, double y)
{
    return 100 * (x - y) / fabs(y);
}

static void print_courses(const Course *course, const char *other,
                          int64_t steps)
{
    const Course *a = &course[0], *b = &course[1];

    printf("%6s | %-9s %-9s %8s | %-9s %-9s %8s\n", "step", "loss", other,
           "apart", "gnorm", other, "apart");
    for (int64_t i = 0; i < steps; i++)
        printf("%6lld | %-9.4f %-9.4f %+7.2f%% | %-9.4f %-9.4f %+7.2f%%\n",
               (long long)i + 1, a->loss[i], b->loss[i],
               percent(a->loss[i], b->loss[i]), a->norm[i], b->norm[i],
               percent(a->norm[i], b->norm[i]));
}

static void print_worst(const Worst *worst)
{
    printf("gradients of the first step, the furthest apart:\n");
    for (size_t i = 0; i < vec_len(worst) && i < SHOWN; i++)
        printf("  %6.2f%% %s, %s:%d\n", 100 * worst[i].apart,
               worst[i].tensor->name, worst[i].tensor->file,
               worst[i].tensor->line);
}

int compare_plan(Plan *p, const RunArgs *args)
{
    Comm *comm;
    Course course[2];

    need_device(p);
    need_loss(p);
    comm = comm_open(forever, p->mesh->world);
    course[0] = run_course(comm, p, args->compared);
    course[1] = run_course(comm, args->other, args->compared);
    Worst *worst = worst_of(comm, p, course);
    if (!comm->first) {
        print_courses(course, args->other_name, args->compared);
        print_worst(worst);
    }
    comm_close(comm);
    return 0;
}
