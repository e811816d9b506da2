/* offload_test: activations that wait in the host's memory give the bits of
 * those that stay: losses, gradient norms, gradients and states of some steps
 * with and without, over every axis of a fold, asked for or because `memory` is
 * short, in an order by chance of those that streams and events allow. What the
 * device then needs is printed: less, but where most is alive at the loss. */
#include "../fold/foldrun.h"
#include "../fold/spread.h"

enum { STEPS = 2 };

#define ALL    "train.offload=activations"
#define STATES "train.offload=moments,masters"
#define HOST   " train.update=host"
#define MODEL  "tests/models/folds.lua"
#define TINY   "axes.batch=8 axes.seq=16 axes.heads=2 train.batch=32 "
/* clang-format off */
static const struct { const char *keys, *with; } cases[] = {
    { TINY "fold.dp=2 fold.ep=2 route.factor=1.9 route.dispatcher=peer fold.pair=1", ALL },
    { TINY "fold.pp=2 fold.dp=2 fold.zero=3 fold.schedule=zerobubble fold.overlap=0", ALL },
    { TINY "fold.pp=2 fold.vpp=2 fold.schedule=interleaved fold.tp=2 train.recompute=1e12", ALL },
    { TINY "fold.cp=2 fold.ep=2 route.dispatcher=alltoall", ALL },
    { TINY "fold.dp=2 fold.ep=2 fold.zero=1 precision=bf16 axes.hidden=32", STATES },
    { TINY "fold.pp=2 fold.dp=2 fold.zero=3 precision=fp8 precision.primary=all precision.kept=rounded precision.moments=bf16", ALL ",moments,masters" },
    { TINY "fold.tp=2 fold.zero=0 precision=fp32", "train.offload=moments" },
    /* one micro-batch: an update may begin beside the backward */
    { TINY "train.batch=16 fold.ep=2 precision=bf16 train.clip=0 cluster.launch=1e-9", STATES },
    { TINY "fold.dp=2 fold.ep=2 fold.zero=1 precision=bf16 axes.hidden=32", STATES HOST },
    { TINY "fold.pp=2 fold.dp=2 fold.zero=3 precision=bf16 precision.moments=bf16", ALL ",moments,masters" HOST },
    { TINY "fold.tp=2 fold.zero=0 precision=fp32", "train.offload=moments" HOST },
    { TINY "fold.zero=0 precision=bf16", STATES " cluster.offload=1e9 cluster.cores=1.6e9 cluster.dram=1e12 cluster.launch=1e-9" },
    { "axes.batch=8 axes.seq=64 train.batch=16", "memory=1100KiB cluster.offload=2e9 cluster.launch=1e-7" },
    /* a part of masters and moments */
    { TINY "fold.ep=2 precision=bf16 axes.hidden=32", "memory=780KiB cluster.offload=1e11 cluster.launch=1e-7" },
};
/* clang-format on */
enum { N = sizeof cases / sizeof *cases };

static int failed;

static Plan *plan_of(int i, int with)
{
    return fold_words(MODEL, strf(forever, "%s %s", cases[i].keys,
                                  with ? cases[i].with : ""));
}

/* ---- plans that lose a value --------------------------------------------- */

static int is_refused(const Plan *p)
{
    Arena *a = arena_new();
    int is = plan_wrong(a, p) != NULL;

    arena_free(a);
    return is;
}

/* Does i wait for kernels of the host alone? If it copies to the host, that is
 * for a place that may be free all the same. */
static int waits_for_place(const Program *g, int i)
{
    const Issue *l = &g->instr[i].issue;
    int only = l->stream == STREAMcopy;

    for (int k = 0; k < l->nwait; k++)
        for (int j = 0; j < g->ninstr; j++)
            if (g->instr[j].issue.record == l->wait[k])
                only &= g->instr[j].issue.stream == STREAMhost;
    return only;
}

/* Of the first stage: copies that begin before what they copy is there (of
 * those from the host the first: others may be behind it), that bring back
 * another value of the same size; kernels of the host that begin so; what
 * computes and no longer waits for the end of a copy, from where on the buffer
 * is free. How many are not refused; *tried: of how many. */
static int accepted(Plan *p, int *tried)
{
    enum { MOST = 100 };
    Role *r = &p->role[0];
    Program *g = &r->prog[role_prog(r, PGstep)];
    int bad = 0, reloads = 0, *place[2] = { NULL, NULL };

    *tried = 0;
    for (int i = 0; i < g->ninstr && *tried < MOST; i++) {
        Issue *l = &g->instr[i].issue;
        int from = OPERAND(copy, from), was = l->nwait;
        int apart = l->stream && l->stream != STREAMhost;
        if (!l->nwait || (apart && g->instr[i].kind != Icopy) ||
            waits_for_place(g, i))
            continue;
        l->nwait = 0;
        bad += (l->stream != STREAMreload || !reloads++) && !is_refused(p);
        l->nwait = was;
        place[0] = place[1];
        place[1] = l->stream == STREAMreload ? &g->instr[i].buf[from] : NULL;
        int other = place[0] && place[1] && *place[0] != *place[1] &&
                    r->buf[*place[0]].bytes == r->buf[*place[1]].bytes;
        was = *(place[1] ? place[1] : &was);
        if (other)
            *place[1] = *place[0];
        bad += other && !is_refused(p);
        if (other)
            *place[1] = was;
        ++*tried;
    }
    return bad;
}

/* Of a step on the rank that needs most; *host: of the host's memory. */
static double kept(const Plan *p, double *host)
{
    double most = 0;

    *host = 0;
    for (int i = 0; i < p->nrole; i++) {
        const Role *r = &p->role[i];
        double bytes =
            (double)(r->persist + role_program(r, PGstep)->transient);
        most = bytes > most ? bytes : most;
        *host = (double)r->host > *host ? (double)r->host : *host;
    }
    return most / 1024;
}

static void compare(int i, Plan *with, Plan *without)
{
    double host, none, after = kept(with, &host), before = kept(without, &none);
    const char *at;
    int tried, lost = accepted(with, &tried);
    int moved = shuffle_streams(forever, with, (uint64_t)i + 1);
    Trained a = fold_train(with, STEPS), b = fold_train(without, STEPS);
    double most = fold_apart(&a, &b, &at);
    int ok = most == 0 && host > 0 && none == 0 && after <= before && moved &&
             tried && !lost;

    failed += !ok;
    printf("%sok - offload %s %s: difference %g (%s), none allowed; %.0f KiB "
           "of the device, %.0f without, %.0f of the host; %d copies damaged, "
           "%d accepted\n",
           ok ? "" : "not ", cases[i].keys, cases[i].with, most, at, after,
           before, host / 1024, tried, lost);
    fflush(stdout);
}

int main(void)
{
    Plan *p[2 * N];

    for (int i = 0; i < 2 * N; i++)
        p[i] = plan_of(i / 2, i % 2 == 0);
    fold_share(p, 2 * N);
    for (int i = 0; i < N; i++)
        compare(i, p[2 * i], p[2 * i + 1]);
    return failed != 0;
}
