/* exchange_way.c: in which way tokens come to the ranks of their experts, and
 * how many rows of them. All tokens to all ranks (an all-gather); each to the
 * ranks that have experts for it; each once to a rank of the hosts that have,
 * the one with the sender's number there, and from it to the others of its
 * host. Without route.dispatcher the way that takes the least time. */
#include <math.h>
#include <string.h>

#include "../../ir/keys.h"
#include "sharding.h"

static const char *const wayname[NWAY] = { "allgather", "alltoall", "peer",
                                           "hosts" };

typedef struct WayCost {
    double network, link, copied; /* rows of a rank, one way */
    double secs;
} WayCost;

/* ---- rows ---------------------------------------------------------------- */

double map_load(const Node *map)
{
    return map->at.route.load > 0 ? map->at.route.load : 1;
}

static double chosen(const Node *map)
{
    int top = map->at.route.top ? dim_of(map->in[0], map->at.route.top) : -1;

    return top < 0 ? 1 : (double)map->in[0]->dim[top].n;
}

/* Of the rows of so many tokens, those for a rank or a host that has an equal
 * share of the experts, one of `peers`, when all choices are as likely. */
double expected_rows_of(const Node *map, int64_t tokens, int64_t peers)
{
    double experts = (double)map->at.route.axis->n, none = 1;

    for (double k = 0; k < chosen(map); k++)
        none *= fmax(0, experts - experts / (double)peers - k) / (experts - k);
    return (double)tokens * map_load(map) * (1 - none);
}

int64_t block_rows(const Node *map, int64_t tokens, int64_t peers)
{
    double n = map->at.route.budget * expected_rows_of(map, tokens, peers);
    int64_t rows = (int64_t)ceil(n / 16 * (1 - 1e-12)) * 16;

    return rows > 0 && rows < tokens ? rows : tokens;
}

/* ---- time ---------------------------------------------------------------- */

static WayCost cost_of_way(const TokenFlow *f, Way way)
{
    const MachineSpeeds *m = machine_of(f->g);
    const Mesh *mesh = f->g->mesh;
    int64_t here = mesh_extent(mesh, near_atoms(f->g) & f->now);
    int64_t peers = mesh_extent(mesh, f->now), hosts = peers / here;
    double t = (double)f->tokens, inside = (double)(here - 1);
    double out = (double)(hosts - 1), all = (double)peers;
    double pair = (double)block_rows(f->map, f->tokens,
                                     peers * mesh_extent(mesh, f->before));
    double share = expected_rows_of(f->map, f->tokens, peers);
    double far = (double)block_rows(f->map, f->tokens, hosts);
    double last = (double)block_rows(f->map, f->tokens * hosts, peers);
    double copied = t + 2 * (out + 1) * far + (inside + 1) * last;
    WayCost w[NWAY] = {
        [WAYgather] = { out * t, inside * (out + 1) * t, 0, 0 },
        [WAYranks] = { (all - inside - 1) * pair, inside * pair, t + all * pair,
                       0 },
        [WAYpeer] = { 0, inside * share, 0, 0 },
        [WAYhosts] = { out * far, inside * last, copied, 0 },
    };
    WayCost *c = &w[way];

    c->secs = (double)f->wide * (c->network / m->network + c->link / m->link +
                                 c->copied / m->memory);
    c->secs += c->copied > 0 ? m->launch : way == WAYpeer ? m->hop : 0;
    return *c;
}

/* What was asked for, as far as there are hosts, or memory that ranks share;
 * else what takes least. Shared memory only where it was asked for. */
static Way choose(const TokenFlow *f, int two, const WayCost *cost)
{
    int near = !(f->now & ~near_atoms(f->g));
    Way best = WAYgather;

    switch (opts_dispatcher(f->g->opts)) {
    case DISPATCHalltoall: return WAYranks;
    case DISPATCHpeer: return two ? WAYhosts : near ? WAYpeer : WAYranks;
    case DISPATCHhosts: return two ? WAYhosts : WAYranks;
    default: break;
    }
    best = cost[WAYranks].secs < cost[best].secs ? WAYranks : best;
    return two && cost[WAYhosts].secs < cost[best].secs ? WAYhosts : best;
}

/* In every way a token's row is compared; what is sent beside it is little. */
Way way_of(const TokenFlow *f, int two)
{
    WayCost cost[NWAY];

    for (Way w = WAYgather; w < NWAY; w++)
        cost[w] = cost_of_way(f, w);
    Way best = choose(f, two, cost);
    for (Way w = WAYgather; w < NWAY && (!two || best == WAYhosts); w++)
        if (two || w != WAYhosts)
            why(f->g, f->map,
                "%s %s over %lld ranks: %.3g rows a token to other hosts, %.3g "
                "inside, %.3g ms a way",
                w == best ? "takes" : "not", wayname[w],
                (long long)mesh_extent(f->g->mesh, f->now),
                cost[w].network / (double)f->tokens,
                cost[w].link / (double)f->tokens, 1e3 * cost[w].secs);
    return best;
}
