/* module.c: an image in this process: its kernels by name. */
#include "machine.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const Api emu_calls; /* launch.c */

/* The loader knows a library by its path: each has a new one. */
static void *open_image(const void *image, size_t size)
{
    static atomic_uint count;
    const char *dir = getenv("TMPDIR");
    char path[128];

    snprintf(path, sizeof path, "%.60s/emu-%ld-%u.so", dir ? dir : "/tmp",
             (long)getpid(), atomic_fetch_add(&count, 1));
    FILE *f = fopen(path, "wx");
    if (!f)
        return NULL;
    int ok = fwrite(image, 1, size, f) == size;
    ok &= fclose(f) == 0;
    void *lib = ok ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    unlink(path);
    return lib;
}

EmuModule *emu_load(const void *image, size_t size)
{
    if (size < 4 || memcmp(image, "\177ELF", 4))
        return NULL;
    void *lib = open_image(image, size);
    if (!lib)
        return NULL;
    const Api **api = dlsym(lib, "emu_api");
    EmuModule *m = calloc(1, sizeof *m);
    m->lib = lib;
    m->here = dlsym(lib, "emu_here");
    m->sites = dlsym(lib, "emu_sites");
    if (!api || !m->here || !m->sites) {
        dlclose(lib);
        free(m);
        return NULL;
    }
    *api = &emu_calls;
    return m;
}

void emu_unload(EmuModule *m)
{
    for (Site *s = m->sites; s->text; s++)
        ptx_free(s->program);
    while (m->kernels) {
        EmuKernel *next = m->kernels->next;
        free(m->kernels);
        m->kernels = next;
    }
    dlclose(m->lib);
    free(m);
}

EmuKernel *emu_kernel(EmuModule *m, const char *name)
{
    char symbol[256];

    for (EmuKernel *k = m->kernels; k; k = k->next)
        if (!strcmp(k->name, name))
            return k;
    snprintf(symbol, sizeof symbol, "emu_info_%s", name);
    const KernelInfo *info = dlsym(m->lib, symbol);
    if (!info)
        return NULL;
    EmuKernel *k = malloc(sizeof *k + strlen(name) + 1);
    *k = (EmuKernel){ .module = m, .info = info, .next = m->kernels };
    strcpy(k->name, name);
    return m->kernels = k;
}
