/* arena.c: arenas, memory with one lifetime.
 *
 * An arena allocates zeroed memory from a chain of blocks and frees all of it
 * at once: a graph's arena is freed with the graph, a pass's scratch is reset
 * at the end of the pass, `forever` is never reset.
 *
 * Arenas are not shared between threads.
 *
 * Under AddressSanitizer the memory of a reset arena is poisoned until it is
 * allocated again, so that tests find stale pointers. */
#include <sys/mman.h>

#include "base.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

typedef struct ArenaBlock ArenaBlock;
struct ArenaBlock {
    ArenaBlock *next;  /* older block */
    size_t size, used; /* bytes after the header */
    size_t pad;        /* keeps the data 16-byte aligned */
};

struct Arena {
    ArenaBlock *top;
    size_t used; /* bytes allocated since the last reset */
};

/* Bytes of a block with its header. Huge pages are slower: they are cleared
 * cold, while recently freed small pages are still in the processor's
 * caches. */
enum { FIRST = 64 << 10, LARGEST = 4 << 20, PAGE = 4096 };

static Arena eternal;
Arena *forever = &eternal;

/* Prints a fixed message, since formatting one needs memory. */
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

/* Maps all pages of a large block at once, which saves a page fault for
 * each. */
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

/* Adds a block. Sizes double up to LARGEST; a larger request gets a block of
 * its size. */
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

/* Extends the last allocation of `bytes` at p by `more` if its block has room.
 * Returns 0 if it has none. */
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
