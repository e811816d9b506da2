/* poison_test: PLEAT_POISON=1, under which tests/run runs all tests, does show
 * what was not written. Of a small model one kernel after another computes
 * nothing; each time loss, norm, a parameter or a moment is no number. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../fold/foldrun.h"

static int failed;

/* Real values only, in places of their own: what is added to, or written over
 * an operand, is a number before; an index out of range is a dropped pair. */
static int makes_reals(const Role *r, const Instr *s)
{
    int made = 0;

    for (int i = 0; i < s->nbuf && s->flow; i++) {
        if (!s->flow[i].make)
            continue;
        if (dtypes[r->buf[s->buf[i]].dt].kind != 'f')
            return 0;
        for (int k = 0; k < s->nbuf; k++)
            if (s->buf[k] == s->buf[i] && s->flow[k].read)
                return 0;
        made++;
    }
    return made && s->kind == Ikernel;
}

static int all_numbers(Exec *x, unsigned kinds)
{
    const Tensor **t = fold_tensors(x->plan, kinds);

    for (size_t i = 0; i < vec_len(t); i++) {
        int64_t n;
        const double *v = fold_read(x, t[i]->name, &n);
        for (int64_t k = 0; k < n; k++)
            if (!isfinite(v[k]))
                return 0;
    }
    return isfinite(exec_result(x, RESULTloss)) &&
           isfinite(exec_result(x, RESULTgrad_norm));
}

/* In a child: wild indices may end it. */
static int shows(Plan *p)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();

    if (!pid) {
        Exec *x = exec_open(p, comm_open(forever, p->mesh->world));
        StepValues block = fold_block(p, 0);
        Feed f = fold_feed(p, 0);
        exec_run(x, PGinit, NULL, NULL);
        exec_run(x, PGstep, &block, &f);
        _exit(all_numbers(x, MODELTENSORS | MOMENTS));
    }
    waitpid(pid, &status, 0);
    return !WIFEXITED(status) || !WEXITSTATUS(status);
}

static void each_kernel(Plan *p)
{
    Program *g = &p->role[0].prog[role_prog(&p->role[0], PGstep)];
    int n = 0, shown = 0;

    for (int i = 0; i < g->ninstr; i++) {
        Instr *s = &g->instr[i];
        if (!makes_reals(&p->role[0], s))
            continue;
        int64_t items = s->launch.items;
        s->launch.items = 0;
        int ok = shows(p);
        s->launch.items = items;
        if (!ok)
            printf("# %s left out, and nobody sees it\n", s->label);
        n++;
        shown += ok;
    }
    failed += shown < n;
    printf("%sok - poison: %d of %d kernels that compute nothing show\n",
           shown < n ? "not " : "", shown, n);
}

int main(void)
{
    setenv("PLEAT_POISON", "1", 1);
    Plan *p = fold_words("tests/models/room.lua", "precision=fp64 world=1");
    int clean = !shows(p);

    failed += !clean;
    printf("%sok - poison: nothing shows when all is written\n",
           clean ? "" : "not ");
    each_kernel(p);
    return failed != 0;
}
