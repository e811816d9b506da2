/* attn_dscores.c: backward with five products on tensor cores. The job of keys
 * stores the gradients of scores in work space, in bf16 as they meet queries;
 * the job of queries loads them, where it would make scores, weights and their
 * gradients again. Nothing is added in memory: sums have the order that they
 * have without.
 *
 * Work space beyond attn_space is made less by turns, a pair of launches each:
 * combinations of the score's axes one behind the other, first of those that
 * the keys have, then of those that are summed over. Sums that go on in the
 * next turn wait in work space too, in fp32 as threads hold them.
 *
 * TFLOP/s, one launch and many behind each other, one H200, causal: 4
 * sequences of 4096, width 128, 419 and 402 with seven products, 446 and 414
 * so (cuDNN 483 and 442); one sequence 413 and 419, now 438 and 429 (442 and
 * 418); width 256 342, now 414; 8 heads of 32k 476 and 460. A step of Qwen3's
 * widths, 4 layers, 4/4: attention backward 60.1 to 55.1 ms. The queries'
 * launch takes 0.70 of 3.0 ms. What is stored costs 0.5 ms more, whatever the
 * cache is told; behind the next tile's products it costs 0.8, by bulk copies
 * from shared memory 0.8 too (without the copies 0.6: it is the warpgroup that
 * waits), though latent attention gains there (412 to 428). So where sums are
 * 128 or 320 wide (width 64: 362 to 355, latent attention: 389 to 371) scores
 * are made again. */
#include "attn_gpu.h"

enum { LEAST = 128, MOST = 256 }; /* columns of sums: wider than, at most */

int64_t attn_space = (int64_t)9 << 28;

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

static int64_t all_combinations(const Attn *attn)
{
    return attn_product(attn, attn->x, attn->nx);
}

static int64_t over(const AttnGpu *x, const AttnJob *j)
{
    return attn_product(&x->attn, j->over, j->nover);
}

/* Turns that the sums of a block of the job take. */
int64_t attn_sum_turns(const AttnGpu *x, const AttnJob *j)
{
    return x->pairs > over(x, j) ? x->pairs / over(x, j) : 1;
}

int64_t attn_combinations(const AttnGpu *x, const AttnJob *j)
{
    int64_t turns = (x->pairs ? x->pairs : 1) / attn_sum_turns(x, j);

    return over(x, j) / turns;
}

/* Its place for the block's rows and the tile's columns. */
const char *attn_dscores_at(AttnGpu *x, const AttnJob *j)
{
    Attn *attn = &x->attn;
    int64_t keys = blocks_along(attn, attn->key);
    int64_t loop = attn_product(attn, j->loop, j->nloop) / attn_sum_turns(x, j);
    const char *c =
        strf(attn->arena, "item %% %lld", (long long)attn_combinations(x, j));

    if (j->nloop)
        c = strf(attn->arena, "(%s) * %lld + now / %lld %% %lld", c,
                 (long long)loop, (long long)attn_wg(x, j).tiles,
                 (long long)loop);
    const char *square =
        attn_is_causal(attn)
            ? strf(attn->arena, "folded(k0 / 128, q0 / 128, %lld)",
                   (long long)keys)
            : strf(attn->arena, "k0 / 128 * %lld + q0 / 128",
                   (long long)blocks_along(attn, attn->query));
    return strf(attn->arena, "dscores + ((%s) * %lld + %s) * %d", c,
                (long long)squares(attn), square, ATSQUARE);
}

/* Bytes of the gradients of scores of a turn; behind them sums wait. */
static int64_t stored_bytes(const AttnGpu *x)
{
    return squares(&x->attn) * all_combinations(&x->attn) / x->pairs * ATSQUARE;
}

static int64_t item_bytes(const AttnGpu *x, const AttnJob *j)
{
    return attn_job_width(x, j) * ATWGROWS * 4;
}

static int64_t waiting_bytes(const AttnGpu *x, const AttnJob *to)
{
    int64_t sum = 0;

    for (const AttnJob *j = x->job; j < to; j++)
        if (attn_sum_turns(x, j) > 1)
            sum += item_bytes(x, j) * attn_combinations(x, j) *
                   blocks_along(&x->attn, x->attn.key);
    return sum;
}

/* Where the item's sums of its results before `out` end. */
const char *attn_waiting_at(AttnGpu *x, const AttnJob *j, int out)
{
    AttnJob before = *j;

    before.nout = out;
    return strf(x->attn.arena, "dscores + %lld + item * %lld",
                (long long)(stored_bytes(x) + waiting_bytes(x, j) +
                            item_bytes(x, &before)),
                (long long)item_bytes(x, j));
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

/* Jobs of keys take turns alike, and one of queries has all axes. */
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
    return queries == 1;
}

/* Turns that leave no more than is wanted, or twice that of one combination; 0:
 * it is more, or does not pay. */
static int64_t turns(const AttnGpu *x, const AttnJob *j)
{
    int64_t width = attn_job_width(x, j);
    int64_t keys = over(x, j), all = all_combinations(&x->attn), n = 1;
    int64_t bytes = squares(&x->attn) * all * ATSQUARE;

    if (width <= LEAST || width > MOST)
        return 0;
    while (n < all && (all % n || (n > keys ? n % keys : keys % n) ||
                       bytes / n > attn_space))
        n++;
    return bytes / n <= 2 * attn_space ? n : 0;
}

static void share(AttnGpu *x, int on)
{
    for (int i = 0; i < x->njob; i++)
        x->job[i].loads = on && !x->job[i].keys;
    storing(x)->stores = on;
}

void attn_share_dscores(AttnGpu *x)
{
    AttnJob *j = storing(x);
    int64_t n = j && turns_fit(x) ? turns(x, j) : 0;

    if (!n)
        return;
    share(x, 1);
    if (!attn_wg_fits(x)) {
        share(x, 0);
        attn_wg_fits(x);
        return;
    }
    x->pairs = n;
    x->attn.group->scratch =
        stored_bytes(x) + waiting_bytes(x, x->job + x->njob);
}
