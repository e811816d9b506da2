/* arena_test: the plan is the allocator. Of several folds, all ranks in this
 * process: what exec_open maps is every rank's planned bytes, in whole pages,
 * and nothing else; all steps find their work space inside of it, also with a
 * process a rank; and no step allocates anything. What is mapped is counted by
 * an mmap and a munmap that stand before the C library's. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "foldrun.h"

enum { PAGE = 4096, STEPS = 2 };

static int64_t mapped; /* bytes now */

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t from)
{
    long p = syscall(SYS_mmap, at, bytes, prot, flags, fd, from);

    mapped += p == -1 ? 0 : (int64_t)bytes;
    return (void *)p;
}

int munmap(void *at, size_t bytes)
{
    long rc = syscall(SYS_munmap, at, bytes);

    mapped -= rc ? 0 : (int64_t)bytes;
    return (int)rc;
}

static int64_t heap(void)
{
    struct mallinfo2 m = mallinfo2();

    return (int64_t)(m.uordblks + m.hblkhd);
}

static int64_t in_pages(int64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

typedef struct Case {
    const char *keys[8];
} Case;

static const char model[] = "tests/models/folds.lua";
/* clang-format off */
static const Case cases[] = {
    {{"world=1"}},
    {{"fold.tp=2", "fold.cp=2", "fold.dp=2", "fold.ep=4"}},
    {{"fold.dp=8", "fold.zero=3", "fold.ep=2"}},
    {{"fold.dp=8", "fold.zero=0"}},
    {{"fold.pp=2", "fold.dp=4", "fold.ep=4"}},
    {{"fold.pp=2", "fold.vpp=2", "fold.tp=2", "fold.schedule=interleaved"}},
    {{"fold.pp=4", "fold.ep=2", "fold.dp=2", "fold.schedule=zerobubble"}},
    {{"fold.pp=2", "fold.vpp=2", "fold.schedule=dualpipev"}},
    {{"fold.pp=4", "fold.layout=Et|t|tt|L", "route.policy=capacity"}},
};
/* clang-format on */

enum { NCASE = sizeof cases / sizeof *cases, MAXKEY = 8 };

static char *keys_of(const Case *c, char **keys, int *n)
{
    Text t = { .arena = forever };

    for (*n = 0; *n < MAXKEY && c->keys[*n]; ++*n) {
        keys[*n] = strf(forever, "%s", c->keys[*n]);
        put(&t, "%s%s", *n ? " " : "", keys[*n]);
    }
    keys[(*n)++] = "train.batch=16";
    keys[(*n)++] = "precision.policy=bf16";
    return t.s;
}

/* Steps once to warm up, again to see that the heap stays as it is. */
static int64_t heap_growth(const Plan *p, Exec *x)
{
    int64_t before = 0;

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        StepValues block = fold_block(p, t);
        Feed f = fold_feed(p, t);
        before = heap();
        exec_exact(x, PGstep, &block, &f);
    }
    return heap() - before;
}

/* Steps whose last buffer is less than the work space that they need when each
 * rank is a process of its own. */
static int cramped(const Plan *p)
{
    int n = 0;

    for (int r = 0; r < p->nrole; r++)
        for (int g = 0; g < p->role[r].nprog; g++)
            for (int k = 0; k < p->role[r].prog[g].ninstr; k++) {
                const Instr *s = &p->role[r].prog[g].instr[k];
                int last = s->nbuf ? s->buf[s->nbuf - 1] : -1;
                int64_t need = instr_work(s, mesh_extent(p->mesh, s->atoms));
                n +=
                    need > 0 && (last < 0 || p->role[r].buf[last].bytes < need);
            }
    return n;
}

static int try(const Plan *p, const char *name)
{
    int64_t want = 0, most = 0, each = p->mesh->world / p->nrole;
    int64_t before = mapped;
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
    int64_t got = mapped - before, grown = heap_growth(p, x);
    Text t = { .arena = forever };
    int64_t beside = exec_usage(x, &t);

    for (int i = 0; i < p->nrole; i++) {
        want += each * in_pages(p->role[i].arena);
        most = p->role[i].arena > most ? p->role[i].arena : most;
    }
    int ok = got == want && !beside && !grown && !cramped(p) && most > 0;
    printf("%sok - arena: %s: %lld bytes planned on %lld ranks (at most %lld), "
           "difference %lld, beside them %lld, steps without room %d, a step's "
           "heap %+lld\n",
           ok ? "" : "not ", name, (long long)want, (long long)p->mesh->world,
           (long long)most, (long long)(got - want), (long long)beside,
           cramped(p), (long long)grown);
    fflush(stdout);
    int64_t used = mapped;
    exec_close(x);
    if (used - mapped != got)
        printf("not ok - arena: %s: %lld bytes of %lld given back\n", name,
               (long long)(used - mapped), (long long)got);
    return ok && used - mapped == got;
}

int main(void)
{
    Plan *plan[NCASE];
    char *name[NCASE];
    int failed = 0;

    for (int i = 0; i < NCASE; i++) {
        char *keys[MAXKEY + 2];
        int n;
        name[i] = keys_of(&cases[i], keys, &n);
        plan[i] = fold_plan(model, keys, n);
    }
    fold_share(plan, NCASE);
    /* OpenBLAS takes its own memory with the first device, for good. */
    exec_close(exec_open(plan[0], comm_open(forever, plan[0]->mesh->world)));
    for (int i = 0; i < NCASE; i++)
        failed += !try(plan[i], name[i]);
    return failed != 0;
}
