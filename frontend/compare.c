/* compare.c: `pleat compare runs/a runs/b`: the settings in which two runs
 * differ, and their losses, step by step, from what their folders recorded; of
 * one run, its losses as a curve. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum { ROWS = 10 }; /* steps that are printed */

typedef struct StepRecord {
    double loss, ms; /* NaN: that step was not recorded */
} StepRecord;

typedef struct RunLog {
    const char *dir;
    const Settings *settings;
    StepRecord *step; /* vec, by step from 1; [0] is unused */
    double valid;     /* the last validation loss; NaN: none */
} RunLog;

/* ---- what a folder has --------------------------------------------------- */

static double number(const json_t *line, const char *key)
{
    const json_t *v = json_object_get(line, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* The last line of a step counts: it may have run again. */
static void take_line(RunLog *run, const char *text, size_t n)
{
    json_t *line = json_loadb(text, n, 0, NULL);
    double step = number(line, "step"), valid = number(line, "val_loss");

    if (!isnan(valid)) {
        run->valid = valid;
    } else if (step >= 1 && step < 1e9 && json_object_get(line, "loss")) {
        while (vec_len(run->step) <= (size_t)step)
            vec_push(forever, run->step, ((StepRecord){ NAN, NAN }));
        run->step[(size_t)step] =
            (StepRecord){ number(line, "loss"), number(line, "step_ms") };
    }
    json_decref(line);
}

static RunLog read_run(const char *word)
{
    const char *dir = folder_of(word);
    RunLog run = { .dir = word, .valid = NAN };
    size_t len;

    if (!dir)
        err(NULL, "%s is no run's folder", word);
    run.settings = config_read(forever, strf(forever, "%s/config.lua", dir));
    const char *text =
        file_need(forever, strf(forever, "%s/metrics.jsonl", dir), &len);
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        take_line(&run, text, n);
    }
    if (!vec_len(run.step))
        err(NULL, "%s has recorded no step", word);
    return run;
}

/* ---- settings ------------------------------------------------------------ */

static const char *value_in(const RunLog *run, const char *key)
{
    const Settings *s = run->settings;
    const char *value = s ? opts_str(s->given, key) : NULL;

    return value ? value : s ? opts_str(s->defaults, key) : NULL;
}

static void print_setting(const RunLog *a, const RunLog *b, const char *key)
{
    const char *x = value_in(a, key), *y = value_in(b, key);

    if (x == y || (x && y && !strcmp(x, y)) || !strcmp(key, "name"))
        return;
    printf("%-24s %-30.30s %.30s\n", key, x ? x : "not set", y ? y : "not set");
}

static void print_settings(const RunLog *a, const RunLog *b)
{
    const char *key, *value;

    for (const KeyInfo *k = keytab; k->name; k++)
        print_setting(a, b, key_name(k));
    for (const RunLog *r = a; r; r = r == a ? b : NULL)
        for (int i = 0;
             r->settings && opts_each(r->settings->given, i, &key, &value); i++)
            if (!strncmp(key, "axes.", 5) && (r == a || !value_in(a, key)))
                print_setting(a, b, key);
}

/* ---- losses -------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The middle one of a run's step times; NaN: none was recorded. */
static double usual_ms(const RunLog *run)
{
    size_t n = vec_len(run->step), count = 0;
    double *v = alloc(forever, n * sizeof *v);

    for (size_t i = 1; i < n; i++)
        if (!isnan(run->step[i].ms))
            v[count++] = run->step[i].ms;
    qsort(v, count, sizeof *v, by_number);
    return count ? v[count / 2] : (double)NAN;
}

static void print_pair(const char *what, double x, double y)
{
    if (!isnan(x) && !isnan(y))
        printf("%-24s %-30.9g %-16.9g %+.3g\n", what, x, y, y - x);
}

static void print_losses(const RunLog *a, const RunLog *b)
{
    size_t na = vec_len(a->step) - 1, nb = vec_len(b->step) - 1;
    size_t n = na < nb ? na : nb, first = 0, rows = n < ROWS ? n : ROWS;

    for (size_t i = 1; i <= n && !first; i++)
        if (a->step[i].loss != b->step[i].loss &&
            !(isnan(a->step[i].loss) && isnan(b->step[i].loss)))
            first = i;
    printf("\n%-24s %-30s %-16s b - a\n", "", a->dir, b->dir);
    for (size_t r = 1; r <= rows; r++)
        print_pair(strf(forever, "loss at step %zu", r * n / rows),
                   a->step[r * n / rows].loss, b->step[r * n / rows].loss);
    print_pair("last validation", a->valid, b->valid);
    print_pair("ms a step, the median", usual_ms(a), usual_ms(b));
    if (first)
        printf("losses differ from step %zu on\n", first);
    else
        printf("losses of %zu steps are the same\n", n);
}

/* ---- a curve ------------------------------------------------------------- */

enum { WIDTH = 64, HEIGHT = 12 };

/* The mean loss of the steps that fall on a column, first to last; NaN: none
 * was recorded. */
static double mean_loss(const RunLog *run, int column)
{
    size_t n = vec_len(run->step) - 1, width = n < WIDTH ? n : WIDTH;
    double sum = 0, count = 0;

    for (size_t i = column * n / width; i < (column + 1) * n / width; i++)
        if (isfinite(run->step[i + 1].loss)) {
            sum += run->step[i + 1].loss;
            count++;
        }
    return count > 0 ? sum / count : (double)NAN;
}

static void print_curve(const RunLog *run)
{
    size_t n = vec_len(run->step) - 1;
    int width = n < WIDTH ? (int)n : WIDTH;
    double v[WIDTH], most = -INFINITY, least = INFINITY;

    for (int i = 0; i < width; i++) {
        v[i] = mean_loss(run, i);
        most = v[i] > most ? v[i] : most;
        least = v[i] < least ? v[i] : least;
    }
    double row = most > least ? (most - least) / (HEIGHT - 1) : 1;
    for (int y = HEIGHT - 1; y >= 0 && most >= least; y--) {
        printf("%10.4f |", least + row * y);
        for (int i = 0; i < width; i++)
            putchar(fabs(v[i] - least - row * y) <= row / 2 ? '*' : ' ');
        putchar('\n');
    }
    printf("%10s +", "loss");
    for (int i = 0; i < width; i++)
        putchar('-');
    printf("\n%12s%-*d%*zu steps\n", "", width > 4 ? width - 4 : 1, 1, 4, n);
}

int cmd_compare(Args *a)
{
    RunLog x = read_run(a->word[0]), y;

    if (vec_len(a->word) < 2) {
        print_curve(&x);
        return 0;
    }
    y = read_run(a->word[1]);

    printf("%-24s %-30s %s\n", "", x.dir, y.dir);
    print_settings(&x, &y);
    print_losses(&x, &y);
    return 0;
}
