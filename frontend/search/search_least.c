/* search_least.c: `search --least`: the fewest GPUs, the least memory of one, or
 * the least money of a step, where a step takes no more than --within
 * milliseconds. Searches follow each other, each in a process of its own: with
 * all that the keys say, then with less. GPUs of one cluster have one price, so
 * money is told in GPU-seconds. */
#include "../../ir/settings/keys.h"
#include "search.h"

enum { MISSES = 2 }; /* one after another: no search with still less */

typedef struct LeastSearch {
    Args args;
    int64_t world;    /* 0: as the keys say */
    const char *less; /* the key that says less; null: the first search */
    double within;    /* seconds */
    int ends;         /* at the first plan that takes no more */
} LeastSearch;

/* Writes seconds, bytes and ranks of the best plan, and the report. err() where
 * it takes longer; only the first search says why it has no plan. */
static int least_job(void *arg, FILE *out)
{
    const LeastSearch *least = arg;
    Space x = { .args = &least->args,
                .enough = least->ends ? least->within : 0,
                .less = least->less };
    int null = open("/dev/null", O_WRONLY);

    if (least->less)
        dup2(null, STDERR_FILENO);
    const Candidate *best = search_space(&x);
    if (best->f.secs > least->within)
        err(NULL,
            "search: no plan is found that takes --within %g ms a step; the "
            "best found takes %.1f ms",
            1e3 * least->within, 1e3 * best->f.secs);
    fprintf(out, "%.17g %.17g %lld\n", best->f.secs, best->f.bytes,
            (long long)x.s.world);
    search_report(out, &x, best);
    return 0;
}

/* The next of 64, 48, 32, 24 .. 2, 1; 0: there is none. */
static int64_t fewer_ranks(int64_t world)
{
    if (world % 3 == 0 && (world / 3 & (world / 3 - 1)) == 0)
        return world / 3 * 2;
    return world % 4 == 0 ? world / 4 * 3 : world / 2;
}

/* The key of a search with so many ranks. */
static const char *key_of_ranks(const Opts *keys, int64_t world)
{
    const char *chip = opts_str(keys, "cluster.chip");
    const char *count = chip ? strrchr(chip, 'x') : NULL;
    long long n = world;

    if (count && count[1] && !count[1 + strspn(count + 1, "0123456789")])
        return strf(forever, "cluster.chip=%.*sx%lld", (int)(count - chip),
                    chip, n);
    return strf(forever, "%s=%lld",
                opts_given(keys, "cluster.ranks") ? "cluster.ranks" : "world",
                n);
}

/* What is to be the least, of a plan. */
static double price_of_plan(const char *least, double secs, double bytes,
                            int64_t world)
{
    return !strcmp(least, "gpus")     ? (double)world
           : !strcmp(least, "memory") ? bytes
                                      : secs * (double)world;
}

/* Sets the key of the next search, with less than a plan has; 0: none is. */
static int ask_less(LeastSearch *least, int64_t world, double bytes)
{
    Opts *keys = opts_new(forever);
    int memory = !strcmp(least->args.least, "memory");

    opts_copy(keys, least->args.keys);
    least->args.keys = keys;
    least->world = memory ? world : fewer_ranks(world);
    least->less =
        memory ? strf(forever, "memory=%lldB", (long long)(bytes / 8 * 7))
               : key_of_ranks(keys, least->world);
    size_t n = strcspn(least->less, "=");
    opts_set(keys, internn(least->less, n), intern(least->less + n + 1), NULL);
    return least->world > 0;
}

int search_with_least(const Args *args)
{
    int memory = !strcmp(args->least, "memory"), misses = 0, status = 0;
    LeastSearch search = { .args = *args,
                           .within = 1e-3 * args->within,
                           .ends = strcmp(args->least, "money") != 0 };
    const char *report = NULL;
    double least = HUGE_VAL, secs, bytes = 0;
    long long world = 0;

    do {
        Text t = { .arena = forever };
        int from = 0;
        status = guarded(least_job, &search, &t);
        if (!status && sscanf(t.s, "%lf %lf %lld\n%n", &secs, &bytes, &world,
                              &from) == 3) {
            double price = price_of_plan(args->least, secs, bytes, world);
            report = price < least ? t.s + from : report;
            least = fmin(least, price);
            fprintf(
                stderr,
                "GPUs: %lld, %.2f GiB each, %.1f ms a step, %.4g GPU-seconds\n",
                world, bytes / 0x1p30, 1e3 * secs, secs * (double)world);
            misses = 0;
        } else if (!report) {
            return status;
        } else {
            world = search.world;
            misses += memory ? MISSES : 1;
        }
    } while (misses < MISSES && ask_less(&search, world, bytes));
    fputs(report, stdout);
    return 0;
}
