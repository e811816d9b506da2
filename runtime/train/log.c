/* log.c: one line a step for people, one JSON object a step for programs, and
 * the same numbers for TensorBoard (events.c). Lines are made in a fixed buffer
 * and written at once: nothing is allocated while steps run. What a plan or a
 * machine cannot say is left out, never guessed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "train.h"

enum { LINE = 4096, LONGTAG = 80, SKIPPED = 1 };
/* Bytes of a line for each result, and for each element of a vector. */
enum { EACH = 128, ELEMENT = 14 };

struct Log {
    const Plan *plan;
    const Role *role;
    int metrics;      /* a file; -1: none */
    const char *path; /* its */
    int torn, failed; /* it ends inside a line; the last write failed */
    int64_t reached;  /* the largest step that is in it */
    Events *events;   /* null: none */
    int loud;         /* rank 0 prints */
    int deaf;         /* nobody reads what is printed */
    int every;
    int64_t vectors; /* steps between vectors that are told; 0: never */
    int64_t steps, world;
    double secs, counted; /* of the steps since the first */
    double predicted;     /* seconds of a step; 0: unknown */
    double memory;        /* bytes of this machine */
    double used;          /* bytes of all ranks here */
    double peak;          /* FLOP/s of a rank; 0: unknown */
    Arena *mem;
    double *result; /* of the step being told, by their place */
    char *line;
    int len, room;
};

static void say(Log *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void say(Log *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(l->line + l->len, (size_t)(l->room - l->len), fmt, ap);
    va_end(ap);
    l->len = n < 0 || l->len + n >= l->room ? l->room - 1 : l->len + n;
}

static void end_line(Log *l)
{
    if (l->len == l->room - 1)
        l->line[l->room - 2] = '\n';
}

static void print_line(Log *l)
{
    end_line(l);
    if (!l->deaf && file_put(STDOUT_FILENO, l->line, (size_t)l->len)) {
        l->deaf = 1;
        warn(NULL, "cannot print: %s; the run goes on%s", strerror(errno),
             l->metrics < 0 ? ""
                            : strf(forever, ", its steps are in %s", l->path));
    }
    l->len = 0;
}

/* A whole line or nothing of it, as far as the disk lets us. */
static void store(Log *l, const char *line, size_t n)
{
    struct stat st;
    int bad = fstat(l->metrics, &st);

    if (l->torn && !bad)
        l->torn = bad = file_put(l->metrics, "\n", 1) != 0;
    if (!bad && file_put(l->metrics, line, n)) {
        int why = errno;
        bad = 1;
        l->torn = ftruncate(l->metrics, st.st_size) != 0;
        errno = why;
    }
    if (bad && !l->failed)
        warn(NULL, "cannot write %s: %s; steps are missing there", l->path,
             strerror(errno));
    l->failed = bad;
}

static void store_line(Log *l)
{
    end_line(l);
    store(l, l->line, (size_t)l->len);
    l->len = 0;
}

/* ---- numbers for people -------------------------------------------------- */

/* 3 digits and K, M, B, T. */
static void say_count(Log *l, double v)
{
    static const char unit[] = " KMBT";
    int i = 0;

    for (; v >= 999.5 && i < 4; i++)
        v /= 1000;
    say(l, v < 9.995 ? "%.2f" : v < 99.95 ? "%.1f" : "%.0f", v);
    if (i)
        say(l, "%c", unit[i]);
}

static void say_time(Log *l, double secs)
{
    int64_t s = (int64_t)(secs + 0.5);

    if (s >= 86400)
        say(l, "%lldd%02lldh", (long long)(s / 86400),
            (long long)(s % 86400 / 3600));
    else if (s >= 3600)
        say(l, "%lldh%02lldm", (long long)(s / 3600),
            (long long)(s % 3600 / 60));
    else if (s >= 60)
        say(l, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
    else
        say(l, "%llds", (long long)s);
}

static int digits(int64_t v)
{
    int n = 1;

    while (v /= 10)
        n++;
    return n;
}

/* Named losses and metrics of the result block, as "lm 3.4712 aux 0.0109".
 * Those of single layers are for metrics.jsonl only. */
static void say_named(Log *l, ResultKind k, const double *v)
{
    const Role *r = l->role;
    int count = 0;

    for (int i = 0; i < r->nout; i++)
        if (r->out[i].result == k && !r->out[i].dim.n &&
            !strchr(r->out[i].own, '.'))
            say(l, "%s%s %.4f", count++ ? " " : " | ", r->out[i].own, v[i]);
}

static int count_results(const Role *r, ResultKind k)
{
    int n = 0;

    for (int i = 0; i < r->nout; i++)
        n += r->out[i].result == k;
    return n;
}

/* ---- lines --------------------------------------------------------------- */

static void read_results(const Log *l, const Exec *x)
{
    for (int i = 0; i < l->role->nout; i++)
        l->result[i] = exec_out(x, i);
}

static double value(const Log *l, const double *v, ResultKind k)
{
    int i = role_result(l->role, k);

    return i >= 0 ? v[i] : NAN;
}

/* What a step's time and the plan say; NaN: they do not. */
typedef enum StepSpeed { SPEEDtokens, SPEEDtflops, SPEEDmfu, NSPEED } StepSpeed;
static const char *const speednames[NSPEED] = { "tokens_per_s",
                                                "tflops_per_rank", "mfu" };

static double speed(const Log *l, StepSpeed k, double secs)
{
    const Plan *p = l->plan;
    double flops = p->flops / secs / (double)l->world;

    switch (k) {
    case SPEEDtokens: return p->tokens > 0 ? (double)p->tokens / secs : NAN;
    case SPEEDtflops: return flops > 0 ? flops * 1e-12 : NAN;
    default: return flops > 0 && l->peak > 0 ? flops / l->peak : NAN;
    }
}

static void say_speed(Log *l, double secs)
{
    double tokens = speed(l, SPEEDtokens, secs);
    double tflops = speed(l, SPEEDtflops, secs), mfu = speed(l, SPEEDmfu, secs);

    say(l, " | %.1f ms", secs * 1e3);
    if (!isnan(tokens)) {
        say(l, " | ");
        say_count(l, tokens);
        say(l, " tok/s");
        if (l->world > 1) {
            say(l, " (");
            say_count(l, tokens / (double)l->world);
            say(l, "/rank)");
        }
    }
    if (!isnan(tflops))
        say(l, " | %.3g %cFLOP/s%s", tflops < 1 ? tflops * 1e3 : tflops,
            tflops < 1 ? 'G' : 'T', l->world > 1 ? "/rank" : "");
    if (!isnan(mfu))
        say(l, " %.1f%% MFU", mfu * 100);
}

/* The ranks that waited for others least and most. */
typedef struct RankSpan {
    int64_t slowest, fastest;
} RankSpan;

static RankSpan span(const Log *l, const double *alone)
{
    RankSpan r = { 0, 0 };

    for (int64_t i = 1; i < l->world; i++) {
        r.slowest = alone[i] > alone[r.slowest] ? i : r.slowest;
        r.fastest = alone[i] < alone[r.fastest] ? i : r.fastest;
    }
    return r;
}

static void say_span(Log *l, const double *alone)
{
    RankSpan r = span(l, alone);

    say(l, " | slowest rank %lld %.1f ms, fastest %lld %.1f",
        (long long)r.slowest, alone[r.slowest] * 1e3, (long long)r.fastest,
        alone[r.fastest] * 1e3);
}

static void line_step(Log *l, const Logged *s, const double *v)
{
    int64_t step = s->step;
    double gnorm = value(l, v, RESULTgrad_norm), gib = 1.0 / (1 << 30);

    say(l, "step %*lld/%lld | loss %.4f",
        digits(l->steps) > 4 ? digits(l->steps) : 4, (long long)step,
        (long long)l->steps, value(l, v, RESULTloss));
    if (count_results(l->role, RESULTterm) > 1)
        say_named(l, RESULTterm, v);
    say_named(l, RESULTmetric, v);
    if (count_results(l->role, RESULTgrad_norm))
        say(l, " | gnorm %.3f", gnorm);
    say(l, " | lr %.2e", s->lr);
    say_speed(l, s->secs);
    if (s->alone)
        say_span(l, s->alone);
    say(l, " | mem %.2f/%.1f GiB", l->used * gib, l->memory * gib);
    if (l->predicted > 0)
        say(l, " | plan %+.1f%%", (s->secs / l->predicted - 1) * 100);
    if (value(l, v, RESULToverflow) > 0)
        say(l, " | fallback");
    if (value(l, v, RESULTok) == 0)
        say(l, " | skipped");
    if (step < l->steps && l->counted > 0) {
        say(l, " | eta ");
        say_time(l, l->secs / l->counted * (double)(l->steps - step));
    }
    say(l, "\n");
}

/* JSON has no NaN. */
static void say_json(Log *l, const char *key, double v)
{
    if (isfinite(v))
        say(l, ", \"%s\": %.9g", key, v);
    else
        say(l, ", \"%s\": null", key);
}

/* A named loss keeps its name: "lm". Metrics too. One named "loss" would hide
 * the sum of all. */
static void json_named(Log *l, ResultKind k, const char *put_before,
                       const double *v)
{
    char key[256];

    for (int i = 0; i < l->role->nout; i++) {
        const Scalar *s = &l->role->out[i];
        if (s->result != k || s->dim.n || !strcmp(s->own, "loss"))
            continue;
        snprintf(key, sizeof key, "%s%s", put_before, s->own);
        say_json(l, key, v[i]);
    }
}

static int tells_vectors(const Log *l, int64_t step)
{
    return l->vectors && (step % l->vectors == 0 || step == l->steps);
}

/* Vectors, as lists. */
static void json_vectors(Log *l, const Exec *x)
{
    for (int i = 0; i < l->role->nout; i++) {
        const Scalar *s = &l->role->out[i];
        if (!s->dim.n)
            continue;
        say(l, ", \"%s\": [", s->own);
        for (int64_t k = 0; k < s->dim.n; k++) {
            double v = exec_out_at(x, i, k);
            say(l, isfinite(v) ? "%s%.4g" : "%snull", k ? ", " : "", v);
        }
        say(l, "]");
    }
}

/* Of elements side by side, no more than fit into a record. */
static void event_vectors(Log *l, const Exec *x, int64_t step)
{
    double *v = l->result + l->role->nout;

    for (int i = 0; i < l->role->nout; i++) {
        const Scalar *s = &l->role->out[i];
        for (int64_t k = 0; k < s->dim.n; k++)
            v[k] = exec_out_at(x, i, k);
        if (s->dim.n)
            event_vector(l->events, step, s->name, v, s->dim.n);
    }
}

static void json_step(Log *l, const Exec *x, const Logged *s, const double *v)
{
    say(l, "{\"step\": %lld", (long long)s->step);
    say_json(l, "loss", value(l, v, RESULTloss));
    json_named(l, RESULTterm, "", v);
    json_named(l, RESULTmetric, "", v);
    if (tells_vectors(l, s->step))
        json_vectors(l, x);
    say_json(l, "grad_norm", value(l, v, RESULTgrad_norm));
    say_json(l, "lr", s->lr);
    say(l, ", \"samples\": %lld", (long long)s->samples);
    say(l, ", \"step_ms\": %.4f", s->secs * 1e3);
    if (s->host >= 0)
        say(l, ", \"host_ms\": %.4f", s->host * 1e3);
    if (s->alone) {
        RankSpan r = span(l, s->alone);
        say(l, ", \"slowest_rank\": %lld, \"fastest_rank\": %lld",
            (long long)r.slowest, (long long)r.fastest);
        say_json(l, "slowest_ms", s->alone[r.slowest] * 1e3);
        say_json(l, "fastest_ms", s->alone[r.fastest] * 1e3);
    }
    if (s->experts > 0)
        say(l, ", \"expert_bytes\": %.0f", s->experts);
    for (StepSpeed k = 0; k < NSPEED; k++)
        if (!isnan(speed(l, k, s->secs)))
            say_json(l, speednames[k], speed(l, k, s->secs));
    say_json(l, "memory_gib", l->used / (1 << 30));
    if (value(l, v, RESULToverflow) > 0)
        say(l, ", \"fallback\": true");
    if (value(l, v, RESULTok) == 0)
        say(l, ", \"skipped\": true");
    if (s->step <= l->reached)
        say(l, ", \"again\": true");
    say(l, "}\n");
}

static void event_step(Log *l, const Logged *s, const double *v)
{
    for (int i = 0; i < l->role->nout; i++)
        if (l->role->out[i].result != RESULTok && !l->role->out[i].dim.n)
            event_scalar(l->events, s->step, l->role->out[i].name, v[i]);
    event_scalar(l->events, s->step, "lr", s->lr);
    event_scalar(l->events, s->step, "step_ms", s->secs * 1e3);
    event_scalar(l->events, s->step, "memory_gib", l->used / (1 << 30));
    for (StepSpeed k = 0; k < NSPEED; k++)
        if (!isnan(speed(l, k, s->secs)))
            event_scalar(l->events, s->step, speednames[k],
                         speed(l, k, s->secs));
}

void log_step(Log *l, const Exec *x, const Logged *s)
{
    const double *v = l->result;

    read_results(l, x);
    if (s->step > SKIPPED) { /* the first step warms caches up */
        l->secs += s->secs;
        l->counted++;
    }
    if (!l->loud)
        return;
    json_step(l, x, s, v);
    if (l->metrics >= 0)
        store_line(l);
    l->len = 0;
    l->reached = s->step > l->reached ? s->step : l->reached;
    event_step(l, s, v);
    if (tells_vectors(l, s->step))
        event_vectors(l, x, s->step);
    if (s->step % l->every && s->step != l->steps && s->step != 1)
        return;
    line_step(l, s, v);
    print_line(l);
}

void log_valid(Log *l, int64_t step, const char *set, const double *v,
               const char *beside)
{
    char tag[LONGTAG];

    if (!l->loud)
        return;
    snprintf(tag, sizeof tag, set ? "val_loss/%s" : "val_loss", set);
    say(l, "val loss %.4f%s%s%s", value(l, v, RESULTloss), set ? " of " : "",
        set ? set : "", beside);
    if (count_results(l->role, RESULTterm) > 1)
        say_named(l, RESULTterm, v);
    say(l, "\n");
    print_line(l);
    if (l->metrics < 0)
        return;
    say(l, "{\"step\": %lld", (long long)step);
    if (set)
        say(l, ", \"set\": \"%s\"", set);
    say_json(l, "val_loss", value(l, v, RESULTloss));
    json_named(l, RESULTterm, "val_", v);
    say(l, "}\n");
    store_line(l);
    event_scalar(l->events, step, tag, value(l, v, RESULTloss));
}

void log_saved(Log *l, const Saved *s)
{
    if (!l->loud || l->metrics < 0)
        return;
    say(l, "{\"step\": %lld, \"saved_bytes\": %lld", (long long)s->step,
        (long long)s->bytes);
    say(l, ", \"snapshot_bytes\": %lld", (long long)s->snapshot);
    say_json(l, "save_stopped_ms", s->stopped * 1e3);
    say_json(l, "save_copy_ms", s->copied * 1e3);
    say_json(l, "save_ms", s->took * 1e3);
    say(l, "}\n");
    store_line(l);
}

void log_sample(Log *l, int64_t step, const char *s, size_t n)
{
    Text line = { .arena = arena_new() };
    int64_t bad;

    if (!l->loud)
        return;
    event_text(l->events, step, "sample", s, n);
    printf("step %lld: %.*s\n", (long long)step, (int)n, s);
    fflush(stdout);
    char *text = strf(line.arena, "%.*s", (int)n, s);
    while ((bad = utf8_bad(text, strlen(text))) >= 0)
        text[bad] = '?'; /* JSON is UTF-8 */
    put(&line, "{\"step\": %lld, \"sample\": ", (long long)step);
    put_json(&line, text);
    put(&line, "}\n");
    if (l->metrics >= 0)
        store(l, line.s, line.len);
    arena_free(line.arena);
}

void log_note(Log *l, const char *fmt, ...)
{
    va_list ap;

    if (!l->loud)
        return;
    va_start(ap, fmt);
    l->len = vsnprintf(l->line, (size_t)l->room, fmt, ap);
    va_end(ap);
    l->len = l->len >= l->room ? l->room - 1 : l->len;
    print_line(l);
}

/* ---- opening ------------------------------------------------------------- */

static int open_append(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

    if (fd < 0)
        err(NULL, "cannot write %s: %s", path, strerror(errno));
    return fd;
}

/* What is there already, of a run that goes on: the largest step, and whether
 * its last line is whole. A crash may have torn it. */
static void look_back(Log *l)
{
    struct stat st;
    FILE *f =
        !stat(l->path, &st) && S_ISREG(st.st_mode) ? fopen(l->path, "r") : NULL;
    char *line = NULL;
    size_t room = 0;
    long long step;

    while (f && getline(&line, &room, f) > 0) {
        if (!l->torn && sscanf(line, "{\"step\": %lld,", &step) == 1 &&
            strstr(line, ", \"loss\": ") && step > l->reached)
            l->reached = step;
        l->torn = !strchr(line, '\n');
    }
    free(line);
    if (f)
        fclose(f);
}

/* The keys as they were given, as a table. */
static void log_config(Log *l, Arena *a)
{
    Text out = { .arena = a };
    const char *key, *value;

    put(&out, "| key | value |\n|---|---|\n");
    for (int i = 0; opts_each(l->plan->opts, i, &key, &value); i++)
        put(&out, "| %s | %s |\n", key, value);
    event_text(l->events, 0, "keys", out.s, out.len);
}

static void open_files(Log *l, Arena *a, const char *dir)
{
    char host[64] = "host";

    gethostname(host, sizeof host - 1);
    l->path = strf(a, "%s/metrics.jsonl", dir);
    l->metrics = open_append(l->path);
    look_back(l);
    l->events = events_open(
        a, open_append(strf(a, "%s/events.out.tfevents.%010lld.%s.%ld.0", dir,
                            (long long)time(NULL), host, (long)getpid())));
    log_config(l, a);
}

void log_plan(Log *l, const Plan *p, const Exec *x)
{
    l->plan = p;
    l->role = exec_role(x, x->comm->first);
    l->world = p->mesh->world;
    l->predicted = plan_secs(p, PGstep);
    l->used = (double)exec_bytes(x);
    int64_t most = 0, all = 0; /* elements of vectors */
    for (int i = 0; i < l->role->nout; i++) {
        all += l->role->out[i].dim.n;
        most = most < l->role->out[i].dim.n ? l->role->out[i].dim.n : most;
    }
    l->result =
        alloc(l->mem, (size_t)(l->role->nout + most + 1) * sizeof *l->result);
    l->room = LINE + EACH * l->role->nout + (int)all * ELEMENT;
    l->vectors = opts_int(p->opts, "train.vectors_every");
    l->line = alloc(l->mem, (size_t)l->room);
}

Log *log_open(Arena *a, const Plan *p, const Exec *x, const char *dir)
{
    Log *l = alloc(a, sizeof *l);

    l->mem = a;
    log_plan(l, p, x);
    if (x->dev->can & OWNmemory) /* the host's would have to be measured */
        l->peak = x->dev->peak(x->on, opts_dtype(p->opts)).flops;
    l->loud = x->comm->first == 0;
    l->metrics = -1;
    if (l->loud && dir)
        open_files(l, a, dir);
    l->every = (int)opts_int(p->opts, "train.log_every");
    l->every = l->every < 1 ? 1 : l->every;
    l->steps = opts_int(p->opts, "train.steps");
    l->memory = (double)x->dev->memory(x->on);
    return l;
}

void log_close(Log *l)
{
    if (l->metrics >= 0)
        close(l->metrics);
    events_close(l->events);
}
