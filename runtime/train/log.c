/* log.c: prints a line a step, writes a JSON object a step to metrics.jsonl,
 * and the same numbers for TensorBoard (events.c). Lines are formatted in a
 * fixed buffer and written at once: nothing is allocated while steps run.
 * Unknown values are left out, never guessed. */
#include <time.h>

#include "train.h"

enum { LINE = 4096, LONGTAG = 80, SKIPPED = 1, MAXWARNED = 8 };
/* Bytes of a line for each result, and for each element of a vector. */
enum { EACH = 128, ELEMENT = 14 };

struct Log {
    const Plan *plan;
    const Role *role;
    int metrics;      /* descriptor of metrics.jsonl; -1: none */
    const char *path; /* path of metrics.jsonl */
    int torn, failed; /* the file ends inside a line; the last write failed */
    int64_t reached;  /* largest step in the file */
    Events *events;   /* null: none */
    int loud;         /* rank 0 prints */
    int deaf;         /* standard output was closed by its reader */
    int every;
    int64_t vectors; /* steps between reported vectors; 0: never */
    int64_t steps, world;
    double secs, counted; /* seconds and number of steps after the first */
    double predicted;     /* seconds of a step; 0: unknown */
    double memory;        /* bytes of this machine's memory */
    double used;          /* bytes used by all ranks here */
    double peak;          /* peak FLOP/s of a rank; 0: unknown */
    Arena *mem;
    double *result;          /* [result]: values of the step being reported */
    char *written[NPROGRAM]; /* [program][result]: does it write the result? */
    const char *made;        /* `written` of the program being reported */
    char *warned;            /* [result]: was a warning printed? */
    int nwarned;
    char *line;
    int len, room;
};

static void say(Log *log, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void say(Log *log, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(log->line + log->len, (size_t)(log->room - log->len), fmt,
                      ap);
    va_end(ap);
    log->len =
        n < 0 || log->len + n >= log->room ? log->room - 1 : log->len + n;
}

static void end_line(Log *log)
{
    if (log->len == log->room - 1)
        log->line[log->room - 2] = '\n';
}

static void print_line(Log *log)
{
    end_line(log);
    if (!log->deaf && visible_put(STDOUT_FILENO, log->line, (size_t)log->len)) {
        log->deaf = 1;
        warn(NULL, "cannot print: %s; the run goes on%s", strerror(errno),
             log->metrics < 0
                 ? ""
                 : strf(forever, ", its steps are in %s", log->path));
    }
    log->len = 0;
}

/* Writes a whole line; if a write fails, tries to remove its part. */
static void store(Log *log, const char *line, size_t n)
{
    struct stat st;
    int bad = fstat(log->metrics, &st);

    if (log->torn && !bad)
        log->torn = bad = file_put(log->metrics, "\n", 1) != 0;
    if (!bad && file_put(log->metrics, line, n)) {
        int why = errno;
        bad = 1;
        log->torn = ftruncate(log->metrics, st.st_size) != 0;
        errno = why;
    }
    if (bad && !log->failed)
        warn(NULL, "cannot write %s: %s; steps are missing there", log->path,
             strerror(errno));
    log->failed = bad;
}

static void store_line(Log *log)
{
    end_line(log);
    store(log, log->line, (size_t)log->len);
    log->len = 0;
}

/* ---- numbers for people -------------------------------------------------- */

/* Appends a count with 3 digits and K, M, B, T. */
static void say_count(Log *log, double v)
{
    static const char unit[] = " KMBT";
    int i = 0;

    for (; v >= 999.5 && i < 4; i++)
        v /= 1000;
    say(log, v < 9.995 ? "%.2f" : v < 99.95 ? "%.1f" : "%.0f", v);
    if (i)
        say(log, "%c", unit[i]);
}

static void say_time(Log *log, double secs)
{
    int64_t s = (int64_t)(secs + 0.5);

    if (s >= 86400)
        say(log, "%ldd%02ldh", s / 86400, s % 86400 / 3600);
    else if (s >= 3600)
        say(log, "%ldh%02ldm", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        say(log, "%ldm%02lds", s / 60, s % 60);
    else
        say(log, "%lds", s);
}

static int digits(int64_t v)
{
    int n = 1;

    while (v /= 10)
        n++;
    return n;
}

/* Appends named losses and metrics of the result block as "lm 3.4712 aux
 * 0.0109". Those of single layers go to metrics.jsonl only. */
static void say_named(Log *log, ResultKind k, const double *v)
{
    const Role *role = log->role;
    int count = 0;

    for (int i = 0; i < role->nout; i++)
        if (role->out[i].result == k && !role->out[i].dim.n && log->made[i] &&
            !strchr(role->out[i].own, '.'))
            say(log, "%s%s %.4f", count++ ? " " : " | ", role->out[i].own,
                v[i]);
}

static int count_results(const Role *role, ResultKind k)
{
    int n = 0;

    for (int i = 0; i < role->nout; i++)
        n += role->out[i].result == k;
    return n;
}

/* ---- lines --------------------------------------------------------------- */

static void read_results(const Log *log, const Exec *exec)
{
    for (int i = 0; i < log->role->nout; i++)
        log->result[i] = exec_out(exec, i);
}

static double value(const Log *log, const double *v, ResultKind k)
{
    int i = role_result(log->role, k);

    return i >= 0 ? v[i] : NAN;
}

/* Speeds computed from a step's time and the plan; NaN: unknown. */
typedef enum StepSpeed { SPEEDtokens, SPEEDtflops, SPEEDmfu, NSPEED } StepSpeed;
static const char *const speednames[NSPEED] = { "tokens_per_s",
                                                "tflops_per_rank", "mfu" };

static double speed(const Log *log, StepSpeed k, double secs)
{
    const Plan *p = log->plan;
    double flops = p->flops / secs / (double)log->world;

    switch (k) {
    case SPEEDtokens: return p->tokens > 0 ? (double)p->tokens / secs : NAN;
    case SPEEDtflops: return flops > 0 ? flops * 1e-12 : NAN;
    default: return flops > 0 && log->peak > 0 ? flops / log->peak : NAN;
    }
}

static void say_speed(Log *log, double secs)
{
    double tokens = speed(log, SPEEDtokens, secs);
    double tflops = speed(log, SPEEDtflops, secs),
           mfu = speed(log, SPEEDmfu, secs);

    say(log, " | %.1f ms", secs * 1e3);
    if (!isnan(tokens)) {
        say(log, " | ");
        say_count(log, tokens);
        say(log, " tok/s");
        if (log->world > 1) {
            say(log, " (");
            say_count(log, tokens / (double)log->world);
            say(log, "/rank)");
        }
    }
    if (!isnan(tflops))
        say(log, " | %.3g %cFLOP/s%s", tflops < 1 ? tflops * 1e3 : tflops,
            tflops < 1 ? 'G' : 'T', log->world > 1 ? "/rank" : "");
    if (!isnan(mfu))
        say(log, " %.1f%% MFU", mfu * 100);
}

/* The ranks with the least and the most time waiting for others. */
typedef struct RankSpan {
    int64_t slowest, fastest;
} RankSpan;

static RankSpan span(const Log *log, const double *alone)
{
    RankSpan r = { 0, 0 };

    for (int64_t i = 1; i < log->world; i++) {
        r.slowest = alone[i] > alone[r.slowest] ? i : r.slowest;
        r.fastest = alone[i] < alone[r.fastest] ? i : r.fastest;
    }
    return r;
}

static void say_span(Log *log, const double *alone)
{
    RankSpan r = span(log, alone);

    say(log, " | slowest rank %ld %.1f ms, fastest %ld %.1f", r.slowest,
        alone[r.slowest] * 1e3, r.fastest, alone[r.fastest] * 1e3);
}

static void line_step(Log *log, const Logged *logged, const double *v)
{
    int64_t step = logged->step;
    double gnorm = value(log, v, RESULTgrad_norm), gib = 1.0 / (1 << 30);

    say(log, "step %*ld/%ld | loss %.4f",
        digits(log->steps) > 4 ? digits(log->steps) : 4, step, log->steps,
        value(log, v, RESULTloss));
    if (count_results(log->role, RESULTterm) > 1)
        say_named(log, RESULTterm, v);
    say_named(log, RESULTmetric, v);
    if (count_results(log->role, RESULTgrad_norm))
        say(log, " | gnorm %.3f", gnorm);
    say(log, " | lr %.2e", logged->lr);
    say_speed(log, logged->secs);
    if (logged->alone)
        say_span(log, logged->alone);
    say(log, " | mem %.2f/%.1f GiB", log->used * gib, log->memory * gib);
    if (log->predicted > 0)
        say(log, " | plan %+.1f%%", (logged->secs / log->predicted - 1) * 100);
    if (value(log, v, RESULToverflow) > 0)
        say(log, " | fallback");
    if (value(log, v, RESULTok) == 0)
        say(log, " | skipped");
    if (step < log->steps && log->counted > 0) {
        say(log, " | eta ");
        say_time(log, log->secs / log->counted * (double)(log->steps - step));
    }
    say(log, "\n");
}

/* Appends a JSON member; NaN becomes null. */
static void say_json(Log *log, const char *key, double v)
{
    if (isfinite(v))
        say(log, ", \"%s\": %.9g", key, v);
    else
        say(log, ", \"%s\": null", key);
}

/* Appends named losses and metrics under their names. A loss named "loss" would
 * hide the sum of all, so it gets another key. */
static void json_named(Log *log, ResultKind k, const char *put_before,
                       const double *v)
{
    char key[256];

    for (int i = 0; i < log->role->nout; i++) {
        const Scalar *scalar = &log->role->out[i];
        if (scalar->result != k || scalar->dim.n || !log->made[i] ||
            !strcmp(scalar->own, "loss"))
            continue;
        snprintf(key, sizeof key, "%s%s", put_before, scalar->own);
        say_json(log, key, v[i]);
    }
}

static int tells_vectors(const Log *log, int64_t step)
{
    return log->vectors && (step % log->vectors == 0 || step == log->steps);
}

/* Appends vectors as JSON lists. */
static void json_vectors(Log *log, const Exec *exec)
{
    for (int i = 0; i < log->role->nout; i++) {
        const Scalar *scalar = &log->role->out[i];
        if (!scalar->dim.n)
            continue;
        say(log, ", \"%s\": [", scalar->own);
        for (int64_t k = 0; k < scalar->dim.n; k++) {
            double v = exec_out_at(exec, i, k);
            say(log, isfinite(v) ? "%s%.4g" : "%snull", k ? ", " : "", v);
        }
        say(log, "]");
    }
}

/* Writes vectors as histograms; neighbouring elements share a bucket if a
 * record has fewer buckets. */
static void event_vectors(Log *log, const Exec *exec, int64_t step)
{
    double *v = log->result + log->role->nout;

    for (int i = 0; i < log->role->nout; i++) {
        const Scalar *scalar = &log->role->out[i];
        for (int64_t k = 0; k < scalar->dim.n; k++)
            v[k] = exec_out_at(exec, i, k);
        if (scalar->dim.n)
            event_vector(log->events, step, scalar->name, v, scalar->dim.n);
    }
}

static void json_step(Log *log, const Exec *exec, const Logged *logged,
                      const double *v)
{
    say(log, "{\"step\": %ld", logged->step);
    say_json(log, "loss", value(log, v, RESULTloss));
    json_named(log, RESULTterm, "", v);
    json_named(log, RESULTmetric, "", v);
    if (tells_vectors(log, logged->step))
        json_vectors(log, exec);
    say_json(log, "grad_norm", value(log, v, RESULTgrad_norm));
    say_json(log, "lr", logged->lr);
    say(log, ", \"samples\": %ld", logged->samples);
    say(log, ", \"step_ms\": %.4f", logged->secs * 1e3);
    if (logged->host >= 0)
        say(log, ", \"host_ms\": %.4f", logged->host * 1e3);
    if (logged->alone) {
        RankSpan r = span(log, logged->alone);
        say(log, ", \"slowest_rank\": %ld, \"fastest_rank\": %ld", r.slowest,
            r.fastest);
        say_json(log, "slowest_ms", logged->alone[r.slowest] * 1e3);
        say_json(log, "fastest_ms", logged->alone[r.fastest] * 1e3);
    }
    if (logged->experts > 0)
        say(log, ", \"expert_bytes\": %.0f", logged->experts);
    for (StepSpeed k = 0; k < NSPEED; k++)
        if (!isnan(speed(log, k, logged->secs)))
            say_json(log, speednames[k], speed(log, k, logged->secs));
    say_json(log, "memory_gib", log->used / (1 << 30));
    if (value(log, v, RESULToverflow) > 0)
        say(log, ", \"fallback\": true");
    if (value(log, v, RESULTok) == 0)
        say(log, ", \"skipped\": true");
    if (logged->step <= log->reached)
        say(log, ", \"again\": true");
    say(log, "}\n");
}

/* Returns the line of the model that declares the tensor of this name. */
static Loc line_of(const Plan *p, const char *state)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++)
            if (!strcmp(p->role[r].tensor[i].name, state))
                return (Loc){ p->role[r].tensor[i].file,
                              p->role[r].tensor[i].line, NULL };
    return (Loc){ 0 };
}

/* Warns about tensors whose low-precision values saturate, once each, at most a
 * few. */
static void warn_saturated(Log *log, int64_t step, const double *v)
{
    for (int i = 0; i < log->role->nout; i++) {
        const Scalar *scalar = &log->role->out[i];
        if (scalar->result != RESULTreach || !(v[i] > 1) || !log->made[i] ||
            log->warned[i])
            continue;
        log->warned[i] = 1;
        if (log->nwarned++ >= MAXWARNED)
            continue;
        Loc at = line_of(log->plan, scalar->own);
        warn(&at,
             "%s saturates in step %lld: its largest magnitude is %.3g times "
             "what its scale allows (precision.margin)",
             scalar->own, (long long)step, v[i]);
    }
}

static void event_step(Log *log, const Logged *logged, const double *v)
{
    for (int i = 0; i < log->role->nout; i++)
        if (log->role->out[i].result != RESULTok &&
            log->role->out[i].result != RESULTbeyond &&
            !log->role->out[i].dim.n && log->made[i])
            event_scalar(log->events, logged->step, log->role->out[i].name,
                         v[i]);
    event_scalar(log->events, logged->step, "lr", logged->lr);
    event_scalar(log->events, logged->step, "step_ms", logged->secs * 1e3);
    event_scalar(log->events, logged->step, "memory_gib",
                 log->used / (1 << 30));
    for (StepSpeed k = 0; k < NSPEED; k++)
        if (!isnan(speed(log, k, logged->secs)))
            event_scalar(log->events, logged->step, speednames[k],
                         speed(log, k, logged->secs));
}

void log_step(Log *log, const Exec *exec, const Logged *logged)
{
    const double *v = log->result;

    read_results(log, exec);
    log->made = log->written[logged->program];
    if (logged->step > SKIPPED) { /* the first step fills caches */
        log->secs += logged->secs;
        log->counted++;
    }
    if (!log->loud)
        return;
    warn_saturated(log, logged->step, v);
    json_step(log, exec, logged, v);
    if (log->metrics >= 0)
        store_line(log);
    log->len = 0;
    log->reached = logged->step > log->reached ? logged->step : log->reached;
    event_step(log, logged, v);
    if (tells_vectors(log, logged->step))
        event_vectors(log, exec, logged->step);
    if (logged->step % log->every && logged->step != log->steps &&
        logged->step != 1)
        return;
    line_step(log, logged, v);
    print_line(log);
}

void log_valid(Log *log, int64_t step, const char *set, const double *v,
               const char *beside)
{
    char tag[LONGTAG];

    if (!log->loud)
        return;
    log->made = log->written[PGeval];
    snprintf(tag, sizeof tag, set ? "val_loss/%s" : "val_loss", set);
    say(log, "val loss %.4f%s%s%s", value(log, v, RESULTloss),
        set ? " of " : "", set ? set : "", beside);
    if (count_results(log->role, RESULTterm) > 1)
        say_named(log, RESULTterm, v);
    say(log, "\n");
    print_line(log);
    if (log->metrics < 0)
        return;
    say(log, "{\"step\": %ld", step);
    if (set)
        say(log, ", \"set\": \"%s\"", set);
    say_json(log, "val_loss", value(log, v, RESULTloss));
    json_named(log, RESULTterm, "val_", v);
    say(log, "}\n");
    store_line(log);
    event_scalar(log->events, step, tag, value(log, v, RESULTloss));
}

void log_saved(Log *log, const Saved *saved)
{
    if (!log->loud || log->metrics < 0)
        return;
    say(log, "{\"step\": %ld, \"saved_bytes\": %ld", saved->step, saved->bytes);
    say(log, ", \"snapshot_bytes\": %ld", saved->snapshot);
    say_json(log, "save_stopped_ms", saved->stopped * 1e3);
    say_json(log, "save_copy_ms", saved->copied * 1e3);
    say_json(log, "save_ms", saved->took * 1e3);
    say(log, "}\n");
    store_line(log);
}

void log_sample(Log *log, int64_t step, const char *s, size_t n)
{
    Text line = { .arena = arena_new() };
    int64_t bad;

    if (!log->loud)
        return;
    event_text(log->events, step, "sample", s, n);
    printf("step %ld: %.*s\n", step, (int)n, s);
    fflush(stdout);
    char *text = strf(line.arena, "%.*s", (int)n, s);
    while ((bad = utf8_bad(text, strlen(text))) >= 0)
        text[bad] = '?'; /* JSON is UTF-8 */
    put(&line, "{\"step\": %ld, \"sample\": ", step);
    put_json(&line, text);
    put(&line, "}\n");
    if (log->metrics >= 0)
        store(log, line.s, line.len);
    arena_free(line.arena);
}

void log_note(Log *log, const char *fmt, ...)
{
    va_list ap;

    if (!log->loud)
        return;
    va_start(ap, fmt);
    log->len = vsnprintf(log->line, (size_t)log->room, fmt, ap);
    va_end(ap);
    log->len = log->len >= log->room ? log->room - 1 : log->len;
    print_line(log);
}

/* ---- opening ------------------------------------------------------------- */

static int open_append(const char *path)
{
    int fd = file_create(path, O_APPEND);

    if (fd < 0)
        err(NULL, "cannot write %s: %s", path, strerror(errno));
    return fd;
}

/* Does a run resumed after `step` keep a line? A killed process may have torn
 * the last line, and an earlier run may have ended a line torn by a full
 * disk. */
static int keeps(const char *line, ssize_t n, int64_t step)
{
    long long at;

    return n > 1 && line[n - 1] == '\n' && line[n - 2] == '}' &&
           sscanf(line, "{\"step\": %lld,", &at) == 1 && at <= step;
}

/* Copies lines to one of two files and returns the number of undone ones; null
 * files: only counts. */
static int64_t part_lines(FILE *in, int64_t step, FILE *kept, FILE *undone)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int64_t count = 0;

    while ((n = getline(&line, &room, in)) > 0) {
        int keep = keeps(line, n, step);
        FILE *to = keep ? kept : undone;
        count += !keep;
        if (to && fwrite(line, 1, (size_t)n, to) && line[n - 1] != '\n')
            fputc('\n', to);
    }
    free(line);
    return count;
}

/* Appends the lines of steps after `step`, which run again, and torn lines to
 * `path` and removes them from metrics.jsonl. */
static int move_undone(const Log *log, FILE *in, int64_t step, const char *path)
{
    Output *out[2] = { output_open(log->mem, path, OUTown),
                       output_open(log->mem, log->path, OUTown) };
    FILE *before = file_stream(path);
    int bad = !out[0] || !out[1];

    if (!bad) {
        if (before)
            part_lines(before, -1, NULL, out[0]->file);
        rewind(in);
        part_lines(in, step, out[1]->file, out[0]->file);
    }
    for (int i = 0; i < 2; i++)
        if (out[i] && bad)
            output_drop(out[i]);
        else
            bad = output_commit(&out[i], 1);
    if (before)
        fclose(before);
    return bad;
}

void log_resume(Log *log, int64_t step)
{
    FILE *in = log->metrics < 0 ? NULL : file_stream(log->path);

    if (!in)
        return;
    if (part_lines(in, step, NULL, NULL)) {
        const char *undone =
            strf(log->mem, "%.*s.undone.jsonl",
                 (int)(strlen(log->path) - strlen(".jsonl")), log->path);
        if (move_undone(log, in, step, undone)) {
            warn(NULL, "cannot write %s: %s", undone, strerror(errno));
            log->torn = !fseek(in, -1, SEEK_END) && getc(in) != '\n';
        }
        close(log->metrics);
        log->metrics = open_append(log->path);
    }
    fclose(in);
}

/* Writes the given keys as a Markdown table. */
static void log_config(Log *log, Arena *a)
{
    Text out = { .arena = a };
    const char *key, *value;

    put(&out, "| key | value |\n|---|---|\n");
    for (int i = 0; opts_each(log->plan->opts, i, &key, &value); i++)
        put(&out, "| %s | %s |\n", key, value);
    event_text(log->events, 0, "keys", out.s, out.len);
}

static void open_files(Log *log, Arena *a, const char *dir)
{
    char host[64] = "host";

    gethostname(host, sizeof host - 1);
    log->path = strf(a, "%s/metrics.jsonl", dir);
    log->metrics = open_append(log->path);
    log->events = events_open(
        a, open_append(strf(a, "%s/events.out.tfevents.%010ld.%s.%ld.0", dir,
                            time(NULL), host, (long)getpid())));
    log_config(log, a);
}

/* Finds the results that each program writes. */
static void note_written(Log *log)
{
    for (ProgramKind k = 0; k < NPROGRAM; k++) {
        const Program *program = role_program(log->role, k);
        log->written[k] = alloc(log->mem, (size_t)log->role->nout + 1);
        for (int i = 0; i < log->role->nout && program; i++)
            log->written[k][i] =
                (char)program_writes(program, log->role->out[i].buf);
    }
}

void log_plan(Log *log, const Plan *p, const Exec *exec)
{
    log->plan = p;
    log->role = exec_role(exec, exec->comm->first);
    log->world = p->mesh->world;
    log->predicted = plan_secs(p, PGstep);
    log->used = (double)exec_bytes(exec);
    int64_t most = 0, all = 0; /* elements: of the longest vector, of all */
    for (int i = 0; i < log->role->nout; i++) {
        all += log->role->out[i].dim.n;
        most = most < log->role->out[i].dim.n ? log->role->out[i].dim.n : most;
    }
    log->result = alloc(log->mem, (size_t)(log->role->nout + most + 1) *
                                      sizeof *log->result);
    log->room = LINE + EACH * log->role->nout + (int)all * ELEMENT;
    log->warned = alloc(log->mem, (size_t)log->role->nout + 1);
    note_written(log);
    log->vectors = opts_int(p->opts, "train.vectors_every");
    log->line = alloc(log->mem, (size_t)log->room);
}

Log *log_open(Arena *a, const Plan *p, const Exec *exec, const char *dir)
{
    Log *l = alloc(a, sizeof *l);

    l->mem = a;
    log_plan(l, p, exec);
    if (exec->dev->can &
        OWNmemory) /* the host's peak would need a measurement */
        l->peak = exec->dev->peak(exec->on, opts_dtype(p->opts)).flops;
    l->loud = exec->comm->first == 0;
    l->metrics = -1;
    if (l->loud && dir)
        open_files(l, a, dir);
    l->every = (int)opts_int(p->opts, "train.log_every");
    l->every = l->every < 1 ? 1 : l->every;
    l->steps = opts_int(p->opts, "train.steps");
    l->memory = (double)exec->dev->memory(exec->on);
    return l;
}

void log_close(Log *log)
{
    if (log->metrics >= 0)
        close(log->metrics);
    events_close(log->events);
}
