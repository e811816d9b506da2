/* recompute_test: values that the backward makes again instead of keeping them
 * are the same bits: losses, gradient norms, gradients and states of some steps
 * with the pass and without it. All that can be made again is, whatever its
 * time: products, expert rows, operands of attention too. Or what models say:
 * modules by name, of all models/ with few layers, keep() and recompute(), then
 * fewer bytes are kept. What it saves is printed: nothing where most is alive
 * at the loss; then what is stored shows that the pass did something. */
#include <string.h>

#include "../fold/foldrun.h"

enum { STEPS = 2 };

/* clang-format off */
static const struct { const char *model, *keys; } cases[] = {
    { "tests/hf/mixtral-aux.lua", "precision=fp64" },
    { "tests/hf/mixtral-aux.lua", "precision=fp32" },
    { "tests/hf/mixtral-aux.lua", "precision=fp32 fold.tp=2 fold.ep=2" },
    { "tests/hf/dsv3.lua",        "precision=fp64" },
    { "tests/hf/dsv3.lua",        "precision=fp32 fold.pp=2 fold.cp=2" },
    { "tests/hf/mixtral-aux.lua", "precision=fp64 fold.dp=2 fold.ep=2 fold.zero=3 route.factor=1.5 route.dispatcher=alltoall" },
    { "tests/hf/qwen3.lua",       "precision=bf16 fold.dp=4 fold.ep=4 fold.zero=3 route.dispatcher=alltoall" },
    { "tests/hf/qwen3.lua",       "precision=fp32 fold.pp=2 fold.dp=2 fold.zero=3 fold.schedule=zerobubble" },
    { "tests/models/dropout.lua", "precision=fp32" },
    { "tests/models/zoo.lua",     "precision=fp32" },
    { "tests/hf/mixtral-aux.lua", "precision=bf16" },
    { "tests/hf/mixtral-aux.lua", "precision=bf16 fold.tp=2 fold.ep=2" },
    { "tests/hf/dsv3.lua",        "precision=bf16 fold.pp=2 fold.cp=2" },
    { "tests/hf/olmoe.lua",       "precision=bf16" },
    { "tests/hf/dsv3-mtp.lua",    "precision=bf16 fold.pp=2 train.slices=4" },
    { "tests/hf/qwen2.lua",       "precision=bf16" },
    { "tests/hf/qwen3.lua",       "precision=bf16 fold.tp=2" },
    { "tests/hf/mixtral-aux.lua", "precision=fp8 precision.primary=all fold.tp=2 fold.ep=2" },
    { "tests/hf/dsv3.lua",        "precision=fp64 precision.recipe=tensor precision.place=all fold.pp=2" },
    { "tests/models/dropout.lua", "precision=bf16" },
    { "tests/models/zoo.lua",     "precision=bf16" },
    { "models/deepseek_v3.lua",   "train.recompute=mla_up_proj,mlp,moe_act fold.pp=2 precision=bf16 axes.hidden=16 axes.heads=2 axes.nope=4 axes.rot=4 axes.dim=8 axes.qr=8 axes.kvr=8 axes.dense=8 axes.ffn=8 axes.shared=8 axes.expert=8 axes.nodes=4 axes.prior=16" },
    { "models/deepseek_v2_lite.lua", "train.recompute=shared_experts,layernorm,mla_up_proj fold.dp=2 fold.ep=2 fold.zero=3 precision=fp32 axes.hidden=16 axes.heads=2 axes.nope=4 axes.rot=4 axes.dim=8 axes.kvr=8 axes.dense=8 axes.ffn=8 axes.shared=8 axes.expert=8" },
    { "models/qwen2_moe.lua",     "train.recompute=full fold.tp=2 precision=bf16 axes.hidden=16 axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8 axes.shared=8 axes.expert=8" },
    { "models/qwen3_moe.lua",     "train.recompute=moe,core_attn,layernorm fold.dp=2 fold.ep=2 route.dispatcher=alltoall precision=fp32 axes.hidden=16 axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8 axes.expert=8" },
    { "models/olmoe.lua",         "train.recompute=full fold.cp=2 fold.zero=2 precision=fp32 axes.hidden=16 axes.heads=2 axes.dim=8 axes.ffn=8 axes.expert=8" },
    { "models/mixtral.lua",       "train.recompute=moe fold.pp=2 fold.vpp=2 fold.schedule=interleaved precision=fp64 axes.hidden=16 axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8 axes.expert=4" },
    { "models/llama3.lua",        "train.recompute=full,mlp fold.dp=2 precision=bf16 axes.hidden=16 axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8" },
    { "models/tiny.lua",          "train.recompute=full axes.hidden=16 axes.ffn=8 axes.seq=16" },
    { "tests/models/marks.lua",   "train.recompute=0 precision=bf16" },
};
/* clang-format on */
enum { N = sizeof cases / sizeof *cases };

static int failed;

/* A model of models/ with four layers, and as few tokens. */
static Trace traced(const char *model, Opts *o)
{
    size_t n;
    char *text = file_read(forever, model, &n), *at = strstr(text, "layers, ");

    if (strncmp(model, "models/", 7) || !at)
        return trace(model, o, TRACEquiet);
    at += strcspn(at, "0123456789");
    Source s = { model, strf(forever, "%.*s4%s", (int)(at - text), text,
                             at + strspn(at, "0123456789")) };
    opts_set(o, "axes.seq", "16", NULL);
    opts_set(o, "axes.vocab", "64", NULL);
    return trace_sources(&s, 1, o);
}

static Plan *plan_of(int i, const char *skip)
{
    Opts *o = opts_new(forever);
    char *next, *w = strtok_r(strf(forever, "%s", cases[i].keys), " ", &next);

    for (; w; w = strtok_r(NULL, " ", &next)) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    opts_set(o, "train.batch", "16", NULL);
    if (!opts_given(o, "train.recompute"))
        opts_set(o, "train.recompute", "1e12", NULL);
    Trace t = traced(cases[i].model, o);
    CompileOptions co = { .source = t.source,
                          .nsource = t.nsource,
                          .skip = skip };
    return compile(t.g, &T_host, &co);
}

static double kept(const Plan *p)
{
    const Role *r = &p->role[0];

    return (double)r->prog[role_prog(r, PGstep)].transient / 1024;
}

static double stored(const Plan *p) /* all temporaries of a step */
{
    const Role *r = &p->role[0];
    double sum = 0;

    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog == role_prog(r, PGstep) && r->buf[i].cls == Btemp)
            sum += (double)r->buf[i].bytes;
    return sum;
}

static void compare(int i, Plan *with, Plan *without)
{
    const char *at;
    Trained a = fold_train(with, STEPS), b = fold_train(without, STEPS);
    double most = fold_apart(&a, &b, &at);
    int ok = most == 0 && kept(with) <= kept(without) &&
             stored(with) != stored(without);

    failed += !ok;
    printf("%sok - recompute %s %s: difference %g (%s), none allowed; %.0f KiB "
           "of activations, %.0f without\n",
           ok ? "" : "not ", cases[i].model, cases[i].keys, most, at,
           kept(with), kept(without));
    fflush(stdout);
}

int main(void)
{
    Plan *p[2 * N];

    for (int i = 0; i < 2 * N; i++)
        p[i] = plan_of(i / 2, i % 2 ? "recompute" : NULL);
    fold_share(p, 2 * N);
    for (int i = 0; i < N; i++)
        compare(i, p[2 * i], p[2 * i + 1]);
    return failed != 0;
}
