/* pair.c: with fold.pair, or if fit.c predicts less time, den and body run two
 * micro-batches at once, so that one computes while the other exchanges rows:
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
 * the second micro-batch's inputs, whose sums continue those of the first. So
 * each sum has the same terms in the same order as without pairs, and no bit
 * changes. Nodes that depend on no data, such as gathered weights, are shared.
 * Twins alternate at collectives: the first micro-batch's kernels up to one,
 * then the same of the second. overlap.c refines the order.
 *
 * Activations of both are live at once: fit.c chooses no pairs if a plan with
 * pairs would have to recompute. */
#include "plan.h"

typedef struct Twins {
    Graph *g;
    Arena *arena;
    char *depends;       /* [id]: depends on data */
    char *counts;        /* [id]: a micro-batch's own number */
    Node **last;         /* [accumulator's id]: last node of its sum */
    Node **twin;         /* [id] */
    int nkernel, early;  /* early: kernels before all others */
    char *twice, *ends;  /* [kernel]: it has a twin; it exchanges data */
    int *first, *second; /* [kernel]: new numbers, its own and its twin's */
} Twins;

/* ---- nodes with twins ---------------------------------------------------- */

static int in_turn(const Node *n)
{
    return n->reg == REGden || n->reg == REGbody;
}

static int is_micro(const Node *n)
{
    return n->op == Ostepval && n->at.stepval.name == STEPmicro;
}

/* Is it a sum over micro-batches, or (accumulate.c) a micro-batch's sum in
 * place of its first term? */
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

/* Has it a twin, but not the value to which it adds in place? */
static int needs_place(const Twins *twins, const Node *n)
{
    return n->op == Oaccum && n->nin > 1 && twins->depends[n->id] &&
           !twins->depends[n->in[1]->id];
}

/* Finds numbers of a micro-batch; values read by post are not. */
static void find_counts(Twins *twins)
{
    for (size_t i = 0; i < vec_len(twins->g->node); i++) {
        const Node *n = twins->g->node[i];
        for (int k = 0; k < n->nin && in_turn(n); k++)
            twins->counts[n->in[k]->id] |= is_micro(n->in[k]);
    }
}

/* Finds kernels with twins. A kernel is copied as a whole, so all its nodes
 * count as depending on data. */
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

/* Finds the ends of sums with several terms (accumulate.c). */
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

/* ---- order --------------------------------------------------------------- */

/* Orders kernels: those of the first micro-batch up to an exchange, then their
 * twins. */
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

/* Returns "layers.0.attn.dot'2.2" for "layers.0.attn.dot.2". */
static const char *twin_name(Arena *a, const char *name)
{
    const char *dot = strrchr(name, '.');
    int stem = (int)strlen(name);

    if (dot && strspn(dot + 1, "0123456789") == strlen(dot + 1))
        stem = (int)(dot - name);
    return intern(strf(a, "%.*s'2%s", stem, name, name + stem));
}

/* Returns the number of the second micro-batch: that of the first plus dp. */
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

/* Adds twins after all nodes except post, which then reads the second's
 * sums. */
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
