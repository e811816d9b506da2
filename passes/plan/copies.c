/* copies.c: places copies between device and host memory. A copy to the host
 * starts after the kernel that computes its value. A copy from the host starts
 * early enough to end before its first reader, by the predicted times of the
 * computation until then and of the later copies of its stream; no earlier,
 * since it occupies device memory from its start.
 *
 *     compute   a    b    c    d    e       e reads reload x
 *     copy       x ----
 *     reload              x -----
 *
 * An update takes less time than the copies of its operands. These start with
 * the update before it, so that the copy streams are always busy and the bytes
 * of few updates are occupied:
 *
 *     compute         a        b        c
 *     reload    a --- b ------ c ------ d ---
 *     copy            a ------ b ------ c ---
 *
 * A phase with updates on the host's processors has another order
 * (update_order.c).
 *
 * Copies are removed while collectives are ordered. */
#include "plan.h"

enum { EARLY = 8 }; /* a reload starts 1/EARLY of its time too early */

struct OffloadCopies {
    Group ***of; /* [phase]: vec */
};

static int copies_value(const Group *group)
{
    return group->fam == FAMcopy;
}

OffloadCopies *take_copies(ProgramBuilder *builder)
{
    OffloadCopies *x = alloc(builder->arena, sizeof *x);
    Group **kept = NULL;
    int any = 0, nphase = (int)vec_len(builder->phase);

    x->of = alloc(builder->arena, sizeof *x->of * (size_t)(nphase + 1));
    for (int p = 0; p < nphase; p++) {
        Phase *phase = &builder->phase[p];
        int first = (int)vec_len(kept);
        for (int i = phase->first; i < phase->first + phase->n; i++) {
            if (copies_value(builder->group[i]))
                vec_push(builder->arena, x->of[p], builder->group[i]);
            else
                vec_push(builder->arena, kept, builder->group[i]);
        }
        phase->first = first;
        phase->n = (int)vec_len(kept) - first;
        any |= x->of[p] != NULL;
    }
    if (any)
        builder->group = kept;
    return any ? x : NULL;
}

/* ---- places -------------------------------------------------------------- */

typedef struct PhaseCopies {
    ProgramBuilder *m;
    Phase *phase;
    double *start; /* [instruction]: seconds since the start of the phase */
    Table *made;   /* value -> 1 + the instruction that stores it last */
    Table *read;   /* value -> 1 + the first one that reads it */
    int *at;       /* [copy]: the instruction before which it runs */
} PhaseCopies;

static Group *group_at(const PhaseCopies *copies, int i)
{
    return copies->m->group[copies->phase->first + i];
}

static void note_uses(PhaseCopies *copies)
{
    double now = 0;
    int beside = (int)opts_int(copies->m->graph->opts, "fold.overlap");

    for (int i = 0; i < copies->phase->n; i++) {
        const Group *k = group_at(copies, i);
        for (int j = 0; j < k->narg; j++) {
            Node *n = k->named[j].stored;
            void **first = n ? table_at(copies->read, KEYP(n)) : NULL;
            if (first && !*first)
                *first = (void *)(uintptr_t)(i + 1);
            if (k->named[j].writes)
                *table_at(copies->made, KEYP(n)) = (void *)(uintptr_t)(i + 1);
        }
        copies->start[i] = now;
        if (!beside || !runs_beside(copies->m, &k->instr))
            now += k->instr.secs;
    }
}

static int known(Table *t, const Node *n)
{
    return (int)(uintptr_t)table_get(t, KEYP(storage((Node *)(uintptr_t)n)));
}

static int found(Table *t, const Group *group, const Node *n)
{
    int i = known(t, n);

    if (!i)
        die("copies: nobody else names what %s copies", group->instr.label);
    return i;
}

/* Returns the place of the copy to the host that group reloads; 0: another
 * phase. */
static int place_of_offload(const PhaseCopies *copies, Group *const *v,
                            const Group *group)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i]->node[0] == group->node[0]->in[0])
            return copies->at[i];
    return 0;
}

/* Returns the place of a state's reload: with the update before its reader
 * `at`. */
static int place_of_state(const PhaseCopies *copies, Group *const *v, int at)
{
    int before = 1;

    for (size_t i = 0; i < vec_len(v); i++) {
        const Node *n = v[i]->node[0];
        int reader = n->op == Oreload ? found(copies->read, v[i], n) - 1 : 0;
        if (reader > before && reader < at)
            before = reader;
    }
    return before < at ? before : at;
}

/* Places reloads from the last on: each ends before its first reader, and
 * before the next one of its stream starts. */
static void place_reloads(PhaseCopies *copies, Group *const *v)
{
    double next = HUGE_VAL;

    for (size_t i = vec_len(v); i-- > 0;) {
        const Group *k = v[i];
        if (k->node[0]->op != Oreload)
            continue;
        int at = found(copies->read, k, k->node[0]) - 1;
        if (is_hosted(k->node[0]->in[0]) && k->reg == copies->phase->reg) {
            copies->at[i] = place_of_state(copies, v, at);
            continue;
        }
        int least = place_of_offload(copies, v, k);
        double secs = k->instr.secs;
        next = (copies->start[at] < next ? copies->start[at] : next) - secs;
        while (at > 1 && at > least && copies->start[at] > next - secs / EARLY)
            at--;
        copies->at[i] = at;
    }
}

static void place_copies(PhaseCopies *copies, Group *const *v)
{
    for (size_t i = 0; i < vec_len(v); i++) {
        const Node *n = v[i]->node[0];
        int made =
            n->op == Oreload ? 0 : known(copies->made, n->in[n->op == Owrite]);
        copies->at[i] = made ? made : 1;
    }
    place_reloads(copies, v);
}

/* Appends the phase with its copies to out. */
static Group **merge(const PhaseCopies *copies, Group *const *v, Group **out)
{
    for (int i = 0; i <= copies->phase->n; i++) {
        for (size_t k = 0; k < vec_len(v); k++)
            if (copies->at[k] == i)
                vec_push(copies->m->arena, out, v[k]);
        if (i < copies->phase->n)
            vec_push(copies->m->arena, out, group_at(copies, i));
    }
    return out;
}

static PhaseCopies open_phase(ProgramBuilder *builder, Phase *phase,
                              size_t ncopy)
{
    Arena *a = builder->arena;
    PhaseCopies x = { .m = builder, .phase = phase };

    x.start = alloc(a, sizeof *x.start * (size_t)(phase->n + 1));
    x.at = alloc(a, sizeof *x.at * (ncopy + 1));
    x.made = table_new(a);
    x.read = table_new(a);
    return x;
}

static int has_host(const ProgramBuilder *builder, const Phase *phase)
{
    for (int i = phase->first; i < phase->first + phase->n; i++)
        if (builder->group[i]->host)
            return 1;
    return 0;
}

/* Appends the phase with its copies v to out. */
static Group **put_phase(ProgramBuilder *builder, Phase *phase, Group *const *v,
                         Group **out)
{
    if (has_host(builder, phase))
        return order_updates(builder, builder->group + phase->first, phase->n,
                             v, out);
    PhaseCopies x = open_phase(builder, phase, vec_len(v));
    if (v) {
        note_uses(&x);
        place_copies(&x, v);
    }
    return merge(&x, v, out);
}

/* ---- phases of copies ---------------------------------------------------- */

/* Returns value -> 1 + the first phase that names it. */
static Table *first_phases(const ProgramBuilder *builder,
                           const Program *program)
{
    Table *t = table_new(builder->arena);

    for (int f = 0; f < program->nphase; f++)
        for (int i = 0; i < program->phase[f].n; i++) {
            const Group *k = builder->group[program->phase[f].first + i];
            for (int j = 0; j < k->narg; j++) {
                Node *n = k->named[j].stored;
                void **at = n ? table_at(t, KEYP(n)) : NULL;
                if (at && !*at)
                    *at = (void *)(uintptr_t)(f + 1);
            }
        }
    return t;
}

/* Assigns copies to phases. A reader of post may be in a body that runs once
 * (overlap.c); its operands are then copied there. */
static Group ***copies_by_phase(const ProgramBuilder *builder,
                                const Program *program,
                                const OffloadCopies *copies)
{
    Table *named = first_phases(builder, program);
    Group ***of =
        alloc(builder->arena, sizeof *of * (size_t)(program->nphase + 1));

    for (int f = 0; f < program->nphase; f++)
        for (size_t i = 0; i < vec_len(copies->of[f]); i++) {
            Group *k = copies->of[f][i];
            int reloads = k->node[0]->op == Oreload;
            int at = reloads ? found(named, k, k->node[0]) - 1 : f;
            vec_push(builder->arena, of[at], k);
        }
    return of;
}

void put_copies(ProgramBuilder *builder, Program *program,
                const OffloadCopies *copies)
{
    Group **out = NULL, ***of = copies_by_phase(builder, program, copies);

    for (int f = 0; f < program->nphase; f++) {
        Group **v = of[f];
        int first = (int)vec_len(out);
        for (size_t i = 0; i < vec_len(v); i++)
            predict(builder->graph, v[i], &v[i]->instr);
        out = put_phase(builder, &program->phase[f], v, out);
        program->phase[f].first = first;
        program->phase[f].n = (int)vec_len(out) - first;
    }
    builder->group = out;
    program->ninstr = (int)vec_len(out);
    program->instr = alloc(builder->arena, sizeof *program->instr *
                                               (size_t)(program->ninstr + 1));
    for (int i = 0; i < program->ninstr; i++)
        program->instr[i] = out[i]->instr;
    put_streams(builder, program);
}
