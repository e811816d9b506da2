/* generate.c: generates text by a model with output "logits": runs the program
 * `forward` on a window of tokens once a token and samples with a seeded
 * generator. During training (train.sample_every), a process that holds whole
 * rows of logits draws tokens for all ranks. */
#include "forward.h"

typedef struct Gen {
    ForwardPass f;
    double *p; /* [vocab] */
    GenArgs args;
    uint64_t state;
} Gen;

static double uniform(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15ull;
    return (double)(splitmix64(*s) >> 11) * 0x1p-53;
}

/* Returns the k-th largest logit; smaller ones are never drawn. */
static double cutoff(const Gen *gen, int64_t k)
{
    double least = INFINITY;

    for (int64_t i = 0; i < k && i < gen->f.vocab; i++) {
        double best = -INFINITY;
        for (int64_t v = 0; v < gen->f.vocab; v++)
            if (gen->p[v] < least && gen->p[v] > best)
                best = gen->p[v];
        least = best;
    }
    return least;
}

static int64_t draw(Gen *gen, const GenArgs *args)
{
    double max = -INFINITY, sum = 0, floor_ = -INFINITY;
    int64_t best = 0;

    for (int64_t v = 0; v < gen->f.vocab; v++)
        if (gen->p[v] > max) {
            max = gen->p[v];
            best = v;
        }
    if (args->temperature <= 0)
        return best;
    if (args->topk > 0 && args->topk < gen->f.vocab)
        floor_ = cutoff(gen, args->topk);
    for (int64_t v = 0; v < gen->f.vocab; v++) {
        gen->p[v] =
            gen->p[v] < floor_ ? 0 : exp((gen->p[v] - max) / args->temperature);
        sum += gen->p[v];
    }
    double at = uniform(&gen->state) * sum;
    for (int64_t v = 0; v < gen->f.vocab; v++)
        if ((at -= gen->p[v]) < 0 && gen->p[v] > 0)
            return v;
    return best;
}

/* Returns null, or the reason why the model cannot generate. */
static const char *open_gen(Gen *gen, Exec *exec, const GenArgs *args)
{
    const char *why = forward_open(&gen->f, exec);

    gen->args = *args;
    if (!why)
        gen->p = alloc(forever, (size_t)gen->f.vocab * sizeof *gen->p);
    return why;
}

static void push(Gen *gen, int64_t token)
{
    ForwardPass *pass = &gen->f;

    if (*pass->n == pass->seq) {
        int64_t keep = pass->seq / 2;
        memmove(pass->window, pass->window + *pass->n - keep,
                (size_t)keep * sizeof *pass->window);
        *pass->n = keep;
    }
    pass->window[(*pass->n)++] = (int32_t)token;
}

static void push_prompt(Gen *gen, const char *prompt)
{
    const Tokenizer *tokenizer = gen->f.text.t;
    Encoder *encoder = encoder_new(tokenizer);
    size_t n = strlen(prompt);
    int start = gen->f.text.eod >= 0 ? gen->f.text.eod : '\n';

    if (!tokenizer->bytes && utf8_bad(prompt, n) >= 0)
        err(NULL, "the prompt is no valid UTF-8");
    const char *why = encode(encoder, prompt, n, 0);
    if (why)
        err(NULL, "the prompt: %s", why);
    for (size_t i = 0; gen->f.text.template && i < vec_len(tokenizer->before);
         i++)
        push(gen, tokenizer->before[i]);
    for (int64_t i = 0; i < encoder->n; i++) {
        int64_t below = gen->f.tokens->below;
        if (below && encoder->id[i] >= below)
            err(NULL, "%s %d of the prompt is beyond the vocabulary of %ld",
                tokenizer->bytes ? "byte" : "token", (int)encoder->id[i],
                below);
        push(gen, encoder->id[i]);
    }
    if (!*gen->f.n)
        push(gen, start < gen->f.vocab ? start : 0);
    encoder_free(encoder);
}

/* Prints a token. Returns 0 at the end of the text. */
static int print_token(const Gen *gen, int64_t t, FILE *out)
{
    size_t n = 0;
    const char *s = tokenizer_text(gen->f.text.t, (int32_t)t, &n);

    if (t == gen->f.text.eod)
        return 0;
    if (s)
        fwrite(s, 1, n, out);
    fflush(out);
    return 1;
}

/* Reads the logits after the last token. */
static void read_logits(Gen *gen)
{
    forward_logits(&gen->f, 0, *gen->f.n - 1, gen->p);
}

/* Returns the next token, equal in all processes. */
static int64_t next(Gen *gen)
{
    int64_t t = 0;
    Comm *comm = gen->f.x->comm;

    forward_run(&gen->f);
    if (!comm->first) {
        read_logits(gen);
        t = draw(gen, &gen->args);
    }
    comm_share(comm, &t, sizeof t);
    push(gen, t);
    return t;
}

/* Opens the model with its values and encodes the prompt. */
static void open_alone(Gen *gen, Plan *p, const GenArgs *args)
{
    forward_alone(&gen->f, p);
    gen->args = *args;
    gen->p = alloc(forever, (size_t)gen->f.vocab * sizeof *gen->p);
    push_prompt(gen, args->prompt);
}

int generate_plan(Plan *p, const GenArgs *args, FILE *out)
{
    Gen gen = { .state = args->seed };

    open_alone(&gen, p, args);
    fputs(args->prompt, out);
    for (int64_t i = 0; i < args->n; i++)
        if (!print_token(&gen, next(&gen), out))
            break;
    fputc('\n', out);
    exec_close(gen.f.x);
    return 0;
}

static void print_logit(const Gen *gen, int64_t token, double total, FILE *out)
{
    size_t n = 0;
    const char *s = tokenizer_text(gen->f.text.t, (int32_t)token, &n);
    Text text = { .arena = forever };

    put_quoted(&text, s ? strf(forever, "%.*s", (int)n, s) : "", "\\x%02x");
    fprintf(out, "%8ld  %-20s %13.6f  %.6f\n", token, text.s, gen->p[token],
            exp(gen->p[token] - total));
}

/* Prints the largest logits first, with their probabilities. */
int logits_plan(Plan *p, const GenArgs *args, FILE *out)
{
    Gen gen = { .state = args->seed };
    int64_t k = args->topk > 0 ? args->topk : 10;
    double max = -INFINITY, sum = 0;

    open_alone(&gen, p, args);
    forward_run(&gen.f);
    read_logits(&gen);
    for (int64_t v = 0; v < gen.f.vocab; v++)
        max = gen.p[v] > max ? gen.p[v] : max;
    for (int64_t v = 0; v < gen.f.vocab; v++)
        sum += exp(gen.p[v] - max);
    fprintf(out, "%8s  %-20s %13s  probability, after %ld tokens\n", "token",
            "text", "logit", *gen.f.n);
    for (int64_t i = 0; i < k && i < gen.f.vocab; i++) {
        int64_t best = 0;
        for (int64_t v = 1; v < gen.f.vocab; v++)
            best = gen.p[v] > gen.p[best] ? v : best;
        print_logit(&gen, best, max + log(sum), out);
        gen.p[best] = -INFINITY;
    }
    exec_close(gen.f.x);
    return 0;
}

/* ---- samples of a run ---------------------------------------------------- */

struct Sampler {
    Gen g;
    char *text;
    size_t size;
};

Sampler *sampler_open(Arena *a, Exec *exec)
{
    Sampler *s = alloc(a, sizeof *s);
    const char *prompt = opts_str(exec->plan->opts, "train.sample_prompt");
    GenArgs args = { .prompt = prompt ? prompt : "",
                     .temperature = 0.8,
                     .n = opts_int(exec->plan->opts, "train.sample_tokens") };
    const char *why = open_gen(&s->g, exec, &args);

    if (why)
        err(opts_loc(exec->plan->opts, "train.sample_every"),
            "train.sample_every: %s", why);
    return s;
}

char *sample(Sampler *sampler, int64_t step, size_t *n)
{
    FILE *out = open_memstream(&sampler->text, &sampler->size);
    Gen *gen = &sampler->g;

    if (!out)
        return NULL;
    *gen->f.n = 0;
    gen->state = (uint64_t)step;
    push_prompt(gen, gen->args.prompt);
    fputs(gen->args.prompt, out);
    for (int64_t i = 0; i < gen->args.n; i++)
        if (!print_token(gen, next(gen), out))
            break;
    fclose(out);
    *n = sampler->size;
    return sampler->text;
}
