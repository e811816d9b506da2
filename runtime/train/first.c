/* first.c: compares the values of two plans in their first step, each on its
 * own data. A fold cuts values in its own way, so values are compared by their
 * projections on vectors of signs that follow from the coordinates of an
 * element: sums over ranks and micro-batches, which agree to rounding in every
 * fold. Values of one name are paired. Sums under way, rows of experts
 * and buckets, which depend on the fold, are not compared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum { SIGNS = 8 };

typedef struct FirstValue {
    const Buf *buf;
    int role;
    const Instr *instr; /* that makes it first */
    Dtype dt;
    uint64_t axes;     /* hash of names and sizes, micro-batches left out */
    int64_t micro, n;  /* of the last run; elements */
    double sum[SIGNS]; /* the projections */
    double square;     /* sum of squares */
} FirstValue;

typedef struct FirstValues {
    Exec *exec;
    FirstValue **all; /* vec, in the order in which they are made */
    Table *named;     /* interned name -> FirstValue */
} FirstValues;

/* ---- coordinates --------------------------------------------------------- */

static int is_micro(const ValueDim *dim)
{
    return !strcmp(dim->axis, "micro");
}

static int depends_on_fold(const Mesh *m, const ValueDim *dim)
{
    return strchr(dim->axis, '\'') || strchr(dim->axis, '.') ||
           !strcmp(dim->axis, "row") ||
           (dim->zigzag && (dim->cut & ~m->mask[Mcp]));
}

/* A scalar that no micro-batch has may count them. */
static int is_comparable(const Mesh *m, const ValueShape *shape,
                         const ValueUse *use)
{
    int64_t n = 1;

    for (int d = 0; d < shape->nd; d++) {
        if (depends_on_fold(m, &shape->dim[d]))
            return 0;
        n *= shape->dim[d].n;
    }
    return shape->nd && dtypes[shape->dt].kind == 'f' &&
           dtypes[shape->dt].bytes > 1 && !shape->map && !shape->scale &&
           n == shape->elems && !(use->part[0] | use->part[1] | use->part[2]);
}

static uint64_t hash_word(const char *s)
{
    uint64_t h = 0;

    while (*s)
        h = mix64(h, (unsigned char)*s++);
    return h;
}

static uint64_t hash_axes(const Mesh *m, const ValueShape *shape)
{
    uint64_t h = 1;

    for (int d = 0; d < shape->nd; d++) {
        const ValueDim *dim = &shape->dim[d];
        if (!is_micro(dim))
            h += mix64(hash_word(dim->axis),
                       (uint64_t)(dim->n * mesh_extent(m, dim->cut)));
    }
    return h;
}

/* Returns the global coordinate of the i-th of a rank's along dim. */
static int64_t coordinate(const Mesh *m, const ValueDim *dim, int64_t rank,
                          int64_t micro, int64_t i)
{
    int64_t ranks = mesh_extent(m, dim->cut), at = mesh_pos(m, dim->cut, rank);
    int64_t half = dim->n / 2;

    if (is_micro(dim))
        at += micro * ranks;
    if (!dim->zigzag)
        return at * dim->n + i;
    return i < half ? at * half + i : (2 * ranks - 1 - at) * half + i - half;
}

/* ---- values of a step --------------------------------------------------- */

/* Adds a rank's part of a value to its projections. */
static void add_elements(const Mesh *m, FirstValue *value,
                         const ValueShape *shape, int64_t rank, const void *p)
{
    Arena *a = arena_new();
    uint64_t *at[MAXD];

    for (int d = 0; d < shape->nd; d++) {
        const ValueDim *dim = &shape->dim[d];
        at[d] = alloc(a, (size_t)(dim->n + 1) * sizeof *at[d]);
        for (int64_t i = 0; i < dim->n; i++)
            at[d][i] =
                mix64(hash_word(dim->axis),
                      (uint64_t)coordinate(m, dim, rank, value->micro, i));
    }
    for (int64_t i = 0; i < shape->elems; i++) {
        double x = elem_get(shape->dt, p, i);
        uint64_t h = 0;
        int64_t rest = i;
        for (int d = shape->nd; d-- > 0; rest /= shape->dim[d].n)
            h += at[d][rest % shape->dim[d].n];
        h = mix64(h, 1);
        for (int k = 0; k < SIGNS; k++)
            value->sum[k] += h >> k & 1 ? x : -x;
        value->square += x * x;
    }
    value->n += shape->elems;
    arena_free(a);
}

static FirstValue *value_of(FirstValues *values, int role, const Buf *buf,
                            const Instr *instr, const ValueShape *shape)
{
    const Plan *p = values->exec->plan;
    FirstValue **at =
        (FirstValue **)table_at(values->named, KEYP(intern(buf->name)));

    if (*at)
        return *at;
    *at = alloc(forever, sizeof **at);
    **at = (FirstValue){ .buf = buf,
                         .role = role,
                         .instr = instr,
                         .dt = shape->dt,
                         .axes = hash_axes(p->mesh, shape),
                         .micro = -1 };
    vec_push(forever, values->all, *at);
    return *at;
}

/* Does instr make all of its i-th operand? A ring's attention sees a part of
 * the keys. */
static int is_whole(const Plan *p, const Instr *instr, int i)
{
    return instr->kind != Izero && instr_use(instr, i) == 'w' &&
           !(instr->work == WORKattention && opts_int(p->opts, "fold.ring"));
}

/* A value without an axis of micro-batches is that of the last run. */
static void begin_run(FirstValue *value, const ValueShape *shape, int64_t micro)
{
    int adds = 0;

    for (int d = 0; d < shape->nd; d++)
        adds |= is_micro(&shape->dim[d]);
    if (micro != value->micro && !adds) {
        value->n = 0;
        value->square = 0;
        memset(value->sum, 0, sizeof value->sum);
    }
    value->micro = micro;
}

/* Takes a result from the first of the ranks that hold the same elements. */
static void take_result(FirstValues *values, const Stage *stage,
                        const Rank *rank, int i)
{
    const Mesh *m = values->exec->plan->mesh;
    const BoundInstr *bound = rank_instr(rank);
    const ValueUse *use = &bound->instr->flow[i];
    const ValueShape *shape = &values->exec->plan->shape[use->shape];
    const Buf *b = &rank->role->buf[bound->instr->buf[i]];
    uint32_t same = (((uint32_t)1 << m->natom) - 1) & ~shape_cut(shape);

    if (!is_comparable(m, shape, use) || strstr(b->name, "accum"))
        return;
    FirstValue *value = value_of(values, stage->role, b, bound->instr, shape);
    if (mesh_pos(m, same & ~m->mask[Mpp], rank->id) ||
        value->role != stage->role || value->instr != bound->instr)
        return;
    begin_run(value, shape, stage_slot(stage)->micro);
    add_elements(m, value, shape, rank->id,
                 exec_seen(values->exec, rank, bound->buf[i], b->bytes));
}

static void look(void *self, const Stage *stage, const Rank *rank)
{
    FirstValues *values = self;
    const Instr *instr = rank_instr(rank)->instr;

    for (int i = 0; i < instr->nbuf; i++)
        if (instr->flow && instr->flow[i].make &&
            is_whole(values->exec->plan, instr, i))
            take_result(values, stage, rank, i);
}

static FirstValues *first_values(Plan *p)
{
    FirstValues *values = alloc(forever, sizeof *values);
    Train train = { .plan = p, .mem = forever, .traced = -1 };
    StepValues block;
    Feed feed = { 0 };

    need_device(p);
    need_loss(p);
    train.comm = comm_open(forever, p->mesh->world);
    open_data(&train);
    open_exec(&train);
    start_values(&train, 0);
    block = step_block(train.x, 0);
    if (train.train)
        feed = data_feed(train.train, 0);
    *values = (FirstValues){ .exec = train.x, .named = table_new(forever) };
    train.x->look = look;
    train.x->looker = values;
    exec_run(train.x, PGstep, &block, train.train ? &feed : NULL);
    exec_close(train.x);
    return values;
}

/* ---- the first that differs ---------------------------------------------- */

/* Returns the norm of the difference over that of a, to a factor that the
 * number of signs leaves open. */
static double apart(const FirstValue *a, const FirstValue *b)
{
    double sum = 0, square = fmax(a->square, b->square);

    for (int k = 0; k < SIGNS; k++)
        sum += (a->sum[k] - b->sum[k]) * (a->sum[k] - b->sum[k]);
    return square > 0 ? sqrt(sum / SIGNS / square) : sum;
}

/* Returns the largest difference that rounding in dt explains. */
static double rounding(Dtype dt)
{
    return dt == Df64 ? 1e-10 : dt == Df32 ? 2e-5 : 0.1;
}

static double rms(const FirstValue *value)
{
    return sqrt(value->square / (double)(value->n ? value->n : 1));
}

static void print_first(const FirstValue *a, const FirstValue *b,
                        char *const *name)
{
    printf("first difference: %s%s, relative error %.3g\n", a->buf->name,
           place_text(forever, a->buf->file, a->buf->line), apart(a, b));
    printf("  root mean square %.9g in %s, %.9g in %s\n", rms(a), name[0],
           rms(b), name[1]);
}

/* Returns the largest rounding among the values of v up to the one at `end`. */
static double rounding_to(FirstValue *const *v, const FirstValue *end)
{
    double most = 0;

    for (size_t i = 0; i < vec_len(v); i++) {
        most = fmax(most, rounding(v[i]->dt));
        if (v[i] == end)
            break;
    }
    return most;
}

int compare_first(Plan *a, Plan *b, char *const *name)
{
    const FirstValues *x = first_values(a), *y = first_values(b);
    double most = 0;
    int same = 0;

    for (size_t i = 0; i < vec_len(x->all); i++) {
        const FirstValue *v = x->all[i];
        const FirstValue *w = table_get(y->named, KEYP(intern(v->buf->name)));
        if (!w || w->axes != v->axes ||
            (!isfinite(v->square) && !isfinite(w->square)))
            continue;
        if (!(apart(v, w) <=
              fmax(rounding_to(x->all, v), rounding_to(y->all, w)))) {
            printf("%d values before it agree to %.3g\n", same, most);
            print_first(v, w, name);
            return 1;
        }
        most = fmax(most, apart(v, w));
        same++;
    }
    printf("%d values of the first step agree to %.3g, of %zu in %s and %zu "
           "in %s\n",
           same, most, vec_len(x->all), name[0], vec_len(y->all), name[1]);
    return 0;
}
