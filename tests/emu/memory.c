/* memory.c: addresses, loads and stores, operations in memory. Shared memory is
 * a window of 32-bit addresses; one of the cluster has 1 + the block's rank in
 * its upper byte. A pointer is one of this process, to whatever it points. */
#include "rows.h"

#include <string.h>

/* ---- addresses ----------------------------------------------------------- */

static int is_placed(const StepValues *b, uint32_t at, size_t n)
{
    (void)b;
    if (at >= machine.begin)
        return at - machine.begin + n <= machine.dynamic;
    return at >= RESERVED && at - RESERVED + n <= machine.placed;
}

uint8_t *shared_bytes(const Thread *t, uint32_t at, size_t n,
                      StepValues **whose)
{
    StepValues *b = t->b;
    uint32_t rank = at >> 24, in = at & 0xffffff;

    if (rank > (uint32_t)machine.nblock)
        fail(EILLEGALADDRESS, "shared address %#x of no block", at);
    if (rank)
        b = machine.block[rank - 1];
    if (!is_placed(b, in, n))
        fail(EILLEGALADDRESS, "shared address %#x, %zu bytes: not the block's",
             at, n);
    if (b->alive == 0)
        fail(EILLEGALADDRESS, "shared memory of a block that has ended");
    if (whose)
        *whose = b;
    return b->shared + in;
}

uint8_t *global_bytes(uint64_t at, size_t n)
{
    uint8_t *p = (uint8_t *)(uintptr_t)at;

    if (emu_check && !emu_check(p, n))
        fail(EILLEGALADDRESS, "%p, %zu bytes: not the device's", (void *)p, n);
    return p;
}

/* Is it in the shared window of a block? */
static int in_window(const void *p, uint32_t *at)
{
    const StepValues *b = machine.now->b;
    size_t in = (size_t)((const uint8_t *)p - b->shared);

    *at = (uint32_t)in;
    return in < machine.begin + machine.dynamic;
}

uint8_t *address(SlotGroup *f, const Insn *i, const Operand *o, Space s,
                 size_t n)
{
    if (o->kind != Kmem)
        fail(EILLEGALINSTRUCTION, "an address stands in brackets");
    uint64_t at = get_value(f, &o->part[0]) + (uint64_t)o->imm;
    size_t align = n & -n;
    uint32_t in;

    (void)i;
    if (at % align)
        fail(EMISALIGNED, "address %#llx for %zu bytes", (unsigned long long)at,
             n);
    switch (s) {
    case Sshared:
    case Scluster:
        if (at >> 32)
            fail(EILLEGALADDRESS, "%#llx is no shared address",
                 (unsigned long long)at);
        return shared_bytes(f->t, (uint32_t)at, n, NULL);
    case Sglobal: return global_bytes(at, n);
    default: break;
    }
    if (in_window((void *)(uintptr_t)at, &in))
        return shared_bytes(f->t, in, n, NULL);
    return (uint8_t *)(uintptr_t)at;
}

static uint32_t shared_operand(SlotGroup *f, const Operand *o)
{
    return (uint32_t)(get_value(f, &o->part[0]) + (uint64_t)o->imm);
}

/* ---- loads and stores ---------------------------------------------------- */

static Space space_of(const Insn *i)
{
    return i->nspace ? i->space[0] : Sgeneric;
}

static int vector_of(const Insn *i)
{
    return i->vec ? i->vec : 1;
}

const char *check_access(const Insn *i)
{
    int memory = i->row->run == run_ld ? 1 : 0, n = vector_of(i);
    const Operand *o = &i->o[1 - memory];

    if (i->o[memory].kind != Kmem)
        return "no address where one should be";
    if (n > 1 ? o->kind != Kvec || o->n != n : o->kind == Kvec)
        return "another number of values";
    if (i->ntype != 1 || ptx_types[i->type[0]].bits > 64 ||
        ptx_types[i->type[0]].bits * n > 128)
        return "one type of at most 64 bits, 128 in all";
    return NULL;
}

static int polls(const Insn *i)
{
    return i->sem >= SMvolatile;
}

void run_ld(SlotGroup *f, const Insn *i)
{
    Type t = i->type[0];
    size_t each = (size_t)ptx_types[t].bits / 8;
    int n = vector_of(i);

    if (polls(i) && i->sem != SMrelease)
        give_way(f->t); /* what it looks for may be another's to write */
    const uint8_t *p = address(f, i, &i->o[1], space_of(i), each * (size_t)n);
    for (int k = 0; k < n; k++) {
        uint64_t v = 0;
        memcpy(&v, p + each * (size_t)k, each);
        if (ptx_types[t].kind == 's' && each < 8 && v >> (each * 8 - 1))
            v |= ~(uint64_t)0 << each * 8;
        put_value(f, n > 1 ? &i->o[0].part[k] : &i->o[0], v);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (space_of(i) == Sshared)
        proxy_loaded(f->t, shared_operand(f, &i->o[1]), each * (size_t)n);
}

void run_st(SlotGroup *f, const Insn *i)
{
    size_t each = (size_t)ptx_types[i->type[0]].bits / 8;
    int n = vector_of(i);
    Space s = space_of(i);
    uint8_t *p = address(f, i, &i->o[0], s, each * (size_t)n);

    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (int k = 0; k < n; k++) {
        uint64_t v = get_value(f, n > 1 ? &i->o[1].part[k] : &i->o[1]);
        memcpy(p + each * (size_t)k, &v, each);
    }
    if (s == Sshared)
        proxy_wrote(f->t, shared_operand(f, &i->o[0]), each * (size_t)n);
}

/* ---- operations in memory ------------------------------------------------ */

const char *check_atom(const Insn *i)
{
    int bits = i->ntype == 1 ? ptx_types[i->type[0]].bits : 0;
    int operands = i->row->run == run_red ? 2 : 3 + (i->how == Hcas);

    if (bits != 32 && bits != 64)
        return "one type of 32 or 64 bits";
    if (!i->how || i->how > Hdec || i->n != operands)
        return "an operation that is not known";
    return ptx_types[i->type[0]].kind == 'f' && i->how != Hadd
               ? "of reals only sums are known"
               : NULL;
}

static uint64_t real_sum(Type t, uint64_t old, uint64_t v)
{
    return t == Tf32 ? bits_f32(as_f32(old) + as_f32(v))
                     : bits_f64(as_f64(old) + as_f64(v));
}

static uint64_t changed(const Insn *i, uint64_t old, uint64_t v, uint64_t w)
{
    Type t = i->type[0];
    int is_signed = ptx_types[t].kind == 's', narrow = ptx_types[t].bits == 32;
    int64_t a = is_signed && narrow ? (int32_t)old : (int64_t)old;
    int64_t b = is_signed && narrow ? (int32_t)v : (int64_t)v;
    int less = is_signed ? a < b : old < v;

    if (ptx_types[t].kind == 'f')
        return real_sum(t, old, v);
    switch (i->how) {
    case Hadd: return old + v;
    case Hmin: return less ? old : v;
    case Hmax: return less ? v : old;
    case Hand: return old & v;
    case Hor: return old | v;
    case Hxor: return old ^ v;
    case Hexch: return v;
    case Hcas: return old == v ? w : old;
    case Hinc: return old >= v ? 0 : old + 1;
    default: return old == 0 || old > v ? v : old - 1;
    }
}

/* Other processes may write the same word. */
static uint64_t change(SlotGroup *f, const Insn *i, int at)
{
    size_t n = (size_t)ptx_types[i->type[0]].bits / 8;
    uint64_t mask = n == 8 ? ~(uint64_t)0 : 0xffffffffu;
    uint8_t *p = address(f, i, &i->o[at], space_of(i), n);
    uint64_t v = get_value(f, &i->o[at + 1]) & mask, old, now;
    uint64_t w = i->how == Hcas ? get_value(f, &i->o[at + 2]) & mask : 0;

    if (n == 8) {
        old = __atomic_load_n((uint64_t *)(void *)p, __ATOMIC_SEQ_CST);
        do
            now = changed(i, old, v, w);
        while (!__atomic_compare_exchange_n((uint64_t *)(void *)p, &old, now, 0,
                                            __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST));
        return old;
    }
    uint32_t narrow = __atomic_load_n((uint32_t *)(void *)p, __ATOMIC_SEQ_CST);
    do
        now = changed(i, narrow, v, w);
    while (!__atomic_compare_exchange_n((uint32_t *)(void *)p, &narrow,
                                        (uint32_t)now, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
    return narrow;
}

void run_atom(SlotGroup *f, const Insn *i)
{
    give_way(f->t);
    put_value(f, &i->o[0], change(f, i, 1));
}

void run_red(SlotGroup *f, const Insn *i)
{
    change(f, i, 0);
}

/* ---- from one kind of address to another --------------------------------- */

void run_cvta_to(SlotGroup *f, const Insn *i)
{
    uint64_t at = get_value(f, &i->o[1]);
    uint32_t in = 0;

    if (space_of(i) != Sglobal && !in_window((void *)(uintptr_t)at, &in))
        fail(EILLEGALADDRESS, "%#llx is not shared", (unsigned long long)at);
    put_value(f, &i->o[0], space_of(i) == Sglobal ? at : in);
}

void run_cvta(SlotGroup *f, const Insn *i)
{
    uint64_t at = get_value(f, &i->o[1]);

    if (space_of(i) != Sglobal)
        at = (uint64_t)(uintptr_t)(f->t->b->shared + at);
    put_value(f, &i->o[0], at);
}

/* The same place in the shared memory of another block of the cluster. */
void run_mapa(SlotGroup *f, const Insn *i)
{
    uint32_t at = (uint32_t)get_value(f, &i->o[1]),
             rank = (uint32_t)get_value(f, &i->o[2]);

    if (rank >= (uint32_t)machine.nblock)
        fail(EILLEGALADDRESS, "block %u of a cluster of %d", rank,
             machine.nblock);
    put_value(f, &i->o[0], (at & 0xffffff) | (rank + 1) << 24);
}
