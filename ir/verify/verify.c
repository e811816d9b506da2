/* verify.c: laws, and messages about violations. */
#include "verify.h"

int law_off = -1, law_broken = -1;

int law(Law x)
{
    law_broken = (int)x;
    return (int)x != law_off;
}

const char *program_told(const PlanCheck *check, ProgramKind k, const char *why)
{
    return strf(check->arena, "role %d: program '%s' %s", check->role,
                programnames[k], why);
}

const char *instr_told(const PlanCheck *check, const Program *program,
                       int instr, const char *why)
{
    const Instr *s = &program->instr[instr];
    return strf(check->arena, "role %d: program '%s': instruction %d '%s'%s %s",
                check->role, programnames[program->kind], instr, instr_label(s),
                place_text(check->arena, s->file, s->line), why);
}
