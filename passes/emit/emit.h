/* emit.h: kernels with their places become instructions of a plan. */
#ifndef PLEAT_EMIT_H
#define PLEAT_EMIT_H

#include "../plan/plan.h"

void make_joins(
    ProgramBuilder
        *builder); /* grad_buckets.c: packs that need no copy are joins */

/* instr_values.c: what instruction instr of group reads and makes, and what
 * must be there at the end. Buffers have numbers. */
void flow_instr(ProgramBuilder *builder, const Group *group, Instr *instr);
const Node *made_in(const Group *group,
                    const Node *n); /* what group leaves in n's
                                     buffer; null: nothing */
void flow_ends(ProgramBuilder *builder, Program *program);
/* signatures.c: what kernel s of group k declares. Buffers have numbers, and s
 * its words, which the plan has with its signatures. */
Signatures *signatures_new(Arena *a);
void signatures_give(const Signatures *signatures, Plan *p);
void sign_call(ProgramBuilder *builder, const Group *group, Instr *instr);
Shapes *shapes_new(Arena *a);
ValueShape *shapes_all(const Shapes *shapes);                   /* vec */
int shape_index(Shapes *shapes, const Graph *g, const Node *n); /* its index */

Emit *emit_new(Arena *a, Graph *g, const Target *target);
/* A stage's program: its instructions in order, their streams, the places of
 * its buffers. */
ProgramBuilder *place_program(Graph *g, Group **groups);
void emit_program(Emit *emit, ProgramBuilder *builder); /* it joins the plan */
Plan *emit_finish(Emit *emit, const CompileOptions *options);

#endif
