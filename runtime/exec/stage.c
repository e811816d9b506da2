/* stage.c: a stage, the ranks of this process that run one role: its unrolled
 * programs, its position, and the values of a step. */
#include "exec.h"

/* ---- opening ------------------------------------------------------------- */

static Needs needs_of(Exec *exec, const Role *role, const Program *prog,
                      const Phase *phase)
{
    Needs n = { 0 };

    for (int i = 0; i < role->ntensor; i++)
        if (role->tensor[i].kind == TKinput &&
            phase_names(prog, phase, role->tensor[i].buf))
            vec_push(exec->mem, n.input, i);
    for (int i = 0; i < role->nin; i++)
        if (role->in[i].value == STEPmicro)
            n.micro |= phase_names(prog, phase, role->in[i].buf);
    return n;
}

static UnrolledProgram course_of(Exec *exec, const Role *role,
                                 const Program *prog)
{
    UnrolledProgram c = { .row = program_rows(exec->mem, prog) };
    size_t n = (size_t)prog->nphase + 1;
    char *ran = alloc(exec->mem, n);

    c.needs = alloc(exec->mem, n * sizeof *c.needs);
    c.stores = alloc(exec->mem, n * sizeof *c.stores);
    for (int f = 0; f < prog->nphase; f++) {
        c.needs[f] = needs_of(exec, role, prog, &prog->phase[f]);
        for (int i = 0; i < prog->phase[f].n; i++)
            if (prog->instr[prog->phase[f].first + i].store_first)
                vec_push(exec->mem, c.stores[f], prog->phase[f].first + i);
    }
    c.nrow = (int)vec_len(c.row);
    c.first = alloc(exec->mem, (size_t)c.nrow + 1);
    for (int i = 0; i < c.nrow; i++) {
        c.first[i] = !ran[c.row[i].phase];
        ran[c.row[i].phase] = 1;
    }
    return c;
}

static void open_stage(Exec *exec, Stage *stage, int role)
{
    const Role *r = &exec->plan->role[role];

    stage->role = role;
    stage->course = alloc(exec->mem, (size_t)r->nprog * sizeof *stage->course);
    for (int g = 0; g < r->nprog; g++)
        stage->course[g] = course_of(exec, r, &r->prog[g]);
    stage->loaded =
        alloc(exec->mem, (size_t)(r->ntensor + 1) * sizeof *stage->loaded);
}

Stage *exec_stage(Exec *exec, int role)
{
    int i = 0;

    while (i < exec->nstage && exec->stage[i].role != role)
        i++;
    if (i == exec->nstage)
        open_stage(exec, &exec->stage[exec->nstage++], role);
    return &exec->stage[i];
}

/* ---- position of a stage ------------------------------------------------- */

const Program *stage_program(const Stage *stage)
{
    return &stage->rank[0]->role->prog[stage->prog];
}

int stage_ended(const Stage *stage)
{
    return stage->row == stage->course[stage->prog].nrow;
}

const ScheduleSlot *stage_slot(const Stage *stage)
{
    return &stage->course[stage->prog].row[stage->row];
}

int stage_instr(const Stage *stage)
{
    return stage_program(stage)->phase[stage_slot(stage)->phase].first +
           stage->instr;
}

BoundInstr *rank_instr(const Rank *rank)
{
    return &rank->bound[rank->stage->prog][stage_instr(rank->stage)];
}

/* ---- values of a step ---------------------------------------------------- */

/* The result is equal on all data-parallel ranks that run at once. */
double first_micro(const Exec *exec, int64_t micro)
{
    int64_t v = micro * exec->plan->mesh->size[Mdp];

    return (double)v;
}

double step_value(const Exec *exec, const StepValues *values, StepValue v)
{
    switch (v) {
    case STEPlr: return values->lr;
    case STEPbc1: return values->bc1;
    case STEPbc2: return values->bc2;
    case STEPstep: return (double)values->step;
    case STEPhold: return exec->hold;
    case STEPskip_loss: return exec->limits.loss;
    case STEPskip_gnorm: return exec->limits.gnorm;
    case STEPoptimizer_step: return (double)(values->step - exec->began);
    case STEPmicro:
    case NSTEPVALUE: break;
    }
    return 0;
}
