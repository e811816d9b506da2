/* offload.c: a value that the forward stores and the backward reads waits in
 * the host's memory, so that its bytes of the device are free between the two:
 *
 *     %h = gemm ..      kernel=1         %h   = gemm ..        kernel=1
 *     ..                                 %o   = offload %h     kernel=2
 *     %d = mul %dy %h   kernel=7    =>   ..
 *                                        %h'  = reload %o      kernel=8
 *                                        %d   = mul %dy %h'    kernel=9
 *
 * Kernels are as they were, so no bit changes: one whose nodes all run
 * backward reads %h' wherever it read %h, also through nodes of no kernel,
 * which get copies. Each call of a pipeline stage has a reload of its own.
 * Where between the two the copies run is decided behind this (copies.c).
 *
 * With train.offload=activations all such values do. Unasked, only where a
 * plan does not fit without (Graph.offloads), and only those whose copies are
 * hidden: they cost less than any that is rebuilt.
 *
 * Masters and moments live there, and come for their update (init only writes):
 *
 *                                           %m'  = reload %m         kernel=3
 *     %v = where .. %m   kernel=3      =>   %v   = where .. %m'      kernel=4
 *     %w = write %m %v   kernel=3           %w   = write %m %v       kernel=5
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/keys.h"
#include "emit.h"

/* Copies that take less than so many launches save nothing; a copy may wait, or
 * be there early, for a LAGth of its phase: so long its bytes are taken. */
enum { WORTH = 10, LAG = 8 };

typedef struct OffloadChoice {
    Node *x;
    int made, read; /* kernels, from 0; the first of the backward */
    double secs;    /* of a copy */
    double done;    /* when it is in the host's memory */
    int taken;
} OffloadChoice;

typedef struct Offload {
    Graph *graph;
    Arena *arena;
    Group **group;      /* of kernel i + 1 */
    OffloadChoice *may; /* vec */
    double *start, *over,
        *end;    /* by kernel from 0: its begin, its phase's end */
    Node **to;   /* by id: what it is offloaded to; null: it is not */
    Table *late; /* node and call -> what the backward reads */
    Node ***after, ***before; /* by kernel: offloads, reloads */
} Offload;

/* A kernel of the backward, but for sums over micro-batches. */
static int is_late(const Group *k)
{
    int all = 1, any = 0;

    for (int i = 0; i < k->n; i++) {
        const Node *n = k->node[i];
        any |= runs_backward(n);
        all &= runs_backward(n) || n->op == Oaccum || n->op == Osum_sq;
    }
    return k->reg == REGbody && all && any;
}

static uint64_t late_key(const Node *n, int call)
{
    return mix64(KEYP(n), (uint64_t)call);
}

/* n made of x, where `by` stands. */
static Node *copy_of(Offload *f, Op op, Node *x, const Node *by)
{
    Node *n = g_node(f->graph, op, x->loc, 1, &x);

    n->dt = x->dt;
    n->nd = x->nd;
    memcpy(n->dim, x->dim, sizeof n->dim);
    memcpy(n->sh, x->sh, sizeof n->sh);
    n->map = x->map;
    n->reg = by->reg;
    n->call = by->call;
    n->scope = by->scope;
    return n;
}

/* ---- which --------------------------------------------------------------- */

/* By id of what kernels of the forward store: its kernel. */
static int *makers(const Offload *f)
{
    int *made = alloc(f->arena, sizeof *made * vec_len(f->graph->node));

    for (size_t i = 0; i < vec_len(f->group); i++) {
        const Group *k = f->group[i];
        for (int j = 0; j < k->nout && k->reg == REGbody; j++) {
            const Node *n = k->out[j];
            OpClass c = optab[n->op].cls;
            if (c != SINK && n->op != Oroute && !runs_backward(n))
                made[n->id] = (int)i + 1;
        }
    }
    return made;
}

static void add_candidate(Offload *f, Node *x, int made, int read)
{
    double bytes = (double)local_bytes(f->graph, x);
    OffloadChoice c = { x, made, read, copy_secs(f->graph, bytes), 0, 1 };

    vec_push(f->arena, f->may, c);
}

/* What kernels of the backward read, in the order in which they do first. */
static void find_candidates(Offload *f)
{
    const int *made = makers(f);
    char *seen = alloc(f->arena, vec_len(f->graph->node));

    for (size_t i = 0; i < vec_len(f->group); i++) {
        const Group *k = f->group[i];
        for (int j = 0; j < k->nin && is_late(k); j++) {
            Node *x = k->in[j];
            if (made[x->id] && !seen[x->id])
                add_candidate(f, x, made[x->id] - 1, (int)i);
            seen[x->id] = 1;
        }
    }
}

/* ---- which copies what computes hides ------------------------------------ */

static int same_phase(const Group *a, const Group *b)
{
    return a->reg == b->reg && a->call == b->call;
}

/* When each kernel begins and ends, and its phase, in seconds; collectives run
 * beside others. */
static void clock_kernels(Offload *f)
{
    size_t n = vec_len(f->group);
    double now = 0;

    f->start = alloc(f->arena, (n + 1) * sizeof *f->start);
    f->over = alloc(f->arena, (n + 1) * sizeof *f->over);
    f->end = alloc(f->arena, (n + 1) * sizeof *f->end);
    for (size_t i = 0; i < n; i++) {
        Instr s = { .kind = Ikernel };
        if (i && !same_phase(f->group[i - 1], f->group[i]))
            now = 0;
        f->start[i] = now;
        if (f->group[i]->fam != FAMcomm)
            predict(f->graph, f->group[i], &s);
        f->over[i] = f->end[i] = now += s.secs;
    }
    for (size_t i = n; i-- > 1;)
        if (same_phase(f->group[i - 1], f->group[i]))
            f->end[i - 1] = f->end[i];
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

/* To the host: begun as soon as it is made, or the copies before it are done,
 * which may take a LAGth of the phase. */
static void hide_offloads(Offload *f)
{
    double now = 0;

    vec_sort(f->may, by_maker);
    for (size_t i = 0; i < vec_len(f->may); i++) {
        OffloadChoice *c = &f->may[i];
        int made = c->made;
        if (i && !same_phase(f->group[made], f->group[c[-1].made]))
            now = 0;
        double from = fmax(now, f->over[made]);
        c->done = from + c->secs;
        c->taken = c->secs > WORTH * machine_of(f->graph)->launch &&
                   from - f->over[made] < f->end[made] / LAG &&
                   c->done < f->end[made];
        now = c->taken ? c->done : now;
    }
}

/* From it, backwards: there when it is read, and the stream free for the copies
 * behind it. */
static void hide_reloads(Offload *f)
{
    double next = HUGE_VAL;

    vec_sort(f->may, by_reader);
    for (size_t i = vec_len(f->may); i-- > 0;) {
        OffloadChoice *c = &f->may[i];
        int one = same_phase(f->group[c->made], f->group[c->read]);
        if (i + 1 < vec_len(f->may) &&
            !same_phase(f->group[c->read], f->group[c[1].read]))
            next = HUGE_VAL;
        double from = fmin(next, f->start[c->read]) - c->secs;
        c->taken &= from > (one ? c->done + c->secs : 0) &&
                    f->start[c->read] - from < f->end[c->read] / LAG;
        next = c->taken ? from : next;
    }
}

static void choose(Offload *f, int all)
{
    double bytes = 0;

    find_candidates(f);
    if (!all) {
        clock_kernels(f);
        hide_offloads(f);
        hide_reloads(f);
    }
    for (size_t i = 0; i < vec_len(f->may); i++) {
        const OffloadChoice *c = &f->may[i];
        double mib = (double)local_bytes(f->graph, c->x) / (1 << 20);
        if (!c->taken)
            continue;
        f->to[c->x->id] = copy_of(f, Ooffload, c->x, c->x);
        vec_push(f->arena, f->after[c->made + 1], f->to[c->x->id]);
        why(f->graph, c->x, "offloaded, %.3g MiB in %.3g ms each way", mib,
            1e3 * c->secs);
        bytes += mib;
    }
    if (bytes > 0)
        why(f->graph, NULL,
            "%.4g GiB of a micro-batch wait in the host's memory",
            bytes / 1024);
}

/* ---- what the backward reads --------------------------------------------- */

/* In the place of operand x of a node of kernel k, where `by` stands. */
static Node *late(Offload *f, Node *x, int k, const Node *by)
{
    void **at = table_at(f->late, late_key(x, by->call));
    Node *in[MAXIN], *to = f->to[x->id];
    int changed = 0;

    if (*at)
        return *at;
    if (to) {
        *at = copy_of(f, Oreload, to, by);
        vec_push(f->arena, f->before[k], *at);
        return *at;
    }
    int clear = !x->kernel && x->op != Opart && x->reg == f->group[k - 1]->reg;
    for (int i = 0; i < x->nin && clear; i++) {
        in[i] = late(f, x->in[i], k, by);
        changed |= in[i] != x->in[i];
    }
    if (changed) {
        Node *c = g_copyof(f->graph, x, in);
        c->call = by->call;
        c->scope = by->scope;
        x = c;
    }
    return *at = x;
}

static void read_late(Offload *f)
{
    for (size_t i = 0; i < vec_len(f->group); i++) {
        const Group *k = f->group[i];
        int reads = k->reg == REGpost || is_late(k);
        for (int j = 0; j < k->n && reads; j++)
            for (int p = k->node[j]->op == Owrite; p < k->node[j]->nin; p++)
                k->node[j]->in[p] =
                    late(f, k->node[j]->in[p], (int)i + 1, k->node[j]);
    }
}

/* ---- masters and moments ------------------------------------------------- */

/* Behind the kernel that makes the new value; what none does (a constant) gets
 * one. */
static void write_behind(Offload *f, Node *w, int k)
{
    Node *v = w->in[1];

    if (!v->kernel && !is_view(v)) {
        w->in[1] = g_copyof(f->graph, v, v->in);
        vec_push(f->arena, f->before[k], w->in[1]);
    }
    vec_push(f->arena, f->after[k], w);
}

static void write_states(Offload *f)
{
    for (size_t i = 0; i < vec_len(f->group); i++) {
        const Group *k = f->group[i];
        for (int j = 0; j < k->n; j++)
            if (k->node[j]->op == Owrite && is_hosted(k->node[j]->in[0]))
                write_behind(f, k->node[j], (int)i + 1);
    }
}

/* What of the optimizer lives in the host's memory. */
static void host_states(Offload *f)
{
    double bytes = 0;

    for (size_t i = 0; i < vec_len(f->graph->node); i++) {
        Node *n = f->graph->node[i];
        if (!goes_to_host(f->graph, n))
            continue;
        n->at.state.host = 1;
        f->to[n->id] = n;
        bytes += (double)local_bytes(f->graph, n);
    }
    if (bytes > 0 && program_trains(f->graph->prog))
        why(f->graph, NULL,
            "%.4g GiB of the optimizer live in the host's memory: an update "
            "takes %.4g ms of copies each way",
            bytes / (1 << 30), 1e3 * copy_secs(f->graph, bytes));
}

/* ---- their kernels ------------------------------------------------------- */

static int number(Node **v, int last)
{
    for (size_t i = 0; i < vec_len(v); i++)
        v[i]->kernel = ++last;
    return last;
}

static void number_kernels(Offload *f)
{
    int last = 0;

    for (size_t i = 0; i < vec_len(f->group); i++) {
        last = number(f->before[i + 1], last) + 1;
        for (int j = 0; j < f->group[i]->n; j++)
            f->group[i]->node[j]->kernel = last;
        last = number(f->after[i + 1], last);
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
    f.after = alloc(a, n * sizeof *f.after);
    f.before = alloc(a, n * sizeof *f.before);
    f.to = alloc(a, sizeof *f.to * vec_len(g->node));
    host_states(&f);
    if (classes >> OFFLOADactivations & 1 && program_trains(g->prog))
        choose(&f, opts_given(g->opts, "train.offload"));
    read_late(&f);
    write_states(&f);
    number_kernels(&f);
    g->group = NULL;
    g_sort(g);
    arena_free(a);
}
