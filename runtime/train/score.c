/* score.c: perplexity of texts and accuracy of multiple-choice questions, with
 * the definitions of lm-evaluation-harness. A text is split into rows of
 * tokens; the log-probabilities of the last tokens of each row are summed.
 *
 * acc the ending with the largest sum is the right one acc_norm ... with the
 * largest sum divided by the ending's characters +- the standard error, sqrt(p
 * (1 - p) / (n - 1)) */
#include "../../ir/settings/keys.h"
#include "forward.h"

typedef struct ScoreRow { /* tokens [from, n) are predicted from earlier ones */
    const int32_t *id;
    int64_t n, from;
    double logprob; /* sum of natural log-probabilities */
} ScoreRow;

struct ScoreJob {
    const GenArgs *args;
    TextArgs text;
    ScoreRow *row;      /* vec */
    int64_t choices;    /* the first rows are endings of `question` */
    Question *question; /* vec */
    int64_t bytes;      /* bytes of text of the other rows */
};

/* ---- rows ---------------------------------------------------------------- */

/* Returns the token before the start of a text; -1: none. */
static int32_t begin_of(const TextArgs *args)
{
    size_t n = vec_len(args->t->before);

    return args->template && n ? args->t->before[n - 1] : args->eod;
}

static void encode_text(Encoder *encoder, const char *path, const char *s,
                        size_t n)
{
    const char *why = utf8_bad(s, n) >= 0 && !encoder->t->bytes
                          ? "is no valid UTF-8"
                          : encode(encoder, s, n, 0);

    if (why)
        err(NULL, "%s: \"%.60s\" %s", path, s, why);
}

/* Adds a row for context and ending; white space at the end of the context
 * belongs to the ending. */
static void add_ending(ScoreJob *job, Encoder *encoder,
                       const Question *question, const char *ending)
{
    size_t first, keep = text_stripped(question->context, &first);
    const char *whole = strf(forever, "%s %s", question->context, ending);
    int32_t begin = begin_of(&job->text);
    int lead = job->text.template || !keep;

    encode_text(encoder, job->args->choices, whole, keep);
    int64_t context = encoder->n;
    encode_text(encoder, job->args->choices, whole, strlen(whole));
    if (lead && begin < 0)
        err(NULL,
            "%s: a context is empty, and the tokenizer has no token that ends "
            "a text (data.eod)",
            job->args->choices);
    if (encoder->n <= context)
        err(NULL, "%s: the ending \"%.60s\" has no tokens of its own",
            job->args->choices, ending);
    int32_t *id = alloc(forever, (size_t)(encoder->n + 1) * sizeof *id);
    id[0] = begin;
    memcpy(id + lead, encoder->id, (size_t)encoder->n * sizeof *id);
    vec_push(forever, job->row,
             ((ScoreRow){ id, encoder->n + lead, context + lead, 0 }));
}

static void add_questions(ScoreJob *job)
{
    Encoder *e = encoder_new(job->text.t);

    job->question = questions_read(forever, job->args->choices);
    for (size_t i = 0; i < vec_len(job->question); i++) {
        const Question *q = &job->question[i];
        for (size_t k = 0; k < vec_len(q->ending); k++)
            add_ending(job, e, q, q->ending[k]);
    }
    job->choices = (int64_t)vec_len(job->row);
    encoder_free(e);
}

/* Adds a document as windows of seq inputs: each token is predicted once, the
 * first from `begin`; the last window starts earlier so that it is full. */
static void add_document(ScoreJob *job, const int32_t *id, int64_t n,
                         int64_t seq)
{
    int32_t *all = alloc(forever, (size_t)(n + 1) * sizeof *all);
    int32_t begin = begin_of(&job->text);
    int lead = begin >= 0;
    Text text = { .arena = arena_new() };

    *all = begin;
    memcpy(all + lead, id, (size_t)n * sizeof *id);
    n += lead;
    for (int64_t from = 1; from < n; from += seq) {
        int64_t end = from + seq < n ? from + seq : n;
        int64_t at = end - seq - 1 > 0 ? end - seq - 1 : 0;
        vec_push(forever, job->row,
                 ((ScoreRow){ all + at, end - at, from - at, 0 }));
    }
    decode(job->text.t, all + 1, n - 1, &text);
    job->bytes += (int64_t)text.len;
    arena_free(text.arena);
}

static void add_texts(ScoreJob *job, const Plan *p, int64_t seq)
{
    TextArgs a = job->text;
    const char *path = job->args->perplexity;
    int format = opts_data_format(p->opts);
    Tokens tokens;
    const char *why = tokens_kind(forever, path, format, a.t->vocab, &tokens);

    a.eod = -1;
    format = tokens.format;
    if (!why && format_is_text(format)) {
        path = tokenized(forever, &a, path, format);
        format = FORMATmegatron;
    }
    if (!why)
        why = tokens_open(forever, path, format, a.t->vocab, NULL, &tokens);
    if (why)
        err(NULL, "%s %s", path, why);
    for (int64_t i = 0; i < tokens.docs; i++) {
        int64_t start, n = tokens_doc(&tokens, i, &start);
        if (n < 0)
            err(NULL, "%s: document %ld lies outside the file", path, i);
        int32_t *id = alloc(forever, (size_t)n * sizeof *id + 1);
        tokens_take(&tokens, start, n, id);
        add_document(job, id, n, seq);
    }
    tokens_close(&tokens);
}

/* ---- probabilities ------------------------------------------------------- */

typedef struct ScoreBatch {
    const ForwardPass *f;
    ScoreRow *row;
} ScoreBatch;

static double logprob(const double *logit, int64_t n, int32_t token)
{
    double max = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++)
        max = logit[i] > max ? logit[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += exp(logit[i] - max);
    return logit[token] - max - log(sum);
}

static void score_rows(void *ctx, int64_t lo, int64_t hi)
{
    const ScoreBatch *batch = ctx;
    const ForwardPass *pass = batch->f;
    double *logit = malloc((size_t)pass->vocab * sizeof *logit);

    if (!logit)
        die("not enough memory");
    for (int64_t r = lo; r < hi; r++)
        for (int64_t i = batch->row[r].from; i < batch->row[r].n; i++) {
            forward_logits(pass, r, i - 1, logit);
            batch->row[r].logprob +=
                logprob(logit, pass->vocab, batch->row[r].id[i]);
        }
    free(logit);
}

/* Copies a row to a sequence; a longer row loses its first tokens. */
static void put_row(ForwardPass *pass, int64_t sequence, ScoreRow *row,
                    const char *path)
{
    int64_t cut = row->n - 1 > pass->seq ? row->n - 1 - pass->seq : 0;

    if (row->from - cut < 1)
        err(NULL, "%s: %ld tokens to predict, axes.%s is %ld", path,
            row->n - row->from, tensor_axis(pass->tokens, ROLEseq)->axis,
            pass->seq);
    row->id += cut;
    row->n -= cut;
    row->from -= cut;
    for (int64_t i = 0; i < row->n; i++)
        if (row->id[i] < 0 || row->id[i] >= pass->vocab)
            err(NULL, "%s: token %d is beyond the vocabulary of %ld", path,
                (int)row->id[i], pass->vocab);
    pass->n[sequence] = row->n - 1;
    memcpy(pass->window + sequence * pass->seq, row->id,
           (size_t)(row->n - 1) * sizeof *row->id);
}

static void score_all(ScoreJob *job, ForwardPass *pass)
{
    Pool *pool = pool_open(0);
    int64_t n = (int64_t)vec_len(job->row), k;

    for (int64_t at = 0; at < n; at += k) {
        k = n - at < pass->batch ? n - at : pass->batch;
        for (int64_t i = 0; i < pass->batch; i++)
            pass->n[i] = 0;
        for (int64_t i = 0; i < k; i++)
            put_row(pass, i, &job->row[at + i],
                    at + i < job->choices ? job->args->choices
                                          : job->args->perplexity);
        forward_run(pass);
        pool_run(pool, score_rows, &(ScoreBatch){ pass, job->row + at }, k, 1);
        if (isatty(2))
            fprintf(stderr, "\r%ld of %ld sequences ", at + k, n);
    }
    if (isatty(2))
        fputs("\r\033[K", stderr);
    pool_close(pool);
}

/* ---- results ------------------------------------------------------------- */

/* Does an earlier question have the same rows? Results of equal rows may differ
 * by rounding. */
static int is_repeated(const Question *question, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (!strcmp(question->ending[k], question->ending[i]))
            return 1;
    return 0;
}

/* Returns the first ending with the largest sum; characters: sums are divided
 * by the ending's characters. */
static int64_t best_of(const ScoreRow *row, const Question *question,
                       int characters)
{
    int64_t best = 0;
    double most = -INFINITY;

    for (size_t i = 0; i < vec_len(question->ending); i++) {
        if (is_repeated(question, i))
            continue;
        int64_t count = 0;
        for (const char *s = question->ending[i]; *s; s++)
            count += (*s & 0xc0) != 0x80;
        double v = row[i].logprob / (double)(characters ? count : 1);
        if (v > most) {
            most = v;
            best = (int64_t)i;
        }
    }
    return best;
}

static void print_choices(const ScoreJob *job, FILE *out)
{
    double n = (double)vec_len(job->question), right[2] = { 0, 0 };
    const ScoreRow *row = job->row;

    for (size_t i = 0; i < vec_len(job->question); i++) {
        const Question *q = &job->question[i];
        for (int k = 0; k < 2; k++)
            right[k] += best_of(row, q, k) == q->right;
        row += vec_len(q->ending);
    }
    fprintf(out, "%s: ", job->args->choices);
    for (int k = 0; k < 2; k++) {
        double p = right[k] / n;
        fprintf(out, "%s %.4f", k ? ", acc_norm" : "acc", p);
        if (n > 1)
            fprintf(out, " +- %.4f", sqrt(p * (1 - p) / (n - 1)));
    }
    fprintf(out, ", %.0f questions\n", n);
}

static void print_perplexity(const ScoreJob *job, FILE *out)
{
    double sum = 0, count = 0;

    for (size_t i = (size_t)job->choices; i < vec_len(job->row); i++) {
        sum += job->row[i].logprob;
        count += (double)(job->row[i].n - job->row[i].from);
    }
    fprintf(out,
            "%s: perplexity %.6g of a token (loss %.6f), %.6f bits a byte; "
            "%.0f tokens, %ld bytes\n",
            job->args->perplexity, exp(-sum / count), -sum / count,
            -sum / log(2) / (double)job->bytes, count, job->bytes);
}

/* ---- interface ----------------------------------------------------------- */

enum { MOSTTOKENS = 4096, MOSTLOGITS = 1 << 28, ROUND = 32 };

ScoreJob *score_open(const Plan *p, const GenArgs *args)
{
    ScoreJob *j = alloc(forever, sizeof *j);

    *j = (ScoreJob){ .args = args, .text = forward_text(p) };
    if (args->choices)
        add_questions(j);
    if (args->perplexity)
        add_texts(j, p, forward_seq(p)->n);
    if (vec_len(j->row) == (size_t)j->choices && args->perplexity)
        err(NULL, "%s has no tokens to predict", args->perplexity);
    return j;
}

/* Is the sequence length fixed by a parameter that has its axis? */
static int fixed_seq(const Plan *p)
{
    const Role *role = &p->role[0];

    for (int i = 0; i < role->ntensor; i++)
        if (role->tensor[i].kind != TKinput &&
            role->tensor[i].kind != TKoutput &&
            tensor_axis(&role->tensor[i], ROLEseq))
            return 1;
    return 0;
}

static int set_axis(Opts *opts, const PlanDim *dim, int64_t n)
{
    const char *key = intern(strf(forever, "axes.%s", dim->axis));

    if (n == dim->n)
        return 0;
    opts_set(opts, key, strf(forever, "%ld", n), NULL);
    return 1;
}

int score_sizes(const ScoreJob *job, const Plan *p, Opts *opts)
{
    const PlanDim *seq = forward_seq(p), *batch = forward_batch(p);
    int64_t longest = 1, rows = (int64_t)vec_len(job->row), n = seq->n, vocab;

    if (!batch)
        return 0;
    for (int64_t i = 0; i < rows; i++)
        longest = job->row[i].n > longest ? job->row[i].n : longest;
    if (!fixed_seq(p) &&
        !opts_given(opts, strf(forever, "axes.%s", seq->axis)) &&
        longest + ROUND < seq->n)
        n = (longest + ROUND - 1) / ROUND * ROUND;
    vocab = plan_vocab(p);
    int64_t most = MOSTLOGITS / (vocab > 0 ? vocab : 1);
    most = (most < MOSTTOKENS ? most : MOSTTOKENS) / n;
    most = most < rows ? most : rows;
    most = most < 1 ? 1 : most;
    opts_set(opts, "train.batch", strf(forever, "%ld", most), NULL);
    return set_axis(opts, seq, n) + set_axis(opts, batch, most) > 0;
}

int score_plan(ScoreJob *job, Plan *p, FILE *out)
{
    ForwardPass f;

    forward_alone(&f, p);
    score_all(job, &f);
    if (job->args->choices)
        print_choices(job, out);
    if (job->args->perplexity)
        print_perplexity(job, out);
    exec_close(f.x);
    return 0;
}
