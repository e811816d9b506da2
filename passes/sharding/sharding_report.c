/* sharding_report.c: reports a sharding to the user. `-d why` lists the axes
 * that each mesh axis shards, with the reason. Warnings name the lines with
 * redundant work or parameters over tp, cp or etp:
 *
 *     sharding: tp cuts vocab (vocab), kv (heads), seq (seq)
 *     m.lua:12: warning: 11.6 % of a step's FLOPs are done by more than one
 *     rank of tp: it cuts no axis of [t=64 other=600]; ..
 *
 * Parameters are always replicated over cp (ZeRO shards them), and over etp
 * only experts' parameters could be sharded. */
#include "sharding.h"

/* Thresholds of warnings: share of a step's FLOPs; bytes of parameters, and the
 * same share of a rank's parameters. */
static const double SHARE = 0.01;
static const double MIB = 1 << 20;

/* ---- why ----------------------------------------------------------------- */

/* Does m apply to n? The optimizer's work is shared by ZeRO. */
static int on_grid(const Partitioner *part, const Node *n, MeshAxis m)
{
    return n->reg != REGpost && part->grid[n->id] == (m == Metp || m == Mep);
}

/* Returns a vec of the axes that m shards in any node. */
static Axis **cut_axes(const Partitioner *part, MeshAxis m)
{
    const Graph *g = part->graph;
    Axis **v = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int t = 0; t < g->mesh->natom; t++) {
            const Shard *s = &g->node[i]->sh[t];
            if (g->mesh->mask[m] >> t & 1 && s->k == S &&
                axis_at(v, (int)vec_len(v), s->a) < 0 &&
                on_grid(part, g->node[i], m))
                vec_push(part->arena, v, s->a);
        }
    return v;
}

static void put_reason(Text *out, MeshAxis m, const Axis *a)
{
    if (a->taken[m])
        put(out, " (stated)");
    else if (a->role != ROLEnone)
        put(out, " (%s)", axisroles[a->role]);
    else if (a->atoms)
        put(out, " (bucket)");
}

static void say_cuts(const Partitioner *part, MeshAxis m)
{
    const Graph *g = part->graph;
    Text t = { .arena = g->arena };
    Axis **cut = cut_axes(part, m);
    int n = 0;

    put(&t, "%s", "");
    for (int i = 0; i < g->naxis; i++)
        if (!g->axis[i]->atoms &&
            axis_at(cut, (int)vec_len(cut), g->axis[i]) >= 0) {
            put(&t, "%s%s", n++ ? ", " : "", g->axis[i]->name);
            put_reason(&t, m, g->axis[i]);
        }
    why(g, NULL, "%s cuts %s", meshnames[m], n ? t.s : "nothing");
}

/* ---- work and parameters that stay whole --------------------------------- */

/* Redundancy of a line of the model; layers of a loop share it. */
typedef struct Waste {
    Loc loc;
    const Node *node; /* the node with the largest redundancy */
    double most, sum;
} Waste;

static void add_waste(Arena *a, Waste **v, const Node *n, double x)
{
    size_t k = 0;

    if (!n->loc || x <= 0)
        return;
    while (k < vec_len(*v) && ((*v)[k].loc.file != n->loc->file ||
                               (*v)[k].loc.line != n->loc->line))
        k++;
    if (k == vec_len(*v))
        vec_push(a, *v,
                 ((Waste){ .loc = { n->loc->file, n->loc->line, NULL } }));
    Waste *waste = &(*v)[k];
    waste->sum += x;
    if (x > waste->most) {
        waste->most = x;
        waste->node = n;
    }
}

/* Returns the number of copies of n over the atoms of m. */
static double copies(const Graph *g, const Node *n, MeshAxis m)
{
    uint32_t cut = 0;

    for (int i = -2; i < n->nin; i++) {
        const Node *x = i == -2 ? n : i == -1 ? n->map : n->in[i];
        if (x)
            cut |= atoms_of(g, x, S) | atoms_of(g, x, F);
    }
    return (double)mesh_extent(g->mesh, g->mesh->mask[m] & ~cut);
}

static double times(const Graph *g, const Node *n)
{
    return n->reg == REGbody || n->reg == REGden ? (double)micro_turns(g) : 1;
}

/* Returns the FLOPs of n on a rank in a step. */
static double work(const Graph *g, const Node *n)
{
    return cost_of(g, n).flops * times(g, n);
}

static double parameters(const Graph *g, const Node *n)
{
    return n->op == Oparam ? (double)local_bytes(g, n) : 0;
}

typedef double Measure(const Graph *g, const Node *n);

static double sum_of(const Graph *g, Measure *measure)
{
    double sum = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        sum += measure(g, g->node[i]);
    return sum;
}

/* Returns the redundant work or parameters over m, by line. */
static Waste *wasted(const Partitioner *part, MeshAxis m, Measure *measure)
{
    const Graph *g = part->graph;
    Waste *v = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        if (on_grid(part, n, m))
            add_waste(g->arena, &v, n,
                      measure(g, n) * (1 - 1 / copies(g, n, m)));
    }
    return v;
}

static void warn_whole(const Partitioner *part, const Waste *waste, MeshAxis m,
                       const char *what)
{
    warn(&waste->loc,
         "%s: it cuts no axis of %s; axes{ x={ size, shard=\"%s\" } } says "
         "what it could cut",
         what, shape_text(part->graph, waste->node), meshnames[m]);
}

static void warn_work(const Partitioner *part, MeshAxis m)
{
    double all = sum_of(part->graph, work);
    Waste *v = wasted(part, m, work);

    for (size_t k = 0; k < vec_len(v); k++)
        if (v[k].sum > SHARE * all)
            warn_whole(part, &v[k], m,
                       strf(part->arena,
                            "%.1f %% of a step's FLOPs are done by more than "
                            "one rank of %s",
                            100 * v[k].sum / all, meshnames[m]));
}

static void warn_params(const Partitioner *part, MeshAxis m)
{
    double all = sum_of(part->graph, parameters);
    Waste *v = wasted(part, m, parameters);

    for (size_t k = 0; k < vec_len(v); k++)
        if (v[k].sum > MIB && v[k].sum > SHARE * all)
            warn_whole(part, &v[k], m,
                       strf(part->arena,
                            "%.1f MiB of parameters are more than a rank of "
                            "%s needs",
                            v[k].sum / MIB, meshnames[m]));
}

/* ---- entry --------------------------------------------------------------- */

void report_sharding(const Partitioner *part)
{
    static const MeshAxis all[] = { Mtp, Mcp, Mdp, Metp, Mep };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        MeshAxis m = all[i];
        if (part->graph->mesh->size[m] == 1)
            continue;
        say_cuts(part, m);
        if (m == Mtp || m == Mcp || m == Metp)
            warn_work(part, m);
        if (m == Mtp || m == Metp)
            warn_params(part, m);
    }
}
