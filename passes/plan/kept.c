/* kept.c: bytes that a micro-batch keeps for its backward, by the time that a
 * pipeline would keep them: computed for a program without stages, for search's
 * estimates of pipelines. A schedule that splits the backward runs input
 * gradients, for which earlier layers wait, first (I) and the rest later (W),
 * as pipe_assign.c does:
 *
 *     input      | made by F, last read by I
 *     weights    | made by F, read by W
 *     between    | made by I, read by W
 *
 * A part of the backward is I if its result is read by an earlier layer, by
 * nodes of no layer, or by another part of I. */
#include "plan.h"

enum { EARLY = 1, LATE = 2 };

typedef struct Kept {
    Arena *arena;
    const Graph *graph;
    Group *const *group;
    const Layout *layout;
    int first, last; /* instructions of the body */
    char *part;      /* [instruction]: EARLY, LATE; 0: forward */
    char *read;      /* [life]: parts that read it */
} Kept;

static const Scope *layer_of(const Group *group)
{
    return group->node[0]->scope->unit;
}

/* Returns the index of the j-th value that an instruction names; -1:
 * persistent. */
static int life_named(const Kept *kept, int instr, int j)
{
    const NamedValue *value = &kept->group[instr]->named[j];

    return value->stored && !value->persists ? value->stored->mark - 1 : -1;
}

static int is_sum(const Group *group)
{
    return group->node[0]->scope->part == PARTgrad;
}

/* Readers of a life: the layer, and whether other layers or EARLY parts read
 * it. */
typedef struct Reader {
    const Scope *unit;
    int any, early;
} Reader;

static void note_reader(const Kept *kept, Reader *reader, int instr)
{
    const Group *group = kept->group[instr];

    for (int j = 0; j < group->narg; j++) {
        int i = life_named(kept, instr, j);
        if (i < 0 || group->named[j].writes)
            continue;
        Reader *r = &reader[i];
        r->early |= kept->part[instr] == EARLY ||
                    (r->any && r->unit != layer_of(group) && !is_sum(group));
        if (!is_sum(group)) {
            r->unit = layer_of(group);
            r->any = 1;
        }
    }
}

static int is_early(const Kept *kept, const Reader *reader, int instr)
{
    const Group *group = kept->group[instr];

    for (int j = 0; j < group->narg; j++) {
        int i = life_named(kept, instr, j);
        if (i >= 0 && group->named[j].writes &&
            (reader[i].early ||
             (reader[i].any && reader[i].unit != layer_of(group))))
            return 1;
    }
    return 0;
}

static void find_parts(Kept *kept)
{
    Reader *reader =
        alloc(kept->arena, sizeof *reader * (size_t)(kept->layout->n + 1));

    for (int s = kept->last; s >= kept->first; s--) {
        if (!runs_backward(kept->group[s]->node[0]))
            continue;
        kept->part[s] = is_early(kept, reader, s) ? EARLY : LATE;
        note_reader(kept, reader, s);
    }
}

/* Returns the life whose place a value has; a value in a stack has its own. */
static int place_of(const Layout *layout, int i)
{
    while (layout->live[i].same >= 0 &&
           !layout->live[layout->live[i].same].stack)
        i = layout->live[i].same;
    return i;
}

static void find_reads(Kept *kept)
{
    for (int s = kept->first; s <= kept->last; s++)
        for (int j = 0; j < kept->group[s]->narg; j++) {
            int i = life_named(kept, s, j);
            if (i >= 0 && !kept->group[s]->named[j].writes)
                kept->read[place_of(kept->layout, i)] |= kept->part[s];
        }
}

/* ---- bytes --------------------------------------------------------------- */

static void add_whole(const Kept *kept, const Live *live, int read,
                      double *load, KeptBytes *out)
{
    double bytes = (double)live->bytes;

    if (live->dies < kept->first || live->start > kept->last)
        return;
    if (live->start < kept->first || live->dies > kept->last || live->kept) {
        out->through += bytes;
    } else if (live->stack || (!kept->part[live->first] && read)) {
        out->kept += bytes;
    } else {
        load[live->start] += bytes;
        load[live->dies + 1] -= bytes;
    }
}

static void add_part(const Kept *kept, const Live *live, int read,
                     KeptBytes *out)
{
    double bytes = (double)live->bytes;

    if (live->start < kept->first || live->dies > kept->last || live->kept)
        return;
    if (kept->part[live->first] == EARLY && read & LATE)
        out->between += bytes;
    else if (!kept->part[live->first] && read)
        *(read & LATE ? &out->weights : &out->input) += bytes;
}

static void add_lives(const Kept *kept, double *load, KeptBytes *out)
{
    for (int i = 0; i < kept->layout->n; i++) {
        const Live *live = &kept->layout->live[i];
        if (live->host || live->within >= 0)
            continue;
        if (live->same < 0)
            add_whole(kept, live, kept->read[i], load, out);
        if (!live->stack && place_of(kept->layout, i) == i)
            add_part(kept, live, kept->read[i], out);
    }
}

KeptBytes kept_of(Arena *arena, const Graph *g, Group *const *k,
                  const Program *prog, const Layout *layout)
{
    KeptBytes out = { 0 };
    Kept x = { arena, g, k, layout, 0, -1, NULL, NULL };
    double *load = alloc(arena, sizeof *load * (size_t)(prog->ninstr + 2));
    double now = 0;

    for (int f = 0; f < prog->nphase; f++)
        if (prog->phase[f].reg == REGbody && prog->phase[f].repeat) {
            x.first = prog->phase[f].first;
            x.last = x.first + prog->phase[f].n - 1;
        }
    x.part = alloc(arena, (size_t)prog->ninstr + 1);
    x.read = alloc(arena, (size_t)layout->n + 1);
    find_parts(&x);
    find_reads(&x);
    add_lives(&x, load, &out);
    for (int s = x.first; s <= x.last; s++) {
        double *most = layer_of(k[s]) ? &out.once_inside : &out.once_outside;
        now += load[s];
        *most = fmax(*most, now);
    }
    return out;
}
