/* draw.c: `show --trace`: writes the predicted time line of a plan in Chrome's
 * trace format (for Perfetto): a process per stage, a lane per stream of each
 * program, and the first micro-batches of a pipeline. */
#include <inttypes.h>

#include "../commands.h"

enum { MICROS = 4 };

typedef struct TraceText {
    Text *out;
    const Plan *plan;
    ProgramKind kind;
} TraceText;

static int lane_of(ProgramKind kind, StreamKind stream)
{
    return (int)kind * NSTREAM + (int)stream;
}

static void put_span(void *context, const InstrSpan *span)
{
    const TraceText *text = context;
    const Program *g = role_program(&text->plan->role[span->stage], text->kind);
    const Instr *instr = span->instr;

    if (!g->phase[span->row->phase].repeat && span->row->micro >= MICROS)
        return;
    put(text->out,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
        "\"cat\":\"%s\",\"name\":",
        span->stage, lane_of(text->kind, instr->issue.stream), 1e6 * span->from,
        1e6 * (span->end - span->from), instr_info(instr->kind)->name);
    put_json(text->out, instr_label(instr));
    put(text->out, ",\"args\":{\"micro\":%d,\"flops\":%.9g,\"bytes\":%.9g",
        span->row->micro, instr->flops, instr->bytes);
    if (instr->file) {
        put(text->out, ",\"line\":");
        put_json(text->out, strf(forever, "%s:%d", instr->file, instr->line));
    }
    put(text->out, "}}");
}

static int is_used(const Program *prog, StreamKind stream)
{
    for (int i = 0; i < prog->ninstr; i++)
        if (prog->instr[i].issue.stream == stream)
            return 1;
    return 0;
}

static void name_lanes(Text *out, const Program *prog, int role)
{
    for (StreamKind s = 0; s < NSTREAM; s++)
        if (is_used(prog, s))
            put(out,
                ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_"
                "name\",\"args\":{\"name\":\"%s %s\"}}",
                role, lane_of(prog->kind, s), programnames[prog->kind],
                streamnames[s]);
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
            name_lanes(&out, &p->role[i].prog[k], i);
    for (int k = 0; k < p->role->nprog; k++) {
        TraceText t = { &out, p, p->role->prog[k].kind };
        plan_watch(p, t.kind, put_span, &t);
    }
    put(&out, "\n]}\n");
    *len = out.len;
    return out.s;
}
