/* attn_dscores.c: backward with five products on tensor cores. The job of keys
 * stores the gradients of scores in work space, in bf16 as they meet queries;
 * the job of queries loads them, where it would make scores, weights and their
 * gradients again. Nothing is added in memory: sums have the order that they
 * have without.
 *
 * Work space beyond attn_space, or half of it where a turn keeps all
 * multiprocessors busy, is made less by turns, a pair of launches each:
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
 * are made again.
 *
 * On an H100 in a step with 4 sequences of width 128, ms a call: 3.50 in one
 * turn, 3.52 in a turn a sequence (a quarter of the work space, 128 blocks of
 * keys), 5.76 in two: a sequence has no more of L2 by itself. On an H200 3.43
 * in one, 3.57 in a turn a sequence; two turns of two are taken. */
#include "attn_gpu.h"

enum { LEAST = 128, MOST = 256 }; /* columns of sums: wider than, at most */
/* Blocks of keys that a turn of half of the work space has at least. */
enum { BLOCKS = 128 };

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

static int64_t over(const AttnGpu *attn, const AttnJob *job)
{
    return attn_product(&attn->attn, job->over, job->nover);
}

/* Turns that the sums of a block of the job take. */
int64_t attn_sum_turns(const AttnGpu *attn, const AttnJob *job)
{
    return attn->pairs > over(attn, job) ? attn->pairs / over(attn, job) : 1;
}

int64_t attn_combinations(const AttnGpu *attn, const AttnJob *job)
{
    int64_t turns = (attn->pairs ? attn->pairs : 1) / attn_sum_turns(attn, job);

    return over(attn, job) / turns;
}

/* Its place for the block's rows and the tile's columns. */
const char *attn_dscores_at(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;
    int64_t keys = blocks_along(attn, attn->key);
    int64_t loop =
        attn_product(attn, job->loop, job->nloop) / attn_sum_turns(gpu, job);
    const char *c = strf(attn->arena, "item %% %lld",
                         (long long)attn_combinations(gpu, job));

    if (job->nloop)
        c = strf(attn->arena, "(%s) * %lld + now / %lld %% %lld", c,
                 (long long)loop, (long long)attn_wg(gpu, job).tiles,
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
static int64_t stored_bytes(const AttnGpu *attn)
{
    return squares(&attn->attn) * all_combinations(&attn->attn) / attn->pairs *
           ATSQUARE;
}

static int64_t item_bytes(const AttnGpu *attn, const AttnJob *job)
{
    return attn_job_width(attn, job) * ATWGROWS * 4;
}

static int64_t waiting_bytes(const AttnGpu *attn, const AttnJob *to)
{
    int64_t sum = 0;

    for (const AttnJob *j = attn->job; j < to; j++)
        if (attn_sum_turns(attn, j) > 1)
            sum += item_bytes(attn, j) * attn_combinations(attn, j) *
                   blocks_along(&attn->attn, attn->attn.key);
    return sum;
}

/* Where the item's sums of its results before `out` end. */
const char *attn_waiting_at(AttnGpu *attn, const AttnJob *job, int out)
{
    AttnJob before = *job;

    before.nout = out;
    return strf(attn->attn.arena, "dscores + %lld + item * %lld",
                (long long)(stored_bytes(attn) + waiting_bytes(attn, job) +
                            item_bytes(attn, &before)),
                (long long)item_bytes(attn, job));
}

/* Are its axes the first of the score's, so that its turns are the queries'? */
static int is_prefix(const Attn *attn, const AttnJob *job)
{
    for (int i = 0; i < job->nover; i++)
        if (job->over[i] != attn->x[i])
            return 0;
    return 1;
}

/* The job of keys that has gradients of scores, or null. */
static AttnJob *storing(AttnGpu *attn)
{
    for (int i = 0; i < attn->njob; i++)
        for (int k = 0; k < attn->job[i].nout && attn->job[i].keys; k++)
            if (attn_contracted(&attn->attn, attn->job[i].out[k]))
                return &attn->job[i];
    return NULL;
}

/* Jobs of keys take turns alike, and one of queries has all axes. */
static int turns_fit(const AttnGpu *attn)
{
    int queries = 0;

    for (int i = 0; i < attn->njob; i++) {
        const AttnJob *job = &attn->job[i];
        queries += !job->keys;
        if (!is_prefix(&attn->attn, job) || (!job->keys && job->nloop) ||
            (job->keys && job->nover != attn->job[0].nover))
            return 0;
    }
    return queries == 1;
}

/* Of all turns. */
static int64_t all_bytes(const AttnGpu *attn)
{
    return squares(&attn->attn) * all_combinations(&attn->attn) * ATSQUARE;
}

/* The fewest turns that leave no more than `space`, or all there can be. */
static int64_t turns_within(const AttnGpu *attn, const AttnJob *job,
                            int64_t space)
{
    int64_t keys = over(attn, job), all = all_combinations(&attn->attn), n = 1;

    while (n < all && (all % n || (n > keys ? n % keys : keys % n) ||
                       all_bytes(attn) / n > space))
        n++;
    return n;
}

/* Turns that leave no more than is wanted, or twice that of one combination; 0:
 * it is more, or does not pay. */
static int64_t turns(const AttnGpu *attn, const AttnJob *job)
{
    int64_t width = attn_job_width(attn, job);
    int64_t blocks =
        over(attn, job) * blocks_along(&attn->attn, attn->attn.key);

    if (width <= LEAST || width > MOST)
        return 0;
    int64_t n = turns_within(attn, job, attn_space / 2);
    if (blocks / n < BLOCKS)
        n = turns_within(attn, job, attn_space);
    return all_bytes(attn) / n <= 2 * attn_space ? n : 0;
}

static void share(AttnGpu *attn, int on)
{
    for (int i = 0; i < attn->njob; i++)
        attn->job[i].loads = on && !attn->job[i].keys;
    storing(attn)->stores = on;
}

void attn_share_dscores(AttnGpu *attn)
{
    AttnJob *job = storing(attn);
    int64_t n = job && turns_fit(attn) ? turns(attn, job) : 0;

    if (!n)
        return;
    share(attn, 1);
    if (!attn_wg_fits(attn)) {
        share(attn, 0);
        attn_wg_fits(attn);
        return;
    }
    attn->pairs = n;
    attn->attn.group->scratch =
        stored_bytes(attn) + waiting_bytes(attn, attn->job + attn->njob);
}
