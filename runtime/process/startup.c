/* startup.c: phases of the time before the first step. A phase lasts until the
 * next one begins. Phases of one name are summed; names are listed in order of
 * their first phase. */
#include <time.h>

#include "process.h"

enum { MAXPHASE = 24 };

static struct {
    int n, now;   /* now: current phase; -1: none */
    double begun; /* seconds */
    struct {
        const char *name;
        double secs;
    } phase[MAXPHASE];
} s = { .now = -1 };

double monotonic(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void start_phase(const char *name)
{
    double t = monotonic();
    int i = 0;

    if (s.now >= 0)
        s.phase[s.now].secs += t - s.begun;
    s.begun = t;
    s.now = -1;
    while (name && i < s.n && strcmp(s.phase[i].name, name))
        i++;
    if (!name || i == MAXPHASE)
        return;
    s.phase[i].name = name;
    s.n = i < s.n ? s.n : i + 1;
    s.now = i;
}

void start_says(Text *out)
{
    double all = 0;

    for (int i = 0; i < s.n; i++)
        all += s.phase[i].secs;
    put(out, "the first step was done after %.2f s:", all);
    for (int i = 0; i < s.n; i++)
        put(out, "%s %s %.2f", i ? "," : "", s.phase[i].name, s.phase[i].secs);
    put(out, "\n");
}
