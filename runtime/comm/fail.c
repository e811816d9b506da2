/* fail.c: failure of a run with several ranks: one rank reports it. */
#include "comm.h"

enum { SILENCE = 10 }; /* seconds in which another ends this rank */

/* Before MPI starts all ranks meet the same error, and rank 0 reports it; later
 * the first rank that claims it reports it and ends the others. */
static void fail_here(const char *msg)
{
    int64_t rank = launch_rank();

    if (mpi_running() && !watch_claim()) {
        watch_end();
        sleep(SILENCE);
        _exit(err_status);
    }
    if (mpi_running() && rank)
        fprintf(stderr, "rank %ld: %s", rank, msg);
    else if (!rank)
        fputs(msg, stderr);
    else
        sleep(SILENCE); /* rank 0 needs time to report */
    if (mpi_running()) {
        watch_end();
        mpi_abort(err_status);
    }
    exit(err_status);
}

void launch_errors(void)
{
    if (launched())
        err_hook = fail_here;
}
