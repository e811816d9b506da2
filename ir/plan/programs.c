/* programs.c: names of programs, their rows, and the program of a step. */
#include "plan.h"

const char *const programnames[] = {
#define PROGRAM(id, name, may, must) name,
#include "../plan/programs.def"
};

ProgramKind program_kind(const char *name)
{
    int k = word_index(name, programnames, NPROGRAM);

    return k < 0 ? NPROGRAM : (ProgramKind)k;
}

int program_trains(ProgramKind k)
{
    return program_budgeted(k) || k == PGfallback;
}

int program_budgeted(ProgramKind k)
{
    return k == PGstep || k == PGwatched;
}

ProgramKind program_of_step(const Plan *p, int64_t step)
{
    int64_t every = opts_int(p->opts, "precision.watch");

    return role_prog(&p->role[0], PGwatched) >= 0 && every > 0 &&
                   (step % every == 0 ||
                    step == opts_int(p->opts, "train.steps"))
               ? PGwatched
               : PGstep;
}

ScheduleSlot *program_rows(Arena *a, const Program *prog)
{
    ScheduleSlot *v = NULL;
    int tabled = 0;

    for (int f = 0; f < prog->nphase; f++) {
        for (int t = 0; t < prog->phase[f].repeat; t++)
            vec_push(a, v, ((ScheduleSlot){ f, t, 0 }));
        for (int t = 0; t < prog->nslot && !prog->phase[f].repeat && !tabled;
             t++)
            vec_push(a, v, prog->slot[t]);
        tabled |= !prog->phase[f].repeat;
    }
    return v;
}

int is_last_row(const Program *prog, const ScheduleSlot *row)
{
    int64_t repeat = prog->phase[row->phase].repeat;
    int i = prog->nslot;

    if (repeat)
        return row->micro == repeat - 1;
    while (i > 0 && prog->slot[i - 1].phase != row->phase)
        i--;
    return i > 0 && prog->slot[i - 1].micro == row->micro;
}

int runs_in(const Program *prog, const Instr *instr, const ScheduleSlot *row)
{
    return !instr->last_only || is_last_row(prog, row);
}

int program_writes(const Program *prog, int buf)
{
    for (int i = 0; i < prog->nend; i++)
        if (prog->end[i].buf == buf)
            return 1;
    return 0;
}
