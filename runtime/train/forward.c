/* forward.c: runs the program `forward` on sequences of tokens. */
#include "forward.h"

/* Returns the index of the tensor's axis with this role; -1: there is none. */
static int axis_at(const Tensor *tensor, AxisRole role)
{
    const PlanDim *d = tensor_axis(tensor, role);

    return d ? (int)(d - tensor->dim) : -1;
}

/* Returns the token index and sequence of a rank's element i; -1: the element
 * is in another micro-batch. */
static int64_t place_of(const ForwardPass *pass, const Tensor *tensor,
                        int64_t rank, int64_t i, int64_t *sequence)
{
    int64_t place = -1;

    *sequence = 0;
    for (int d = tensor->nd - 1; d >= 0; d--) {
        int64_t held = dim_held(&tensor->dim[d]);
        int64_t at =
            tensor_at(pass->x->plan->mesh, &tensor->dim[d], rank, i % held);
        i /= held;
        if (tensor->dim[d].role == ROLEseq)
            place = at;
        else if (tensor->dim[d].role == ROLEbatch)
            *sequence = at;
        else if (at)
            return -1;
    }
    return place;
}

/* Feed.fill: the windows' tokens, zeros elsewhere; no labels. */
static void fill(void *self, const Tensor *tensor, int64_t rank, int64_t micro,
                 void *dst)
{
    const ForwardPass *pass = self;
    int tokens = !strcmp(tensor->name, "tokens");
    int64_t n = tensor_held(tensor), sequence = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t at =
            tokens && !micro ? place_of(pass, tensor, rank, i, &sequence) : -1;
        int there = at >= 0 && at < pass->n[sequence];
        elem_set(tensor->dt, dst, i,
                 !tokens ? -1
                 : there ? (double)pass->window[sequence * pass->seq + at]
                         : 0);
    }
}

static const Tensor *find_tensor(const Plan *p, const char *name,
                                 TensorKind kind)
{
    const Role *r = &p->role[role_of(p, 0)];
    int i = role_tensor(r, name);

    return i >= 0 && r->tensor[i].kind == kind ? &r->tensor[i] : NULL;
}

TextArgs forward_text(const Plan *p)
{
    TextArgs text = text_args(p->opts);

    if (!text.t) {
        need_tokenizer(p->opts, opts_loc(p->opts, "from"), "the prompt");
        text.t = tokenizer_bytes();
        text.eod = -1;
    }
    return text;
}

static const char no_logits[] =
    "the model has no output 'logits': write output(\"logits\", t)";

static const Tensor *tokens_of(const Plan *p)
{
    const Tensor *tokens = find_tensor(p, "tokens", TKinput);

    if (p->nrole == 1 && !find_tensor(p, "logits", TKoutput))
        err(NULL, "%s", no_logits);
    if (!tokens || !tensor_axis(tokens, ROLEseq))
        err(NULL, "the model has no input 'tokens' with an axis of sequences");
    return tokens;
}

const PlanDim *forward_seq(const Plan *p)
{
    return tensor_axis(tokens_of(p), ROLEseq);
}

const PlanDim *forward_batch(const Plan *p)
{
    return tensor_axis(tokens_of(p), ROLEbatch);
}

/* Returns the only axis of logits that tokens lack, if it is a vocabulary; else
 * null. */
static const PlanDim *vocabulary(const Tensor *logits, const Tensor *tokens)
{
    const PlanDim *own = NULL;

    for (int d = 0; d < logits->nd; d++) {
        const PlanDim *dim = &logits->dim[d];
        if (dim->role == ROLEbatch || dim->role == ROLEmicro ||
            dim->role == ROLEseq)
            continue;
        if (own || (dim->role != ROLEvocab && dim->n != tokens->below))
            return NULL;
        own = dim;
    }
    return own;
}

const char *forward_open(ForwardPass *pass, Exec *exec)
{
    const Plan *p = exec->plan;

    *pass = (ForwardPass){ .x = exec,
                           .tokens = find_tensor(p, "tokens", TKinput),
                           .logits = find_tensor(p, "logits", TKoutput) };
    if (!pass->tokens || !pass->logits)
        return p->nrole > 1    ? "the fold has pipeline stages"
               : !pass->logits ? no_logits
                               : "the model has no input 'tokens'";
    int seq = axis_at(pass->tokens, ROLEseq),
        batch = axis_at(pass->tokens, ROLEbatch);
    if (seq < 0 || axis_at(pass->logits, ROLEseq) < 0)
        return "tokens and logits need an axis of sequences";
    const PlanDim *vocab = vocabulary(pass->logits, pass->tokens);
    if (!vocab)
        return "output 'logits' needs one axis beside batch and sequence, "
               "which has the role \"vocab\" or the size of the vocabulary";
    pass->seq = pass->tokens->dim[seq].n;
    pass->batch = batch < 0 ? 1 : pass->tokens->dim[batch].n;
    pass->vocab = vocab->n;
    for (int d = 0; d < pass->logits->nd; d++)
        if (pass->logits->dim[d].role != ROLEbatch &&
            pass->logits->dim[d].role != ROLEmicro &&
            dim_held(&pass->logits->dim[d]) != pass->logits->dim[d].n)
            return "a rank has a part of the logits of a sequence (fold.tp, "
                   "fold.cp)";
    pass->window = alloc(forever, (size_t)(pass->batch * pass->seq) *
                                      sizeof *pass->window);
    pass->n = alloc(forever, (size_t)pass->batch * sizeof *pass->n);
    pass->text = forward_text(p);
    return NULL;
}

void forward_alone(ForwardPass *pass, Plan *p)
{
    int from = ckpt_has_from(p->opts);

    if (p->mesh->world != 1)
        err(NULL, "text goes through a model on one rank; the plan is for %ld",
            p->mesh->world);
    const char *why = forward_open(pass, exec_open(p, comm_open(forever, 1)));
    if (why)
        err(NULL, "no logits: %s", why);
    if (role_prog(&p->role[0], PGinit) >= 0)
        exec_run(pass->x, PGinit, NULL, NULL);
    if (from) {
        exec_pull(pass->x);
        ckpt_from_keys(pass->x);
        exec_filled(pass->x);
    }
}

void forward_run(ForwardPass *pass)
{
    Feed feed = { fill, pass };

    exec_run(pass->x, PGforward, &(StepValues){ 0 }, &feed);
    pass->out =
        pass->x->comm->first ? NULL : exec_fetch(pass->x, 0, pass->logits->buf);
}

void forward_logits(const ForwardPass *pass, int64_t sequence, int64_t at,
                    double *out)
{
    const Tensor *tensor = pass->logits;
    int64_t step = 1, from = 0, stride = 1;

    for (int d = tensor->nd - 1; d >= 0; step *= dim_held(&tensor->dim[d--])) {
        AxisRole role = tensor->dim[d].role;
        if (role == ROLEseq || role == ROLEbatch)
            from += step * (role == ROLEseq ? at : sequence);
        else if (role != ROLEmicro && tensor->dim[d].n == pass->vocab)
            stride = step;
    }
    if (tensor->dt == Df32 && stride == 1)
        for (int64_t v = 0; v < pass->vocab; v++)
            out[v] = ((const float *)pass->out)[from + v];
    else
        for (int64_t v = 0; v < pass->vocab; v++)
            out[v] = elem_get(tensor->dt, pass->out, from + v * stride);
}
