/* nvrtc_test: every kernel of every model in models/ compiles to a cubin for
 * sm_90a, which needs NVRTC but no GPU. A text that several models share is
 * compiled once, with the first; kernels go through the runtime's cache.     */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/ir.h"
#include "../../runtime/runtime.h"

static const char *pleat;
static Table *seen;

static char *contents(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s = NULL;

    if (f && !fseek(f, 0, SEEK_END)) {
        *n = (size_t)ftell(f);
        rewind(f);
        s = alloc(forever, *n + 1);
        *n = fread(s, 1, *n, f);
    }
    if (f)
        fclose(f);
    return s;
}

/* The plan's kernels that no plan before had.                                */
static void keep_new(Plan *p)
{
    int n = 0;

    for (int i = 0; i < p->nkernel; i++) {
        const char *name = intern(p->kernel[i].name);
        if (table_get(seen, KEYP(name)))
            continue;
        *table_at(seen, KEYP(name)) = p;
        p->kernel[n++] = p->kernel[i];
    }
    p->nkernel = n;
}

static int model(const char *file, const char *precision, Pool *pool)
{
    const char *plan = "build/tests/nvrtc.plan";
    size_t n = 0;

    if (system(strf(forever, "%s compile models/%s target=cuda precision=%s "
                    "-o %s >%s.log", pleat, file, precision, plan, plan))) {
        printf("not ok - nvrtc: %s %s does not compile\n", file, precision);
        return 1;
    }
    char *text = contents(plan, &n);
    if (!text)
        return 1;
    Plan *p = plan_parse(forever, text, n, plan);
    int all = p->nkernel, bad = 0;
    keep_new(p);
    Cubin *c = nvrtc_all(forever, p, pool, "sm_90a");
    for (int i = 0; i < p->nkernel; i++) {
        bad += c[i].n < 4 || memcmp(c[i].image, "\177ELF", 4);
        free(c[i].image);
    }
    printf("%s - nvrtc: %s %s: %d kernels, %d new, %d bad\n",
           bad || !all ? "not ok" : "ok", file, precision, all, p->nkernel,
           bad);
    fflush(stdout);
    return bad || !all;
}

int main(void)
{
    DIR *d = opendir("models");
    int bad = 0;

    if (!dl_open(LIBnvrtc)) {
        printf("ok - nvrtc # SKIP %s\n", dl_why(LIBnvrtc));
        return 0;
    }
    pleat = getenv("PLEAT") ? getenv("PLEAT") : "build/pleat";
    seen = table_new(forever);
    Pool *pool = pool_open(2);
    for (struct dirent *e; d && (e = readdir(d)); ) {
        size_t n = strlen(e->d_name);
        if (n > 4 && !strcmp(e->d_name + n - 4, ".lua"))
            bad |= model(e->d_name, "bf16", pool);
    }
    if (d)
        closedir(d);
    bad |= model("tiny.lua", "fp32", pool);
    return bad;
}
