/* repeat.c: `run --replay STEP`: repeats steps from a checkpoint and compares
 * them with the run's records. Writes no files. */
#include "train.h"

enum { LINE = 8192 };

/* A step's last record in metrics.jsonl. */
typedef struct Recorded {
    int known;
    int64_t samples;   /* samples seen after the step; -1: unknown */
    double loss, norm; /* NAN: not finite, or absent */
} Recorded;

/* ---- metrics.jsonl ------------------------------------------------------- */

/* Returns the number of "key" in a line; NAN: none, or null. */
static double field(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    char *end;
    double v;

    if (!at)
        return NAN;
    at += strlen(key);
    v = strtod(at, &end);
    return end > at ? v : NAN;
}

/* Returns the records of the steps after `from` up to `to`. */
static Recorded *records_read(Arena *a, const char *path, int64_t from,
                              int64_t to)
{
    Recorded *r = alloc(a, (size_t)(to - from + 1) * sizeof *r);
    FILE *f = file_stream(path);
    char line[LINE];
    long long step;

    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "{\"step\": %lld,", &step) != 1 || step <= from ||
            step > to || !strstr(line, ", \"loss\": ") || !strchr(line, '}'))
            continue;
        double samples = field(line, "\"samples\": ");
        r[step - from - 1] =
            (Recorded){ 1, samples == samples ? (int64_t)samples : -1,
                        field(line, ", \"loss\": "),
                        field(line, ", \"grad_norm\": ") };
    }
    if (f)
        fclose(f);
    return r;
}

static int64_t last_recorded(const char *path)
{
    FILE *f = file_stream(path);
    char line[LINE];
    long long step;
    int64_t last = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "{\"step\": %lld,", &step) == 1 && step > last)
            last = step;
    if (f)
        fclose(f);
    return last;
}

/* Are they equal as printed, with nine digits, which distinguish floats? */
static int recorded_same(double recorded, double v)
{
    char text[64];

    if (!isfinite(v))
        return recorded != recorded;
    snprintf(text, sizeof text, "%.9g", v);
    return strtod(text, NULL) == recorded;
}

/* ---- checkpoints --------------------------------------------------------- */

/* Returns the step of the newest checkpoint not above `most`; -1: none. */
static int64_t step_below(Arena *a, const char *dir, int64_t most)
{
    int why;
    char **name = folder_names(a, dir, &why);
    int64_t best = -1;

    for (size_t i = 0; i < vec_len(name); i++) {
        int64_t step =
            strncmp(name[i], "step-", 5) ? -1 : strtoll(name[i] + 5, NULL, 10);
        if (step > best && step <= most &&
            !strcmp(name[i], strf(a, "step-%08ld", step)))
            best = step;
    }
    return best;
}

char *ckpt_before(Arena *a, const char *dir, int64_t most, State *state)
{
    for (int64_t step = most; (step = step_below(a, dir, step)) >= 0; step--) {
        char *path = strf(a, "%s/step-%08ld", dir, step);
        const char *why = ckpt_verify(a, path, state);
        if (!why)
            return path;
        if (!launch_rank())
            warn(NULL, "%s is not used: %s", path, why);
    }
    return NULL;
}

void need_step(Arena *a, const char *dir, int64_t step)
{
    int64_t done = last_recorded(strf(a, "%s/metrics.jsonl", dir));
    int64_t saved = step_below(a, strf(a, "%s/ckpt", dir), INT64_MAX);

    done = done > saved ? done : saved;
    if (step > done)
        err(NULL, "%s has done %ld steps: there is no step %ld to reach again",
            dir, done, step);
}

/* ---- steps --------------------------------------------------------------- */

/* Prints a step's results, in hexadecimal too, beside the recorded ones.
 * Returns 1 if they differ. */
static int print_repeated(const Exec *exec, Log *log, int64_t step,
                          const Recorded *recorded)
{
    double loss = exec_result(exec, RESULTloss);
    double norm = exec_result(exec, RESULTgrad_norm);
    int same = recorded_same(recorded->loss, loss) &&
               recorded_same(recorded->norm, norm);

    log_note(log, "step %ld loss %a (%.9g) gnorm %a (%.9g)%s\n", step, loss,
             loss, norm, norm,
             !recorded->known ? ": not in metrics.jsonl"
             : same           ? ": as recorded"
                              : "");
    if (recorded->known && !same)
        log_note(log, "  recorded: loss %.9g gnorm %.9g\n", recorded->loss,
                 recorded->norm);
    return recorded->known && !same;
}

/* Runs the next step at the data position of its record. */
static int repeat_step(Exec *exec, Data *data, Log *log, State *state,
                       const Recorded *recorded)
{
    int64_t n = data ? data_perstep(data) : 0;
    int64_t first =
        recorded->samples >= n ? recorded->samples - n : state->samples;
    StepValues b = step_block(exec, state->step);
    Feed f = data ? data_feed(data, first) : (Feed){ 0 };

    exec_exact(exec, PGstep, &b, data ? &f : NULL);
    state->step++;
    state->samples = first + n;
    return print_repeated(exec, log, state->step, recorded);
}

/* Compares the values with the checkpoint of this step, if there is one. */
static int compare_saved(Exec *exec, Log *log, const char *ckpt, int64_t step)
{
    uint64_t reached = values_hash(exec);
    State s;
    char *path = ckpt_before(forever, ckpt, step, &s);

    if (!path || s.step != step)
        return 0;
    ckpt_load(exec, path, &s);
    exec_filled(exec);
    int differ = (int)comm_max(exec->comm, values_hash(exec) != reached);
    log_note(log, "%s holds %s\n", path,
             differ ? "other values" : "the same values, to the bit");
    return differ;
}

int repeat_to(Exec *exec, Data *data, Log *log, const char *dir, State *state,
              int64_t to)
{
    int64_t from = state->step;
    Recorded *r =
        records_read(forever, strf(forever, "%s/metrics.jsonl", dir), from, to);
    int differ = 0;

    for (int64_t k = from; k < to; k++)
        differ |= repeat_step(exec, data, log, state, &r[k - from]);
    return differ | compare_saved(exec, log, strf(forever, "%s/ckpt", dir), to);
}
