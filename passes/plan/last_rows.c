/* last_rows.c: in the pipeline stage that ends last, moves reductions of post
 * to the last row of the call that completes their gradients, where the rest of
 * the backward overlaps them (overlap.c does it for a repeated body).
 *
 *     F B F B  ..  F B     post  reduce w2  reduce w1  norm  update
 *     F B F B  ..  F B     post  norm  update
 *                     reduce w2  reduce w1     (Instr.last_only)
 *
 * A collective or a join can move if it names values of a single call: its
 * operands are complete after that call's last row. Values that other calls add
 * to stay, and so do their readers. A result in a row is live through the whole
 * table, so only as many move as memory allows: those with the most
 * instructions after them first. */
#include "plan.h"

enum { FIXED = -1 }; /* named by several calls, or by instructions that stay */

typedef struct CallUse { /* use of a value by calls */
    int phase;           /* counted from 1; 0: no call names it */
    int last;            /* last instruction that names it */
    int read;            /* named by an instruction that stays in post */
} CallUse;

/* Has the phase several rows, and does the stage send nothing after the last
 * one? Stages that wait for its sends would wait for the reductions too, and
 * its post begins before theirs. */
static int is_final(const Program *program, int f)
{
    int sends = 0;

    for (int i = program->phase[f].first; i < program->ninstr; i++)
        sends |= program->instr[i].kind == Isend;
    return phase_runs(program, f) > 1 && !sends;
}

static void note_call(CallUse *use, int phase, int instr)
{
    *use = (CallUse){ use->phase && use->phase != phase ? FIXED : phase, instr,
                      0 };
}

static CallUse *find_uses(const ProgramBuilder *builder, const Program *program,
                          Arena *arena)
{
    CallUse *use = alloc(arena, sizeof *use * (size_t)(builder->nnamed + 1));

    for (int f = 0; f < program->nphase; f++) {
        const Phase *call = &program->phase[f];
        int phase = call->repeat ? 0 : is_final(program, f) ? f + 1 : FIXED;
        for (int i = call->first; phase && i < call->first + call->n; i++)
            for (int j = 0; j < builder->group[i]->narg; j++)
                if (builder->group[i]->named[j].stored)
                    note_call(&use[builder->group[i]->named[j].number], phase,
                              i);
    }
    return use;
}

/* Returns the call to which group can move, and the instruction before it;
 * phase 0: none. */
static CallUse place_of(const ProgramBuilder *builder, const Group *group,
                        const CallUse *use)
{
    CallUse to = { 0 };

    if (!runs_beside(builder, &group->instr) && group->instr.kind != Ijoin)
        return to;
    for (int j = 0; j < group->narg; j++) {
        const NamedValue *value = &group->named[j];
        const CallUse *at = &use[value->number];
        if (!value->stored)
            continue;
        if (value->source >= 0 || at->phase == FIXED ||
            (value->writes && at->read) ||
            (to.phase && at->phase && at->phase != to.phase))
            return (CallUse){ 0 };
        to.phase = at->phase ? at->phase : to.phase;
        to.last = at->last > to.last ? at->last : to.last;
    }
    return to;
}

/* Records the place of group's results: moved, or staying. */
static void note_place(const Group *group, CallUse *use, CallUse to)
{
    for (int j = 0; j < group->narg; j++) {
        const NamedValue *value = &group->named[j];
        CallUse *at = &use[value->number];
        if (!value->stored)
            continue;
        if (to.phase)
            *at = to;
        else if (value->writes)
            at->phase = FIXED;
        at->read |= !to.phase;
    }
}

/* Lists the moved instructions by the instruction that they follow. */
static void give_places(ProgramBuilder *builder, Program *program,
                        const int *first, const int *after, const char *moved)
{
    Group **was = NULL;
    int at = 0;

    for (int i = 0; i < program->ninstr; i++)
        vec_push(builder->arena, was, builder->group[i]);
    for (int f = 0; f < program->nphase; f++) {
        Phase *phase = &program->phase[f];
        int from = phase->first, end = from + phase->n;
        phase->first = at;
        for (int i = from; i < end; i++) {
            if (!moved[i])
                builder->group[at++] = was[i];
            for (int k = first[i]; k; k = after[k])
                builder->group[at++] = was[k];
        }
        phase->n = at - phase->first;
    }
}

/* Returns the number of instructions of the call after a place. */
static int left_behind(const Program *program, const CallUse *to)
{
    const Phase *call = &program->phase[to->phase - 1];

    return call->first + call->n - 1 - to->last;
}

/* Returns [instruction of post]: its new place, only if at least `left`
 * instructions of the call follow it. */
static CallUse *find_places(const ProgramBuilder *builder,
                            const Program *program, int left, Arena *a)
{
    CallUse *to = alloc(a, sizeof *to * (size_t)(program->ninstr + 1));
    CallUse *use = find_uses(builder, program, a);
    const Phase *post = &program->phase[program->nphase - 1];

    for (int i = post->first; i < program->ninstr; i++) {
        to[i] = place_of(builder, builder->group[i], use);
        if (to[i].phase && left_behind(program, &to[i]) < left)
            to[i] = (CallUse){ 0 };
        note_place(builder->group[i], use, to[i]);
    }
    return to;
}

/* Returns the bytes of a collective's result and workspace. */
static int64_t bytes_of(const Group *group)
{
    int64_t bytes = group->scratch;

    for (int j = 0; j < group->narg && group->instr.kind != Ijoin; j++)
        if (group->named[j].stored && group->named[j].writes)
            bytes += group->named[j].bytes;
    return bytes;
}

/* Returns the smallest number of following instructions such that all
 * reductions with at least as many fit into `room` bytes. */
static int fewest_left(const ProgramBuilder *builder, const Program *program,
                       const CallUse *to, int64_t room, Arena *a)
{
    int64_t *bytes = alloc(a, sizeof *bytes * (size_t)(program->ninstr + 1));
    const Phase *post = &program->phase[program->nphase - 1];
    int left = program->ninstr;

    for (int i = post->first; i < program->ninstr; i++)
        if (to[i].phase)
            bytes[left_behind(program, &to[i])] += bytes_of(builder->group[i]);
    while (left >= 0 && (room -= bytes[left]) >= 0)
        left--;
    return left + 1;
}

int move_to_last_rows(ProgramBuilder *builder, Program *program, int64_t room)
{
    Arena *a = arena_new();
    size_t size = sizeof(int) * (size_t)(program->ninstr + 1);
    int *first = alloc(a, size), *end = alloc(a, size), *after = alloc(a, size);
    char *moved = alloc(a, (size_t)program->ninstr + 1);
    const CallUse *to = find_places(builder, program, 0, a);
    int count = 0;

    to = find_places(builder, program,
                     fewest_left(builder, program, to, room, a), a);
    for (int i = 0; i < program->ninstr; i++) {
        int place = to[i].last;
        if (!to[i].phase)
            continue;
        if (first[place])
            after[end[place]] = i;
        else
            first[place] = i;
        end[place] = i;
        moved[i] = 1;
        count++;
    }
    if (count)
        give_places(builder, program, first, after, moved);
    arena_free(a);
    return count;
}
