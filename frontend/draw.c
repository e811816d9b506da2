/* draw.c: a plan as pictures. --html: its memory, one rectangle a buffer,
 * instructions to the right, addresses downwards; --trace: what it is predicted
 * to do on a time line in Chrome's trace format (Perfetto opens it). */
#include <inttypes.h>
#include <string.h>

#include "commands.h"

enum { WIDE = 1400, HIGH = 900 };

static const char *const colours[NBUFCLASS] = {
    [Bparam] = "#4c78a8", [Bstate] = "#72b7b2", [Boptim] = "#9ecae9",
    [Bio] = "#bab0ac",    [Btemp] = "#f58518",  [Bscratch] = "#e45756",
    [Bstash] = "#54a24b",
};

static void put_html(Text *out, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"')
            put(out, "&#%d;", *s);
        else
            putn(out, s, 1);
}

/* ---- memory -------------------------------------------------------------- */

static void rectangle(Text *out, const Role *r, const Program *p, const Buf *b)
{
    double x = 0, w = WIDE, per = (double)WIDE / (p->ninstr ? p->ninstr : 1);
    double y = (double)b->offset / (double)r->arena * HIGH;
    double h = (double)b->bytes / (double)r->arena * HIGH;

    if (b->prog >= 0) {
        x = b->born * per;
        w = (b->dies - b->born + 1) * per;
    }
    put(out,
        "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='%s'><title>",
        x, y, w, h < 0.5 ? 0.5 : h, colours[b->cls]);
    put_html(out, b->name);
    put(out, "\n%" PRId64 " bytes at %" PRId64 ", %s", b->bytes, b->offset,
        bufclasses[b->cls]);
    if (b->prog >= 0)
        put(out, ", instructions %d to %d", b->born, b->dies);
    if (b->file) {
        put(out, "\n");
        put_html(out, b->file);
        put(out, ":%d", b->line);
    }
    put(out, "</title></rect>\n");
}

static void memory(Text *out, const Role *r, int prog)
{
    const Program *p = &r->prog[prog];

    put(out, "<h2>program ");
    put_html(out, programnames[p->kind]);
    put(out,
        "</h2>\n<svg viewBox='0 0 %d %d' width='100%%' stroke='#fff' "
        "stroke-width='0.3'>\n",
        WIDE, HIGH);
    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0 || r->buf[i].prog == prog)
            rectangle(out, r, p, &r->buf[i]);
    put(out, "</svg>\n");
}

/* `summary` is what `show` prints. */
char *draw_memory(const Plan *p, const char *summary, size_t *len)
{
    Text out = { .arena = forever };

    put(&out, "<!doctype html><meta charset='utf-8'><title>");
    put_html(&out, p->model);
    put(&out, "</title><style>body{font:14px sans-serif;margin:2em}</style>\n"
              "<pre>");
    put_html(&out, summary);
    put(&out, "</pre>\n<p>Steps to the right, addresses downwards:");
    for (int c = 0; c < NBUFCLASS; c++)
        put(&out, " <span style='color:%s'>&#9632;</span> %s", colours[c],
            bufclasses[c]);
    put(&out, "</p>\n");
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].nprog; k++)
            memory(&out, &p->role[i], k);
    *len = out.len;
    return out.s;
}

/* ---- time ---------------------------------------------------------------- */

/* A program's streams: where each stands, and when events were recorded. */
typedef struct Lanes {
    int role, program;
    double now[NSTREAM], *event; /* vec, by number */
} Lanes;

static int lane_of(const Lanes *l, StreamKind stream)
{
    return l->program * NSTREAM + (int)stream;
}

/* A stream goes on behind the events that the instruction waits for. */
static double begin_of(const Lanes *l, const Issue *s)
{
    double at = l->now[s->stream];

    for (int i = 0; i < s->nwait; i++)
        if ((size_t)s->wait[i] < vec_len(l->event) && l->event[s->wait[i]] > at)
            at = l->event[s->wait[i]];
    return at;
}

static void event(Text *out, const Instr *s, Lanes *l)
{
    double at = begin_of(l, &s->issue);

    put(out,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
        "\"cat\":\"%s\",\"name\":",
        l->role, lane_of(l, s->issue.stream), 1e6 * at, 1e6 * s->secs,
        instr_info(s->kind)->name);
    put_json(out, s->label ? s->label : instr_info(s->kind)->name);
    put(out, ",\"args\":{\"flops\":%.9g,\"bytes\":%.9g", s->flops, s->bytes);
    if (s->file) {
        put(out, ",\"line\":");
        put_json(out, strf(forever, "%s:%d", s->file, s->line));
    }
    put(out, "}}");
    l->now[s->issue.stream] = at += s->secs;
    while (s->issue.record && vec_len(l->event) <= (size_t)s->issue.record)
        vec_push(forever, l->event, 0);
    if (s->issue.record)
        l->event[s->issue.record] = at;
}

static int is_used(const Program *prog, StreamKind stream)
{
    for (int i = 0; i < prog->ninstr; i++)
        if (prog->instr[i].issue.stream == stream)
            return 1;
    return 0;
}

/* Bodies one after another, as often as a rank runs them; a lane a stream. */
static void timeline(Text *out, const Program *prog, int role, int program)
{
    Lanes l = { .role = role, .program = program };

    for (StreamKind s = 0; s < NSTREAM; s++)
        if (is_used(prog, s))
            put(out,
                ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_"
                "name\",\"args\":{\"name\":\"%s %s\"}}",
                role, lane_of(&l, s), programnames[prog->kind], streamnames[s]);
    for (int f = 0; f < prog->nphase; f++)
        for (int64_t k = 0; k < prog->phase[f].repeat; k++)
            for (int i = 0; i < prog->phase[f].n; i++)
                event(out, &prog->instr[prog->phase[f].first + i], &l);
}

char *draw_time(const Plan *p, size_t *len)
{
    Text out = { .arena = forever };

    put(&out, "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_"
              "name\",\"args\":{\"name\":");
    put_json(&out, strf(forever, "%s, predicted", p->model));
    put(&out, "}}");
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].nprog; k++)
            timeline(&out, &p->role[i].prog[k], i, k);
    put(&out, "\n]}\n");
    *len = out.len;
    return out.s;
}
