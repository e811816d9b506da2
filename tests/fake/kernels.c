/* kernels.c: NVRTC, modules and launches. A compiled kernel is its text behind
 * a head: the emulator (tests/emu) gets it when it runs (builds.c). */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "builds.h"

enum { MAXARGS = 64, NAME = 128, MAXKERNELS = 8, WARP = 32 };
enum { REFUSED = 6, NOFUNCTION = 500, SHAREDSIZE = 8 };
enum { PRIORITY = 8 };
enum { BLOCK = 1024, GRID = 65535, SHARED = 48 << 10, MOSTSHARED = 227 << 10 };

typedef struct Signature {
    char name[NAME];
    int args;    /* of 8 bytes each */
    int threads; /* __launch_bounds__, or 0 */
} Signature;

typedef struct Head {
    char magic[8];
    uint64_t bytes; /* of the text behind, its end too */
} Head;

static const char magic[8] = "fakegpu";

/* ---- signatures ---------------------------------------------------------- */

static const char *skip(const char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    return s;
}

static const char *after_parens(const char *s, int *commas)
{
    int depth = 0;

    *commas = 0;
    do {
        depth += *s == '(' || *s == '<' || *s == '{';
        depth -= *s == ')' || *s == '>' || *s == '}';
        *commas += *s == ',' && depth == 1;
    } while (*s++ && depth);
    return s;
}

/* "__global__ void __launch_bounds__(n[, m]) name(a, b)", with any words in
 * place of the first, or none. */
static const char *read_signature(const char *s, Signature *k)
{
    static const char bounds[] = "__launch_bounds__(";
    int n;

    *k = (Signature){ .threads = 0 };
    s = skip(skip(s) + strlen("void"));
    while (!strncmp(s, "__", 2)) {
        if (!strncmp(s, bounds, sizeof bounds - 1))
            k->threads = atoi(s + sizeof bounds - 1);
        s = skip(after_parens(s + strcspn(s, "("), &n));
    }
    size_t len = strcspn(s, " \n(");
    snprintf(k->name, NAME, "%.*s", (int)len, s);
    s = skip(s + len);
    int none = *skip(s + 1) == ')';
    s = after_parens(s, &n);
    k->args = none ? 0 : n + 1;
    return s;
}

static int read_signatures(const char *s, Signature k[MAXKERNELS])
{
    static const char word[] = "__global__";
    int n = 0;

    while ((s = strstr(s, word)) && n < MAXKERNELS)
        s = read_signature(s + sizeof word - 1, &k[n++]);
    return n;
}

/* ---- NVRTC --------------------------------------------------------------- */

typedef struct Program {
    char *text, *log;
    char *image; /* with its head */
    size_t n;
} Program;

/* No real version, so that no cache has these images. */
int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = idle() ? 98 : 99;
    return 0;
}

int nvrtcCreateProgram(Program **prog, const char *src, const char *name, int n,
                       const char *const *headers, const char *const *names)
{
    (void)name, (void)n, (void)headers, (void)names;
    *prog = calloc(1, sizeof **prog);
    (*prog)->text = strdup(src);
    return 0;
}

int nvrtcCompileProgram(Program *p, int n, const char *const *options)
{
    Head h = { .bytes = strlen(p->text) + 1 };

    (void)n, (void)options;
    if (refuses(p->text)) {
        p->log = strdup("k.cu(7): error: it is refused\n");
        return REFUSED;
    }
    memcpy(h.magic, magic, sizeof magic);
    p->n = sizeof h + h.bytes;
    p->image = malloc(p->n);
    memcpy(p->image, &h, sizeof h);
    memcpy(p->image + sizeof h, p->text, h.bytes);
    return 0;
}

int nvrtcGetProgramLogSize(const Program *p, size_t *n)
{
    *n = p->log ? strlen(p->log) + 1 : 1;
    return 0;
}

int nvrtcGetProgramLog(const Program *p, char *log)
{
    strcpy(log, p->log ? p->log : "");
    return 0;
}

int nvrtcGetCUBINSize(const Program *p, size_t *n)
{
    *n = p->n;
    return 0;
}

int nvrtcGetCUBIN(const Program *p, char *cubin)
{
    memcpy(cubin, p->image, p->n);
    return 0;
}

int nvrtcDestroyProgram(Program **p)
{
    free((*p)->text);
    free((*p)->log);
    free((*p)->image);
    free(*p);
    *p = NULL;
    return 0;
}

/* ---- modules ------------------------------------------------------------- */

typedef struct Module {
    Signature kernel[MAXKERNELS];
    int kernels;
    Source *source; /* null: of a GPU that computes nothing */
} Module;

typedef struct Function {
    Signature s;
    Source *source;
    EmuKernel *emu;    /* once it has run */
    int64_t shared;    /* most it may ask for when launched */
    int number, asked; /* for more than a kernel has unasked */
} Function;

static int ours(const void *p, size_t n)
{
    return is_device(p, n);
}

/* Are there directives among the parameters of its kernel? */
static int is_conditional(const char *text)
{
    const char *s = strstr(text, "__global__");

    return s && strcspn(s, "#") < strcspn(s, "{");
}

int cuModuleLoadData(Module **m, const void *image)
{
    const Head *h = image;
    const char *text = (const char *)(h + 1);
    char *flat = NULL;

    if (memcmp(h->magic, magic, sizeof magic))
        return wrong(INVALID, "an image that is not of this compiler");
    *m = calloc(1, sizeof **m);
    if (is_conditional(text))
        flat = emu_flatten(text);
    (*m)->kernels = read_signatures(flat ? flat : text, (*m)->kernel);
    free(flat);
    emu_check = ours;
    device_lock();
    (*m)->source = idle() ? NULL : source_of(text);
    device_unlock();
    return 0;
}

int cuModuleGetFunction(Function **fn, Module *m, const char *name)
{
    for (int i = 0; i < m->kernels; i++) {
        if (strcmp(m->kernel[i].name, name))
            continue;
        *fn = calloc(1, sizeof **fn);
        **fn = (Function){ .s = m->kernel[i],
                           .source = m->source,
                           .shared = SHARED,
                           .number = kernel_loaded() };
        return 0;
    }
    return NOFUNCTION;
}

int cuFuncSetAttribute(Function *f, int attribute, int value)
{
    if (attribute != SHAREDSIZE)
        return 0;
    if (value < 0 || value > MOSTSHARED)
        return wrong(INVALID, "%s asks for %d bytes of shared memory",
                     f->s.name, value);
    f->shared = value;
    f->asked = 1;
    return 0;
}

/* ---- launches ------------------------------------------------------------ */

typedef struct Launch {
    Function *f;
    unsigned grid[3], block[3], shared;
    uint64_t arg[MAXARGS];
} Launch;

static int emulate(Launch *l)
{
    Function *f = l->f;
    EmuModule *m = f->emu ? NULL : source_built(f->source);
    void *param[MAXARGS];

    if (m)
        f->emu = emu_kernel(m, f->s.name);
    for (int i = 0; i < f->s.args; i++)
        param[i] = &l->arg[i];
    if (f->emu)
        emu_allow(f->emu, f->asked ? MOSTSHARED : SHARED);
    int e = f->emu ? emu_launch(f->emu, l->grid, l->block, l->shared, param)
                   : NOFUNCTION;
    return e ? wrong(e, "kernel %s fails with %d", f->s.name, e) : 0;
}

static Moved launch_go(const void *what, Run *r)
{
    Launch l = *(const Launch *)what;

    (void)r;
    if (!peers_come(l.arg, l.f->s.args))
        return BLOCKED;
    kernel_runs(l.f->number, l.arg, l.f->s.args);
    if (!faulted && l.f->source)
        faulted = emulate(&l);
    pass_time(1e-3);
    return DONE;
}

/* What a GPU does not take. */
static int too_large(const Launch *l)
{
    const Function *f = l->f;
    unsigned n = l->block[0] * l->block[1] * l->block[2];

    for (int i = 0; i < 3; i++)
        if (!l->grid[i] || !l->block[i] || (i && l->grid[i] > GRID))
            return wrong(INVALID,
                         "%s: a grid of %u x %u x %u blocks of %u x %u x %u",
                         f->s.name, l->grid[0], l->grid[1], l->grid[2],
                         l->block[0], l->block[1], l->block[2]);
    if (n > BLOCK || (f->s.threads && n > (unsigned)f->s.threads))
        return wrong(TOOLARGE, "%s: %u threads", f->s.name, n);
    if (l->shared > f->shared)
        return wrong(INVALID, "%s: %u bytes of shared memory, %lld allowed",
                     f->s.name, l->shared, (long long)f->shared);
    return 0;
}

int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz,
                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   Stream *s, void **params, void **extra)
{
    Launch *l = malloc(sizeof *l);
    int e = 0;

    *l = (Launch){ f, { gx, gy, gz }, { bx, by, bz }, shared, { 0 } };
    device_lock();
    if (extra || f->s.args > MAXARGS)
        e = wrong(INVALID, "%s: %d arguments", f->s.name, f->s.args);
    for (int i = 0; i < f->s.args && !e; i++) {
        memcpy(&l->arg[i], params[i], sizeof l->arg[i]);
        l->arg[i] = local_address(l->arg[i]);
    }
    e = e ? e : too_large(l);
    if (e)
        free(l);
    else
        e = enqueue(s, launch_go, free, l);
    device_unlock();
    return e;
}

typedef struct HostFunc {
    void (*f)(void *);
    void *data;
} HostFunc;

/* It may call nothing of the driver: that would wait for itself. */
static Moved host_go(const void *what, Run *r)
{
    const HostFunc *h = what;

    (void)r;
    if (!idle())
        h->f(h->data);
    return DONE;
}

int cuLaunchHostFunc(Stream *s, void f(void *), void *data)
{
    HostFunc *h = malloc(sizeof *h);

    *h = (HostFunc){ f, data };
    device_lock();
    int e = enqueue(s, host_go, free, h);
    device_unlock();
    return e;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = LEAST;
    *greatest = GREATEST;
    return 0;
}

typedef struct Attribute {
    int id, pad, value;
    char room[60];
} Attribute;

typedef struct Config {
    unsigned grid[3], block[3], shared;
    Stream *stream;
    const Attribute *attribute;
    unsigned n;
} Config;

/* A priority only says what starts first, and no result depends on it. */
int cuLaunchKernelEx(const Config *c, Function *f, void **params, void **extra)
{
    for (unsigned i = 0; i < c->n; i++) {
        const Attribute *a = &c->attribute[i];
        if (a->id != PRIORITY || a->value > LEAST || a->value < GREATEST)
            return wrong(INVALID, "%s: attribute %d of %d", f->s.name, a->id,
                         a->value);
    }
    return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0],
                          c->block[1], c->block[2], c->shared, c->stream,
                          params, extra);
}
