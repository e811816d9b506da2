/* ngram.c: n-gram models as a baseline. The validation loss of a byte model is
 * printed beside the cross-entropies, in nats, of n-gram models of the training
 * text, on the same samples: a model that learned only pairs of letters reaches
 * the bigram's.
 *
 * Witten-Bell interpolation has no parameter to tune: with c counts after a
 * context h and t distinct followers,
 *
 *     p(w | h) = (c(h w) + t(h) p(w | shorter h)) / (c(h) + t(h))
 *
 * down to the uniform distribution. A sample's first byte has no context, for
 * the model too. */
#include "data.h"

enum { BYTES = 256 };

typedef struct NgramCounts { /* counts for one context length */
    int64_t contexts;
    uint32_t *pair;          /* [contexts][BYTES] */
    uint32_t *total, *kinds; /* [contexts] */
} NgramCounts;

static int counts_new(NgramCounts *counts, int64_t contexts)
{
    counts->contexts = contexts;
    counts->pair = calloc((size_t)(contexts * BYTES), sizeof *counts->pair);
    counts->total = calloc((size_t)contexts, sizeof *counts->total);
    counts->kinds = calloc((size_t)contexts, sizeof *counts->kinds);
    return counts->pair && counts->total && counts->kinds;
}

static void counts_free(NgramCounts *counts)
{
    free(counts->pair);
    free(counts->total);
    free(counts->kinds);
}

static void count(NgramCounts *counts, int64_t h, int32_t w)
{
    counts->kinds[h] += counts->pair[h * BYTES + w]++ == 0;
    counts->total[h]++;
}

static double prob(const NgramCounts *counts, int64_t h, int32_t w,
                   double shorter)
{
    double t = counts->kinds[h], n = counts->total[h];

    return n ? (counts->pair[h * BYTES + w] + t * shorter) / (n + t) : shorter;
}

static void learn(NgramCounts c[NGRAM], const int32_t *s, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        count(&c[0], 0, s[i]);
        count(&c[1], s[i - 1], s[i]);
        if (i > 1)
            count(&c[2], s[i - 2] * BYTES + s[i - 1], s[i]);
    }
}

/* Adds -log p of each byte but the first. */
static void score(const NgramCounts c[NGRAM], const int32_t *s, int64_t n,
                  double sum[NGRAM])
{
    for (int64_t i = 1; i < n; i++) {
        double p = prob(&c[0], 0, s[i], 1.0 / BYTES);
        sum[0] -= log(p);
        p = prob(&c[1], s[i - 1], s[i], p);
        sum[1] -= log(p);
        if (i > 1)
            p = prob(&c[2], s[i - 2] * BYTES + s[i - 1], s[i], p);
        sum[2] -= log(p);
    }
}

static int is_bytes(const int32_t *s, int64_t n)
{
    while (n > 0 && s[n - 1] >= 0 && s[n - 1] < BYTES)
        n--;
    return n == 0;
}

static int each(NgramCounts c[NGRAM], const Data *data, int64_t samples,
                int32_t *s, double sum[NGRAM])
{
    for (int64_t k = 0; k < samples; k++) {
        int64_t n = data_sample(data, k, s);
        if (!is_bytes(s, n))
            return 0;
        if (sum)
            score(c, s, n, sum);
        else
            learn(c, s, n);
    }
    return 1;
}

int ngrams(Arena *a, const Data *train, const Data *valid, int64_t samples,
           double loss[NGRAM])
{
    int64_t seq = data_sample(train, 0, NULL) - 1, contexts = 1;
    int32_t *s = alloc(a, (size_t)(seq + 1) * sizeof *s);
    NgramCounts c[NGRAM] = { 0 };
    int ok = seq > 1 && seq == data_sample(valid, 0, NULL) - 1;

    for (int i = 0; i < NGRAM && ok; i++, contexts *= BYTES)
        ok = counts_new(&c[i], contexts);
    for (int i = 0; i < NGRAM; i++)
        loss[i] = 0;
    ok = ok && each(c, train, data_samples(train), s, NULL) &&
         each(c, valid, samples, s, loss);
    for (int i = 0; i < NGRAM; i++) {
        loss[i] /= (double)(samples * seq);
        counts_free(&c[i]);
    }
    return ok;
}
