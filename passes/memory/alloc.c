/* alloc.c: when each value of a program is alive, and where it lies.
 *
 * A value lives from the instruction that first names it to the last. A phase
 * that repeats adds: what was there when it began and is named inside lives to
 * its last instruction, since the next run needs it again. An accumulator is
 * first named where it is cleared, so it lives from there to its last use in
 * post; what is made inside a body and used only there may share memory with
 * all the rest. An output lives to the end, where the runtime reads it.
 *
 * What an instruction of another stream names lives on until compute is behind
 * that instruction.
 *
 * In a pipeline stage (activation_slots.c) a value is private to a call, kept
 * by a micro- batch from one call to another, or there through the whole table.
 *
 * A result takes over the buffer of an operand that dies in the same
 * instruction when the kernel allows (Group.inplace) and both are equally
 * large.
 *
 * What lives across programs (parameters, states, optimizer, inputs, scalars)
 * is not placed here: it has its own part of the arena (emit.c). */
#include "memory.h"

#include <string.h>

enum { NEVER = -1 }; /* no instruction may take its place */

typedef struct Alloc {
    Graph *graph;
    Arena *arena;
    Group *const *group;
    int count;
    const Program *prog;
    int *behind;     /* by instruction: the first that is behind it */
    CallTimes *rows; /* null: no table */
    Layout *layout;
} Alloc;

int is_persistent(const Node *n)
{
    return is_lasting(n) || n->op == Oinput || n->op == Ostepval ||
           n->op == Oresult;
}

/* An input of a pair's second micro-batch has the name of the first's. */
static void *value_key(Node *n)
{
    int second = n->op == Oinput && n->at.input.second;

    return is_persistent(n) && !second ? (void *)(uintptr_t)n_name(n)
                                       : (void *)n;
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
}

int64_t lasting_bytes(Arena *a, Graph *const *g, int n)
{
    Table *seen = table_new(a);
    int64_t bytes = 0;

    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < vec_len(g[k]->node); i++) {
            Node *x = g[k]->node[i];
            void **at = is_persistent(x) && !goes_to_host(g[k], x)
                            ? table_at(seen, KEYP(value_key(x)))
                            : NULL;
            if (!at || *at)
                continue;
            *at = x;
            bytes += aligned(local_bytes(g[k], x));
        }
    return bytes;
}

static int writes(const Group *k, const Node *stored)
{
    for (int j = 0; j < k->nout; j++)
        if (storage(k->out[j]) == stored)
            return 1;
    return k->instr.kind == Ijoin;
}

static int number_of(Table *numbers, Node *stored, int *count)
{
    void **at = table_at(numbers, KEYP(value_key(stored)));

    if (!*at)
        *at = (void *)(uintptr_t)++ * count;
    return (int)(uintptr_t)*at - 1;
}

int name_values(Arena *a, Group *const *k, int n)
{
    Arena *scratch = arena_new();
    Table *numbers = table_new(scratch);
    int count = 0;

    for (int i = 0; i < n; i++) {
        k[i]->named = alloc(a, sizeof *k[i]->named * (size_t)(k[i]->narg + 1));
        for (int j = 0; j < k[i]->narg; j++) {
            NamedValue *v = &k[i]->named[j];
            Node *x = k[i]->arg[j] ? storage(k[i]->arg[j]) : NULL;
            if (!x)
                continue;
            *v = (NamedValue){ x, number_of(numbers, x, &count),
                               writes(k[i], x), -1 };
            if (x->op == Oreload && x->in[0]->nin)
                v->source =
                    number_of(numbers, storage(x->in[0]->in[0]), &count);
        }
    }
    arena_free(scratch);
    return count;
}

/* ---- lives --------------------------------------------------------------- */

static const Phase *phase_at(const Alloc *a, int instr)
{
    const Phase *p = a->prog->phase;
    while (instr >= p->first + p->n)
        p++;
    return p;
}

/* The calls of a stage that name x. */
static void note_call(const Alloc *a, Live *x, int instr)
{
    const Phase *p = a->rows ? phase_at(a, instr) : NULL;
    if (!p || p->repeat) {
        x->outside = 1;
        return;
    }
    int phase = (int)(p - a->prog->phase);
    size_t n = vec_len(x->used);
    if (!n || x->used[n - 1].phase != phase)
        vec_push(a->arena, x->used, ((Used){ phase, instr, instr }));
    else
        x->used[n - 1].last = instr;
}

/* Until another instruction may have its place. */
static void hold(const Alloc *a, Live *x, int instr)
{
    int until = a->behind[instr] - 1;

    if (a->prog->instr[instr].issue.stream && x->busy <= until)
        x->busy = until + 1;
    if (x->dies < until)
        x->dies = until;
}

/* Index of the stored value's life; -1: it has none. */
static int life_of(const Layout *l, const Node *stored)
{
    int i = stored->mark - 1;

    return i >= 0 && (size_t)i < vec_len(l->live) && l->live[i].node == stored
               ? i
               : -1;
}

static void touch(Alloc *a, Node *n, int instr)
{
    if (is_persistent(n))
        return;
    if (life_of(a->layout, n) < 0) {
        Live x = { .node = n,
                   .bytes = local_bytes(a->graph, n),
                   .born = instr,
                   .first = instr,
                   .same = -1,
                   .within = -1,
                   .host = n->op == Ooffload };
        vec_push(a->arena, a->layout->live, x);
        n->mark = (int)vec_len(a->layout->live);
    }
    Live *x = &a->layout->live[n->mark - 1];
    x->last = instr;
    hold(a, x, instr);
    note_call(a, x, instr);
}

static void add_scratch(Alloc *a, int instr)
{
    Live x = { .instr = instr,
               .bytes = a->group[instr]->scratch,
               .born = instr,
               .first = instr,
               .last = instr,
               .same = -1,
               .within = -1 };
    if (!x.bytes)
        return;
    hold(a, &x, instr);
    note_call(a, &x, instr);
    vec_push(a->arena, a->layout->live, x);
}

/* The next run of a phase needs again what was there when it began. */
static void outlast_repeats(Alloc *a)
{
    for (size_t i = 0; i < vec_len(a->layout->live); i++) {
        Live *x = &a->layout->live[i];
        const Phase *p = phase_at(a, x->dies);
        if (p->repeat <= 1 || x->born >= p->first)
            continue;
        x->dies = p->first + p->n - 1;
        x->last = NEVER;
    }
}

static int own(const Layout *l, Node *n)
{
    return life_of(l, storage(n));
}

static int is_gradient(const Node *n)
{
    return n->op == Oaccum && (n->of || n->scope->part == PARTgrad);
}

/* Outputs are read when the program has ended, gradients too (by tests; they
 * are there at the peak in any case). */
static void keep_to_end(Alloc *a)
{
    for (size_t i = 0; i < vec_len(a->graph->node); i++) {
        Node *n = a->graph->node[i];
        if (n->op != Ooutput && !is_gradient(n))
            continue;
        int at = own(a->layout, n->op == Ooutput ? n->in[0] : n);
        if (at < 0)
            continue;
        if (a->layout->live[at].within >= 0)
            at = a->layout->live[at].within;
        a->layout->live[at].kept = a->layout->live[at].outside = 1;
        a->layout->live[at].dies = a->count - 1;
        if (n->op == Ooutput)
            a->layout->live[at].last = NEVER;
    }
}

int64_t join_at(const Node *pack, int i)
{
    return bucket_at(pack, i) * dtypes[pack->dt].bytes;
}

/* ---- parts of buckets ---------------------------------------------------- */

static void find_parts(Alloc *a)
{
    for (int s = 0; s < a->count; s++) {
        const Group *k = a->group[s];
        if (k->instr.kind != Ijoin)
            continue;
        int all = own(a->layout, k->arg[0]);
        for (int i = 1; i < k->narg; i++) {
            Live *x = &a->layout->live[own(a->layout, k->arg[i])];
            x->within = all;
            x->offset = join_at(k->arg[0], i - 1);
        }
    }
}

/* A bucket's place is taken when the first of its parts is born. */
static void start_places(Alloc *a)
{
    for (int i = 0; i < a->layout->n; i++)
        a->layout->live[i].start = a->layout->live[i].born;
    for (int i = 0; i < a->layout->n; i++) {
        const Live *x = &a->layout->live[i];
        if (x->within >= 0 && x->born < a->layout->live[x->within].start)
            a->layout->live[x->within].start = x->born;
    }
}

/* ---- stacks -------------------------------------------------------------- */

/* The stack where x lies; one that is not there yet is as x, but higher. */
static int stack_of(Alloc *a, int first, const Live *x)
{
    const Node *map = x->node->map;
    Live s = *x;
    int i = first;

    while (i < (int)vec_len(a->layout->live) &&
           a->layout->live[i].stack != x->node->stash)
        i++;
    if (i < (int)vec_len(a->layout->live))
        return i;
    s.stack = x->node->stash;
    s.bytes = x->bytes / map_layout(a->graph, map).cap * map->at.route.stash;
    vec_push(a->arena, a->layout->live, s);
    return i;
}

/* A stack is there as long as any of its values. */
static void make_stacks(Alloc *a)
{
    int count = (int)vec_len(a->layout->live);

    for (int i = 0; i < count; i++) {
        const Node *n = a->layout->live[i].node;
        if (!n || !n->stash)
            continue;
        int at = stack_of(a, count, &a->layout->live[i]);
        Live *x = &a->layout->live[i], *s = &a->layout->live[at];
        x->same = at;
        s->busy = x->busy > s->busy ? x->busy : s->busy;
        rows_join(a->rows, s, x);
    }
}

/* ---- results in place of operands ---------------------------------------- */

int layout_root(const Layout *l, int i)
{
    while (l->live[i].same >= 0)
        i = l->live[i].same;
    return i;
}

static void take_over(Alloc *a, int instr)
{
    const Group *k = a->group[instr];

    for (int j = 0; j < k->ninplace; j++) {
        int out = own(a->layout, k->out[k->inplace[j][0]]);
        int in = own(a->layout, k->in[k->inplace[j][1]]);
        if (out < 0 || in < 0)
            continue;
        in = layout_root(a->layout, in);
        Live *x = &a->layout->live[out], *y = &a->layout->live[in];
        /* A gradient may be reduced over ranks where it lies. */
        int free = y->last == instr && !y->stack &&
                   (!y->kept || k->fam == FAMcomm) &&
                   (a->prog->instr[instr].issue.stream || y->busy <= instr);
        if (x->within >= 0 || y->within >= 0)
            continue;
        if (x->same >= 0 || x->first != instr || x->bytes != y->bytes || !free)
            continue;
        if (x->used && x->outside)
            continue;
        x->same = in;
        y->last = x->last;
        y->busy = x->busy > y->busy ? x->busy : y->busy;
        if (x->used)
            rows_join(a->rows, y, x);
        else if (!y->kept && y->dies < x->dies)
            y->dies = x->dies;
    }
}

/* ---- places -------------------------------------------------------------- */

static Load load_of(Arena *arena, const Alloc *a, const Rect *r, int n)
{
    size_t size = sizeof(int64_t) * (size_t)(a->count + 1);
    Load l = { alloc(arena, size), alloc(arena, size), 0 };

    for (int i = 0; i < n; i++) {
        int64_t bytes = aligned(r[i].bytes);
        l.alive[r[i].born] += bytes;
        l.ends[r[i].dies] += bytes;
    }
    for (int s = 0; s < a->count; s++) {
        l.alive[s] += s ? l.alive[s - 1] - l.ends[s - 1] : 0;
        l.most = l.alive[s] > l.most ? l.alive[s] : l.most;
    }
    return l;
}

/* Of one arena: one with a place of its own, outside of calls? */
static int is_apart(const Live *x, int host)
{
    return x->same < 0 && x->within < 0 && x->host == host &&
           (!x->used || x->outside);
}

/* Of a stage, the private part of its calls and the frames are a rectangle
 * each, as long as its table. The bound takes each row by itself: the frames
 * alive, what the row's call needs, and what lives through the table. */
static Packed place(Alloc *a, int host)
{
    Layout *l = a->layout;
    Rect *r = alloc(a->arena, sizeof *r * (size_t)(l->n + 2));
    int *id = alloc(a->arena, sizeof *id * (size_t)(l->n + 2)), n = 0;
    TableMemory t = a->rows ? rows_place(a->rows, l, host) : (TableMemory){ 0 };
    int64_t from = host ? HOSTSPACE : 0;
    const char *wrong;

    for (int i = 0; i < l->n; i++) {
        const Live *x = &l->live[i];
        if (!is_apart(x, host))
            continue;
        id[n] = i;
        r[n++] = (Rect){ x->start, x->dies, x->bytes, -1, 0 };
    }
    int count = n;
    if (a->rows) {
        r[n++] = (Rect){ a->rows->from, a->rows->to, t.priv, -1, 0 };
        r[n++] = (Rect){ a->rows->from, a->rows->to, t.pool, -1, 0 };
    }
    Packed p = pack(a->arena, r, n, 0, PACKWORK);
    if ((wrong = pack_wrong(a->arena, r, n, p.height)))
        die("alloc: program %s: %s", programnames[a->graph->prog], wrong);
    for (int i = 0; i < count; i++)
        l->live[id[i]].offset = from + r[i].offset;
    if (!a->rows)
        return p;
    rows_move(l, &t, from + r[count].offset, from + r[count + 1].offset);
    r[count] = (Rect){ a->rows->from, a->rows->to, t.bound, -1, 0 };
    p.bound = load_of(a->arena, a, r, count + 1).most;
    return p;
}

static void place_all(Alloc *a)
{
    Layout *l = a->layout;
    Packed p = place(a, 0);

    l->height = p.height;
    l->bound = p.bound;
    for (int i = 0; i < l->n && !l->host; i++)
        l->host = l->live[i].host;
    l->host = l->host ? place(a, 1).height : 0;
    for (int i = 0; i < l->n; i++)
        if (l->live[i].within >= 0)
            l->live[i].offset += l->live[l->live[i].within].offset;
}

static Alloc live_in(Arena *arena, Graph *g, Group *const *k,
                     const Program *prog)
{
    Alloc a = { g, arena, k, prog->ninstr, prog, NULL, NULL, NULL };

    a.behind = instrs_behind(arena, prog);
    a.rows = rows_of(arena, prog);

    a.layout = alloc(a.arena, sizeof *a.layout);
    for (int s = 0; s < a.count; s++) {
        for (int j = 0; j < k[s]->narg; j++)
            if (k[s]->named[j].stored)
                touch(&a, k[s]->named[j].stored, s);
        add_scratch(&a, s);
    }
    find_parts(&a);
    outlast_repeats(&a);
    keep_to_end(&a);
    make_stacks(&a);
    a.layout->n = (int)vec_len(a.layout->live);
    for (int i = 0; i < a.layout->n && a.rows; i++)
        rows_settle(a.rows, &a.layout->live[i]);
    for (int s = 0; s < a.count; s++)
        take_over(&a, s);
    start_places(&a);
    return a;
}

Load layout_load(Arena *arena, Graph *g, Group *const *k, const Program *prog)
{
    Arena *scratch = arena_new();
    Alloc a = live_in(scratch, g, k, prog);
    Rect *r = alloc(a.arena, sizeof *r * (size_t)(a.layout->n + 1));
    int n = 0;

    for (int i = 0; i < a.layout->n; i++) {
        const Live *x = &a.layout->live[i];
        if (x->same < 0 && x->within < 0 && !x->host)
            r[n++] = (Rect){ x->start, x->dies, x->bytes, -1, 0 };
    }
    Load l = load_of(arena, &a, r, n);
    arena_free(scratch);
    return l;
}

Layout *layout(Graph *g, Group *const *k, const Program *prog)
{
    Alloc a = live_in(g->arena, g, k, prog);

    place_all(&a);
    return a.layout;
}
