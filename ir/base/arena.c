/* arena.c: memory by lifetime.
 *
 * An arena hands out zeroed memory from a chain of blocks and gives it back all
 * at once. Nothing is freed singly: a graph's arena dies with the graph, a
 * pass's scratch is reset when the pass ends, `forever` is never reset.
 *
 * Arenas are not shared between threads.
 *
 * Under AddressSanitizer what an arena forgets is poisoned until it is handed
 * out again, so that stale pointers show up in tests. */
#include <sys/mman.h>

#include "base.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

typedef struct ArenaBlock ArenaBlock;
struct ArenaBlock {
    ArenaBlock *next;  /* older */
    size_t size, used; /* bytes after the header */
    size_t pad;        /* keeps the data 16-byte aligned */
};

struct Arena {
    ArenaBlock *top;
    size_t used; /* bytes handed out since the last reset */
};

/* Bytes of a block with its header. Huge pages were measured twice: clearing
 * them, cold, took a quarter of a compile where pages that were given back a
 * moment ago, and still lie in the processor's caches, cost nothing. */
enum { FIRST = 64 << 10, LARGEST = 4 << 20, PAGE = 4096 };

static Arena eternal;
Arena *forever = &eternal;

/* The message itself needs memory; without any it is this one. */
static _Noreturn void out_of_memory(size_t bytes)
{
    static int before;

    if (!before++)
        err(0, "out of memory: %zu bytes asked for", bytes);
    if (before == 2 && err_hook)
        err_hook("error: out of memory\n");
    fputs("error: out of memory\n", stderr);
    exit(err_status);
}

static void *claim(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p)
        out_of_memory(bytes);
    return p;
}

Arena *arena_new(void)
{
    Arena *a = claim(sizeof *a);
    *a = (Arena){ 0 };
    return a;
}

/* All pages of a large block at once: by itself each is a fault, of which a
 * compile for many ranks has 200,000 (a tenth of its time). */
static void claim_pages(char *block, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    uintptr_t from = ((uintptr_t)block + PAGE - 1) / PAGE * PAGE;
    uintptr_t to = ((uintptr_t)block + bytes) / PAGE * PAGE;

    if (bytes >= LARGEST / 8)
        madvise((void *)from, to - from, MADV_POPULATE_WRITE);
#endif
    (void)block, (void)bytes;
}

/* Blocks double up to LARGEST; a big request gets a block of its own size. */
static void push_block(Arena *a, size_t bytes)
{
    size_t least = sizeof(ArenaBlock) + bytes;
    size_t total =
        a->top ? 2 * (a->top->size + sizeof(ArenaBlock)) : (size_t)FIRST;

    if (total > LARGEST)
        total = LARGEST;
    if (total < least)
        total = least;
    ArenaBlock *block = malloc(total);
    if (!block)
        block = claim(total = least);
    claim_pages((char *)block, total);
    *block = (ArenaBlock){ .next = a->top, .size = total - sizeof *block };
    a->top = block;
}

void *alloc(Arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        die("alloc: %zu bytes", bytes);
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->top || a->top->size - a->top->used < bytes)
        push_block(a, bytes);
    char *p = (char *)(a->top + 1) + a->top->used;
    a->top->used += bytes;
    a->used += bytes;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
    return memset(p, 0, bytes);
}

void arena_forget(void *p, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(p, bytes);
#endif
    (void)p, (void)bytes;
}

void arena_reset(Arena *a)
{
    while (a->top && a->top->next) {
        ArenaBlock *block = a->top;
        a->top = block->next;
        free(block);
    }
    a->used = 0;
    if (!a->top)
        return;
    arena_forget(a->top + 1, a->top->size);
    a->top->used = 0;
}

void arena_free(Arena *a)
{
    arena_reset(a);
    if (a->top)
        free(a->top);
    if (a == &eternal)
        a->top = 0;
    else
        free(a);
}

size_t arena_used(const Arena *a)
{
    return a->used;
}

/* Makes the last `bytes` handed out `more` longer, where they end at p and
 * their block has room. */
static int extend(Arena *a, const char *p, size_t bytes, size_t more)
{
    const char *end = a->top ? (char *)(a->top + 1) + a->top->used : NULL;

    if (!end || p + bytes != end || more % 16 ||
        a->top->size - a->top->used < more)
        return 0;
    alloc(a, more);
    return 1;
}

void *vec_grow(Arena *a, void *v, size_t elem)
{
    VecHead old = v ? ((VecHead *)v)[-1] : (VecHead){ 0 };
    size_t cap = old.cap;
    if (old.len == cap)
        cap = cap ? 2 * cap : 4;
    if (cap == old.cap)
        return v;
    if (v && extend(a, v, old.cap * elem, (cap - old.cap) * elem)) {
        ((VecHead *)v)[-1].cap = cap;
        return v;
    }
    VecHead *h = alloc(a, sizeof *h + cap * elem);
    *h = (VecHead){ old.len, cap };
    if (v)
        memcpy(h + 1, v, old.len * elem);
    return h + 1;
}
