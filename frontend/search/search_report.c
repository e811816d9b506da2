/* search_report.c: what `search` says: the best points and why each lost, those
 * one decision away from the best, what was proven, keys to paste. */
#include <jansson.h>

#include "../../ir/settings/keys.h"
#include "search.h"

/* ---- what it says -------------------------------------------------------- */

static const char *const known_words[] = { "scaled", "short", "compiled",
                                           "refused" };

static const char *price_word(const Space *space, const Candidate *candidate)
{
    return was_measured(space, candidate) ? "measured"
                                          : known_words[candidate->known];
}

void put_fold(Text *out, const Point *point)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mpp, Mep, Metp };

    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        if (point->size[axis[i]] > 1)
            put(out, "fold.%s=%lld ", meshnames[axis[i]],
                (long long)point->size[axis[i]]);
    if (point->vpp > 1)
        put(out, "fold.vpp=%lld ", (long long)point->vpp);
    if (point->schedule != SCHEDULE1f1b)
        put(out, "fold.schedule=%s ",
            key_word_text("fold.schedule", point->schedule));
    put(out, "fold.zero=%lld", (long long)point->zero);
}

void put_point(Text *out, const Space *space, const Point *point)
{
    put_fold(out, point);
    put(out, " %s=%lld", space->s.batch_key, (long long)point->batch);
    if (point->more)
        put(out, " %s", point->more);
}

/* What it has more of than the best, in ms: by plans where both have one, else
 * by estimates, whose parts are not those of a plan. */
static void put_reason(Text *out, const Space *space, const Candidate *best,
                       const Candidate *candidate)
{
    int other = candidate->known != PRICEcompiled;
    const Forecast *own = &candidate->f,
                   *least = other ? &best->guess : &best->f;
    const struct {
        const char *what;
        double more;
    } part[] = {
        { "open transfers", own->open - least->open },
        { "waiting stages", own->idle - least->idle },
        { "rebuilding", own->again - least->again },
    };
    double work = own->secs - least->secs;
    int most = 0;

    if (!search_fits(space, candidate)) {
        put(out, "%s %s of %s",
            candidate->known == PRICEcompiled ? "needs" : "estimated",
            bytes_text((int64_t)search_bytes(space, candidate)),
            bytes_text(space->s.limit));
        return;
    }
    for (int i = 0; i < 3; i++) {
        work -= part[i].more;
        most = part[i].more > part[most].more ? i : most;
    }
    if (candidate == best)
        put(out, space->proven ? "the best" : "the best found");
    else if (candidate->known != PRICEcompiled &&
             search_estimate(space, candidate) < best->f.secs)
        put(out, "not compiled");
    else if (work > part[most].more)
        put(out, "kernels and updates +%.3g ms", 1e3 * work);
    else
        put(out, "%s +%.3g ms", part[most].what, 1e3 * part[most].more);
}

static double tokens_per_second(const Space *space, const Candidate *candidate)
{
    return space->s.tokens / search_estimate(space, candidate);
}

static double mfu(const Space *space, const Candidate *candidate)
{
    double peak = space->s.machine.peak * (double)space->s.world;

    return peak > 0 ? space->s.flops / search_estimate(space, candidate) / peak
                    : 0;
}

static void put_row(Text *out, const Space *space, const Candidate *best,
                    const Candidate *candidate)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mdp, Mpp, Mep, Metp };

    if (space->from)
        put(out, "%10.1f", 1e3 * search_predicted(space, candidate));
    put(out, "%10.1f %9.4g %5.1f %7.2f",
        1e3 * search_estimate(space, candidate),
        tokens_per_second(space, candidate), 100 * mfu(space, candidate),
        search_bytes(space, candidate) / 0x1p30);
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        put(out, " %4lld", (long long)candidate->p.size[axis[i]]);
    put(out, " %3lld %-11s %4lld %5lld  %-8s  ", (long long)candidate->p.vpp,
        key_word_text("fold.schedule", candidate->p.schedule),
        (long long)candidate->p.zero, (long long)candidate->p.batch,
        price_word(space, candidate));
    put_reason(out, space, best, candidate);
    put(out, "\n");
}

/* In how many decisions two points differ; dp and edp follow. */
static int differences(const Point *a, const Point *b)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mpp, Mep, Metp };
    int n = (a->vpp != b->vpp || a->schedule != b->schedule) +
            (a->batch != b->batch) + (a->zero != b->zero);

    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        n += a->size[axis[i]] != b->size[axis[i]];
    return n;
}

static void put_table(Text *out, const Space *space, const Candidate *best)
{
    static const char head[] =
        "   ms/step  tokens/s MFU %      GiB   tp   cp   dp   pp   ep  etp vpp "
        "schedule    zero batch  price     why not\n";
    int n = 0, shown = 0;

    put(out, "%s%s", space->from ? " predicted" : "", head);
    for (size_t i = 0; i < vec_len(space->at) && n < SHOWN; i++, n++)
        if (space->at[i].known != PRICErefused) {
            put_row(out, space, best, &space->at[i]);
            shown |= &space->at[i] == best;
        }
    if (!shown)
        put_row(out, space, best, best);
    put(out, "\nneighbours of the best\n");
    n = 0;
    for (size_t i = 0; i < vec_len(space->at) && n < SHOWN; i++)
        if (space->at[i].known != PRICErefused &&
            differences(&best->p, &space->at[i].p) == 1) {
            put_row(out, space, best, &space->at[i]);
            n++;
        }
}

/* Of the plans that were compiled. */
static void put_accuracy(Text *out, const Space *space)
{
    double secs[2] = { HUGE_VAL, 0 }, bytes[2] = { HUGE_VAL, 0 };

    for (size_t i = 0; i < vec_len(space->at); i++) {
        const Candidate *candidate = &space->at[i];
        double t = candidate->f.secs / candidate->guess.secs,
               b = candidate->f.bytes / candidate->guess.bytes;
        if (candidate->known != PRICEcompiled)
            continue;
        secs[0] = fmin(secs[0], t);
        secs[1] = fmax(secs[1], t);
        bytes[0] = fmin(bytes[0], b);
        bytes[1] = fmax(bytes[1], b);
    }
    put(out,
        "Compiled plans take %.2f to %.2f of the time estimated, %.2f to "
        "%.2f of the memory. ",
        secs[0], secs[1], bytes[0], bytes[1]);
}

static void put_verdict(Text *out, const Space *space, const Candidate *best)
{
    size_t known[NPRICE] = { 0 };

    for (size_t i = 0; i < vec_len(space->at); i++)
        known[space->at[i].known]++;
    put(out,
        "\n%zu points: %zu compiled, %zu from short plans, %zu refused; %.1f "
        "s. ",
        space->legal, known[PRICEcompiled], known[PRICEshort],
        known[PRICErefused], search_clock() - space->begun);
    put_accuracy(out, space);
    if (space->proven)
        put(out, "No other point is faster.\n");
    else if (best->f.secs > 10 * search_least(space))
        put(out, "No useful bound of the best time is known.\n");
    else
        put(out,
            "No point can take less than %.1f ms: the best found is at most "
            "%.1f %% above the best.\n",
            1e3 * search_least(space),
            100 * (best->f.secs / search_least(space) - 1));
    if (space->stopped && space->args->seconds > 0)
        put(out,
            "Stopped after --seconds %g: with more time another point may "
            "be found; --seconds 0 waits for it.\n",
            space->args->seconds);
    else if (space->enough > 0 && !space->proven)
        put(out, "Stopped at a plan that takes no more than --within.\n");
    else if (space->stopped)
        put(out, "Stopped at the default budget of work: --seconds 0 goes on "
                 "until no point is left.\n");
    else if (!space->proven)
        put(out, "Stopped as all other points are estimated to take longer.\n");
}

static json_t *json_row(const Space *space, const Candidate *best,
                        const Candidate *candidate)
{
    Text keys = { .arena = forever }, why = { .arena = forever };

    put_point(&keys, space, &candidate->p);
    put_reason(&why, space, best, candidate);
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:I, s:b, s:s, s:s}", "keys",
                     keys.s, "ms", 1e3 * search_estimate(space, candidate),
                     "predicted_ms", 1e3 * search_predicted(space, candidate),
                     "tokens_per_s", tokens_per_second(space, candidate), "mfu",
                     mfu(space, candidate), "bytes",
                     (json_int_t)search_bytes(space, candidate), "fits",
                     search_fits(space, candidate), "price",
                     price_word(space, candidate), "why", why.s);
}

static json_t *json_measured(const MeasuredRun *m)
{
    return json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "run", m->dir, "steps",
                     (json_int_t)m->steps, "measured_ms", 1e3 * m->secs,
                     "predicted_ms", 1e3 * m->predicted, "kernels", m->kernels,
                     "transfers", m->transfers);
}

static void report_json_of(FILE *out, const Space *space, const Candidate *best)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < vec_len(space->at) && i < SHOWN; i++)
        if (space->at[i].known != PRICErefused)
            json_array_append_new(rows, json_row(space, best, &space->at[i]));
    json_t *j =
        json_pack("{s:I, s:b, s:b, s:f, s:f, s:o, s:o}", "points",
                  (json_int_t)space->legal, "proven", space->proven, "stopped",
                  space->stopped, "least_ms", 1e3 * search_least(space),
                  "seconds", search_clock() - space->begun, "best",
                  json_row(space, best, best), "plans", rows);
    if (space->from)
        json_object_set_new(j, "from", json_measured(space->from));
    json_dumpf(j, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(j);
}

/* What the run measured, before the table of what that corrects. */
static void put_measured(Text *out, const Space *space)
{
    const MeasuredRun *m = space->from;

    put(out, "%s: ", m->dir);
    put_point(out, space, &m->point);
    put(out,
        "\nmeasured %.4g ms a step (median of %zu), predicted %.4g: kernels "
        "take %.3f, open transfers %.3f times as long as predicted; ms/step "
        "is corrected by that\n\n",
        1e3 * m->secs, m->steps, 1e3 * m->predicted, m->kernels, m->transfers);
}

static void put_next(Text *out, const Space *space, const Candidate *best)
{
    const MeasuredRun *m = space->from;

    if (was_measured(space, best))
        put(out, "The run's own fold is the best. Again:\n");
    else if (m->here)
        put(out, "Next, %.4g ms a step instead of %.4g:\n", 1e3 * best->f.secs,
            1e3 * m->secs);
    else
        put(out, "Next, %.4g ms a step:\n", 1e3 * best->f.secs);
}

/* ---- while it works ------------------------------------------------------ */

static int is_silent(const Space *space)
{
    return space->runs || space->args->json || space->args->dump;
}

void search_say(Space *space, const Candidate *candidate)
{
    Text t = { .arena = forever };

    search_progress(space);
    if (!candidate || is_silent(space) || candidate->f.secs >= space->said)
        return;
    int estimated = candidate->known < PRICEcompiled;
    put_point(&t, space, &candidate->p);
    fprintf(stderr, "%s%s %.1f ms a step in %.1f s: %s\n",
            isatty(STDERR_FILENO) ? "\r\33[K" : "",
            estimated ? "estimated" : "compiled", 1e3 * candidate->f.secs,
            search_clock() - space->begun, t.s);
    space->said = estimated ? HUGE_VAL : candidate->f.secs;
}

void search_progress(const Space *space)
{
    if (is_silent(space) || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r%.0f s, %zu points", search_clock() - space->begun,
            space->legal);
    if (space->most < HUGE_VAL)
        fprintf(stderr, ", %.0f %% of the budget",
                100 * space->work / space->most);
    fputs("\33[K", stderr);
}

void search_report(FILE *out, const Space *space, const Candidate *best)
{
    Text t = { .arena = forever };

    if (space->args->json) {
        report_json_of(out, space, best);
        return;
    }
    if (isatty(STDERR_FILENO))
        fputs("\r\33[K", stderr);
    if (space->from)
        put_measured(&t, space);
    put_table(&t, space, best);
    put_verdict(&t, space, best);
    if (space->from)
        put_next(&t, space, best);
    put_point(&t, space, &best->p);
    put(&t, "%s%s\n", space->less ? " " : "", space->less ? space->less : "");
    fputs(t.s, out);
}

static void json_points(FILE *out, const Space *space)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < vec_len(space->at); i++)
        json_array_append_new(rows,
                              json_row(space, &space->at[0], &space->at[i]));
    json_t *j = json_pack("{s:I, s:o}", "points", (json_int_t)space->legal,
                          "plans", rows);
    json_dumpf(j, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(j);
}

void search_print_points(FILE *out, const Space *space)
{
    Text t = { .arena = forever };

    if (space->args->json) {
        json_points(out, space);
        return;
    }
    for (size_t i = 0; i < vec_len(space->at); i++) {
        const Candidate *candidate = &space->at[i];
        put(&t, "%12.3f ms %9.2f GiB%s  ",
            1e3 * search_estimate(space, candidate),
            search_bytes(space, candidate) / 0x1p30,
            search_fits(space, candidate) ? "" : ", too large");
        put_point(&t, space, &candidate->p);
        put(&t, "\n");
    }
    put(&t, "%zu points are legal", space->legal);
    if (vec_len(space->at) < space->legal)
        put(&t, ", %zu of them far too large for %s and left out",
            space->legal - vec_len(space->at), bytes_text(space->s.limit));
    put(&t, "; estimated by plans of one layer of each kind\n");
    fputs(t.s, out);
}
