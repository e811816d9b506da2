/* verify.h: laws of plans, the parts of their verifier; private */
#ifndef PLEAT_VERIFY_H
#define PLEAT_VERIFY_H

#include "../plan/plan.h"

#include "live.h"

/* What is proved, by name. law() is asked where a law is broken, and says
 * whether it holds all the same: a test may leave one out, to see that a plan
 * is refused by it alone. */
typedef enum Law {
#define LAW(id, text) L##id,
#include "laws.def"
#undef LAW
    NLAW
} Law;
extern int law_off;    /* -1: none */
extern int law_broken; /* the last that was asked for; -1: none */
int law(Law x);

typedef struct PlanCheck {
    Arena *arena;
    const Plan *p;
    const Role *r;
    int role;
    const char **kernels; /* names, sorted by pointer */
    ValueShape **lasting; /* by buffer: how what lives there always
                                     lies; null: it does not */
} PlanCheck;

/* Why, said of a program or of an instruction in it. */
const char *program_told(const PlanCheck *check, ProgramKind k,
                         const char *why);
const char *instr_told(const PlanCheck *check, const Program *program,
                       int instr, const char *why);
const char *instr_wrong(const PlanCheck *check, int prog, int instr);
const char *table_wrong(const PlanCheck *check, int prog);
const char *tensors_wrong(const PlanCheck *check);
const char *tensors_loose(const PlanCheck *check); /* plans with flow */
const char *shared_wrong(Arena *a, const Plan *p);
const char *purposes_wrong(const PlanCheck *check);
const char *hf_wrong(Arena *a, const Plan *p);
/* By number: who makes it (-1: nobody) and of what type, when all is well. */
typedef struct ValueOrigin {
    int instr;
    const ValueUse *f;
} ValueOrigin;
const char *values_wrong(const PlanCheck *check, int prog, ValueOrigin **made);
const char *shapes_wrong(const PlanCheck *check);
const char *signatures_wrong(const PlanCheck *check);
/* By buffer: how what lives there always lies, from its tensors. */
ValueShape **lasting_shapes(const PlanCheck *check);
/* Shapes by slot, null: it reads, or makes, nothing there. */
const char *places_wrong(const PlanCheck *check, const Instr *instr,
                         const ValueShape *const *in,
                         const ValueShape *const *out);
const char *operands_wrong(const PlanCheck *check, const Instr *instr,
                           const ValueShape *const *in,
                           const ValueShape *const *out);
const char *flow_wrong(const PlanCheck *check, int prog);
const char *streams_wrong(const PlanCheck *check, int prog);
const char *sizes_wrong(const PlanCheck *check);
const char *meets_wrong(Arena *a, const Plan *p); /* stages with each other */
/* Append the bytes of prog's frames as spans that do not overlap, id -1. */
void frame_runs(const PlanCheck *check, int prog, Span **v);

#endif
