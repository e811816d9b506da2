/* runlog.c: reads the series of numbers in a run's metrics.jsonl, for compare,
 * watch, and pages of plans. */
#include <jansson.h>

#include "../frontend.h"

static RunSeries *series_named(RunLog *run, Arena *a, const char *name)
{
    for (size_t i = 0; i < vec_len(run->series); i++)
        if (!strcmp(run->series[i].name, name))
            return &run->series[i];
    vec_push(a, run->series, ((RunSeries){ .name = strf(a, "%s", name) }));
    return &run->series[vec_len(run->series) - 1];
}

/* Stores a number; the last record of a repeated step counts. */
static void take_number(RunLog *run, Arena *a, const char *name, double step,
                        double value)
{
    RunSeries *s = series_named(run, a, name);
    size_t n = vec_len(s->at);

    while (n && s->at[n - 1].step >= step)
        n--;
    vec_cut(s->at, n);
    vec_push(a, s->at, ((RunPoint){ step, value }));
}

static void take_list(RunLog *run, Arena *a, const char *name,
                      const json_t *list)
{
    RunSeries *s = series_named(run, a, name);

    vec_cut(s->list, 0);
    for (size_t i = 0; i < json_array_size(list); i++)
        vec_push(a, s->list, json_number_value(json_array_get(list, i)));
}

static void take_line(RunLog *run, Arena *a, const char *text, size_t n)
{
    json_t *line = json_loadb(text, n, 0, NULL), *x;
    double step = json_number_value(json_object_get(line, "step"));
    const char *set = json_string_value(json_object_get(line, "set")), *key;

    if (step >= 1 && step < 1e9)
        json_object_foreach(line, key, x)
        {
            const char *name = set ? strf(a, "%s/%s", key, set) : key;
            if (!strcmp(key, "sample") && json_is_string(x))
                vec_push(
                    a, run->sample,
                    ((RunSample){ step, strf(a, "%s", json_string_value(x)) }));
            else if (json_is_array(x))
                take_list(run, a, name, x);
            else if (strcmp(key, "step") &&
                     (json_is_number(x) || json_is_null(x)))
                take_number(run, a, name, step,
                            json_is_null(x) ? (double)NAN
                                            : json_number_value(x));
        }
    json_decref(line);
}

RunLog *run_log(Arena *a, const char *word)
{
    const char *dir = folder_of(word);
    RunLog *run = alloc(a, sizeof *run);
    size_t len;

    if (!dir)
        err(NULL, "%s is no run's folder", word);
    *run = (RunLog){ .dir = dir };
    run->settings = config_read(a, strf(a, "%s/config.lua", dir));
    const char *text = file_need(a, strf(a, "%s/metrics.jsonl", dir), &len);
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        take_line(run, a, text, n);
    }
    if (!series_length(run, "loss"))
        err(NULL, "%s has recorded no step", word);
    return run;
}

/* ---- queries ------------------------------------------------------------- */

static const RunPoint *points_of(const RunLog *run, const char *name)
{
    for (size_t i = 0; i < vec_len(run->series); i++)
        if (!strcmp(run->series[i].name, name))
            return run->series[i].at;
    return NULL;
}

size_t series_length(const RunLog *run, const char *name)
{
    return vec_len(points_of(run, name));
}

double series_last(const RunLog *run, const char *name)
{
    const RunPoint *v = points_of(run, name);

    return vec_len(v) ? v[vec_len(v) - 1].value : (double)NAN;
}

int64_t last_step(const RunLog *run)
{
    const RunPoint *v = points_of(run, "loss");

    return (int64_t)v[vec_len(v) - 1].step;
}

double series_at(const RunLog *run, const char *name, int64_t step)
{
    const RunPoint *v = points_of(run, name);
    size_t lo = 0, hi = vec_len(v);

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (v[mid].step < (double)step)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < vec_len(v) && v[lo].step == (double)step ? v[lo].value
                                                         : (double)NAN;
}

double series_median(const RunLog *run, const char *name, int64_t after,
                     size_t *count)
{
    const RunPoint *at = points_of(run, name);
    size_t n = vec_len(at), found = 0;
    double *v = alloc(forever, (n + 1) * sizeof *v);

    for (size_t i = 0; i < n; i++)
        if (!isnan(at[i].value) && at[i].step > (double)after)
            v[found++] = at[i].value;
    qsort(v, found, sizeof *v, by_double);
    if (count)
        *count = found;
    return found ? v[found / 2] : (double)NAN;
}
