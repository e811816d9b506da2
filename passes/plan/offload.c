/* offload.c: keeps values that the forward stores and the backward reads in
 * host memory, which frees their device memory in between:
 *
 *     %h = gemm ..      kernel=1         %h   = gemm ..        kernel=1
 *     ..                                 %o   = offload %h     kernel=2
 *     %d = mul %dy %h   kernel=7    =>   ..
 *                                        %h'  = reload %o      kernel=8
 *                                        %d   = mul %dy %h'    kernel=9
 *
 * Kernels do not change, so no bit changes: a kernel whose nodes all run
 * backward reads %h' instead of %h, also through nodes of no kernel, which are
 * copied. Each call of a pipeline stage has its own reload. copies.c decides
 * later when the copies run.
 *
 * train.offload=activations offloads all such values. The default offloads only
 * if a plan does not fit otherwise (Graph.offloads), and only values whose
 * copies are hidden: these cost less than recomputation.
 *
 * Masters and moments are stored in host memory and reloaded for their update
 * (init only writes):
 *
 *                                           %m'  = reload %m         kernel=3
 *     %v = where .. %m   kernel=3      =>   %v   = where .. %m'      kernel=4
 *     %w = write %m %v   kernel=3           %w   = write %m %v       kernel=5
 *
 * If an update runs on the host's processors (host_update.c), its device
 * operands are copied to the host, and its results for the device are copied
 * back:
 *
 *                                      %g' = offload %g      kernel=3
 *     %v = where %g %m   kernel=3      %v  = where %g' %m    kernel=4 host=1
 *     %w = write %m %v   kernel=3  =>  %w  = write %m %v     kernel=4 host=1
 *     %c = cast %v       kernel=3      %c  = cast %v         kernel=4 host=1
 *     %x = write %p %c   kernel=3      %x  = write %p %c     kernel=5
 * */
#include "../../ir/settings/keys.h"
#include "plan.h"

/* WORTH: values that the device moves in less than 1/WORTH of a launch are not
 * offloaded; this does not depend on the link, so a faster link offloads no
 * less. LAG: a copy may wait, or arrive early, by 1/LAG of its phase, while its
 * bytes are occupied. */
enum { WORTH = 10, LAG = 8 };

typedef struct OffloadChoice {
    Node *x;
    int made, read; /* kernels, from 0; read: the first of the backward */
    double secs;    /* seconds of a copy */
    double done;    /* time at which it is in host memory */
    int taken;
} OffloadChoice;

typedef struct Offload {
    Graph *graph;
    Arena *arena;
    Group **group;      /* [i]: kernel i + 1 */
    OffloadChoice *may; /* vec */
    double *start, *over,
        *end;     /* [kernel from 0]: its start, the end of its phase */
    Node **to;    /* [id]: its offload; null: none */
    Table *late;  /* (node, call) -> node that the backward reads */
    Table *there; /* node -> node that kernels of the host read */
    Node ***after, ***before; /* [kernel]: offloads, reloads */
} Offload;

/* Is it a kernel of the backward, except sums over micro-batches? */
static int is_late(const Group *group)
{
    int all = 1, any = 0;

    for (int i = 0; i < group->n; i++) {
        const Node *n = group->node[i];
        any |= runs_backward(n);
        all &= runs_backward(n) || n->op == Oaccum || n->op == Osum_sq ||
               n->reg == REGpost;
    }
    return group->reg == REGbody && all && any;
}

/* Returns a node of op with operand x, placed at `by`. */
static Node *copy_of(Offload *offload, Op op, Node *x, const Node *by)
{
    Node *n = g_node(offload->graph, op, x->loc, 1, &x);

    n->dt = x->dt;
    n->nd = x->nd;
    memcpy(n->dim, x->dim, sizeof n->dim);
    n->sh = x->sh;
    n->map = x->map;
    n->reg = by->reg;
    n->call = by->call;
    n->scope = by->scope;
    return n;
}

/* ---- candidates ---------------------------------------------------------- */

/* Returns [id]: the forward kernel that stores the node. */
static int *makers(const Offload *offload)
{
    int *made =
        alloc(offload->arena, sizeof *made * vec_len(offload->graph->node));

    for (size_t i = 0; i < vec_len(offload->group); i++) {
        const Group *group = offload->group[i];
        for (int j = 0; j < group->nout && group->reg == REGbody; j++) {
            const Node *n = group->out[j];
            OpClass c = optab[n->op].cls;
            if (c != SINK && n->op != Oroute && !runs_backward(n))
                made[n->id] = (int)i + 1;
        }
    }
    return made;
}

static void add_candidate(Offload *offload, Node *x, int made, int read)
{
    double bytes = (double)local_bytes(offload->graph, x);
    OffloadChoice c = { x, made, read, copy_secs(offload->graph, bytes), 0, 1 };

    vec_push(offload->arena, offload->may, c);
}

/* Finds values that kernels of the backward read, in order of their first
 * reader. */
static void find_candidates(Offload *offload)
{
    const int *made = makers(offload);
    char *seen = alloc(offload->arena, vec_len(offload->graph->node));

    for (size_t i = 0; i < vec_len(offload->group); i++) {
        const Group *group = offload->group[i];
        for (int j = 0; j < group->nin && is_late(group); j++) {
            Node *x = group->in[j];
            if (made[x->id] && !seen[x->id])
                add_candidate(offload, x, made[x->id] - 1, (int)i);
            seen[x->id] = 1;
        }
    }
}

/* ---- hidden copies ------------------------------------------------------- */

static int same_phase(const Group *a, const Group *b)
{
    return a->reg == b->reg && a->call == b->call;
}

/* Predicts start and end of each kernel and its phase in seconds; collectives
 * overlap. */
static void clock_kernels(Offload *offload)
{
    size_t n = vec_len(offload->group);
    double now = 0;

    offload->start = alloc(offload->arena, (n + 1) * sizeof *offload->start);
    offload->over = alloc(offload->arena, (n + 1) * sizeof *offload->over);
    offload->end = alloc(offload->arena, (n + 1) * sizeof *offload->end);
    for (size_t i = 0; i < n; i++) {
        Instr s = { .kind = Ikernel };
        if (i && !same_phase(offload->group[i - 1], offload->group[i]))
            now = 0;
        offload->start[i] = now;
        if (offload->group[i]->fam != FAMcomm)
            predict(offload->graph, offload->group[i], &s);
        offload->over[i] = offload->end[i] = now += s.secs;
    }
    for (size_t i = n; i-- > 1;)
        if (same_phase(offload->group[i - 1], offload->group[i]))
            offload->end[i - 1] = offload->end[i];
}

static int by_maker(const void *a, const void *b)
{
    const OffloadChoice *x = a, *y = b;

    return x->made != y->made ? x->made - y->made : x->x->id - y->x->id;
}

static int by_reader(const void *a, const void *b)
{
    const OffloadChoice *x = a, *y = b;

    return x->read != y->read ? x->read - y->read : x->x->id - y->x->id;
}

static int is_worth(const Graph *g, const Node *x)
{
    const MachineSpeeds *speeds = machine_of(g);

    return WORTH * (double)local_bytes(g, x) > speeds->launch * speeds->memory;
}

/* Schedules copies to the host: each starts when its value is computed and the
 * copies before it are complete, at most 1/LAG of the phase later. */
static void hide_offloads(Offload *offload)
{
    double now = 0;

    vec_sort(offload->may, by_maker);
    for (size_t i = 0; i < vec_len(offload->may); i++) {
        OffloadChoice *choice = &offload->may[i];
        int made = choice->made;
        if (i &&
            !same_phase(offload->group[made], offload->group[choice[-1].made]))
            now = 0;
        double from = fmax(now, offload->over[made]);
        choice->done = from + choice->secs;
        choice->taken = is_worth(offload->graph, choice->x) &&
                        from - offload->over[made] < offload->end[made] / LAG &&
                        choice->done < offload->end[made];
        now = choice->taken ? choice->done : now;
    }
}

/* Schedules copies from the host, backwards: each ends when it is read, and
 * when the next one starts. */
static void hide_reloads(Offload *offload)
{
    double next = HUGE_VAL;

    vec_sort(offload->may, by_reader);
    for (size_t i = vec_len(offload->may); i-- > 0;) {
        OffloadChoice *choice = &offload->may[i];
        int one = same_phase(offload->group[choice->made],
                             offload->group[choice->read]);
        if (i + 1 < vec_len(offload->may) &&
            !same_phase(offload->group[choice->read],
                        offload->group[choice[1].read]))
            next = HUGE_VAL;
        double from = fmin(next, offload->start[choice->read]) - choice->secs;
        choice->taken &= from > (one ? choice->done + choice->secs : 0) &&
                         offload->start[choice->read] - from <
                             offload->end[choice->read] / LAG;
        next = choice->taken ? from : next;
    }
}

static void choose(Offload *offload, int all)
{
    double bytes = 0;

    find_candidates(offload);
    if (!all) {
        clock_kernels(offload);
        hide_offloads(offload);
        hide_reloads(offload);
    }
    for (size_t i = 0; i < vec_len(offload->may); i++) {
        const OffloadChoice *choice = &offload->may[i];
        double mib = (double)local_bytes(offload->graph, choice->x) / (1 << 20);
        if (!choice->taken)
            continue;
        offload->to[choice->x->id] =
            copy_of(offload, Ooffload, choice->x, choice->x);
        vec_push(offload->arena, offload->after[choice->made + 1],
                 offload->to[choice->x->id]);
        why(offload->graph, choice->x,
            "offloaded, %.3g MiB in %.3g ms each way", mib, 1e3 * choice->secs);
        bytes += mib;
    }
    if (bytes > 0)
        why(offload->graph, NULL,
            "%.4g GiB of a micro-batch wait in the host's memory",
            bytes / 1024);
}

/* ---- operands of the backward -------------------------------------------- */

/* Returns the replacement of operand x of a node of kernel k, placed at
 * `by`. */
static Node *late(Offload *offload, Node *x, int k, const Node *by)
{
    uint64_t call = (uint64_t)by->call;
    Node *in[MAXIN], *to = offload->to[x->id],
                     *made = table_get_pair(offload->late, KEYP(x), call);
    int changed = 0;

    if (made)
        return made;
    if (to) {
        made = copy_of(offload, Oreload, to, by);
        vec_push(offload->arena, offload->before[k], made);
        return *table_at_pair(offload->late, KEYP(x), call) = made;
    }
    int clear =
        !x->kernel && x->op != Opart && x->reg == offload->group[k - 1]->reg;
    for (int i = 0; i < x->nin && clear; i++) {
        in[i] = late(offload, x->in[i], k, by);
        changed |= in[i] != x->in[i];
    }
    made = x;
    if (changed) {
        made = g_copyof(offload->graph, x, in);
        made->call = by->call;
        made->scope = by->scope;
    }
    return *table_at_pair(offload->late, KEYP(x), call) = made;
}

static int is_of_host(const Group *group)
{
    return group->node[0]->host;
}

static void read_late(Offload *offload)
{
    for (size_t i = 0; i < vec_len(offload->group); i++) {
        const Group *group = offload->group[i];
        int reads =
            (group->reg == REGpost && !is_of_host(group)) || is_late(group);
        for (int j = 0; j < group->n && reads; j++)
            for (int p = group->node[j]->op == Owrite; p < group->node[j]->nin;
                 p++)
                group->node[j]->in[p] = late(offload, group->node[j]->in[p],
                                             (int)i + 1, group->node[j]);
    }
}

/* ---- operands of the host's processors ----------------------------------- */

static int is_in_memory(const Node *n)
{
    return n->kernel || is_lasting(n) || n->op == Oinput || n->op == Ostepval ||
           n->op == Oarg || n->op == Opart;
}

/* Returns the replacement of operand x of a node of host kernel k: copies of
 * device values, and of nodes of no kernel. */
static Node *there(Offload *offload, Node *x, int k, const Node *by)
{
    Node *in[MAXIN], *made = table_get(offload->there, KEYP(x));
    int changed = 0;

    if (made || lies_in_host(x))
        return made ? made : x;
    if (is_in_memory(x)) {
        made = copy_of(offload, Ooffload, x, by);
        vec_push(offload->arena, offload->before[k], made);
        return *table_at(offload->there, KEYP(x)) = made;
    }
    for (int i = 0; i < x->nin; i++) {
        in[i] = there(offload, x->in[i], k, by);
        changed |= in[i] != x->in[i];
    }
    made = x;
    if (changed) {
        made = g_copyof(offload->graph, x, in);
        made->reg = by->reg;
        made->call = by->call;
        made->scope = by->scope;
    }
    return *table_at(offload->there, KEYP(x)) = made;
}

/* Copies results of host kernels back for their other readers. */
static void read_there(Offload *offload)
{
    for (size_t i = 0; i < vec_len(offload->group); i++) {
        const Group *group = offload->group[i];
        if (!is_of_host(group))
            continue;
        for (int j = 0; j < group->n; j++)
            for (int p = group->node[j]->op == Owrite; p < group->node[j]->nin;
                 p++)
                group->node[j]->in[p] = there(offload, group->node[j]->in[p],
                                              (int)i + 1, group->node[j]);
        for (int j = 0; j < group->nout; j++)
            if (group->out[j]->op != Owrite)
                offload->to[group->out[j]->id] = group->out[j];
    }
}

/* ---- masters and moments ------------------------------------------------- */

/* Adds the write after the kernel that computes the new value; a value of no
 * kernel (a constant) gets one. */
static void write_behind(Offload *offload, Node *w, int k)
{
    Node *v = w->in[1];

    if (!v->kernel && !is_view(v)) {
        w->in[1] = g_copyof(offload->graph, v, v->in);
        vec_push(offload->arena, offload->before[k], w->in[1]);
    }
    vec_push(offload->arena, offload->after[k], w);
}

static void write_states(Offload *offload)
{
    for (size_t i = 0; i < vec_len(offload->group); i++) {
        const Group *group = offload->group[i];
        for (int j = 0; j < group->n; j++)
            if (group->node[j]->op == Owrite &&
                is_hosted(group->node[j]->in[0]) != is_of_host(group))
                write_behind(offload, group->node[j], (int)i + 1);
    }
}

/* Moves states of the optimizer to host memory. */
static void host_states(Offload *offload)
{
    double bytes = 0;

    for (size_t i = 0; i < vec_len(offload->graph->node); i++) {
        Node *n = offload->graph->node[i];
        if (!goes_to_host(offload->graph, n))
            continue;
        n->at.state.host = 1;
        offload->to[n->id] = n;
        bytes += (double)local_bytes(offload->graph, n);
    }
    if (bytes > 0 && program_trains(offload->graph->prog))
        why(offload->graph, NULL,
            "%.4g GiB of the optimizer live in the host's memory: an update "
            "takes %.4g ms of copies each way",
            bytes / (1 << 30), 1e3 * copy_secs(offload->graph, bytes));
}

/* ---- their kernels ------------------------------------------------------- */

static int number(Node **v, int last)
{
    for (size_t i = 0; i < vec_len(v); i++)
        v[i]->kernel = ++last;
    return last;
}

static void number_kernels(Offload *offload)
{
    int last = 0;

    for (size_t i = 0; i < vec_len(offload->group); i++) {
        last = number(offload->before[i + 1], last) + 1;
        for (int j = 0; j < offload->group[i]->n; j++)
            offload->group[i]->node[j]->kernel = last;
        last = number(offload->after[i + 1], last);
    }
}

int may_offload(const Graph *g)
{
    return program_trains(g->prog) && machine_of(g)->offload > 0 &&
           !opts_given(g->opts, "train.offload") &&
           !opts_given(g->opts, "train.recompute");
}

void pass_offload(Graph *g)
{
    unsigned classes = offload_classes(g);

    if (!(classes >> 1))
        return;
    Arena *a = arena_new();
    Offload f = { .graph = g, .arena = a, .group = groups_of(g, a) };
    size_t n = vec_len(f.group) + 1;

    f.late = table_new(a);
    f.there = table_new(a);
    f.after = alloc(a, n * sizeof *f.after);
    f.before = alloc(a, n * sizeof *f.before);
    f.to = alloc(a, sizeof *f.to * vec_len(g->node));
    host_states(&f);
    if (classes >> OFFLOADactivations & 1 && program_trains(g->prog))
        choose(&f, opts_given(g->opts, "train.offload"));
    host_updates(g, a, f.group);
    read_there(&f);
    read_late(&f);
    write_states(&f);
    number_kernels(&f);
    g->group = NULL;
    g_sort(g);
    arena_free(a);
}
