/* mbarrier.c: barriers that lie in shared memory (PTX ISA, mbarrier). The 64
 * bits are ours; whoever writes over them has no barrier any more. A phase is
 * complete when no arrival and no bytes are outstanding; then the next begins
 * with as many arrivals as the barrier was made for. */
#include "rows.h"

#include <string.h>

enum { MOST = (1 << 20) - 1, MARK = 2 };

typedef struct Mbar {
    int64_t expected, pending, bytes;
    int phase; /* parity of the phase that is not complete */
} Mbar;

/* 20 bits expected, 20 pending, 21 of bytes, the phase, a mark. */
static Mbar unpack(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    if (v >> 62 != MARK)
        fail(EFAILED, "no barrier lies there");
    return (Mbar){ .expected = (int64_t)(v & MOST),
                   .pending = (int64_t)(v >> 20 & MOST),
                   .bytes = (int64_t)(v << 3) >> 43,
                   .phase = (int)(v >> 61 & 1) };
}

static void pack(uint8_t *p, const Mbar *b)
{
    uint64_t v = (uint64_t)b->expected | (uint64_t)b->pending << 20 |
                 ((uint64_t)b->bytes & 0x1fffff) << 40 |
                 (uint64_t)b->phase << 61 | (uint64_t)MARK << 62;

    memcpy(p, &v, sizeof v);
}

static void settle(uint8_t *p, Mbar *b)
{
    if (b->pending == 0 && b->bytes == 0) {
        b->phase ^= 1;
        b->pending = b->expected;
        pack(p, b);
        wake(p);
        return;
    }
    pack(p, b);
}

void bar_arrive(uint8_t *p, int n)
{
    Mbar b = unpack(p);

    if (n > b.pending || b.pending - n > MOST)
        fail(EFAILED, "%d arrivals where %lld are outstanding", n,
             (long long)b.pending);
    b.pending -= n;
    settle(p, &b);
}

void bar_bytes(uint8_t *p, int64_t n)
{
    Mbar b = unpack(p);

    b.bytes += n;
    if (b.bytes > MOST || b.bytes < -MOST)
        fail(EFAILED, "%lld bytes are outstanding", (long long)b.bytes);
    if (n > 0)
        pack(p, &b); /* expecting completes nothing */
    else
        settle(p, &b);
}

/* ---- instructions -------------------------------------------------------- */

static uint8_t *barrier(SlotGroup *f, const Insn *i, int k)
{
    return address(f, i, &i->o[k], i->nspace ? i->space[0] : Sgeneric, 8);
}

static int count(SlotGroup *f, const Insn *i, int k, int least)
{
    int64_t n = i->n > k ? get_int(f, &i->o[k], Ts32) : 1;

    if (n < least || n > MOST)
        fail(EFAILED, "a count of %lld", (long long)n);
    return (int)n;
}

void run_mbarrier_init(SlotGroup *f, const Insn *i)
{
    int n = count(f, i, 1, 1);
    Mbar b = { .expected = n, .pending = n };

    pack(barrier(f, i, 0), &b);
}

void run_mbarrier_inval(SlotGroup *f, const Insn *i)
{
    memset(barrier(f, i, 0), 0xff, 8);
}

/* [_, ] [bar] (, n): arrive.expect_tx's n are bytes, arrive's are arrivals. */
void run_mbarrier_arrive(SlotGroup *f, const Insn *i)
{
    int at = i->o[0].kind == Kmem ? 0 : 1;
    uint8_t *p = barrier(f, i, at);

    if (at)
        put_value(f, &i->o[0], 2u | (unsigned)unpack(p).phase);
    if (i->flags & FLAG(expect)) {
        bar_bytes(p, count(f, i, at + 1, 0));
        bar_arrive(p, 1);
    } else {
        bar_arrive(p, count(f, i, at + 1, 1));
    }
}

void run_mbarrier_expect(SlotGroup *f, const Insn *i)
{
    bar_bytes(barrier(f, i, 0), count(f, i, 1, 0));
}

void run_mbarrier_complete(SlotGroup *f, const Insn *i)
{
    bar_bytes(barrier(f, i, 0), -count(f, i, 1, 0));
}

const char *check_parity(const Insn *i)
{
    return i->o[1].kind == Kmem ? NULL : "no address where one should be";
}

/* Of a parity, or of the state that an arrival gave. */
static int is_complete(SlotGroup *f, const Insn *i, const uint8_t *p)
{
    uint64_t parity = get_value(f, &i->o[2]);

    if (i->flags & FLAG(parity) && parity > 1)
        fail(EFAILED, "parity %llu", (unsigned long long)parity);
    return unpack(p).phase != (int)(parity & 1);
}

/* May come back without what was waited for: by chance it does. */
void run_mbarrier_wait(SlotGroup *f, const Insn *i)
{
    uint8_t *p = barrier(f, i, 1);
    int done = is_complete(f, i, p);

    while (!done && (machine.order < 2 || chance() % 4)) {
        wait_on(f->t, p);
        done = is_complete(f, i, p);
    }
    if (!done)
        give_way(f->t);
    put_value(f, &i->o[0], (uint64_t)done);
}

void run_mbarrier_test(SlotGroup *f, const Insn *i)
{
    uint8_t *p = barrier(f, i, 1);
    int done = is_complete(f, i, p);

    if (!done)
        give_way(f->t);
    put_value(f, &i->o[0], (uint64_t)done);
}
