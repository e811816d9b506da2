/* emurun.c: see emurun.h. Texts of loops and rows are one unit; those with
 * constants of their own (products, attention) are a unit each. */
#include "emurun.h"
#include "emu.h"
#include "../../codegen/codegen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOSTARGS = 96 };

static EmuModule **modules;
static Table *kernels; /* interned name -> EmuKernel */
static Arena *mem;

/* ---- compiling ----------------------------------------------------------- */

static int has_own_unit(const Group *k)
{
    return k->fam == FAMgmm || k->fam == FAMgmmw || k->fam == FAMattn ||
           k->fam == FAMattnback;
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
        if (!k[i]->text || k[i]->step.kind != Skernel)
            continue;
        void **at = table_at(kernels, KEYP(intern(k[i]->step.kernel)));
        if (!*at)
            vec_push(mem, one, k[i]);
        *at = k[i];
    }
    return one;
}

int emurun_compile(Arena *a, Group *const *k, int n)
{
    Text all = { .arena = a };
    int ok = 1, first;

    if (!mem) {
        mem = arena_new();
        kernels = table_new(mem);
    }
    first = (int)vec_len(modules);
    Group **one = distinct(k, n);
    put(&all, "%s", T_cuda.prelude);
    for (size_t i = 0; i < vec_len(one); i++)
        if (has_own_unit(one[i]))
            ok &= compile(strf(a, "%s%s", T_cuda.prelude, one[i]->text));
        else
            put(&all, "%s\n", one[i]->text);
    ok &= compile(all.s);
    for (size_t i = 0; i < vec_len(one); i++) {
        const char *name = intern(one[i]->step.kernel);
        EmuKernel *f = NULL;
        for (size_t m = (size_t)first; m < vec_len(modules) && !f; m++)
            f = emu_kernel(modules[m], name);
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

/* ---- running ------------------------------------------------------------- */

/* iv: blocks threads blocks.y blocks.z bytes, then what depends on the rank. */
static void launch(const Group *k, void *const *buf, const int64_t *iv)
{
    int nbuf = k->narg + (k->scratch > 0), n = nbuf + k->step.nint - 5;
    void *arg[MOSTARGS], *param[MOSTARGS];
    unsigned grid[3] = { (unsigned)iv[0], (unsigned)iv[2], (unsigned)iv[3] };
    unsigned block[3] = { (unsigned)iv[1], 1, 1 };
    EmuKernel *f = table_get(kernels, KEYP(intern(k->step.kernel)));

    if (!f || n > MOSTARGS)
        die("emurun: no kernel %s, or %d arguments", k->step.kernel, n);
    if (iv[3] < 0) { /* blocks take work in turns: few have more of it */
        grid[0] = grid[0] < 3 ? grid[0] : 3;
        grid[2] = 1;
    }
    for (int i = 0; i < nbuf; i++)
        arg[i] = buf[i];
    for (int i = nbuf; i < n; i++)
        memcpy(&arg[i], &iv[i - nbuf + 5], sizeof *arg);
    for (int i = 0; i < n; i++)
        param[i] = &arg[i];
    if (!grid[0] || !grid[1] || !grid[2])
        return;
    int error = emu_launch(f, grid, block, (unsigned)iv[4], param);
    if (error) {
        printf("not ok - %s: error %d\n", k->step.kernel, error);
        exit(1);
    }
}

void emurun_step(void *ctx, const Group *k, void *const *buf,
                 const size_t *bytes, const int64_t *iv)
{
    (void)ctx;
    if (k->step.kind == Skernel)
        launch(k, buf, iv);
    else
        host_step(NULL, k, buf, bytes, iv);
}
