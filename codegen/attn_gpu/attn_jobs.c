/* attn_jobs.c: the jobs of an attention on GPUs: see attn_gpu.c. */
#include "attn_gpu.h"

int64_t attn_inner_count(const Attn *attn, int op)
{
    Axis *in[MAXD];
    int n = attn_inner_axes(attn, attn->node->in[op], in);

    return attn_local_product(attn, in, n);
}

static int same_axes(const Attn *attn, const Node *p, const Node *q)
{
    for (int i = 0; i < attn->nx; i++)
        if (has_dim(p, attn->x[i]) != has_dim(q, attn->x[i]))
            return 0;
    return 1;
}

int64_t attn_job_width(const AttnGpu *attn, const AttnJob *job)
{
    int64_t w = 0;

    for (int i = 0; i < job->nout; i++)
        w += (attn_inner_count(&attn->attn, job->out[i]) + 63) / 64 * 64;
    return w;
}

/* Largest width of a job's accumulators in columns, limited by registers. */
int64_t attn_most_width(const AttnGpu *attn)
{
    return attn_unit(&attn->attn) > 0 ? 320 : 256;
}

static void split_axes(const Attn *attn, AttnJob *job, const Node *n)
{
    for (int i = 0; i < attn->nx; i++)
        if (!n || has_dim(n, attn->x[i]))
            job->over[job->nover++] = attn->x[i];
        else
            job->loop[job->nloop++] = attn->x[i];
}

static AttnJob *find_job(AttnGpu *attn, int op)
{
    int64_t w = (attn_inner_count(&attn->attn, op) + 63) / 64 * 64;
    int keys = attn_is_keyside(&attn->attn, op);

    for (int i = 0; i < attn->njob; i++) {
        AttnJob *j = &attn->job[i];
        if (j->keys == keys &&
            attn_job_width(attn, j) + w <= attn_most_width(attn) &&
            same_axes(&attn->attn, attn->grad[j->out[0]], attn->grad[op]))
            return j;
    }
    AttnJob *j = &attn->job[attn->njob++];
    *j = (AttnJob){ .keys = keys, .split = 1 };
    split_axes(&attn->attn, j, attn->grad[op]);
    return j;
}

void attn_make_jobs(AttnGpu *attn)
{
    if (!attn->back) {
        attn->job[0].split = 1;
        split_axes(&attn->attn, &attn->job[attn->njob++], NULL);
        return;
    }
    for (int keys = 1; keys >= 0; keys--)
        for (int op = 0; op < attn->attn.nop; op++)
            if (attn->grad[op] && attn_is_keyside(&attn->attn, op) == keys) {
                AttnJob *j = find_job(attn, op);
                j->out[j->nout++] = op;
            }
}

int attn_has_out(const AttnJob *job, int op)
{
    for (int i = 0; i < job->nout; i++)
        if (job->out[i] == op)
            return 1;
    return 0;
}

AttnView attn_gradient_view(const AttnGpu *attn, int op)
{
    return (AttnView){ strf(attn->attn.arena, "g%d", op), attn->grad[op],
                       ATresult, 0 };
}
