/* stage.c: ranks of this process that run one role, instruction by instruction:
 * their programs with phases unrolled and the table in its place, where they
 * stand, what a step is given. */

#include "exec.h"

/* ---- opening ------------------------------------------------------------- */

static Needs needs_of(Exec *x, const Role *r, const Program *prog,
                      const Phase *f)
{
    Needs n = { 0 };

    for (int i = 0; i < r->ntensor; i++)
        if (r->tensor[i].kind == TKinput &&
            phase_names(prog, f, r->tensor[i].buf))
            vec_push(x->mem, n.input, i);
    for (int i = 0; i < r->nin; i++)
        if (r->in[i].value == STEPmicro)
            n.micro |= phase_names(prog, f, r->in[i].buf);
    return n;
}

static UnrolledProgram course_of(Exec *x, const Role *r, const Program *prog)
{
    UnrolledProgram c = { .row = program_rows(x->mem, prog) };

    c.needs = alloc(x->mem, (size_t)(prog->nphase + 1) * sizeof *c.needs);
    for (int f = 0; f < prog->nphase; f++)
        c.needs[f] = needs_of(x, r, prog, &prog->phase[f]);
    c.nrow = (int)vec_len(c.row);
    return c;
}

static void open_stage(Exec *x, Stage *s, int role)
{
    const Role *r = &x->plan->role[role];

    s->role = role;
    s->course = alloc(x->mem, (size_t)r->nprog * sizeof *s->course);
    for (int g = 0; g < r->nprog; g++)
        s->course[g] = course_of(x, r, &r->prog[g]);
    s->loaded = alloc(x->mem, (size_t)(r->ntensor + 1) * sizeof *s->loaded);
}

Stage *exec_stage(Exec *x, int role)
{
    int i = 0;

    while (i < x->nstage && x->stage[i].role != role)
        i++;
    if (i == x->nstage)
        open_stage(x, &x->stage[x->nstage++], role);
    return &x->stage[i];
}

/* ---- where a stage stands ------------------------------------------------ */

const Program *stage_program(const Stage *s)
{
    return &s->rank[0]->role->prog[s->prog];
}

int stage_ended(const Stage *s)
{
    return s->row == s->course[s->prog].nrow;
}

const ScheduleSlot *stage_slot(const Stage *s)
{
    return &s->course[s->prog].row[s->row];
}

int stage_instr(const Stage *s)
{
    return stage_program(s)->phase[stage_slot(s)->phase].first + s->instr;
}

BoundInstr *rank_instr(const Rank *r)
{
    return &r->bound[r->stage->prog][stage_instr(r->stage)];
}

/* ---- what a step is given ------------------------------------------------ */

/* Of those that run at once, so the same on all ranks. */
double first_micro(const Exec *x, int64_t micro)
{
    int64_t v = micro * x->plan->mesh->size[Mdp];

    return (double)v;
}

double step_value(const Exec *x, const StepValues *b, StepValue v)
{
    switch (v) {
    case STEPlr: return b->lr;
    case STEPbc1: return b->bc1;
    case STEPbc2: return b->bc2;
    case STEPstep: return (double)b->step;
    case STEPhold: return x->hold;
    case STEPskip_loss: return x->limits.loss;
    case STEPskip_gnorm: return x->limits.gnorm;
    case STEPmicro:
    case NSTEPVALUE: break;
    }
    return 0;
}
