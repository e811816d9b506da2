/* nvrtc_test: every kernel of every model in models/ compiles to a cubin for
 * sm_90a, which needs NVRTC but no GPU: all programs of a plan, in bf16, and
 * other precisions, folds, routes where they make other kernels. What needs no
 * architecture's own instructions compiles for sm_100a too. A text that several
 * plans share is compiled once; kernels go through the runtime's cache. Every
 * 24th text, or with PLEAT_ALL=1 all: cold, they take minutes. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/graph/graph.h"
#include "../../runtime/runtime.h"

/* All are alike; of one model all are there, for what takes in all layers. */
enum { LAYERS = 8 };

static const char *pleat;
static Table *seen;

typedef struct Row {
    const char *file, *keys, *arch;
    int layers; /* of a model that has ten or more */
} Row;

/* clang-format off */
static const Row rows[] = {
    { "tiny.lua", "precision=fp32", "sm_90a", LAYERS },
    { "tiny.lua", "precision=fp64", "sm_90a", LAYERS },
    { "tiny.lua", "precision=fp32 world=4 fold.pp=2 fold.vpp=2 "
      "fold.schedule=interleaved fold.zero=3 route.policy=padded", "sm_90a", LAYERS },
    { "mixtral.lua", "world=8 fold.pp=2 fold.tp=2 fold.etp=2 fold.ep=2 "
      "route.policy=capacity", "sm_90a", LAYERS },
    { "qwen3_moe.lua", "world=8 fold.cp=2 fold.tp=2 fold.ep=4 fold.zero=2 "
      "route.balance=forced route.dispatcher=peer", "sm_90a", LAYERS },
    { "mixtral.lua", "precision=fp8 precision.wgrad=all world=8 fold.ep=8 "
      "route.clones=1", "sm_90a", LAYERS },
    { "qwen3_moe.lua", "precision=bf16", "sm_90a", 48 },
    { "../tests/models/blocks.lua", "precision=bf16", "sm_90a", LAYERS },
    { "tiny.lua", "precision=fp32", "sm_100a", LAYERS },
};
/* clang-format on */

/* The plan's kernels that no plan before had, for this architecture; of them
 * those whose turn it is. */
static void keep_new(Plan *p, const char *arch)
{
    static int turn;
    int n = 0, each = getenv("PLEAT_ALL") ? 1 : 24;

    for (int i = 0; i < p->nkernel; i++) {
        const char *name =
            intern(strf(forever, "%s %s", arch, p->kernel[i].name));
        if (table_get(seen, KEYP(name)))
            continue;
        *table_at(seen, KEYP(name)) = p;
        if (turn++ % each == 0)
            p->kernel[n++] = p->kernel[i];
    }
    p->nkernel = n;
}

static int model(const Row *r, Pool *pool)
{
    const char *plan = "build/tests/nvrtc.plan", *lua = "build/tests/nvrtc.lua";
    size_t n = 0;

    if (system(strf(forever,
                    "sed -E 's/^(local layers[^=]*= )[0-9]{2,}/\\1%d/' "
                    "models/%s >%s && %s compile %s target=cuda "
                    "train.recompute=1 %s -o %s >%s.log 2>&1",
                    r->layers, r->file, lua, pleat, lua, r->keys, plan,
                    plan))) {
        printf("not ok - nvrtc: %s %s does not compile\n", r->file, r->keys);
        return 1;
    }
    char *text = file_read(forever, plan, &n);
    if (!text)
        return 1;
    Plan *p = plan_parse(forever, text, n, plan);
    int all = p->nkernel, bad = 0;
    keep_new(p, r->arch);
    Cubin *c = nvrtc_all(forever, p, pool, r->arch, NULL);
    for (int i = 0; i < p->nkernel; i++) {
        bad += c[i].n < 4 || memcmp(c[i].image, "\177ELF", 4);
        free(c[i].image);
    }
    printf("%s - nvrtc: %s %s %s: %d kernels, %d compiled, %d bad\n",
           bad || !all ? "not ok" : "ok", r->file, r->keys, r->arch, all,
           p->nkernel, bad);
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
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 4 && !strcmp(e->d_name + n - 4, ".lua"))
            bad |= model(
                &(Row){ e->d_name, "precision=bf16", "sm_90a", LAYERS }, pool);
    }
    if (d)
        closedir(d);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bad |= model(&rows[i], pool);
    return bad;
}
