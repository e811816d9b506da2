/* generate.c: text from a model that has output "logits": the program `forward`
 * on a window of tokens, one at a time, sampled with a seeded generator. Also
 * while a model trains (train.sample_every), when this process holds whole rows
 * of logits: its rank draws, the others take what it drew. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "train.h"

typedef struct Gen {
    Exec *x;
    const Tensor *tokens, *logits;
    int64_t seq, vocab;
    int64_t *window;
    int64_t n; /* tokens so far, at most seq */
    double *p; /* vocab */
    TextArgs text;
    GenArgs args;
    uint64_t state;
} Gen;

static double uniform(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Its place among the tensor's axes; -1: there is none. */
static int seq_of(const Tensor *tensor)
{
    const PlanDim *d = tensor_axis(tensor, ROLEseq);

    return d ? (int)(d - tensor->dim) : -1;
}

/* Where element i that a rank holds is: 0 on every axis but seq, and there. */
static int64_t place_of(const Gen *gen, const Tensor *tensor, int64_t rank,
                        int64_t i)
{
    int64_t seq = -1;

    for (int d = tensor->nd - 1; d >= 0; d--) {
        int64_t held = dim_held(&tensor->dim[d]);
        int64_t at =
            tensor_at(gen->x->plan->mesh, &tensor->dim[d], rank, i % held);
        i /= held;
        if (tensor->dim[d].role == ROLEseq)
            seq = at;
        else if (at)
            return -1;
    }
    return seq;
}

/* The window's tokens in the first sequence, zeros elsewhere; no labels. */
static void fill(void *self, const Tensor *tensor, int64_t rank, int64_t micro,
                 void *dst)
{
    const Gen *gen = self;
    int tokens = !strcmp(tensor->name, "tokens");
    int64_t n = tensor_held(tensor);

    for (int64_t i = 0; i < n; i++) {
        int64_t at = tokens && !micro ? place_of(gen, tensor, rank, i) : -1;
        elem_set(tensor->dt, dst, i,
                 !tokens                  ? -1
                 : at < 0 || at >= gen->n ? 0
                                          : (double)gen->window[at]);
    }
}

/* Logits at the window's last place, in the first sequence; rank 0 has them. */
static void read_logits(Gen *gen)
{
    const Tensor *tensor = gen->logits;
    int sd = seq_of(tensor), vd = -1;
    int64_t stride[MAXD], step = 1;

    for (int d = tensor->nd - 1; d >= 0; step *= dim_held(&tensor->dim[d--]))
        stride[d] = step;
    for (int d = 0; d < tensor->nd; d++)
        if (tensor->dim[d].n == gen->vocab && d != sd)
            vd = d;
    const void *p = exec_fetch(gen->x, 0, tensor->buf);
    for (int64_t v = 0; v < gen->vocab; v++)
        gen->p[v] =
            elem_get(tensor->dt, p, (gen->n - 1) * stride[sd] + v * stride[vd]);
}

/* The k-th largest logit; below it nothing is drawn. */
static double cutoff(const Gen *gen, int64_t k)
{
    double least = INFINITY;

    for (int64_t i = 0; i < k && i < gen->vocab; i++) {
        double best = -INFINITY;
        for (int64_t v = 0; v < gen->vocab; v++)
            if (gen->p[v] < least && gen->p[v] > best)
                best = gen->p[v];
        least = best;
    }
    return least;
}

static int64_t draw(Gen *gen, const GenArgs *a)
{
    double max = -INFINITY, sum = 0, floor_ = -INFINITY;
    int64_t best = 0;

    for (int64_t v = 0; v < gen->vocab; v++)
        if (gen->p[v] > max) {
            max = gen->p[v];
            best = v;
        }
    if (a->temperature <= 0)
        return best;
    if (a->topk > 0 && a->topk < gen->vocab)
        floor_ = cutoff(gen, a->topk);
    for (int64_t v = 0; v < gen->vocab; v++) {
        gen->p[v] =
            gen->p[v] < floor_ ? 0 : exp((gen->p[v] - max) / a->temperature);
        sum += gen->p[v];
    }
    double at = uniform(&gen->state) * sum;
    for (int64_t v = 0; v < gen->vocab; v++)
        if ((at -= gen->p[v]) < 0 && gen->p[v] > 0)
            return v;
    return best;
}

static const Tensor *find_tensor(const Plan *p, const char *name,
                                 TensorKind kind)
{
    const Role *r = &p->role[role_of(p, 0)];
    int i = role_tensor(r, name);

    return i >= 0 && r->tensor[i].kind == kind ? &r->tensor[i] : NULL;
}

/* Null, or why not. */
static const char *open_gen(Gen *gen, Exec *x, const GenArgs *a)
{
    const Plan *p = x->plan;

    gen->x = x;
    gen->args = *a;
    gen->tokens = find_tensor(p, "tokens", TKinput);
    gen->logits = find_tensor(p, "logits", TKoutput);
    if (!gen->tokens || !gen->logits)
        return p->nrole > 1  ? "the fold has pipeline stages"
               : gen->tokens ? "the model has no output 'logits'"
                             : "the model has no input 'tokens'";
    int td = seq_of(gen->tokens), ld = seq_of(gen->logits);
    if (td < 0 || ld < 0)
        return "tokens and logits need an axis of sequences";
    gen->seq = gen->tokens->dim[td].n;
    gen->vocab = tensor_elems(gen->logits) / tensor_elems(gen->tokens);
    for (int d = 0; d < gen->logits->nd; d++)
        if (gen->logits->dim[d].role != ROLEbatch &&
            gen->logits->dim[d].role != ROLEmicro &&
            dim_held(&gen->logits->dim[d]) != gen->logits->dim[d].n)
            return "a rank has a part of the logits of a sequence (fold.tp, "
                   "fold.cp)";
    gen->window = alloc(forever, (size_t)gen->seq * sizeof *gen->window);
    gen->p = alloc(forever, (size_t)gen->vocab * sizeof *gen->p);
    return NULL;
}

static void push(Gen *gen, int64_t token)
{
    if (gen->n == gen->seq) {
        int64_t keep = gen->seq / 2 > 0 ? gen->seq / 2 : 0;
        memmove(gen->window, gen->window + gen->n - keep,
                (size_t)keep * sizeof *gen->window);
        gen->n = keep;
    }
    gen->window[gen->n++] = token;
}

static void open_text(Gen *gen, const Plan *p)
{
    gen->text = text_args(p->opts);
    if (!gen->text.t) {
        gen->text.t = tokenizer_bytes();
        gen->text.eod = -1;
    }
}

static void push_prompt(Gen *gen, const char *prompt)
{
    const Tokenizer *tokenizer = gen->text.t;
    Encoder *e = encoder_new(tokenizer);
    size_t n = strlen(prompt);
    int start = gen->text.eod >= 0 ? gen->text.eod : '\n';

    if (!tokenizer->bytes && utf8_bad(prompt, n) >= 0)
        err(NULL, "the prompt is no valid UTF-8");
    const char *why = encode(e, prompt, n, 0);
    if (why)
        err(NULL, "the prompt: %s", why);
    for (size_t i = 0; gen->text.template && i < vec_len(tokenizer->before);
         i++)
        push(gen, tokenizer->before[i]);
    for (int64_t i = 0; i < e->n; i++) {
        if (e->id[i] >= gen->vocab)
            err(NULL, "%s %d of the prompt is beyond the vocabulary of %lld",
                tokenizer->bytes ? "byte" : "token", (int)e->id[i],
                (long long)gen->vocab);
        push(gen, e->id[i]);
    }
    if (!gen->n)
        push(gen, start < gen->vocab ? start : 0);
    encoder_free(e);
}

/* 0: the text ends here. */
static int print_token(const Gen *gen, int64_t t, FILE *out)
{
    size_t n = 0;
    const char *s = tokenizer_text(gen->text.t, (int32_t)t, &n);

    if (t == gen->text.eod)
        return 0;
    if (s)
        fwrite(s, 1, n, out);
    fflush(out);
    return 1;
}

/* The next token, the same in all processes. */
static int64_t next(Gen *gen)
{
    int64_t t = 0;
    Feed f = { fill, gen };

    exec_run(gen->x, PGforward, &(StepValues){ 0 }, &f);
    if (!gen->x->comm->first) {
        read_logits(gen);
        t = draw(gen, &gen->args);
    }
    comm_share(gen->x->comm, &t, sizeof t);
    push(gen, t);
    return t;
}

/* The model with its values and the prompt. */
static void open_alone(Gen *gen, Plan *p, const GenArgs *a)
{
    const char *from = opts_str(p->opts, "from");

    if (p->mesh->world != 1)
        err(NULL, "generate runs on one rank; the plan is for %lld",
            (long long)p->mesh->world);
    const char *why = open_gen(gen, exec_open(p, comm_open(forever, 1)), a);
    if (why)
        err(NULL, "generate: %s", why);
    open_text(gen, p);
    if (role_prog(&p->role[0], PGinit) >= 0)
        exec_run(gen->x, PGinit, NULL, NULL);
    if (from) {
        exec_pull(gen->x);
        ckpt_from(gen->x, from);
        exec_push(gen->x);
    }
    push_prompt(gen, a->prompt);
}

int generate_plan(Plan *p, const GenArgs *a, FILE *out)
{
    Gen gen = { .state = a->seed };

    open_alone(&gen, p, a);
    fputs(a->prompt, out);
    for (int64_t i = 0; i < a->n; i++)
        if (!print_token(&gen, next(&gen), out))
            break;
    fputc('\n', out);
    exec_close(gen.x);
    return 0;
}

static void print_logit(const Gen *gen, int64_t token, double total, FILE *out)
{
    size_t n = 0;
    const char *s = tokenizer_text(gen->text.t, (int32_t)token, &n);
    Text text = { .arena = forever };

    put_quoted(&text, s ? strf(forever, "%.*s", (int)n, s) : "", "\\x%02x");
    fprintf(out, "%8lld  %-20s %13.6f  %.6f\n", (long long)token, text.s,
            gen->p[token], exp(gen->p[token] - total));
}

/* The largest first, with their probabilities. */
int logits_plan(Plan *p, const GenArgs *a, FILE *out)
{
    Gen gen = { .state = a->seed };
    Feed f = { fill, &gen };
    int64_t k = a->topk > 0 ? a->topk : 10;
    double max = -INFINITY, sum = 0;

    open_alone(&gen, p, a);
    exec_run(gen.x, PGforward, &(StepValues){ 0 }, &f);
    read_logits(&gen);
    for (int64_t v = 0; v < gen.vocab; v++)
        max = gen.p[v] > max ? gen.p[v] : max;
    for (int64_t v = 0; v < gen.vocab; v++)
        sum += exp(gen.p[v] - max);
    fprintf(out, "%8s  %-20s %13s  probability, after %lld tokens\n", "token",
            "text", "logit", (long long)gen.n);
    for (int64_t i = 0; i < k && i < gen.vocab; i++) {
        int64_t best = 0;
        for (int64_t v = 1; v < gen.vocab; v++)
            best = gen.p[v] > gen.p[best] ? v : best;
        print_logit(&gen, best, max + log(sum), out);
        gen.p[best] = -INFINITY;
    }
    exec_close(gen.x);
    return 0;
}

/* ---- samples of a run ---------------------------------------------------- */

struct Sampler {
    Gen g;
    char *text;
    size_t size;
};

Sampler *sampler_open(Arena *a, Exec *x)
{
    Sampler *s = alloc(a, sizeof *s);
    const char *prompt = opts_str(x->plan->opts, "train.sample_prompt");
    GenArgs args = { .prompt = prompt ? prompt : "",
                     .temperature = 0.8,
                     .n = opts_int(x->plan->opts, "train.sample_tokens") };
    const char *why = open_gen(&s->g, x, &args);

    if (why)
        err(opts_loc(x->plan->opts, "train.sample_every"),
            "train.sample_every: %s", why);
    open_text(&s->g, x->plan);
    return s;
}

char *sample(Sampler *s, int64_t step, size_t *n)
{
    FILE *out = open_memstream(&s->text, &s->size);
    Gen *gen = &s->g;

    if (!out)
        return NULL;
    gen->n = 0;
    gen->state = (uint64_t)step;
    push_prompt(gen, gen->args.prompt);
    fputs(gen->args.prompt, out);
    for (int64_t i = 0; i < gen->args.n; i++)
        if (!print_token(gen, next(gen), out))
            break;
    fclose(out);
    *n = s->size;
    return s->text;
}
