/* emurun.c: see emurun.h. All texts of a call are one unit. */
#include "emurun.h"
#include "emu.h"
#include "../../codegen/codegen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOSTARGS = 96, INTURN = 3 };

static EmuModule **modules;
static Table *kernels; /* interned name -> EmuKernel */
static Arena *mem;

/* ---- compiling ----------------------------------------------------------- */

/* A text with names and constants of its own, among others. */
static void put_apart(Text *t, const Group *k)
{
    const char *s = k->text;

    put(t, "namespace n_%s {\n%s\n}\n", k->instr.kernel, s);
    while ((s = strstr(s, "#define "))) {
        s += strlen("#define ");
        put(t, "#undef %.*s\n", (int)strcspn(s, " (\n"), s);
    }
}

static int compile(const char *text)
{
    static const char *const option[] = { "--gpu-architecture=sm_90a",
                                          "--fmad=false", "--std=c++17",
                                          "-default-device" };
    char *log = NULL;
    void *image = NULL;
    size_t size = 0;
    int bad = emu_compile(text, option, 4, &log, &image, &size);
    EmuModule *m = bad ? NULL : emu_load(image, size);

    for (char *s = log ? strtok(log, "\n") : NULL; s && bad;
         s = strtok(NULL, "\n"))
        printf("# %s\n", s);
    free(log);
    free(image);
    if (m)
        vec_push(mem, modules, m);
    return m != NULL;
}

/* Kernels that no call before had. */
static Group **distinct(Group *const *k, int n)
{
    Group **one = NULL;

    for (int i = 0; i < n; i++) {
        if (!k[i]->text || k[i]->instr.kind != Ikernel)
            continue;
        void **at = table_at(kernels, KEYP(intern(k[i]->instr.kernel)));
        if (!*at)
            vec_push(mem, one, k[i]);
        *at = k[i];
    }
    return one;
}

int emurun_compile(Arena *a, Group *const *k, int n)
{
    Text all = { .arena = a };
    int ok = 1;

    if (!mem) {
        mem = arena_new();
        kernels = table_new(mem);
    }
    Group **one = distinct(k, n);
    put(&all, "%s", T_cuda.prelude);
    for (size_t i = 0; i < vec_len(one); i++)
        put_apart(&all, one[i]);
    if (!compile(all.s))
        return 0;
    for (size_t i = 0; i < vec_len(one); i++) {
        const char *name = intern(one[i]->instr.kernel);
        EmuKernel *f = emu_kernel(modules[vec_len(modules) - 1], name);
        *table_at(kernels, KEYP(name)) = f;
        ok &= f != NULL;
    }
    return ok;
}

void emurun_close(void)
{
    for (size_t m = 0; m < vec_len(modules); m++)
        emu_unload(modules[m]);
    modules = NULL;
    if (mem)
        arena_free(mem);
    mem = NULL;
}

/* ---- memory of a launch -------------------------------------------------- */

enum { ALIGN = 256, PAGE = 4096 };

/* An argument's copy, aligned as the runtime's buffers are; there is nothing
 * before the page it begins in and behind the one it ends in. */
typedef struct Room {
    uint8_t *map, *at;
    size_t mapped, n;
} Room;

static Room room[MOSTARGS];
static int nroom;

static int in_rooms(const void *p, size_t n)
{
    const uint8_t *b = p;

    for (int i = 0; i < nroom; i++)
        if (b >= room[i].at && b + n <= room[i].at + room[i].n)
            return 1;
    return 0;
}

static Room take(size_t n)
{
    Room r = { .n = n };
    size_t whole = (n + ALIGN - 1) / ALIGN * ALIGN;
    size_t pages = (whole + PAGE - 1) / PAGE * PAGE;

    r.mapped = pages + 2 * PAGE;
    r.map = mmap(NULL, r.mapped, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r.map == MAP_FAILED)
        die("emurun: no memory");
    mprotect(r.map, PAGE, PROT_NONE);
    mprotect(r.map + PAGE + pages, PAGE, PROT_NONE);
    memset(r.map + PAGE, 0xff, pages);
    r.at = r.map + PAGE + pages - whole;
    return r;
}

static int same_as(void *const *buf, int i)
{
    int j = 0;

    while (buf[j] != buf[i])
        j++;
    return j;
}

/* Buffers to memory of their own; those that are one stay one. */
static void bring(void *const *buf, const size_t *bytes, int n, void **arg)
{
    nroom = n;
    for (int i = 0; i < n; i++) {
        room[i] = (Room){ 0 };
        arg[i] = NULL;
        if (!buf[i])
            continue;
        if (same_as(buf, i) == i) {
            room[i] = take(bytes[i]);
            memcpy(room[i].at, buf[i], bytes[i]);
        }
        arg[i] = room[same_as(buf, i)].at;
    }
}

static void take_back(void *const *buf, const size_t *bytes, int n)
{
    for (int i = 0; i < n; i++)
        if (room[i].map) {
            memcpy(buf[i], room[i].at, bytes[i]);
            munmap(room[i].map, room[i].mapped);
        }
    nroom = 0;
}

/* What lies behind an argument in a room stays as it is. */
static int strays(const Group *k, void *const *buf, const size_t *bytes)
{
    int n = 0;

    for (int i = 0; i < k->narg; i++) {
        size_t at = bytes[i] - RUNGUARD;
        n += room[i].map && memcmp((const uint8_t *)room[i].at + at,
                                   (const uint8_t *)buf[i] + at, RUNGUARD) != 0;
    }
    if (n)
        printf("# %s writes behind an argument\n", k->instr.kernel);
    return n;
}

/* ---- running ------------------------------------------------------------- */

int emurun_launch(const Group *k, void *const *buf, const size_t *bytes,
                  const int64_t *iv)
{
    int nbuf = k->narg + (k->scratch > 0), n = nbuf + k->instr.nword;
    void *arg[MOSTARGS], *param[MOSTARGS];
    const Launch *l = &k->instr.launch;
    unsigned grid[3] = { (unsigned)l->items, (unsigned)l->y, (unsigned)l->z };
    int64_t number = 0, launches = l->then ? 2 * l->pairs : 1;
    unsigned block[3] = { (unsigned)l->threads, 1, 1 };
    EmuKernel *f = table_get(kernels, KEYP(intern(k->instr.kernel)));

    if (!f || n >= MOSTARGS)
        die("emurun: no kernel %s, or %d arguments", k->instr.kernel, n);
    unsigned first = grid[0];
    int error = 0;
    if (l->persistent && first > INTURN) /* few have more work */
        first = INTURN;
    if (!grid[0] || !grid[1] || !grid[2])
        return 0;
    bring(buf, bytes, nbuf, arg);
    for (int i = nbuf; i < n; i++)
        memcpy(&arg[i], &iv[i - nbuf], sizeof *arg);
    for (int i = 0; i < n; i++)
        param[i] = &arg[i];
    param[n] = &number;
    emu_check = in_rooms;
    for (; number < launches && !error; number++) {
        grid[0] = number % 2 ? (unsigned)l->then : first;
        error = emu_launch(f, grid, block, (unsigned)l->shared, param);
    }
    emu_check = NULL;
    int stray = strays(k, buf, bytes);
    take_back(buf, bytes, nbuf);
    return error ? error : stray ? -1 : 0;
}

void emurun_step(void *ctx, const Group *k, void *const *buf,
                 const size_t *bytes, const int64_t *iv)
{
    (void)ctx;
    if (k->instr.kind != Ikernel) {
        host_step(NULL, k, buf, bytes, iv);
        return;
    }
    int error = emurun_launch(k, buf, bytes, iv);
    if (!error)
        return;
    printf("not ok - %s: error %d\n", k->instr.kernel, error);
    exit(1);
}
