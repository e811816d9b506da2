/* fit.c: how much time a stage of a program pays for memory: as little as makes
 * it fit. It has what `memory`, or the machine, leaves beside what lives in all
 * programs.
 *
 * What is rebuilt instead of kept, and in how many slices logits are made,
 * follows from Graph.price. Where a copy of the stage made at price 0 fits,
 * nothing is rebuilt that costs time. Else copies are made at prices of a fixed
 * scale, an octave after another up to the first that fits, and then between it
 * and the octave before. A copy that keeps so much that it cannot fit is left
 * before its kernels are made. What fits into less memory fits into more, so
 * more memory never has a higher price, whatever the layout of buffers does.
 * Pairs of micro-batches (kernels/pair.c) are made only where they fit at
 * price 0; unasked, only where a step with them is predicted to take less time.
 * Where nothing fits, the price of the least memory is taken. A fallback runs
 * rarely: it pays all or nothing. */
#include <math.h>
#include <string.h>

#include "passes.h"

/* Prices: 0, and from 2^LOWEST seconds a byte on a quarter of an octave each;
 * at the last all is rebuilt that can be. */
enum { LOWEST = -44, OCTAVE = 4, PRICES = 32 * OCTAVE, MARGIN = 16 };

typedef struct Made { /* at a price */
    uint64_t decided; /* what it decided; 0: not tried */
    int64_t kept;     /* bytes for the backward */
    int64_t bytes;    /* of temporaries; 0: not known, it does not fit */
} Made;

typedef struct FitSearch {
    Graph *g;          /* the stage as pipe left it */
    int64_t room;      /* bytes; INT64_MAX: no limit */
    const char *turns; /* why micro-batches go so; null: nothing to say */
    Made at[PRICES + 1];
} FitSearch;

static double price_at(int i)
{
    double quarter = sqrt(sqrt(2)), price = i ? ldexp(1, LOWEST) : 0;

    for (int k = 1; k < i; k++)
        price *= quarter;
    return price;
}

/* A number for what recompute and logits_chunks made of g. */
static uint64_t decisions(const Graph *g)
{
    uint64_t h = 1;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        h = mix64(mix64(h, n->op), (uint64_t)n->again);
        h = mix64(h, (uint64_t)local_bytes(g, n));
    }
    return h;
}

/* What another price made that decided the same; or null. */
static const Made *like(const FitSearch *s, const Made *m)
{
    for (int i = 0; i <= PRICES; i++)
        if (&s->at[i] != m && s->at[i].decided == m->decided)
            return &s->at[i];
    return NULL;
}

/* Does it keep more than the first did by so much that it neither fits nor
 * takes less than the last price, which is tried first? */
static int is_hopeless(const FitSearch *s, const Made *m)
{
    const Made *first = &s->at[0], *last = &s->at[PRICES];
    int64_t most = last->bytes > s->room ? last->bytes : s->room;

    return m > first && m < last &&
           first->bytes - (first->kept - m->kept) >
               most + first->bytes / MARGIN;
}

/* A copy of the stage in a, at the i-th price. Null: not made to the end. */
static ProgramBuilder *make(FitSearch *s, Arena *a, int i)
{
    Graph *h = stage_copy(a, s->g);
    Made *m = &s->at[i];
    ProgramBuilder *b = NULL;

    h->price = price_at(i);
    h->turns = s->g->turns;
    run_up_to(h, pass_recompute);
    m->decided = mix64(decisions(h), (uint64_t)may_offload(h));
    m->kept = kept_bytes(h);
    const Made *same = like(s, m);
    if (!same && (may_offload(h) || !is_hopeless(s, m)))
        b = place_stage(h);
    m->bytes = b ? b->prog.transient : same ? same->bytes : 0;
    return b;
}

static int fits(FitSearch *s, int i)
{
    Made *m = &s->at[i];
    Arena *a = arena_new();

    if (!m->decided)
        make(s, a, i);
    arena_free(a);
    return m->bytes && m->bytes <= s->room;
}

static int least_bytes(const FitSearch *s)
{
    int best = 0;

    for (int i = 1; i <= PRICES; i++)
        if (s->at[i].bytes && s->at[i].bytes < s->at[best].bytes)
            best = i;
    return best;
}

/* The least price that fits, known to be above 0. */
static int search(FitSearch *s)
{
    int at = OCTAVE, step = OCTAVE;

    if (fits(s, PRICES) && s->g->prog == PGfallback)
        return PRICES;
    for (; !fits(s, at); at += step)
        if (s->at[at].decided == s->at[PRICES].decided)
            return least_bytes(s);
    while (step /= 2)
        if (fits(s, at - step))
            at -= step;
    return at;
}

static void explain(const FitSearch *s, int i)
{
    const double gib = 1 << 30;

    why(s->g, NULL,
        "temporaries have %.4g GiB: %.4g where nothing that costs time is "
        "rebuilt, %.4g at %.3g ms of a micro-batch for each GiB",
        (double)s->room / gib, (double)s->at[0].bytes / gib,
        (double)s->at[i].bytes / gib, 1e3 * gib * price_at(i));
}

/* ---- pairs of micro-batches ---------------------------------------------- */

/* With pairs, if there are any: their inputs live always. */
static int pairs_fit(const FitSearch *s, const ProgramBuilder *made)
{
    Arena *a = made->arena;
    int64_t inputs =
        lasting_bytes(a, &made->graph, 1) - lasting_bytes(a, &s->g, 1);

    return !made->pair || made->prog.transient <= s->room - inputs;
}

static ProgramBuilder *make_turns(FitSearch *s, Turns turns)
{
    s->g->turns = turns;
    s->at[0] = (Made){ 0 };
    return make(s, s->g->arena, 0);
}

/* As asked for, where they fit. */
static ProgramBuilder *asked_pairs(FitSearch *s)
{
    ProgramBuilder *two = make_turns(s, TURNSpairs);

    if (pairs_fit(s, two))
        return two;
    s->turns = "micro-batches go one by one: the plan of pairs would have to "
               "rebuild values";
    return make_turns(s, TURNSalone);
}

enum { LITTLE = 100 };

/* A second copy is made only where transfers of bodies that nothing hides take
 * more than a LITTLEth of the step: pairs can save no more. */
static ProgramBuilder *cheaper_turns(FitSearch *s)
{
    ProgramBuilder *one = make_turns(s, TURNSalone), *two;
    Made made = s->at[0];
    double secs = program_secs(one), both = 0;
    Arena *a = one->arena;

    if (one->prog.transient > s->room || program_unhidden(one) * LITTLE <= secs)
        return one;
    two = make_turns(s, TURNSpairs);
    if (two->pair && pairs_fit(s, two))
        both = program_secs(two);
    int better = both > 0 && both < secs;
    const char *other = both > 0    ? strf(a, "%.4g in pairs", 1e3 * both)
                        : two->pair ? "pairs do not fit"
                                    : "there is nothing to pair";
    s->turns = strf(a, "micro-batches go %s: %.4g ms a step one by one, %s",
                    better ? "in pairs" : "one by one", 1e3 * secs, other);
    if (better)
        return two;
    s->g->turns = TURNSalone;
    s->at[0] = made;
    return one;
}

ProgramBuilder *fit_stage(Graph *g, int64_t room)
{
    FitSearch s = { .g = g, .room = room };
    CompileOptions *o = &g->compile->options, all = *o;

    o->dump = o->stop = NULL;
    o->dot = NULL;
    ProgramBuilder *first = may_pair(g)      ? cheaper_turns(&s)
                            : takes_pairs(g) ? asked_pairs(&s)
                                             : make(&s, g->arena, 0);
    int i = first->prog.transient <= room ? 0 : search(&s);
    *o = all;
    g->price = price_at(i);
    g->compile->pass = "recompute";
    if (room < INT64_MAX)
        explain(&s, i);
    g->compile->pass = "pair";
    if (s.turns)
        why(g, NULL, "%s", s.turns);
    return i ? NULL : first;
}
