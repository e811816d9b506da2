/* stop.c: early ends of a run: a signal, train.hours. */
#include <signal.h>

#include "train.h"

static volatile sig_atomic_t asked;

static void on_signal(int sig)
{
    asked = 1;
    watch_signal();
    signal(sig, SIG_DFL); /* a second signal ends the process at once */
}

void catch_signals(void)
{
    struct sigaction s = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGINT, &s, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &s, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed reader does not end the run */
}

int signalled(void)
{
    return asked;
}

double time_limit(const Opts *opts)
{
    return opts_str(opts, "train.hours")
               ? monotonic() + 3600 * opts_num(opts, "train.hours")
               : INFINITY;
}
