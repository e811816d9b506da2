/* value_check.c: checks that every instruction finds in its buffers the values
 * that it reads (plan.h, ValueUse). It executes the program symbolically:
 * phases and rows in order, with the value that each buffer holds, for frames
 * per micro-batch. Other checks make this sufficient: live buffers share no
 * byte (plancheck.c, tablecheck.c), and lifetimes follow from the instructions
 * (live.c), so only an instruction that names a buffer changes it.
 *
 * A repeated phase is executed twice: an accumulator may then hold the
 * instruction's own earlier result, and nothing else may come from the run
 * before. In the first run an instruction with store_first does not read its
 * accumulator. The second run is the last one, in which instructions with
 * last_only take part. Buffers that hold nothing between rows (brief) are
 * followed in the first two rows of a phase and in its last: in the rows
 * between, instructions find the same values as in the second.
 *
 * A sent buffer must not change until its wait, and micro-batches are
 * accumulated in order, so every schedule of pleat gives the same bits.
 *
 * At the end each parameter, moment, state, result and output must hold the
 * value that the graph wrote to it, and the sum of all terms, on all ranks of
 * its replication group.
 *
 * Not proved: the inside of kernels, and that the graph implements the
 * model. */
#include "verify.h"

typedef struct SentBuffer {
    int buf, micro;
} SentBuffer;

/* Queue of the pending sends of a peer and channel. */
typedef struct SendQueue {
    int64_t peer, chan;
    SentBuffer *sent;
    size_t first;
} SendQueue;

typedef struct BufferState { /* contents of a buffer, or of a frame's slot */
    int value;               /* 0: nothing that may be read */
    int row;                 /* row that wrote it */
} BufferState;

typedef struct ValueFlow {
    const PlanCheck *c;
    const Program *g;
    int prog;
    const ValueOrigin *made;
    BufferState *at;       /* [buffer] */
    BufferState **framed;  /* [buffer][micro-batch], created at first use */
    char *brief;           /* [buffer]: holds nothing between rows */
    int *last;             /* [phase]: micro-batch of its last row */
    int *runs;             /* [phase]: completed runs */
    int **lasting;         /* [phase]: vec of instructions that also use
                              other buffers than brief ones */
    int between;           /* is this row equal to the previous one? */
    SendQueue *line;       /* vec */
    int free;              /* accumulation may have any order */
    int phase, micro, row; /* current position */
} ValueFlow;

static const char *lost(const ValueFlow *flow, int v)
{
    const ValueOrigin *origin = v > 0 ? &flow->made[v] : NULL;
    if (!origin)
        return "what was there when the program began";
    return strf(flow->c->arena, "what '%s' makes",
                flow->g->instr[origin->instr].label);
}

static BufferState *place_of(ValueFlow *flow, int b)
{
    const Buf *buf = &flow->c->r->buf[b];
    if (!buf->frame)
        return &flow->at[b];
    if (!flow->framed[b])
        flow->framed[b] =
            alloc(flow->c->arena,
                  sizeof(BufferState) *
                      ((size_t)flow->g->frame[buf->frame - 1].nof + 1));
    return &flow->framed[b][flow->micro];
}

/* ---- instructions -------------------------------------------------------- */

/* Is value v `made` with terms added by later instructions of the phase? */
static int goes_on(const ValueFlow *flow, int v, int made)
{
    const Phase *phase = &flow->g->phase[flow->phase];
    while (v > 0 && v != made) {
        const ValueOrigin *origin = &flow->made[v];
        if (origin->instr < phase->first || origin->f->read == v ||
            origin->instr >= phase->first + phase->n)
            return 0;
        v = origin->f->read;
    }
    return v == made;
}

static const char *reads(ValueFlow *flow, const Instr *instr, int i)
{
    const ValueUse *use = &instr->flow[i];
    const Buf *b = &flow->c->r->buf[instr->buf[i]];
    if (stores_first(instr, i) && !flow->runs[flow->phase])
        return 0;
    if (instr->last_only && use->make && use->read > 0 &&
        flow->made[use->read].instr < flow->g->phase[flow->phase].first &&
        law(Llast_adds))
        return strf(flow->c->arena, "adds to '%s' in the last run alone",
                    b->name);
    if (flow->between && flow->brief[instr->buf[i]])
        return 0;
    BufferState *p = place_of(flow, instr->buf[i]);
    int has = flow->brief[instr->buf[i]] && p->row != flow->row ? 0 : p->value;
    if ((has == use->read && has) || !law(Lfinds))
        return 0;
    if (use->make && flow->runs[flow->phase] && goes_on(flow, has, use->make))
        return 0; /* accumulated in an earlier run */
    return strf(flow->c->arena, "needs %s and finds %s in '%s'",
                lost(flow, use->read), has ? lost(flow, has) : "nothing",
                b->name);
}

static const char *makes(ValueFlow *flow, const Instr *instr, int i)
{
    BufferState *p = place_of(flow, instr->buf[i]);
    p->value = instr->flow[i].make;
    p->row = flow->row;
    return 0;
}

/* Is the order of accumulation free? Schedules of pleat accumulate
 * micro-batches in order; a schedule read from a file may not. */
static int is_free(const Plan *p)
{
    const char *s = p->opts ? opts_str(p->opts, "fold.schedule") : NULL;
    return s && key_word("fold.schedule", s) < 0;
}

static const char *adds(const ValueFlow *flow, const ValueUse *use)
{
    if (!flow->free && use->read && use->make &&
        flow->micro < flow->last[flow->phase] && law(Ladds_in_order))
        return "adds up micro-batches out of order";
    return 0;
}

static SendQueue *line_of(ValueFlow *flow, const TransferArgs *args)
{
    for (size_t i = 0; i < vec_len(flow->line); i++)
        if (flow->line[i].peer == args->peer &&
            flow->line[i].chan == args->chan)
            return &flow->line[i];
    vec_push(flow->c->arena, flow->line,
             ((SendQueue){ args->peer, args->chan, 0, 0 }));
    return &flow->line[vec_len(flow->line) - 1];
}

/* All stages must order the transfers of a row by channel. */
static const char *in_order(const ValueFlow *flow, const Instr *instr)
{
    const Phase *phase = &flow->g->phase[flow->phase];
    for (const Instr *i = instr - 1; i >= &flow->g->instr[phase->first]; i--)
        if (i->kind == instr->kind)
            return i->transfer.chan >= instr->transfer.chan &&
                           law(Lchannel_order)
                       ? "is not in the order of channels"
                       : NULL;
    return 0;
}

static const char *transfer(ValueFlow *flow, const Instr *instr)
{
    const char *why = in_order(flow, instr);
    if (why)
        return why;
    SendQueue *l =
        instr->kind == Irecv ? NULL : line_of(flow, &instr->transfer);
    SentBuffer now = { instr->buf[0], flow->micro };
    if (instr->kind == Isend) {
        vec_push(flow->c->arena, l->sent, now);
    } else if (instr->kind == Iwait) {
        const SentBuffer *was = &l->sent[l->first];
        if (l->first == vec_len(l->sent) && law(Lwait_sent))
            return "waits for a send that was not started";
        if ((was->buf != now.buf || was->micro != now.micro) && law(Lwait_own))
            return "waits for another send than its own";
        l->first++;
    }
    return 0;
}

static const char *instr_flow(ValueFlow *flow, const Instr *instr)
{
    const char *why = 0;
    for (int i = 0; i < instr->nbuf && !why; i++)
        if (instr->flow[i].read)
            why = reads(flow, instr, i);
    for (int i = 0; i < instr->nbuf && !why; i++)
        why = adds(flow, &instr->flow[i]);
    for (int i = 0; i < instr->nbuf && !why; i++)
        if (instr->flow[i].make)
            why = makes(flow, instr, i);
    if (!why && instr_info(instr->kind)->cls == CLASStransfer)
        why = transfer(flow, instr);
    return why;
}

/* ---- rows ---------------------------------------------------------------- */

static const char *where(const ValueFlow *flow, int instr, const char *why)
{
    const Phase *phase = &flow->g->phase[flow->phase];
    return instr_told(flow->c, flow->g, instr,
                      phase->repeat
                          ? why
                          : strf(flow->c->arena, "in %s of micro-batch %d %s",
                                 phase->name, flow->micro, why));
}

/* Executes a row. last: the last run of its phase. */
static const char *run_row(ValueFlow *flow, int phase, int micro, int last)
{
    const Phase *f = &flow->g->phase[phase];
    const int *lasting = flow->lasting[phase];
    const char *why = 0;
    flow->phase = phase;
    flow->micro = micro;
    flow->row++;
    flow->between = !last && flow->runs[phase] > 1;
    int n = flow->between ? (int)vec_len(lasting) : f->n;
    for (int k = 0; k < n; k++) {
        int i = flow->between ? lasting[k] : f->first + k;
        if ((last || !flow->g->instr[i].last_only) &&
            (why = instr_flow(flow, &flow->g->instr[i])))
            return where(flow, i, why);
    }
    flow->last[phase] = micro;
    flow->runs[phase]++;
    return 0;
}

static const char *run_rows(ValueFlow *flow)
{
    const Program *prog = flow->g;
    const char *why = 0;
    int tabled = 0;
    for (int f = 0; f < prog->nphase && !why; f++) {
        int64_t n = prog->phase[f].repeat < 2 ? prog->phase[f].repeat : 2;
        for (int k = 0; k < n && !why; k++)
            why = run_row(flow, f, k, k == n - 1);
        for (int t = 0; t < prog->nslot && !n && !tabled && !why; t++)
            why = run_row(flow, prog->slot[t].phase, prog->slot[t].micro,
                          is_last_row(prog, &prog->slot[t]));
        tabled |= !n;
    }
    return why;
}

/* ---- the end ------------------------------------------------------------- */

static int has_shape(const Plan *p, const ValueShape *shape)
{
    for (int i = 0; i < p->nshape; i++)
        if (shapes_equal(&p->shape[i], shape))
            return 1;
    return 0;
}

/* Checks that an output has the layout of the value's shape. Its axis names may
 * differ, but must be among the plan's shapes. */
static const char *output_wrong(const ValueFlow *flow, const Tensor *tensor,
                                const ValueShape *shape)
{
    ValueShape s;
    tensor_shape(tensor, &s);
    if (!is_view_of(&s, shape) && law(Loutput_shape))
        return strf(flow->c->arena, "ends with output '%s' in another shape",
                    tensor->name);
    if (!has_shape(flow->c->p, &s) && law(Loutput_axes))
        return strf(flow->c->arena,
                    "ends with output '%s' in a shape that is not there",
                    tensor->name);
    return NULL;
}

/* Checks outputs in a buffer that ends with this shape, or, shape null, in
 * persistent memory. */
static const char *outputs_wrong(const ValueFlow *flow, int buf,
                                 const ValueShape *shape)
{
    const Role *role = flow->c->r;
    const char *why = NULL;
    for (int i = 0; i < role->ntensor && !why; i++) {
        const Tensor *t = &role->tensor[i];
        if (t->kind == TKoutput &&
            (shape ? t->buf == buf : role->buf[t->buf].prog < 0))
            why =
                output_wrong(flow, t, shape ? shape : flow->c->lasting[t->buf]);
    }
    return why;
}

static const char *end_wrong(ValueFlow *flow, const FinalValue *value)
{
    const Role *role = flow->c->r;
    if ((value->buf < 0 || value->buf >= role->nbuf ||
         role->buf[value->buf].frame) &&
        law(Lend_buffer))
        return "ends with a buffer that does not exist";
    const Buf *b = &role->buf[value->buf];
    if ((value->value <= 0 || flow->at[value->buf].value != value->value) &&
        law(Lend_value))
        return strf(flow->c->arena, "ends without the new value of '%s'",
                    b->name);
    const ValueUse *use = flow->made[value->value].f;
    if (b->prog == -1 && (use->part[0] || use->part[1] || use->part[2]) &&
        law(Lend_whole))
        return strf(flow->c->arena, "leaves in '%s' terms of a sum", b->name);
    if (b->prog == -1 &&
        !shapes_equal(&flow->c->p->shape[use->shape],
                      flow->c->lasting[value->buf]) &&
        law(Lend_shape))
        return strf(flow->c->arena, "leaves in '%s' what lies otherwise",
                    b->name);
    if (b->prog >= 0)
        return outputs_wrong(flow, value->buf, &flow->c->p->shape[use->shape]);
    return 0;
}

static const char *ends_wrong(ValueFlow *flow)
{
    const char *why = 0;
    for (int i = 0; i < flow->g->nend && !why; i++) {
        why = end_wrong(flow, &flow->g->end[i]);
        if (!why && flow->at[flow->g->end[i].buf].row < 0 && law(Lend_once))
            why = "ends twice with one buffer";
        if (!why)
            flow->at[flow->g->end[i].buf].row = -1;
    }
    why = why ? why : outputs_wrong(flow, -1, NULL);
    for (int b = 0; b < flow->c->r->nbuf && !why; b++)
        if (flow->c->r->buf[b].prog == -1 && flow->at[b].row >= 0 &&
            flow->at[b].value != ~b && law(Lend_said))
            why = strf(flow->c->arena, "writes '%s', which it does not say",
                       flow->c->r->buf[b].name);
    for (size_t i = 0; i < vec_len(flow->line) && !why; i++)
        if (flow->line[i].first != vec_len(flow->line[i].sent) &&
            law(Lsend_waited))
            why = "ends with a send that nothing waits for";
    return why ? program_told(flow->c, flow->g->kind, why) : NULL;
}

/* ---- interface ----------------------------------------------------------- */

/* Finds brief buffers: those with a fixed place used only inside a repeated
 * phase. */
static void find_brief(ValueFlow *flow)
{
    const Program *program = flow->g;
    for (int i = 0; i < flow->c->r->nbuf; i++) {
        const Buf *b = &flow->c->r->buf[i];
        int f = 0;
        if (b->prog != flow->prog || b->frame)
            continue;
        while (f < program->nphase - 1 &&
               b->born >= program->phase[f + 1].first)
            f++;
        flow->brief[i] =
            program->phase[f].repeat != 1 &&
            b->dies < program->phase[f].first + program->phase[f].n &&
            !joined_last(flow->c->r, i, b->dies);
    }
}

/* Has the instruction an effect that another row may see? */
static int outlasts_row(const ValueFlow *flow, const Instr *instr)
{
    int lasts = instr_info(instr->kind)->cls == CLASStransfer;
    for (int i = 0; i < instr->nbuf && !lasts; i++) {
        const ValueUse *use = &instr->flow[i];
        lasts = (use->read && use->make) ||
                ((use->read || use->make) && !flow->brief[instr->buf[i]]);
    }
    return lasts;
}

static void list_lasting(ValueFlow *flow)
{
    Arena *a = flow->c->arena;
    const Program *program = flow->g;
    flow->lasting =
        alloc(a, sizeof *flow->lasting * (size_t)(program->nphase + 1));
    for (int f = 0; f < program->nphase; f++)
        for (int k = 0; k < program->phase[f].n; k++) {
            int i = program->phase[f].first + k;
            if (outlasts_row(flow, &program->instr[i]))
                vec_push(a, flow->lasting[f], i);
        }
}

const char *flow_wrong(const PlanCheck *check, int prog)
{
    ValueFlow x = { .c = check, .g = &check->r->prog[prog], .prog = prog };
    size_t nbuf = (size_t)check->r->nbuf + 1, nphase = (size_t)x.g->nphase + 1;
    ValueOrigin *made;
    const char *why = lives_loose(check->arena, check->r, prog);

    if (!why)
        why = values_wrong(check, prog, &made);
    if (why)
        return why;
    x.made = made;
    x.free = is_free(check->p);
    x.at = alloc(check->arena, nbuf * sizeof *x.at);
    x.framed = alloc(check->arena, nbuf * sizeof *x.framed);
    x.brief = alloc(check->arena, nbuf);
    x.last = alloc(check->arena, nphase * sizeof *x.last);
    x.runs = alloc(check->arena, nphase * sizeof *x.runs);
    for (int b = 0; b < check->r->nbuf; b++)
        x.at[b].value = check->r->buf[b].prog < 0 ? ~b : 0;
    find_brief(&x);
    list_lasting(&x);
    why = run_rows(&x);
    return why ? why : ends_wrong(&x);
}
