/* draw.c: a plan as pictures. --html: its memory, one rectangle a buffer, steps
 * to the right, addresses downwards; --trace: its predicted steps on a time
 * line in Chrome's trace format (Perfetto opens it). */
#include <inttypes.h>
#include <string.h>

#include "commands.h"

enum { WIDE = 1400, HIGH = 900 };

static const char *const colours[NBUFCLASS] = {
    [Bparam] = "#4c78a8", [Bstate] = "#72b7b2", [Boptim] = "#9ecae9",
    [Bio] = "#bab0ac",    [Btemp] = "#f58518",  [Bscratch] = "#e45756",
};

static void put_html(Text *t, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"')
            put(t, "&#%d;", *s);
        else
            putn(t, s, 1);
}

/* ---- memory -------------------------------------------------------------- */

static void rectangle(Text *t, const Role *r, const Program *p, const Buf *b)
{
    double x = 0, w = WIDE, per = (double)WIDE / (p->ninstr ? p->ninstr : 1);
    double y = (double)b->offset / (double)r->arena * HIGH;
    double h = (double)b->bytes / (double)r->arena * HIGH;

    if (b->prog >= 0) {
        x = b->born * per;
        w = (b->dies - b->born + 1) * per;
    }
    put(t,
        "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='%s'>"
        "<title>",
        x, y, w, h < 0.5 ? 0.5 : h, colours[b->cls]);
    put_html(t, b->name);
    put(t, "\n%" PRId64 " bytes at %" PRId64 ", %s", b->bytes, b->offset,
        bufclasses[b->cls]);
    if (b->prog >= 0)
        put(t, ", steps %d to %d", b->born, b->dies);
    if (b->file) {
        put(t, "\n");
        put_html(t, b->file);
        put(t, ":%d", b->line);
    }
    put(t, "</title></rect>\n");
}

static void memory(Text *t, const Role *r, int prog)
{
    const Program *p = &r->prog[prog];

    put(t, "<h2>program ");
    put_html(t, programnames[p->kind]);
    put(t,
        "</h2>\n<svg viewBox='0 0 %d %d' width='100%%' stroke='#fff' "
        "stroke-width='0.3'>\n",
        WIDE, HIGH);
    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0 || r->buf[i].prog == prog)
            rectangle(t, r, p, &r->buf[i]);
    put(t, "</svg>\n");
}

/* `summary` is what `show` prints. */
char *draw_memory(const Plan *p, const char *summary, size_t *len)
{
    Text t = { .arena = forever };

    put(&t, "<!doctype html><meta charset='utf-8'><title>");
    put_html(&t, p->model);
    put(&t, "</title><style>body{font:14px sans-serif;margin:2em}</style>\n"
            "<pre>");
    put_html(&t, summary);
    put(&t, "</pre>\n<p>Steps to the right, addresses downwards:");
    for (int c = 0; c < NBUFCLASS; c++)
        put(&t, " <span style='color:%s'>&#9632;</span> %s", colours[c],
            bufclasses[c]);
    put(&t, "</p>\n");
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].nprog; k++)
            memory(&t, &p->role[i], k);
    *len = t.len;
    return t.s;
}

/* ---- time ---------------------------------------------------------------- */

static void event(Text *t, const Instr *s, int role, int program, double *at)
{
    put(t,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
        "\"cat\":\"%s\",\"name\":",
        role, program, 1e6 * *at, 1e6 * s->secs, instr_info(s->kind)->name);
    put_json(t, s->label ? s->label : instr_info(s->kind)->name);
    put(t, ",\"args\":{\"flops\":%.9g,\"bytes\":%.9g", s->flops, s->bytes);
    if (s->file) {
        put(t, ",\"line\":");
        put_json(t, strf(forever, "%s:%d", s->file, s->line));
    }
    put(t, "}}");
    *at += s->secs;
}

/* Bodies one after another, as often as a rank runs them. */
static void timeline(Text *t, const Program *p, int role, int program)
{
    double at = 0;

    put(t,
        ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
        "\"args\":{\"name\":\"%s\"}}",
        role, program, programnames[p->kind]);
    for (int f = 0; f < p->nphase; f++)
        for (int64_t k = 0; k < p->phase[f].repeat; k++)
            for (int i = 0; i < p->phase[f].n; i++)
                event(t, &p->instr[p->phase[f].first + i], role, program, &at);
}

char *draw_time(const Plan *p, size_t *len)
{
    Text t = { .arena = forever };

    put(&t, "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":"
            "\"process_name\",\"args\":{\"name\":");
    put_json(&t, strf(forever, "%s, predicted", p->model));
    put(&t, "}}");
    for (int i = 0; i < p->nrole; i++)
        for (int k = 0; k < p->role[i].nprog; k++)
            timeline(&t, &p->role[i].prog[k], i, k);
    put(&t, "\n]}\n");
    *len = t.len;
    return t.s;
}
