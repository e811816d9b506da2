/* megatron.c: samples in the order of Megatron-Core's GPTDataset.
 *
 * The documents of a dataset, or of its share, are repeated for as many epochs
 * as the samples need, and shuffled: the document index. Their concatenation is
 * split every seq tokens into samples of seq + 1 tokens; the last token is the
 * first of the next sample. The samples are shuffled too. If less than 80 % of
 * the last epoch's samples are used, both shuffles handle it separately. One
 * RandomState generates all shuffles in this order. */
#include "data.h"

struct SampleOrder {
    const Tokens *t;
    int64_t seq, n, epochs; /* n: samples */
    int64_t ndoc;           /* entries of doc */
    uint32_t *doc;          /* document index */
    uint32_t *shuffle;      /* [n] number in the run -> sample */
    struct Begin {
        int64_t doc;
        int64_t at;
    } * begin; /* [n]: start of a sample */
};

/* Returns the tokens of documents [lo, hi). */
static int64_t count_tokens(const Tokens *tokens, int64_t lo, int64_t hi,
                            const char **why)
{
    int64_t sum = 0, start;

    for (int64_t i = lo; i < hi; i++) {
        int64_t len = tokens_doc(tokens, i, &start);
        if (len < 0 || len > INT32_MAX)
            *why = len < 0 ? "names tokens that are not in the file"
                           : "has a document of more than 2^31 - 1 tokens";
        sum += len > 0 ? len : 0;
    }
    return sum;
}

/* Appends epochs of documents [lo, hi), shuffled together. */
static void put_documents(NpRandom *random, uint32_t *doc, int64_t lo,
                          int64_t hi, int64_t epochs)
{
    int64_t n = 0;

    for (int64_t e = 0; e < epochs; e++)
        for (int64_t i = lo; i < hi; i++)
            doc[n++] = (uint32_t)i;
    np_shuffle(random, doc, n);
}

static void cut_samples(SampleOrder *order)
{
    int64_t doc = 0, at = 0, start, left = order->seq;

    for (int64_t i = 0; i < order->n; i++, left = order->seq) {
        order->begin[i] = (struct Begin){ doc, at };
        for (;;) {
            int64_t len = tokens_doc(order->t, order->doc[doc], &start) - at;
            if (len > left || doc + 1 == order->ndoc)
                break;
            left -= len;
            at = 0;
            doc++;
        }
        at += left;
    }
}

static void put_samples(NpRandom *random, uint32_t *shuffle, int64_t lo,
                        int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        shuffle[i] = (uint32_t)i;
    np_shuffle(random, shuffle + lo, hi - lo);
}

/* Is the last of several epochs shuffled separately? *whole: samples of the
 * epochs before it. */
static int last_apart(int64_t tokens, int64_t epochs, int64_t seq,
                      int64_t samples, int64_t *whole)
{
    *whole = ((epochs - 1) * tokens - 1) / seq;
    return epochs > 1 &&
           samples - *whole < (int64_t)(0.80 * (double)((tokens - 1) / seq));
}

const char *order_new(Arena *a, const Tokens *t, int64_t lo, int64_t hi,
                      int64_t seq, int64_t samples, uint32_t seed,
                      SampleOrder **out)
{
    const char *why = NULL;
    int64_t tokens = count_tokens(t, lo, hi, &why), whole, need, all, bytes;
    SampleOrder *o = alloc(a, sizeof *o);
    NpRandom r;

    *o = (SampleOrder){ .t = t, .seq = seq, .epochs = 1 };
    if (why)
        return why;
    if (samples > 0 && __builtin_mul_overflow(samples, seq, &need))
        return "gives fewer samples than the run takes";
    if (samples > 0 && tokens > 0)
        o->epochs = need / tokens + 1; /* enough for need + 1 tokens */
    if (__builtin_mul_overflow(o->epochs, tokens, &all) ||
        (o->n = (all - 1) / seq) >= UINT32_MAX || hi > INT32_MAX ||
        __builtin_mul_overflow(o->epochs, 4 * (hi - lo), &bytes))
        return "is too large for this order";
    if (o->n < 1)
        return strf(a, "has %ld tokens in %ld documents, a sample needs %ld",
                    tokens, hi - lo, seq + 1);
    int apart = last_apart(tokens, o->epochs, seq, samples, &whole);
    o->ndoc = o->epochs * (hi - lo);
    o->doc = alloc(a, (size_t)bytes);
    o->shuffle = alloc(a, (size_t)o->n * sizeof *o->shuffle);
    o->begin = alloc(a, (size_t)o->n * sizeof *o->begin);
    np_seed(&r, seed);
    put_documents(&r, o->doc, lo, hi, o->epochs - apart);
    if (apart)
        put_documents(&r, o->doc + o->ndoc - (hi - lo), lo, hi, 1);
    cut_samples(o);
    put_samples(&r, o->shuffle, 0, apart ? whole : o->n);
    if (apart)
        put_samples(&r, o->shuffle, whole, o->n);
    *out = o;
    return NULL;
}

int64_t order_samples(const SampleOrder *order)
{
    return order->n;
}

/* ---- the tokens of a sample ---------------------------------------------- */

TokenCursor order_walk(const SampleOrder *order, int64_t i, int64_t from)
{
    const struct Begin *b = &order->begin[order->shuffle[i % order->n]];

    return (TokenCursor){ order, b->doc, b->at + from, order->seq + 1 - from };
}

/* Returns the length of the next contiguous tokens; 0: end of the sample. */
int64_t order_next(TokenCursor *cursor, int64_t *at)
{
    for (; cursor->left > 0 && cursor->doc < cursor->o->ndoc; cursor->doc++) {
        int64_t start,
            len = tokens_doc(cursor->o->t, cursor->o->doc[cursor->doc], &start);
        int64_t rest = len - cursor->at;
        if (rest <= 0) {
            cursor->at = -rest;
            continue;
        }
        *at = start + cursor->at;
        rest = rest < cursor->left ? rest : cursor->left;
        cursor->left -= rest;
        cursor->at += rest;
        return rest;
    }
    return 0;
}

/* ---- shares and blends --------------------------------------------------- */

/* Finds the ends of share i of "969,30,1", as parts of 1. Returns 0 if it is
 * empty, -1 if s is not a list of one to three numbers. */
int split_share(const char *s, int i, double end[2])
{
    double v[3] = { 0 }, at = 0, sum;
    int n = 0;

    for (char *stop; n < 3; s = stop + 1) {
        v[n] = strtod(s, &stop);
        if (stop == s || !(v[n++] >= 0) || (*stop && *stop != ','))
            return -1;
        if (!*stop)
            break;
        if (n == 3)
            return -1;
    }
    sum = np_sum(v, 3);
    if (!(sum > 0) || sum > 1e300)
        return -1;
    for (int k = 0; k < i; k++)
        at += v[k] / sum;
    end[0] = at;
    end[1] = at + v[i] / sum;
    return end[1] > end[0];
}

void blend_normalize(double *w, int n)
{
    double sum = np_sum(w, n);

    for (int i = 0; i < n; i++)
        w[i] /= sum;
}

/* Returns the samples of a blend that come from a dataset of weight w; *built:
 * 0.5 % more, for which Megatron builds it. */
int64_t blend_size(int64_t samples, double w, int64_t *built)
{
    double n = ceil((double)samples * w);

    *built = (int64_t)ceil(n * (1 + 0.005));
    return (int64_t)n;
}
