/* page_time.c: the time line of a plan for its page (page.html): for each stage
 * a lane with its runs of phases, and a lane per stream for the first run of
 * each phase. A lane is a list of types [gap, time, name], in nanoseconds, and
 * their order, in which [n, [...]] is a part repeated n times: equal layers are
 * stored once. If it is still too large, neighbours shorter than a limit are
 * joined, a few to a span. */
#include "../frontend.h"

enum {
    LANEBYTES = 700000, /* limit of all lanes of a page, bytes */
    ROWBYTES = 300000,  /* limit of lanes with runs of phases, bytes */
    ALLROWS = 30000,    /* limit of runs of phases of all stages */
    JOINED = 4,         /* longest joined span / shortest span */
    PERIOD = 2000       /* limit of spans of a repeated part */
};

typedef struct LaneSpan {
    int64_t gap, time;
    int name;
} LaneSpan;

/* ---- names --------------------------------------------------------------- */

const char *page_path(const Plan *p, const char *path)
{
    const char *model = p->nsource ? p->source[0].file : "";
    size_t n = (size_t)(file_name(model) - model);

    if (*path != '/')
        return path;
    return n && !strncmp(path, model, n) ? path + n : file_name(path);
}

static int page_phase(PageTime *time, const char *name)
{
    size_t i = 0;

    while (i < vec_len(time->phase) && strcmp(time->phase[i], name))
        i++;
    if (i == vec_len(time->phase))
        vec_push(time->arena, time->phase, name);
    return (int)i;
}

static int page_name(PageTime *time, const char *text, int cls,
                     const char *line)
{
    int64_t number;
    PageName x = { pattern_of(text, &number), cls, line };
    const char *key = intern(strf(time->arena, "%s %d %s", x.text, cls, line));
    void **at = table_at(time->at, KEYP(key));

    if (!*at) {
        vec_push(time->arena, time->name, x);
        *at = (void *)(uintptr_t)vec_len(time->name);
    }
    return (int)(uintptr_t)*at - 1;
}

int page_class(const Instr *instr)
{
    return instr->work ? CLASStransfer + (int)instr->work
                       : (int)instr_info(instr->kind)->cls;
}

int page_instr_name(PageTime *time, const Instr *instr)
{
    const char *line =
        instr->file ? strf(time->arena, "%s:%d",
                           page_path(time->plan, instr->file), instr->line)
                    : "";

    return page_name(time, instr_label(instr), page_class(instr), line);
}

/* ---- spans of the program ------------------------------------------------ */

static void note_span(void *context, const InstrSpan *instr_span)
{
    PageTime *time = context;
    PageStage *stage = &time->stage[instr_span->stage];
    const Program *program = stage->program;
    StreamKind stream = instr_span->instr->issue.stream;
    int phase = instr_span->row->phase;

    if (!vec_len(stage->row) || stage->last != instr_span->row) {
        stage->last = instr_span->row;
        if (stage->phase[phase].row < 0)
            stage->phase[phase].row = (int)vec_len(stage->row);
        vec_push(time->arena, stage->row,
                 ((PageRow){ *instr_span->row, instr_span->from,
                             instr_span->from, 0 }));
    }
    PageRow *row = &stage->row[vec_len(stage->row) - 1];
    if (stream == STREAMcompute) {
        row->from = row->works ? row->from : instr_span->from;
        row->end = instr_span->end;
        row->works = 1;
    }
    if (stage->phase[phase].row != (int)vec_len(stage->row) - 1)
        return;
    PageSpan span = { instr_span->from, instr_span->end,
                      page_instr_name(time, instr_span->instr) };
    vec_push(time->arena, stage->phase[phase].lane[stream], span);
    stage->when[instr_span->instr - program->instr] = instr_span->from;
}

PageTime *page_time(Arena *a, const Plan *p)
{
    PageTime *t = alloc(a, sizeof *t);
    Planned planned = plan_time(a, p, PGstep);

    *t = (PageTime){ .arena = a, .plan = p, .at = table_new(a) };
    t->makespan = planned.makespan;
    t->busy = planned.busy;
    t->stage = alloc(a, sizeof *t->stage * (size_t)p->nrole);
    for (int i = 0; i < p->nrole; i++) {
        PageStage *stage = &t->stage[i];
        stage->program = role_program(&p->role[i], PGstep);
        stage->phase =
            alloc(a, sizeof *stage->phase * (size_t)stage->program->nphase);
        stage->when =
            alloc(a, sizeof(double) * (size_t)(stage->program->ninstr + 1));
        for (int f = 0; f < stage->program->nphase; f++)
            stage->phase[f].row = -1;
    }
    plan_watch(p, PGstep, note_span, t);
    return t;
}

/* ---- a lane as text ------------------------------------------------------ */

/* Finds the repeated part at v that saves most. Returns its length; *times: its
 * repetitions. */
static int best_repeat(const int *v, int n, int *times)
{
    int best = 0, most = 0;

    for (int len = 1; len <= n / 2 && len <= PERIOD; len++) {
        int k = 1;
        if (v[len] != v[0])
            continue;
        while ((k + 1) * len <= n &&
               !memcmp(v, v + k * len, sizeof *v * (size_t)len))
            k++;
        if ((k - 1) * len > most) {
            most = (k - 1) * len;
            best = len;
            *times = k;
        }
    }
    return most > 2 ? best : 0;
}

static void put_order(Text *out, const int *v, int n)
{
    int times = 0;

    put(out, "[");
    for (int i = 0; i < n;) {
        int len = best_repeat(v + i, n - i, &times);
        put(out, i ? "," : "");
        if (!len) {
            put_int(out, v[i++]);
            continue;
        }
        put(out, "[%d,", times);
        put_order(out, v + i, len);
        put(out, "]");
        i += len * times;
    }
    put(out, "]");
}

static void put_lane(Text *out, const LaneSpan *span)
{
    Arena *a = arena_new();
    Table *at = table_new(a);
    int n = (int)vec_len(span),
        *order = alloc(a, sizeof(int) * (size_t)(n + 1));
    int types = 0;

    put(out, "{\"type\":[");
    for (int i = 0; i < n; i++) {
        const char *key =
            strf(a, "[%ld,%ld,%d]", span[i].gap, span[i].time, span[i].name);
        void **type = table_at(at, KEYP(intern(key)));
        if (!*type) {
            put(out, "%s%s", types ? "," : "", key);
            *type = (void *)(uintptr_t)++types;
        }
        order[i] = (int)(uintptr_t)*type - 1;
    }
    put(out, "],\"order\":");
    put_order(out, order, n);
    put(out, "}");
    arena_free(a);
}

static int64_t nanoseconds(double secs)
{
    int64_t ns = llround(1e9 * secs);

    return ns > 0 ? ns : 0;
}

/* Returns the spans from `start` on; neighbours below `shortest` seconds are
 * joined and named `others`. */
static LaneSpan *lane_of(PageTime *time, const PageSpan *span, double start,
                         double shortest, int others)
{
    LaneSpan *out = NULL;

    for (size_t i = 0; i < vec_len(span); i++) {
        LaneSpan x = { nanoseconds(span[i].from - start),
                       nanoseconds(span[i].end - span[i].from), span[i].name };
        LaneSpan *last = vec_len(out) ? &out[vec_len(out) - 1] : NULL;
        if (span[i].end - span[i].from < shortest)
            x.name = others;
        start = span[i].end;
        if (last && last->name == others && x.name == others &&
            (double)x.gap < 1e9 * shortest &&
            (double)last->time < JOINED * 1e9 * shortest)
            last->time += x.gap + x.time;
        else
            vec_push(time->arena, out, x);
    }
    return out;
}

static double phase_start(const PagePhase *phase)
{
    double start = INFINITY;

    for (int s = 0; s < NSTREAM; s++)
        if (vec_len(phase->lane[s]) && phase->lane[s]->from < start)
            start = phase->lane[s]->from;
    return start;
}

static void put_phases(Text *out, PageTime *time, const PageStage *stage,
                       double shortest)
{
    int n = 0, others = page_name(time, "short ones", -1, "");

    put(out, "\"phases\":[");
    for (int f = 0; f < stage->program->nphase; f++) {
        const PagePhase *phase = &stage->phase[f];
        int lanes = 0;
        if (phase->row < 0)
            continue;
        put(out, "%s{\"phase\":%d,\"runs\":%ld,\"lanes\":[", n++ ? "," : "",
            page_phase(time, stage->program->phase[f].name),
            phase_runs(stage->program, f));
        for (int s = 0; s < NSTREAM; s++) {
            if (!vec_len(phase->lane[s]))
                continue;
            put(out, "%s[%d,", lanes++ ? "," : "", s);
            put_lane(out, lane_of(time, phase->lane[s], phase_start(phase),
                                  shortest, others));
            put(out, "]");
        }
        put(out, "]}");
    }
    put(out, "]");
}

/* Appends the runs of phases of a stage. Returns the number of spans. */
static size_t put_rows(Text *out, PageTime *time, const PageStage *stage,
                       double coarse)
{
    PageSpan *v = NULL;

    for (size_t i = 0; i < vec_len(stage->row); i++) {
        const PageRow *row = &stage->row[i];
        const Phase *phase = &stage->program->phase[row->slot.phase];
        if (row->works)
            vec_push(time->arena, v,
                     ((PageSpan){ row->from, row->end,
                                  page_phase(time, phase->name) }));
    }
    LaneSpan *lane =
        lane_of(time, v, 0, coarse, page_phase(time, "several runs"));
    put(out, "\"rows\":");
    put_lane(out, lane);
    return vec_len(lane);
}

static double coarser(const PageTime *time, double shortest)
{
    return shortest > 0 ? 2 * shortest : 1e-6 * time->makespan;
}

/* Appends the lanes to v, a text per stage. Returns their bytes; *spans: number
 * of runs. */
static size_t put_all_rows(PageTime *time, Text *v, double coarse,
                           size_t *spans)
{
    size_t bytes = 0;

    *spans = 0;
    for (int i = 0; i < time->plan->nrole; i++) {
        v[i] = (Text){ .arena = time->arena };
        *spans += put_rows(&v[i], time, &time->stage[i], coarse);
        bytes += v[i].len;
    }
    return bytes;
}

char **page_lanes(PageTime *time, double *shortest, double *coarse)
{
    int n = time->plan->nrole;
    Text *rows = alloc(time->arena, sizeof *rows * (size_t)n);
    char **v = alloc(time->arena, sizeof *v * (size_t)n);
    size_t spans, bytes = LANEBYTES + 1;

    *coarse = *shortest = 0;
    while (put_all_rows(time, rows, *coarse, &spans) > ROWBYTES ||
           spans > ALLROWS)
        *coarse = coarser(time, *coarse);
    for (double least = 0; bytes > LANEBYTES; least = coarser(time, least)) {
        bytes = 0;
        *shortest = least;
        for (int i = 0; i < n; i++) {
            Text out = { .arena = time->arena };
            put(&out, "%s,", rows[i].s);
            put_phases(&out, time, &time->stage[i], least);
            v[i] = out.s;
            bytes += out.len;
        }
    }
    return v;
}
