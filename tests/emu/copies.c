/* copies.c: asynchronous copies. One that was asked for is under way until it
 * lands: at once, by chance in between, or when something cannot go on without
 * it. A store reads shared memory when it must have (wait_group.read), and
 * writes when it must be there.
 *
 * The asynchronous proxy (tensor copies, tensor cores) may read what ordinary
 * stores wrote only behind fence.proxy.async, the writer's or the reader's. Its
 * writes may overtake ordinary loads of threads that have not fenced since. */
#include "rows.h"

#include <stdlib.h>
#include <string.h>

/* ---- proxies ------------------------------------------------------------- */

enum { CHUNK = 16 };

typedef struct Proxy {         /* of a block */
    unsigned clock, start;     /* what was written before is another block's */
    unsigned fence[MAXTHREAD]; /* when each thread fenced last */
    unsigned wrote[WINDOW / CHUNK];  /* when a piece was written; 0: not */
    uint16_t writer[WINDOW / CHUNK]; /* and by which thread */
    unsigned loaded[WINDOW / CHUNK]; /* of loads the last, in the same way */
    uint16_t loader[WINDOW / CHUNK];
} Proxy;

void proxy_start(StepValues *b)
{
    if (!b->proxy || b->proxy->clock > 1u << 31) {
        free(b->proxy);
        b->proxy = calloc(1, sizeof *b->proxy);
    }
    b->proxy->start = ++b->proxy->clock;
}

void proxy_wrote(Thread *t, uint32_t at, size_t n)
{
    Proxy *p = t->b->proxy;

    p->clock++;
    for (size_t k = at / CHUNK; k <= (at + n - 1) / CHUNK; k++) {
        p->wrote[k] = p->clock;
        p->writer[k] = (uint16_t)t->id;
    }
}

void proxy_loaded(Thread *t, uint32_t at, size_t n)
{
    Proxy *p = t->b->proxy;

    for (size_t k = at / CHUNK; k <= (at + n - 1) / CHUNK; k++) {
        p->loaded[k] = p->clock + 1;
        p->loader[k] = (uint16_t)t->id;
    }
}

void proxy_filled(StepValues *b, uint32_t at, size_t n)
{
    Proxy *p = b->proxy;

    for (size_t k = at / CHUNK; k <= (at + n - 1) / CHUNK; k++) {
        if (p->loaded[k] > p->start && p->loaded[k] > p->fence[p->loader[k]])
            fail(EILLEGALADDRESS,
                 "a copy to %#x may overtake the load of thread %d",
                 (unsigned)(k * CHUNK), p->loader[k]);
        p->wrote[k] = 0;
    }
}

unsigned proxy_fence_of(const Thread *t)
{
    return t->b->proxy->fence[t->id];
}

/* Without a fence it sees anything: poison. That a kernel may read which then
 * lets it go. */
void proxy_reads(const StepValues *b, uint32_t at, size_t n, unsigned fence,
                 uint8_t *to)
{
    const Proxy *p = b->proxy;

    memcpy(to, b->shared + at, n);
    for (size_t k = at / CHUNK; k <= (at + n - 1) / CHUNK; k++)
        if (p->wrote[k] > p->start && p->wrote[k] > fence &&
            p->wrote[k] > p->fence[p->writer[k]])
            memset(to + k * CHUNK - at, 0xff, CHUNK);
}

void run_fence_async(SlotGroup *f, const Insn *i)
{
    Proxy *p = f->t->b->proxy;

    (void)i;
    p->fence[f->t->id] = ++p->clock;
}

/* ---- what is under way --------------------------------------------------- */

typedef enum CopyKind { COpiece, COarrive, COload, COstore } CopyKind;

typedef struct Copy Copy;
struct Copy {
    Copy *next;
    CopyKind kind;
    Thread *t;
    StepValues *b; /* whose shared memory */
    unsigned group;
    uint32_t at;   /* in shared memory */
    uint64_t from; /* in global memory */
    size_t n, given;
    uint8_t *bar;
    int is_box, adds;
    Box box;
    uint8_t *taken; /* what a store has read */
};

typedef struct List {
    Copy *first, *last;
} List;

struct Copies {  /* of a thread */
    List pieces; /* cp.async and what arrives behind them, in order */
    List stores;
    unsigned group, bulk_group;
};

static List loads; /* of all: bulk copies to shared memory */
static Copy *unused;
static int npieces; /* threads' pieces under way */

static Copy *new_copy(CopyKind kind, Thread *t)
{
    Copy *c = unused;

    if (c)
        unused = c->next;
    else
        c = malloc(sizeof *c);
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->t = t;
    c->b = t->b;
    return c;
}

static void free_copy(Copy *c)
{
    free(c->taken);
    c->next = unused;
    unused = c;
}

static void append(List *l, Copy *c)
{
    if (l->first)
        l->last->next = c;
    else
        l->first = c;
    l->last = c;
}

static Copy *take_first(List *l)
{
    Copy *c = l->first;

    l->first = c->next;
    return c;
}

static void drop_all(List *l)
{
    while (l->first)
        free_copy(take_first(l));
}

void copies_start(Thread *t)
{
    if (!t->copies)
        t->copies = calloc(1, sizeof *t->copies);
    drop_all(&t->copies->pieces); /* of a launch that failed */
    drop_all(&t->copies->stores);
    t->copies->group = t->copies->bulk_group = 0;
    if (t->index == 0) {
        drop_all(&loads);
        npieces = 0;
    }
}

/* Lands what was just asked for at once? */
static int at_once(void)
{
    return machine.order == 1 || (machine.order > 1 && chance() % 3 == 0);
}

/* ---- pieces: cp.async ---------------------------------------------------- */

static void land_piece(Copy *c)
{
    if (c->kind == COarrive) {
        bar_arrive(c->bar, 1);
        return;
    }
    uint8_t *to = c->b->shared + c->at;
    if (c->given)
        memcpy(to, global_bytes(c->from, c->given), c->given);
    memset(to + c->given, 0, c->n - c->given);
    proxy_wrote(c->t, c->at, c->n);
}

static void land_first(Thread *t)
{
    Copy *c = take_first(&t->copies->pieces);

    npieces--;
    land_piece(c);
    free_copy(c);
}

const char *check_cp(const Insn *i)
{
    const Operand *n = &i->o[2];

    if (i->nspace != 2 || i->space[0] > Scluster || i->space[0] < Sshared ||
        i->space[1] != Sglobal || !i->cache)
        return "from global to shared memory, by .ca or .cg";
    if (n->kind == Kimm && n->imm != 16 &&
        (i->cache == 2 || (n->imm != 4 && n->imm != 8)))
        return "4, 8 or 16 bytes; .cg: 16";
    return NULL;
}

void run_cp_async(SlotGroup *f, const Insn *i)
{
    size_t n = (size_t)get_value(f, &i->o[2]);
    size_t given = i->n > 3 ? (size_t)get_value(f, &i->o[3]) : n;
    uint64_t from = get_value(f, &i->o[1].part[0]) + (uint64_t)i->o[1].imm;

    if (n != 4 && n != 8 && n != 16)
        fail(EILLEGALINSTRUCTION, "%zu bytes", n);
    if (given > n || from % n)
        fail(given > n ? EILLEGALINSTRUCTION : EMISALIGNED,
             "%zu of %zu bytes from %#llx", given, n, (unsigned long long)from);
    address(f, i, &i->o[0], Sshared, n);
    Copy *c = new_copy(COpiece, f->t);
    c->at = (uint32_t)(get_value(f, &i->o[0].part[0]) + (uint64_t)i->o[0].imm);
    c->from = from;
    c->n = n;
    c->given = given;
    c->group = f->t->copies->group;
    if (at_once()) {
        land_piece(c);
        free_copy(c);
        return;
    }
    append(&f->t->copies->pieces, c);
    npieces++;
}

void run_cp_commit(SlotGroup *f, const Insn *i)
{
    (void)i;
    f->t->copies->group++;
}

/* Those of groups before `group`, and what arrives behind them. */
static void land_groups(Thread *t, unsigned group)
{
    List *l = &t->copies->pieces;

    while (l->first && (l->first->kind == COarrive || l->first->group < group))
        land_first(t);
}

void run_cp_wait(SlotGroup *f, const Insn *i)
{
    unsigned n = (unsigned)get_value(f, &i->o[0]), now = f->t->copies->group;

    if (now > n)
        land_groups(f->t, now - n);
}

void run_cp_wait_all(SlotGroup *f, const Insn *i)
{
    (void)i;
    land_groups(f->t, ++f->t->copies->group);
}

/* When the thread's copies before it have landed. */
void run_cp_arrive(SlotGroup *f, const Insn *i)
{
    uint8_t *bar =
        address(f, i, &i->o[0], i->nspace ? i->space[0] : Sgeneric, 8);

    if (!(i->flags & FLAG(noinc)))
        bar_arrive(bar, -1);
    Copy *c = new_copy(COarrive, f->t);
    c->bar = bar;
    append(&f->t->copies->pieces, c);
    npieces++;
    if (f->t->copies->pieces.first == c)
        land_first(f->t);
}

/* ---- bulk copies to shared memory ---------------------------------------- */

static void land_load(Copy *c)
{
    if (c->is_box) {
        box_load(&c->box);
    } else {
        memcpy(c->b->shared + c->at, global_bytes(c->from, c->n), c->n);
        proxy_filled(c->b, c->at, c->n);
    }
    bar_bytes(c->bar, -(int64_t)c->n);
    free_copy(c);
}

static void start_load(Copy *c)
{
    if (at_once())
        land_load(c);
    else
        append(&loads, c);
}

static uint8_t *barrier_of(SlotGroup *f, const Insn *i, int k)
{
    return address(f, i, &i->o[k], Scluster, 8);
}

static uint32_t shared_operand(SlotGroup *f, const Insn *i, int k, size_t n,
                               StepValues **whose)
{
    uint64_t at = get_value(f, &i->o[k].part[0]) + (uint64_t)i->o[k].imm;

    if (at >> 32)
        fail(EILLEGALADDRESS, "%#llx is no shared address",
             (unsigned long long)at);
    shared_bytes(f->t, (uint32_t)at, n, whose);
    return (uint32_t)at & 0xffffff;
}

/* ---- bulk copies from shared memory -------------------------------------- */

static void take_store(Copy *c)
{
    if (c->taken)
        return;
    c->taken = malloc(c->n);
    if (c->is_box) {
        box_take(&c->box, c->taken);
        return;
    }
    proxy_reads(c->b, c->at, c->n, proxy_fence_of(c->t), c->taken);
}

static void land_store(Copy *c)
{
    take_store(c);
    if (c->adds)
        box_add(&c->box, c->taken);
    else if (c->is_box)
        box_put(&c->box, c->taken);
    else
        memcpy(global_bytes(c->from, c->n), c->taken, c->n);
    free_copy(c);
}

static void start_store(Copy *c)
{
    c->group = c->t->copies->bulk_group;
    if (at_once()) {
        land_store(c);
        return;
    }
    if (machine.order > 1 && chance() % 2)
        take_store(c);
    append(&c->t->copies->stores, c);
}

void run_bulk_commit(SlotGroup *f, const Insn *i)
{
    (void)i;
    f->t->copies->bulk_group++;
}

void run_bulk_wait(SlotGroup *f, const Insn *i)
{
    struct Copies *x = f->t->copies;
    unsigned n = (unsigned)get_value(f, &i->o[0]);

    if (x->bulk_group <= n)
        return;
    unsigned before = x->bulk_group - n;
    if (i->flags & FLAG(read)) {
        for (Copy *c = x->stores.first; c && c->group < before; c = c->next)
            take_store(c);
        return;
    }
    while (x->stores.first && x->stores.first->group < before)
        land_store(take_first(&x->stores));
}

/* ---- instructions -------------------------------------------------------- */

/* to shared memory: [to], [from], n, [bar]; from it: [to], [from], n. */
const char *check_bulk(const Insn *i)
{
    int loads_it = i->nspace == 2 && i->space[0] == Scluster &&
                   i->space[1] == Sglobal && i->n == 4 &&
                   i->flags & FLAG(bytes);
    int stores_it = i->nspace == 2 && i->space[0] == Sglobal &&
                    i->space[1] == Sshared && i->n == 3 &&
                    i->flags & FLAG(group);

    return loads_it || stores_it ? NULL : "a direction that is not known";
}

void run_bulk(SlotGroup *f, const Insn *i)
{
    int loads_it = i->space[1] == Sglobal;
    size_t n = (size_t)get_value(f, &i->o[2]);
    const Operand *global = &i->o[loads_it];
    uint64_t at = get_value(f, &global->part[0]) + (uint64_t)global->imm;

    if (n == 0 || n % 16 || at % 16)
        fail(EMISALIGNED, "%zu bytes at %#llx, not of 16", n,
             (unsigned long long)at);
    Copy *c = new_copy(loads_it ? COload : COstore, f->t);
    c->n = n;
    c->from = at;
    c->at = shared_operand(f, i, !loads_it, n, &c->b);
    if (c->at % 16)
        fail(EMISALIGNED, "shared address %#x", c->at);
    if (loads_it) {
        c->bar = barrier_of(f, i, 3);
        start_load(c);
    } else {
        start_store(c);
    }
}

/* to shared memory: [to], [map, {c}], [bar]; from it: [map, {c}], [from]. */
const char *check_tensor(const Insn *i)
{
    int loads_it = i->nspace == 2 && i->space[0] == Scluster &&
                   i->space[1] == Sglobal && i->n == 3 &&
                   i->flags & FLAG(bytes);
    int stores_it = i->nspace == 2 && i->space[0] == Sglobal &&
                    i->space[1] == Sshared && i->n == 2 &&
                    i->flags & FLAG(group);
    const Operand *map = &i->o[loads_it];

    if (!loads_it && !stores_it)
        return "a direction that is not known";
    if (!i->dim || map->kind != Kmem || map->n != 2 ||
        map->part[1].kind != Kvec || map->part[1].n != i->dim)
        return "as many coordinates as the tensor has axes";
    return i->how && i->how != Hadd ? "of reductions only sums are known"
                                    : NULL;
}

static void tensor(SlotGroup *f, const Insn *i, int loads_it, int adds)
{
    Copy *c = new_copy(loads_it ? COload : COstore, f->t);

    box_read(f, i, &i->o[loads_it], &c->box);
    c->is_box = 1;
    c->adds = adds;
    c->n = box_bytes(&c->box);
    c->box.at = shared_operand(f, i, !loads_it, c->n, &c->b);
    c->box.b = c->b;
    if (c->box.at % 128)
        fail(EMISALIGNED, "shared address %#x, not of 128", c->box.at);
    if (loads_it) {
        c->bar = barrier_of(f, i, 2);
        start_load(c);
    } else {
        start_store(c);
    }
}

void run_bulk_tensor(SlotGroup *f, const Insn *i)
{
    tensor(f, i, i->space[1] == Sglobal, 0);
}

void run_bulk_reduce(SlotGroup *f, const Insn *i)
{
    if (i->space[1] == Sglobal || i->how != Hadd)
        fail(EILLEGALINSTRUCTION, "only sums into global memory are known");
    tensor(f, i, 0, 1);
}

/* ---- landing ------------------------------------------------------------- */

/* A thread's pieces up to the next arrival. */
static void land_pieces(void)
{
    int n = machine.nthread;
    int i = machine.order > 1 ? (int)(chance() % (uint64_t)n) : 0;

    while (!machine.thread[i].copies->pieces.first)
        i = i + 1 < n ? i + 1 : 0;
    List *l = &machine.thread[i].copies->pieces;
    for (int last = 0; l->first && !last;) {
        last = l->first->kind == COarrive;
        land_first(&machine.thread[i]);
    }
}

/* By chance the second one passes the first. */
static Copy *next_load(void)
{
    Copy *c = take_first(&loads);

    if (machine.order > 1 && loads.first && chance() % 2) {
        Copy *second = take_first(&loads);
        c->next = loads.first;
        loads.first = c;
        loads.last = c->next ? loads.last : c;
        return second;
    }
    return c;
}

int copies_land(void)
{
    if (loads.first && (!npieces || machine.order < 2 || chance() % 2)) {
        land_load(next_load());
        return 1;
    }
    if (npieces) {
        land_pieces();
        return 1;
    }
    return 0;
}

/* What was read is written by the end of the launch; what shared memory still
 * waits for has nowhere to go. */
void copies_over(StepValues *b)
{
    for (Copy *c = loads.first; c; c = c->next)
        if (c->b == b)
            fail(EFAILED, "a block ends while a copy to it is under way");
    for (int k = 0; k < b->nthread; k++) {
        struct Copies *x = b->thread[k].copies;
        if (x->pieces.first)
            fail(EFAILED, "thread %d ends while its copies are under way", k);
        while (x->stores.first) {
            if (!x->stores.first->taken)
                fail(EFAILED, "thread %d ends while its stores may read", k);
            land_store(take_first(&x->stores));
        }
    }
}
