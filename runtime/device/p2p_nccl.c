/* p2p_nccl.c: what a pipeline stage hands to another GPU: send, recv, wait.
 * NCCL pairs the sends and receives of two ranks by order alone, and both block
 * their stream: on one stream a table in which two stages send to each other
 * before they receive would never end. Here a recv is on the stage's stream,
 * and a send on a stream of its link, behind what the stage has done so far;
 * wait makes the stage's stream wait for it. So a stage waits exactly where it
 * does on the host, and a table that ends there ends here.
 *
 * A link is a communicator of two ranks for one direction. The messages of two
 * stages are spread over as many links as are needed for the receiver to take
 * each link's messages in the order in which they are sent, in every program.*/

#include "gpu.h"

enum { SENDER, RECEIVER, UNTIMED = 2 };

typedef struct NcclLink {
    int from, to, index; /* stages; number among theirs */
    void *comm, *stream;
    void *ready; /* event: the stage came to a send */
} NcclLink;

struct LinkEnd { /* messages of one channel in one program */
    ProgramKind prog;
    int from, to; /* stages */
    int64_t chan;
    int index; /* of its link */
    NcclLink *link;
    void **done; /* events: sender's, by message */
    int64_t room, sent, waited;
};

struct Links {
    Arena *mem;
    const Plan *plan;
    int me;          /* stage */
    int64_t *rank;   /* by stage: of this pipeline */
    NcclLink **link; /* vec: of all stages, in one order */
    LinkEnd **end;   /* vec: of this stage */
};

/* ---- which link ---------------------------------------------------------- */

/* Channels of what a stage sends to (or receives from) another, in order. */
static int64_t *order(const Links *x, int stage, ProgramKind prog, InstrKind k,
                      int other)
{
    const Plan *p = x->plan;
    const Role *r = &p->role[stage];
    int at = role_prog(r, prog);
    const Program *g = at < 0 ? NULL : &r->prog[at];
    ScheduleSlot *row = g ? program_rows(x->mem, g) : NULL;
    int64_t *v = NULL;

    for (size_t i = 0; i < vec_len(row); i++) {
        const Phase *f = &g->phase[row[i].phase];
        for (int n = f->first; n < f->first + f->n; n++) {
            const Instr *s = &g->instr[n];
            if (s->kind == k && s->transfer.peer == other)
                vec_push(x->mem, v, s->transfer.chan);
        }
    }
    return v;
}

typedef struct Choice {
    int64_t chan;
    int link;
} Choice;

static Choice *choice_of(Choice *v, int64_t chan)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i].chan == chan)
            return &v[i];
    return NULL;
}

/* The next message of a link, or of chan, from *i on; -1: no more. */
static int64_t next_of(int64_t *v, size_t *i, Choice *c, int link, int64_t chan)
{
    while (*i < vec_len(v)) {
        int64_t m = v[(*i)++];
        const Choice *k = choice_of(c, m);
        if (m == chan || (k && k->link == link))
            return m;
    }
    return -1;
}

/* Does the channel fit: is everything still received as it is sent? */
static int fits(int64_t *sent, int64_t *got, Choice *c, int link, int64_t chan)
{
    size_t i = 0, j = 0;

    for (;;) {
        int64_t a = next_of(sent, &i, c, link, chan);
        int64_t b = next_of(got, &j, c, link, chan);
        if (a != b)
            return 0;
        if (a < 0)
            return 1;
    }
}

/* Channels from one stage to another by link; how many links. */
static int choose(const Links *x, int from, int to, ProgramKind prog,
                  Choice **out)
{
    int64_t *sent = order(x, from, prog, Isend, to);
    int64_t *got = order(x, to, prog, Irecv, from);
    Choice *c = NULL;
    int n = 0;

    for (size_t i = 0; i < vec_len(sent); i++) {
        int link = 0;
        if (choice_of(c, sent[i]))
            continue;
        while (link <= n && !fits(sent, got, c, link, sent[i]))
            link++;
        if (link > n)
            err(NULL,
                "stage %d sends on channel %lld what stage %d does not receive",
                from, (long long)sent[i], to);
        n = link == n ? n + 1 : n;
        vec_push(x->mem, c, ((Choice){ sent[i], link }));
    }
    *out = c;
    return n;
}

/* ---- opening ------------------------------------------------------------- */

static NcclLink *open_link(Links *x, Nccl *nccl, int from, int to, int index)
{
    NcclLink *l = alloc(x->mem, sizeof *l);
    int mine = x->me == from || x->me == to;

    *l = (NcclLink){ .from = from, .to = to, .index = index };
    l->comm = nccl_pair(nccl, mine ? x->rank[0] : -1,
                        x->me == from ? SENDER : RECEIVER);
    if (x->me == from) {
        gpu_ok(dl.cuStreamCreate(&l->stream, 1), "a stream");
        gpu_ok(dl.cuEventCreate(&l->ready, UNTIMED), "an event");
    }
    return l;
}

static void add_ends(Links *x, int from, int to, ProgramKind prog, Choice *c)
{
    for (size_t i = 0; i < vec_len(c); i++) {
        LinkEnd *e = alloc(x->mem, sizeof *e);
        *e = (LinkEnd){ .prog = prog,
                        .from = from,
                        .to = to,
                        .chan = c[i].chan,
                        .index = c[i].link };
        if (x->me == from || x->me == to)
            vec_push(x->mem, x->end, e);
    }
}

static void open_pair(Links *x, Nccl *nccl, int from, int to)
{
    const Role *r = &x->plan->role[from];
    int most = 0;

    for (int g = 0; g < r->nprog; g++) {
        Choice *c = NULL;
        int n = choose(x, from, to, r->prog[g].kind, &c);
        add_ends(x, from, to, r->prog[g].kind, c);
        most = n > most ? n : most;
    }
    for (int i = 0; i < most; i++)
        vec_push(x->mem, x->link, open_link(x, nccl, from, to, i));
}

static NcclLink *link_of(const Links *x, int from, int to, int index)
{
    for (size_t i = 0; i < vec_len(x->link); i++) {
        NcclLink *l = x->link[i];
        if (l->from == from && l->to == to && l->index == index)
            return l;
    }
    die("link: %d to %d has no link %d", from, to, index);
}

Links *links_open(Arena *a, const Plan *p, int64_t rank, Nccl *nccl)
{
    Links *x = alloc(a, sizeof *x);
    const Mesh *m = p->mesh;

    *x = (Links){ .mem = a, .plan = p, .me = role_of(p, rank) };
    if (p->nrole == 1)
        return x;
    x->rank = alloc(a, (size_t)p->nrole * sizeof *x->rank);
    mesh_group(m, m->mask[Mpp], rank, x->rank);
    for (int from = 0; from < p->nrole; from++)
        for (int to = 0; to < p->nrole; to++)
            if (from != to)
                open_pair(x, nccl, from, to);
    for (size_t i = 0; i < vec_len(x->end); i++)
        x->end[i]->link =
            link_of(x, x->end[i]->from, x->end[i]->to, x->end[i]->index);
    return x;
}

/* A byte over every link, in one order on all ranks: NCCL connects two ranks
 * when they first speak, and that blocks the host. */
void links_warm(Links *x, uint64_t work, void *stream)
{
    if (!x->link)
        return;
    for (size_t i = 0; i < vec_len(x->link); i++) {
        const NcclLink *l = x->link[i];
        if (x->me == l->from)
            nccl_send(l->comm, Dbool, 1, work, RECEIVER, stream);
        else if (x->me == l->to)
            nccl_recv(l->comm, Dbool, 1, work, SENDER, stream);
    }
    gpu_ok(dl.cuStreamSynchronize(stream), "speaking to other stages");
}

/* ---- instructions -------------------------------------------------------- */

LinkEnd *link_bind(Links *x, ProgramKind prog, const Instr *s, int64_t runs)
{
    const TransferArgs *v = &s->transfer;
    int from = s->kind == Irecv ? (int)v->peer : x->me;
    int to = s->kind == Irecv ? x->me : (int)v->peer;
    size_t i = 0;

    while (i < vec_len(x->end) &&
           (x->end[i]->prog != prog || x->end[i]->from != from ||
            x->end[i]->to != to || x->end[i]->chan != v->chan))
        i++;
    if (i == vec_len(x->end))
        err(NULL, "stages %d and %d have no channel %lld", from, to,
            (long long)v->chan);
    LinkEnd *e = x->end[i];
    for (int64_t n = 0; n < runs && s->kind == Isend; n++) {
        void *event = NULL;
        gpu_ok(dl.cuEventCreate(&event, UNTIMED), "an event");
        vec_push(x->mem, e->done, event);
        e->room++;
    }
    return e;
}

void links_reset(Links *x)
{
    for (size_t i = 0; i < vec_len(x->end); i++)
        x->end[i]->sent = x->end[i]->waited = 0;
}

static void start_send(LinkEnd *e, const TransferArgs *v, uint64_t buf,
                       void *stream)
{
    NcclLink *l = e->link;

    if (e->sent == e->room)
        die("link: channel %lld sends more than %lld times", (long long)e->chan,
            (long long)e->room);
    gpu_ok(dl.cuEventRecord(l->ready, stream), "an event");
    gpu_ok(dl.cuStreamWaitEvent(l->stream, l->ready, 0), "an event");
    nccl_send(l->comm, v->dt, v->n, buf, RECEIVER, l->stream);
    gpu_ok(dl.cuEventRecord(e->done[e->sent++], l->stream), "an event");
}

void link_run(LinkEnd *e, const Instr *s, uint64_t buf, void *stream)
{
    const TransferArgs *v = &s->transfer;

    if (s->kind == Isend)
        start_send(e, v, buf, stream);
    else if (s->kind == Irecv)
        nccl_recv(e->link->comm, v->dt, v->n, buf, SENDER, stream);
    else if (e->waited < e->sent)
        gpu_ok(dl.cuStreamWaitEvent(stream, e->done[e->waited++], 0),
               "an event");
    else
        err(NULL, "a wait for what was not sent (channel %lld)",
            (long long)e->chan);
}

/* What was not waited for would be outside of the graph. */
void links_finish(Links *x)
{
    for (size_t i = 0; i < vec_len(x->end); i++) {
        const LinkEnd *e = x->end[i];
        if (e->waited != e->sent)
            err(NULL, "%lld messages on channel %lld, %lld waited for",
                (long long)e->sent, (long long)e->chan, (long long)e->waited);
    }
}
