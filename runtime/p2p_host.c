/* p2p_host.c: what a pipeline stage hands to another: send, recv, wait.
 * Messages of one pair of ranks and one channel are a queue. Here (`local`) a
 * message is the address of the sender's buffer, which lies still until its
 * wait; between processes it is a row of MPI requests. Queues are made as long
 * as a run can make them, so nothing is allocated in it. */
#include <string.h>

#include "runtime.h"

struct Channel {
    int64_t to, tag;      /* receiving rank; chan of the plan */
    int64_t room, pieces; /* messages; requests of one */
    void **queue;
    int64_t sent, taken, waited; /* messages so far; taken: here only */
};

static int is_here(const Exec *x, int64_t rank)
{
    return rank >= x->comm->first && rank < x->comm->first + x->comm->n;
}

static Channel *find(Exec *x, Rank *from, int64_t to, int64_t tag)
{
    for (size_t i = 0; i < vec_len(from->chan); i++)
        if (from->chan[i]->to == to && from->chan[i]->tag == tag)
            return from->chan[i];
    Channel *c = alloc(x->mem, sizeof *c);
    *c = (Channel){ .to = to, .tag = tag, .pieces = 1 };
    vec_push(x->mem, from->chan, c);
    return c;
}

void channel_bind(Exec *x, Rank *r, BoundInstr *b, int64_t turns)
{
    int64_t peer = b->ranks[b->s->transfer.peer], tag = b->s->transfer.chan;

    if (b->s->kind == Irecv) {
        if (is_here(x, peer) && x->comm->n > 1)
            b->chan = find(x, &x->rank[peer - x->comm->first], r->id, tag);
        return;
    }
    b->chan = find(x, r, peer, tag);
    if (b->s->kind == Isend)
        b->chan->room += turns;
    if (b->chan->pieces < mpi_pieces(b->bytes))
        b->chan->pieces = mpi_pieces(b->bytes);
}

void channels_open(Exec *x)
{
    for (int64_t i = 0; i < x->comm->n; i++)
        for (size_t k = 0; k < vec_len(x->rank[i].chan); k++) {
            Channel *c = x->rank[i].chan[k];
            c->queue = alloc(x->mem, (size_t)(c->room * c->pieces + 1) *
                                         sizeof *c->queue);
        }
}

void channels_reset(Exec *x)
{
    for (int64_t i = 0; i < x->comm->n; i++)
        for (size_t k = 0; k < vec_len(x->rank[i].chan); k++) {
            Channel *c = x->rank[i].chan[k];
            c->sent = c->taken = c->waited = 0;
        }
}

/* Would the instruction return at once? Between processes it may block. */
int channel_ready(const BoundInstr *b)
{
    const Channel *c = b->chan;

    if (mpi_running() || b->s->kind == Isend)
        return 1;
    return b->s->kind == Irecv ? c->taken < c->sent : c->waited < c->taken;
}

static void run_here(BoundInstr *b)
{
    Channel *c = b->chan;

    if (b->s->kind == Isend)
        c->queue[c->sent++] = b->buf[0];
    else if (b->s->kind == Irecv)
        memcpy(b->buf[0], c->queue[c->taken++], (size_t)b->bytes);
    else
        c->waited++;
}

static void run_mpi(BoundInstr *b)
{
    Channel *c = b->chan;
    int64_t peer = b->ranks[b->s->transfer.peer], tag = b->s->transfer.chan;

    watch_enter(0, &peer, 1);
    if (b->s->kind == Irecv)
        mpi_recv(b->buf[0], b->bytes, peer, tag);
    else if (b->s->kind == Isend)
        mpi_send(b->buf[0], b->bytes, peer, tag,
                 c->queue + c->pieces * c->sent++);
    else if (c->waited < c->sent)
        mpi_wait(c->queue + c->pieces * c->waited++, mpi_pieces(b->bytes));
    else
        err(NULL, "a wait for what was not sent (%s)",
            b->s->label ? b->s->label : "?");
    watch_leave();
}

void channel_run(BoundInstr *b)
{
    if (mpi_running())
        run_mpi(b);
    else
        run_here(b);
}

/* A table sends, receives and waits equally often; if one did not, the next run
 * would begin with an old message. */
void channels_finish(Exec *x)
{
    for (int64_t i = 0; i < x->comm->n; i++)
        for (size_t k = 0; k < vec_len(x->rank[i].chan); k++) {
            const Channel *c = x->rank[i].chan[k];
            if (c->waited != c->sent)
                err(NULL,
                    "%lld messages to rank %lld on channel %lld, %lld "
                    "waited for",
                    (long long)c->sent, (long long)c->to, (long long)c->tag,
                    (long long)c->waited);
        }
}
