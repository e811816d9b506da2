/* stage_match.c: checks that the stages of a plan match. For each program:
 *
 *   transfers     messages sent and received on a channel agree one by one in
 *                 micro-batch, elements and type
 *   collectives   over several stages have one order on all of them, and equal
 *                 arguments. Those inside a stage need no check: their members
 *                 run the same instructions with the same integers
 *                 (value_types.c)
 *   deadlock      if every send waits for its receiver, all stages reach their
 *                 end (time_model.c). Nothing depends on data or speed, so one
 *                 run represents all
 *
 * A role represents all ranks of its stage, so the cost does not depend on the
 * number of ranks. */
#include "verify.h"

typedef struct Message {
    const Instr *s;
    int micro;
} Message;

typedef struct StageLink { /* a channel from one stage to another */
    int from, to;
    int64_t chan;
    Message *sent, *got; /* vecs */
} StageLink;

typedef struct StageMatch {
    Arena *arena;
    const Plan *p;
    ProgramKind program;
    StageLink *wire;     /* vec */
    const Instr ***wide; /* [role]: vec */
    const Program **g;   /* [role] */
} StageMatch;

static const char *wrong(const StageMatch *match, int role, const Instr *instr,
                         const char *what)
{
    return strf(match->arena, "role %d: program '%s': '%s'%s %s", role,
                programnames[match->program], instr->label ? instr->label : "",
                place_text(match->arena, instr->file, instr->line), what);
}

/* ---- operations between stages ------------------------------------------- */

static StageLink *wire_of(StageMatch *match, int role, const Instr *instr)
{
    int peer = (int)instr->transfer.peer;
    int from = instr->kind == Isend ? role : peer,
        to = instr->kind == Isend ? peer : role;
    for (size_t i = 0; i < vec_len(match->wire); i++) {
        StageLink *w = &match->wire[i];
        if (w->from == from && w->to == to && w->chan == instr->transfer.chan)
            return w;
    }
    vec_push(match->arena, match->wire,
             ((StageLink){ from, to, instr->transfer.chan, 0, 0 }));
    return &match->wire[vec_len(match->wire) - 1];
}

static void note_instr(StageMatch *match, int role, const Instr *instr,
                       int micro)
{
    if (instr->kind == Isend || instr->kind == Irecv) {
        StageLink *w = wire_of(match, role, instr);
        if (instr->kind == Isend)
            vec_push(match->arena, w->sent, ((Message){ instr, micro }));
        else
            vec_push(match->arena, w->got, ((Message){ instr, micro }));
    } else if (instr->kind != Iwait &&
               instr->atoms & match->p->mesh->mask[Mpp]) {
        vec_push(match->arena, match->wide[role], instr);
    }
}

/* Returns the instructions of each phase that involve other stages. */
static const Instr ***far_instrs(const StageMatch *match, const Program *prog)
{
    const Instr ***v =
        alloc(match->arena, sizeof *v * (size_t)(prog->nphase + 1));
    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < prog->phase[f].n; i++) {
            const Instr *instr = &prog->instr[prog->phase[f].first + i];
            if (instr->atoms & match->p->mesh->mask[Mpp])
                vec_push(match->arena, v[f], instr);
        }
    return v;
}

static void note_role(StageMatch *match, int role)
{
    const Program *prog = match->g[role];
    const Instr ***v = far_instrs(match, prog);
    const ScheduleSlot *row = program_rows(match->arena, prog);
    for (size_t t = 0; t < vec_len(row); t++) {
        const Instr **far = v[row[t].phase];
        for (size_t i = 0; i < vec_len(far); i++)
            note_instr(match, role, far[i], row[t].micro);
    }
}

/* ---- comparing ----------------------------------------------------------- */

/* Returns the parts of value v; null for a value from before the program. */
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

/* Does b receive the value that a sends, with the same layout? */
static int same_type(const StageMatch *match, int role, const Instr *a,
                     const Instr *i)
{
    const ValueUse *f = &a->flow[0], *t = &i->flow[0];
    int shape = 0;
    const uint32_t *part = parts_of(match->g[role], f->read, &shape);
    shape = f->as >= 0 ? f->as : shape;
    return shapes_equal(&match->p->shape[shape], &match->p->shape[t->shape]) &&
           !memcmp(part, t->part, sizeof t->part);
}

static const char *wire_wrong(const StageMatch *match, const StageLink *link)
{
    size_t n = vec_len(link->sent), m = vec_len(link->got);
    const Instr *last = 0;
    for (size_t i = 0; i < n || i < m; i++) {
        if (i >= n && law(Lreceived_is_sent))
            return wrong(match, link->to, link->got[i].s,
                         "receives what nobody sends");
        const Message *a = &link->sent[i], *b = &link->got[i];
        if (i >= m && law(Lsent_is_received))
            return wrong(match, link->from, a->s, "sends what nobody receives");
        if (a->micro != b->micro && law(Lsame_micro))
            return wrong(match, link->from, a->s,
                         strf(match->arena,
                              "sends micro-batch %d where stage %d receives %d",
                              a->micro, link->to, b->micro));
        if (a->s == last)
            continue;
        last = a->s;
        if (a->s->flow && b->s->flow &&
            !same_type(match, link->from, a->s, b->s) && law(Lsame_type))
            return wrong(match, link->from, a->s,
                         "sends another type than is received");
    }
    return 0;
}

static const char *wide_wrong(const StageMatch *match, int role)
{
    size_t n = vec_len(match->wide[0]), m = vec_len(match->wide[role]);
    for (size_t i = 0; i < m; i++) {
        const Instr *b = match->wide[role][i],
                    *a = i < n ? match->wide[0][i] : NULL;
        if ((!a || a->atoms != b->atoms || !same_args(a, b)) && law(Lwide_same))
            return wrong(match, role, b,
                         "is another collective than that of the other stages");
    }
    if (n != m && law(Lwide_count))
        return wrong(match, 0, match->wide[0][m],
                     "is a collective that not all stages have");
    return NULL;
}

/* ---- the whole ----------------------------------------------------------- */

static const char *program_meets(StageMatch *match)
{
    const char *why = 0;
    for (int i = 0; i < match->p->nrole; i++)
        note_role(match, i);
    for (size_t i = 0; i < vec_len(match->wire) && !why; i++)
        why = wire_wrong(match, &match->wire[i]);
    for (int i = 0; i < match->p->nrole && !why; i++)
        why = wide_wrong(match, i);
    if (why)
        return why;
    const char *stuck = plan_time(match->arena, match->p, match->program).stuck;
    return stuck && law(Lno_deadlock)
               ? strf(match->arena, "program '%s': deadlock: %s",
                      programnames[match->program], stuck)
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
