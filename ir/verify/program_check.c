/* program_check.c: checks the buffers that each program of a stage may write,
 * and must write. Weights and states need a program that initializes them. */
#include "verify.h"

/* Classes of buffers as bits. */
enum {
    WEIGHTS = 1u << Bparam | 1u << Bstate,
    OPTIM = 1u << Boptim,
    RESULTS = 1u << Bio
};

static const struct {
    uint32_t may, must;
} writable[] = {
#define PROGRAM(id, name, may, must) { may, must },
#include "../plan/programs.def"
};

/* ---- one program --------------------------------------------------------- */

/* Returns [buffer]: does the program write it? */
static char *written(const PlanCheck *check, const Program *prog)
{
    char *v = alloc(check->arena, (size_t)check->r->nbuf + 1);
    for (int i = 0; i < prog->nend; i++)
        if (prog->end[i].buf >= 0 && prog->end[i].buf < check->r->nbuf)
            v[prog->end[i].buf] = 1;
    return v;
}

static const char *program_wrong(const PlanCheck *check, const Program *program)
{
    const char *v = written(check, program);
    for (int i = 0; i < check->r->nbuf; i++) {
        const Buf *b = &check->r->buf[i];
        if (b->prog >= 0)
            continue;
        if (v[i] && !(writable[program->kind].may >> b->cls & 1) &&
            law(Lmay_write))
            return program_told(
                check, program->kind,
                strf(check->arena, "may not write '%s'", b->name));
        if (!v[i] && writable[program->kind].must >> b->cls & 1 &&
            law(Lmust_write))
            return program_told(
                check, program->kind,
                strf(check->arena, "does not write '%s'", b->name));
    }
    return NULL;
}

/* ---- all programs -------------------------------------------------------- */

/* A program that may overflow must report it and have a fallback that
 * cannot. */
static const char *fallback_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    int over = role_result(role, RESULToverflow);
    int step = role_prog(role, PGstep), back = role_prog(role, PGfallback);
    if (over < 0)
        return NULL;
    if ((step < 0 || back < 0) && law(Lfallback_there))
        return program_told(check, PGstep, "may overflow and has no fallback");
    int buf = role->out[over].buf;
    const Program *watched = role_program(role, PGwatched);
    int swapped = !program_writes(&role->prog[step], buf) ||
                  (watched && !program_writes(watched, buf)) ||
                  program_writes(&role->prog[back], buf);
    return swapped && law(Lfallback_not_step)
               ? program_told(check, PGfallback, "is taken for the step")
               : NULL;
}

/* Values that live across steps must be initialized. Other stages have the
 * programs of the first. */
static const char *init_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    int kept = 0;
    for (int i = 0; i < role->nbuf && check->role == 0; i++)
        kept |= role->buf[i].prog < 0 &&
                (writable[PGinit].must >> role->buf[i].cls & 1);
    return kept && role_prog(role, PGinit) < 0 && law(Linit_there)
               ? program_told(check, PGinit, "is missing")
               : NULL;
}

/* Quantized weights and scales, which checkpoints do not have, need a program
 * that derives them. */
static const char *numbers_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    const Program *program = role_program(role, PGweights);
    for (int i = 0; i < role->ntensor; i++) {
        const Tensor *t = &role->tensor[i];
        if (tensor_is(t, 1u << TKnumbers | 1u << TKscales) &&
            !(program && program_writes(program, t->buf)) && law(Lnumbers_made))
            return program_told(
                check, PGweights,
                strf(check->arena, "does not make '%s'", t->name));
    }
    return NULL;
}

static const char *set_wrong(const PlanCheck *check)
{
    const Role *role = check->r;
    int last = -1;
    for (int i = 0; i < role->nprog; i++) {
        int k = (int)role->prog[i].kind;
        if (k <= last && law(Lprogram_order))
            return program_told(check, role->prog[i].kind,
                                "is not in its place");
        last = k;
    }
    if (role_prog(role, PGstep) < 0 && role->nprog &&
        program_trains(role->prog->kind) && law(Lstep_there))
        return program_told(check, role->prog->kind, "is beside no step");
    const char *why = init_wrong(check);
    why = why ? why : numbers_wrong(check);
    return why ? why : fallback_wrong(check);
}

const char *purposes_wrong(const PlanCheck *check)
{
    const char *why = set_wrong(check);
    for (int i = 0; i < check->r->nprog && !why; i++)
        why = program_wrong(check, &check->r->prog[i]);
    return why;
}
