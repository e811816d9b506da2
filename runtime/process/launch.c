/* launch.c: who this process is among those that a launcher started. */
#include "process.h"

/* How launchers say who a process is: mpirun, and srun with PMIx. */
static const struct {
    /* clang-format off */
    const char *sign, *world, *rank, *local, *place;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
     "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
};
/* clang-format on */

enum { NLAUNCHER = sizeof launchers / sizeof *launchers };

static int launcher(void)
{
    int i = 0;

    while (i < NLAUNCHER && !getenv(launchers[i].sign))
        i++;
    return i;
}

static int64_t env_int(const char *name, int64_t least)
{
    const char *s = getenv(name);
    int64_t n = s ? strtoll(s, NULL, 10) : least;

    return n < least ? least : n;
}

int64_t launch_world(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].world, 1) : 1;
}

int64_t launch_rank(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].rank, 0) : 0;
}

int64_t launch_local(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].local, 1) : 1;
}

int64_t launch_place(void)
{
    int i = launcher();

    return i < NLAUNCHER ? env_int(launchers[i].place, 0) : 0;
}

int launched(void)
{
    return launcher() < NLAUNCHER;
}

int64_t launch_lost(void)
{
    return env_int("SLURM_STEP_NUM_TASKS", 1);
}
