/* models_test: every fold of a model trains as one rank does, through the
 * whole compiler and runtime, all ranks in this process. Compared are, in
 * fp64, two losses and gradient norms, every gradient of the first step
 * (read off the first moment, m = (1 - beta1) g), and the model's states at
 * the end.
 *
 *     models_test                 some folds of each model
 *     PLEAT_ALL=1 models_test     all folds of 8 and fewer ranks
 *     models_test model [key=value ..]     this model, this fold */
#include <stdlib.h>
#include <string.h>

#include "foldrun.h"

enum { STEPS = 2, MICRO = 8 };

/* Folds sum in other orders, and two steps of AdamW carry that on. */
static const double TOL = 1e-10;

/* more: other keys; those that change the model itself (axes, route but for
 * clones) change its reference too. */
typedef struct Fold {
    const char *model;
    int tp, cp, dp, ep, etp;
    const char *more;
} Fold;

/* One of each kind: experts over dp, over tp, over both, inside experts, inside
 * a part of dp; context; everything; masters and moments in shards within two
 * ranks, or whole; sizes that tp and cp do not divide. */
#define A2A "route.dispatcher=alltoall "
#define TWO "fold.host=2 route.dispatcher=hosts "
#define CAP "route.policy=capacity route.factor=0.75"
#define PAD "route.policy=padded route.factor=1"
#define PP2 "fold.pp=2"
#define PP4 "fold.pp=4"
#define VPP " fold.vpp=2 fold.schedule=interleaved"
#define ZB  " fold.schedule=zerobubble"
#define F8  "precision.recipe="
#define B8  "train.batch=8"
#define DPV " fold.vpp=2 fold.schedule=dualpipev"
/* clang-format off */
static const Fold some[] = {
    { "tests/hf/mixtral-aux.lua",        1, 1, 2, 2, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 1, 2, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 4, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 2, 2, "" },
    { "tests/hf/mixtral-aux.lua",        1, 1, 4, 2, 1, "" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 1, 1, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 2, 4, 1, "" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 4, 2, 1, "fold.hybrid=2" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 2, 2, 1, "fold.zero=0" },
    { "tests/hf/mixtral-aux.lua",        1, 1, 4, 2, 1, "fold.zero=2" },
    { "tests/hf/mixtral-aux.lua",        1, 1, 4, 2, 1, "fold.zero=3" },
    { "tests/hf/mixtral-aux.lua",        1, 1, 8, 1, 1, "fold.zero=3 fold.hybrid=2" },
    { "tests/hf/qwen3.lua",              2, 2, 2, 4, 1, "fold.zero=3" },
    { "tests/hf/qwen3.lua",              2, 1, 2, 4, 1, "" },
    { "tests/hf/dsv3.lua",               2, 1, 2, 4, 1, "" },
    { "tests/hf/dsv3.lua",               1, 2, 2, 2, 2, "" },
    { "tests/models/hash.lua",           2, 1, 2, 2, 2, "" },
    { "tests/models/blocks.lua",         2, 1, 2, 1, 1, "fold.zero=3" },
    { "tests/models/blocks.lua",         2, 2, 1, 1, 1, "" },
    /* Products of few bits: of every recipe, rows of experts among them. Each
     * rank has two micro-batches: rounding is slow.                         */
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 4, 1, F8 "blockwise fold.zero=3 route.clones=1 " B8 },
    { "tests/hf/mixtral-aux.lua",        1, 2, 2, 2, 1, F8 "blockwise precision.wire=all precision.kept=rounded route.factor=0.8 " A2A B8 },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 1, 2, F8 "blockwise precision.wgrad=all " B8 },
    { "tests/hf/dsv3.lua",               2, 1, 2, 4, 1, F8 "tensor route.clones=1 " PP2 " " B8 },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 2, 1, F8 "delayed precision.watch=1 fold.zero=3 " PP2 " " B8 },
    { "tests/models/biases.lua",         2, 1, 4, 2, 1, F8 "mxfp8 route.factor=1.25 " A2A },
    { "tests/hf/qwen3.lua",              2, 2, 2, 4, 2, F8 "nvfp4 " B8 },
    { "tests/hf/mixtral-aux.lua",        2, 1, 1, 2, 1, F8 "nvfp4 axes.seq=48 " B8 },
    { "tests/models/cuts.lua",           2, 1, 2, 2, 2, "" },
    { "tests/models/top1_z.lua",         2, 1, 2, 4, 1, "" },
    { "tests/models/expert_choice.lua",  2, 1, 2, 2, 2, "" },
    { "tests/models/expert_choice.lua",  2, 1, 2, 4, 1, "axes.expert=7 " PP2 " route.balance=forced" },
    { "tests/models/router_choice.lua",  1, 1, 4, 4, 1, A2A "axes.expert=5 " CAP },
    { "tests/models/chosen_keys.lua",    2, 1, 1, 1, 1, "" },
    { "tests/models/chosen_keys.lua",    1, 2, 2, 1, 1, "" },
    { "tests/models/pooled.lua",         2, 2, 2, 1, 1, "" },
    { "tests/models/dropout.lua",        2, 1, 2, 4, 1, "" },
    { "tests/models/chunks.lua",         1, 2, 1, 1, 1, "" },
    { "tests/models/chunks.lua",         1, 2, 1, 1, 1, "fold.ring=1" },
    { "tests/models/noise.lua",          2, 1, 1, 2, 1, PP2 },
    { "tests/models/noise.lua",          1, 1, 2, 2, 1, A2A "fold.zero=3" },
    { "tests/models/noise.lua",          1, 2, 1, 1, 1, "train.recompute=1e12" },
    { "tests/models/sinks.lua",          2, 1, 2, 1, 1, "" },
    { "tests/models/sinks.lua",          1, 2, 2, 1, 1, "fold.ring=1 fold.zero=3" },
    { "tests/models/again.lua",          2, 1, 2, 1, 1, "" },
    { "tests/models/again.lua",          1, 1, 2, 1, 1, PP2 " fold.zero=3" VPP },
    { "tests/models/words.lua",          2, 1, 2, 1, 1, "" },
    { "tests/models/words.lua",          1, 2, 2, 1, 1, "fold.zero=3" },
    { "tests/models/statistics.lua",     2, 1, 4, 1, 1, "" },
    { "tests/models/statistics.lua",     1, 2, 2, 1, 1, "" },
    { "tests/models/zoo.lua",            2, 2, 2, 4, 1, "" },
    { "tests/models/window.lua",         2, 2, 2, 1, 1, "" },
    { "tests/models/linear.lua",         1, 2, 2, 1, 1, "" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 1, 4, 1, "axes.seq=27" },
    { "tests/hf/qwen3.lua",              4, 1, 2, 2, 2, "axes.vocab=99" },
    { "tests/hf/mixtral-aux.lua",        2, 2, 2, 4, 2, CAP },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 2, 1, CAP " route.drop=position" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 2, 4, 1, PAD },
    { "tests/hf/dsv3.lua",               2, 2, 1, 2, 2, CAP },
    { "tests/hf/dsv3.lua",               2, 1, 4, 8, 1, PAD },
    { "tests/models/hash.lua",           2, 2, 1, 4, 1, CAP },
    { "tests/models/top1_z.lua",         1, 2, 4, 2, 1, CAP },
    { "tests/models/top1_z.lua",         2, 1, 2, 4, 1, PAD },
    /* Experts that share their tokens with clones on other ranks.           */
    { "tests/models/apart.lua",          1, 1, 4, 4, 1, "route.clones=1 fold.pair=1" },
    { "tests/models/apart.lua",          2, 1, 2, 2, 2, "route.clones=2 fold.zero=3" },
    /* Tokens that go only where their experts are. */
    { "tests/hf/mixtral-aux.lua",        1, 1, 4, 4, 1, A2A "axes.expert=5" },
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 2, 2, A2A },
    { "tests/hf/mixtral-aux.lua",        1, 1, 4, 2, 1, A2A CAP },
    { "tests/hf/qwen3.lua",              2, 2, 2, 4, 1, A2A "fold.zero=3" },
    { "tests/hf/dsv3.lua",               2, 1, 4, 8, 1, A2A PAD },
    { "tests/hf/dsv3-mtp.lua",           2, 1, 2, 4, 1, A2A PP2 },
    { "tests/models/hash.lua",           2, 1, 2, 2, 2, A2A },
    { "tests/models/top1_z.lua",         2, 1, 2, 4, 1, A2A },
    { "tests/models/biases.lua",         2, 1, 2, 4, 1, A2A "axes.expert=7" },
    { "tests/models/biases.lua",         2, 1, 2, 4, 1, A2A "axes.expert=7 route.clones=1" },
    { "tests/models/biases.lua",         2, 1, 4, 2, 1, A2A "route.factor=1.25" },
    { "tests/models/biases.lua",         2, 1, 4, 2, 1, A2A "route.factor=1.25 route.clones=1" },
    { "tests/models/biases.lua",         1, 1, 4, 4, 1, TWO CAP },
    { "tests/hf/qwen3.lua",              2, 1, 2, 4, 1, TWO "fold.zero=3 axes.expert=6" },
    { "tests/hf/dsv3.lua",               2, 1, 4, 8, 1, TWO PAD },
    { "tests/models/expert_choice.lua",  2, 1, 2, 2, 2, A2A },
    { "tests/models/zoo.lua",            2, 2, 2, 4, 1, A2A },
    { "tests/models/tied.lua",           1, 1, 1, 1, 1, PP4 },
    { "tests/models/tied.lua",           1, 1, 2, 2, 1, PP2 },
    { "tests/models/tied.lua",           2, 1, 1, 2, 1, PP4 },
    { "tests/models/tied.lua",           1, 2, 2, 4, 1, PP2 VPP },
    { "tests/models/tied.lua",           2, 1, 2, 2, 2, PP2 ZB },
    { "tests/models/tied.lua",           1, 1, 2, 1, 1, PP2 DPV },
    { "tests/models/tied.lua",           1, 1, 2, 1, 1, PP4 ZB },
    { "tests/models/tied.lua",           1, 1, 1, 1, 1, PP4 " fold.layout=E|tt|t|tL" },
    { "tests/models/tied.lua",           1, 1, 1, 1, 1, PP2 VPP " fold.layout=Et||tt|tL" },
    { "tests/hf/dsv3.lua",               2, 1, 2, 4, 1, PP2 },
    { "tests/hf/dsv3.lua",               1, 1, 2, 2, 1, PP2 ZB " fold.zero=3" },
    { "tests/hf/dsv3.lua",               2, 1, 2, 2, 1, PP2 VPP " fold.zero=2" },
    { "tests/hf/dsv3.lua",               1, 1, 2, 2, 1, PP2 DPV " fold.zero=3" },
    { "tests/hf/mixtral-aux.lua",        1, 1, 2, 2, 1, PP2 ZB " route.policy=capacity route.factor=0.75" },
    { "tests/hf/olmoe.lua",              2, 1, 2, 4, 1, "" },
    { "tests/hf/qwen2.lua",              2, 2, 1, 2, 2, "" },
    { "tests/hf/qwen2.lua",              1, 1, 2, 2, 1, PP2 },
    { "tests/hf/dsv2.lua",               2, 2, 2, 4, 2, "" },
    { "tests/hf/dsv2.lua",               1, 1, 2, 2, 1, PP2 ZB },
    { "tests/hf/dsv3-mtp.lua",           2, 2, 1, 4, 1, "" },
    { "tests/hf/dsv3-mtp.lua",           2, 1, 2, 4, 1, PP2 },
    { "tests/hf/dsv3-mtp.lua",           1, 1, 2, 2, 1, PP4 " fold.layout=Et|t|mm|L" },
    { "tests/hf/dsv3-mtp.lua",           1, 1, 2, 2, 1, PP2 VPP " fold.layout=Et|t|m|mL" },
    { "tests/hf/dsv3-mtp.lua",           1, 1, 2, 2, 1, PP2 ZB " fold.zero=3" },
    /* Heads in slices: of sequences, of the parts of one that ranks hold,
     * in the call of a stage that runs forward.                             */
    { "tests/hf/mixtral-aux.lua",        1, 1, 2, 2, 1, "train.slices=2" },
    { "tests/hf/mixtral-aux.lua",        1, 2, 2, 2, 1, "train.slices=8" },
    { "tests/hf/qwen3.lua",              2, 2, 1, 4, 1, "train.slices=4 fold.zero=3" },
    { "tests/models/tied.lua",           1, 1, 2, 2, 1, "train.slices=4" },
    { "tests/models/tied.lua",           1, 1, 2, 1, 1, PP2 DPV " train.slices=8" },
    { "tests/hf/dsv3-mtp.lua",           1, 2, 1, 2, 1, PP2 VPP " train.slices=4 fold.layout=Et|t|m|mL" },
    { "tests/hf/dsv3-mtp.lua",           1, 1, 2, 2, 1, PP2 ZB " train.slices=32 fold.zero=3" },
    { "tests/models/router_sigmoid.lua", 2, 2, 2, 4, 1, "" },
    { "tests/models/router_choice.lua",  2, 1, 2, 2, 1, "" },
    { "tests/models/router_post.lua",    2, 2, 1, 2, 2, "" },
    /* Tokens that no number of ranks divides.                               */
    { "tests/models/folds.lua",          2, 1, 4, 8, 1, "axes.seq=7" },
    { "tests/models/folds.lua",          1, 1, 4, 4, 1, "axes.seq=7 fold.zero=3" },
    { "tests/models/folds.lua",          2, 2, 2, 4, 2, "axes.seq=9" },
    { "tests/hf/dsv3.lua",               2, 1, 2, 4, 1, "axes.batch=1 axes.seq=27 " CAP },
    /* The reference has an embedding's gradient by rows, tp's ranks do not.  */
    { "tests/models/linear.lua",         2, 1, 1, 1, 1, "axes.batch=16 axes.seq=3 axes.vocab=192" },
    /* Frozen parameters.                                                    */
    { "tests/hf/mixtral-aux.lua",        2, 1, 2, 4, 1, "fold.zero=3 train.freeze=embed,*.w1,*.wq,*.weight" },
    { "tests/hf/dsv3-mtp.lua",           2, 1, 2, 4, 1, PP2 " fold.zero=3 train.freeze=embed,*.w1,*.w2,*wq*" },
    { "tests/models/tied.lua",           1, 1, 2, 2, 1, PP2 ZB " train.freeze=*.w1" },
    { "tests/hf/qwen3.lua",              1, 1, 4, 2, 1, "fold.zero=2 train.optimizer=muon train.freeze=*.w1,*.w2,*.wq" },
    { "tests/models/lora.lua",           2, 1, 2, 4, 1, "fold.zero=3" },
    { "tests/models/lora.lua",           2, 1, 2, 2, 2, PP2 " " A2A },
    { "tests/models/lora.lua",           1, 2, 2, 4, 1, "fold.zero=2 axes.expert=5" },
    { "tests/models/distill.lua",        2, 1, 2, 1, 1, "from.teacher=t fold.zero=3" },
    { "tests/models/distill.lua",        1, 2, 2, 1, 1, "from.teacher=t " PP2 " fold.zero=3" },
    /* optimizers */
    { "tests/models/updates.lua",        1, 1, 2, 1, 1, "train.optimizer=muon" },
    { "tests/models/updates.lua",        2, 1, 2, 1, 1, "fold.zero=3" },
    { "tests/models/folds.lua",          2, 1, 2, 4, 1, "train.optimizer=adafactor axes.expert=6" },
    { "tests/models/folds.lua",          1, 2, 2, 2, 1, "train.optimizer=adafactor fold.zero=3" },
    { "tests/models/tied.lua",           1, 1, 2, 2, 1, PP2 " train.optimizer=adafactor fold.zero=2" },
    { "tests/models/divided.lua",        1, 1, 4, 4, 1, "axes.expert=6 route.policy=padded route.factor=3" },
    { "tests/models/divided.lua",        1, 1, 4, 2, 1, "axes.expert=5 route.policy=padded route.factor=3 fold.zero=3" },
    { "tests/models/folds.lua",          2, 1, 2, 4, 1, "train.optimizer=lion" },
    { "tests/models/folds.lua",          2, 1, 2, 4, 1, "train.optimizer=muon" },
    { "tests/models/folds.lua",          1, 2, 2, 2, 1, "train.optimizer=muon fold.zero=3" },
    { "tests/models/folds.lua",          2, 1, 2, 4, 1, "train.optimizer=muon axes.expert=6" },
    { "tests/models/folds.lua",          1, 1, 2, 2, 1, "train.optimizer=muon train.offload=moments" },
    { "tests/models/tied.lua",           1, 1, 2, 2, 1, PP2 " train.optimizer=muon fold.zero=2" },
    { "tests/models/zoo.lua",            2, 2, 2, 4, 1, "train.optimizer=muon" },
    /* Equal tokens, whose weights differ in their last bits only.           */
    { "tests/models/folds.lua",          2, 1, 2, 4, 1, PAD },
};
/* clang-format on */

static int failed;

static void compare(const char *model, const char *fold, const Trained *x,
                    const Trained *want)
{
    const char *at;
    double most = fold_apart(x, want, &at);
    int ok = most <= TOL;

    failed += !ok;
    printf("%sok - %s %s: difference %.2g (%s), at most %.0e\n",
           ok ? "" : "not ", model, fold, most, at, TOL);
    fflush(stdout);
}

/* ---- all folds asked for ------------------------------------------------- */

/* Every plan is made first and then gets the kernels of all: the text is
 * compiled once, however many folds run it. */
typedef struct Case {
    const char *model, *fold;
    Plan *plan;
    size_t like; /* the job of its reference */
    Trained got; /* of a reference */
} Case;

static Case *jobs; /* vec; fold null: one rank, the reference */

/* The reference of these keys, made where there is none. */
static size_t reference(const char *model, char **keys, int nkeys)
{
    static Table *known; /* 1 + its place in jobs */
    const char *id = model;

    if (!known)
        known = table_new(forever);
    for (int i = 0; i < nkeys; i++)
        id = strf(forever, "%s %s", id, keys[i]);
    void **at = table_at(known, KEYP(intern(id)));
    if (!*at) {
        Case r = { .model = model, .plan = fold_plan(model, keys, nkeys) };
        vec_push(forever, jobs, r);
        *at = (void *)(uintptr_t)vec_len(jobs);
    }
    return (size_t)(uintptr_t)*at - 1;
}

/* Clones change no number, only who makes it. */
static int changes_model(const char *key)
{
    return !strncmp(key, "axes.", 5) || !strncmp(key, "precision.", 10) ||
           !strncmp(key, "train.batch=", 12) ||
           !strncmp(key, "train.optimizer=", 16) ||
           !strncmp(key, "train.freeze=", 13) || !strncmp(key, "from.", 5) ||
           (!strncmp(key, "route.", 6) && strncmp(key, "route.clones", 12));
}

static void add_job(const char *model, const char *fold, char **keys, int nkeys)
{
    char *all[MAXKEYS] = { "precision.policy=fp64",
                           strf(forever, "train.batch=%d", MICRO * 2) };
    char *one[MAXKEYS] = { all[0], all[1], "world=1" };
    int n = 3;

    for (int i = 0; i < nkeys && n < MAXKEYS; i++)
        if (changes_model(keys[i]))
            one[n++] = keys[i];
    for (int i = 0; i < nkeys && i + 2 < MAXKEYS; i++)
        all[i + 2] = keys[i];
    Case j = { .model = model, .fold = fold };
    j.like = reference(model, one, n);
    j.plan = fold_plan(model, all, nkeys + 2);
    vec_push(forever, jobs, j);
}

static void add_fold(const Fold *f)
{
    /* clang-format off */
    char *keys[MAXKEYS] = {
        strf(forever, "fold.tp=%d", f->tp), strf(forever, "fold.cp=%d", f->cp),
        strf(forever, "fold.dp=%d", f->dp), strf(forever, "fold.ep=%d", f->ep),
        strf(forever, "fold.etp=%d", f->etp),
    }, *next, *word = strtok_r(strf(forever, "%s", f->more), " ", &next);
    int n = 5;

    for (; word && n < MAXKEYS; word = strtok_r(NULL, " ", &next))
        keys[n++] = word;

    add_job(f->model, strf(forever, "tp=%d cp=%d dp=%d ep=%d etp=%d%s%s", f->tp,
                           f->cp, f->dp, f->ep, f->etp, *f->more ? " " : "",
                           f->more), keys, n);
}

static void all_folds(const char *model)
{
    static const int size[] = { 1, 2, 4, 8 };

    for (int c = 0; c < 4 * 2 * 4 * 3 * 3; c++) {
        Fold f = { model, size[c % 4], size[c / 4 % 2], size[c / 8 % 4],
                   size[c / 32 % 3], size[c / 96], "" };
        int ranks = f.tp * f.cp * f.dp;
        if (ranks > 1 && ranks <= 8 && ranks % (f.ep * f.etp) == 0)
            add_fold(&f);
    }
}

static void run_jobs(void)
{
    Plan **plans = alloc(forever, (vec_len(jobs) + 1) * sizeof *plans);

    for (size_t i = 0; i < vec_len(jobs); i++)
        plans[i] = jobs[i].plan;
    int kernels = fold_share(plans, (int)vec_len(jobs));
    printf("# %zu plans, %d kernels\n", vec_len(jobs), kernels);
    for (size_t i = 0; i < vec_len(jobs); i++) {
        Trained w = fold_train(jobs[i].plan, STEPS);
        if (jobs[i].fold)
            compare(jobs[i].model, jobs[i].fold, &w, &jobs[jobs[i].like].got);
        else
            jobs[i].got = w;
    }
}

int main(int argc, char **argv)
{
    static const char *const models[] = {
        "tests/hf/mixtral-aux.lua", "tests/hf/qwen3.lua", "tests/hf/dsv3.lua",
        "tests/models/hash.lua", "tests/models/top1_z.lua",
        "tests/models/expert_choice.lua", "tests/models/dropout.lua",
        "tests/models/zoo.lua", "tests/models/window.lua",
        "tests/models/linear.lua",
    };
    /* clang-format on */

    if (argc > 1)
        add_job(argv[1], "as given", argv + 2, argc - 2);
    for (size_t i = 0;
         argc == 1 && getenv("PLEAT_ALL") && i < sizeof models / sizeof *models;
         i++)
        all_folds(models[i]);
    for (size_t i = 0;
         argc == 1 && !getenv("PLEAT_ALL") && i < sizeof some / sizeof *some;
         i++)
        add_fold(&some[i]);
    run_jobs();
    return failed != 0;
}
