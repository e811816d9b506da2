/* bench.c: where the time of a training step goes. Runs a plan on made-up
 * tokens with a clock around every step of it, and prints what took longest:
 * steps of the same kernel and kind of place ("layers.*.moe.w1") together,
 * beside what the plan predicted and the floor: what the device's peaks allow
 * for these FLOPs and bytes, whichever takes longer (below it: caches). Then
 * what is farthest from the plan, and the same by parts of the model and by
 * what limits. PLEAT_LINES=n prints so many lines. Without a launcher all ranks
 * run here, one after another, so collectives are copies and a rank's time is
 * the total over the ranks; under mpirun rank 0 prints what it saw, and what of
 * a step is not hidden: steps run again with a copy in a rank's own memory in
 * place of each collective, which waits for nobody and leaves the device to
 * what computes. Transfers between
 * stages stay: a step without them would be one without its schedule. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

typedef struct BenchRow { /* steps counted together */
    const char *name, *file;
    int line, calls;
    double secs, predicted, floor, flops, bytes;
} BenchRow;

/* What keeps a step from being faster. */
typedef enum Limit { LIMproduct, LIMmemory, LIMcomm, LIMcopy, NLIMIT } Limit;
static const char *const limits[NLIMIT] = { "arithmetic", "memory",
                                            "communication",
                                            "clearing and copies" };

typedef struct Walls {
    double step, host;
} Walls; /* seconds of a step */

/* Steps as they are, and with copies in place of collectives. */
typedef struct Exposed {
    double step, alone;                     /* seconds of the slowest rank */
    int64_t collectives, transfers, copied; /* of this rank; bytes */
} Exposed;

enum {
    MOST = 40,
    MOSTPARTS = 12,
    MOSTFAR = 8,
    ROUNDS = 3
}; /* lines; see exposed */

typedef struct Bench {
    Exec *x;
    Roofline peak;
    int64_t vocab, micro;
    double **spent; /* by stage and step: seconds */
    BenchRow *line; /* vec */
    BenchRow *part; /* vec: by part of the model */
    BenchRow limit[NLIMIT];
} Bench;

static uint64_t noise(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint64_t noise_at(uint64_t key, int64_t i)
{
    return noise(key + (uint64_t)i * 0x9e3779b97f4a7c15ull);
}

/* Tokens below the vocabulary, numbers in [-1, 1). Tokens are the many, and a
 * run copies them: as little of the host's time as can be. */
static void fill(void *self, const Tensor *tensor, int64_t rank, int64_t micro,
                 void *dst)
{
    const Bench *b = self;
    int64_t n = tensor_held(tensor);
    uint64_t key = noise((uint64_t)(rank * 65536 + micro + b->micro));
    uint64_t vocab = b->vocab ? (uint64_t)b->vocab : 2;

    if (tensor->dt == Di32)
        for (int64_t i = 0; i < n; i++)
            ((int32_t *)dst)[i] =
                (int32_t)((noise_at(key, i) >> 32) * vocab >> 32);
    else
        for (int64_t i = 0; i < n; i++) {
            uint64_t r = noise_at(key, i);
            elem_set(tensor->dt, dst, i,
                     dtypes[tensor->dt].kind == 'f'
                         ? (double)(int64_t)r * 0x1p-63
                         : (double)(r % vocab));
        }
}

/* "layers.7.moe.w1" -> "layers.*.moe.w1" */
static char *without_numbers(const char *s)
{
    Text out = { .arena = forever };

    while (*s) {
        size_t n = strcspn(s, ".");
        if (n && strspn(s, "0123456789") == n)
            put(&out, "*");
        else
            putn(&out, s, n);
        s += n;
        if (*s == '.')
            putn(&out, s++, 1);
    }
    return out.s ? out.s : "";
}

static BenchRow *named(BenchRow **v, const char *name, const Instr *s)
{
    name = intern(name);
    for (size_t i = 0; i < vec_len(*v); i++)
        if ((*v)[i].name == name)
            return &(*v)[i];
    BenchRow l = { .name = name, .file = s->file, .line = s->line };
    vec_push(forever, *v, l);
    return &(*v)[vec_len(*v) - 1];
}

static BenchRow *line_for(Bench *b, const Instr *s)
{
    const char *what = s->kernel ? s->kernel : instr_info(s->kind)->name;

    return named(&b->line,
                 strf(forever, "%-18s %s", what,
                      without_numbers(s->label ? s->label : "")),
                 s);
}

/* "d.layers.*.moe.w1" is of "layers.*.moe", "head" of itself. */
static BenchRow *part_for(Bench *b, const Instr *s)
{
    static const char *const before[] = { "clear ", "post.", "d.", "grad." };
    const char *path = without_numbers(s->label ? s->label : "");
    size_t n = 0;

    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        if (!strncmp(path, before[i], strlen(before[i])))
            path += strlen(before[i]);
    for (int dots = 0; path[n] && (path[n] != '.' || dots < 2); n++)
        dots += path[n] == '.';
    BenchRow *l = named(&b->part,
                        *path ? strf(forever, "%.*s", (int)n, path)
                              : instr_info(s->kind)->name,
                        s);
    l->file = NULL;
    return l;
}

static Limit limit_of(const Bench *b, const Instr *s)
{
    InstrClass c = instr_info(s->kind)->cls;

    if (c == CLASScollective || c == CLASStransfer)
        return LIMcomm;
    if (c == CLASSmemory)
        return LIMcopy;
    return s->flops * b->peak.bytes > s->bytes * b->peak.flops ? LIMproduct
                                                               : LIMmemory;
}

static double floor_of(const Bench *b, const Instr *s)
{
    double work = b->peak.flops > 0 ? s->flops / b->peak.flops : 0;
    double move = b->peak.bytes > 0 ? s->bytes / b->peak.bytes : 0;

    return limit_of(b, s) == LIMcomm ? 0 : work > move ? work : move;
}

static void add(BenchRow *l, const BenchRow *x)
{
    l->calls += x->calls;
    l->secs += x->secs;
    l->predicted += x->predicted;
    l->floor += x->floor;
    l->flops += x->flops;
    l->bytes += x->bytes;
}

static const Program *step_program(const Stage *s)
{
    const Role *r = s->rank[0]->role;
    int prog = role_prog(r, PGstep);

    if (prog < 0)
        err(NULL, "the plan has no program 'step'");
    return &r->prog[prog];
}

static void gather(Bench *b, int stage, int64_t steps)
{
    const Stage *s = &b->x->stage[stage];
    const Program *prog = step_program(s);

    for (int f = 0; f < prog->nphase; f++)
        for (int k = 0; k < prog->phase[f].n; k++) {
            int at = prog->phase[f].first + k;
            const Instr *i = &prog->instr[at];
            double all = (double)(phase_runs(prog, f) * s->nrank);
            BenchRow l = { .calls = (int)phase_runs(prog, f),
                           .secs = b->spent[stage][at] / (double)steps,
                           .predicted = i->secs * all,
                           .floor = floor_of(b, i) * all,
                           .flops = i->flops * all,
                           .bytes = i->bytes * all };
            add(line_for(b, i), &l);
            add(part_for(b, i), &l);
            add(&b->limit[limit_of(b, i)], &l);
        }
}

/* What the steps of the run took is added. */
static void add_run(Bench *b)
{
    for (int64_t i = 0; i < b->x->nran; i++) {
        const InstrTiming *r = &b->x->ran[i];
        int stage = 0;
        while (b->x->stage[stage].role != r->stage)
            stage++;
        if (r->instr >= 0)
            b->spent[stage][r->instr] += r->end - r->start;
    }
}

/* A clock for every step from now on. */
static void start_clocks(Bench *b)
{
    Exec *x = b->x;

    b->spent = alloc(forever, (size_t)x->nstage * sizeof *b->spent);
    for (int i = 0; i < x->nstage; i++)
        b->spent[i] =
            alloc(forever, (size_t)(step_program(&x->stage[i])->ninstr + 1) *
                               sizeof **b->spent);
    exec_record(x, PGstep);
}

static int slowest_first(const void *a, const void *b)
{
    const BenchRow *x = a, *y = b;

    return (x->secs < y->secs) - (x->secs > y->secs);
}

static int farthest_first(const void *a, const void *b)
{
    const BenchRow *x = a, *y = b;
    double p = fabs(x->secs - x->predicted), q = fabs(y->secs - y->predicted);

    return (p < q) - (p > q);
}

static double per(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void print_line(const BenchRow *l, double sum, FILE *out)
{
    if (!l->calls)
        return;
    fprintf(out, "%8.3f %6.1f %6d %9.1f %8.1f %8.3f %7.2f %7.2f  %s",
            l->secs * 1e3, 100 * per(l->secs, sum), l->calls,
            per(l->flops, l->secs) * 1e-9, per(l->bytes, l->secs) * 1e-9,
            l->predicted * 1e3, per(l->secs, l->predicted),
            per(l->secs, l->floor), l->name);
    if (l->file)
        fprintf(out, " (%s:%d)", l->file, l->line);
    fprintf(out, "\n");
}

static void print_lines(const BenchRow *v, size_t n, size_t most,
                        const char *what, double sum, FILE *out)
{
    fprintf(out, "%8s %6s %6s %9s %8s %8s %7s %7s  %s\n", "ms", "%", "calls",
            "GFLOP/s", "GB/s", "plan ms", "x plan", "x floor", what);
    for (size_t i = 0; i < n && i < most; i++)
        print_line(&v[i], sum, out);
}

static void print_tables(Bench *b, double sum, FILE *out)
{
    const char *most = getenv("PLEAT_LINES");

    for (int i = 0; i < NLIMIT; i++)
        b->limit[i].name = limits[i];
    print_lines(b->line, vec_len(b->line), most ? (size_t)atoi(most) : MOST,
                "kernel, place", sum, out);
    qsort(b->line, vec_len(b->line), sizeof *b->line, farthest_first);
    print_lines(b->line, vec_len(b->line), most ? (size_t)atoi(most) : MOSTFAR,
                "kernel, place, farthest from the plan first", sum, out);
    print_lines(b->part, vec_len(b->part), MOSTPARTS, "part of the model", sum,
                out);
    print_lines(b->limit, NLIMIT, NLIMIT, "limited by", sum, out);
    if (b->peak.flops > 0)
        fprintf(out, "peaks: %.1f GFLOP/s, %.1f GB/s\n", b->peak.flops * 1e-9,
                b->peak.bytes * 1e-9);
}

static double share_exposed(const Exposed *e)
{
    return e->step > 0 ? 100 * (e->step - e->alone) / e->step : 0;
}

static void print_exposed(const Exposed *e, FILE *out)
{
    fprintf(
        out,
        "not hidden: %.2f %% (%.3f ms a step, %.3f ms with %lld collectives "
        "left out: copies of %.1f MB in a rank's memory in their place",
        share_exposed(e), e->step * 1e3, e->alone * 1e3,
        (long long)e->collectives, (double)e->copied * 1e-6);
    if (e->transfers)
        fprintf(out, "; %lld transfers between stages stay",
                (long long)e->transfers);
    fprintf(out, ")\n");
}

/* The last line is for programs: words and numbers, one pair after another. */
static void print(Bench *b, const Walls *w, const Exposed *e, FILE *out)
{
    const Plan *p = b->x->plan;
    Text memory = { .arena = forever };
    double outside = 0, sum = 0, predicted = 0, least = 0;

    for (size_t i = 0; i < vec_len(b->line); i++) {
        sum += b->line[i].secs;
        predicted += b->line[i].predicted;
        least += b->line[i].floor;
    }
    print_tables(b, sum, out);
    fprintf(out,
            "%8.3f ms in steps, %.3f ms a step of training, %.3f ms planned, "
            "%.3f ms floor, %d threads\n",
            sum * 1e3, w->step * 1e3, predicted * 1e3, least * 1e3,
            pool_size(b->x->pool));
    outside = (double)exec_usage(b->x, &memory);
    fprintf(out, "%s", memory.s ? memory.s : "");
    if (e->step > 0)
        print_exposed(e, out);
    fprintf(out,
            "ms %.3f host_ms %.3f tokens_per_s %.1f tflops %.2f arena_gib %.3f "
            "outside_gib %.3f not_hidden %.2f ranks %lld plan_ms %.3f\n",
            w->step * 1e3, w->host * 1e3, per((double)p->tokens, w->step),
            per(p->flops, w->step) * 1e-12, (double)exec_bytes(b->x) / 0x1p30,
            outside / 0x1p30, share_exposed(e), (long long)p->mesh->world,
            plan_secs(p, PGstep) * 1e3);
}

/* Steps as a run has them, not timed one by one: on a GPU one graph each, made
 * ready while the one before runs. The host's time is without its waits. */
static Walls whole_steps(Bench *b, const Feed *f, int64_t steps)
{
    double start = 0, waited = 0;

    exec_record(b->x, NPROGRAM);
    for (int64_t i = -2; i < steps; i++) {
        if (!i) {
            exec_settle(b->x);
            start = monotonic();
            waited = b->x->waited;
        }
        b->x->late = 1;
        exec_run(b->x, PGstep, &(StepValues){ 1e-4, 0.1, 0.05, i + 100 }, f);
        b->x->late = 0;
    }
    exec_settle(b->x);
    double all = monotonic() - start;
    waited = b->x->waited - waited;
    return (Walls){ all / (double)steps, (all - waited) / (double)steps };
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* What a step of this rank has of collectives and transfers. */
static void count_exposed(const Bench *b, Exposed *e)
{
    const Stage *s = &b->x->stage[0];
    const Role *r = s->rank[0]->role;
    const Program *g = step_program(s);

    for (int f = 0; f < g->nphase; f++)
        for (int k = 0; k < g->phase[f].n; k++) {
            const Instr *i = &g->instr[g->phase[f].first + k];
            int64_t runs = phase_runs(g, f);
            InstrClass c = instr_info(i->kind)->cls;
            e->collectives += c == CLASScollective ? runs : 0;
            e->copied +=
                c == CLASScollective ? runs * r->buf[i->buf[1]].bytes : 0;
            e->transfers += c == CLASStransfer ? runs : 0;
        }
}

/* In turns; medians. One process that has all ranks has none who waits. */
static Exposed exposed(Bench *b, const Feed *f, int64_t steps)
{
    double all[2][ROUNDS];
    Exposed e = { 0 };

    if (b->x->comm->n == b->x->comm->world)
        return e;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        b->x->alone = i % 2;
        double mine = whole_steps(b, f, steps).step;
        all[i % 2][i / 2] =
            1e-9 * (double)comm_max(b->x->comm, (int64_t)(mine * 1e9));
    }
    b->x->alone = 0;
    for (int i = 0; i < 2; i++)
        qsort(all[i], ROUNDS, sizeof **all, ascending);
    count_exposed(b, &e);
    e.step = all[0][ROUNDS / 2];
    e.alone = all[1][ROUNDS / 2];
    return e;
}

/* Steps with a clock around each instruction, then as a run has them. */
static Walls timed_steps(Bench *b, const Feed *f, int64_t steps)
{
    double start = 0;

    if (role_prog(&b->x->plan->role[0], PGinit) >= 0)
        exec_run(b->x, PGinit, NULL, NULL);
    for (int64_t i = -1; i < steps; i++) { /* the first warms up */
        if (!i)
            start = monotonic();
        b->micro = i * 1000003;
        exec_run(b->x, PGstep, &(StepValues){ 1e-4, 0.1, 0.05, i + 1 }, f);
        if (i < 0)
            start_clocks(b);
        else
            add_run(b);
    }
    Walls w = { (monotonic() - start) / (double)steps, 0 };
    return exec_apart(b->x) ? whole_steps(b, f, steps) : w;
}

double bench_instrs(Plan *p, Comm *c, double enough, InstrSeconds **out,
                    const char **chip)
{
    Bench b = { .x = exec_open(p, c), .vocab = plan_vocab(p) };
    double plan = plan_secs(p, PGstep);
    int64_t steps = 5 + (plan > 0 ? (int64_t)fmin(enough / plan, 100) : 0);
    Walls w = timed_steps(&b, &(Feed){ fill, &b }, steps);
    const Stage *s = &b.x->stage[0];
    const Program *g = step_program(s);

    for (int f = 0; f < g->nphase; f++)
        for (int k = 0; k < g->phase[f].n; k++) {
            int at = g->phase[f].first + k;
            double runs = (double)(phase_runs(g, f) * s->nrank);
            InstrSeconds v = { &g->instr[at], runs,
                               b.spent[0][at] / (double)steps / runs };
            vec_push(forever, *out, v);
        }
    *chip = strf(forever, "%s", b.x->dev->chip(b.x->on));
    exec_close(b.x);
    return w.step;
}

int bench_plan(Plan *p, int64_t steps, FILE *out)
{
    need_device(p);
    Comm *c = comm_open(forever, p->mesh->world);
    Bench b = { .x = exec_open(p, c), .vocab = plan_vocab(p) };
    Feed f = { fill, &b };
    Walls w = timed_steps(&b, &f, steps);
    Exposed e = exposed(&b, &f, steps);
    b.peak = b.x->dev->peak(b.x->on, opts_dtype(p->opts));
    for (int i = 0; i < b.x->nstage; i++)
        gather(&b, i, steps);
    qsort(b.line, vec_len(b.line), sizeof *b.line, slowest_first);
    qsort(b.part, vec_len(b.part), sizeof *b.part, slowest_first);
    if (!c->first)
        print(&b, &w, &e, out);
    exec_close(b.x);
    comm_close(c);
    return 0;
}
