/* copies.c: when copies between the memories of device and host run. One to the
 * host begins behind the kernel that makes its value. One from it is begun so
 * early that it should be done when its first reader comes, by the predicted
 * times of what computes until then and of the copies behind it on their
 * stream; no earlier, since its bytes of the device are taken from there.
 *
 *     compute   a    b    c    d    e       e reads reload x
 *     copy       x ----
 *     reload              x -----
 *
 * An update takes less time than the copies of what it needs. Those of each are
 * begun as the update before it is, so that their streams never rest and the
 * bytes of few are taken:
 *
 *     compute         a        b        c
 *     reload    a --- b ------ c ------ d ---
 *     copy            a ------ b ------ c ---
 *
 * Copies stand aside while collectives are put in order. */
#include <math.h>

#include "emit.h"

enum { EARLY = 8 }; /* a reload begins an EARLYth of its time too early */

struct OffloadCopies {
    Group ***of; /* by phase: vec */
};

static int copies_value(const Group *k)
{
    return k->fam == FAMcopy;
}

OffloadCopies *take_copies(ProgramBuilder *m)
{
    OffloadCopies *x = alloc(m->arena, sizeof *x);
    Group **kept = NULL;
    int any = 0, nphase = (int)vec_len(m->phase);

    x->of = alloc(m->arena, sizeof *x->of * (size_t)(nphase + 1));
    for (int p = 0; p < nphase; p++) {
        Phase *f = &m->phase[p];
        int first = (int)vec_len(kept);
        for (int i = f->first; i < f->first + f->n; i++) {
            if (copies_value(m->group[i]))
                vec_push(m->arena, x->of[p], m->group[i]);
            else
                vec_push(m->arena, kept, m->group[i]);
        }
        f->first = first;
        f->n = (int)vec_len(kept) - first;
        any |= x->of[p] != NULL;
    }
    if (any)
        m->group = kept;
    return any ? x : NULL;
}

/* ---- places among the others --------------------------------------------- */

typedef struct PhaseCopies {
    ProgramBuilder *m;
    Phase *phase;
    double *start; /* by instruction of the phase: seconds from its beginning */
    Table *made;   /* value -> 1 + the instruction that stores it last */
    Table *read;   /* value -> 1 + the first that reads it */
    int *at;       /* by copy: the instruction before which it runs */
} PhaseCopies;

static Group *group_at(const PhaseCopies *x, int i)
{
    return x->m->group[x->phase->first + i];
}

static void note_uses(PhaseCopies *x)
{
    double now = 0;
    int beside = (int)opts_int(x->m->graph->opts, "fold.overlap");

    for (int i = 0; i < x->phase->n; i++) {
        const Group *k = group_at(x, i);
        for (int j = 0; j < k->narg; j++) {
            Node *n = k->named[j].stored;
            void **first = n ? table_at(x->read, KEYP(n)) : NULL;
            if (first && !*first)
                *first = (void *)(uintptr_t)(i + 1);
            if (k->named[j].writes)
                *table_at(x->made, KEYP(n)) = (void *)(uintptr_t)(i + 1);
        }
        x->start[i] = now;
        if (!beside || !runs_beside(x->m, &k->instr))
            now += k->instr.secs;
    }
}

static int found(Table *t, const Group *k, const Node *n)
{
    int i = (int)(uintptr_t)table_get(t, KEYP(storage((Node *)(uintptr_t)n)));

    if (!i)
        die("copies: nobody else names what %s copies", k->instr.label);
    return i;
}

/* Where the copy to the host stands that k brings back; 0: in another phase. */
static int place_of_offload(const PhaseCopies *x, Group *const *v,
                            const Group *k)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i]->node[0] == k->node[0]->in[0])
            return x->at[i];
    return 0;
}

/* Behind all updates but the last before it, whose reader is `at`. */
static int place_of_state(const PhaseCopies *x, Group *const *v, int at)
{
    int before = 1;

    for (size_t i = 0; i < vec_len(v); i++) {
        const Node *n = v[i]->node[0];
        int reader = n->op == Oreload ? found(x->read, v[i], n) - 1 : 0;
        if (reader > before && reader < at)
            before = reader;
    }
    return before < at ? before : at;
}

/* From the last on: each is there when it is read first, and its stream is free
 * for the one behind it. */
static void place_reloads(PhaseCopies *x, Group *const *v)
{
    double next = HUGE_VAL;

    for (size_t i = vec_len(v); i-- > 0;) {
        const Group *k = v[i];
        if (k->node[0]->op != Oreload)
            continue;
        int at = found(x->read, k, k->node[0]) - 1;
        if (is_hosted(k->node[0]->in[0])) {
            x->at[i] = place_of_state(x, v, at);
            continue;
        }
        int least = place_of_offload(x, v, k);
        double secs = k->instr.secs;
        next = (x->start[at] < next ? x->start[at] : next) - secs;
        while (at > 1 && at > least && x->start[at] > next - secs / EARLY)
            at--;
        x->at[i] = at;
    }
}

static void place_copies(PhaseCopies *x, Group *const *v)
{
    for (size_t i = 0; i < vec_len(v); i++) {
        const Node *n = v[i]->node[0];
        if (n->op != Oreload)
            x->at[i] = found(x->made, v[i], n->in[n->op == Owrite]);
    }
    place_reloads(x, v);
}

/* Appends the phase with its copies to out. */
static Group **merge(const PhaseCopies *x, Group *const *v, Group **out)
{
    for (int i = 0; i <= x->phase->n; i++) {
        for (size_t k = 0; k < vec_len(v); k++)
            if (x->at[k] == i)
                vec_push(x->m->arena, out, v[k]);
        if (i < x->phase->n)
            vec_push(x->m->arena, out, group_at(x, i));
    }
    return out;
}

static PhaseCopies open_phase(ProgramBuilder *m, Phase *f, size_t ncopy)
{
    Arena *a = m->arena;
    PhaseCopies x = { .m = m, .phase = f };

    x.start = alloc(a, sizeof *x.start * (size_t)(f->n + 1));
    x.at = alloc(a, sizeof *x.at * (ncopy + 1));
    x.made = table_new(a);
    x.read = table_new(a);
    return x;
}

void put_copies(ProgramBuilder *m, Program *p, const OffloadCopies *copies)
{
    Group **out = NULL;

    for (int f = 0; f < p->nphase; f++) {
        Group **v = copies->of[f];
        int first = (int)vec_len(out);
        PhaseCopies x = open_phase(m, &p->phase[f], vec_len(v));
        for (size_t i = 0; i < vec_len(v); i++)
            predict(m->graph, v[i], &v[i]->instr);
        if (v) {
            note_uses(&x);
            place_copies(&x, v);
        }
        out = merge(&x, v, out);
        p->phase[f].first = first;
        p->phase[f].n = (int)vec_len(out) - first;
    }
    m->group = out;
    p->ninstr = (int)vec_len(out);
    p->instr = alloc(m->arena, sizeof *p->instr * (size_t)(p->ninstr + 1));
    for (int i = 0; i < p->ninstr; i++)
        p->instr[i] = out[i]->instr;
    put_streams(m, p);
}
