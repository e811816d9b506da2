/* device_test: the interface of devices. A device of this test's own only logs
 * what it is told: a plan on it gives every instruction of every rank once, a
 * collective once for its group, in the order of the plan. The host's row with
 * memory of its own, staged and launched ahead, trains to the bits of the host.
 * Then arenas, streams, events, graphs and instructions that wait for each
 * other, of the host, and with TEST_TARGET=cuda of a GPU (tests/fake). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../fold/foldrun.h"
#include "../fold/spread.h"

enum { STEPS = 4, BYTES = 1 << 16 };

static const char small[] =
    "axes.batch=1 axes.seq=8 axes.hidden=16 axes.kv=2 axes.dim=8 axes.ffn=16 "
    "axes.expert=4 train.batch=2";

static Plan *plan_of(const char *more)
{
    return fold_words("models/tiny.lua", strf(forever, "%s %s", small, more));
}

/* ---- a device that only logs --------------------------------------------- */

static Text told;
static int count[NINSTR];

static void *log_open_device(const DeviceArgs *a)
{
    return a->mem;
}

static void log_load(void *d)
{
    (void)d;
    put(&told, "load\n");
}

static void log_bind(void *d, BoundInstr *b, const Program *g, int64_t runs)
{
    (void)d, (void)g, (void)runs;
    b->own = d;
}

static void log_bound(void *d)
{
    (void)d;
    put(&told, "bound\n");
}

static void quiet(void *d)
{
    (void)d;
}

static int always(void *d, const BoundInstr *b)
{
    (void)d, (void)b;
    return 1;
}

static void say(const Instr *s, int64_t rank)
{
    put(&told, "%lld %s %s\n", (long long)rank, instr_info(s->kind)->name,
        instr_label(s));
}

static void log_instr(void *d, const BoundInstr *b)
{
    (void)d;
    count[b->instr->kind]++;
    say(b->instr, b->rank);
}

static void log_collective(void *d, const BoundInstr *b, const Part *part)
{
    assert_non_null(part[b->group - 1].send);
    log_instr(d, b);
}

static void log_clear(void *d, StreamKind on, void *p, int64_t bytes)
{
    (void)d, (void)on, (void)p, (void)bytes;
}

static void log_copy(void *d, StreamKind on, CopyKind k, void *to,
                     const void *from, int64_t bytes)
{
    (void)d, (void)on, (void)k, (void)to, (void)from, (void)bytes;
}

static void *log_event(void *d, EventKind k)
{
    (void)k;
    return alloc(d, sizeof(double));
}

static void log_order(void *d, StreamKind on, void *event)
{
    (void)d, (void)on, (void)event;
}

static int is_memory(const Instr *s)
{
    return instr_info(s->kind)->cls == CLASSmemory;
}

/* Memory and time are the host's; memory instructions come as clear and copy,
 * so they are logged when they were issued. */
static void log_issued(void *d, const BoundInstr *b)
{
    if (is_memory(b->instr))
        log_instr(d, b);
}

static Device logger(void)
{
    Device d = host_device;

    d.name = "log";
    d.open = log_open_device;
    d.load = log_load;
    d.bind = log_bind;
    d.bound = log_bound;
    d.close = d.begin = d.finish = quiet;
    d.ready = always;
    d.launch = d.product = d.transfer = log_instr;
    d.collective = log_collective;
    d.clear = log_clear;
    d.copy = log_copy;
    d.issued = log_issued;
    d.event = log_event;
    d.record = d.wait = log_order;
    d.where = NULL;
    return d;
}

/* What it must have been told, from the plan alone: of one stage. */
static void expect(const Exec *x, Text *t)
{
    const Role *r = x->rank[0].role;
    const Program *g = &r->prog[role_prog(r, PGstep)];
    ScheduleSlot *row = program_rows(forever, g);

    for (size_t i = 0; i < vec_len(row); i++) {
        const Phase *f = &g->phase[row[i].phase];
        for (int k = f->first; k < f->first + f->n; k++) {
            const Instr *s = &g->instr[k];
            if (!runs_in(g, s, &row[i]))
                continue;
            for (int64_t n = 0; n < x->comm->n; n++)
                if (!is_collective(s->kind) ||
                    mesh_pos(x->plan->mesh, s->atoms, n) == 0)
                    put(t, "%lld %s %s\n", (long long)n,
                        instr_info(s->kind)->name, instr_label(s));
        }
    }
}

static void logs(void **state)
{
    /* what it logs has memory of its own, which no peer reads */
    Plan *p = plan_of("fold.ep=2 train.batch=4 route.dispatcher=alltoall");
    Text want = { .arena = forever };
    Device d = logger();
    int of[CLASStransfer + 1] = { 0 };

    (void)state;
    told = (Text){ .arena = forever };
    Exec *x = exec_open_on(&d, p, comm_open(forever, 2));
    assert_string_equal(told.s, "load\nbound\n");
    told = (Text){ .arena = forever };
    StepValues b = fold_block(p, 0);
    exec_run(x, PGstep, &b, NULL);
    expect(x, &want);
    assert_string_equal(told.s, want.s);
    for (int k = 0; k < NINSTR; k++)
        of[instr_info((InstrKind)k)->cls] += count[k];
    printf("# %d launches, %d products, %d collectives, %d of memory\n",
           of[CLASScompute], of[CLASSproduct], of[CLASScollective],
           of[CLASSmemory]);
    assert_true(of[CLASScompute] > 0 && of[CLASSproduct] > 0 &&
                of[CLASScollective] > 0);
    exec_close(x);
}

/* ---- runs ---------------------------------------------------------------- */

typedef struct Trial {
    double loss[STEPS], norm;
    uint8_t *lasting;
    int64_t bytes;
} Trial;

/* late: results are read one step behind. */
static Trial try(const Device *d, const Plan *p, int late)
{
    Trial t = { .norm = 0 };
    Exec *x = exec_open_on(d, p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    x->late = late;
    for (int i = 0; i < STEPS; i++) {
        StepValues b = fold_block(p, i);
        Feed f = fold_feed(p, i);
        exec_run(x, PGstep, &b, &f);
        if (!late)
            t.loss[i] = exec_result(x, RESULTloss);
        else if (i)
            t.loss[i - 1] = exec_result(x, RESULTloss);
    }
    assert_int_equal(exec_settle(x), late);
    t.loss[STEPS - 1] = exec_result(x, RESULTloss);
    t.norm = exec_result(x, RESULTgrad_norm);
    exec_pull(x);
    t.bytes = x->rank[0].role->persist;
    t.lasting = alloc(forever, (size_t)t.bytes);
    memcpy(t.lasting, x->rank[0].arena, (size_t)t.bytes);
    exec_close(x);
    return t;
}

static void same(const Trial *a, const Trial *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_true(a->norm > 0 && a->norm == b->norm && a->loss[0] != a->loss[3]);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->lasting, b->lasting, (size_t)a->bytes);
}

static void entered(void *d, ProgramKind prog, int64_t step, int64_t issued)
{
    (void)d, (void)prog, (void)step, (void)issued;
}

/* The host as a device with memory of its own; a GPU is one. */
static void staged(void **state)
{
    Plan *p = plan_of("");
    const Device *here = device_named(p->target);
    Device apart = *here;

    (void)state;
    if (!(apart.can & OWNmemory)) {
        apart.can = (apart.can | OWNmemory) & ~(unsigned)CANranks;
        apart.enter = entered;
        apart.leave = quiet;
    }
    Trial want = try(here, p, 0), late = try(&apart, p, 1);
    same(&want, &late);
    if (here->can & OWNmemory)
        return;
    Trial now = try(&apart, p, 0);
    same(&want, &now);
}

static void waits(void **state)
{
    Plan *p = plan_of("");
    const Device *here = device_named(p->target);

    (void)state;
    Trial want = try(here, p, 0);
    for (int i = 0; i < 2; i++) {
        Plan *q = plan_of("fold.overlap=0");
        spread_streams(forever, q, (uint64_t)i);
        plan_check(q);
        Trial got = try(here, q, 0),
              late = try(here, q, (here->can & OWNmemory) != 0);
        same(&want, &got);
        same(&want, &late);
    }
}

/* ---- priority and budget ------------------------------------------------- */

enum { BUDGET = 3 };
static int ahead;     /* launches before others */
static unsigned most; /* blocks of one of them */
static int (*ahead_of)(const void *, void *, void **, void **);

static int count_ahead(const void *config, void *fn, void **params,
                       void **extra)
{
    unsigned blocks;

    memcpy(&blocks, config, sizeof blocks);
    most = most < blocks ? blocks : most;
    ahead++;
    return ahead_of(config, fn, params, extra);
}

/* Kernels that take turns are given a budget, and are known by that. */
static int set_budgets(const Plan *p, int sms)
{
    const Role *r = p->role;
    int n = 0;

    for (int g = 0; g < r->nprog; g++)
        for (int i = 0; i < r->prog[g].ninstr; i++) {
            Instr *s = &r->prog[g].instr[i];
            int turns = s->kind == Ikernel && s->launch.persistent;
            s->issue.priority = turns || !sms;
            s->issue.priority &= s->kind == Ikernel;
            s->issue.sms = turns ? sms : 0;
            n += turns && r->prog[g].kind == PGstep;
        }
    return n;
}

/* Neither changes a bit; a kernel holds no more than its budget. */
static void launches(void **state)
{
    Plan *p = plan_of("precision=bf16");
    const Device *here = device_named(p->target);
    Trial want = try(here, p, 0);
    int gpu = (here->can & CANcapture) != 0;

    (void)state;
    ahead_of = dl.cuLaunchKernelEx;
    if (gpu)
        dl.cuLaunchKernelEx = count_ahead;
    int n = set_budgets(p, gpu ? BUDGET : 0);
    plan_check(p);
    Trial got = try(here, p, 0);
    dl.cuLaunchKernelEx = ahead_of;
    same(&want, &got);
    if (!gpu)
        return;
    printf("# %d kernels with a budget, %d launches, at most %u blocks\n", n,
           ahead, most);
    assert_true(n > 0 && ahead > 0 && most <= BUDGET);
}

/* ---- arenas, streams, events, graphs ------------------------------------- */

static Exec *opened(void)
{
    Plan *p = plan_of("");

    return exec_open_on(device_named(p->target), p, comm_open(forever, 1));
}

static void await_all(const Device *d, void *on, void *event)
{
    int e;

    while ((e = d->query(on, event)) > 0)
        ;
    assert_int_equal(e, 0);
}

static void arenas(void **state)
{
    Exec *x = opened();
    const Device *d = x->dev;
    uint8_t *in = d->alloc(x->on, ARENApinned, BYTES, MEMresults),
            *out = d->alloc(x->on, ARENApinned, BYTES, MEMresults),
            *a = d->alloc(x->on, ARENAdevice, BYTES, MEMresults),
            *b = d->alloc(x->on, ARENAstash, BYTES, MEMresults);

    (void)state;
    for (int i = 0; i < BYTES; i++)
        in[i] = (uint8_t)(i * 7 + i / 256);
    for (int k = 0; k < NSTREAM; k++) {
        StreamKind on = (StreamKind)k, then = (StreamKind)((k + 1) % NSTREAM);
        void *begun = d->event(x->on, EVENTtimed),
             *there = d->event(x->on, EVENTtimed);
        memset(out, 0, BYTES);
        d->record(x->on, on, begun);
        d->copy(x->on, on, COPYin, a, in, BYTES);
        d->clear(x->on, on, b, BYTES);
        d->copy(x->on, on, COPYwithin, b + 256, a, BYTES - 256);
        d->record(x->on, on, there);
        d->wait(x->on, then, there);
        d->copy(x->on, then, COPYout, out, b, BYTES);
        d->sync(x->on, then);
        await_all(d, x->on, there);
        assert_true(d->between(x->on, begun, there) >= 0);
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(out[i], i < 256 ? 0 : in[i - 256]);
    }
    d->free(x->on, ARENApinned, in, BYTES);
    d->free(x->on, ARENApinned, out, BYTES);
    d->free(x->on, ARENAdevice, a, BYTES);
    d->free(x->on, ARENAstash, b, BYTES);
    exec_close(x);
}

/* Launched twice, a graph copies what is there then, and each time behind an
 * event that is recorded outside of it. */
static void graphs(void **state)
{
    Exec *x = opened();
    const Device *d = x->dev;
    size_t nodes = 0;

    (void)state;
    if (!(d->can & CANcapture)) {
        exec_close(x);
        return;
    }
    uint8_t *in = d->alloc(x->on, ARENApinned, BYTES, MEMresults),
            *out = d->alloc(x->on, ARENApinned, BYTES, MEMresults),
            *a = d->alloc(x->on, ARENAdevice, BYTES, MEMresults),
            *b = d->alloc(x->on, ARENAdevice, BYTES, MEMresults);
    void *outside = d->event(x->on, EVENToutside);
    d->record(x->on, STREAMcopy, outside);
    d->capture(x->on);
    d->wait(x->on, STREAMcompute, outside);
    d->copy(x->on, STREAMcompute, COPYwithin, b, a, BYTES);
    void *graph = d->captured(x->on, &nodes);
    assert_true(nodes >= 2);
    for (int turn = 1; turn < 3; turn++) {
        memset(in, turn, BYTES);
        d->copy(x->on, STREAMcopy, COPYin, a, in, BYTES);
        d->record(x->on, STREAMcopy, outside);
        d->replay(x->on, graph);
        d->copy(x->on, STREAMcompute, COPYout, out, b, BYTES);
        d->sync(x->on, STREAMcompute);
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(out[i], turn);
    }
    exec_close(x);
}

/* ---- memory of several ranks --------------------------------------------- */

enum { LINE = 4096 };

static uint8_t mark_of(int64_t from, int64_t to, int i)
{
    return (uint8_t)(1 + 31 * from + 7 * to + i);
}

/* Each rank writes a row into every arena that it reaches, and finds in its own
 * those of all that reach it: under mpirun, on two machines by name. */
static void peers(void **state)
{
    int64_t n = launched() ? launch_world() : getenv("TEST_TARGET") ? 1 : 3;
    Plan *p = plan_of(strf(forever, "fold.dp=%lld train.batch=%lld",
                           (long long)n, (long long)n));
    Comm *c = comm_open(forever, n);
    Exec *x = exec_open_on(device_named(p->target), p, c);
    const Device *d = x->dev;
    uint8_t *row = d->alloc(x->on, ARENApinned, LINE, MEMresults);
    uint8_t **at = (uint8_t **)d->peers(x->on, n * LINE, MEMresults);
    int reached = 0;

    (void)state;
    for (int64_t r = c->first; r < c->first + c->n; r++)
        for (int64_t q = 0; q < n; q++) {
            assert_int_equal(at[q] != NULL, comm_near(c, q));
            for (int i = 0; i < LINE; i++)
                row[i] = mark_of(r, q, i);
            if (at[q])
                d->copy(x->on, STREAMcomm, COPYin, at[q] + r * LINE, row, LINE);
            d->sync(x->on, STREAMcomm);
        }
    comm_barrier(c);
    for (int64_t r = c->first; r < c->first + c->n; r++)
        for (int64_t q = 0; q < n; q++) {
            if (!comm_near(c, q))
                continue;
            d->copy(x->on, STREAMcomm, COPYout, row, at[r] + q * LINE, LINE);
            d->sync(x->on, STREAMcomm);
            for (int i = 0; i < LINE; i++)
                assert_int_equal(row[i], mark_of(q, r, i));
            reached++;
        }
    printf("# rank %lld of %lld: %d rows\n", (long long)c->first, (long long)n,
           reached);
    comm_barrier(c);
    d->drop_peers(x->on, (void **)at, n * LINE);
    d->free(x->on, ARENApinned, row, LINE);
    exec_close(x);
    comm_close(c);
}

static void abilities(void **state)
{
    (void)state;
    assert_ptr_equal(device_named("host"), &host_device);
    assert_null(device_named("toaster"));
    assert_non_null(device_here());
    assert_int_equal(null_device.can, 0);
    assert_non_null(null_device.report);
}

int main(void)
{
    const struct CMUnitTest host[] = { cmocka_unit_test(logs),
                                       cmocka_unit_test(abilities) };
    const struct CMUnitTest any[] = {
        cmocka_unit_test(staged),   cmocka_unit_test(waits),
        cmocka_unit_test(launches), cmocka_unit_test(arenas),
        cmocka_unit_test(peers),    cmocka_unit_test(graphs)
    };

    const struct CMUnitTest ranks[] = { cmocka_unit_test(peers) };

    setenv("PLEAT_POISON", "0", 1); /* padding is compared too */
    fold_target_given();
    if (launched())
        return cmocka_run_group_tests(ranks, NULL, NULL);
    return (getenv("TEST_TARGET") ? 0
                                  : cmocka_run_group_tests(host, NULL, NULL)) +
           cmocka_run_group_tests(any, NULL, NULL);
}
