/* fit.c: fits a stage of a program into memory at the least cost in time. The
 * limit is `memory`, or the machine's memory, less the tensors that live in all
 * programs.
 *
 * A price of memory (Graph.price, seconds a byte) determines which values are
 * recomputed and the number of logits slices. If a copy of the stage compiled
 * at price 0 fits, nothing that costs time is recomputed. Otherwise a price is
 * searched at which enough bytes are freed. Layers are alike: one price makes
 * the same choice in all layers. A level is a price and the number of first
 * layers that have the next price of the scale:
 *
 *     kept   |=====.            each step of the scale changes all layers;
 *            |     '==.         a level lies between two steps
 *            |  level --x===.
 *            +-----------------> price
 *
 * Prices are tried with recompute alone, which gives the kept bytes. Levels are
 * grouped in segments. A complete compile of the last level of the first
 * segment that should fit measures the bytes beside the kept ones; the first
 * level that fits by that measurement is compiled next. If either does not fit,
 * the next ones are compiled. Levels and segments do not depend on the limit,
 * so with more memory the first level that fits is never a higher one. The time
 * of a level does not depend on the limit either, so the fastest fitting level
 * is no slower with more memory. Level 0 recomputes nothing, with and without
 * activation offload. From the first fitting level of both, the levels that can
 * be faster are compiled: the lower bound of a level's time is the time without
 * recomputation and copies plus 1 / REAL of its recomputation, and the time
 * without copy waits of any compiled level that keeps at least as many bytes.
 * Thus more memory makes a plan slower only where fusion hides more than that.
 * A pipeline stage is compared by its time alone, all transfers included.
 *
 * The time of a level beyond price 0 depends little on the offload of the
 * optimizer, so each level is compiled once, and the chosen one again if its
 * compile had another offload.
 *
 * Each tried price is also a lower bound: recompute's choice has the least cost
 * at that price, so a choice that keeps W bytes takes at least
 * (cost - W) x price seconds (Lagrangian bound of the linear program).
 *
 * Activations whose copies cost no time are offloaded before anything is
 * recomputed (emit/offload.c), unless a plan without offload is faster.
 * fit_programs.c decides the offload of the optimizer for all programs and
 * stages.
 *
 * Pairs of micro-batches (kernels/pair.c) are used only if they fit at price 0;
 * by default only if the predicted step is faster with them. If no level fits,
 * the last one is taken. A fallback runs rarely: it recomputes all or nothing;
 * all, too, if its step recomputes modules by name or pays. */
#include "../../ir/settings/keys.h"
#include "plan.h"

/* The scale of prices: 0, then 2^LOWEST seconds a byte and four steps an
 * octave; at the last price everything that can be is recomputed. */
enum { LOWEST = -44, PRICES = 32 * 4, LEVELS = 64, SEGMENT = 16 };
enum { REAL = 2 }; /* at least 1 / REAL of recomputation is not hidden */
enum { WAITING = 1 << OFFLOADactivations };

typedef struct PricePoint {
    int price, units; /* the first units have the next price */
} PricePoint;

/* Seconds are relative to the stage at price 0. */
typedef struct Fit {
    ProgramBuilder *made; /* null: compiled with another optimizer offload */
    PricePoint choice;
    unsigned offloads;      /* are activations offloaded? */
    int64_t bytes;          /* temporaries */
    double secs, unwaiting; /* program_secs, program_unwaiting */
} Fit;

typedef struct FitSearch {
    Graph *g;             /* the stage as pipe left it */
    int64_t room;         /* bytes; INT64_MAX: no limit */
    double most;          /* seconds: levels must take less */
    Fit *tried;           /* vec of compiled levels, any optimizer offload */
    const char *turns;    /* reason of the micro-batch order; null: none */
    const Scope **unit;   /* vec, in forward order */
    Table *number;        /* unit -> 1 + its index in `unit` */
    Graph *free;          /* copy at price 0 before the first pass that asks */
    ProgramBuilder *bare; /* price 0, no offload */
    double bare_secs;     /* of `bare`; 0: not computed */
    double pairs_save;    /* seconds that pairs without room save at most */
    int64_t *kept[PRICES + 1]; /* by unit number, 0: no unit; null: not tried */
    Rebuilding rebuilding[PRICES + 1]; /* by price */
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

/* The first pass that reads the micro-batch order or the offload is pair; with
 * pairs, stash. */
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

/* ---- bytes kept at a price ----------------------------------------------- */

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

/* The least price, with the fewest units at the next one, that keeps at most
 * `bytes`. */
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

/* The level without recomputation and offload. */
static Fit bare_level(const FitSearch *search)
{
    return (Fit){ .made = search->bare, .bytes = search->bare->prog.transient };
}

/* Bytes that a level keeps. */
static int64_t kept_of_level(FitSearch *search, int level)
{
    int64_t all = all_kept(search, 0), span = all - all_kept(search, PRICES);

    return all - (int64_t)((double)span * level / LEVELS);
}

static int fits(const FitSearch *search, Fit l)
{
    return l.bytes <= search->room;
}

/* Bytes of a level's temporaries beside the kept values. */
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

/* The first level from k on that fits with l's bytes beside the kept values. */
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

/* Lower bound of a level's seconds: the step without recomputation plus 1 /
 * REAL of the recomputation at the lower price of its units (recomputation
 * fused into a reader costs less than its own kernel); and the time without
 * copy waits of each tried level that keeps at least as many bytes. */
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

/* l, or the first of the consecutive levels before it that all fit. A level is
 * compiled only if it should fit by the measurement of its successor. */
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

/* l, whose level is `level`, or the fastest fitting level after it. A level
 * whose compute waits for offload copies can be slower than a later level whose
 * recomputation hides them. Levels whose lower bound is not faster are not
 * compiled. */
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

/* Finds the first segment whose last level fits (else the last segment), the
 * first fitting level in it, and the fastest from there. */
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

/* Lower bound of a micro-batch's seconds over all choices that keep at most
 * `kept` bytes. */
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

/* Does the program fit with pairs? Their inputs are persistent. */
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

/* The requested pairs, if they fit. */
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

/* Pairs are compiled only if the exposed transfers of bodies exceed 1 / LITTLE
 * of the step: pairs can save no more than those. */
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

/* `first` is level 0 and fits; if its compute waits for copies, a later level
 * may be faster. */
static Fit free_or_faster(FitSearch *s, Fit first)
{
    if (s->g->prog == PGfallback || first.secs <= 0)
        return first;
    find_fit_units(s);
    return fastest_from(s, first, 0);
}

/* The chosen level of a stage whose level 0 is `first`. */
static Fit fit_from(FitSearch *s, Fit first)
{
    const Graph *g = s->g;
    int named = g->prog == PGfallback && opts_words(g->opts, "train.recompute");

    if (fits(s, first) && !named)
        return free_or_faster(s, first);
    return g->prog == PGfallback ? level_of(s, (PricePoint){ PRICES, 0 })
                                 : search(s, first);
}

/* The faster of the stage with and without activation offload. *unpaid: bytes
 * of level 0. */
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

/* The search of a stage, shared by all optimizer offloads: the kept bytes of a
 * price do not depend on them, and the cost of a level depends little. */
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

/* Chooses the level of a stage. *unpaid: bytes of level 0. A choice compiled
 * with another optimizer offload is compiled again; it may then not fit. */
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

/* A fallback at the last price, for a step that pays. */
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
