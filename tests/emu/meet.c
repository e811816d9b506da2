/* meet.c: what threads of a warp, of a block and of a cluster do together, and
 * small things of a thread. Lanes and threads that have ended are not waited
 * for, but by barriers that were given a count. */
#include "rows.h"

#include <string.h>

/* ---- warps --------------------------------------------------------------- */

static unsigned present(const Warp *w)
{
    unsigned all = w->n == WARP ? ~0u : (1u << w->n) - 1;

    return all & ~w->over;
}

/* By its mask. A lane waits in one meeting, so there are never more than lanes:
 * some may be late in one while others are in the next. */
static StageMatch *meet_of(Warp *w, unsigned mask)
{
    StageMatch *unused = NULL;

    for (int i = 0; i < WARP; i++) {
        StageMatch *m = &w->meet[i];
        if (m->mask == mask)
            return m;
        if (!m->mask)
            unused = unused ? unused : m;
    }
    *unused = (StageMatch){ .mask = mask };
    w->meetings++;
    return unused;
}

static int all_here(const Warp *w, const StageMatch *m)
{
    return ((m->mask & present(w)) & ~m->arrived) == 0;
}

static void close_meet(Warp *w, StageMatch *m)
{
    if (m->all)
        m->all(w, m->arrived, m->insn);
    m->mask = 0;
    w->meetings--;
    for (int k = 0; k < w->n; k++)
        if (m->arrived >> k & 1) {
            w->thread[k].met = 1;
            wake_thread(&w->thread[k], m);
        }
    m->arrived = 0;
}

void meet(SlotGroup *f, const Insn *i, unsigned mask, MeetAll *all)
{
    Thread *t = f->t;
    Warp *w = t->w;

    if (!(mask >> t->lane & 1))
        fail(EFAILED, "lane %d is not in its mask %08x", t->lane, mask);
    StageMatch *m = meet_of(w, mask);
    if (m->arrived && (m->insn->row != i->row || (all && m->insn != i)))
        fail(EFAILED, "lanes meet at another instruction: %s", m->insn->text);
    m->insn = i;
    m->all = all;
    m->arrived |= 1u << t->lane;
    t->met = 0;
    if (all_here(w, m))
        close_meet(w, m);
    while (!t->met)
        wait_on(t, m);
}

void run_warp_sync(SlotGroup *f, const Insn *i)
{
    meet(f, i, (unsigned)get_value(f, &i->o[0]), NULL);
}

/* ---- exchanges ----------------------------------------------------------- */

/* The lane that lane l reads, or itself where that is outside of its segment:
 * c has the segments' mask and the last lane in them (PTX ISA, shfl.sync). */
static int source_lane(const Insn *i, int l, int b, int c, int *inside)
{
    int segment = c >> 8 & 31, clamp = c & 31, j = 0;
    int last = (l & segment) | (clamp & ~segment), first = l & segment;

    switch (i->how) {
    case Hup:
        j = l - b;
        *inside = j >= last;
        break;
    case Hdown:
        j = l + b;
        *inside = j <= last;
        break;
    case Hbfly:
        j = l ^ b;
        *inside = j <= last;
        break;
    default: j = first | (b & ~segment & 31); *inside = j <= last;
    }
    return *inside ? j : l;
}

/* value: what a lane brings, and which it asks for; of one that is not there
 * it gets poison. */
static void shfl_all(Warp *w, unsigned mask, const Insn *i)
{
    uint64_t brought[WARP];

    for (int k = 0; k < w->n; k++)
        brought[k] = w->thread[k].value[0];
    for (int k = 0; k < w->n; k++) {
        Thread *t = &w->thread[k];
        int inside = 0;
        if (!(mask >> k & 1))
            continue;
        int b = (int)(t->value[1] & 31), c = (int)t->value[2];
        int j = source_lane(i, k, b, c, &inside);
        t->value[0] = mask >> j & 1 ? brought[j] : 0xffffffffu;
        t->value[1] = (uint64_t)inside;
    }
}

void run_shfl(SlotGroup *f, const Insn *i)
{
    const Operand *to = &i->o[0];

    for (int k = 0; k < 3; k++)
        f->t->value[k] = get_value(f, &i->o[1 + k]);
    meet(f, i, (unsigned)get_value(f, &i->o[4]), shfl_all);
    if (to->kind != Kvec) {
        put_value(f, to, f->t->value[0]);
        return;
    }
    put_value(f, &to->part[0], f->t->value[0]);
    put_value(f, &to->part[1], f->t->value[1]);
}

static void vote_all(Warp *w, unsigned mask, const Insn *i)
{
    unsigned yes = 0;

    for (int k = 0; k < w->n; k++)
        if (mask >> k & 1 && w->thread[k].value[0])
            yes |= 1u << k;
    for (int k = 0; k < w->n; k++)
        if (mask >> k & 1)
            w->thread[k].value[0] = i->how == Hballot ? yes
                                    : i->how == Hany  ? yes != 0
                                                      : yes == mask;
}

void run_vote(SlotGroup *f, const Insn *i)
{
    f->t->value[0] = get_value(f, &i->o[1]);
    meet(f, i, (unsigned)get_value(f, &i->o[2]), vote_all);
    put_value(f, &i->o[0], f->t->value[0]);
}

const char *check_redux(const Insn *i)
{
    int bits = i->ntype == 1 ? ptx_types[i->type[0]].bits : 0;

    return bits != 32 || ptx_types[i->type[0]].kind != 'u' ||
                   (i->how != Hmin && i->how != Hmax)
               ? "the largest or least of .u32"
               : NULL;
}

static void redux_all(Warp *w, unsigned mask, const Insn *i)
{
    uint64_t found = i->how == Hmin ? 0xffffffffu : 0;

    for (int k = 0; k < w->n; k++) {
        uint64_t x = w->thread[k].value[0];
        if (mask >> k & 1)
            found = i->how == Hmin ? (x < found ? x : found)
                                   : (x > found ? x : found);
    }
    for (int k = 0; k < w->n; k++)
        if (mask >> k & 1)
            w->thread[k].value[0] = found;
}

void run_redux(SlotGroup *f, const Insn *i)
{
    f->t->value[0] = get_value(f, &i->o[1]);
    meet(f, i, (unsigned)get_value(f, &i->o[2]), redux_all);
    put_value(f, &i->o[0], f->t->value[0]);
}

static void elect_all(Warp *w, unsigned mask, const Insn *i)
{
    (void)i;
    for (int k = 0; k < w->n; k++)
        if (mask >> k & 1)
            w->thread[k].value[0] = (uint64_t)__builtin_ctz(mask);
}

void run_elect(SlotGroup *f, const Insn *i)
{
    const Operand *to = &i->o[0];

    meet(f, i, (unsigned)get_value(f, &i->o[1]), elect_all);
    uint64_t leader = f->t->value[0];
    put_value(f, &to->part[0], leader);
    put_value(f, &to->part[1], leader == (uint64_t)f->t->lane);
}

void run_activemask(SlotGroup *f, const Insn *i)
{
    put_value(f, &i->o[0], 1u << f->t->lane); /* any set with it is possible */
}

/* ---- blocks -------------------------------------------------------------- */

static void close_bar(Bar *b)
{
    b->arrived = 0;
    b->round++;
    wake(b);
}

/* expected: -1 for all threads that have not ended. */
static int bar_full(const Bar *b, int alive)
{
    return b->arrived && b->arrived == (b->expected < 0 ? alive : b->expected);
}

static Bar *join_bar(SlotGroup *f, const Insn *i)
{
    StepValues *b = f->t->b;
    uint64_t id = get_value(f, &i->o[0]);
    int n = i->n > 1 ? (int)get_value(f, &i->o[1]) : -1;

    if (id >= NBAR)
        fail(EFAILED, "barrier %llu of 16", (unsigned long long)id);
    if (n == 0 || n % WARP > 0 || n > b->nthread)
        fail(EFAILED, "a barrier of %d threads of %d", n, b->nthread);
    Bar *bar = &b->bar[id];
    if (bar->arrived && bar->expected != n)
        fail(EFAILED, "barrier %d of %d threads, and of %d", (int)id,
             bar->expected, n);
    bar->expected = n;
    bar->arrived++;
    b->met = 1;
    return bar;
}

void run_bar_sync(SlotGroup *f, const Insn *i)
{
    Bar *b = join_bar(f, i);
    unsigned round = b->round;

    if (bar_full(b, f->t->b->alive))
        close_bar(b);
    while (b->round == round)
        wait_on(f->t, b);
}

void run_bar_arrive(SlotGroup *f, const Insn *i)
{
    Bar *b = join_bar(f, i);

    if (bar_full(b, f->t->b->alive))
        close_bar(b);
}

/* ---- clusters ------------------------------------------------------------ */

static void close_cluster(void)
{
    Bar *b = &machine.cluster;

    if (b->arrived == machine.alive && b->arrived)
        close_bar(b);
}

void run_cluster_arrive(SlotGroup *f, const Insn *i)
{
    Thread *t = f->t;

    (void)i;
    if (t->cluster_arrived)
        fail(EFAILED, "arrives twice without waiting");
    t->cluster_arrived = 1;
    t->cluster_round = machine.cluster.round;
    machine.cluster.arrived++;
    close_cluster();
}

void run_cluster_wait(SlotGroup *f, const Insn *i)
{
    Thread *t = f->t;

    (void)i;
    if (!t->cluster_arrived)
        fail(EFAILED, "waits without having arrived");
    while (machine.cluster.round == t->cluster_round)
        wait_on(t, &machine.cluster);
    t->cluster_arrived = 0;
}

void meet_over(Thread *t)
{
    Warp *w = t->w;

    w->over |= 1u << t->lane;
    for (int i = 0; i < WARP && w->meetings; i++)
        if (w->meet[i].mask && w->meet[i].arrived && all_here(w, &w->meet[i]))
            close_meet(w, &w->meet[i]);
    for (int i = 0; i < NBAR && t->b->met; i++)
        if (bar_full(&t->b->bar[i], t->b->alive))
            close_bar(&t->b->bar[i]);
    if (t->cluster_arrived && machine.cluster.round == t->cluster_round)
        machine.cluster.arrived--;
    close_cluster();
}

/* ---- a thread ------------------------------------------------------------ */

static int wanted_registers(SlotGroup *f, const Insn *i)
{
    int n = (int)get_value(f, &i->o[0]);

    if (n < 24 || n > 256 || n % 8)
        fail(EILLEGALINSTRUCTION, "%d registers", n);
    return n;
}

void run_fewer_registers(SlotGroup *f, const Insn *i)
{
    Thread *t = f->t;
    int n = wanted_registers(f, i);

    if (n > t->registers)
        fail(EFAILED, "%d registers are not fewer than %d", n, t->registers);
    t->b->registers += t->registers - n;
    t->registers = n;
    wake(&t->b->registers);
}

void run_more_registers(SlotGroup *f, const Insn *i)
{
    Thread *t = f->t;
    int n = wanted_registers(f, i);

    if (n < t->registers)
        fail(EFAILED, "%d registers are not more than %d", n, t->registers);
    while (t->b->registers < n - t->registers)
        wait_on(t, &t->b->registers);
    t->b->registers -= n - t->registers;
    t->registers = n;
}

void run_nanosleep(SlotGroup *f, const Insn *i)
{
    (void)i;
    give_way(f->t);
}

void run_nothing(SlotGroup *f, const Insn *i)
{
    (void)f, (void)i;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void run_trap(SlotGroup *f, const Insn *i)
{
    (void)f, (void)i;
    fail(EFAILED, "the kernel stops itself");
}
