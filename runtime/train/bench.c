/* bench.c: profiles a training step. Runs a plan on random tokens, times every
 * instruction and prints the slowest: instructions of the same kernel and kind
 * of place ("layers.*.moe.w1") together, beside the plan's prediction and the
 * floor, the larger of FLOPs and bytes at the device's peak rates (caches can
 * be faster). Copies and collectives on other streams are timed there and count
 * in sums as if they were not overlapped. Further tables: the largest
 * differences from the plan, and sums by part of the model and by limit.
 * PLEAT_LINES=n sets the number of lines.
 *
 * Without a launcher all ranks run in this process, one after another, so
 * collectives are copies and times are totals over the ranks. Under mpirun rank
 * 0 prints its own times (if all ranks run one program, a collective has the
 * time of the rank that arrived last, and rank 0's further wait is a line of
 * its own), and the exposed communication: steps run again with a copy in the
 * rank's own memory in place of each collective. Transfers between stages stay,
 * since the schedule depends on them. */
#include "train.h"

typedef struct BenchRow { /* instructions counted together */
    const char *name, *file;
    int line, calls;
    double secs, predicted, floor, flops, bytes;
} BenchRow;

/* Resource that limits an instruction. */
typedef enum Limit { LIMproduct, LIMmemory, LIMcomm, LIMcopy, NLIMIT } Limit;
static const char *const limits[NLIMIT] = { "arithmetic", "memory",
                                            "communication",
                                            "clearing and copies" };

typedef struct Walls {
    double step, host; /* seconds of a step */
    int over;          /* did rows of a step overflow? */
} Walls;

/* Times of unchanged steps, and of steps with copies in place of
 * collectives. */
typedef struct Exposed {
    double step, alone;                     /* seconds of the slowest rank */
    int64_t collectives, transfers, copied; /* this rank's bytes */
    /* [0]: unchanged steps, [1]: with copies; rows overflowed; not finite. */
    int64_t over[2], bad[2];
} Exposed;

enum { MOST = 40, MOSTPARTS = 12, MOSTFAR = 8 }; /* lines */
enum { ROUNDS = 3, ROUND_SECS = 2 };             /* see exposed */

typedef struct Bench {
    Exec *x;
    Roofline peak;
    int64_t vocab, micro;
    double **spent; /* [stage][instruction]: seconds */
    double waited;  /* seconds in collectives before the last rank arrived */
    BenchRow *line; /* vec */
    BenchRow *part; /* vec: one per part of the model */
    BenchRow limit[NLIMIT];
} Bench;

static uint64_t noise_at(uint64_t key, int64_t i)
{
    return splitmix64(key + (uint64_t)i * 0x9e3779b97f4a7c15ull);
}

/* Feed.fill: random tokens below the vocabulary, or numbers in [-1, 1), with
 * little host time. */
static void fill(void *self, const Tensor *tensor, int64_t rank, int64_t micro,
                 void *dst)
{
    const Bench *bench = self;
    int64_t n = tensor_held(tensor);
    uint64_t key = splitmix64((uint64_t)(rank * 65536 + micro + bench->micro));
    int64_t below = tensor->below ? tensor->below : bench->vocab;
    uint64_t vocab = below ? (uint64_t)below : 2;

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

/* Replaces numbers: "layers.7.moe.w1" -> "layers.*.moe.w1". */
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

static BenchRow *named(BenchRow **v, const char *name, const Instr *instr)
{
    name = intern(name);
    for (size_t i = 0; i < vec_len(*v); i++)
        if ((*v)[i].name == name)
            return &(*v)[i];
    BenchRow l = { .name = name, .file = instr->file, .line = instr->line };
    vec_push(forever, *v, l);
    return &(*v)[vec_len(*v) - 1];
}

/* Returns the name of an instruction's kernel or kind; row exchanges have their
 * width: "sendrows:2048". */
static const char *what_runs(const Instr *instr)
{
    const char *name = instr_info(instr->kind)->name;

    if (moves_rows(instr->kind))
        return strf(forever, "%s:%ld", name, instr->rows.width);
    return instr->kernel ? instr->kernel : name;
}

static BenchRow *line_for(Bench *bench, const Instr *instr)
{
    return named(&bench->line,
                 strf(forever, "%-18s %s", what_runs(instr),
                      without_numbers(instr->label ? instr->label : "")),
                 instr);
}

/* Returns the row of the instruction's part: "layers.*.moe" for
 * "d.layers.*.moe.w1", "head" for "head". */
static BenchRow *part_for(Bench *bench, const Instr *instr)
{
    static const char *const before[] = { "clear ", "post.", "d.", "grad." };
    const char *path = without_numbers(instr->label ? instr->label : "");
    size_t n = 0;

    for (int i = 0; i < countof(before); i++)
        if (!strncmp(path, before[i], strlen(before[i])))
            path += strlen(before[i]);
    for (int dots = 0; path[n] && (path[n] != '.' || dots < 2); n++)
        dots += path[n] == '.';
    BenchRow *l = named(&bench->part,
                        *path ? strf(forever, "%.*s", (int)n, path)
                              : instr_info(instr->kind)->name,
                        instr);
    l->file = NULL;
    return l;
}

static Limit limit_of(const Bench *bench, const Instr *instr)
{
    InstrClass c = instr_info(instr->kind)->cls;

    if (c == CLASScollective || c == CLASStransfer)
        return LIMcomm;
    if (c == CLASSmemory)
        return LIMcopy;
    return instr->flops * bench->peak.bytes > instr->bytes * bench->peak.flops
               ? LIMproduct
               : LIMmemory;
}

static double floor_of(const Bench *bench, const Instr *instr)
{
    double work = bench->peak.flops > 0 ? instr->flops / bench->peak.flops : 0;
    double move = bench->peak.bytes > 0 ? instr->bytes / bench->peak.bytes : 0;

    return limit_of(bench, instr) == LIMcomm ? 0 : work > move ? work : move;
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

static const Program *step_program(const Stage *stage)
{
    const Role *role = stage->rank[0]->role;
    int prog = role_prog(role, PGstep);

    if (prog < 0)
        err(NULL, "the plan has no program 'step'");
    return &role->prog[prog];
}

static void gather(Bench *bench, int stage, int64_t steps)
{
    const Stage *s = &bench->x->stage[stage];
    const Program *prog = step_program(s);

    for (int f = 0; f < prog->nphase; f++)
        for (int k = 0; k < prog->phase[f].n; k++) {
            int at = prog->phase[f].first + k;
            const Instr *instr = &prog->instr[at];
            int64_t runs = instr_runs(prog, f, instr);
            double all = (double)(runs * s->nrank);
            BenchRow l = { .calls = (int)runs,
                           .secs = bench->spent[stage][at] / (double)steps,
                           .predicted = instr->secs * all,
                           .floor = floor_of(bench, instr) * all,
                           .flops = instr->flops * all,
                           .bytes = instr->bytes * all };
            add(line_for(bench, instr), &l);
            add(part_for(bench, instr), &l);
            add(&bench->limit[limit_of(bench, instr)], &l);
        }
}

/* Returns seconds of a collective on the rank that arrived last, if all ranks
 * run one program. */
static double without_wait(Bench *bench, const Instr *instr, double secs)
{
    const Exec *exec = bench->x;

    if (instr_info(instr->kind)->cls != CLASScollective ||
        exec->plan->nrole > 1 || exec->comm->n == exec->comm->world)
        return secs;
    double least = -1e-9 * (double)comm_max(exec->comm, (int64_t)(-secs * 1e9));
    bench->waited += secs - least;
    return least;
}

/* Adds the recorded times of a run. */
static void add_run(Bench *bench)
{
    for (int64_t i = 0; i < bench->x->nran; i++) {
        const InstrTiming *timing = &bench->x->ran[i];
        int stage = 0;
        while (bench->x->stage[stage].role != timing->stage)
            stage++;
        if (timing->instr >= 0)
            bench->spent[stage][timing->instr] += without_wait(
                bench,
                &step_program(&bench->x->stage[stage])->instr[timing->instr],
                timing->end - timing->start);
    }
}

/* Times every instruction from now on. */
static void start_clocks(Bench *bench)
{
    Exec *exec = bench->x;

    bench->spent = alloc(forever, (size_t)exec->nstage * sizeof *bench->spent);
    for (int i = 0; i < exec->nstage; i++)
        bench->spent[i] =
            alloc(forever, (size_t)(step_program(&exec->stage[i])->ninstr + 1) *
                               sizeof **bench->spent);
    exec_record(exec, PGstep);
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

static void print_line(const BenchRow *row, double sum, FILE *out)
{
    if (!row->calls)
        return;
    fprintf(out, "%8.3f %6.1f %6d %9.1f %8.1f %8.3f %7.2f %7.2f  %s",
            row->secs * 1e3, 100 * per(row->secs, sum), row->calls,
            per(row->flops, row->secs) * 1e-9,
            per(row->bytes, row->secs) * 1e-9, row->predicted * 1e3,
            per(row->secs, row->predicted), per(row->secs, row->floor),
            row->name);
    if (row->file)
        fprintf(out, " (%s:%d)", row->file, row->line);
    fprintf(out, "\n");
}

static void print_lines(const BenchRow *row, size_t n, size_t most,
                        const char *what, double sum, FILE *out)
{
    fprintf(out, "%8s %6s %6s %9s %8s %8s %7s %7s  %s\n", "ms", "%", "calls",
            "GFLOP/s", "GB/s", "plan ms", "x plan", "x floor", what);
    for (size_t i = 0; i < n && i < most; i++)
        print_line(&row[i], sum, out);
}

static void print_tables(Bench *bench, double sum, FILE *out)
{
    const char *most = getenv("PLEAT_LINES");

    for (int i = 0; i < NLIMIT; i++)
        bench->limit[i].name = limits[i];
    print_lines(bench->line, vec_len(bench->line),
                most ? (size_t)atoi(most) : MOST, "kernel, place", sum, out);
    qsort(bench->line, vec_len(bench->line), sizeof *bench->line,
          farthest_first);
    print_lines(bench->line, vec_len(bench->line),
                most ? (size_t)atoi(most) : MOSTFAR,
                "kernel, place, farthest from the plan first", sum, out);
    print_lines(bench->part, vec_len(bench->part), MOSTPARTS,
                "part of the model", sum, out);
    print_lines(bench->limit, NLIMIT, NLIMIT, "limited by", sum, out);
    if (bench->peak.flops > 0)
        fprintf(out, "peaks: %.1f GFLOP/s, %.1f GB/s\n",
                bench->peak.flops * 1e-9, bench->peak.bytes * 1e-9);
}

static double share_exposed(const Exposed *exposed)
{
    return exposed->step > 0
               ? 100 * (exposed->step - exposed->alone) / exposed->step
               : 0;
}

static void print_exposed(const Exposed *exposed, FILE *out)
{
    fprintf(out,
            "not hidden: %.2f %% (%.3f ms a step, %.3f ms with %ld collectives "
            "left out: copies of %.1f MB in a rank's memory in their place",
            share_exposed(exposed), exposed->step * 1e3, exposed->alone * 1e3,
            exposed->collectives, (double)exposed->copied * 1e-6);
    if (exposed->transfers)
        fprintf(out, "; %ld transfers between stages stay", exposed->transfers);
    if (exposed->over[0] || exposed->over[1])
        fprintf(out, "; rows of %ld and %ld of these steps had no room",
                exposed->over[0], exposed->over[1]);
    if (exposed->bad[0] || exposed->bad[1])
        fprintf(out, "; %ld and %ld of them were not finite", exposed->bad[0],
                exposed->bad[1]);
    fprintf(out, ")\n");
}

/* Prints all tables. The last line is for programs: pairs of a word and a
 * number. */
static void print(Bench *bench, const Walls *walls, const Exposed *exposed,
                  FILE *out)
{
    const Plan *p = bench->x->plan;
    Text memory = { .arena = forever };
    double outside = 0, sum = 0, predicted = 0, least = 0;

    for (size_t i = 0; i < vec_len(bench->line); i++) {
        sum += bench->line[i].secs;
        predicted += bench->line[i].predicted;
        least += bench->line[i].floor;
    }
    print_tables(bench, sum, out);
    fprintf(out,
            "%8.3f ms in steps, %.3f ms a step of training, %.3f ms planned, "
            "%.3f ms floor, %d threads\n",
            sum * 1e3, walls->step * 1e3, predicted * 1e3, least * 1e3,
            pool_size(bench->x->pool));
    if (bench->waited > 0)
        fprintf(out,
                "%8.3f ms more waited for ranks that came later to "
                "collectives\n",
                bench->waited * 1e3);
    outside = (double)exec_usage(bench->x, &memory);
    fprintf(out, "%s", memory.s ? memory.s : "");
    if (exposed->step > 0)
        print_exposed(exposed, out);
    if (walls->over)
        fprintf(out, "rows of a step of training had no room and were left "
                     "out: a run repeats such a step as step.fallback\n");
    fprintf(out,
            "ms %.3f host_ms %.3f tokens_per_s %.1f tflops %.2f arena_gib %.3f "
            "outside_gib %.3f not_hidden %.2f ranks %ld plan_ms %.3f\n",
            walls->step * 1e3, walls->host * 1e3,
            per((double)p->tokens, walls->step),
            per(p->flops, walls->step) * 1e-12,
            (double)exec_bytes(bench->x) / 0x1p30, outside / 0x1p30,
            share_exposed(exposed), p->mesh->world, plan_secs(p, PGstep) * 1e3);
}

/* Times whole steps as a run executes them: on a GPU one graph each, prepared
 * while the one before runs. The host's time excludes its waits. */
static Walls whole_steps(Bench *bench, const Feed *feed, int64_t steps)
{
    double start = 0, waited = 0;

    exec_record(bench->x, NPROGRAM);
    for (int64_t i = -2; i < steps; i++) {
        if (!i) {
            exec_settle(bench->x);
            start = monotonic();
            waited = bench->x->waited;
        }
        bench->x->late = 1;
        exec_run(bench->x, PGstep, &(StepValues){ 1e-4, 0.1, 0.05, i + 100 },
                 feed);
        bench->x->late = 0;
    }
    exec_settle(bench->x);
    double all = monotonic() - start;
    waited = bench->x->waited - waited;
    return (Walls){ all / (double)steps, (all - waited) / (double)steps,
                    exec_result(bench->x, RESULToverflow) > 0 };
}

/* Counts the bytes of collectives and transfers in a step of this rank. */
static void count_exposed(const Bench *bench, Exposed *exposed)
{
    const Stage *stage = &bench->x->stage[0];
    const Role *role = stage->rank[0]->role;
    const Program *program = step_program(stage);

    for (int f = 0; f < program->nphase; f++)
        for (int k = 0; k < program->phase[f].n; k++) {
            const Instr *instr = &program->instr[program->phase[f].first + k];
            int64_t runs = instr_runs(program, f, instr);
            InstrClass c = instr_info(instr->kind)->cls;
            exposed->collectives += c == CLASScollective ? runs : 0;
            exposed->copied += c == CLASScollective
                                   ? runs * role->buf[instr->buf[1]].bytes
                                   : 0;
            exposed->transfers += c == CLASStransfer ? runs : 0;
        }
}

/* Returns the steps of a round: as many as fit in ROUND_SECS, from 1 to `most`;
 * equal on all ranks. */
static int64_t round_steps(const Bench *bench, double step, int64_t most)
{
    int64_t slowest = comm_max(bench->x->comm, (int64_t)(step * 1e9) + 1);
    int64_t n = (int64_t)(ROUND_SECS * 1e9) / slowest;

    return n < 1 ? 1 : n < most ? n : most;
}

/* Returns the seconds of a step with copies in place of collectives, or of an
 * unchanged one. Gathered parameters are wrong after the first step with
 * copies, and zero weights would make products faster, so an unchanged step
 * runs before each one and restores them. */
static double apart_steps(Bench *bench, const Feed *feed, int64_t steps,
                          int alone, Exposed *exposed)
{
    double sum = 0;

    exec_record(bench->x, NPROGRAM);
    for (int64_t i = 0; i < 2 * steps + 2; i++) {
        double start = monotonic();
        bench->x->alone = alone && i % 2;
        exec_run(bench->x, PGstep, &(StepValues){ 1e-4, 0.1, 0.05, i + 100 },
                 feed);
        bench->x->alone = 0;
        if (i < 2 || !(i % 2))
            continue;
        sum += monotonic() - start;
        exposed->over[alone] += exec_result(bench->x, RESULToverflow) > 0;
        exposed->bad[alone] += exec_result(bench->x, RESULTok) == 0;
    }
    return sum / (double)steps;
}

/* Measures both kinds of steps alternately and takes medians. A process with
 * all ranks has no exposed communication. */
static Exposed exposed(Bench *bench, const Feed *feed, int64_t steps)
{
    double all[2][ROUNDS];
    Exposed e = { 0 };

    if (bench->x->comm->n == bench->x->comm->world)
        return e;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        double mine = apart_steps(bench, feed, steps, i % 2, &e);
        all[i % 2][i / 2] =
            1e-9 * (double)comm_max(bench->x->comm, (int64_t)(mine * 1e9));
    }
    for (int i = 0; i < 2; i++) {
        qsort(all[i], ROUNDS, sizeof **all, by_double);
        e.over[i] = comm_max(bench->x->comm, e.over[i]);
        e.bad[i] = comm_max(bench->x->comm, e.bad[i]);
    }
    count_exposed(bench, &e);
    e.step = all[0][ROUNDS / 2];
    e.alone = all[1][ROUNDS / 2];
    return e;
}

/* Runs at least `warm` steps untimed, then steps with a clock around each
 * instruction, then whole steps. */
static Walls timed_steps(Bench *bench, const Feed *feed, int64_t warm,
                         int64_t steps)
{
    double start = 0;

    if (role_prog(&bench->x->plan->role[0], PGinit) >= 0)
        exec_run(bench->x, PGinit, NULL, NULL);
    for (int64_t i = -warm; i < steps; i++) {
        if (!i)
            start = monotonic();
        bench->micro = i * 1000003;
        exec_run(bench->x, PGstep, &(StepValues){ 1e-4, 0.1, 0.05, i + 1 },
                 feed);
        if (i == -1)
            start_clocks(bench);
        else if (i >= 0)
            add_run(bench);
    }
    Walls w = { (monotonic() - start) / (double)steps, 0,
                exec_result(bench->x, RESULToverflow) > 0 };
    return exec_apart(bench->x) ? whole_steps(bench, feed, steps) : w;
}

void bench_prepare(Plan *const *plan, int n, Comm *comm)
{
    const Device *device = device_for(plan[0], comm);
    Arena *a = forever;

    if (device->prepare)
        device->prepare(
            device->open(&(DeviceArgs){ a, plan[0], comm, pool_open(0) }), plan,
            n);
}

/* Returns how many steps of `step` seconds fit into `secs`; equal on all
 * ranks. */
static int64_t steps_in(double secs, double step)
{
    return step > 0 ? (int64_t)fmin(secs / step, 100) : 0;
}

double bench_instrs(Plan *p, Comm *comm, double warm, double enough,
                    InstrSeconds **out, const char **chip)
{
    Bench b = { .x = exec_open(p, comm), .vocab = plan_vocab(p) };
    double plan = plan_secs(p, PGstep);
    int64_t steps = 3 + steps_in(enough, plan);
    Walls w =
        timed_steps(&b, &(Feed){ fill, &b }, 1 + steps_in(warm, plan), steps);
    const Stage *stage = &b.x->stage[0];
    const Program *program = step_program(stage);

    for (int f = 0; f < program->nphase; f++)
        for (int k = 0; k < program->phase[f].n; k++) {
            int at = program->phase[f].first + k;
            const Instr *instr = &program->instr[at];
            double runs =
                (double)(instr_runs(program, f, instr) * stage->nrank);
            InstrSeconds v = { instr, runs,
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
    Walls w = timed_steps(&b, &f, 1, steps);
    b.waited /= (double)steps;
    Exposed e = exposed(&b, &f, round_steps(&b, w.step, steps));
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
