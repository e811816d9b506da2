/* mutantrun.c: see mutantrun.h. A mutant runs in a process of its own, since it
 * may crash or never end; what it computes comes back as one hash: two steps
 * of training, their losses and norms, every tensor by its name with all that
 * a checkpoint says of it, a validation, and the outputs of forward. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mutantrun.h"
#include "spread.h"
#include "../unit/tensors.h"

enum { STEPS = 2, CPU = 20, SECONDS = 300 }; /* of a run: it hangs */

char base_message[1024];
const char *const mutant_verdicts[NVERDICT] = { "refused", "same", "OTHER",
                                                "STOPS", "CRASHES" };

#define MIX                 "tests/hf/mixtral-aux.lua"
#define TIED                "tests/models/tied.lua"
#define APART               "tests/models/apart.lua"
#define PLAN(file, words)   { .model = file, .keys = words },
#define SPREAD(file, words) { .model = file, .keys = words, .spread = 1 },
#define SMALL               " axes.hidden=16 axes.seq=16 axes.ffn=16 axes.dim=4"
/* clang-format off */
Base bases[NBASE] = {
    PLAN(MIX,   "fold.tp=2 fold.dp=2 fold.ep=4 fold.zero=0 train.batch=8")
    PLAN(TIED,  "fold.pp=2 fold.cp=2 fold.dp=2 fold.ep=4 fold.vpp=2 fold.schedule=interleaved train.batch=16")
    PLAN(APART, "fold.cp=4 fold.ring=1 fold.ep=2 route.factor=0.6 route.dispatcher=alltoall train.batch=4")
    PLAN("tests/models/window.lua", "fold.tp=2 fold.cp=2 train.batch=4" SMALL)
    PLAN(MIX,   "fold.dp=4 fold.ep=2 fold.zero=3 train.batch=16 train.offload=activations,moments")

    PLAN(MIX,   "fold.dp=2 fold.ep=2 train.batch=8")
    PLAN(MIX,   "fold.cp=2 fold.tp=2 fold.ep=2 fold.etp=2 train.batch=2")
    PLAN(MIX,   "fold.pp=2 fold.dp=2 fold.schedule=zerobubble train.batch=16 train.offload=activations,moments train.update=host")
    PLAN(MIX,   "fold.pp=2 fold.tp=2 fold.cp=2 train.batch=8")
    PLAN(MIX,   "fold.tp=2 fold.dp=2 fold.pp=2 fold.ep=4 fold.zero=2 train.batch=16")
    PLAN(MIX,   "fold.cp=2 fold.dp=2 fold.ep=2 fold.etp=2 precision.policy=bf16 train.batch=8")
    PLAN("tests/models/zoo.lua", "fold.tp=2 fold.cp=2 fold.dp=2 fold.ep=4 train.batch=8")
    PLAN("tests/models/linear.lua", "fold.tp=2 fold.cp=2 train.batch=4")
    PLAN("tests/models/dropout.lua", "fold.tp=2 fold.dp=2 fold.ep=4 train.batch=8" SMALL)
    PLAN("tests/models/expert_choice.lua", "fold.tp=2 fold.dp=2 fold.ep=2 fold.etp=2 train.batch=8" SMALL)
    PLAN("tests/models/statistics.lua", "fold.tp=2 fold.dp=4 train.batch=16")
    PLAN(APART, "fold.pp=4 fold.cp=2 fold.ep=2 fold.schedule=zerobubble fold.ring=1 route.policy=capacity route.factor=0.75 route.drop=position train.batch=8")
    PLAN(APART, "fold.cp=2 fold.dp=4 fold.ep=8 fold.hybrid=2 fold.zero=3 route.factor=0.6 train.batch=8")
    PLAN(APART, "fold.pp=2 fold.dp=2 fold.tp=2 fold.ep=2 fold.etp=2 fold.vpp=2 fold.schedule=dualpipev route.policy=padded route.factor=1 train.batch=8")
    PLAN(TIED,  "fold.pp=4 fold.dp=2 fold.layout=E|tt|t|tL fold.zero=3 train.slices=4 train.batch=16")
    PLAN("tests/hf/dsv3-mtp.lua", "fold.pp=2 fold.tp=2 fold.dp=2 fold.ep=4 train.batch=16")
    PLAN("tests/hf/qwen3.lua", "fold.cp=4 fold.balance=contiguous fold.ep=4 precision.moments=bf16 train.batch=4")
    PLAN("models/tiny.lua", "fold.tp=2 fold.dp=2 fold.ep=4 fold.order=dp-cp-tp-pp train.batch=32" SMALL)
    PLAN(MIX,   "precision=fp8 fold.tp=2 fold.dp=2 fold.ep=2 train.batch=8")
    PLAN("tests/hf/dsv3.lua", "precision=fp8 precision.recipe=tensor fold.pp=2 fold.dp=2 train.batch=8")
    PLAN("tests/hf/qwen3.lua", "precision=fp8 precision.recipe=nvfp4 fold.ep=2 fold.dp=2 fold.zero=3 train.batch=8")
    PLAN("tests/hf/dsv2.lua", "train.optimizer=muon fold.dp=2 fold.ep=2 train.batch=8")
    SPREAD(MIX,   "fold.pp=2 fold.tp=2 fold.ep=2 train.batch=8")
    PLAN("models/mixtral.lua", "fold.pp=2 fold.dp=2 fold.ep=2 train.batch=8 axes.hidden=16 axes.seq=16 axes.ffn=16 axes.dim=4 axes.vocab=97")
};
/* clang-format on */

/* ---- reading ------------------------------------------------------------- */

static jmp_buf heard;

static void hear(const char *msg)
{
    snprintf(base_message, sizeof base_message, "%s", msg);
    longjmp(heard, 1);
}

Plan *base_parse(Arena *a, const char *text, size_t len)
{
    Plan *volatile p = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        p = plan_parse(a, text, len, "mutant");
    err_hook = NULL;
    return p;
}

/* ---- legal plans --------------------------------------------------------- */

static void make_base(Base *b)
{
    fold_target = b->gpu ? &T_cuda : &T_host;
    b->plan = fold_words(b->model,
                         b->spread ? strf(forever, "%s fold.overlap=0", b->keys)
                                   : b->keys);
    if (b->spread)
        spread_streams(forever, b->plan, 1);
    b->plan->nsource = 0;
    b->text = plan_print(forever, b->plan, &b->len);
}

void bases_make(Base *b, int n)
{
    Plan **p = alloc(forever, sizeof *p * (size_t)n);

    for (int i = 0; i < n; i++) {
        make_base(&b[i]);
        p[i] = b[i].plan;
    }
    fold_share(p, n);
}

/* ---- running ------------------------------------------------------------- */

typedef struct Told { /* by the process that ran a plan */
    uint64_t digest;
    int done; /* 1: it ended, 2: with a message */
    char message[sizeof base_message];
} Told;

static void add(uint64_t *h, const void *p, size_t n)
{
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++)
        *h = (*h ^ s[i]) * 0x100000001b3u;
}

static void add_word(uint64_t *h, const char *s)
{
    add(h, s, strlen(s) + 1);
}

static void add_number(uint64_t *h, double v)
{
    add(h, &v, sizeof v);
}

/* The tensor of that name in any stage. */
static const Tensor *tensor_of(const Plan *p, const char *name)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++)
            if (!strcmp(p->role[r].tensor[i].name, name))
                return &p->role[r].tensor[i];
    return NULL;
}

static void add_tensor(uint64_t *h, Exec *x, const char *name)
{
    const Tensor *t = tensor_of(x->plan, name);

    if (!t)
        err(NULL, "no tensor %s", name);
    add_word(h, tensor_kinds[t->kind].name);
    add_word(h, dtypes[t->dt].name);
    for (int d = 0; d < t->nd; d++) {
        add_word(h, t->dim[d].axis);
        add(h, &t->dim[d].n, sizeof t->dim[d].n);
    }
    int64_t n;
    double *v = fold_read(x, name, &n);
    add(h, v, sizeof *v * (size_t)n);
}

static void add_results(uint64_t *h, const Exec *x, const Plan *like)
{
    const Role *r = &like->role[like->nrole - 1];
    for (int i = 0; i < r->nout; i++)
        add_number(h, exec_named(x, r->out[i].name));
}

static void add_tensors(uint64_t *h, Exec *x, const Plan *like, unsigned kinds)
{
    const Tensor **v = fold_tensors(like, kinds);
    for (size_t i = 0; i < vec_len(v); i++)
        add_tensor(h, x, v[i]->name);
}

static int has(const Plan *p, ProgramKind program)
{
    return role_prog(&p->role[0], program) >= 0;
}

static void run_program(Exec *x, ProgramKind program, int64_t step)
{
    StepValues block = fold_block(x->plan, step);
    Feed f = fold_feed(x->plan, step);
    exec_run(x, program, &block, &f);
}

/* like: the original, which says what there is to compare. */
static uint64_t compute(const Plan *like, Plan *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    Exec *x = exec_open(p, comm_open(forever, p->mesh->world));

    exec_run(x, PGinit, NULL, NULL);
    for (int t = 0; t < STEPS; t++) {
        run_program(x, PGstep, t);
        if (exec_result(x, RESULToverflow) > 0)
            run_program(x, PGfallback, t);
        add_results(&h, x, like);
    }
    add_tensors(&h, x, like, MODELTENSORS | MASTERS | MOMENTS);
    if (has(like, PGeval)) {
        run_program(x, PGeval, STEPS);
        add_results(&h, x, like);
    }
    if (has(like, PGforward)) {
        run_program(x, PGforward, STEPS);
        add_tensors(&h, x, like, 1 << TKoutput);
    }
    return h;
}

static void child(const Base *b, Plan *p, Told *t)
{
    if (p != b->plan) { /* whose run compiles the kernels */
        setrlimit(RLIMIT_CPU, &(struct rlimit){ CPU, CPU });
        alarm(SECONDS);
    }
    p->prelude = b->plan->prelude;
    p->kernel = b->plan->kernel;
    p->nkernel = b->plan->nkernel;
    err_hook = hear;
    if (!setjmp(heard)) {
        t->digest = compute(b->plan, p);
        t->done = 1;
    } else {
        snprintf(t->message, sizeof t->message, "%s", base_message);
        t->done = 2;
    }
    _exit(0);
}

/* The hash of what p computes; 0: it crashed, 1: it stopped with a message. */
static uint64_t digest(const Base *b, Plan *p)
{
    Told *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (t == MAP_FAILED)
        die("no memory to share");
    fflush(stdout);
    pid_t pid = fork();
    if (!pid)
        child(b, p, t);
    waitpid(pid, &(int){ 0 }, 0);
    uint64_t h = t->done == 1 ? t->digest : t->done == 2;
    if (t->done == 2)
        memcpy(base_message, t->message, sizeof base_message);
    munmap(t, sizeof *t);
    return h;
}

Verdict base_verdict(Base *b, const char *text, size_t len)
{
    Arena *a = arena_new();
    Plan *p = base_parse(a, text, len);
    Verdict v = REFUSED;

    if (p && !b->digest)
        b->digest = digest(b, b->plan);
    if (b->digest == 1 && p)
        die("%s %s: %s", b->model, b->keys, base_message);
    if (p) {
        uint64_t h = digest(b, p);
        v = h == b->digest ? SAME : h == 0 ? CRASHED : h == 1 ? STOPPED : OTHER;
    }
    arena_free(a);
    return v;
}
