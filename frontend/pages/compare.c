/* compare.c: `pleat compare runs/a runs/b`: prints the settings in which two
 * runs differ, and their recorded losses step by step; for one run, its losses
 * as a curve. */
#include "../frontend.h"

enum { ROWS = 10 }; /* printed steps */

/* ---- settings ------------------------------------------------------------ */

static const char *value_in(const RunLog *run, const char *key)
{
    const Settings *settings = run->settings;
    const char *value = settings ? opts_str(settings->given, key) : NULL;

    return value ? value : settings ? opts_str(settings->defaults, key) : NULL;
}

static void print_setting(const RunLog *a, const RunLog *b, const char *key)
{
    const char *x = value_in(a, key), *y = value_in(b, key);

    if (value_same(key, x, y) || !strcmp(key, "name"))
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
            if (key_of_model(key) && (r == a || !value_in(a, key)))
                print_setting(a, b, key);
}

/* ---- losses -------------------------------------------------------------- */

static void print_pair(const char *what, double x, double y)
{
    if (!isnan(x) && !isnan(y))
        printf("%-24s %-30.9g %-16.9g %+.3g\n", what, x, y, y - x);
}

static void print_losses(const RunLog *a, const RunLog *b)
{
    int64_t na = last_step(a), nb = last_step(b), n = na < nb ? na : nb;
    int64_t first = 0, rows = n < ROWS ? n : ROWS;

    for (int64_t i = 1; i <= n && !first; i++) {
        double x = series_at(a, "loss", i), y = series_at(b, "loss", i);
        if (x != y && !(isnan(x) && isnan(y)))
            first = i;
    }
    printf("\n%-24s %-30s %-16s b - a\n", "", a->dir, b->dir);
    for (int64_t r = 1; r <= rows; r++) {
        int64_t step = r * n / rows;
        print_pair(strf(forever, "loss at step %ld", step),
                   series_at(a, "loss", step), series_at(b, "loss", step));
    }
    print_pair("last validation", series_last(a, "val_loss"),
               series_last(b, "val_loss"));
    print_pair("ms a step, the median", series_median(a, "step_ms", 0, NULL),
               series_median(b, "step_ms", 0, NULL));
    if (first)
        printf("losses differ from step %ld on\n", first);
    else
        printf("losses of %ld steps are the same\n", n);
}

/* ---- a curve ------------------------------------------------------------- */

enum { WIDTH = 64, HEIGHT = 12 };

/* Returns the mean loss of the steps of a column; NaN: none was recorded. */
static double mean_loss(const RunLog *run, int column)
{
    int64_t n = last_step(run), width = n < WIDTH ? n : WIDTH, count = 0;
    double sum = 0;

    for (int64_t i = column * n / width; i < (column + 1) * n / width; i++) {
        double loss = series_at(run, "loss", i + 1);
        if (isfinite(loss)) {
            sum += loss;
            count++;
        }
    }
    return count ? sum / (double)count : (double)NAN;
}

static void print_curve(const RunLog *run)
{
    int64_t n = last_step(run);
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
    printf("\n%12s%-*d%*lld steps\n", "", width > 4 ? width - 4 : 1, 1, 4,
           (long long)n);
}

/* Returns the plan of a run with the settings of its folder, whose paths are
 * relative to this process. */
static Plan *plan_of(const char *word)
{
    const RunLog *run = run_log(forever, word);
    Plan *p = plan_at(word);
    const char *key, *value;

    for (int i = 0;
         run->settings && opts_each(run->settings->given, i, &key, &value); i++)
        opts_set(p->opts, key, value, NULL);
    return p;
}

int cmd_compare(Args *args)
{
    if (args->first && vec_len(args->word) < 2)
        err(NULL, "compare --first takes two runs");
    if (args->first)
        return compare_first(plan_of(args->word[0]), plan_of(args->word[1]),
                             args->word);
    const RunLog *x = run_log(forever, args->word[0]), *y;

    if (vec_len(args->word) < 2) {
        print_curve(x);
        return 0;
    }
    y = run_log(forever, args->word[1]);

    printf("%-24s %-30s %s\n", "", x->dir, y->dir);
    print_settings(x, y);
    print_losses(x, y);
    return 0;
}
