/* search_least.c: the command; with --least, the fewest GPUs, the least memory
 * of one, or the least money of a step, where a step takes no more than
 * --within milliseconds. Searches follow each other, each in a process of its
 * own: with all that the keys say, then with less. GPUs of one cluster have one
 * price, so money is told in GPU-seconds. */
#include "../../ir/settings/keys.h"
#include "search.h"

enum { MISSES = 2 }; /* one after another: no search with still less */

typedef struct LeastSearch {
    Args args;
    const char *less;   /* the key that says less; null: the first search */
    double within;      /* seconds */
    int memory, money;  /* the least of this, else of GPUs */
    double secs, bytes; /* of the last plan found */
    long long world;    /* of the last search that found one, or was tried */
    double paid;        /* GPU-seconds of the least */
    const char *report; /* of the least; null: no plan is found yet */
} LeastSearch;

/* Writes seconds, bytes and ranks of the best plan, and the report. err() where
 * it takes longer; only the first search says why it has no plan. */
static int least_job(void *arg, FILE *out)
{
    const LeastSearch *least = arg;
    Space x = { .args = &least->args,
                .enough = least->money ? 0 : least->within,
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
static long long fewer_ranks(long long world)
{
    if (world % 3 == 0 && (world / 3 & (world / 3 - 1)) == 0)
        return world / 3 * 2;
    return world % 4 == 0 ? world / 4 * 3 : world / 2;
}

/* The key of a search with so many ranks. */
static const char *key_of_ranks(const Opts *keys, long long world)
{
    const char *chip = opts_str(keys, "cluster.chip");
    const char *count = chip ? strrchr(chip, 'x') : NULL;

    return count && strspn(count, "x0123456789") == strlen(count)
               ? strf(forever, "cluster.chip=%.*sx%lld", (int)(count - chip),
                      chip, world)
               : strf(forever, "world=%lld", world);
}

/* Sets the key of the next search, with less than a plan has; 0: none is. */
static int ask_less(LeastSearch *least)
{
    Opts *keys = opts_new(forever);

    opts_copy(keys, least->args.keys);
    least->args.keys = keys;
    least->world = least->memory ? least->world : fewer_ranks(least->world);
    least->less = least->memory ? strf(forever, "memory=%lldB",
                                       (long long)(least->bytes / 8 * 7))
                                : key_of_ranks(keys, least->world);
    size_t n = strcspn(least->less, "=");
    opts_set(keys, internn(least->less, n), intern(least->less + n + 1), NULL);
    return least->world > 0;
}

/* Runs a search; its plan is the least so far, but that money may be more with
 * fewer GPUs. Returns its exit status. */
static int run_search(LeastSearch *least)
{
    Text t = { .arena = forever };
    int from = 0, status = guarded(least_job, least, &t);

    if (status || sscanf(t.s, "%lf %lf %lld\n%n", &least->secs, &least->bytes,
                         &least->world, &from) != 3)
        return status;
    double paid = least->secs * (double)least->world;
    if (!least->money || !least->report || paid < least->paid) {
        least->report = t.s + from;
        least->paid = paid;
    }
    fprintf(stderr, "GPUs: %lld, %.2f GiB each, %.1f ms, %.4g GPU-seconds\n",
            least->world, least->bytes / 0x1p30, 1e3 * least->secs, paid);
    return 0;
}

static int search_with_least(const Args *args)
{
    LeastSearch least = { .args = *args,
                          .within = 1e-3 * args->within,
                          .memory = !strcmp(args->least, "memory"),
                          .money = !strcmp(args->least, "money") };
    int misses = 0, status;

    do {
        status = run_search(&least);
        if (!least.report)
            return status;
        misses = status ? misses + 1 + least.memory : 0;
    } while (misses < MISSES && ask_less(&least));
    fputs(least.report, stdout);
    return 0;
}

int cmd_search(Args *args)
{
    need_model(args->file);
    if (args->dump && strcmp(args->dump, "space"))
        err(NULL, "search: -d shows 'space', all points, and no '%s'",
            args->dump);
    if (!args->least != (args->within <= 0))
        err(NULL, "search: --least and --within stand together");
    if (args->least)
        return search_with_least(args);
    return guarded(search_job, args, NULL);
}
