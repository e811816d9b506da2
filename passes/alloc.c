/* alloc.c: when each value of a program is alive, and where it lies.
 *
 * A value lives from the step that first names it to the last. A phase that
 * repeats adds: what was there when it began and is named inside lives to its
 * last step, since the next turn needs it again. An accumulator is first named
 * where it is cleared, so it lives from there to its last use in post; what is
 * made inside a body and used only there may share memory with all the rest.
 * An output lives to the end, where the runtime reads it.
 *
 * A result takes over the buffer of an operand that dies in the same step when
 * the kernel allows (Group.inplace) and both are equally large.
 *
 * What lives across programs (parameters, states, optimizer, inputs, scalars)
 * is not placed here: it has its own part of the arena (emit.c).             */
#include "passes.h"

#include <string.h>

enum { NEVER = -1 };                /* no step may take its place             */

typedef struct Alloc {
    Graph *g;
    Arena *arena;
    Group *const *k; int n;
    const Phase *phase; int nphase;
    Layout *l;
} Alloc;

int is_persistent(const Node *n)
{
    return n->op == Oparam || n->op == Ostate || n->op == Oinput ||
           n->op == Ostepval || n->op == Oresult;
}

/* ---- lives --------------------------------------------------------------- */

static void touch(Alloc *a, Node *arg, int step)
{
    Node *n = storage(arg);
    if (is_persistent(n)) return;
    void **at = table_at(a->l->of, KEYP(n));
    if (!*at) {
        Live x = {.n = n, .bytes = local_bytes(a->g, n), .born = step,
                  .same = -1};
        vec_push(a->arena, a->l->live, x);
        *at = (void *)(uintptr_t)vec_len(a->l->live);
    }
    a->l->live[(uintptr_t)*at - 1].dies = step;
    a->l->live[(uintptr_t)*at - 1].last = step;
}

static void add_scratch(Alloc *a, int step)
{
    Live x = {.step = step, .bytes = a->k[step]->scratch, .born = step,
              .dies = step, .same = -1};
    if (x.bytes) vec_push(a->arena, a->l->live, x);
}

static const Phase *phase_at(const Alloc *a, int step)
{
    const Phase *p = a->phase;
    while (step >= p->first + p->n) p++;
    return p;
}

/* The next turn of a phase needs again what was there when it began.         */
static void outlast_repeats(Alloc *a)
{
    for (size_t i = 0; i < vec_len(a->l->live); i++) {
        Live *x = &a->l->live[i];
        const Phase *p = phase_at(a, x->dies);
        if (p->repeat <= 1 || x->born >= p->first) continue;
        x->dies = p->first + p->n - 1;
        x->last = NEVER;
    }
}

static int own(const Layout *l, Node *n)
{
    return (int)(uintptr_t)table_get(l->of, KEYP(storage(n))) - 1;
}

static int is_gradient(const Node *n)
{
    return n->op == Oaccum && n->name && !strncmp(n->name, "grad.", 5);
}

/* Outputs are read when the program has ended, gradients too (by tests; they
 * are there at the peak in any case).                                        */
static void keep_to_end(Alloc *a)
{
    for (size_t i = 0; i < vec_len(a->g->node); i++) {
        Node *n = a->g->node[i];
        if (n->op != Ooutput && !is_gradient(n)) continue;
        int at = own(a->l, n->op == Ooutput ? n->in[0] : n);
        if (at < 0) continue;
        a->l->live[at].kept = 1;
        a->l->live[at].dies = a->n - 1;
        if (n->op == Ooutput) a->l->live[at].last = NEVER;
    }
}

/* ---- results in place of operands ---------------------------------------- */

int layout_root(const Layout *l, int i)
{
    while (l->live[i].same >= 0) i = l->live[i].same;
    return i;
}

static void take_over(Alloc *a, int step)
{
    const Group *k = a->k[step];

    for (int j = 0; j < k->ninplace; j++) {
        int out = own(a->l, k->out[k->inplace[j][0]]);
        int in = own(a->l, k->in[k->inplace[j][1]]);
        if (out < 0 || in < 0) continue;
        in = layout_root(a->l, in);
        Live *x = &a->l->live[out], *y = &a->l->live[in];
        /* A gradient may be reduced over ranks where it lies.                */
        int free = y->last == step && (!y->kept || k->fam == FAMcomm);
        if (x->same >= 0 || x->born != step || x->bytes != y->bytes || !free)
            continue;
        x->same = in;
        y->last = x->last;
        if (!y->kept) y->dies = x->dies;
    }
}

/* ---- places -------------------------------------------------------------- */

static void place(Alloc *a)
{
    Layout *l = a->l;
    Rect *r = alloc(a->arena, sizeof *r * (size_t)(l->n + 1));
    int *id = alloc(a->arena, sizeof *id * (size_t)(l->n + 1)), n = 0;
    const char *wrong;

    for (int i = 0; i < l->n; i++) {
        const Live *x = &l->live[i];
        if (x->same >= 0) continue;
        id[n] = i;
        r[n++] = (Rect){x->born, x->dies, x->bytes, -1, 0};
    }
    Packed p = pack(a->arena, r, n, PACKWORK);
    if ((wrong = pack_wrong(a->arena, r, n, p.height)))
        die("alloc: program %s: %s", a->g->prog, wrong);
    for (int i = 0; i < n; i++) l->live[id[i]].offset = r[i].offset;
    l->height = p.height;
    l->bound = p.bound;
}

Layout *layout(Graph *g, Group *const *k, int n, const Phase *phase, int nphase)
{
    Alloc a = {g, g->arena, k, n, phase, nphase, NULL};

    a.l = alloc(a.arena, sizeof *a.l);
    a.l->of = table_new(a.arena);
    for (int s = 0; s < n; s++) {
        for (int j = 0; j < k[s]->narg; j++)
            if (k[s]->arg[j]) touch(&a, k[s]->arg[j], s);
        add_scratch(&a, s);
    }
    outlast_repeats(&a);
    keep_to_end(&a);
    for (int s = 0; s < n; s++) take_over(&a, s);
    a.l->n = (int)vec_len(a.l->live);
    place(&a);
    return a.l;
}
