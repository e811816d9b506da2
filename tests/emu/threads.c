/* threads.c: threads of blocks as contexts of one thread of this process. A
 * thread runs until it waits; the next one is chosen by the launch's order.
 * When none can go on, something asynchronous lands; when there is nothing on
 * its way either, all wait for each other for ever, and that is said. */
#include "machine.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Frames of a sanitizer are larger. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { STACK = (1 << 20) + 4096 };
#else
enum { STACK = (256 << 10) + 4096 };
#endif
/* Stacks begin at other offsets: at one, a cache would keep few of them. */
enum { SHIFTS = 12, SHIFT = 320 };
enum { ALTSTACK = 64 << 10 };
enum { PATIENCE = 120, NAP = 50000 }; /* s, ns */

Machine machine;
static jmp_buf between;

/* ---- contexts ------------------------------------------------------------ */

#if defined __x86_64__
/* Saves what a call keeps, and goes on where `to` was saved. */
void emu_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n"
        "    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n"
        "    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emu_switch, .-emu_switch\n");

/* Six registers, then where it begins; the stack is as after a call. */
static void *new_context(char *stack, size_t size, void (*begin)(void))
{
    void **sp = (void **)(stack + size);

    *--sp = NULL; /* to whom it would return */
    memcpy(--sp, &begin, sizeof begin);
    for (int i = 0; i < 6; i++)
        *--sp = NULL;
    return sp;
}
#else
#include <ucontext.h>
/* The library's contexts: a new one lies at the end of its stack, one that is
 * left on top of it. */
static void *new_context(char *stack, size_t size, void (*begin)(void))
{
    ucontext_t *c = (ucontext_t *)(stack + size) - 1;

    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = size - sizeof *c;
    makecontext(c, begin, 0);
    return c;
}

static void emu_switch(void **from, void *to)
{
    ucontext_t here;

    *from = &here;
    swapcontext(&here, to);
}
#endif

/* ---- which is next ------------------------------------------------------- */

uint64_t chance(void)
{
    uint64_t *s = &machine.random;

    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s * 0x2545f4914f6cdd1d;
}

static void set_bit(uint64_t *set, int i, int on)
{
    if (on)
        set[i / 64] |= (uint64_t)1 << (i % 64);
    else
        set[i / 64] &= ~((uint64_t)1 << (i % 64));
}

/* The first member at or behind `at`, or before and at it; -1: none. */
static int next_of(const uint64_t *set, int n, int at)
{
    uint64_t word = set[at / 64] & ~(uint64_t)0 << (at % 64);

    for (int k = 0, w = at / 64, words = (n + 63) / 64; k <= words; k++) {
        if (word)
            return w * 64 + __builtin_ctzll(word);
        w = w + 1 == words ? 0 : w + 1;
        word = set[w];
    }
    return -1;
}

static int last_of(const uint64_t *set, int n, int at)
{
    uint64_t word = set[at / 64] & ~(uint64_t)0 >> (63 - at % 64);

    for (int k = 0, w = at / 64, words = (n + 63) / 64; k <= words; k++) {
        if (word)
            return w * 64 + 63 - __builtin_clzll(word);
        w = w ? w - 1 : words - 1;
        word = set[w];
    }
    return -1;
}

static int choose(const uint64_t *set)
{
    int n = machine.nthread;

    if (machine.order == 1) {
        int i = last_of(set, n, machine.at);
        machine.at = i > 0 ? i - 1 : n - 1;
        return i;
    }
    if (machine.order > 1)
        machine.at = (int)(chance() % (uint64_t)n);
    int i = next_of(set, n, machine.at);
    machine.at = i + 1 < n ? i + 1 : 0;
    return i;
}

/* ---- ends ---------------------------------------------------------------- */

static void say_where(void)
{
    const Thread *t = machine.now;

    fprintf(stderr, "emu: %s: ", machine.k->name);
    if (!t)
        return;
    fprintf(stderr, "block %u,%u,%u thread %d: ", t->b->at.x, t->b->at.y,
            t->b->at.z, t->id);
    if (t->insn)
        fprintf(stderr, "%s: ", t->insn->text);
}

/* From a thread, or from between two. */
static _Noreturn void leave(void)
{
    void *never;

    if (machine.now)
        emu_switch(&never, machine.home);
    longjmp(between, 1);
}

void fail(int error, const char *format, ...)
{
    va_list ap;

    say_where();
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    machine.error = error;
    leave();
}

/* Memory that is not there; on its own stack. */
static void on_fault(int sig, siginfo_t *s, void *context)
{
    (void)context;
    say_where();
    fprintf(stderr, "%s %p\n",
            sig == SIGFPE ? "arithmetic fault at" : "no memory at", s->si_addr);
    machine.error = sig == SIGFPE ? EFAILED : EILLEGALADDRESS;
    leave();
}

/* ---- stacks -------------------------------------------------------------- */

static char *stacks; /* one behind the other, a page without access each */
static int nstack, spare[MAXALL], nspare;
static int own; /* whose context begins next */

static int take_stacks(int n)
{
    if (n > nstack) {
        threads_free();
        void *p = mmap(NULL, (size_t)n * STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return 0;
        stacks = p;
        nstack = n;
        for (int i = 0; i < n; i++)
            mprotect(stacks + (size_t)i * STACK, 4096, PROT_NONE);
    }
    for (nspare = 0; nspare < nstack; nspare++)
        spare[nspare] = nstack - 1 - nspare;
    return 1;
}

void threads_free(void)
{
    if (stacks)
        munmap(stacks, (size_t)nstack * STACK);
    stacks = NULL;
    nstack = 0;
}

/* ---- one after another --------------------------------------------------- */

static void begin(void);

/* Who is next, as the one that runs; null: no one can. */
static Thread *next_thread(void)
{
    int i = machine.alive && !machine.error ? choose(machine.ready) : -1;
    Thread *t = i < 0 ? NULL : &machine.thread[i];

    machine.now = t;
    if (t) {
        machine.k->module->here->thread = t->place;
        machine.k->module->here->block = t->b->at;
    }
    return t;
}

/* A sanitizer still has the frames there that were left for good. */
static void forget_frames(char *stack)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stack, STACK);
#else
    (void)stack;
#endif
}

static void *context_of(Thread *t)
{
    if (!t->sp) {
        own = spare[--nspare];
        char *stack = stacks + (size_t)own * STACK;
        forget_frames(stack);
        t->sp = new_context(stack, STACK - (size_t)own % SHIFTS * SHIFT, begin);
    }
    return t->sp;
}

/* From t to the next one, until t's turn comes. */
static void pause_thread(Thread *t)
{
    Thread *next = next_thread();

    if (next != t)
        emu_switch(&t->sp, next ? context_of(next) : machine.home);
}

/* Threads that have not begun run on the stack of one that has ended. */
static void begin(void)
{
    int stack = own;
    void *never;

    for (;;) {
        Thread *t = machine.now;
        machine.k->info->call(machine.params);
        t->over = 1;
        t->insn = NULL;
        set_bit(machine.ready, t->index, 0);
        thread_over(t);
        Thread *next = next_thread();
        if (next && !next->sp)
            continue;
        spare[nspare++] = stack;
        emu_switch(&never, next ? next->sp : machine.home);
    }
}

/* ---- waiting ------------------------------------------------------------- */

void wait_on(Thread *t, const void *on)
{
    t->on = on;
    set_bit(machine.ready, t->index, 0);
    pause_thread(t);
}

void wake_thread(Thread *t, const void *on)
{
    if (t->on != on)
        return;
    t->on = NULL;
    set_bit(machine.ready, t->index, 1);
}

void wake(const void *on)
{
    for (int i = 0; i < machine.nthread; i++)
        wake_thread(&machine.thread[i], on);
}

void give_way(Thread *t)
{
    if (machine.order < 2 || chance() % 2) { /* else for a moment only */
        set_bit(machine.ready, t->index, 0);
        set_bit(machine.idle, t->index, 1);
    }
    pause_thread(t);
}

/* ---- running ------------------------------------------------------------- */

/* All that wait, by what they are in. */
static void say_deadlock(void)
{
    fprintf(stderr, "emu: %s: all threads wait:\n", machine.k->name);
    for (int i = 0; i < machine.nthread;) {
        const Thread *t = &machine.thread[i];
        int n = 1;
        while (i + n < machine.nthread && t[n].insn == t->insn &&
               t[n].on == t->on && t[n].b == t->b)
            n++;
        if (!t->over)
            fprintf(stderr, "emu:   block %u,%u,%u threads %d..%d: %s\n",
                    t->b->at.x, t->b->at.y, t->b->at.z, t->id, t->id + n - 1,
                    t->insn ? t->insn->text : "?");
        i += n;
    }
    machine.error = ETIMEOUT;
}

/* Threads that poll go on when no other can: something that lands may be what
 * they look for, or another process writes it. */
static int poll_again(time_t *since)
{
    time_t now = time(NULL);
    int any = 0;

    for (int i = 0; i < MAXALL / 64; i++) {
        machine.ready[i] |= machine.idle[i];
        any |= machine.idle[i] != 0;
        machine.idle[i] = 0;
    }
    if (!*since)
        *since = now;
    else
        nanosleep(&(struct timespec){ 0, NAP }, NULL);
    return any && now - *since < PATIENCE;
}

static void run_all(void)
{
    static time_t idle; /* since when threads only poll */

    idle = 0;
    if (setjmp(between))
        return;
    while (machine.alive && !machine.error) {
        Thread *t = next_thread();
        if (t) {
            emu_switch(&machine.home, context_of(t));
            machine.now = NULL;
        } else if (copies_land())
            idle = 0;
        else if (!poll_again(&idle)) {
            say_deadlock();
            return;
        }
    }
}

int threads_run(void)
{
    static char alt[ALTSTACK];
    stack_t was, now = { .ss_sp = alt, .ss_size = sizeof alt };
    struct sigaction old[3],
        act = { .sa_sigaction = on_fault,
                .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
    static const int sig[3] = { SIGSEGV, SIGBUS, SIGFPE };

    sigaltstack(&now, &was);
    for (int i = 0; i < 3; i++)
        sigaction(sig[i], &act, &old[i]);
    run_all();
    for (int i = 0; i < 3; i++)
        sigaction(sig[i], &old[i], NULL);
    sigaltstack(&was, NULL);
    return machine.error;
}

int threads_start(void)
{
    if (!take_stacks(machine.nthread))
        return 0;
    memset(machine.ready, 0, sizeof machine.ready);
    memset(machine.idle, 0, sizeof machine.idle);
    machine.alive = machine.nthread;
    machine.at = machine.order == 1 ? machine.nthread - 1 : 0;
    for (int i = 0; i < machine.nthread; i++)
        set_bit(machine.ready, i, 1);
    return 1;
}
