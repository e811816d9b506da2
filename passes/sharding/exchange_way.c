/* exchange_way.c: in which way tokens come to the ranks of their experts, and
 * how many rows of them. All tokens to all ranks (an all-gather); each to the
 * ranks that have experts for it; each once to a rank of the hosts that have,
 * the one with the sender's number there, and from it to the others of its
 * host. Without route.dispatcher the way that takes the least time. */
#include "../../ir/settings/keys.h"
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

double rows_for(const TokenFlow *flow, int64_t tokens, int64_t peers)
{
    return map_load(flow->map) * (double)tokens *
           route_hit(&flow->even, 0, route_places(&flow->even) / peers);
}

int64_t block_rows(const TokenFlow *flow, int64_t tokens, int64_t peers)
{
    double n = flow->map->at.route.budget * rows_for(flow, tokens, peers);
    int64_t rows = (int64_t)ceil(n / 16 * (1 - 1e-12)) * 16;

    return rows > 0 && rows < tokens ? rows : tokens;
}

/* ---- time ---------------------------------------------------------------- */

/* Can the ranks of a host among these reach each other's memory? */
static int hosts_share(const TokenFlow *flow)
{
    return !(flow->now & near_atoms(flow->graph) & ~sharing_atoms(flow->graph));
}

static WayCost cost_of_way(const TokenFlow *flow, Way way)
{
    const MachineSpeeds *speeds = machine_of(flow->graph);
    const Mesh *mesh = flow->graph->mesh;
    int64_t here = mesh_extent(mesh, near_atoms(flow->graph) & flow->now);
    int64_t peers = mesh_extent(mesh, flow->now), hosts = peers / here;
    double t = (double)flow->tokens, inside = (double)(here - 1);
    double out = (double)(hosts - 1), all = (double)peers;
    int64_t ranks = peers * mesh_extent(mesh, flow->before);
    double pair = (double)block_rows(flow, flow->tokens, ranks);
    double share = rows_for(flow, flow->tokens, ranks);
    double far = (double)block_rows(flow, flow->tokens, hosts);
    double last = (double)block_rows(flow, flow->tokens * hosts, peers);
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

    if (hosts_share(flow)) {
        w[WAYhosts].shared =
            inside * rows_for(flow, flow->tokens * hosts, peers);
    } else {
        w[WAYhosts].link = inside * last;
        w[WAYhosts].copied += (inside + 1) * last;
    }
    c->secs = (double)flow->wide *
              (c->network / speeds->network + c->link / speeds->link +
               c->shared / speeds->rows + c->copied / speeds->memory);
    c->secs += way == WAYhosts ? 2 * speeds->hop : speeds->hop;
    c->secs += way == WAYranks || way == WAYhosts ? speeds->launch : 0;
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
void report_assumed_routes(const TokenFlow *flow, int64_t pair)
{
    RouteModel r = route_model(flow->graph->arena, flow->graph, flow->map, 0);
    MapLayout l = map_layout(flow->graph, flow->map);
    int64_t peers = mesh_extent(flow->graph->mesh, flow->now | flow->before);
    int64_t n = route_places(&r) / peers;
    double sources = (double)mesh_extent(flow->graph->mesh, flow->now);
    double t = map_load(flow->map) * (double)flow->tokens, all = t * sources;
    double distinct = 0, block = 1, rows = 1;

    for (int64_t p = 0; p < peers && is_asked(flow->graph->compile, "why");
         p++) {
        double hit = route_hit(&r, p * n, n), have = route_pairs(&r, p * n, n);
        distinct += hit;
        block *= 1 - too_small(t * hit, t * hit * (1 - hit), (double)pair);
        rows *= 1 - too_small(all * have, all * have, (double)l.cap);
    }
    why(flow->graph, flow->map,
        "route.assume: a token has experts on %.3g of %lld peers; blocks have "
        "%lld rows for %.0f expected, %.3g times; a micro-batch overflows a "
        "block with probability %.2g, the rows of a rank with %.2g",
        distinct, (long long)peers, (long long)pair,
        t * distinct / (double)peers,
        (double)pair * (double)peers / (t * distinct), 1 - pow(block, sources),
        1 - rows);
}

/* Is it among the ways that there are: two: over hosts, then inside them? A
 * dispatcher that sends a row for each choice reads no memory of others. */
static int is_there(const TokenFlow *flow, int two, Way way)
{
    int sends = machine_of(flow->graph)->dispatch > 0;

    return way == WAYpeer ? !sends && !(flow->now & ~sharing_atoms(flow->graph))
           : way == WAYhosts ? two
                             : 1;
}

/* What was asked for, as far as there are hosts, or memory that ranks share;
 * else what takes least. */
static Way choose(const TokenFlow *flow, int two, const WayCost *cost)
{
    int near = !(flow->now & ~near_atoms(flow->graph));
    Way best = WAYgather;

    switch (opts_dispatcher(flow->graph->opts)) {
    case DISPATCHalltoall: return WAYranks;
    case DISPATCHpeer: return two ? WAYhosts : near ? WAYpeer : WAYranks;
    case DISPATCHhosts: return two ? WAYhosts : WAYranks;
    default: break;
    }
    for (Way w = WAYgather; w < NWAY; w++)
        if (is_there(flow, two, w) && cost[w].secs < cost[best].secs)
            best = w;
    return best;
}

/* In every way a token's row is compared; what is sent beside it is little. */
Way way_of(const TokenFlow *flow, int two)
{
    WayCost cost[NWAY];

    for (Way w = WAYgather; w < NWAY; w++)
        cost[w] = cost_of_way(flow, w);
    Way best = choose(flow, two, cost);
    for (Way w = WAYgather; w < NWAY && (!two || best == WAYhosts); w++)
        if (w == best || is_there(flow, two, w))
            why(flow->graph, flow->map,
                "%s %s over %lld ranks: %.3g rows a token to other hosts, %.3g "
                "inside, %.3g ms a way",
                w == best ? "takes" : "not", wayname[w],
                (long long)mesh_extent(flow->graph->mesh, flow->now),
                cost[w].network / (double)flow->tokens,
                (cost[w].link + cost[w].shared) / (double)flow->tokens,
                1e3 * cost[w].secs);
    return best;
}
