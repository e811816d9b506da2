/* generate.c: text from a model that has output "logits": the program `forward`
 * on a window of tokens, one at a time, sampled with a seeded generator. Also
 * while a model trains (train.sample_every), when this process holds whole rows
 * of logits: its rank draws, the others take what it drew. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
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
static int seq_of(const Tensor *t)
{
    const PlanDim *d = tensor_axis(t, ROLEseq);

    return d ? (int)(d - t->dim) : -1;
}

/* Where element i that a rank holds is: 0 on every axis but seq, and there. */
static int64_t place_of(const Gen *g, const Tensor *t, int64_t rank, int64_t i)
{
    int64_t seq = -1;

    for (int d = t->nd - 1; d >= 0; d--) {
        int64_t held = dim_held(&t->dim[d]);
        int64_t at = tensor_at(g->x->plan->mesh, &t->dim[d], rank, i % held);
        i /= held;
        if (t->dim[d].role == ROLEseq)
            seq = at;
        else if (at)
            return -1;
    }
    return seq;
}

/* The window's tokens in the first sequence, zeros elsewhere; no labels. */
static void fill(void *self, const Tensor *t, int64_t rank, int64_t micro,
                 void *dst)
{
    const Gen *g = self;
    int tokens = !strcmp(t->name, "tokens");
    int64_t n = tensor_held(t);

    for (int64_t i = 0; i < n; i++) {
        int64_t at = tokens && !micro ? place_of(g, t, rank, i) : -1;
        elem_set(t->dt, dst, i,
                 !tokens                ? -1
                 : at < 0 || at >= g->n ? 0
                                        : (double)g->window[at]);
    }
}

/* Logits at the window's last place, in the first sequence; rank 0 has them. */
static void read_logits(Gen *g)
{
    const Tensor *t = g->logits;
    int sd = seq_of(t), vd = -1;
    int64_t stride[MAXD], step = 1;

    for (int d = t->nd - 1; d >= 0; step *= dim_held(&t->dim[d--]))
        stride[d] = step;
    for (int d = 0; d < t->nd; d++)
        if (t->dim[d].n == g->vocab && d != sd)
            vd = d;
    const void *p = exec_fetch(g->x, 0, t->buf);
    for (int64_t v = 0; v < g->vocab; v++)
        g->p[v] = elem_get(t->dt, p, (g->n - 1) * stride[sd] + v * stride[vd]);
}

/* The k-th largest logit; below it nothing is drawn. */
static double cutoff(const Gen *g, int64_t k)
{
    double least = INFINITY;

    for (int64_t i = 0; i < k && i < g->vocab; i++) {
        double best = -INFINITY;
        for (int64_t v = 0; v < g->vocab; v++)
            if (g->p[v] < least && g->p[v] > best)
                best = g->p[v];
        least = best;
    }
    return least;
}

static int64_t draw(Gen *g, const GenArgs *a)
{
    double max = -INFINITY, sum = 0, floor_ = -INFINITY;
    int64_t best = 0;

    for (int64_t v = 0; v < g->vocab; v++)
        if (g->p[v] > max) {
            max = g->p[v];
            best = v;
        }
    if (a->temperature <= 0)
        return best;
    if (a->topk > 0 && a->topk < g->vocab)
        floor_ = cutoff(g, a->topk);
    for (int64_t v = 0; v < g->vocab; v++) {
        g->p[v] = g->p[v] < floor_ ? 0 : exp((g->p[v] - max) / a->temperature);
        sum += g->p[v];
    }
    double at = uniform(&g->state) * sum;
    for (int64_t v = 0; v < g->vocab; v++)
        if ((at -= g->p[v]) < 0 && g->p[v] > 0)
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
static const char *open_gen(Gen *g, Exec *x, const GenArgs *a)
{
    const Plan *p = x->plan;

    g->x = x;
    g->args = *a;
    g->tokens = find_tensor(p, "tokens", TKinput);
    g->logits = find_tensor(p, "logits", TKoutput);
    if (!g->tokens || !g->logits)
        return p->nrole > 1 ? "the fold has pipeline stages"
               : g->tokens  ? "the model has no output 'logits'"
                            : "the model has no input 'tokens'";
    int td = seq_of(g->tokens), ld = seq_of(g->logits);
    if (td < 0 || ld < 0)
        return "tokens and logits need an axis of sequences";
    g->seq = g->tokens->dim[td].n;
    g->vocab = tensor_elems(g->logits) / tensor_elems(g->tokens);
    for (int d = 0; d < g->logits->nd; d++)
        if (g->logits->dim[d].role != ROLEbatch &&
            g->logits->dim[d].role != ROLEmicro &&
            dim_held(&g->logits->dim[d]) != g->logits->dim[d].n)
            return "a rank has a part of the logits of a sequence (fold.tp, "
                   "fold.cp)";
    g->window = alloc(forever, (size_t)g->seq * sizeof *g->window);
    g->p = alloc(forever, (size_t)g->vocab * sizeof *g->p);
    return NULL;
}

static void push(Gen *g, int64_t token)
{
    if (g->n == g->seq) {
        int64_t keep = g->seq / 2 > 0 ? g->seq / 2 : 0;
        memmove(g->window, g->window + g->n - keep,
                (size_t)keep * sizeof *g->window);
        g->n = keep;
    }
    g->window[g->n++] = token;
}

static void open_text(Gen *g, const Plan *p)
{
    g->text = text_args(p->opts);
    if (!g->text.t) {
        g->text.t = tokenizer_bytes();
        g->text.eod = -1;
    }
}

static void push_prompt(Gen *g, const char *prompt)
{
    const Tokenizer *t = g->text.t;
    Encoder *e = encoder_new(t);
    size_t n = strlen(prompt);
    int start = g->text.eod >= 0 ? g->text.eod : '\n';

    if (!t->bytes && utf8_bad(prompt, n) >= 0)
        err(NULL, "the prompt is no valid UTF-8");
    const char *why = encode(e, prompt, n, 0);
    if (why)
        err(NULL, "the prompt: %s", why);
    for (size_t i = 0; g->text.template && i < vec_len(t->before); i++)
        push(g, t->before[i]);
    for (int64_t i = 0; i < e->n; i++) {
        if (e->id[i] >= g->vocab)
            err(NULL, "%s %d of the prompt is beyond the vocabulary of %lld",
                t->bytes ? "byte" : "token", (int)e->id[i],
                (long long)g->vocab);
        push(g, e->id[i]);
    }
    if (!g->n)
        push(g, start < g->vocab ? start : 0);
    encoder_free(e);
}

/* 0: the text ends here. */
static int print_token(const Gen *g, int64_t t, FILE *out)
{
    size_t n = 0;
    const char *s = tokenizer_text(g->text.t, (int32_t)t, &n);

    if (t == g->text.eod)
        return 0;
    if (s)
        fwrite(s, 1, n, out);
    fflush(out);
    return 1;
}

/* The next token, the same in all processes. */
static int64_t next(Gen *g)
{
    int64_t t = 0;
    Feed f = { fill, g };

    exec_run(g->x, PGforward, &(StepValues){ 0 }, &f);
    if (!g->x->comm->first) {
        read_logits(g);
        t = draw(g, &g->args);
    }
    comm_share(g->x->comm, &t, sizeof t);
    push(g, t);
    return t;
}

int generate_plan(Plan *p, const GenArgs *a, FILE *out)
{
    Gen g = { .state = a->seed };
    const char *from = opts_str(p->opts, "from");

    if (p->mesh->world != 1)
        err(NULL, "generate runs on one rank; the plan is for %lld",
            (long long)p->mesh->world);
    const char *why = open_gen(&g, exec_open(p, comm_open(forever, 1)), a);
    if (why)
        err(NULL, "generate: %s", why);
    open_text(&g, p);
    if (role_prog(&p->role[0], PGinit) >= 0)
        exec_run(g.x, PGinit, NULL, NULL);
    if (from) {
        exec_pull(g.x);
        ckpt_from(g.x, from);
        exec_push(g.x);
    }
    push_prompt(&g, a->prompt);
    fputs(a->prompt, out);
    for (int64_t i = 0; i < a->n; i++)
        if (!print_token(&g, next(&g), out))
            break;
    fputc('\n', out);
    exec_close(g.x);
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
    Gen *g = &s->g;

    if (!out)
        return NULL;
    g->n = 0;
    g->state = (uint64_t)step;
    push_prompt(g, g->args.prompt);
    fputs(g->args.prompt, out);
    for (int64_t i = 0; i < g->args.n; i++)
        if (!print_token(g, next(g), out))
            break;
    fclose(out);
    *n = s->size;
    return s->text;
}
