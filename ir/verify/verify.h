/* verify.h: laws of plans and the parts of the verifier; private to this
 * folder */
#ifndef PLEAT_VERIFY_H
#define PLEAT_VERIFY_H

#include "../plan/plan.h"

#include "live.h"

/* Names of the proved laws. law() is called at a violation and returns whether
 * to accept it: a test can switch one law off, to show that a plan is refused
 * by it alone. */
typedef enum Law {
#define LAW(id, text) L##id,
#include "laws.def"
#undef LAW
    NLAW
} Law;
extern int law_off;    /* law switched off; -1: none */
extern int law_broken; /* last violated law; -1: none */
int law(Law x);

typedef struct PlanCheck {
    Arena *arena;
    const Plan *p;
    const Role *r;
    int role;
    const char **kernels; /* names, sorted by pointer */
    ValueShape **lasting; /* [buffer]: shape of its persistent value;
                                     null: none */
} PlanCheck;

/* Return a message with the name of the program, or of the instruction. */
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
/* [value]: the instruction that writes it (-1: none), and its type. */
typedef struct ValueOrigin {
    int instr;
    const ValueUse *f;
} ValueOrigin;
const char *values_wrong(const PlanCheck *check, int prog, ValueOrigin **made);
const char *shapes_wrong(const PlanCheck *check);
const char *signatures_wrong(const PlanCheck *check);
/* Returns [buffer]: the shape of its persistent value, from its tensors. */
ValueShape **lasting_shapes(const PlanCheck *check);
/* Checks rank-dependent integers. Shapes by slot; null: not read, or not
 * written. */
const char *places_wrong(const PlanCheck *check, const Instr *instr,
                         const ValueShape *const *in,
                         const ValueShape *const *out);
const char *operands_wrong(const PlanCheck *check, const Instr *instr,
                           const ValueShape *const *in,
                           const ValueShape *const *out);
const char *flow_wrong(const PlanCheck *check, int prog);
const char *streams_wrong(const PlanCheck *check, int prog);
const char *sizes_wrong(const PlanCheck *check);
const char *meets_wrong(Arena *a, const Plan *p); /* stage_match.c */
/* Appends the bytes of prog's frames as disjoint spans, id -1. */
void frame_runs(const PlanCheck *check, int prog, Span **v);

#endif
