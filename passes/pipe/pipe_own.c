/* pipe_own.c: finds the stages that need a value, and those that have a
 * parameter or state.
 *
 * The latter is one decision for all programs of a model, before any is split:
 *
 *     has      stages whose bodies read it, in any program
 *     owner    the first of them; parameters of one update (a parameter with
 *              its master and moments, members of a bucket) have one owner, the
 *              first stage that has any of them. Values that no body reads get
 *              their owner where post writes them (pipe_post.c).
 *
 * The owner updates it and sends the new value to the others, so their copies
 * are up to date in programs that do not train. */
#include <limits.h>

#include "pipe.h"

Node *read_by(const Node *n, int k)
{
    return k < n->nin ? n->in[k] : k == n->nin ? n->map : NULL;
}

/* ---- needs of a stage ---------------------------------------------------- */

int pipe_stage_at(const Pipe *pipe, const Node *n)
{
    int chunk = pipe->spot[n->id].chunk;

    return chunk < 0 ? -1 : pipe->schedule->rank[chunk];
}

/* Returns the place of a call in the known order of a micro-batch's calls: F
 * ascending, then B or I descending. W has the place of its I. */
static int moment(const Pipe *pipe, const Assignment *assignment)
{
    return assignment->work == WF ? assignment->chunk
                                  : 2 * pipe->chunks - 1 - assignment->chunk;
}

Assignment pipe_moment(const Pipe *pipe, int m)
{
    if (m < pipe->chunks)
        return (Assignment){ m, WF };
    return (Assignment){ 2 * pipe->chunks - 1 - m, pipe->splits ? WI : WB };
}

static void need(Pipe *pipe, const Node *x, int stage, int when)
{
    int *at = &pipe->first[x->id * pipe->stages + stage];

    if (pipe_stage_at(pipe, x) != stage && when < *at)
        *at = when;
}

/* Finds values to send. Nodes outside calls, and routes, are computed by each
 * stage that reads them; rows need their route. */
void pipe_needs(Pipe *pipe)
{
    size_t count = vec_len(pipe->graph->node),
           all = count * (size_t)pipe->stages;

    pipe->first = alloc(pipe->arena, (all + 1) * sizeof *pipe->first);
    for (size_t i = 0; i < all; i++)
        pipe->first[i] = INT_MAX;
    for (size_t i = count; i-- > 0;) {
        const Node *n = pipe->graph->node[i];
        int own = pipe_stage_at(pipe, n), again = own < 0 || n->op == Oroute;
        for (int s = 0; s < pipe->stages; s++) {
            int here = s == own;
            int when = here ? moment(pipe, &pipe->spot[i])
                            : pipe->first[i * (size_t)pipe->stages + (size_t)s];
            if (when == INT_MAX)
                continue;
            for (int k = here || again ? 0 : n->nin; k <= n->nin; k++)
                if (read_by(n, k))
                    need(pipe, read_by(n, k), s, when);
        }
    }
}

/* ---- holders ------------------------------------------------------------- */

Holders *pipe_held(const Table *held, const char *path)
{
    return table_get(held, KEYP(intern(path)));
}

static Holders *held_at(Pipe *pipe, const char *path, const char *with)
{
    Holders *h = pipe_held(pipe->held, path);

    if (h)
        return h;
    h = alloc(pipe->arena, sizeof *h);
    h->has = alloc(pipe->arena, (size_t)pipe->stages);
    if (with && intern(with) != intern(path)) {
        h->owner = held_at(pipe, with, NULL)->owner;
    } else {
        h->owner = alloc(pipe->arena, sizeof *h->owner);
        *h->owner = -1;
    }
    *table_at(pipe->held, KEYP(intern(path))) = h;
    return h;
}

static void hold(Pipe *pipe, const Node *n)
{
    Holders *h = held_at(pipe, n_name(n), NULL);

    for (int s = pipe->stages; s-- > 0;) {
        if (pipe->first[n->id * pipe->stages + s] == INT_MAX)
            continue;
        h->has[s] = 1;
        if (*h->owner < 0 || s < *h->owner)
            *h->owner = s;
    }
}

/* The first program that has a parameter, step, determines its update. */
void pipe_hold(Pipe *pipe)
{
    for (size_t i = 0; i < vec_len(pipe->graph->param); i++) {
        const Param *param = pipe->graph->param[i];
        held_at(pipe, param->path, param->bucket ? param->bucket : param->of);
    }
    for (size_t i = 0; i < vec_len(pipe->graph->node); i++)
        if (is_lasting(pipe->graph->node[i]))
            hold(pipe, pipe->graph->node[i]);
}

int pipe_owner(const Table *held, const char *path)
{
    const Holders *h = pipe_held(held, path);

    return h ? *h->owner : -1;
}
