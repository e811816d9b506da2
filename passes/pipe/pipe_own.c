/* pipe_own.c: which stages need a value, and which have a parameter or a state.
 *
 * The last is one decision for all programs of a model, made before any of them
 * is cut:
 *
 *     has      stages whose bodies read it, in any program
 *     owner    the first of them; what the optimizer takes together (a
 *              parameter with its master and moments, members of a bucket) has
 *              one owner, the first stage that has any of it. What no body
 *              reads gets its owner where post writes it (pipe_post.c).
 *
 * The owner updates it and sends the new value to the others, whose copies are
 * as fresh in programs that do not train. */
#include <limits.h>

#include "pipe.h"

Node *read_by(const Node *n, int k)
{
    return k < n->nin ? n->in[k] : k == n->nin ? n->map : NULL;
}

/* ---- what a stage needs -------------------------------------------------- */

int pipe_stage_at(const Pipe *p, const Node *n)
{
    int chunk = p->spot[n->id].chunk;

    return chunk < 0 ? -1 : p->s->rank[chunk];
}

/* Calls of one micro-batch in the order of time, as far as it is known: F up,
 * then B or I down. W stands with its I. */
static int moment(const Pipe *p, const Assignment *s)
{
    return s->w == WF ? s->chunk : 2 * p->chunks - 1 - s->chunk;
}

Assignment pipe_moment(const Pipe *p, int m)
{
    if (m < p->chunks)
        return (Assignment){ m, WF };
    return (Assignment){ 2 * p->chunks - 1 - m, p->splits ? WI : WB };
}

static void need(Pipe *p, const Node *x, int stage, int when)
{
    int *at = &p->first[x->id * p->stages + stage];

    if (pipe_stage_at(p, x) != stage && when < *at)
        *at = when;
}

/* A value of another stage's is sent. What is in no call is made by each stage
 * that reads it, and so is a route; rows need theirs. */
void pipe_needs(Pipe *p)
{
    size_t count = vec_len(p->g->node), all = count * (size_t)p->stages;

    p->first = alloc(p->a, (all + 1) * sizeof *p->first);
    for (size_t i = 0; i < all; i++)
        p->first[i] = INT_MAX;
    for (size_t i = count; i-- > 0;) {
        const Node *n = p->g->node[i];
        int own = pipe_stage_at(p, n), again = own < 0 || n->op == Oroute;
        for (int s = 0; s < p->stages; s++) {
            int here = s == own;
            int when = here ? moment(p, &p->spot[i])
                            : p->first[i * (size_t)p->stages + (size_t)s];
            if (when == INT_MAX)
                continue;
            for (int k = here || again ? 0 : n->nin; k <= n->nin; k++)
                if (read_by(n, k))
                    need(p, read_by(n, k), s, when);
        }
    }
}

/* ---- who has what -------------------------------------------------------- */

Holders *pipe_held(const Table *held, const char *path)
{
    return table_get(held, KEYP(intern(path)));
}

static Holders *held_at(Pipe *p, const char *path, const char *with)
{
    Holders *h = pipe_held(p->held, path);

    if (h)
        return h;
    h = alloc(p->a, sizeof *h);
    h->has = alloc(p->a, (size_t)p->stages);
    if (with && intern(with) != intern(path)) {
        h->owner = held_at(p, with, NULL)->owner;
    } else {
        h->owner = alloc(p->a, sizeof *h->owner);
        *h->owner = -1;
    }
    *table_at(p->held, KEYP(intern(path))) = h;
    return h;
}

static void hold(Pipe *p, const Node *n)
{
    Holders *h = held_at(p, n_name(n), NULL);

    for (int s = p->stages; s-- > 0;) {
        if (p->first[n->id * p->stages + s] == INT_MAX)
            continue;
        h->has[s] = 1;
        if (*h->owner < 0 || s < *h->owner)
            *h->owner = s;
    }
}

/* The first program that has a parameter says what it is taken with: step. */
void pipe_hold(Pipe *p)
{
    for (size_t i = 0; i < vec_len(p->g->param); i++) {
        const Param *x = p->g->param[i];
        held_at(p, x->path, x->bucket ? x->bucket : x->of);
    }
    for (size_t i = 0; i < vec_len(p->g->node); i++)
        if (is_lasting(p->g->node[i]))
            hold(p, p->g->node[i]);
}

int pipe_owner(const Table *held, const char *path)
{
    const Holders *h = pipe_held(held, path);

    return h ? *h->owner : -1;
}
