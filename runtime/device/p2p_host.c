/* p2p_host.c: transfers between pipeline stages: send, recv, wait. Messages of
 * one pair of ranks and one channel form a queue. A message inside a process
 * (`local`) is the address of the sender's buffer, which does not change until
 * its wait; between processes it is a row of MPI requests. Queues are allocated
 * for the longest run, so no run allocates. */
#include "host.h"

struct Channel {
    int64_t from, to, tag; /* ranks; channel of the plan */
    int64_t room, pieces;  /* capacity in messages; requests of a message */
    void **queue;
    int64_t sent, taken, waited; /* messages so far; taken: `local` only */
};

struct Channels {
    Arena *mem;
    const Comm *comm;
    Channel **chan; /* vec: channels on which ranks here send */
};

Channels *channels_new(Arena *a, const Comm *comm)
{
    Channels *x = alloc(a, sizeof *x);

    *x = (Channels){ .mem = a, .comm = comm };
    return x;
}

static int is_here(const Comm *comm, int64_t rank)
{
    return rank >= comm->first && rank < comm->first + comm->n;
}

static Channel *find(Channels *channels, int64_t from, int64_t to, int64_t tag)
{
    for (size_t i = 0; i < vec_len(channels->chan); i++) {
        Channel *c = channels->chan[i];
        if (c->from == from && c->to == to && c->tag == tag)
            return c;
    }
    Channel *c = alloc(channels->mem, sizeof *c);
    *c = (Channel){ .from = from, .to = to, .tag = tag, .pieces = 1 };
    vec_push(channels->mem, channels->chan, c);
    return c;
}

Channel *channel_bind(Channels *channels, const BoundInstr *bound, int64_t runs)
{
    int64_t peer = bound->ranks[bound->instr->transfer.peer],
            tag = bound->instr->transfer.chan;

    if (bound->instr->kind == Irecv)
        return is_here(channels->comm, peer) && channels->comm->n > 1
                   ? find(channels, peer, bound->rank, tag)
                   : NULL;
    Channel *c = find(channels, bound->rank, peer, tag);
    if (bound->instr->kind == Isend)
        c->room += runs;
    if (c->pieces < mpi_pieces(bound->bytes))
        c->pieces = mpi_pieces(bound->bytes);
    return c;
}

void channels_open(Channels *channels)
{
    for (size_t k = 0; k < vec_len(channels->chan); k++) {
        Channel *channel = channels->chan[k];
        channel->queue =
            alloc(channels->mem, (size_t)(channel->room * channel->pieces + 1) *
                                     sizeof *channel->queue);
    }
}

void channels_reset(Channels *channels)
{
    for (size_t k = 0; k < vec_len(channels->chan); k++) {
        Channel *channel = channels->chan[k];
        channel->sent = channel->taken = channel->waited = 0;
    }
}

/* Would the instruction return at once? Between processes it may block. */
int channel_ready(const Channel *channel, const BoundInstr *bound)
{
    if (mpi_running() || bound->instr->kind == Isend)
        return 1;
    return bound->instr->kind == Irecv ? channel->taken < channel->sent
                                       : channel->waited < channel->taken;
}

static void run_here(Channel *channel, const BoundInstr *bound)
{
    if (bound->instr->kind == Isend)
        channel->queue[channel->sent++] = bound->buf[0];
    else if (bound->instr->kind == Irecv)
        memcpy(bound->buf[0], channel->queue[channel->taken++],
               (size_t)bound->bytes);
    else
        channel->waited++;
}

static void run_mpi(Channel *channel, const BoundInstr *bound)
{
    int64_t peer = bound->ranks[bound->instr->transfer.peer],
            tag = bound->instr->transfer.chan;

    watch_enter(0, &peer, 1);
    if (bound->instr->kind == Irecv)
        mpi_recv(bound->buf[0], bound->bytes, peer, tag);
    else if (bound->instr->kind == Isend)
        mpi_send(bound->buf[0], bound->bytes, peer, tag,
                 channel->queue + channel->pieces * channel->sent++);
    else if (channel->waited < channel->sent)
        mpi_wait(channel->queue + channel->pieces * channel->waited++,
                 mpi_pieces(bound->bytes));
    else
        err(NULL, "a wait for what was not sent (%s)",
            bound->instr->label ? bound->instr->label : "?");
    watch_leave();
}

void channel_run(Channel *channel, const BoundInstr *bound)
{
    if (mpi_running())
        run_mpi(channel, bound);
    else
        run_here(channel, bound);
}

/* Checks that sends, receives and waits of a run are equally many; otherwise
 * the next run would begin with an old message. */
void channels_finish(const Channels *channels)
{
    for (size_t k = 0; k < vec_len(channels->chan); k++) {
        const Channel *channel = channels->chan[k];
        if (channel->waited != channel->sent)
            err(NULL, "%ld messages to rank %ld on channel %ld, %ld waited for",
                channel->sent, channel->to, channel->tag, channel->waited);
    }
}
