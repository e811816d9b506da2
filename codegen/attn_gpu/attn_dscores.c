/* attn_dscores.c: backward with five products on tensor cores. The job of keys
 * stores the gradients of scores in work space, in bf16 as they meet queries;
 * the job of queries loads them, where it would make scores, weights and their
 * gradients again. Nothing is added in memory: sums have the order that they
 * have without. Where the work space would be larger than MOST, combinations of
 * the keys' axes come in turns, a pair of launches each. */
#include "attn_gpu.h"

static const int64_t MOST = (int64_t)9 << 28; /* bytes of work space */

static int64_t blocks_along(const Attn *attn, const Axis *a)
{
    return (attn_count(attn, a) + ATWGROWS - 1) / ATWGROWS;
}

/* Pairs of a block of keys and one of queries that have room. */
static int64_t squares(const Attn *attn)
{
    int64_t n = blocks_along(attn, attn->key);

    return attn_is_causal(attn) ? (n + 1) / 2 * (n + 1)
                                : n * blocks_along(attn, attn->query);
}

int64_t attn_combinations(const AttnGpu *x, const AttnJob *j)
{
    int64_t n = attn_product(&x->attn, j->over, j->nover);

    return x->pairs ? n / x->pairs : n;
}

/* Its place for the block's rows and the tile's columns. */
const char *attn_dscores_at(AttnGpu *x, const AttnJob *j)
{
    Attn *attn = &x->attn;
    int64_t keys = blocks_along(attn, attn->key);
    const char *c =
        strf(attn->arena, "item %% %lld", (long long)attn_combinations(x, j));

    if (j->nloop)
        c = strf(attn->arena, "(%s) * %lld + now / %lld", c,
                 (long long)attn_product(attn, j->loop, j->nloop),
                 (long long)attn_wg(x, j).tiles);
    if (attn_is_causal(attn))
        return strf(attn->arena,
                    "dscores + ((%s) * %lld + folded(k0 / 128, q0 / 128, "
                    "%lld)) * %d",
                    c, (long long)squares(attn), (long long)keys, ATSQUARE);
    return strf(attn->arena,
                "dscores + ((%s) * %lld + k0 / 128 * %lld + q0 / 128) * %d", c,
                (long long)squares(attn),
                (long long)blocks_along(attn, attn->query), ATSQUARE);
}

/* Are its axes the first of the score's, so that its turns are the queries'? */
static int is_prefix(const Attn *attn, const AttnJob *j)
{
    for (int i = 0; i < j->nover; i++)
        if (j->over[i] != attn->x[i])
            return 0;
    return 1;
}

/* The job of keys that has gradients of scores, or null. */
static AttnJob *storing(AttnGpu *x)
{
    for (int i = 0; i < x->njob; i++)
        for (int k = 0; k < x->job[i].nout && x->job[i].keys; k++)
            if (attn_contracted(&x->attn, x->job[i].out[k]))
                return &x->job[i];
    return NULL;
}

/* Jobs of keys take turns alike, and those of queries have all axes. */
static int turns_fit(const AttnGpu *x)
{
    int queries = 0;

    for (int i = 0; i < x->njob; i++) {
        const AttnJob *j = &x->job[i];
        queries += !j->keys;
        if (!is_prefix(&x->attn, j) || (!j->keys && j->nloop) ||
            (j->keys && j->nover != x->job[0].nover))
            return 0;
    }
    return queries;
}

static int64_t turns(const Attn *attn, const AttnJob *j)
{
    int64_t over = attn_product(attn, j->over, j->nover), n = 1;
    int64_t bytes =
        squares(attn) * attn_product(attn, attn->x, attn->nx) * ATSQUARE;

    while (n < over && (over % n || bytes / n > MOST))
        n++;
    return bytes / n <= MOST ? n : 0;
}

static void share(AttnGpu *x, int on)
{
    for (int i = 0; i < x->njob; i++)
        x->job[i].loads = on && !x->job[i].keys;
    storing(x)->stores = on;
}

void attn_share_dscores(AttnGpu *x)
{
    const Attn *attn = &x->attn;
    AttnJob *j = storing(x);
    int64_t n = j && turns_fit(x) ? turns(attn, j) : 0;

    if (!n)
        return;
    share(x, 1);
    if (!attn_wg_fits(x)) {
        share(x, 0);
        attn_wg_fits(x);
        return;
    }
    x->pairs = n;
    attn->group->scratch =
        squares(attn) * attn_product(attn, attn->x, attn->nx) / n * ATSQUARE;
}
