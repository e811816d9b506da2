/* calibrate.c: `pleat bench --calibrate FILE` measures this machine and writes
 * a machine file. It runs plans of calibrate.lua in the sizes of the table
 * below and times each instruction. An instruction is a sample of the machine's
 * number by which it was predicted (InstrSpeeds), in the class of its size; the
 * overhead of the clocks is subtracted equally. The most demanding plans run
 * first: a warmer chip has a lower clock. */
#include "../frontend.h"

enum { CLASS = 2 }; /* largest ratio of sizes in a class */
/* Seconds that a plan runs, first untimed: the chip's clock falls to the value
 * that its power and heat allow. Without the untimed seconds predictions are
 * several percent too fast. */
static const double warm = 0.7, enough = 0.6;

typedef struct CalibrationRow {
    const char *target;
    int micros; /* micro-batches of a step: training spends most of its time in
                   products, at the clock that the chip's power allows */
    const char *keys;
} CalibrationRow;

/* clang-format off */
#define BF16 " precision.policy=bf16 axes.dim=128 "
/* ... everything that can be multiplied in FP8, whether it pays or not. */
#define FP8 " precision.policy=fp8 precision.place=all precision.wgrad=all axes.dim=128 "
/* Rows of an expert: 4,096, 2,048, 1,024, 512, 256, 64. In both types of the
 * same sizes: they share the kernels of all else. */
#define WIDE  "axes.seq=4096 axes.batch=4 axes.hidden=4096 axes.kv=8 axes.group=4 axes.wide=8192 axes.ffn=8192 axes.vocab=65536"
#define FEW   "axes.seq=4096 axes.batch=2 axes.hidden=4096 axes.kv=8 axes.group=4 axes.wide=12288 axes.ffn=12288 axes.vocab=32768"
#define LONG  "axes.seq=4096 axes.batch=4 axes.hidden=2048 axes.kv=4 axes.group=8 axes.wide=2048 axes.ffn=1152 axes.expert=64 axes.chosen=4 axes.vocab=80000"
#define HALF  "axes.seq=4096 axes.batch=2 axes.hidden=2048 axes.kv=16 axes.group=1 axes.wide=5632 axes.ffn=1280 axes.expert=64 axes.chosen=4 axes.vocab=65536"
#define MANY  "axes.seq=4096 axes.hidden=2560 axes.kv=4 axes.group=8 axes.wide=6144 axes.ffn=1536 axes.expert=64 axes.chosen=4 axes.vocab=131072"
#define SHORT "axes.seq=4096 axes.hidden=2048 axes.kv=4 axes.group=8 axes.wide=2816 axes.ffn=768 axes.expert=128 axes.vocab=16384"
static const CalibrationRow calibration_rows[] = {
    { "host", 1, "axes.seq=16" },
    { "host", 1, "axes.seq=128 axes.batch=4 axes.hidden=128 axes.wide=512 axes.ffn=256" },
    { "host", 1, "axes.seq=256 axes.batch=4 axes.hidden=256 axes.wide=1024 axes.vocab=4096" },
    { "cuda", 1, WIDE BF16 },
    { "cuda", 2, LONG BF16 },
    { "cuda", 1, FEW BF16 },
    { "cuda", 2, HALF BF16 },
    { "cuda", 4, MANY BF16 },
    { "cuda", 4, SHORT BF16 },
    { "cuda", 1, WIDE FP8 },
    { "cuda", 4, MANY FP8 },
    { "cuda", 4, SHORT FP8 },
    { "cuda", 1, BF16 "axes.seq=1024 axes.hidden=1024 axes.kv=4 axes.wide=4096 axes.ffn=512 axes.expert=4 axes.vocab=16384" },
    { "cuda", 1, BF16 "axes.seq=256 axes.hidden=512 axes.kv=4 axes.wide=1024 axes.ffn=256" },
    { "cuda", 1, "precision.policy=fp32 axes.seq=1024 axes.hidden=1024 axes.kv=4 axes.dim=128 axes.wide=4096 axes.ffn=512" },
};
/* clang-format on */
typedef struct Sample {
    Speed speed;
    double size, amount, secs; /* amount / secs: the machine's number */
    double bytes, added;       /* products: see predict() */
    double flops;              /* loops limited by memory */
} Sample;

typedef struct Calibration {
    Opts *keys;
    MachineSpeeds before; /* speeds of the target's row; memory: measured */
    Sample *sample;       /* vecs */
    double *launch, *hop; /* seconds of nearly empty instructions */
    const char *chip;
} Calibration;

/* ---- samples ------------------------------------------------------------- */

static Plan *plan_for(const Calibration *calibration, const CalibrationRow *row)
{
    Source source = { "calibrate.lua", calibrate_lua };
    Opts *opts = opts_new(forever);

    opts_copy(opts, calibration->keys);
    set_keys(opts, row->keys);
    set_keys(opts, "axes.batch=1 world=1");
    set_keys(opts, strf(forever, "fold.ep=%s train.batch=%ld",
                        opts_str(opts, "world"),
                        row->micros * opts_int(opts, "axes.batch") *
                            opts_int(opts, "world")));
    Trace t = trace_sources(&source, 1, opts);
    return compile(t.g, target_of(t.g->opts),
                   &(CompileOptions){ .out = stderr,
                                      .prog = PGstep,
                                      .source = t.source,
                                      .nsource = t.nsource });
}

static int is_product(Speed speed)
{
    return speed == SPEEDgemm || speed == SPEEDgrouped ||
           speed == SPEEDweights || speed == SPEEDnarrow ||
           speed == SPEEDnarrow_weights || speed == SPEEDsingle;
}

/* Adds a sample: FLOPs of a product, for others the larger of FLOPs and bytes
 * by the prediction (predict() of instr_cost.c). */
static void add_sample(Calibration *calibration, const Instr *instr,
                       double secs)
{
    const MachineSpeeds *speeds = &calibration->before;
    InstrSpeeds v = instr->speeds;
    InstrClass class = instr_info(instr->kind)->cls;
    int multiplies = v.work != SPEEDloop;
    double work = instr->flops / speed_at(speeds, v.work, v.size);
    double move = instr->bytes / speed_at(speeds, v.move, HUGE_VAL);
    int sends = class == CLASScollective || class == CLASStransfer;
    double base = sends ? speeds->hop : speeds->launch;

    if ((instr->flops == 0 && instr->bytes == 0) || v.move == SPEEDoffload ||
        v.move == SPEEDcores)
        return; /* copies overlap: their times are not samples */
    if (work + move < 0.1 * base) {
        if (sends)
            vec_push(forever, calibration->hop, secs);
        else
            vec_push(forever, calibration->launch, secs);
    } else if ((multiplies || work > move) && !sends)
        vec_push(forever, calibration->sample,
                 ((Sample){ v.work, v.size, instr->flops, secs, instr->bytes,
                            v.added, 0 }));
    else
        vec_push(forever, calibration->sample,
                 ((Sample){ v.move, instr->bytes, instr->bytes + v.added, secs,
                            0, 0, multiplies ? 0 : instr->flops }));
}

static void measure(Calibration *calibration, Plan *p, Comm *comm)
{
    InstrSeconds *seconds = NULL;
    double step =
        bench_instrs(p, comm, warm, enough, &seconds, &calibration->chip);
    double sum = 0, runs = 0;

    for (size_t i = 0; i < vec_len(seconds); i++) {
        sum += seconds[i].secs * seconds[i].runs;
        runs += seconds[i].runs;
    }
    double clock = comm->world == 1 && sum > step ? (sum - step) / runs : 0;
    for (size_t i = 0; i < vec_len(seconds); i++)
        add_sample(calibration, seconds[i].instr,
                   fmax(seconds[i].secs - clock, 0.1 * seconds[i].secs));
}

/* ---- numbers of the machine ---------------------------------------------- */

/* Returns the median; without samples the usual value. */
static double median(double *v, double usual)
{
    if (!vec_len(v))
        return usual;
    qsort(v, vec_len(v), sizeof *v, by_double);
    return v[vec_len(v) / 2];
}

static int class_of(double size)
{
    return (int)floor(log(size) / log(CLASS));
}

static int slowest_first(const void *a, const void *b)
{
    const Sample *x = a, *y = b;

    return by_double(&(double){ x->amount / x->secs },
                     &(double){ y->amount / y->secs });
}

/* Returns the weighted median of a class: half of the amount is faster, half
 * slower, so that an outlier has no effect. */
static SpeedPoint middle_of(Sample *sample)
{
    double all = 0, size = 0, done = 0;
    size_t i = 0;

    for (size_t k = 0; k < vec_len(sample); k++) {
        all += sample[k].amount;
        size += log(sample[k].size) / (double)vec_len(sample);
    }
    qsort(sample, vec_len(sample), sizeof *sample, slowest_first);
    while (2 * (done += sample[i].amount) < all)
        i++;
    return (SpeedPoint){ exp(size), sample[i].amount / sample[i].secs };
}

/* Returns the sample without `base`, the seconds of every launch; for a product
 * the part of multiplication, without its bytes (product_secs). */
static Sample alone(const Calibration *calibration, Sample s, double base)
{
    const MachineSpeeds *speeds = &calibration->before;
    double secs = fmax(s.secs - base, 0.1 * s.secs);

    if (is_product(s.speed)) {
        double memory = speed_at(speeds, SPEEDmemory, s.bytes);
        secs = fmax(secs - s.added / memory, 0.1 * s.secs);
        double move = s.bytes / memory;
        secs = sqrt(fmax(secs * secs - move * move, 0.1 * secs * secs));
    }
    s.secs = secs;
    return s;
}

/* Does another loop have as many FLOPs, move more bytes and take less time?
 * FLOPs do not limit this one then, and it is no sample: otherwise loops of its
 * size would be predicted far too slow. */
static int calculates_slowly(const Calibration *calibration, const Sample *s)
{
    for (size_t i = 0; i < vec_len(calibration->sample); i++) {
        const Sample *other = &calibration->sample[i];
        if (s->speed == SPEEDloop && other->flops >= s->amount &&
            other->secs < s->secs)
            return 1;
    }
    return 0;
}

/* Returns the points of a number, one for each class of sizes with samples; 0
 * ends the list. */
static SpeedPoint *points_of(const Calibration *calibration, Speed speed,
                             double base)
{
    SpeedPoint *points = NULL;

    for (int k = 0; k < 64; k++) {
        Sample *v = NULL;
        for (size_t i = 0; i < vec_len(calibration->sample); i++) {
            Sample s = alone(calibration, calibration->sample[i], base);
            if (s.speed == speed && class_of(s.size) == k &&
                !calculates_slowly(calibration, &calibration->sample[i]))
                vec_push(forever, v, s);
        }
        if (v)
            vec_push(forever, points, middle_of(v));
    }
    vec_push(forever, points, ((SpeedPoint){ 0, 0 }));
    return points;
}

/* Returns the machine whose name is part of the chip's, otherwise the
 * target's. */
static const char *nearest_machine(const Calibration *calibration)
{
    const char *usual = machine_name(target_of(calibration->keys)->machine);

    for (int m = 0; m < NMACHINE; m++)
        if (strcasestr(calibration->chip, machine_name((Machine)m)))
            return machine_name((Machine)m);
    return usual;
}

/* Measures the host's memory with as many threads as its updates use. */
static double cores_speed(void)
{
    Pool *pool = pool_open(0);
    double speed = pool_moves(pool);

    pool_close(pool);
    return speed;
}

static char *machine_text(Calibration *calibration)
{
    Text out = { .arena = forever };
    double launch = median(calibration->launch, calibration->before.launch);
    double hop = median(calibration->hop, calibration->before.hop);
    SpeedPoint *memory = points_of(calibration, SPEEDmemory, launch);

    if (memory->size > 0)
        calibration->before.points[SPEEDmemory] = memory;
    put(&out, "%s\nchip %s\ndevice %s\n", output_start(OUTmachine),
        nearest_machine(calibration), calibration->chip);
    put(&out, "launch %.3g measured\n", launch);
    if (vec_len(calibration->hop))
        put(&out, "hop %.3g measured\n", hop);
    if (calibration->before.offload > 0)
        put(&out, "cores %.3g measured\n", cores_speed());
    for (int s = 0; s < NSPEEDS; s++) {
        int link = s == SPEEDlink || s == SPEEDrows;
        const SpeedPoint *points =
            points_of(calibration, (Speed)s, link ? hop : launch);
        for (; points->size > 0; points++)
            put(&out, "%s %.4g measured %.3g\n", speed_name((Speed)s),
                points->value, points->size);
    }
    return out.s;
}

/* ---- the command --------------------------------------------------------- */

/* Compiles all plans before MPI starts, since MPI does not support fork; the
 * other ranks receive texts. */
static Plan **calibration_plans(const Calibration *calibration)
{
    Plan **plan = NULL;
    const char *target = target_of(calibration->keys)->name;

    for (int i = 0; i < countof(calibration_rows); i++)
        if (!strcmp(calibration_rows[i].target, target))
            vec_push(forever, plan,
                     launch_rank()
                         ? NULL
                         : plan_for(calibration, &calibration_rows[i]));
    for (size_t i = 0; i < vec_len(plan) && launched(); i++) {
        Text t = { .arena = forever };
        if (plan[i])
            t.s = plan_print(forever, plan[i], &t.len);
        comm_plan(&t);
        if (!plan[i])
            plan[i] = plan_parse(forever, t.s, t.len, "calibrate.lua");
    }
    return plan;
}

int calibrate(Args *args)
{
    Calibration c = { .keys = args->keys };

    launch_errors();
    need_output(args, args->calibrate, OUTmachine);
    take_launch(c.keys, c.keys);
    if (!opts_str(c.keys, "target"))
        opts_set(c.keys, "target", device_here()->name, NULL);
    c.before = machine_speeds(NULL, target_of(c.keys)->machine);
    Plan **plan = calibration_plans(&c);
    if (!vec_len(plan))
        err(NULL, "bench --calibrate: target=%s computes nothing",
            target_of(c.keys)->name);
    Comm *comm = comm_open(forever, plan[0]->mesh->world);
    bench_prepare(plan, (int)vec_len(plan), comm);
    for (size_t i = 0; i < vec_len(plan); i++)
        measure(&c, plan[i], comm);
    int first = !comm->first;
    comm_close(comm);
    if (!first)
        return 0;
    const char *text = machine_text(&c);
    write_all(args->calibrate, OUTmachine, text, strlen(text));
    printf("%s: %zu instructions on %s measured; cluster=%s plans by it\n",
           args->calibrate, vec_len(c.sample), c.chip, args->calibrate);
    return 0;
}
