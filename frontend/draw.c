/* draw.c: `show --trace`: what a plan is predicted to do, on a time line in
 * Chrome's trace format (Perfetto opens it). */
#include <inttypes.h>
#include <string.h>

#include "commands.h"

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
