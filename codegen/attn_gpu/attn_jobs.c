/* attn_jobs.c: which jobs an attention on GPUs has, and what is in one: see
 * attn_gpu.c. */
#include "attn_gpu.h"

int64_t attn_inner_count(const Attn *attn, int op)
{
    Axis *in[MAXD];
    int n = attn_inner(attn, attn->node->in[op], in);

    return attn_product(attn, in, n);
}

static int same_axes(const Attn *attn, const Node *p, const Node *q)
{
    for (int i = 0; i < attn->nx; i++)
        if (has_dim(p, attn->x[i]) != has_dim(q, attn->x[i]))
            return 0;
    return 1;
}

int64_t attn_job_width(const AttnGpu *x, const AttnJob *j)
{
    int64_t w = 0;

    for (int i = 0; i < j->nout; i++)
        w += (attn_inner_count(&x->attn, j->out[i]) + 63) / 64 * 64;
    return w;
}

/* Accumulators of a job, columns: registers say it. */
int64_t attn_most(const AttnGpu *x)
{
    return attn_unit(&x->attn) > 0 ? 320 : 256;
}

static void split_axes(const Attn *attn, AttnJob *j, const Node *n)
{
    for (int i = 0; i < attn->nx; i++)
        if (!n || has_dim(n, attn->x[i]))
            j->over[j->nover++] = attn->x[i];
        else
            j->loop[j->nloop++] = attn->x[i];
}

static AttnJob *job_for(AttnGpu *x, int op)
{
    int64_t w = (attn_inner_count(&x->attn, op) + 63) / 64 * 64;
    int keys = attn_keyside(&x->attn, op);

    for (int i = 0; i < x->njob; i++) {
        AttnJob *j = &x->job[i];
        if (j->keys == keys && attn_job_width(x, j) + w <= attn_most(x) &&
            same_axes(&x->attn, x->grad[j->out[0]], x->grad[op]))
            return j;
    }
    AttnJob *j = &x->job[x->njob++];
    *j = (AttnJob){ .keys = keys, .split = 1 };
    split_axes(&x->attn, j, x->grad[op]);
    return j;
}

void attn_make_jobs(AttnGpu *x)
{
    if (!x->back) {
        x->job[0].split = 1;
        split_axes(&x->attn, &x->job[x->njob++], NULL);
        return;
    }
    for (int keys = 1; keys >= 0; keys--)
        for (int op = 0; op < x->attn.nop; op++)
            if (x->grad[op] && attn_keyside(&x->attn, op) == keys) {
                AttnJob *j = job_for(x, op);
                j->out[j->nout++] = op;
            }
}

AttnView attn_grad(const AttnGpu *x, int op)
{
    return (AttnView){ strf(x->attn.arena, "g%d", op), x->grad[op], ATresult,
                       0 };
}
