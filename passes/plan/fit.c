/* fit.c: how much time a stage of a program pays for memory: as little as makes
 * it fit. It has what `memory`, or the machine, leaves beside what lives in all
 * programs.
 *
 * What is rebuilt instead of kept, and in how many slices logits are made,
 * follows from a price of memory (Graph.price). Where a copy of the stage made
 * at price 0 fits, nothing is rebuilt that costs time. Else a price is sought
 * at which enough less is kept. Layers are alike, so one price makes the same
 * of all of them; the first ones have the next price of the scale, as many as
 * it takes:
 *
 *     kept   |=====.            each step of the scale changes all layers;
 *            |     '==.         a level lies between two of them
 *            |  level --x===.
 *            +-----------------> price
 *
 * Prices are tried by recompute alone, which says what would be kept. Copies
 * are made to the end for the last level of the segment in which one should
 * fit, which tells how much is alive beside what is kept, and for the first
 * that fits by that; if either does not, for the next ones. Levels and segments
 * do not depend on the memory there is, and what fits into less fits into more:
 * with more memory the first level that fits is never a higher one, whatever
 * the layout of buffers does. What a level takes does not depend on the memory
 * either, so the fastest of all that fit is no slower in more of it. Nothing
 * rebuilt is level 0, with values in the host's memory and without. From the
 * first that fits on, of both, levels are made that can be faster: the least
 * that one may take is what nothing rebuilt nor copied does, and a REALth of
 * what it rebuilds; and what one made that keeps no less would take if nothing
 * waited for a copy. So more memory makes no slower plan but where fusion hides
 * more than that. A stage of several is compared by what it takes alone, with
 * all that others send it there; the first level that fits, as it was before,
 * made steps up to 1.4 % longer (4 layers of Mixtral in 2 stages).
 *
 * What a level takes beyond the stage at price 0 is about the same wherever the
 * optimizer is, so each is made once, and the one chosen once more if that was
 * with the optimizer elsewhere.
 *
 * Each price tried is a bound, too: what recompute chooses costs least of all
 * choices at that price, so one that keeps W bytes takes (cost - W) x price
 * seconds at least (a Lagrangian bound: that of the linear program).
 *
 * Before anything is rebuilt, values whose copies take no time wait in the
 * host's memory (emit/offload.c), unless a plan without takes less time. Of the
 * optimizer that is decided for all programs and stages (fit_programs.c).
 *
 * Pairs of micro-batches (kernels/pair.c) are made only where they fit at
 * price 0; unasked, only where a step with them is predicted to take less time.
 * Where nothing fits, the last level is taken. A fallback runs rarely: it pays
 * all or nothing; all, too, where its step rebuilds modules by name or pays. */
#include "../../ir/settings/keys.h"
#include "plan.h"

/* Prices: 0, and from 2^LOWEST seconds a byte on a quarter of an octave each;
 * at the last all is rebuilt that can be. */
enum { LOWEST = -44, PRICES = 32 * 4, LEVELS = 64, SEGMENT = 16 };
enum { REAL = 2 }; /* a level takes at least a REALth of what it rebuilds */
enum { WAITING = 1 << OFFLOADactivations };

typedef struct PricePoint {
    int price, units; /* the first units have the next price */
} PricePoint;

/* Seconds are those beyond the stage at price 0. */
typedef struct Fit {
    ProgramBuilder *made; /* null: with the optimizer elsewhere only */
    PricePoint choice;
    unsigned offloads;      /* are activations among what waits? */
    int64_t bytes;          /* temporaries */
    double secs, unwaiting; /* program_secs, program_unwaiting */
} Fit;

typedef struct FitSearch {
    Graph *g;             /* the stage as pipe left it */
    int64_t room;         /* bytes; INT64_MAX: no limit */
    double most;          /* seconds: a level that takes as long is no use */
    Fit *tried;           /* vec: levels made, wherever the optimizer was */
    const char *turns;    /* why micro-batches go so; null: nothing to say */
    const Scope **unit;   /* vec: in the order of the forward */
    Table *number;        /* unit -> 1 + its index there */
    Graph *free;          /* a copy at price 0, up to what all such share */
    ProgramBuilder *bare; /* at price 0, nothing in the host's memory */
    double bare_secs;     /* of it; 0: not asked */
    double pairs_save; /* seconds of the step, at most, where they do not fit */
    int64_t *kept[PRICES + 1]; /* by number, 0: of no unit; null: not tried */
    Rebuilding rebuilding[PRICES + 1]; /* of these */
} FitSearch;

static double price_at(int i)
{
    double quarter = sqrt(sqrt(2)), price = i ? ldexp(1, LOWEST) : 0;

    for (int k = 1; k < i; k++)
        price *= quarter;
    return price;
}

static void set_price(const FitSearch *search, Graph *graph, PricePoint c)
{
    Table *dear = table_new(graph->arena);

    for (int u = 0; u < c.units; u++)
        *table_at(dear, KEYP(search->unit[u])) = graph;
    graph->price = price_at(c.price);
    graph->dear = c.units ? dear : NULL;
    graph->dear_price = price_at(c.price + 1);
}

static Graph *copy_at(const FitSearch *search, Arena *a, PricePoint c)
{
    Graph *h = stage_copy(a, search->g);

    set_price(search, h, c);
    return h;
}

static ProgramBuilder *make(const FitSearch *search, PricePoint c)
{
    return place_stage(copy_at(search, search->g->arena, c));
}

/* The first pass that asks how micro-batches go, or what is offloaded, is pair;
 * stash asks it of two of them. */
static ProgramBuilder *make_free(FitSearch *search)
{
    Graph *g = search->g;

    if (!search->free) {
        search->free = copy_at(search, g->arena, (PricePoint){ 0 });
        run_up_to(search->free,
                  g->mesh && micro_turns(g) == 2 ? pass_recompute : pass_fuse);
    }
    Graph *h = stage_copy(g->arena, search->free);
    h->turns = g->turns;
    h->offloads = g->offloads;
    return place_stage(h);
}

/* ---- what is kept at a price --------------------------------------------- */

static void find_fit_units(FitSearch *search)
{
    Arena *a = search->g->arena;

    if (search->number)
        return;
    search->number = table_new(a);
    for (size_t i = 0; i < vec_len(search->g->node); i++) {
        const Node *n = search->g->node[i];
        void **at = n->scope->unit && !is_backward(n)
                        ? table_at(search->number, KEYP(n->scope->unit))
                        : NULL;
        if (!at || *at)
            continue;
        vec_push(a, search->unit, n->scope->unit);
        *at = (void *)vec_len(search->unit);
    }
}

static const int64_t *kept_at(FitSearch *search, int price)
{
    if (search->kept[price])
        return search->kept[price];
    Arena *a = arena_new();
    Graph *h = copy_at(search, a, (PricePoint){ price, 0 });

    run_up_to(h, pass_recompute);
    search->kept[price] =
        alloc(search->g->arena,
              (vec_len(search->unit) + 1) * sizeof *search->kept[price]);
    kept_bytes(h, search->number, search->kept[price]);
    search->rebuilding[price] = h->rebuilding;
    arena_free(a);
    return search->kept[price];
}

static int64_t all_kept(FitSearch *search, int price)
{
    const int64_t *kept = kept_at(search, price);
    int64_t sum = 0;

    for (size_t u = 0; u <= vec_len(search->unit); u++)
        sum += kept[u];
    return sum;
}

/* The least price, and the fewest units at the next one, that keep no more. */
static PricePoint choice_for(FitSearch *search, int64_t bytes)
{
    int low = 0, high = PRICES;
    PricePoint c = { 0 };

    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (all_kept(search, middle) > bytes)
            low = middle;
        else
            high = middle;
    }
    const int64_t *from = kept_at(search, low), *to = kept_at(search, high);
    int64_t sum = all_kept(search, low);
    for (c.price = low; sum > bytes && c.units < (int)vec_len(search->unit);) {
        c.units++;
        sum += to[c.units] - from[c.units];
    }
    return sum > bytes ? (PricePoint){ high, 0 } : c;
}

/* ---- the level ----------------------------------------------------------- */

static int same_choice(PricePoint a, PricePoint b)
{
    return a.price == b.price && a.units == b.units;
}

static double bare_secs(FitSearch *search)
{
    if (search->bare && !search->bare_secs)
        search->bare_secs = program_secs(search->bare);
    return search->bare_secs;
}

static Fit make_fit(FitSearch *search, PricePoint c)
{
    ProgramBuilder *made =
        c.price || c.units ? make(search, c) : make_free(search);

    return (Fit){ made,
                  c,
                  search->g->offloads.classes & WAITING,
                  made->prog.transient,
                  program_secs(made) - bare_secs(search),
                  program_unwaiting(made) - bare_secs(search) };
}

static Fit *find_tried(const FitSearch *search, PricePoint c)
{
    for (size_t i = 0; i < vec_len(search->tried); i++)
        if (same_choice(search->tried[i].choice, c) &&
            search->tried[i].offloads ==
                (search->g->offloads.classes & WAITING))
            return &search->tried[i];
    return NULL;
}

static Fit level_of(FitSearch *search, PricePoint c)
{
    const Fit *was = find_tried(search, c);

    if (was)
        return *was;
    Fit l = make_fit(search, c);
    vec_push(search->g->arena, search->tried, l);
    return l;
}

/* Nothing rebuilt, nothing in the host's memory. */
static Fit bare_level(const FitSearch *search)
{
    return (Fit){ .made = search->bare, .bytes = search->bare->prog.transient };
}

/* Bytes that it keeps. */
static int64_t kept_of_level(FitSearch *search, int level)
{
    int64_t all = all_kept(search, 0), span = all - all_kept(search, PRICES);

    return all - (int64_t)((double)span * level / LEVELS);
}

static int fits(const FitSearch *search, Fit l)
{
    return l.bytes <= search->room;
}

/* Bytes that a level takes beside what it keeps. */
static int64_t beside(FitSearch *search, Fit l)
{
    const int64_t *from = kept_at(search, l.choice.price),
                  *to = l.choice.units ? kept_at(search, l.choice.price + 1)
                                       : from;
    int64_t kept = all_kept(search, l.choice.price);

    for (int u = 1; u <= l.choice.units; u++)
        kept += to[u] - from[u];
    return l.bytes - kept;
}

/* The first level from k on that fits if it takes as much beside what it keeps
 * as l. */
static int should_fit(FitSearch *search, int k, Fit l)
{
    int64_t room = search->room - beside(search, l);

    while (k < LEVELS && kept_of_level(search, k) > room)
        k++;
    return k;
}

static Fit make_level(FitSearch *search, int level)
{
    return level_of(search, choice_for(search, kept_of_level(search, level)));
}

static int keeps_no_more(PricePoint a, PricePoint b)
{
    return a.price > b.price || (a.price == b.price && a.units >= b.units);
}

/* Seconds of the step that a level takes at least: what nothing rebuilt does
 * and a REALth of what all its units rebuild at the lower of their prices, for
 * what is rebuilt in the kernel that reads it takes less than by itself; and
 * what any level tried that keeps as much or more would take if nothing waited
 * for a copy from the host's memory. */
static double least_of_level(FitSearch *search, int level)
{
    PricePoint c = choice_for(search, kept_of_level(search, level));
    double least = search->rebuilding[c.price].secs / REAL *
                   (double)program_micros(search->bare);

    for (size_t i = 0; i < vec_len(search->tried); i++)
        if (keeps_no_more(c, search->tried[i].choice))
            least = fmax(least, search->tried[i].unwaiting);
    return least;
}

static int is_no_use(FitSearch *search, int level, double most)
{
    return most < HUGE_VAL && least_of_level(search, level) >= most;
}

/* l, or the first of the levels before it that all fit, one after another. One
 * is made only if it should fit by what the one behind it takes. */
static Fit first_fitting(FitSearch *search, Fit l, int *level)
{
    while (*level > 1 &&
           kept_of_level(search, *level - 1) + beside(search, l) <=
               search->room) {
        Fit before = make_level(search, *level - 1);
        if (!fits(search, before))
            break;
        l = before;
        --*level;
    }
    return l;
}

/* l, which is of this level, or the fastest of those behind it that fit. Where
 * compute waits for copies from the host's memory a level takes more than what
 * it rebuilds, and one behind it may give these more to hide behind. Those are
 * made that may be faster. */
static Fit fastest_from(FitSearch *search, Fit l, int level)
{
    Fit best = l;

    while (level++ < LEVELS) {
        if (is_no_use(search, level, fmin(search->most, best.secs)))
            break;
        l = make_level(search, level);
        if (fits(search, l) && l.secs < best.secs)
            best = l;
    }
    return best;
}

/* The last level of the first segment whose last fits, or of all; from there
 * the first in it that fits, and of those behind that the fastest. */
static Fit search(FitSearch *fit_search, Fit none)
{
    Fit end, l;

    find_fit_units(fit_search);
    int64_t all = kept_of_level(fit_search, 0);
    if (all <= kept_of_level(fit_search, LEVELS))
        return none;
    int low = should_fit(fit_search, 1, none), last = low;
    if (is_no_use(fit_search, low, fit_search->most))
        return none;
    do {
        last += SEGMENT - 1 - (last - 1) % SEGMENT;
        end = make_level(fit_search, last);
    } while (!fits(fit_search, end) && last++ < LEVELS);
    if (!fits(fit_search, end))
        return end;
    low = low > last - SEGMENT ? low : last - SEGMENT + 1;
    low = should_fit(fit_search, low, end);
    for (l = end; low < last; low++) {
        if (is_no_use(fit_search, low, fit_search->most))
            return end;
        l = make_level(fit_search, low);
        if (fits(fit_search, l))
            break;
    }
    l = first_fitting(fit_search, low < last ? l : end, &low);
    l = fastest_from(fit_search, l, low);
    return end.secs < l.secs ? end : l;
}

/* Seconds of a micro-batch, at least, for all choices that keep as little. */
static double least_secs(const FitSearch *search, double kept)
{
    double most = 0;

    for (int i = 1; i <= PRICES; i++)
        if (search->kept[i])
            most =
                fmax(most, (search->rebuilding[i].cost - kept) * price_at(i));
    return most;
}

static void explain(const FitSearch *search, int64_t unpaid, Fit l)
{
    const double gib = 1 << 30;
    const Rebuilding *rebuilding = &l.made->graph->rebuilding;
    PricePoint c = l.choice;

    why(search->g, NULL,
        "temporaries have %.4g GiB: %.4g where nothing that costs time is "
        "rebuilt, %.4g at %.3g ms of a micro-batch for each GiB, %.3g in the "
        "first %d layers",
        (double)search->room / gib, (double)unpaid / gib, (double)l.bytes / gib,
        1e3 * gib * price_at(c.price),
        1e3 * gib * price_at(c.price + (c.units > 0)), c.units);
    if (search->unit)
        why(search->g, NULL,
            "rebuilding takes %.5g ms of a micro-batch; whatever else is kept, "
            "of as many bytes, it takes at least %.5g",
            1e3 * rebuilding->secs, 1e3 * least_secs(search, rebuilding->kept));
}

/* ---- pairs of micro-batches ---------------------------------------------- */

/* With pairs, if there are any: their inputs live always. */
static int pairs_fit(const FitSearch *search, const ProgramBuilder *made)
{
    Arena *a = made->arena;
    int64_t inputs =
        lasting_bytes(a, &made->graph, 1) - lasting_bytes(a, &search->g, 1);

    return !made->pair || made->prog.transient <= search->room - inputs;
}

static ProgramBuilder *make_turns(FitSearch *search, Turns turns)
{
    search->g->turns = turns;
    return make_free(search);
}

/* As asked for, where they fit. */
static ProgramBuilder *asked_pairs(FitSearch *search)
{
    ProgramBuilder *two = make_turns(search, TURNSpairs);

    if (pairs_fit(search, two))
        return two;
    search->turns =
        "micro-batches go one by one: the plan of pairs would have to "
        "rebuild values";
    return make_turns(search, TURNSalone);
}

enum { LITTLE = 100 };

/* A second copy is made only where transfers of bodies that nothing hides take
 * more than a LITTLEth of the step: pairs can save no more. */
static ProgramBuilder *cheaper_turns(FitSearch *search)
{
    ProgramBuilder *one = make_turns(search, TURNSalone), *two;
    double secs = program_secs(one), both = 0, unhidden = program_unhidden(one);
    Arena *a = one->arena;

    if (unhidden * LITTLE <= secs)
        return one;
    search->pairs_save = unhidden;
    if (one->prog.transient > search->room)
        return one;
    two = make_turns(search, TURNSpairs);
    search->pairs_save = two->pair ? fmax(secs - program_secs(two), 0) : 0;
    if (two->pair && pairs_fit(search, two))
        both = program_secs(two);
    int better = both > 0 && both < secs;
    const char *other = both > 0    ? strf(a, "%.4g in pairs", 1e3 * both)
                        : two->pair ? "pairs do not fit"
                                    : "there is nothing to pair";
    search->turns =
        strf(a, "micro-batches go %s: %.4g ms a step one by one, %s",
             better ? "in pairs" : "one by one", 1e3 * secs, other);
    if (better) {
        search->pairs_save = 0;
        return two;
    }
    search->g->turns = TURNSalone;
    return one;
}

/* `first`, which fits, is level 0; where copies make it wait one behind it may
 * be faster. */
static Fit free_or_faster(FitSearch *s, Fit first)
{
    if (s->g->prog == PGfallback || first.secs <= 0)
        return first;
    find_fit_units(s);
    return fastest_from(s, first, 0);
}

/* What fits of a stage whose level 0 is `first`. */
static Fit fit_from(FitSearch *s, Fit first)
{
    const Graph *g = s->g;
    int named = g->prog == PGfallback && opts_words(g->opts, "train.recompute");

    if (fits(s, first) && !named)
        return free_or_faster(s, first);
    return g->prog == PGfallback ? level_of(s, (PricePoint){ PRICES, 0 })
                                 : search(s, first);
}

/* With activations in the host's memory, or without where that takes less time:
 * a copy may make more than it takes away wait. *unpaid: bytes of level 0. */
static Fit fit_offloading(FitSearch *s, int64_t *unpaid)
{
    Fit bare = bare_level(s);

    s->most = HUGE_VAL;
    s->g->offloads.classes |= WAITING;
    Fit first = level_of(s, (PricePoint){ 0 });
    Fit fit = fit_from(s, first);
    *unpaid = first.bytes;
    if (fits(s, fit) && fit.secs <= 0)
        return fit;
    s->g->offloads.classes &= ~WAITING;
    s->most = fits(s, fit) ? fit.secs : HUGE_VAL;
    Fit other = fit_from(s, bare);
    if (fits(s, other) && (!fits(s, fit) || other.secs < fit.secs)) {
        *unpaid = bare.bytes;
        return other;
    }
    s->g->offloads.classes |= WAITING;
    return fit;
}

/* What is kept at a price is the same wherever the optimizer is, for it ends
 * before the first pass that asks. So is, about, what a level takes beyond the
 * stage at price 0. */
static FitSearch *search_of(Graph *g, int64_t room)
{
    void **at = table_at(g->compile->fitted, KEYP(g));
    FitSearch *s = *at ? *at : alloc(g->arena, sizeof *s);

    *at = s;
    s->g = g;
    s->room = room;
    s->most = HUGE_VAL;
    s->bare = NULL;
    s->bare_secs = 0;
    for (size_t i = 0; i < vec_len(s->tried); i++)
        s->tried[i].made = NULL;
    s->turns = NULL;
    s->pairs_save = 0;
    return s;
}

/* What the stage pays, *unpaid: bytes of level 0. What was made with the
 * optimizer elsewhere is made here if it is the choice; it may be none then. */
static Fit fit_to_room(FitSearch *s, int64_t *unpaid)
{
    Graph *g = s->g;

    s->bare = may_pair(g)      ? cheaper_turns(s)
              : takes_pairs(g) ? asked_pairs(s)
                               : make(s, (PricePoint){ 0 });
    int offloads = !fits(s, bare_level(s)) && may_offload(g);
    for (;;) {
        *unpaid = s->bare->prog.transient;
        Fit l =
            offloads ? fit_offloading(s, unpaid) : fit_from(s, bare_level(s));
        if (l.made) {
            l.made->unlimited = s->bare;
            l.made->pairs_save = s->pairs_save;
            return l;
        }
        *find_tried(s, l.choice) = make_fit(s, l.choice);
    }
}

/* A fallback whose step pays; it is not made at price 0. */
static Fit pay_all(FitSearch *s)
{
    if (may_offload(s->g))
        s->g->offloads.classes |= 1u << OFFLOADactivations;
    PricePoint all = { PRICES, 0 };
    Fit l = { .made = make(s, all), .choice = all };
    l.made->unlimited = l.made;
    return l;
}

ProgramBuilder *fit_stage(Graph *g, int64_t room, const ProgramBuilder *step)
{
    FitSearch *s = search_of(g, room);
    CompileOptions *o = &g->compile->options, all = *o;
    int64_t unpaid = 0;

    o->dump = o->stop = NULL;
    o->dot = NULL;
    g->enough = step ? step->prog.transient : 0;
    int pays = step && (step->graph->price > 0 || step->graph->dear);
    Fit l = pays ? pay_all(s) : fit_to_room(s, &unpaid);
    *o = all;
    set_price(s, g, l.choice);
    g->compile->pass = "recompute";
    if (pays)
        why(g, NULL, "all is rebuilt that can be, as its step rebuilds");
    else if (room < INT64_MAX)
        explain(s, unpaid, l);
    g->compile->pass = "pair";
    if (s->turns)
        why(g, NULL, "%s", s->turns);
    return l.made;
}
