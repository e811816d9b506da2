/* alloc.c: lifetimes and places of a program's values.
 *
 * A value lives from the first instruction that names it to the last. In a
 * repeated phase, a value from before the phase lives to the phase's last
 * instruction, since the next run needs it again. An accumulator is first named
 * where it is cleared, so it lives from there to its last use in post; one that
 * the first run of a phase stores (Instr.store_first) from the start of the
 * phase; a value made and used inside a body can share memory with all others.
 * An output lives to the end, where the runtime reads it.
 *
 * A value named by an instruction of another stream lives until compute is
 * known to run after that instruction; in host memory, until all streams that
 * write there are.
 *
 * In a pipeline stage (activation_slots.c) a value is private to a call, kept
 * by a micro-batch between calls, or live through the whole table.
 *
 * A result takes the buffer of an operand that dies in the same instruction if
 * the kernel allows it (Group.inplace) and both have equal sizes.
 *
 * Values that live across programs (parameters, states, optimizer, inputs,
 * scalars) are in another part of the arena (emit.c). */
#include "plan.h"

enum { NEVER = -1 }; /* its place is never reused */

typedef struct Alloc {
    Graph *graph;
    Arena *arena;
    Group *const *group;
    int count;
    const Program *prog;
    int *behind; /* [instruction]: first one known to run after it */
    int *there;  /* [instruction]: ... on all streams that write host memory */
    CallTimes *rows; /* null: no table */
    Layout *layout;
    int *life;  /* vec: [value]: 1 + its life; 0: none yet */
    int *phase; /* [instruction] */
} Alloc;

int is_persistent(const Node *n)
{
    return is_lasting(n) || n->op == Oinput || n->op == Ostepval ||
           n->op == Oresult;
}

/* Returns the identity of a value. An input of a pair's second micro-batch
 * shares the name of the first one's. */
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

static int writes(const Group *group, const Node *stored)
{
    for (int j = 0; j < group->nout; j++)
        if (storage(group->out[j]) == stored)
            return 1;
    return group->instr.kind == Ijoin;
}

/* Returns the value of which x is a copy from or to host memory; null: none. */
static Node *copied_from(const Node *x)
{
    Node *from = x->op == Oreload ? storage(x->in[0]) : (Node *)(uintptr_t)x;

    if (from->op == Ooffload)
        return storage(from->in[0]);
    return from != x && from->host ? from : NULL;
}

static int number_of(Table *numbers, Node *stored, int *count)
{
    void **at = table_at(numbers, KEYP(value_key(stored)));

    if (!*at)
        *at = (void *)(uintptr_t)++ * count;
    return (int)(uintptr_t)*at - 1;
}

int is_gradient(const Node *n)
{
    return n->op == Oaccum && (n->of || n->scope->part == PARTgrad);
}

/* Returns the values kept to the end, by storage: outputs, which are read after
 * the program, and gradients (for tests; they are live at the peak anyway). */
static Table *find_kept(Arena *a, const Graph *g)
{
    Table *kept = table_new(a);

    for (size_t i = 0; i < vec_len(g->node); i++) {
        Node *n = g->node[i];
        int out = n->op == Ooutput;
        if (!out && !is_gradient(n))
            continue;
        void **at = table_at(kept, KEYP(storage(out ? n->in[0] : n)));
        *at = (void *)(uintptr_t)(out || *at == (void *)KEPTout ? KEPTout : 1);
    }
    return kept;
}

int name_values(Arena *a, const Graph *g, Group *const *k, int n)
{
    Arena *scratch = arena_new();
    Table *numbers = table_new(scratch), *kept = find_kept(scratch, g);
    int64_t *bytes = NULL; /* vec: [value] */
    int count = 0;

    for (int i = 0; i < n; i++) {
        k[i]->named = alloc(a, sizeof *k[i]->named * (size_t)(k[i]->narg + 1));
        for (int j = 0; j < k[i]->narg; j++) {
            NamedValue *value = &k[i]->named[j];
            Node *x = k[i]->arg[j] ? storage(k[i]->arg[j]) : NULL;
            if (!x)
                continue;
            *value =
                (NamedValue){ .stored = x,
                              .number = number_of(numbers, x, &count),
                              .writes = writes(k[i], x),
                              .source = -1,
                              .kept = (int)(uintptr_t)table_get(kept, KEYP(x)),
                              .persists = is_persistent(x) };
            Node *from = copied_from(x);
            if (from)
                value->source = number_of(numbers, from, &count);
            while (vec_len(bytes) < (size_t)count)
                vec_push(scratch, bytes, 0);
            if (!bytes[value->number])
                bytes[value->number] = local_bytes(g, x);
            value->bytes = bytes[value->number];
        }
    }
    arena_free(scratch);
    return count;
}

/* ---- lives --------------------------------------------------------------- */

static const Phase *phase_at(const Alloc *alloc, int instr)
{
    return &alloc->prog->phase[alloc->phase[instr]];
}

static int *phases_of(Arena *a, const Program *prog)
{
    int *phase = alloc(a, ((size_t)prog->ninstr + 1) * sizeof *phase);

    for (int f = 0; f < prog->nphase; f++)
        for (int i = 0; i < prog->phase[f].n; i++)
            phase[prog->phase[f].first + i] = f;
    return phase;
}

/* Records that a call of a stage names live. */
static void note_call(const Alloc *alloc, Live *live, int instr)
{
    const Phase *p = alloc->rows ? phase_at(alloc, instr) : NULL;
    if (!p || p->repeat) {
        live->outside = 1;
        return;
    }
    int phase = (int)(p - alloc->prog->phase);
    size_t n = vec_len(live->used);
    if (!n || live->used[n - 1].phase != phase)
        vec_push(alloc->arena, live->used, ((Used){ phase, instr, instr }));
    else
        live->used[n - 1].last = instr;
}

/* Extends the time for which live's place is occupied by another stream. An
 * instruction of a call's last row may run beside rows of other calls. */
static void hold(const Alloc *alloc, Live *live, int instr)
{
    int until = (live->host ? alloc->there : alloc->behind)[instr] - 1;
    const Phase *call = alloc->rows ? phase_at(alloc, instr) : NULL;

    if (alloc->prog->instr[instr].issue.stream && live->busy <= until)
        live->busy = until + 1;
    if (live->dies < until)
        live->dies = until;
    if (call && !call->repeat && until >= call->first + call->n)
        live->outside = 1;
}

/* Returns the index of a stored value's life; -1: none. */
static int life_of(const Layout *layout, const Node *stored)
{
    int i = stored->mark - 1;

    return i >= 0 && (size_t)i < vec_len(layout->live) &&
                   layout->live[i].node == stored
               ? i
               : -1;
}

/* Does the first run of its phase store the value, and the others
 * accumulate? */
static int stores(const Alloc *alloc, const NamedValue *value, int instr)
{
    return alloc->group[instr]->instr.store_first &&
           value->stored->op == Oaccum;
}

/* Is it a join only in the last run? Its parts end there, and the whole lives
 * to the end of the phase, since parts of other runs are in it. */
static int joins_last(const Alloc *alloc, int instr)
{
    const Instr *s = &alloc->group[instr]->instr;

    return s->kind == Ijoin && s->last_only;
}

/* Is it a join in the last row of a call? Parts live up to it in all rows, the
 * whole from there on, in the same place. */
static int joins_in_call(const Alloc *alloc, int instr)
{
    return alloc->rows && joins_last(alloc, instr) &&
           !phase_at(alloc, instr)->repeat;
}

/* Is live a part or the result of such a join? */
static int meets_in_call(const Alloc *alloc, const Live *live)
{
    int join = live->within >= 0 ? live->last : live->born;

    return joins_in_call(alloc, join) &&
           (live->within >= 0 ||
            live->node == storage(alloc->group[join]->arg[0]));
}

/* Returns the instruction at which a value first named here is born. */
static int birth(const Alloc *alloc, const NamedValue *value, int instr)
{
    return stores(alloc, value, instr) ? phase_at(alloc, instr)->first : instr;
}

static void touch(Alloc *alloc, const NamedValue *value, int instr)
{
    Node *n = value->stored;

    if (!n || value->persists)
        return;
    while (vec_len(alloc->life) <= (size_t)value->number)
        vec_push(alloc->arena, alloc->life, 0);
    int *life = &alloc->life[value->number];
    if (!*life) {
        int born = birth(alloc, value, instr);
        Live x = { .node = n,
                   .bytes = value->bytes,
                   .born = born,
                   .first = born,
                   .kept = value->kept,
                   .same = -1,
                   .within = -1,
                   .host = lies_in_host(n) };
        vec_push(alloc->arena, alloc->layout->live, x);
        *life = n->mark = (int)vec_len(alloc->layout->live);
    }
    Live *x = &alloc->layout->live[*life - 1];
    x->last = instr;
    x->grows |=
        stores(alloc, value, instr) ||
        (joins_last(alloc, instr) && value == alloc->group[instr]->named);
    hold(alloc, x, instr);
    note_call(alloc, x, instr);
}

static void add_scratch(Alloc *alloc, int instr)
{
    Live x = { .instr = instr,
               .bytes = alloc->group[instr]->scratch,
               .host = alloc->group[instr]->instr.launch.host,
               .born = instr,
               .first = instr,
               .last = instr,
               .same = -1,
               .within = -1 };
    if (!x.bytes)
        return;
    hold(alloc, &x, instr);
    note_call(alloc, &x, instr);
    vec_push(alloc->arena, alloc->layout->live, x);
}

/* Extends values from before a repeated phase to its end: the next run needs
 * them. */
static void outlast_repeats(Alloc *alloc)
{
    for (size_t i = 0; i < vec_len(alloc->layout->live); i++) {
        Live *live = &alloc->layout->live[i];
        const Phase *p = phase_at(alloc, live->dies);
        if (p->repeat <= 1 || (live->born >= p->first && !live->grows) ||
            (live->within >= 0 && joins_last(alloc, live->last)))
            continue;
        live->dies = p->first + p->n - 1;
        live->last = NEVER;
    }
}

static int own(const Layout *layout, Node *n)
{
    return life_of(layout, storage(n));
}

static void keep_to_end(Alloc *alloc)
{
    for (size_t i = 0; i < vec_len(alloc->layout->live); i++) {
        Live *x = &alloc->layout->live[i];
        int kept = x->kept;
        if (!kept)
            continue;
        if (x->within >= 0) {
            x->kept = 0;
            x = &alloc->layout->live[x->within];
        }
        x->kept = x->outside = 1;
        x->dies = alloc->count - 1;
        if (kept == KEPTout)
            x->last = NEVER;
    }
}

int64_t join_at(const Node *pack, int i)
{
    return bucket_at(pack, i) * dtypes[pack->dt].bytes;
}

/* ---- parts of buckets ---------------------------------------------------- */

static void find_parts(Alloc *alloc)
{
    for (int s = 0; s < alloc->count; s++) {
        const Group *group = alloc->group[s];
        if (group->instr.kind != Ijoin)
            continue;
        int all = own(alloc->layout, group->arg[0]);
        for (int i = 1; i < group->narg; i++) {
            Live *x = &alloc->layout->live[own(alloc->layout, group->arg[i])];
            x->within = all;
            x->offset = join_at(group->arg[0], i - 1);
        }
    }
}

/* A bucket's place is occupied from the birth of its first part. */
static void start_places(Alloc *alloc)
{
    for (int i = 0; i < alloc->layout->n; i++)
        alloc->layout->live[i].start = alloc->layout->live[i].born;
    for (int i = 0; i < alloc->layout->n; i++) {
        const Live *live = &alloc->layout->live[i];
        if (live->within >= 0 &&
            live->born < alloc->layout->live[live->within].start)
            alloc->layout->live[live->within].start = live->born;
    }
}

/* ---- stacks -------------------------------------------------------------- */

/* Returns the stack of live; a new one is a copy of live with the stack's
 * height. */
static int stack_of(Alloc *alloc, int first, const Live *live)
{
    const Node *map = live->node->map;
    Live s = *live;
    int i = first;

    while (i < (int)vec_len(alloc->layout->live) &&
           alloc->layout->live[i].stack != live->node->stash)
        i++;
    if (i < (int)vec_len(alloc->layout->live))
        return i;
    s.stack = live->node->stash;
    s.bytes =
        live->bytes / map_layout(alloc->graph, map).cap * map->at.route.stash;
    vec_push(alloc->arena, alloc->layout->live, s);
    return i;
}

/* Creates stacks, which live as long as any of their values. */
static void make_stacks(Alloc *alloc)
{
    int count = (int)vec_len(alloc->layout->live);

    for (int i = 0; i < count; i++) {
        const Node *n = alloc->layout->live[i].node;
        if (!n || !n->stash)
            continue;
        int at = stack_of(alloc, count, &alloc->layout->live[i]);
        Live *x = &alloc->layout->live[i], *s = &alloc->layout->live[at];
        x->same = at;
        s->busy = x->busy > s->busy ? x->busy : s->busy;
        rows_join(alloc->rows, s, x);
    }
}

/* ---- results in place of operands ---------------------------------------- */

int layout_root(const Layout *layout, int i)
{
    while (layout->live[i].same >= 0)
        i = layout->live[i].same;
    return i;
}

static void take_over(Alloc *alloc, int instr)
{
    const Group *group = alloc->group[instr];

    for (int j = 0; j < group->ninplace; j++) {
        int out = own(alloc->layout, group->out[group->inplace[j][0]]);
        int in = own(alloc->layout, group->in[group->inplace[j][1]]);
        if (out < 0 || in < 0)
            continue;
        in = layout_root(alloc->layout, in);
        Live *x = &alloc->layout->live[out], *y = &alloc->layout->live[in];
        /* A gradient may be reduced over ranks in place. */
        int apart = alloc->prog->instr[instr].issue.stream && !y->host;
        int free = y->last == instr && !y->stack &&
                   (!y->kept || group->fam == FAMcomm) &&
                   (apart || y->busy <= instr);
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
            rows_join(alloc->rows, y, x);
        else if (!y->kept && y->dies < x->dies)
            y->dies = x->dies;
    }
}

/* ---- places -------------------------------------------------------------- */

static Load load_of(Arena *arena, const Alloc *a, const Rect *rect, int n)
{
    size_t size = sizeof(int64_t) * (size_t)(a->count + 1);
    Load l = { alloc(arena, size), alloc(arena, size), 0 };

    for (int i = 0; i < n; i++) {
        int64_t bytes = aligned(rect[i].bytes);
        l.alive[rect[i].born] += bytes;
        l.ends[rect[i].dies] += bytes;
    }
    for (int s = 0; s < a->count; s++) {
        l.alive[s] += s ? l.alive[s - 1] - l.ends[s - 1] : 0;
        l.most = l.alive[s] > l.most ? l.alive[s] : l.most;
    }
    return l;
}

/* Is live in this arena, with its own fixed place, outside calls? */
static int is_apart(const Live *live, int host)
{
    return live->same < 0 && live->within < 0 && live->host == host &&
           (!live->used || live->outside);
}

/* Places an arena's values. The private part of a stage's calls and its frames
 * are a rectangle each, as long as the table. The bound is the maximum over
 * rows of live frames, the call's private part, and values that live through
 * the table. A height within another program's peak is low enough. */
static Packed place(Alloc *a, int host)
{
    Layout *l = a->layout;
    Rect *r = alloc(a->arena, sizeof *r * (size_t)(l->n + 2));
    int *id = alloc(a->arena, sizeof *id * (size_t)(l->n + 2)), n = 0;
    TableMemory t = a->rows ? rows_place(a->rows, l, host) : (TableMemory){ 0 };
    int64_t from = host ? HOSTSPACE : 0;
    const char *wrong;

    for (int i = 0; i < l->n; i++) {
        const Live *live = &l->live[i];
        if (!is_apart(live, host))
            continue;
        id[n] = i;
        r[n++] = (Rect){ live->start, live->dies, live->bytes, -1, 0 };
    }
    int count = n;
    if (a->rows) {
        r[n++] = (Rect){ a->rows->from, a->rows->to, t.priv, -1, 0 };
        r[n++] = (Rect){ a->rows->from, a->rows->to, t.pool, -1, 0 };
    }
    int64_t most = load_of(a->arena, a, r, n).most;
    int low = !host && a->graph->enough > most + most / 100;
    Packed p = pack_known(a->graph->compile->packed, r, n,
                          low ? a->graph->enough : 0, PACKWORK);
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

static void place_all(Alloc *alloc)
{
    Layout *layout = alloc->layout;
    Packed p = place(alloc, 0);

    layout->height = p.height;
    layout->bound = p.bound;
    for (int i = 0; i < layout->n && !layout->host; i++)
        layout->host = layout->live[i].host;
    layout->host = layout->host ? place(alloc, 1).height : 0;
    for (int i = 0; i < layout->n; i++)
        if (layout->live[i].within >= 0)
            layout->live[i].offset +=
                layout->live[layout->live[i].within].offset;
}

static int *host_writers(Arena *arena, Group *const *k, const Program *prog)
{
    char *writes = alloc(arena, (size_t)prog->ninstr + 1);

    for (int s = 0; s < prog->ninstr; s++)
        writes[s] = k[s]->instr.launch.host ||
                    (k[s]->fam == FAMcopy && lies_in_host(k[s]->out[0]));
    return writers_behind(arena, prog, writes);
}

static Alloc live_in(Arena *arena, Graph *g, Group *const *k,
                     const Program *prog)
{
    Alloc a = { .graph = g,
                .arena = arena,
                .group = k,
                .count = prog->ninstr,
                .prog = prog };

    a.behind = instrs_behind(arena, prog);
    a.phase = phases_of(arena, prog);
    a.there = host_writers(arena, k, prog);
    a.rows = rows_of(arena, prog, g->compile->packed);

    a.layout = alloc(a.arena, sizeof *a.layout);
    for (int s = 0; s < a.count; s++) {
        for (int j = 0; j < k[s]->narg; j++)
            touch(&a, &k[s]->named[j], s);
        add_scratch(&a, s);
    }
    find_parts(&a);
    outlast_repeats(&a);
    keep_to_end(&a);
    make_stacks(&a);
    a.layout->n = (int)vec_len(a.layout->live);
    for (int i = 0; i < a.layout->n && a.rows; i++)
        if (meets_in_call(&a, &a.layout->live[i]))
            a.layout->live[i].outside = 1;
        else
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
        const Live *live = &a.layout->live[i];
        if (live->same < 0 && live->within < 0 && !live->host)
            r[n++] = (Rect){ live->start, live->dies, live->bytes, -1, 0 };
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
