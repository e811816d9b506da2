/* launch.c: world size and rank of this process from its launcher's
 * environment. */
#include "process.h"

/* Environment variables of launchers: mpirun, and srun with PMIx. */
enum { SIGN, WORLD, RANK, LOCAL, PLACE, NFACT };
static const char *const launchers[][NFACT] = {
    /* clang-format off */
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
     "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
};
/* clang-format on */

static int launcher(void)
{
    int i = 0;

    while (i < countof(launchers) && !getenv(launchers[i][SIGN]))
        i++;
    return i;
}

static int64_t env_int(const char *name, int64_t least)
{
    const char *s = name ? getenv(name) : NULL;
    int64_t n = s ? strtoll(s, NULL, 10) : least;

    return n < least ? least : n;
}

static int64_t told(int fact, int64_t least)
{
    return env_int(launched() ? launchers[launcher()][fact] : NULL, least);
}

int64_t launch_world(void)
{
    return told(WORLD, 1);
}

int64_t launch_rank(void)
{
    return told(RANK, 0);
}

int64_t launch_local(void)
{
    return told(LOCAL, 1);
}

int64_t launch_place(void)
{
    return told(PLACE, 0);
}

int launched(void)
{
    return launcher() < countof(launchers);
}

int64_t launch_lost(void)
{
    return env_int("SLURM_STEP_NUM_TASKS", 1);
}
