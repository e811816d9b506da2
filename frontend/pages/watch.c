/* watch.c: `pleat watch runs/x`: writes a run as a page: page.html with the
 * run's records and its plan's predictions. Long series are thinned. */
#include <time.h>

#include "../frontend.h"

enum { POINTS = 500, LAYERSTEPS = 60, SAMPLES = 5 };

static void put_value(Text *out, double x)
{
    put(out, isfinite(x) ? "%.6g" : "null", x);
}

/* Appends a series, thinned, with its last value. */
static void put_series(Text *out, const RunSeries *series)
{
    size_t n = vec_len(series->at), per = (n + POINTS - 1) / POINTS;

    put_page(out, series->name);
    put(out, ":[");
    for (size_t i = (n - 1) % per; i < n; i += per) {
        put(out, "%s[%.0f,", i >= per ? "," : "", series->at[i].step);
        put_value(out, series->at[i].value);
        put(out, "]");
    }
    put(out, "]");
}

/* Is it a series of one layer? These become maps: a row per layer, steps to the
 * right. */
static int is_layers(const RunSeries *series)
{
    int64_t number;

    return pattern_of(series->name, &number) && number >= 0;
}

static void put_all_series(Text *out, const RunLog *run)
{
    int count = 0;

    put(out, ",\"series\":{");
    for (size_t i = 0; i < vec_len(run->series); i++) {
        const RunSeries *series = &run->series[i];
        if (!vec_len(series->at) || is_layers(series))
            continue;
        put(out, count++ ? "," : "");
        put_series(out, series);
    }
    put(out, "}");
}

static void put_layer(Text *out, const RunSeries *series)
{
    size_t n = vec_len(series->at), per = (n + LAYERSTEPS - 1) / LAYERSTEPS;

    put_page(out, series->name);
    put(out, ",[");
    for (size_t i = 0; i < vec_len(series->list); i++) {
        put(out, i ? "," : "");
        put_value(out, series->list[i]);
    }
    for (size_t i = n ? (n - 1) % per : 0; i < n; i += per) {
        put(out, i >= per ? "," : "");
        put_value(out, series->at[i].value);
    }
    put(out, "]");
}

/* Appends the maps of layers' series of one name: [name, list of steps,
 * rows]. */
static void put_maps(Text *out, const RunLog *run)
{
    const char **done = NULL;
    int64_t number;

    put(out, ",\"maps\":[");
    for (size_t i = 0; i < vec_len(run->series); i++) {
        const RunSeries *series = &run->series[i];
        const char *pattern = pattern_of(series->name, &number);
        size_t k = 0;
        int rows = 0;
        if (number < 0 && !vec_len(series->list))
            continue;
        while (k < vec_len(done) && done[k] != pattern)
            k++;
        if (k < vec_len(done))
            continue;
        put(out, "%s[", vec_len(done) ? "," : "");
        vec_push(out->arena, done, pattern);
        put_page(out, pattern);
        put(out, ",%d,[", vec_len(series->list) > 0);
        for (size_t j = i; j < vec_len(run->series); j++)
            if (pattern_of(run->series[j].name, &number) == pattern) {
                put(out, rows++ ? ",[" : "[");
                put_layer(out, &run->series[j]);
                put(out, "]");
            }
        put(out, "]]");
    }
    put(out, "]");
}

/* Appends the last samples, newest first. */
static void put_samples(Text *out, const RunLog *run)
{
    size_t n = vec_len(run->sample);

    put(out, ",\"samples\":[");
    for (size_t i = 0; i < n && i < SAMPLES; i++) {
        put(out, "%s[%.0f,", i ? "," : "", run->sample[n - 1 - i].step);
        put_page(out, run->sample[n - 1 - i].text);
        put(out, "]");
    }
    put(out, "]");
}

/* Appends predictions if the folder's plan can be read. */
static void put_planned(Text *out, const RunLog *run)
{
    size_t n;
    const char *path = strf(out->arena, "%s/plan", run->dir);
    char *text = file_read(out->arena, path, &n);
    int64_t arena = 0;

    if (!text || plan_format(text, n) != format_now(FMTplan))
        return;
    const Plan *p = plan_parse(out->arena, text, n, path);
    for (int i = 0; i < p->nrole; i++)
        arena = p->role[i].arena > arena ? p->role[i].arena : arena;
    put_page_number(out, "arena", (double)arena);
    put_page_number(out, "predicted", plan_secs(p, PGstep));
    put_page_number(out, "flops", p->flops);
    put_page_number(out, "peak", page_peak(p));
    put_page_number(out, "world", (double)p->mesh->world);
    put_page_number(out, "steps", (double)opts_int(p->opts, "train.steps"));
}

/* Writes the page. Returns 1 if the run goes on. */
static int write_run(const Args *args, const char *path)
{
    Text out = { .arena = arena_new() };
    const RunLog *run = run_log(out.arena, args->file);
    int more = !run->settings ||
               last_step(run) < opts_int(run->settings->given, "train.steps");

    put(&out, "{\"run\":{\"name\":");
    put_page(&out, args->file);
    put_page_number(&out, "every", more ? args->every : 0);
    put_page_number(&out, "median",
                    1e-3 * series_median(run, "step_ms", 0, NULL));
    put_planned(&out, run);
    put_all_series(&out, run);
    put_maps(&out, run);
    put_samples(&out, run);
    put(&out, "}}");
    write_page(path, out.s);
    arena_free(out.arena);
    return more && args->every > 0;
}

int cmd_watch(Args *args)
{
    const char *path =
        args->out ? args->out : strf(forever, "%s/watch.html", args->file);
    struct timespec pause = { .tv_sec =
                                  args->every < 1 ? 1 : (time_t)args->every };

    need_output(args, path, OUTpage);
    int more = write_run(args, path);

    printf("%s\n", path);
    while (more) {
        fflush(stdout);
        nanosleep(&pause, NULL);
        more = write_run(args, path);
    }
    return 0;
}
