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
    /* Rows of a rank, one way, and those that are written for it: blocks, on
     * the way back the sums of other ranks' tokens. */
    double network, link, shared, copied;
    double secs;
} WayCost;

/* ---- rows ---------------------------------------------------------------- */

double map_load(const Node *map)
{
    return map->at.route.load > 0 ? map->at.route.load : 1;
}

double rows_for(const TokenFlow *f, int64_t tokens, int64_t peers)
{
    return map_load(f->map) * (double)tokens *
           route_hit(&f->even, 0, route_places(&f->even) / peers);
}

int64_t block_rows(const TokenFlow *f, int64_t tokens, int64_t peers)
{
    double n = f->map->at.route.budget * rows_for(f, tokens, peers);
    int64_t rows = (int64_t)ceil(n / 16 * (1 - 1e-12)) * 16;

    return rows > 0 && rows < tokens ? rows : tokens;
}

/* ---- time ---------------------------------------------------------------- */

/* Can the ranks of a host among these reach each other's memory? */
static int hosts_share(const TokenFlow *f)
{
    return !(f->now & near_atoms(f->graph) & ~sharing_atoms(f->graph));
}

static WayCost cost_of_way(const TokenFlow *f, Way way)
{
    const MachineSpeeds *m = machine_of(f->graph);
    const Mesh *mesh = f->graph->mesh;
    int64_t here = mesh_extent(mesh, near_atoms(f->graph) & f->now);
    int64_t peers = mesh_extent(mesh, f->now), hosts = peers / here;
    double t = (double)f->tokens, inside = (double)(here - 1);
    double out = (double)(hosts - 1), all = (double)peers;
    int64_t ranks = peers * mesh_extent(mesh, f->before);
    double pair = (double)block_rows(f, f->tokens, ranks);
    double share = rows_for(f, f->tokens, ranks);
    double far = (double)block_rows(f, f->tokens, hosts);
    double last = (double)block_rows(f, f->tokens * hosts, peers);
    double once = t + 2 * (out + 1) * far;
    WayCost w[NWAY] = {
        [WAYgather] = { .network = out * t,
                        .link = inside * (out + 1) * t,
                        .copied = all * t / 2 },
        [WAYranks] = { .network = (all - inside - 1) * pair,
                       .link = inside * pair,
                       .copied = t + all * pair },
        [WAYpeer] = { .shared = inside * share, .copied = inside * share / 2 },
        [WAYhosts] = { .network = out * far, .copied = once },
    };
    WayCost *c = &w[way];

    if (hosts_share(f)) {
        w[WAYhosts].shared = inside * rows_for(f, f->tokens * hosts, peers);
    } else {
        w[WAYhosts].link = inside * last;
        w[WAYhosts].copied += (inside + 1) * last;
    }
    c->secs = (double)f->wide * (c->network / m->network + c->link / m->link +
                                 c->shared / m->rows + c->copied / m->memory);
    c->secs += way == WAYhosts ? 2 * m->hop : m->hop;
    c->secs += way == WAYranks || way == WAYhosts ? m->launch : 0;
    return *c;
}

/* The probability that a normal number is over room. */
static double too_small(double mean, double variance, double room)
{
    return variance > 0 ? 0.5 * erfc((room + 0.5 - mean) / sqrt(2 * variance))
                        : mean > room;
}

/* What route.assume makes of one map and micro-batch: the ranks that a token
 * goes to, the probability that a block or a rank's room is too small. */
void report_assumed_routes(const TokenFlow *f, int64_t pair)
{
    RouteModel r = route_model(f->graph->arena, f->graph, f->map, 0);
    MapLayout l = map_layout(f->graph, f->map);
    int64_t peers = mesh_extent(f->graph->mesh, f->now | f->before);
    int64_t n = route_places(&r) / peers;
    double sources = (double)mesh_extent(f->graph->mesh, f->now);
    double t = map_load(f->map) * (double)f->tokens, all = t * sources;
    double distinct = 0, block = 1, rows = 1;

    for (int64_t p = 0; p < peers && is_asked(f->graph->compile, "why"); p++) {
        double hit = route_hit(&r, p * n, n), have = route_pairs(&r, p * n, n);
        distinct += hit;
        block *= 1 - too_small(t * hit, t * hit * (1 - hit), (double)pair);
        rows *= 1 - too_small(all * have, all * have, (double)l.cap);
    }
    why(f->graph, f->map,
        "route.assume: a token has experts on %.3g of %lld peers; blocks have "
        "%lld rows for %.0f expected, %.3g times; a micro-batch overflows a "
        "block with probability %.2g, the rows of a rank with %.2g",
        distinct, (long long)peers, (long long)pair,
        t * distinct / (double)peers,
        (double)pair * (double)peers / (t * distinct), 1 - pow(block, sources),
        1 - rows);
}

/* Is it among the ways that there are: two: over hosts, then inside them? */
static int is_there(const TokenFlow *f, int two, Way way)
{
    return way == WAYpeer    ? !(f->now & ~sharing_atoms(f->graph))
           : way == WAYhosts ? two
                             : 1;
}

/* What was asked for, as far as there are hosts, or memory that ranks share;
 * else what takes least. */
static Way choose(const TokenFlow *f, int two, const WayCost *cost)
{
    int near = !(f->now & ~near_atoms(f->graph));
    Way best = WAYgather;

    switch (opts_dispatcher(f->graph->opts)) {
    case DISPATCHalltoall: return WAYranks;
    case DISPATCHpeer: return two ? WAYhosts : near ? WAYpeer : WAYranks;
    case DISPATCHhosts: return two ? WAYhosts : WAYranks;
    default: break;
    }
    for (Way w = WAYgather; w < NWAY; w++)
        if (is_there(f, two, w) && cost[w].secs < cost[best].secs)
            best = w;
    return best;
}

/* In every way a token's row is compared; what is sent beside it is little. */
Way way_of(const TokenFlow *f, int two)
{
    WayCost cost[NWAY];

    for (Way w = WAYgather; w < NWAY; w++)
        cost[w] = cost_of_way(f, w);
    Way best = choose(f, two, cost);
    for (Way w = WAYgather; w < NWAY && (!two || best == WAYhosts); w++)
        if (w == best || is_there(f, two, w))
            why(f->graph, f->map,
                "%s %s over %lld ranks: %.3g rows a token to other hosts, %.3g "
                "inside, %.3g ms a way",
                w == best ? "takes" : "not", wayname[w],
                (long long)mesh_extent(f->graph->mesh, f->now),
                cost[w].network / (double)f->tokens,
                (cost[w].link + cost[w].shared) / (double)f->tokens,
                1e3 * cost[w].secs);
    return best;
}
