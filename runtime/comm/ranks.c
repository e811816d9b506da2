/* ranks.c: the table of ranks that a run prints when it starts: host of each
 * rank, coordinates in both grids, and groups. */
#include "comm.h"

static void put_rank(Text *out, const Plan *p, const Comm *comm, int64_t r)
{
    const Mesh *m = p->mesh;

    put(out, "%5ld  ", r);
    if (comm->peer)
        put(out, "%-16s %7d  %-8s ", comm->peer[r].host, (int)comm->peer[r].pid,
            comm->peer[r].cpus);
    else
        put(out, "%-16s %7s  %-8s ", "this process", "", "");
    for (int a = 0; a < NMESH; a++)
        put(out, "%s%4ld", a == Metp ? "   " : "", mesh_pos(m, m->mask[a], r));
    put(out, "\n");
}

void ranks_table(Text *out, const Plan *p, const Comm *comm, int64_t most)
{
    int64_t n = p->mesh->world, shown = n <= most ? n : most / 2;

    put(out, "%5s  %-16s %7s  %-8s ", "rank", "host", "pid", "cores");
    for (int a = 0; a < NMESH; a++)
        put(out, "%s%4s", a == Metp ? "   " : "", meshnames[a]);
    put(out, "\n");
    for (int64_t r = 0; r < shown; r++)
        put_rank(out, p, comm, r);
    if (shown < n) {
        put(out, "  ...\n");
        put_rank(out, p, comm, n - 1);
    }
    put_groups(out, p->mesh);
}
