/* mirror.c: copies persistent data between a device with its own memory and its
 * mirror in host memory, and any buffer to the host for inspection. Devices
 * without their own memory have no mirror. */
#include "exec.h"

enum { PIECE = 32 << 20, PAGE = 4096 }; /* bytes */

int exec_apart(const Exec *exec)
{
    return (exec->dev->can & OWNmemory) != 0;
}

void exec_guard(Exec *exec, StreamKind on)
{
    if (exec->guard)
        exec->guard(exec->guarded);
    if (exec->copied && !(exec->ordered & 1u << on))
        exec->dev->wait(exec->on, on, exec->copied);
    exec->ordered |= 1u << on;
}

static int64_t piece_bytes(const Rank *rank, int64_t at)
{
    int64_t left = rank->role->persist - at;

    return left < PIECE ? left : PIECE;
}

static void await(Exec *exec, void *event)
{
    int e;

    while ((e = exec->dev->query(exec->on, event)) > 0)
        ;
    if (e)
        exec->dev->fault(exec->on, "moving the state");
}

/* Copies through two pinned blocks: threads copy one while the device fills the
 * other. */
static void pull_pieces(Exec *exec, uint8_t *const block[2],
                        void *const there[2])
{
    const Rank *rank = exec->rank;

    for (int64_t at = 0, i = 0; at < rank->role->persist + PIECE;
         at += PIECE, i ^= 1) {
        int64_t n = piece_bytes(rank, at), before = at - PIECE;
        if (n > 0) {
            exec->dev->copy(exec->on, STREAMcompute, COPYout, block[i],
                            rank->base + at, n);
            exec->dev->record(exec->on, STREAMcompute, there[i]);
        }
        if (before < 0)
            continue;
        await(exec, there[i ^ 1]);
        pool_copy(exec->pool, rank->arena + before, block[i ^ 1],
                  piece_bytes(rank, before));
    }
}

static void push_pieces(Exec *exec, uint8_t *const block[2],
                        void *const there[2])
{
    const Rank *rank = exec->rank;

    for (int64_t at = 0, i = 0; at < rank->role->persist; at += PIECE, i ^= 1) {
        int64_t n = piece_bytes(rank, at);
        if (at >= 2 * PIECE)
            await(exec, there[i]);
        pool_copy(exec->pool, block[i], rank->arena + at, n);
        exec->dev->copy(exec->on, STREAMcompute, COPYin, rank->base + at,
                        block[i], n);
        exec->dev->record(exec->on, STREAMcompute, there[i]);
    }
}

static void move(Exec *exec, void f(Exec *, uint8_t *const *, void *const *))
{
    uint8_t *block[2];

    for (int i = 0; i < 2; i++) {
        block[i] = exec->dev->alloc(exec->on, ARENApinned, PIECE, MEMstate);
        if (!exec->there[i])
            exec->there[i] = exec->dev->event(exec->on, EVENTplain);
    }
    f(exec, block, exec->there);
    exec->dev->sync(exec->on, STREAMcompute);
    for (int i = 0; i < 2; i++)
        exec->dev->free(exec->on, ARENApinned, block[i], PIECE);
}

void exec_pull(Exec *exec)
{
    if (exec_apart(exec))
        move(exec, pull_pieces);
}

void exec_push(Exec *exec)
{
    if (!exec_apart(exec))
        return;
    exec->ordered = 0;
    exec_guard(exec, STREAMcompute);
    move(exec, push_pieces);
    exec_drop(exec);
}

/* Frees the mirror's pages; they read as zeros afterwards. */
void exec_drop(Exec *exec)
{
    const Rank *rank = exec->rank;

    if (exec_apart(exec))
        madvise(rank->arena, (size_t)(rank->role->persist / PAGE * PAGE),
                MADV_DONTNEED);
}

void *exec_seen(const Exec *exec, const Rank *rank, const void *p,
                int64_t bytes)
{
    int here = rank_hosts(rank, p);
    uint8_t *to = here ? (uint8_t *)(uintptr_t)p
                       : rank->arena + ((const uint8_t *)p - rank->base);

    if (exec_apart(exec))
        exec->dev->sync(exec->on, STREAMcompute);
    if (exec_apart(exec) && !here) {
        exec->dev->copy(exec->on, STREAMcompute, COPYout, to, p, bytes);
        exec->dev->sync(exec->on, STREAMcompute);
    }
    return to;
}

void *exec_fetch(const Exec *exec, int64_t rank, int buf)
{
    const Rank *r = &exec->rank[rank - exec->comm->first];

    return exec_seen(exec, r, rank_address(r, buf), r->role->buf[buf].bytes);
}
