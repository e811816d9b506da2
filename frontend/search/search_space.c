/* search_space.c: the points of a search: every fold that the number of ranks
 * and the given settings (pins) allow, with its micro-batches, schedules and
 * ZeRO stages. If there is none, the error suggests the nearest legal
 * settings. */
#include "../../ir/settings/keys.h"
#include "search.h"

enum { CHUNKS = 8, TOKENS = 512, LINKED = 128 }; /* see search_list */
enum { MOSTPIN = 8, NEAR = 64 }; /* kinds of pins; ranks more or fewer */

static int has_points(Space *space, int64_t world, int64_t batch);

/* Reads the pins from the settings; 0 (schedule and zero: -1): free. */
void search_pins(Space *space)
{
    const Opts *opts = space->args->keys;

    for (int a = 0; a < NMESH; a++)
        if (a != Medp)
            space->pin.size[a] =
                opts_int_given(opts, strf(forever, "fold.%s", meshnames[a]));
    space->pin.vpp = opts_int_given(opts, "fold.vpp");
    space->pin.zero =
        opts_given(opts, "fold.zero") ? opts_int(opts, "fold.zero") : -1;
    space->pin.batch = opts_int_given(opts, space->s.batch_key);
    space->pin.schedule =
        opts_given(opts, "fold.schedule")
            ? key_word("fold.schedule", opts_str(opts, "fold.schedule"))
            : -1;
    if (!has_points(space, space->s.world, space->s.batch))
        no_point(space);
    space->legal = 0;
}

/* ---- nearest pins -------------------------------------------------------- */

typedef struct Pin {
    const char *name;
    int64_t *to, none; /* address of the value; value if free */
} Pin;

/* The settings of a point that pins can give. Returns their number. */
static int pins_of(Point *point, Pin *pin)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mdp, Mpp, Metp, Mep };
    int n = 0;

    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        pin[n++] = (Pin){ meshnames[axis[i]], &point->size[axis[i]], 0 };
    pin[n++] = (Pin){ "vpp", &point->vpp, 0 };
    pin[n++] = (Pin){ "zero", &point->zero, -1 };
    return n;
}

/* The nearest legal value of a pin that is left free. */
typedef struct NearPin {
    int pin; /* index; -1: no pin is free */
    int64_t asked, value;
} NearPin;

static void note_near(NearPin *near, Point p, int first)
{
    Pin pin[MOSTPIN];

    if (near->pin < 0)
        return;
    pins_of(&p, pin);
    int64_t value = *pin[near->pin].to;
    if (first || llabs(value - near->asked) < llabs(near->value - near->asked))
        near->value = value;
}

/* ---- the space ----------------------------------------------------------- */

static int may_be(int64_t pin, int64_t v)
{
    return !pin || pin == v;
}

/* Does a schedule allow these chunks and micro-batches? */
static int schedule_takes(const Point *point, int kind, int64_t micros)
{
    int64_t pp = point->size[Mpp];

    switch (kind) {
    case SCHEDULE1f1b: return point->vpp == 1;
    case SCHEDULEinterleaved: return pp > 1 && point->vpp > 1 && micros >= pp;
    case SCHEDULEzerobubble: return pp > 1 && point->vpp == 1;
    default: return pp > 1 && point->vpp == 2 && micros >= 2 * pp;
    }
}

/* Points that need far too much memory are kept only if all do. */
static void add_point(Space *space, const Point *p, const ModelCost cost[NCOST])
{
    Forecast f = search_priced(space, p, cost);
    Candidate candidate = { *p, f, f, PRICEscaled };

    if (!space->least.p.batch || f.bytes < space->least.f.bytes)
        space->least = candidate;
    if (space->s.world <= EXACT || !space->s.limit ||
        f.bytes <= 1.5 * (double)space->s.limit)
        vec_push(forever, space->at, candidate);
}

static void add_schedules(Space *space, Point p, const ModelCost cost[NCOST])
{
    int64_t micros = space->s.batch / (p.batch * p.size[Mdp]);

    for (int kind = SCHEDULE1f1b; kind <= SCHEDULEdualpipev; kind++) {
        if ((space->pin.schedule >= 0 && space->pin.schedule != kind) ||
            !schedule_takes(&p, kind, micros))
            continue;
        p.schedule = kind;
        space->legal++;
        if (cost)
            add_point(space, &p, cost);
        else
            note_near(space->near, p, space->legal == 1);
    }
}

static void add_chunks(Space *space, Point p, const ModelCost ref[2])
{
    const ModelCost *plain = search_plain(space, &p);
    ModelCost cost[NCOST] = { 0 };

    for (int k = 0; ref && k < NCOST; k++)
        if (k < COSTpairs || (plain && plain[k].unit))
            cost[k] = search_scaled(&space->s, &p, &ref[k % COSTpairs],
                                    plain ? &plain[k] : NULL);
    if (ref)
        finish_costs(space, cost);
    int64_t units = space->s.units.nunit + 2, most = units / p.size[Mpp];

    most = p.size[Mpp] == 1                  ? 1
           : space->pin.vpp || most < CHUNKS ? most
                                             : CHUNKS;
    for (p.vpp = 1; p.vpp <= most; p.vpp++)
        if (space->pin.vpp ? p.vpp == space->pin.vpp : !(p.vpp & (p.vpp - 1)))
            add_schedules(space, p, ref ? cost : NULL);
}

static void add_batches(Space *space, Point p, const ModelCost ref[2])
{
    int64_t copies = p.size[Mdp] * p.size[Mcp];

    for (size_t i = 0; i < vec_len(space->s.model); i++) {
        p.batch = space->s.model[i].batch;
        if (space->s.batch % (p.batch * p.size[Mdp]))
            continue;
        for (p.zero = 0; p.zero <= 3; p.zero++)
            if (space->pin.zero >= 0
                    ? p.zero == space->pin.zero
                    : p.zero == 1 || (p.zero > 1 && copies > 1))
                add_chunks(space, p, ref);
    }
    arena_reset(space->s.scratch);
}

static void add_experts(Space *space, Point p, const ModelCost ref[2])
{
    int64_t stage = space->s.world / p.size[Mpp], n = space->s.experts;
    const char *order = opts_str(space->s.model[0].g->opts, "fold.order");

    int64_t most = !n ? 1 : space->pin.size[Metp] ? stage : p.size[Mtp];

    for (int64_t ep = 1; ep <= (n ? n : 1); ep++)
        for (int64_t etp = 1; etp <= stage && etp <= most; etp++) {
            if (stage % (ep * etp) ||
                (p.size[Mtp] % etp && !space->pin.size[Metp]) ||
                !may_be(space->pin.size[Mep], ep) ||
                !may_be(space->pin.size[Metp], etp))
                continue;
            p.size[Mep] = ep;
            p.size[Metp] = etp;
            p.size[Medp] = stage / (ep * etp);
            if (mesh_legal(space->s.world, p.size, order))
                add_batches(space, p, ref);
        }
}

/* The maximal ranks of a mesh axis: the pin, else `free`, at most `most`. */
static int64_t most_ranks(int64_t pin, int64_t free, int64_t most)
{
    int64_t n = pin ? pin : free;

    return n < most ? n : most;
}

static void add_stages(Space *space, Point p, const ModelCost ref[2])
{
    int64_t n = space->s.units.nunit, *size = p.size;
    int64_t cut = size[Mtp] * size[Mcp], rest = space->s.world / cut;
    int64_t pin = space->pin.size[Mpp], most = n ? n + 2 : 1;

    for (int64_t pp = 1; pp <= most && pp <= rest; pp++) {
        if (rest % pp || !may_be(pin, pp))
            continue;
        size[Mpp] = pp;
        size[Mdp] = rest / pp;
        if (may_be(space->pin.size[Mdp], size[Mdp]))
            add_experts(space, p, ref);
    }
}

/* Lists the points. Limits without pins: tp stays within the fast links (LINKED
 * ranks if the machine is unknown); etp divides tp; cp leaves at least TOKENS
 * of a sequence on a rank; at most SEQUENCES in a micro-batch and CHUNKS in a
 * stage, powers of two. */
void search_list(Space *space, const ModelCost ref[2])
{
    int64_t world = space->s.world, seq = space->s.seq;
    const int64_t *pin = space->pin.size;
    int64_t links = space->s.host ? space->s.host : LINKED;
    int64_t tensor = most_ranks(pin[Mtp], links, world);

    for (int64_t tp = 1; tp <= tensor; tp++) {
        int64_t rest = world / tp, free = seq / (TOKENS * tp);
        int64_t most = most_ranks(pin[Mcp], free > 1 ? free : 1, rest);
        for (int64_t cp = 1; cp <= most && world % tp == 0; cp++)
            if (rest % cp == 0 && may_be(pin[Mtp], tp) && may_be(pin[Mcp], cp))
                add_stages(space, (Point){ .size = { [Mtp] = tp, [Mcp] = cp } },
                           ref);
    }
}

/* ---- nothing to choose from ---------------------------------------------- */

/* The nearest legal choice if the pins leave no point: another value of one
 * pin, or another number of ranks; null: none near. */
static const char *nearest_pin(Space *space)
{
    Pin pin[MOSTPIN];
    int n = pins_of(&space->pin, pin);

    for (int i = 0; i < n; i++) {
        NearPin near = { .pin = i, .asked = *pin[i].to };
        if (near.asked == pin[i].none)
            continue;
        *pin[i].to = pin[i].none;
        space->legal = 0;
        space->near = &near;
        search_list(space, NULL);
        *pin[i].to = near.asked;
        if (space->legal)
            return strf(forever, "fold.%s=%lld in place of %lld", pin[i].name,
                        (long long)near.value, (long long)near.asked);
    }
    return NULL;
}

/* Is there a legal point for this number of sequences and ranks? */
static int has_points(Space *space, int64_t world, int64_t batch)
{
    NearPin none = { .pin = -1 };
    Search was = space->s;

    space->s.world = world;
    space->s.batch = batch;
    space->legal = 0;
    space->near = &none;
    if (world > 0)
        search_list(space, NULL);
    space->s = was;
    return space->legal > 0;
}

static const char *nearest_world(Space *space)
{
    int64_t world = space->s.world;

    for (int64_t d = 1; d <= NEAR; d++)
        for (int64_t w = world - d; w <= world + d; w += 2 * d)
            if (has_points(space, w, space->s.batch))
                return strf(forever, "%lld rank%s", (long long)w,
                            w == 1 ? "" : "s");
    return NULL;
}

/* The next larger batch with a legal point, a multiple of dp micro-batches. */
static const char *nearest_batch(Space *space)
{
    int64_t now = space->s.batch, near = INT64_MAX;

    for (int64_t dp = 1; dp <= space->s.world; dp++) {
        int64_t each = dp * space->s.model[0].batch;
        int64_t batch = (now / each + 1) * each;
        if (space->s.world % dp == 0 && batch < near &&
            has_points(space, space->s.world, batch))
            near = batch;
    }
    return near < INT64_MAX ? strf(forever, "train.batch=%lld", (long long)near)
                            : NULL;
}

static int has_pins(Space *space)
{
    Pin pin[MOSTPIN];
    int n = pins_of(&space->pin, pin), any = space->pin.schedule >= 0;

    for (int i = 0; i < n; i++)
        any |= *pin[i].to != pin[i].none;
    return any;
}

/* Reports that there is no point. If the cause can be the pins or the model, a
 * compile reports it. */
void no_point(Space *space)
{
    if (has_pins(space) || has_points(space, space->s.world, space->s.batch))
        compile(search_traced(space, space->s.model[0].batch), space->s.target,
                &(CompileOptions){ .out = stderr });
    const char *near = nearest_pin(space);
    near = near ? near : nearest_world(space);
    const char *batch = nearest_batch(space);
    const char *both = near && batch ? " or " : "";
    near = near ? near : "";
    batch = batch ? batch : "";
    err(NULL,
        "search: %lld ranks and %lld sequences a step (train.batch) have no "
        "legal fold with these keys%s%s%s%s%s",
        (long long)space->s.world, (long long)space->s.batch,
        *near || *batch ? " (nearest legal: " : "", near, both, batch,
        *near || *batch ? ")" : "");
}

static const Candidate *smallest(const Space *space)
{
    const Candidate *best = space->at ? NULL : &space->least;

    for (size_t i = 0; i < vec_len(space->at); i++)
        if (space->at[i].known != PRICErefused &&
            (!best ||
             search_bytes(space, &space->at[i]) < search_bytes(space, best)))
            best = &space->at[i];
    return best;
}

static size_t compiled_points(const Space *space)
{
    size_t n = 0;

    for (size_t i = 0; i < vec_len(space->at); i++)
        n += space->at[i].known >= PRICEcompiled;
    return n;
}

/* Is every point compiled and too large, or are the weights alone too large? */
static int proven_too_large(const Space *space)
{
    const SearchModel *model = &space->s.units;
    double weights = model->ends.dense + model->ends.expert;

    for (int u = 0; u < model->nunit; u++)
        weights += model->shape[model->unit[u].run].dense +
                   model->shape[model->unit[u].run].expert;
    return compiled_points(space) == space->legal ||
           space->s.weight * weights / (double)space->s.world >
               (double)space->s.limit;
}

void nothing_fits(Space *space)
{
    const Candidate *candidate = smallest(space);
    Text t = { .arena = forever };

    if (!candidate)
        no_point(space);
    put_point(&t, space, &candidate->p);
    if (!compiled_points(space) && search_fits(space, candidate))
        err(NULL,
            "search: no plan is compiled yet; estimated %.1f ms: %s "
            "(--seconds 0 goes on)",
            1e3 * search_estimate(space, &space->at[0]), t.s);
    if (proven_too_large(space))
        err(NULL,
            "search: no plan fits into %s of a rank; the least, %s, is that "
            "of %s (pleat compile with these says whose)",
            bytes_text(space->s.limit),
            bytes_text((int64_t)search_bytes(space, candidate)), t.s);
    err(NULL,
        "search: it is not known yet whether a plan fits into %s of a rank: "
        "%zu of %zu points are compiled, and none fits; the least, %s%s, is "
        "that of %s (--seconds 0 compiles more)",
        bytes_text(space->s.limit), compiled_points(space), space->legal,
        candidate->known == PRICEcompiled ? "" : "estimated ",
        bytes_text((int64_t)search_bytes(space, candidate)), t.s);
}

/* ---- a plan that does not fit -------------------------------------------- */

enum { MANY = 3 }; /* proposals */

static Point point_of(const Space *space, const Plan *p)
{
    const Opts *opts = p->opts;
    Point at = { .vpp = opts_int(opts, "fold.vpp"),
                 .zero = opts_int(opts, "fold.zero"),
                 .batch = space->s.model[0].batch,
                 .schedule = (int)opts_pp_schedule(opts) };

    memcpy(at.size, p->mesh->size, sizeof at.size);
    return at;
}

/* Adds the point with twice the ranks of a, if the other axes divide. */
static void add_ranks(const Space *space, Point **v, Point p, MeshAxis a)
{
    const char *order = opts_str(space->s.model[0].g->opts, "fold.order");
    int64_t *n = p.size;

    n[a] *= 2;
    int64_t dense = n[Mtp] * n[Mcp] * n[Mpp], expert = n[Metp] * n[Mep];
    n[Mdp] = space->s.world / dense;
    n[Medp] = space->s.world / n[Mpp] / (expert ? expert : 1);
    if (dense * n[Mdp] == space->s.world &&
        expert * n[Medp] * n[Mpp] == space->s.world && n[Mdp] && n[Medp] &&
        space->s.batch % (p.batch * n[Mdp]) == 0 &&
        (a != Mep || n[Mep] <= space->s.experts) &&
        mesh_legal(space->s.world, n, order))
        vec_push(forever, *v, p);
}

/* Settings that reduce memory, and a key of each that must be free. */
static const struct {
    const char *key, *words;
} settings[] = {
    { "train.offload", "train.offload=activations,moments,masters" },
    { "route.stash", "route.stash=1" },
    { "precision.moments", "precision.moments=bf16" },
};
enum { NSETTINGS = sizeof settings / sizeof *settings };

static int may_set(const Space *space, int i)
{
    return !opts_given(space->s.model[0].g->opts, settings[i].key);
}

/* Adds p with each setting; *all: p with all of them. */
static void add_settings(const Space *space, Point **v, Point p, Point *all)
{
    const char *words = NULL;

    for (int i = 0; i < NSETTINGS; i++)
        if (may_set(space, i)) {
            p.more = settings[i].words;
            vec_push(forever, *v, p);
            words = words ? strf(forever, "%s %s", words, p.more) : p.more;
        }
    all->more = words;
}

/* p with each larger fold.zero, if it is free: the training step is the
 * same. */
static Point *same_steps(const Space *space, Point p)
{
    int copies = p.size[Mdp] * p.size[Mcp] > 1 || p.size[Medp] > 1;
    int free = !opts_given(space->s.model[0].g->opts, "fold.zero");
    Point *v = NULL;

    for (p.zero++; p.zero <= 3 && copies && free; p.zero++)
        vec_push(forever, v, p);
    return v;
}

/* Points that need less memory, one change from p, then several changes. */
static Point *smaller_points(const Space *space, Point p)
{
    static const MeshAxis axis[] = { Mep, Mpp, Mtp, Mcp };
    int copies = p.size[Mdp] * p.size[Mcp] > 1 || p.size[Medp] > 1;
    Point *v = NULL, q = p, all = p;

    for (q.zero = p.zero + 1; q.zero <= 3 && copies; q.zero++)
        vec_push(forever, v, q);
    q = p;
    for (size_t i = 1; i < vec_len(space->s.model); i++) {
        q.batch = space->s.model[i].batch;
        vec_push(forever, v, q);
    }
    add_settings(space, &v, p, &all);
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        add_ranks(space, &v, p, axis[i]);
    all.batch = q.batch;
    if (all.more)
        vec_push(forever, v, all);
    for (all.zero = p.zero + 1; all.zero <= 3 && copies; all.zero++)
        vec_push(forever, v, all);
    return v;
}

static void set_fixes(Space *space, const Plan *p)
{
    Graph *g = search_traced(space, 0);
    const Axis *a = g_role(g, ROLEbatch);

    space->s.world = p->mesh->world;
    space->s.target = target_named(p->target);
    space->s.limit = memory_limit(p->opts, space->s.target);
    space->s.batch_key = a ? strf(forever, "axes.%s", a->name) : NULL;
    search_sizes(space, g);
    vec_push(forever, space->s.model,
             ((SearchTrace){ .batch = a ? a->n : 1, .g = g }));
    space->s.batch = opts_given(p->opts, "train.batch")
                         ? opts_int(p->opts, "train.batch")
                         : space->s.model[0].batch;
    for (int64_t b = 2; a && a->n % b == 0; b *= 2)
        vec_push(forever, space->s.model,
                 ((SearchTrace){ .batch = a->n / b,
                                 .g = search_traced(space, a->n / b) }));
}

/* Neighbours of a point, compiled within the work budget. */
typedef struct Fixes {
    Point *point; /* vec */
    Forecast *forecast;
    char *done; /* JOBdone .. of each */
    int n, made;
} Fixes;

static Fixes compile_fixes(const Space *space, Point *v)
{
    int n = (int)vec_len(v),
        most = (int)(BUDGET / search_whole_work(space, NULL));
    const Point **at = alloc(forever, (size_t)(n + 1) * sizeof *at);
    Fixes x = { .point = v, .n = n };

    most = most < MANY ? MANY : most;
    x.made = n < most ? n : most;
    x.forecast = alloc(forever, (size_t)(n + 1) * sizeof *x.forecast);
    for (int i = 0; i < n; i++)
        at[i] = &v[i];
    x.done = search_whole(&space->s, at, x.made, x.forecast, HUGE_VAL);
    return x;
}

/* Removes the fastest of the compiled plans that fit and returns its index; -1:
 * none. */
static int take_fastest(const Space *space, Fixes *x)
{
    int best = -1;

    for (int i = 0; i < x->made; i++)
        if (x->done[i] == JOBdone && forecast_fits(space, &x->forecast[i]) &&
            (best < 0 || x->forecast[i].secs < x->forecast[best].secs))
            best = i;
    if (best >= 0)
        x->done[best] = JOBrefused;
    return best;
}

const char *search_fix(Text *out, const Args *args, const Plan *p)
{
    Space x = { .args = args, .begun = search_clock() };
    int found = 0, best;

    set_fixes(&x, p);
    if (!x.s.batch_key)
        return NULL;
    Fixes same = compile_fixes(&x, same_steps(&x, point_of(&x, p)));
    best = take_fastest(&x, &same);
    if (best >= 0)
        return strf(forever, "fold.zero=%lld",
                    (long long)same.point[best].zero);
    Fixes all = compile_fixes(&x, smaller_points(&x, point_of(&x, p)));
    for (; found < MANY && (best = take_fastest(&x, &all)) >= 0;) {
        put(out, "%s ", found++ ? "; or" : "\nit fits with");
        put_point(out, &x, &all.point[best]);
        put(out, " (%s, %.1f ms)",
            bytes_text((int64_t)all.forecast[best].bytes),
            1e3 * all.forecast[best].secs);
    }
    if (!found && all.made == all.n)
        put(out,
            "\nno fold or setting next to it fits: %d were compiled; pleat "
            "search goes through all folds",
            all.n + same.n);
    else if (!found)
        put(out,
            "\nit is not known yet whether a fold or setting next to it fits: "
            "%d of %d were compiled; pleat search goes through all folds",
            all.made + same.made, all.n + same.n);
    return NULL;
}
