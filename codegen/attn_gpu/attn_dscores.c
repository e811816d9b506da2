/* attn_dscores.c: backward with five products on tensor cores. The keys' job
 * stores the gradients of scores in workspace, in bf16 as they are multiplied
 * with queries; the queries' job loads them instead of recomputing scores,
 * weights and their gradients. There are no atomic additions, and sums have the
 * same order in both forms.
 *
 * If the workspace exceeds attn_workspace_bytes (or half of it, where a part
 * keeps all multiprocessors busy), the work is divided into parts, a pair of
 * launches each: first over combinations of the keys' score axes, then over the
 * axes that are summed. Sums that continue in the next part are kept in
 * workspace, in fp32 and in register order.
 *
 * Storing costs more than it saves if sums are at most 128 or more than 256
 * columns wide: decisions/attention-backward.md. */
#include "attn_gpu.h"

/* columns of sums: more than LEAST, at most MOST */
enum { LEAST = 128, MOST = 256 };
/* Least blocks of keys in a part, for half of the workspace. */
enum { LEASTBLOCKS = 128 };

int64_t attn_workspace_bytes = (int64_t)9 << 28;

static int64_t blocks_along(const Attn *attn, const Axis *a)
{
    return divide_up(attn_local_size(attn, a), ATWGROWS);
}

/* Pairs of a block of keys and a block of queries with stored gradients. */
static int64_t stored_squares(const Attn *attn)
{
    int64_t n = blocks_along(attn, attn->key);

    return attn_is_causal(attn) ? (n + 1) / 2 * (n + 1)
                                : n * blocks_along(attn, attn->query);
}

static int64_t all_combinations(const Attn *attn)
{
    return attn_local_product(attn, attn->x, attn->nx);
}

static int64_t outer_size(const AttnGpu *attn, const AttnJob *job)
{
    return attn_local_product(&attn->attn, job->over, job->nover);
}

/* Parts over which the sums of a block continue. */
int64_t attn_sum_parts(const AttnGpu *attn, const AttnJob *job)
{
    return attn->pairs > outer_size(attn, job)
               ? attn->pairs / outer_size(attn, job)
               : 1;
}

int64_t attn_combinations(const AttnGpu *attn, const AttnJob *job)
{
    int64_t parts = (attn->pairs ? attn->pairs : 1) / attn_sum_parts(attn, job);

    return outer_size(attn, job) / parts;
}

/* Address of the gradients of scores of the block's rows and the tile's
 * columns. */
const char *attn_dscores_at(AttnGpu *gpu, const AttnJob *job)
{
    Attn *attn = &gpu->attn;
    int64_t keys = blocks_along(attn, attn->key);
    int64_t loop = attn_local_product(attn, job->loop, job->nloop) /
                   attn_sum_parts(gpu, job);
    const char *c =
        strf(attn->arena, "item %% %ld", attn_combinations(gpu, job));

    if (job->nloop)
        c = strf(attn->arena, "(%s) * %ld + now / %ld %% %ld", c, loop,
                 attn_wg(gpu, job).tiles, loop);
    const char *square =
        attn_is_causal(attn)
            ? strf(attn->arena, "folded(k0 / 128, q0 / 128, %ld)", keys)
            : strf(attn->arena, "k0 / 128 * %ld + q0 / 128",
                   blocks_along(attn, attn->query));
    return strf(attn->arena, "dscores + ((%s) * %ld + %s) * %d", c,
                stored_squares(attn), square, ATSQUARE);
}

/* Bytes of the gradients of scores of one part; partial sums follow them. */
static int64_t stored_bytes(const AttnGpu *attn)
{
    return stored_squares(&attn->attn) * all_combinations(&attn->attn) /
           attn->pairs * ATSQUARE;
}

static int64_t item_bytes(const AttnGpu *attn, const AttnJob *job)
{
    return attn_job_width(attn, job) * ATWGROWS * 4;
}

static int64_t waiting_bytes(const AttnGpu *attn, const AttnJob *to)
{
    int64_t sum = 0;

    for (const AttnJob *j = attn->job; j < to; j++)
        if (attn_sum_parts(attn, j) > 1)
            sum += item_bytes(attn, j) * attn_combinations(attn, j) *
                   blocks_along(&attn->attn, attn->attn.key);
    return sum;
}

/* Address of the item's partial sums of result `out`. */
const char *attn_waiting_at(AttnGpu *attn, const AttnJob *job, int out)
{
    AttnJob before = *job;

    before.nout = out;
    return strf(attn->attn.arena, "dscores + %ld + item * %ld",
                (stored_bytes(attn) + waiting_bytes(attn, job) +
                 item_bytes(attn, &before)),
                item_bytes(attn, job));
}

/* Are its axes the first axes of the score, so that its parts are those of the
 * queries' job? */
static int is_prefix(const Attn *attn, const AttnJob *job)
{
    for (int i = 0; i < job->nover; i++)
        if (job->over[i] != attn->x[i])
            return 0;
    return 1;
}

/* The keys' job that computes gradients of scores, or null. */
static AttnJob *storing_job(AttnGpu *attn)
{
    for (int i = 0; i < attn->njob; i++)
        for (int k = 0; k < attn->job[i].nout && attn->job[i].keys; k++)
            if (attn_contracted(&attn->attn, attn->job[i].out[k]))
                return &attn->job[i];
    return NULL;
}

/* Do all keys' jobs have the same parts, and is there one queries' job with all
 * axes? */
static int parts_match(const AttnGpu *attn)
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

/* Bytes of the gradients of scores of all parts. */
static int64_t all_bytes(const AttnGpu *attn)
{
    return stored_squares(&attn->attn) * all_combinations(&attn->attn) *
           ATSQUARE;
}

/* The fewest parts that need at most `space` bytes each, or the largest
 * possible number. */
static int64_t parts_within(const AttnGpu *attn, const AttnJob *job,
                            int64_t space)
{
    int64_t keys = outer_size(attn, job), all = all_combinations(&attn->attn),
            n = 1;

    while (n < all && (all % n || (n > keys ? n % keys : keys % n) ||
                       all_bytes(attn) / n > space))
        n++;
    return n;
}

/* The number of parts that need at most the wanted workspace, or twice that for
 * a single combination; 0: storing does not fit or does not pay. */
static int64_t parts_of_job(const AttnGpu *attn, const AttnJob *job)
{
    int64_t width = attn_job_width(attn, job);
    int64_t blocks =
        outer_size(attn, job) * blocks_along(&attn->attn, attn->attn.key);

    if (width <= LEAST || width > MOST)
        return 0;
    int64_t n = parts_within(attn, job, attn_workspace_bytes / 2);
    if (blocks / n < LEASTBLOCKS)
        n = parts_within(attn, job, attn_workspace_bytes);
    return all_bytes(attn) / n <= 2 * attn_workspace_bytes ? n : 0;
}

static void set_sharing(AttnGpu *attn, int on)
{
    for (int i = 0; i < attn->njob; i++)
        attn->job[i].loads = on && !attn->job[i].keys;
    storing_job(attn)->stores = on;
}

void attn_share_dscores(AttnGpu *attn)
{
    AttnJob *job = storing_job(attn);
    int64_t n = job && parts_match(attn) ? parts_of_job(attn, job) : 0;

    if (!n)
        return;
    set_sharing(attn, 1);
    if (!attn_wg_fits(attn)) {
        set_sharing(attn, 0);
        attn_wg_fits(attn);
        return;
    }
    attn->pairs = n;
    attn->attn.group->scratch =
        stored_bytes(attn) + waiting_bytes(attn, attn->job + attn->njob);
}
