/* p2p_host.c: what a pipeline stage hands to another: send, recv, wait.
 * Messages of one pair of ranks and one channel are a queue. Here (`local`) a
 * message is the address of the sender's buffer, which lies still until its
 * wait; between processes it is a row of MPI requests. Queues are made as long
 * as a run can make them, so nothing is allocated in it. */
#include <string.h>

#include "host.h"

struct Channel {
    int64_t from, to, tag; /* ranks; chan of the plan */
    int64_t room, pieces;  /* messages; requests of one */
    void **queue;
    int64_t sent, taken, waited; /* messages so far; taken: here only */
};

struct Channels {
    Arena *mem;
    const Comm *comm;
    Channel **chan; /* vec: what ranks here send */
};

Channels *channels_new(Arena *a, const Comm *c)
{
    Channels *x = alloc(a, sizeof *x);

    *x = (Channels){ .mem = a, .comm = c };
    return x;
}

static int is_here(const Comm *c, int64_t rank)
{
    return rank >= c->first && rank < c->first + c->n;
}

static Channel *find(Channels *x, int64_t from, int64_t to, int64_t tag)
{
    for (size_t i = 0; i < vec_len(x->chan); i++) {
        Channel *c = x->chan[i];
        if (c->from == from && c->to == to && c->tag == tag)
            return c;
    }
    Channel *c = alloc(x->mem, sizeof *c);
    *c = (Channel){ .from = from, .to = to, .tag = tag, .pieces = 1 };
    vec_push(x->mem, x->chan, c);
    return c;
}

Channel *channel_bind(Channels *x, const BoundInstr *b, int64_t runs)
{
    int64_t peer = b->ranks[b->instr->transfer.peer],
            tag = b->instr->transfer.chan;

    if (b->instr->kind == Irecv)
        return is_here(x->comm, peer) && x->comm->n > 1
                   ? find(x, peer, b->rank, tag)
                   : NULL;
    Channel *c = find(x, b->rank, peer, tag);
    if (b->instr->kind == Isend)
        c->room += runs;
    if (c->pieces < mpi_pieces(b->bytes))
        c->pieces = mpi_pieces(b->bytes);
    return c;
}

void channels_open(Channels *x)
{
    for (size_t k = 0; k < vec_len(x->chan); k++) {
        Channel *c = x->chan[k];
        c->queue =
            alloc(x->mem, (size_t)(c->room * c->pieces + 1) * sizeof *c->queue);
    }
}

void channels_reset(Channels *x)
{
    for (size_t k = 0; k < vec_len(x->chan); k++) {
        Channel *c = x->chan[k];
        c->sent = c->taken = c->waited = 0;
    }
}

/* Would the instruction return at once? Between processes it may block. */
int channel_ready(const Channel *c, const BoundInstr *b)
{
    if (mpi_running() || b->instr->kind == Isend)
        return 1;
    return b->instr->kind == Irecv ? c->taken < c->sent : c->waited < c->taken;
}

static void run_here(Channel *c, const BoundInstr *b)
{
    if (b->instr->kind == Isend)
        c->queue[c->sent++] = b->buf[0];
    else if (b->instr->kind == Irecv)
        memcpy(b->buf[0], c->queue[c->taken++], (size_t)b->bytes);
    else
        c->waited++;
}

static void run_mpi(Channel *c, const BoundInstr *b)
{
    int64_t peer = b->ranks[b->instr->transfer.peer],
            tag = b->instr->transfer.chan;

    watch_enter(0, &peer, 1);
    if (b->instr->kind == Irecv)
        mpi_recv(b->buf[0], b->bytes, peer, tag);
    else if (b->instr->kind == Isend)
        mpi_send(b->buf[0], b->bytes, peer, tag,
                 c->queue + c->pieces * c->sent++);
    else if (c->waited < c->sent)
        mpi_wait(c->queue + c->pieces * c->waited++, mpi_pieces(b->bytes));
    else
        err(NULL, "a wait for what was not sent (%s)",
            b->instr->label ? b->instr->label : "?");
    watch_leave();
}

void channel_run(Channel *c, const BoundInstr *b)
{
    if (mpi_running())
        run_mpi(c, b);
    else
        run_here(c, b);
}

/* A table sends, receives and waits equally often; if one did not, the next run
 * would begin with an old message. */
void channels_finish(const Channels *x)
{
    for (size_t k = 0; k < vec_len(x->chan); k++) {
        const Channel *c = x->chan[k];
        if (c->waited != c->sent)
            err(NULL,
                "%lld messages to rank %lld on channel %lld, %lld waited for",
                (long long)c->sent, (long long)c->to, (long long)c->tag,
                (long long)c->waited);
    }
}
