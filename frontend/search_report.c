/* search_report.c: what `search` says: the best points and why each lost, those
 * one decision away from the best, what was proven, keys to paste. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "../ir/keys.h"
#include "frontend.h"

/* ---- what it says -------------------------------------------------------- */

static const char *const known_words[] = { "scaled", "short", "compiled",
                                           "refused" };

void put_fold(Text *out, const Point *p)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mpp, Mep, Metp };

    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        if (p->size[axis[i]] > 1)
            put(out, "fold.%s=%lld ", meshnames[axis[i]],
                (long long)p->size[axis[i]]);
    if (p->vpp > 1)
        put(out, "fold.vpp=%lld ", (long long)p->vpp);
    if (p->schedule != SCHEDULE1f1b)
        put(out, "fold.schedule=%s ",
            key_word_text("fold.schedule", p->schedule));
    put(out, "fold.zero=%lld", (long long)p->zero);
}

void put_point(Text *out, const Space *x, const Point *p)
{
    put_fold(out, p);
    put(out, " %s=%lld", x->s.batch_key, (long long)p->batch);
}

/* What it has more of than the best, in ms: by plans where both have one, else
 * by estimates, whose parts are not those of a plan. */
static void put_reason(Text *out, const Space *x, const Candidate *best,
                       const Candidate *c)
{
    int other = c->known != PRICEcompiled;
    const Forecast *own = &c->f, *least = other ? &best->guess : &best->f;
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

    if (!search_fits(x, c)) {
        put(out, "needs %s of %s", bytes_text((int64_t)search_bytes(x, c)),
            bytes_text(x->s.limit));
        return;
    }
    for (int i = 0; i < 3; i++) {
        work -= part[i].more;
        most = part[i].more > part[most].more ? i : most;
    }
    if (c == best)
        put(out, "the best");
    else if (c->known != PRICEcompiled && search_estimate(x, c) < best->f.secs)
        put(out, "not compiled");
    else if (work > part[most].more)
        put(out, "kernels and updates +%.3g ms", 1e3 * work);
    else
        put(out, "%s +%.3g ms", part[most].what, 1e3 * part[most].more);
}

static double tokens_per_second(const Space *x, const Candidate *c)
{
    return x->s.tokens / search_estimate(x, c);
}

static double mfu(const Space *x, const Candidate *c)
{
    double peak = x->s.machine.peak * (double)x->s.world;

    return peak > 0 ? x->s.flops / search_estimate(x, c) / peak : 0;
}

static void put_row(Text *out, const Space *x, const Candidate *best,
                    const Candidate *c)
{
    static const MeshAxis axis[] = { Mtp, Mcp, Mdp, Mpp, Mep, Metp };

    put(out, "%10.1f %9.4g %5.1f %7.2f", 1e3 * search_estimate(x, c),
        tokens_per_second(x, c), 100 * mfu(x, c), search_bytes(x, c) / 0x1p30);
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        put(out, " %4lld", (long long)c->p.size[axis[i]]);
    put(out, " %3lld %-11s %4lld %5lld  %-8s  ", (long long)c->p.vpp,
        key_word_text("fold.schedule", c->p.schedule), (long long)c->p.zero,
        (long long)c->p.batch, known_words[c->known]);
    put_reason(out, x, best, c);
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

static void put_table(Text *out, const Space *x, const Candidate *best)
{
    static const char head[] =
        "   ms/step  tokens/s MFU %      GiB   tp   cp   dp   pp   ep  etp vpp "
        "schedule    zero batch  price     why not\n";
    int n = 0;

    put(out, "%s", head);
    for (size_t i = 0; i < vec_len(x->at) && n < SHOWN; i++, n++)
        if (x->at[i].known != PRICErefused)
            put_row(out, x, best, &x->at[i]);
    put(out, "\nneighbours of the best\n");
    n = 0;
    for (size_t i = 0; i < vec_len(x->at) && n < SHOWN; i++)
        if (x->at[i].known != PRICErefused &&
            differences(&best->p, &x->at[i].p) == 1) {
            put_row(out, x, best, &x->at[i]);
            n++;
        }
}

/* Of the plans that were compiled. */
static void put_accuracy(Text *out, const Space *x)
{
    double secs[2] = { HUGE_VAL, 0 }, bytes[2] = { HUGE_VAL, 0 };

    for (size_t i = 0; i < vec_len(x->at); i++) {
        const Candidate *c = &x->at[i];
        double t = c->f.secs / c->guess.secs, b = c->f.bytes / c->guess.bytes;
        if (c->known != PRICEcompiled)
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

static void put_verdict(Text *out, const Space *x)
{
    size_t known[NPRICE] = { 0 };

    for (size_t i = 0; i < vec_len(x->at); i++)
        known[x->at[i].known]++;
    put(out,
        "\n%zu points: %zu compiled, %zu from short plans, %zu refused; %.1f "
        "s. ",
        x->legal, known[PRICEcompiled], known[PRICEshort], known[PRICErefused],
        search_clock() - x->begun);
    put_accuracy(out, x);
    if (x->proven)
        put(out, "No other point is faster.\n");
    else
        put(out, "No point can take less than %.1f ms.\n",
            1e3 * search_least(x));
}

static json_t *json_row(const Space *x, const Candidate *best,
                        const Candidate *c)
{
    Text keys = { .arena = forever }, why = { .arena = forever };

    put_point(&keys, x, &c->p);
    put_reason(&why, x, best, c);
    return json_pack("{s:s, s:f, s:f, s:f, s:I, s:b, s:s, s:s}", "keys", keys.s,
                     "ms", 1e3 * search_estimate(x, c), "tokens_per_s",
                     tokens_per_second(x, c), "mfu", mfu(x, c), "bytes",
                     (json_int_t)search_bytes(x, c), "fits", search_fits(x, c),
                     "price", known_words[c->known], "why", why.s);
}

static void report_json_of(FILE *out, const Space *x, const Candidate *best)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < vec_len(x->at) && i < SHOWN; i++)
        if (x->at[i].known != PRICErefused)
            json_array_append_new(rows, json_row(x, best, &x->at[i]));
    json_t *j =
        json_pack("{s:I, s:b, s:f, s:f, s:o, s:o}", "points",
                  (json_int_t)x->legal, "proven", x->proven, "least_ms",
                  1e3 * search_least(x), "seconds", search_clock() - x->begun,
                  "best", json_row(x, best, best), "plans", rows);
    json_dumpf(j, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(j);
}

void search_report(FILE *out, const Space *x, const Candidate *best)
{
    Text t = { .arena = forever };

    if (x->args->json) {
        report_json_of(out, x, best);
        return;
    }
    put_table(&t, x, best);
    put_verdict(&t, x);
    put_point(&t, x, &best->p);
    put(&t, "\n");
    fputs(t.s, out);
}
