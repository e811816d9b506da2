/* value_check.c: does every instruction find in its buffers the values that it
 * says it reads (plan.h, ValueUse)? The program is run without numbers: phases
 * and rows in order, for each buffer the value it holds, for each frame by
 * micro-batch. What the other checks have proved makes that enough: two buffers
 * that are alive at one time share no byte (plancheck.c, tablecheck.c), and
 * lives are what the instructions say (live.c), so nothing but an instruction
 * that names a buffer changes it.
 *
 * A phase that repeats is run twice: an accumulator may then hold what the
 * instruction itself left there, nothing else may come from the run before.
 * What is being sent must stay until its wait, and micro-batches are added up
 * in their order, so that every schedule that pleat makes gives the same bits.
 *
 * Then at the end each parameter, moment, state, result and output holds the
 * value that the graph wrote to it, and, as all ranks of its replication group
 * must, the sum of all terms and no part.
 *
 * Not proved: what is inside kernels, and that the graph means the model. */
#include <string.h>

#include "plan.h"

typedef struct SentBuffer {
    int buf, micro;
} SentBuffer;

/* Sends of one peer and channel that were not waited for: a queue. */
typedef struct SendQueue {
    int64_t peer, chan;
    SentBuffer *sent;
    size_t first;
} SendQueue;

typedef struct BufferState { /* what a buffer holds (micro: or its frame)*/
    int value;               /* 0: nothing that may be read */
    int row;                 /* that put it there */
} BufferState;

typedef struct ValueFlow {
    const PlanCheck *c;
    const Program *g;
    int prog;
    const ValueOrigin *made;
    BufferState *at;       /* by buffer */
    BufferState **framed;  /* by buffer: by micro-batch, made when used*/
    char *brief;           /* by buffer: holds nothing from row to row */
    int *last;             /* by phase: micro-batch of its last row */
    int *runs;             /* by phase: done */
    SendQueue *line;       /* vec */
    int free;              /* to add up in any order */
    int phase, micro, row; /* now */
} ValueFlow;

static const char *lost(const ValueFlow *x, int v)
{
    const ValueOrigin *m = v > 0 ? &x->made[v] : NULL;
    if (!m)
        return "what was there when the program began";
    return strf(x->c->arena, "what '%s' makes", x->g->instr[m->instr].label);
}

static BufferState *place_of(ValueFlow *x, int b)
{
    const Buf *u = &x->c->r->buf[b];
    if (!u->frame)
        return &x->at[b];
    if (!x->framed[b])
        x->framed[b] =
            alloc(x->c->arena, sizeof(BufferState) *
                                   ((size_t)x->g->frame[u->frame - 1].nof + 1));
    return &x->framed[b][x->micro];
}

/* ---- instructions -------------------------------------------------------- */

/* Is value v `made`, with more added by later instructions of the phase? */
static int goes_on(const ValueFlow *x, int v, int made)
{
    const Phase *f = &x->g->phase[x->phase];
    while (v > 0 && v != made) {
        const ValueOrigin *o = &x->made[v];
        if (o->instr < f->first || o->instr >= f->first + f->n)
            return 0;
        v = o->f->read;
    }
    return v == made;
}

static const char *reads(ValueFlow *x, const Instr *s, int i)
{
    const ValueUse *f = &s->flow[i];
    const Buf *b = &x->c->r->buf[s->buf[i]];
    BufferState *p = place_of(x, s->buf[i]);
    int has = x->brief[s->buf[i]] && p->row != x->row ? 0 : p->value;
    if ((has == f->read && has) || !law(Lfinds))
        return 0;
    if (f->make && x->runs[x->phase] && goes_on(x, has, f->make))
        return 0; /* added to in a run before */
    return strf(x->c->arena, "needs %s and finds %s in '%s'", lost(x, f->read),
                has ? lost(x, has) : "nothing", b->name);
}

static const char *makes(ValueFlow *x, const Instr *s, int i)
{
    BufferState *p = place_of(x, s->buf[i]);
    p->value = s->flow[i].make;
    p->row = x->row;
    return 0;
}

/* Schedules that pleat makes add up micro-batches in their order; one that was
 * read from a file may have another. */
static int is_free(const Plan *p)
{
    const char *s = p->opts ? opts_str(p->opts, "fold.schedule") : NULL;
    return s && key_word("fold.schedule", s) < 0;
}

static const char *adds(const ValueFlow *x, const ValueUse *f)
{
    if (!x->free && f->read && f->make && x->micro < x->last[x->phase] &&
        law(Ladds_in_order))
        return "adds up micro-batches out of order";
    return 0;
}

static SendQueue *line_of(ValueFlow *x, const TransferArgs *v)
{
    for (size_t i = 0; i < vec_len(x->line); i++)
        if (x->line[i].peer == v->peer && x->line[i].chan == v->chan)
            return &x->line[i];
    vec_push(x->c->arena, x->line, ((SendQueue){ v->peer, v->chan, 0, 0 }));
    return &x->line[vec_len(x->line) - 1];
}

/* All stages make the transfers of a row in the order of their channels. */
static const char *in_order(const ValueFlow *x, const Instr *s)
{
    const Phase *f = &x->g->phase[x->phase];
    for (const Instr *i = s - 1; i >= &x->g->instr[f->first]; i--)
        if (i->kind == s->kind)
            return i->transfer.chan >= s->transfer.chan && law(Lchannel_order)
                       ? "is not in the order of channels"
                       : NULL;
    return 0;
}

static const char *transfer(ValueFlow *x, const Instr *s)
{
    const char *why = in_order(x, s);
    if (why)
        return why;
    SendQueue *l = s->kind == Irecv ? NULL : line_of(x, &s->transfer);
    SentBuffer now = { s->buf[0], x->micro };
    if (s->kind == Isend) {
        vec_push(x->c->arena, l->sent, now);
    } else if (s->kind == Iwait) {
        const SentBuffer *was = &l->sent[l->first];
        if (l->first == vec_len(l->sent) && law(Lwait_sent))
            return "waits for a send that was not started";
        if ((was->buf != now.buf || was->micro != now.micro) && law(Lwait_own))
            return "waits for another send than its own";
        l->first++;
    }
    return 0;
}

static const char *instr_flow(ValueFlow *x, const Instr *s)
{
    const char *why = 0;
    for (int i = 0; i < s->nbuf && !why; i++)
        if (s->flow[i].read)
            why = reads(x, s, i);
    for (int i = 0; i < s->nbuf && !why; i++)
        why = adds(x, &s->flow[i]);
    for (int i = 0; i < s->nbuf && !why; i++)
        if (s->flow[i].make)
            why = makes(x, s, i);
    if (!why && instr_info(s->kind)->cls == CLASStransfer)
        why = transfer(x, s);
    return why;
}

/* ---- rows ---------------------------------------------------------------- */

static const char *where(const ValueFlow *x, int instr, const char *why)
{
    const Phase *f = &x->g->phase[x->phase];
    return instr_told(x->c, x->g, instr,
                      f->repeat
                          ? why
                          : strf(x->c->arena, "in %s of micro-batch %d %s",
                                 f->name, x->micro, why));
}

static const char *run_row(ValueFlow *x, int phase, int micro)
{
    const Phase *f = &x->g->phase[phase];
    const char *why = 0;
    x->phase = phase;
    x->micro = micro;
    x->row++;
    for (int i = f->first; i < f->first + f->n; i++)
        if ((why = instr_flow(x, &x->g->instr[i])))
            return where(x, i, why);
    x->last[phase] = micro;
    x->runs[phase]++;
    return 0;
}

static const char *run_rows(ValueFlow *x)
{
    const Program *prog = x->g;
    const char *why = 0;
    int tabled = 0;
    for (int f = 0; f < prog->nphase && !why; f++) {
        int64_t n = prog->phase[f].repeat < 2 ? prog->phase[f].repeat : 2;
        for (int k = 0; k < n && !why; k++)
            why = run_row(x, f, k);
        for (int t = 0; t < prog->nslot && !n && !tabled && !why; t++)
            why = run_row(x, prog->slot[t].phase, prog->slot[t].micro);
        tabled |= !n;
    }
    return why;
}

/* ---- the end ------------------------------------------------------------- */

static int has_shape(const Plan *p, const ValueShape *s)
{
    for (int i = 0; i < p->nshape; i++)
        if (shapes_equal(&p->shape[i], s))
            return 1;
    return 0;
}

/* An output lies in its buffer as the value y, under names of its own. The
 * plan's shapes have these too: a tensor that names an axis otherwise
 * contradicts them. */
static const char *output_wrong(const ValueFlow *x, const Tensor *tensor,
                                const ValueShape *y)
{
    ValueShape s;
    tensor_shape(tensor, &s);
    if (!is_view_of(&s, y) && law(Loutput_shape))
        return strf(x->c->arena, "ends with output '%s' in another shape",
                    tensor->name);
    if (!has_shape(x->c->p, &s) && law(Loutput_axes))
        return strf(x->c->arena,
                    "ends with output '%s' in a shape that is not there",
                    tensor->name);
    return NULL;
}

/* Those in a buffer that ends as y, or, y null, in what lives always. */
static const char *outputs_wrong(const ValueFlow *x, int buf,
                                 const ValueShape *y)
{
    const Role *r = x->c->r;
    const char *why = NULL;
    for (int i = 0; i < r->ntensor && !why; i++) {
        const Tensor *t = &r->tensor[i];
        if (t->kind == TKoutput &&
            (y ? t->buf == buf : r->buf[t->buf].prog < 0))
            why = output_wrong(x, t, y ? y : x->c->lasting[t->buf]);
    }
    return why;
}

static const char *end_wrong(ValueFlow *x, const FinalValue *e)
{
    const Role *r = x->c->r;
    if ((e->buf < 0 || e->buf >= r->nbuf || r->buf[e->buf].frame) &&
        law(Lend_buffer))
        return "ends with a buffer that does not exist";
    const Buf *b = &r->buf[e->buf];
    if ((e->value <= 0 || x->at[e->buf].value != e->value) && law(Lend_value))
        return strf(x->c->arena, "ends without the new value of '%s'", b->name);
    const ValueUse *f = x->made[e->value].f;
    if (b->prog == -1 && (f->part[0] || f->part[1] || f->part[2]) &&
        law(Lend_whole))
        return strf(x->c->arena, "leaves in '%s' terms of a sum", b->name);
    if (b->prog == -1 &&
        !shapes_equal(&x->c->p->shape[f->shape], x->c->lasting[e->buf]) &&
        law(Lend_shape))
        return strf(x->c->arena, "leaves in '%s' what lies otherwise", b->name);
    if (b->prog >= 0)
        return outputs_wrong(x, e->buf, &x->c->p->shape[f->shape]);
    return 0;
}

static const char *ends_wrong(ValueFlow *x)
{
    const char *why = 0;
    for (int i = 0; i < x->g->nend && !why; i++) {
        why = end_wrong(x, &x->g->end[i]);
        if (!why && x->at[x->g->end[i].buf].row < 0 && law(Lend_once))
            why = "ends twice with one buffer";
        if (!why)
            x->at[x->g->end[i].buf].row = -1;
    }
    why = why ? why : outputs_wrong(x, -1, NULL);
    for (int b = 0; b < x->c->r->nbuf && !why; b++)
        if (x->c->r->buf[b].prog == -1 && x->at[b].row >= 0 &&
            x->at[b].value != ~b && law(Lend_said))
            why = strf(x->c->arena, "writes '%s', which it does not say",
                       x->c->r->buf[b].name);
    for (size_t i = 0; i < vec_len(x->line) && !why; i++)
        if (x->line[i].first != vec_len(x->line[i].sent) && law(Lsend_waited))
            why = "ends with a send that nothing waits for";
    return why ? program_told(x->c, x->g->kind, why) : NULL;
}

/* ---- the whole ----------------------------------------------------------- */

/* What lies in a place of its own inside a phase that is run again. */
static void find_brief(ValueFlow *x)
{
    const Program *g = x->g;
    for (int i = 0; i < x->c->r->nbuf; i++) {
        const Buf *b = &x->c->r->buf[i];
        int f = 0;
        if (b->prog != x->prog || b->frame)
            continue;
        while (f < g->nphase - 1 && b->born >= g->phase[f + 1].first)
            f++;
        x->brief[i] = g->phase[f].repeat != 1 &&
                      b->dies < g->phase[f].first + g->phase[f].n;
    }
}

const char *flow_wrong(const PlanCheck *c, int prog)
{
    ValueFlow x = { .c = c, .g = &c->r->prog[prog], .prog = prog };
    size_t nbuf = (size_t)c->r->nbuf + 1, nphase = (size_t)x.g->nphase + 1;
    ValueOrigin *made;
    const char *why = lives_loose(c->arena, c->r, prog);

    if (!why)
        why = values_wrong(c, prog, &made);
    if (why)
        return why;
    x.made = made;
    x.free = is_free(c->p);
    x.at = alloc(c->arena, nbuf * sizeof *x.at);
    x.framed = alloc(c->arena, nbuf * sizeof *x.framed);
    x.brief = alloc(c->arena, nbuf);
    x.last = alloc(c->arena, nphase * sizeof *x.last);
    x.runs = alloc(c->arena, nphase * sizeof *x.runs);
    for (int b = 0; b < c->r->nbuf; b++)
        x.at[b].value = c->r->buf[b].prog < 0 ? ~b : 0;
    find_brief(&x);
    why = run_rows(&x);
    return why ? why : ends_wrong(&x);
}
