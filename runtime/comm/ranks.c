/* ranks.c: the table of ranks that a run prints when it starts: who runs where,
 * the coordinates in both grids, and the groups. */

#include "comm.h"

static void put_rank(Text *t, const Plan *p, const Comm *c, int64_t r)
{
    const Mesh *m = p->mesh;

    put(t, "%5lld  ", (long long)r);
    if (c->peer)
        put(t, "%-16s %7d  %-8s ", c->peer[r].host, (int)c->peer[r].pid,
            c->peer[r].cpus);
    else
        put(t, "%-16s %7s  %-8s ", "this process", "", "");
    for (int a = 0; a < NMESH; a++)
        put(t, "%s%4lld", a == Metp ? "   " : "",
            (long long)mesh_pos(m, m->mask[a], r));
    put(t, "\n");
}

void ranks_table(Text *t, const Plan *p, const Comm *c, int64_t most)
{
    int64_t n = p->mesh->world, shown = n <= most ? n : most / 2;

    put(t, "%5s  %-16s %7s  %-8s ", "rank", "host", "pid", "cores");
    for (int a = 0; a < NMESH; a++)
        put(t, "%s%4s", a == Metp ? "   " : "", meshnames[a]);
    put(t, "\n");
    for (int64_t r = 0; r < shown; r++)
        put_rank(t, p, c, r);
    if (shown < n) {
        put(t, "  ...\n");
        put_rank(t, p, c, n - 1);
    }
    put_groups(t, p->mesh);
}
