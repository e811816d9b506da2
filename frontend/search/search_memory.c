/* search_memory.c: estimates the bytes of a pipeline stage without compiling
 * it. The schedule gives the number of micro-batches of its chunks that are
 * live at once: from F to the end of I, from F to the end of W, and from I to W
 * (only the first two without a split backward). The bytes that units keep for
 * each lifetime are known from short plans (KeptBytes); values within one call
 * count once. A fallback has its whole backward in I. */
#include "search.h"

/* Live micro-batches of one chunk at one time. */
typedef struct Alive {
    int input, weights, between;
} Alive;

struct StageAlive {
    Alive *most; /* vec: the Pareto maxima */
    Alive last;  /* of the last chunk, the maximum of each lifetime */
    int splits;  /* the schedule splits the backward into I and W */
};

static int covers(const Alive *a, const Alive *b)
{
    return a->input >= b->input && a->weights >= b->weights &&
           a->between >= b->between;
}

static void add_moment(Arena *arena, Alive **most, Alive now)
{
    size_t n = 0;

    for (size_t i = 0; i < vec_len(*most); i++)
        if (covers(&(*most)[i], &now))
            return;
    for (size_t i = 0; i < vec_len(*most); i++)
        if (!covers(&now, &(*most)[i]))
            (*most)[n++] = (*most)[i];
    vec_cut(*most, n);
    vec_push(arena, *most, now);
}

/* Adds the micro-batches that work w makes live; its end removes them. */
static void begin(WorkKind w, Alive *now)
{
    now->input += w == WF;
    now->weights += w == WF;
    now->between += w == WI || w == WB;
}

static void end(WorkKind w, Alive *now)
{
    now->input -= w == WI || w == WB;
    now->weights -= w == WW || w == WB;
    now->between -= w == WW || w == WB;
}

static Alive larger(Alive a, Alive b)
{
    return (Alive){ a.input > b.input ? a.input : b.input,
                    a.weights > b.weights ? a.weights : b.weights,
                    a.between > b.between ? a.between : b.between };
}

static void count_stage(Arena *arena, const Schedule *schedule, int rank,
                        StageAlive *out)
{
    const ScheduleEntry *row = schedule->row[rank];
    Alive now = { 0 }, last = { 0 };

    out->splits = schedule_splits(schedule);

    for (size_t i = 0; i < vec_len(row); i++) {
        int is_last = row[i].chunk == schedule->chunks - 1;
        begin(row[i].w, &now);
        add_moment(arena, &out->most, now);
        end(row[i].w, &now);
        if (!is_last)
            continue;
        begin(row[i].w, &last);
        out->last = larger(out->last, last);
        end(row[i].w, &last);
    }
}

/* Micro-batches beyond those that fill the pipeline do not change the
 * maximum. */
static int64_t enough(int64_t pp, int64_t micros)
{
    return micros < 4 * pp ? micros : 3 * pp + micros % pp;
}

const StageAlive *search_alive(Search *search, const Point *point,
                               int64_t micros)
{
    const Alive one = { 1, 1, 1 };
    int64_t pp = point->size[Mpp], n = enough(pp, micros);
    uint64_t key = (uint64_t)((n * 64 + point->vpp) * MAXSCHEDULE) +
                   (uint64_t)point->schedule;
    void **at = table_at_pair(search->alive, (uint64_t)pp, key);
    Arena *scratch;

    if (*at)
        return *at;
    StageAlive *out = *at = alloc(forever, (size_t)pp * sizeof *out);
    if (pp == 1) {
        add_moment(forever, &out->most, one);
        out->last = one;
        return out;
    }
    scratch = arena_new();
    const Schedule *s =
        schedule_make(scratch, key_word_text("fold.schedule", point->schedule),
                      (int)pp, (int)point->vpp, (int)n, NULL);
    for (int i = 0; i < pp; i++)
        count_stage(forever, s, i, &out[i]);
    arena_free(scratch);
    return out;
}

/* ---- bytes --------------------------------------------------------------- */

static double kept_in(const KeptBytes *k, Alive alive, int split)
{
    return split ? k->input * alive.input + k->weights * alive.weights +
                       k->between * alive.between
                 : k->kept * alive.input;
}

/* The peak bytes that a program keeps for micro-batches. k: bytes of the units;
 * ends: bytes of the last chunk only. */
static double most_kept(const StageAlive *stage, const KeptBytes *k,
                        const KeptBytes *ends, int64_t chunks, int split)
{
    double most = 0;

    for (size_t i = 0; i < vec_len(stage->most); i++)
        most = fmax(most, kept_in(k, stage->most[i], split));
    return most / (double)chunks + kept_in(ends, stage->last, split) +
           fmax(fmax(k->once_inside, k->once_outside),
                fmax(ends->once_inside, ends->once_outside));
}

double search_stage_bytes(const StageAlive *alive, int stage,
                          const Point *point, const UnitCost *units,
                          const UnitCost *ends)
{
    const StageAlive *own = &alive[stage];
    double through = units->step.through + ends->step.through;
    double step =
        most_kept(own, &units->step, &ends->step, point->vpp, own->splits);
    double fallback =
        most_kept(own, &units->fallback, &ends->fallback, point->vpp, 0);

    return units->persist + ends->persist +
           fmax(through + fmax(step, fallback),
                units->post_bytes + ends->post_bytes);
}
