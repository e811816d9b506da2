/* pair.c: with fold.pair, or where fit.c predicts that it takes less time, den
 * and body take two micro-batches at once, so that one computes while the rows
 * of the other are on their way between ranks:
 *
 *     %a = attn ..         kernel=1     %a = attn ..         kernel=1
 *     %b = all_to_all %a   kernel=2     %b = all_to_all %a   kernel=2
 *     %c = gmm %b          kernel=3     %d = attn ..         kernel=3  second
 *     %g = accum %c              =>     %e = all_to_all %d   kernel=4  second
 *                                       %c = gmm %b          kernel=5
 *                                       %g = accum %c
 *                                       %f = gmm %e          kernel=6  second
 *                                       %h = accum %f %g
 *
 * A kernel that depends on data or accumulates gets a twin: the same nodes on
 * the second's inputs, whose sums go on where those of the first end. So each
 * sum has the terms and the order that it has without pairs, and no bit
 * changes. What depends on no data, as gathered weights, is made once for both.
 * The twins take turns behind collectives: up to one those of the first, then
 * the same of the second. overlap.c refines that.
 *
 * Activations of both are alive at once: where a plan with pairs would have to
 * rebuild some, fit.c takes none. */
#include "plan.h"

typedef struct Twins {
    Graph *g;
    Arena *arena;
    char *depends;       /* by id: on data */
    char *counts;        /* by id: a number of micro-batches, read in turn */
    Node **last;         /* by an accumulator's id: where its sum ends */
    Node **twin;         /* by id */
    int nkernel, early;  /* early: that come before all others */
    char *twice, *ends;  /* by kernel: it has a twin; it exchanges data */
    int *first, *second; /* by kernel: new numbers, its and its twin's */
} Twins;

/* ---- what there is twice ------------------------------------------------- */

static int in_turn(const Node *n)
{
    return n->reg == REGden || n->reg == REGbody;
}

static int is_micro(const Node *n)
{
    return n->op == Ostepval && n->at.stepval.name == STEPmicro;
}

/* Is it a sum over micro-batches, or (accumulate.c) one of a micro-batch that
 * lies where its first term does? */
static int is_total(const Node *n)
{
    while (n->op == Oaccum && n->nin > 1)
        n = n->in[1];
    return n->op == Oaccum;
}

static int depends(const Twins *twins, const Node *n)
{
    if (n->op == Oinput || twins->counts[n->id])
        return 1;
    if (any_region(n) || !in_turn(n))
        return 0;
    int yes = is_total(n) || (n->kernel && twins->twice[n->kernel]) ||
              (n->map && twins->depends[n->map->id]);
    for (int i = 0; i < n->nin; i++)
        yes |= twins->depends[n->in[i]->id] &&
               (n->in[i]->op != Oaccum || n->in[i]->reg == n->reg);
    return yes;
}

static void add_twin(Twins *twins, const Node *n)
{
    twins->depends[n->id] = 1;
    twins->twice[n->kernel] = n->kernel > 0;
    twins->ends[n->kernel] |= n->kernel && optab[n->op].cls == COMM;
}

/* Does it have a twin, and what it adds to where that lies has none? */
static int needs_place(const Twins *twins, const Node *n)
{
    return n->op == Oaccum && n->nin > 1 && twins->depends[n->id] &&
           !twins->depends[n->in[1]->id];
}

/* What post reads is its own: no micro-batch's. */
static void find_counts(Twins *twins)
{
    for (size_t i = 0; i < vec_len(twins->g->node); i++) {
        const Node *n = twins->g->node[i];
        for (int k = 0; k < n->nin && in_turn(n); k++)
            twins->counts[n->in[k]->id] |= is_micro(n->in[k]);
    }
}

/* A kernel has a twin as a whole, so its nodes come to depend on data. */
static void find_twice(Twins *twins)
{
    for (int more = 1; more;) {
        more = 0;
        for (size_t i = 0; i < vec_len(twins->g->node); i++) {
            const Node *n = twins->g->node[i];
            int place = needs_place(twins, n);
            if (!place && (twins->depends[i] || !depends(twins, n)))
                continue;
            add_twin(twins, place ? n->in[1] : n);
            more = 1;
        }
    }
}

/* Where sums end that several nodes add to (accumulate.c). */
static void find_ends(Twins *twins)
{
    for (size_t i = vec_len(twins->g->node); i-- > 0;) {
        Node *n = twins->g->node[i];
        if (n->op != Oaccum)
            continue;
        twins->last[i] = twins->last[i] ? twins->last[i] : n;
        if (n->nin > 1)
            twins->last[n->in[1]->id] = twins->last[i];
    }
}

/* ---- turns --------------------------------------------------------------- */

/* Up to an exchange the first's kernels, then their twins. */
static void take_turns(Twins *twins)
{
    int next = twins->early, from = 1;

    for (int k = 1; k <= twins->nkernel; k++) {
        twins->first[k] = ++next;
        if (!twins->ends[k] && k < twins->nkernel)
            continue;
        for (; from <= k; from++)
            twins->second[from] = twins->twice[from] ? ++next : 0;
    }
}

/* ---- twins --------------------------------------------------------------- */

static Node *twin_of(const Twins *twins, Node *n)
{
    return twins->twin[n->id] ? twins->twin[n->id] : n;
}

/* "layers.0.attn.dot.2" as "layers.0.attn.dot'2.2". */
static const char *twin_name(Arena *a, const char *name)
{
    const char *dot = strrchr(name, '.');
    int stem = (int)strlen(name);

    if (dot && strspn(dot + 1, "0123456789") == strlen(dot + 1))
        stem = (int)(dot - name);
    return intern(strf(a, "%.*s'2%s", stem, name, name + stem));
}

/* The number of the second's micro-batch: dp behind the first's. */
static Node *second_micro(Twins *twins, Node *n)
{
    Node *dp =
        g_const(twins->g, n->loc, n->dt, (double)twins->g->mesh->size[Mdp]);
    Node *sum = g_ew(twins->g, Oadd, n->loc, n, dp, NULL);

    g_placed(dp, n);
    g_placed(sum, n);
    sum->reg = dp->reg = REGbody;
    sum->kernel = ++twins->early;
    return sum;
}

static Node *make_twin(Twins *twins, Node *n)
{
    Node **in = alloc(twins->arena, sizeof *in * (size_t)(n->nin + 2)),
         like = *n;

    for (int i = 0; i < n->nin; i++)
        in[i] = twin_of(twins, n->in[i]);
    if (n->op == Oaccum && n->nin == 1)
        in[like.nin++] = twins->last[n->id];
    Node *t = g_copyof(twins->g, &like, in);
    t->map = n->map ? twin_of(twins, n->map) : NULL;
    t->name = n->name ? twin_name(twins->g->arena, n->name) : NULL;
    t->kernel = twins->second[n->kernel];
    if (t->op == Oinput)
        t->at.input.second = 1;
    return t;
}

/* Behind all nodes but those of post, of which this takes the second's sums. */
static void make_twins(Twins *twins)
{
    Node **old = twins->g->node, **post = NULL;
    size_t count = vec_len(old);

    twins->g->node = NULL;
    for (size_t i = 0; i < count; i++)
        if (any_region(old[i]) || old[i]->reg != REGpost)
            vec_push(twins->g->arena, twins->g->node, old[i]);
        else
            vec_push(twins->arena, post, old[i]);
    for (size_t i = 0; i < count; i++)
        if (twins->depends[i])
            twins->twin[i] = is_micro(old[i]) ? second_micro(twins, old[i])
                                              : make_twin(twins, old[i]);
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < old[i]->nin && !twins->depends[i]; k++)
            if (!is_micro(old[i]->in[k]))
                old[i]->in[k] = twin_of(twins, old[i]->in[k]);
        old[i]->kernel = twins->first[old[i]->kernel];
    }
    for (size_t i = 0; i < vec_len(post); i++)
        vec_push(twins->g->arena, twins->g->node, post[i]);
}

/* ---- entry --------------------------------------------------------------- */

static Twins twins_of(Graph *g, Arena *a)
{
    size_t n = vec_len(g->node) + 1, k = 1;
    Twins x = { .g = g, .arena = a };

    g_renumber(g);
    for (size_t i = 0; i + 1 < n; i++) {
        int kernel = g->node[i]->kernel;
        x.nkernel = kernel > x.nkernel ? kernel : x.nkernel;
        x.early += is_micro(g->node[i]);
    }
    k += (size_t)x.nkernel;
    x.depends = alloc(a, n);
    x.counts = alloc(a, n);
    x.last = alloc(a, n * sizeof *x.last);
    x.twin = alloc(a, n * sizeof *x.twin);
    x.twice = alloc(a, k);
    x.ends = alloc(a, k);
    x.first = alloc(a, k * sizeof *x.first);
    x.second = alloc(a, k * sizeof *x.second);
    find_counts(&x);
    find_twice(&x);
    return x;
}

void pass_pair(Graph *g)
{
    if (!g->mesh || !takes_pairs(g))
        return;
    Arena *a = arena_new();
    Twins x = twins_of(g, a);
    const char *why_not = why_unpaired(g);

    if (!why_not && !memchr(x.ends, 1, (size_t)x.nkernel + 1))
        why_not = "they exchange nothing";
    if (why_not) {
        g->turns = TURNSalone;
        why(g, NULL, "micro-batches go one by one: %s", why_not);
    } else {
        find_ends(&x);
        take_turns(&x);
        x.early = 0;
        make_twins(&x);
        g->turns = TURNSpaired;
        g_sort(g);
        why(g, NULL, "two micro-batches go at once");
    }
    arena_free(a);
}
