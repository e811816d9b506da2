/* mirror.c: what lasts on a device with memory of its own, brought to its
 * mirror in the host's memory and back; a buffer of any kind, to look at. On
 * other devices the two are the same memory. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "exec.h"

enum { PIECE = 32 << 20, PAGE = 4096 }; /* bytes */

int exec_apart(const Exec *x)
{
    return (x->dev->can & OWNmemory) != 0;
}

void exec_guard(Exec *x, StreamKind on)
{
    if (x->guard)
        x->guard(x->guarded);
    if (x->copied && !(x->ordered & 1u << on))
        x->dev->wait(x->on, on, x->copied);
    x->ordered |= 1u << on;
}

static int64_t piece_bytes(const Rank *r, int64_t at)
{
    int64_t left = r->role->persist - at;

    return left < PIECE ? left : PIECE;
}

static void await(Exec *x, void *event)
{
    int e;

    while ((e = x->dev->query(x->on, event)) > 0)
        ;
    if (e)
        x->dev->fault(x->on, "moving the state");
}

/* Through two pinned blocks: one is copied by all threads while the other is
 * on its way. */
static void pull_pieces(Exec *x, uint8_t *const block[2], void *const there[2])
{
    const Rank *r = x->rank;

    for (int64_t at = 0, i = 0; at < r->role->persist + PIECE;
         at += PIECE, i ^= 1) {
        int64_t n = piece_bytes(r, at), before = at - PIECE;
        if (n > 0) {
            x->dev->copy(x->on, STREAMcompute, COPYout, block[i], r->base + at,
                         n);
            x->dev->record(x->on, STREAMcompute, there[i]);
        }
        if (before < 0)
            continue;
        await(x, there[i ^ 1]);
        pool_copy(x->pool, r->arena + before, block[i ^ 1],
                  piece_bytes(r, before));
    }
}

static void push_pieces(Exec *x, uint8_t *const block[2], void *const there[2])
{
    const Rank *r = x->rank;

    for (int64_t at = 0, i = 0; at < r->role->persist; at += PIECE, i ^= 1) {
        int64_t n = piece_bytes(r, at);
        if (at >= 2 * PIECE)
            await(x, there[i]);
        pool_copy(x->pool, block[i], r->arena + at, n);
        x->dev->copy(x->on, STREAMcompute, COPYin, r->base + at, block[i], n);
        x->dev->record(x->on, STREAMcompute, there[i]);
    }
}

static void move(Exec *x, void f(Exec *, uint8_t *const *, void *const *))
{
    uint8_t *block[2];

    for (int i = 0; i < 2; i++) {
        block[i] = x->dev->alloc(x->on, ARENApinned, PIECE, "moving the state");
        if (!x->there[i])
            x->there[i] = x->dev->event(x->on, EVENTplain);
    }
    f(x, block, x->there);
    x->dev->sync(x->on, STREAMcompute);
    for (int i = 0; i < 2; i++)
        x->dev->free(x->on, ARENApinned, block[i], PIECE);
}

void exec_pull(Exec *x)
{
    if (exec_apart(x))
        move(x, pull_pieces);
}

void exec_push(Exec *x)
{
    if (!exec_apart(x))
        return;
    x->ordered = 0;
    exec_guard(x, STREAMcompute);
    move(x, push_pieces);
    exec_drop(x);
}

/* The mirror's pages, which come back as zeros. */
void exec_drop(Exec *x)
{
    const Rank *r = x->rank;

    if (exec_apart(x))
        madvise(r->arena, (size_t)(r->role->persist / PAGE * PAGE),
                MADV_DONTNEED);
}

void *exec_seen(const Exec *x, const Rank *r, const void *p, int64_t bytes)
{
    int here = rank_hosts(r, p);
    uint8_t *to = here ? (uint8_t *)(uintptr_t)p
                       : r->arena + ((const uint8_t *)p - r->base);

    if (exec_apart(x))
        x->dev->sync(x->on, STREAMcompute);
    if (exec_apart(x) && !here) {
        x->dev->copy(x->on, STREAMcompute, COPYout, to, p, bytes);
        x->dev->sync(x->on, STREAMcompute);
    }
    return to;
}

void *exec_fetch(const Exec *x, int64_t rank, int buf)
{
    const Rank *r = &x->rank[rank - x->comm->first];

    return exec_seen(x, r, rank_address(r, buf), r->role->buf[buf].bytes);
}
