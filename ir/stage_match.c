/* stage_match.c: do the stages of a plan fit each other? For each program:
 *
 *   transfers     what one stage sends to another on a channel is, message by
 *                 message, what that one receives: micro-batch, elements, type
 *   collectives   over stages stand in one order on all of them, with the same
 *                 arguments. Those inside a stage need no check: their members
 *                 run the same instructions with the same integers
 *                 (value_types.c)
 *   deadlock      with every send waiting for its receiver the stages come to
 *                 their end (time_model.c). As nothing depends on data or on
 *                 who is faster, one run is all runs
 *
 * One role stands for all ranks of its stage, so the cost does not depend on
 * the number of ranks. */
#include <string.h>

#include "plan.h"

typedef struct Message {
    const Instr *s;
    int micro;
} Message;

typedef struct StageLink { /* from one stage to another, one channel */
    int from, to;
    int64_t chan;
    Message *sent, *got; /* vecs */
} StageLink;

typedef struct StageMatch {
    Arena *arena;
    const Plan *p;
    ProgramKind program;
    StageLink *wire;     /* vec */
    const Instr ***wide; /* by role: vec */
    const Program **g;   /* by role */
} StageMatch;

static const char *wrong(const StageMatch *x, int role, const Instr *s,
                         const char *what)
{
    return strf(x->arena, "role %d: program '%s': '%s'%s %s", role,
                programnames[x->program], s->label ? s->label : "",
                place_text(x->arena, s->file, s->line), what);
}

/* ---- what each stage does with others ------------------------------------ */

static StageLink *wire_of(StageMatch *x, int role, const Instr *s)
{
    int peer = (int)s->transfer.peer;
    int from = s->kind == Isend ? role : peer,
        to = s->kind == Isend ? peer : role;
    for (size_t i = 0; i < vec_len(x->wire); i++) {
        StageLink *w = &x->wire[i];
        if (w->from == from && w->to == to && w->chan == s->transfer.chan)
            return w;
    }
    vec_push(x->arena, x->wire,
             ((StageLink){ from, to, s->transfer.chan, 0, 0 }));
    return &x->wire[vec_len(x->wire) - 1];
}

static void note_instr(StageMatch *x, int role, const Instr *s, int micro)
{
    if (s->kind == Isend || s->kind == Irecv) {
        StageLink *w = wire_of(x, role, s);
        if (s->kind == Isend)
            vec_push(x->arena, w->sent, ((Message){ s, micro }));
        else
            vec_push(x->arena, w->got, ((Message){ s, micro }));
    } else if (s->kind != Iwait && s->atoms & x->p->mesh->mask[Mpp]) {
        vec_push(x->arena, x->wide[role], s);
    }
}

/* Instructions of each phase that concern other stages. */
static const Instr ***far_instrs(const StageMatch *x, const Program *prog)
{
    const Instr ***v = alloc(x->arena, sizeof *v * (size_t)(prog->nphase + 1));
    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < prog->phase[f].n; i++) {
            const Instr *s = &prog->instr[prog->phase[f].first + i];
            if (s->atoms & x->p->mesh->mask[Mpp])
                vec_push(x->arena, v[f], s);
        }
    return v;
}

static void note_role(StageMatch *x, int role)
{
    const Program *prog = x->g[role];
    const Instr ***v = far_instrs(x, prog);
    const ScheduleSlot *row = program_rows(x->arena, prog);
    for (size_t t = 0; t < vec_len(row); t++) {
        const Instr **far = v[row[t].phase];
        for (size_t i = 0; i < vec_len(far); i++)
            note_instr(x, role, far[i], row[t].micro);
    }
}

/* ---- comparing ----------------------------------------------------------- */

/* The parts of value v; nothing of what was there when the program began. */
static const uint32_t *parts_of(const Program *prog, int v, int *shape)
{
    static const uint32_t whole[3];
    for (int i = 0; i < prog->ninstr && v > 0; i++)
        for (int k = 0; k < prog->instr[i].nbuf && prog->instr[i].flow; k++)
            if (prog->instr[i].flow[k].make == v) {
                *shape = prog->instr[i].flow[k].shape;
                return prog->instr[i].flow[k].part;
            }
    return whole;
}

/* Does b receive what a sends, lying as a reads it? */
static int same_type(const StageMatch *x, int role, const Instr *a,
                     const Instr *i)
{
    const ValueUse *f = &a->flow[0], *t = &i->flow[0];
    int shape = 0;
    const uint32_t *part = parts_of(x->g[role], f->read, &shape);
    shape = f->as >= 0 ? f->as : shape;
    return shapes_equal(&x->p->shape[shape], &x->p->shape[t->shape]) &&
           !memcmp(part, t->part, sizeof t->part);
}

static const char *wire_wrong(const StageMatch *x, const StageLink *w)
{
    size_t n = vec_len(w->sent), m = vec_len(w->got);
    const Instr *last = 0;
    for (size_t i = 0; i < n || i < m; i++) {
        if (i >= n && law(Lreceived_is_sent))
            return wrong(x, w->to, w->got[i].s, "receives what nobody sends");
        const Message *a = &w->sent[i], *b = &w->got[i];
        if (i >= m && law(Lsent_is_received))
            return wrong(x, w->from, a->s, "sends what nobody receives");
        if (a->micro != b->micro && law(Lsame_micro))
            return wrong(x, w->from, a->s,
                         strf(x->arena,
                              "sends micro-batch %d where stage %d receives %d",
                              a->micro, w->to, b->micro));
        if (a->s == last)
            continue;
        last = a->s;
        if (a->s->flow && b->s->flow && !same_type(x, w->from, a->s, b->s) &&
            law(Lsame_type))
            return wrong(x, w->from, a->s,
                         "sends another type than is received");
    }
    return 0;
}

static const char *wide_wrong(const StageMatch *x, int role)
{
    size_t n = vec_len(x->wide[0]), m = vec_len(x->wide[role]);
    for (size_t i = 0; i < m; i++) {
        const Instr *b = x->wide[role][i], *a = i < n ? x->wide[0][i] : NULL;
        if ((!a || a->atoms != b->atoms || !same_args(a, b)) && law(Lwide_same))
            return wrong(x, role, b,
                         "is another collective than that of the other stages");
    }
    if (n != m && law(Lwide_count))
        return wrong(x, 0, x->wide[0][m],
                     "is a collective that not all stages have");
    return NULL;
}

/* ---- the whole ----------------------------------------------------------- */

static const char *program_meets(StageMatch *x)
{
    const char *why = 0;
    for (int i = 0; i < x->p->nrole; i++)
        note_role(x, i);
    for (size_t i = 0; i < vec_len(x->wire) && !why; i++)
        why = wire_wrong(x, &x->wire[i]);
    for (int i = 0; i < x->p->nrole && !why; i++)
        why = wide_wrong(x, i);
    if (why)
        return why;
    const char *stuck = plan_time(x->arena, x->p, x->program).stuck;
    return stuck && law(Lno_deadlock)
               ? strf(x->arena, "program '%s': deadlock: %s",
                      programnames[x->program], stuck)
               : NULL;
}

const char *meets_wrong(Arena *a, const Plan *p)
{
    const char *why = 0;
    for (int k = 0; k < p->role[0].nprog && !why && p->nrole > 1; k++) {
        StageMatch x = { .arena = a,
                         .p = p,
                         .program = p->role[0].prog[k].kind };
        x.wide = alloc(a, sizeof *x.wide * (size_t)p->nrole);
        x.g = alloc(a, sizeof *x.g * (size_t)p->nrole);
        for (int i = 0; i < p->nrole && !why; i++) {
            int g = role_prog(&p->role[i], x.program);
            if (!has_flow(&p->role[i]))
                return 0;
            if ((g != k || p->role[i].nprog != p->role[0].nprog) &&
                law(Lsame_programs))
                why = strf(a, "role %d has other programs", i);
            else
                x.g[i] = &p->role[i].prog[g];
        }
        if (!why)
            why = program_meets(&x);
    }
    return why;
}
