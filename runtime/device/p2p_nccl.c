/* p2p_nccl.c: transfers between pipeline stages on GPUs: send, recv, wait. NCCL
 * pairs the sends and receives of two ranks by order alone, and both block
 * their stream: on one stream, two stages that send to each other before they
 * receive would wait forever. So a recv is on the stage's stream, and a send is
 * on its link's stream, after the stage's work so far; wait makes the stage's
 * stream wait for the send. A stage then waits exactly where it does on the
 * host.
 *
 * A link is a communicator of two ranks for one direction. Messages of two
 * stages use as many links as are needed for the receiver to take each link's
 * messages in the order in which they are sent, in every program. */
#include "gpu.h"

enum { SENDER, RECEIVER, UNTIMED = 2 };

typedef struct NcclLink {
    int from, to, index; /* stages; number among their links */
    void *comm, *stream;
    void *ready; /* event: the stage reached a send */
} NcclLink;

struct LinkEnd { /* messages of one channel in one program */
    ProgramKind prog;
    int from, to; /* stages */
    int64_t chan;
    int index; /* number of its link */
    NcclLink *link;
    void **done; /* sender: an event per message */
    int64_t room, sent, waited;
};

struct Links {
    Arena *mem;
    const Plan *plan;
    int me;          /* this stage */
    int64_t *rank;   /* per stage: its rank in this pipeline */
    NcclLink **link; /* vec: links of all stages, in one order */
    LinkEnd **end;   /* vec: ends of this stage */
};

/* ---- assignment of links ------------------------------------------------- */

/* Returns the channels on which a stage sends to (or receives from) another, in
 * order. */
static int64_t *order(const Links *links, int stage, ProgramKind prog,
                      InstrKind k, int other)
{
    const Plan *p = links->plan;
    const Role *role = &p->role[stage];
    int at = role_prog(role, prog);
    const Program *program = at < 0 ? NULL : &role->prog[at];
    ScheduleSlot *row = program ? program_rows(links->mem, program) : NULL;
    int64_t *v = NULL;

    for (size_t i = 0; i < vec_len(row); i++) {
        const Phase *phase = &program->phase[row[i].phase];
        for (int n = phase->first; n < phase->first + phase->n; n++) {
            const Instr *instr = &program->instr[n];
            if (instr->kind == k && instr->transfer.peer == other)
                vec_push(links->mem, v, instr->transfer.chan);
        }
    }
    return v;
}

typedef struct Choice {
    int64_t chan;
    int link;
} Choice;

static Choice *choice_of(Choice *choice, int64_t chan)
{
    for (size_t i = 0; i < vec_len(choice); i++)
        if (choice[i].chan == chan)
            return &choice[i];
    return NULL;
}

/* Returns the next message of a link, or of chan, from *i on; -1: no more. */
static int64_t next_of(int64_t *v, size_t *i, Choice *choice, int link,
                       int64_t chan)
{
    while (*i < vec_len(v)) {
        int64_t m = v[(*i)++];
        const Choice *k = choice_of(choice, m);
        if (m == chan || (k && k->link == link))
            return m;
    }
    return -1;
}

/* Does the channel fit: is everything still received as it is sent? */
static int fits(int64_t *sent, int64_t *got, Choice *choice, int link,
                int64_t chan)
{
    size_t i = 0, j = 0;

    for (;;) {
        int64_t a = next_of(sent, &i, choice, link, chan);
        int64_t b = next_of(got, &j, choice, link, chan);
        if (a != b)
            return 0;
        if (a < 0)
            return 1;
    }
}

/* Assigns the channels from one stage to another to links. Returns the number
 * of links. */
static int choose(const Links *links, int from, int to, ProgramKind prog,
                  Choice **out)
{
    int64_t *sent = order(links, from, prog, Isend, to);
    int64_t *got = order(links, to, prog, Irecv, from);
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
                "stage %d sends on channel %ld what stage %d does not receive",
                from, sent[i], to);
        n = link == n ? n + 1 : n;
        vec_push(links->mem, c, ((Choice){ sent[i], link }));
    }
    *out = c;
    return n;
}

/* ---- opening ------------------------------------------------------------- */

static NcclLink *open_link(Links *links, Nccl *nccl, int from, int to,
                           int index)
{
    NcclLink *l = alloc(links->mem, sizeof *l);
    int mine = links->me == from || links->me == to;

    *l = (NcclLink){ .from = from, .to = to, .index = index };
    l->comm = nccl_pair(nccl, mine ? links->rank[0] : -1,
                        links->me == from ? SENDER : RECEIVER);
    if (links->me == from) {
        gpu_ok(dl.cuStreamCreate(&l->stream, 1), "a stream");
        gpu_ok(dl.cuEventCreate(&l->ready, UNTIMED), "an event");
    }
    return l;
}

static void add_ends(Links *links, int from, int to, ProgramKind prog,
                     Choice *choice)
{
    for (size_t i = 0; i < vec_len(choice); i++) {
        LinkEnd *e = alloc(links->mem, sizeof *e);
        *e = (LinkEnd){ .prog = prog,
                        .from = from,
                        .to = to,
                        .chan = choice[i].chan,
                        .index = choice[i].link };
        if (links->me == from || links->me == to)
            vec_push(links->mem, links->end, e);
    }
}

static void open_pair(Links *links, Nccl *nccl, int from, int to)
{
    const Role *role = &links->plan->role[from];
    int most = 0;

    for (int g = 0; g < role->nprog; g++) {
        Choice *choice = NULL;
        int n = choose(links, from, to, role->prog[g].kind, &choice);
        add_ends(links, from, to, role->prog[g].kind, choice);
        most = n > most ? n : most;
    }
    for (int i = 0; i < most; i++)
        vec_push(links->mem, links->link, open_link(links, nccl, from, to, i));
}

static NcclLink *link_of(const Links *links, int from, int to, int index)
{
    for (size_t i = 0; i < vec_len(links->link); i++) {
        NcclLink *l = links->link[i];
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

/* Sends a byte over every link, in one order on all ranks: NCCL connects two
 * ranks at their first transfer, which blocks the host. */
void links_warm(Links *links, uint64_t work, void *stream)
{
    if (!links->link)
        return;
    for (size_t i = 0; i < vec_len(links->link); i++) {
        const NcclLink *link = links->link[i];
        if (links->me == link->from)
            nccl_send(link->comm, Dbool, 1, work, RECEIVER, stream);
        else if (links->me == link->to)
            nccl_recv(link->comm, Dbool, 1, work, SENDER, stream);
    }
    gpu_ok(dl.cuStreamSynchronize(stream), "speaking to other stages");
}

/* ---- instructions -------------------------------------------------------- */

LinkEnd *link_bind(Links *links, ProgramKind prog, const Instr *instr,
                   int64_t runs)
{
    const TransferArgs *args = &instr->transfer;
    int from = instr->kind == Irecv ? (int)args->peer : links->me;
    int to = instr->kind == Irecv ? links->me : (int)args->peer;
    size_t i = 0;

    while (i < vec_len(links->end) &&
           (links->end[i]->prog != prog || links->end[i]->from != from ||
            links->end[i]->to != to || links->end[i]->chan != args->chan))
        i++;
    if (i == vec_len(links->end))
        err(NULL, "stages %d and %d have no channel %ld", from, to, args->chan);
    LinkEnd *e = links->end[i];
    for (int64_t n = 0; n < runs && instr->kind == Isend; n++) {
        void *event = NULL;
        gpu_ok(dl.cuEventCreate(&event, UNTIMED), "an event");
        vec_push(links->mem, e->done, event);
        e->room++;
    }
    return e;
}

void links_reset(Links *links)
{
    for (size_t i = 0; i < vec_len(links->end); i++)
        links->end[i]->sent = links->end[i]->waited = 0;
}

static void start_send(LinkEnd *end, const TransferArgs *args, uint64_t buf,
                       void *stream)
{
    NcclLink *link = end->link;

    if (end->sent == end->room)
        die("link: channel %ld sends more than %ld times", end->chan,
            end->room);
    gpu_ok(dl.cuEventRecord(link->ready, stream), "an event");
    gpu_ok(dl.cuStreamWaitEvent(link->stream, link->ready, 0), "an event");
    nccl_send(link->comm, args->dt, args->n, buf, RECEIVER, link->stream);
    gpu_ok(dl.cuEventRecord(end->done[end->sent++], link->stream), "an event");
}

void link_run(LinkEnd *end, const Instr *instr, uint64_t buf, void *stream)
{
    const TransferArgs *v = &instr->transfer;

    if (instr->kind == Isend)
        start_send(end, v, buf, stream);
    else if (instr->kind == Irecv)
        nccl_recv(end->link->comm, v->dt, v->n, buf, SENDER, stream);
    else if (end->waited < end->sent)
        gpu_ok(dl.cuStreamWaitEvent(stream, end->done[end->waited++], 0),
               "an event");
    else
        err(NULL, "a wait for what was not sent (channel %ld)", end->chan);
}

/* Calls err() if a send was not waited for: it would be outside the graph. */
void links_finish(Links *links)
{
    for (size_t i = 0; i < vec_len(links->end); i++) {
        const LinkEnd *end = links->end[i];
        if (end->waited != end->sent)
            err(NULL, "%ld messages on channel %ld, %ld waited for", end->sent,
                end->chan, end->waited);
    }
}
