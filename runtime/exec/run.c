/* run.c: a program run once, looked at, recorded; what ran, as a file. */
#include <math.h>
#include <string.h>

#include "exec.h"

static void set_scalar(const Rank *r, const Scalar *s, double v)
{
    elem_set(s->dt, r->buf[s->buf], 0, v);
}

static void set_micro(Exec *x, const Rank *r, int64_t micro)
{
    int i = role_value(r->role, STEPmicro);

    if (i >= 0)
        set_scalar(r, &r->role->in[i], first_micro(x, micro));
}

static void set_scalars(Exec *x, const Rank *r, const StepValues *b)
{
    for (int i = 0; i < r->role->nin; i++) {
        const Scalar *s = &r->role->in[i];
        if (s->value != STEPmicro)
            set_scalar(r, s, step_value(x, b, s->value));
    }
}

void exec_run(Exec *x, ProgramKind k, const StepValues *b, const Feed *feed)
{
    double began = monotonic();

    x->progress.step = b ? b->step : x->progress.step;
    if (x->staged) {
        staged_run(x, k, b, feed);
        return;
    }
    exec_start(x, k);
    for (int64_t r = 0; r < x->comm->n && b; r++)
        set_scalars(x, &x->rank[r], b);
    x->feed = feed;
    x->micro = set_micro;
    exec_stages(x);
    x->dev->finish(x->on);
    x->feed = NULL;
    atomic_store_explicit(&x->progress.now, NULL, memory_order_relaxed);
    exec_times(x, began);
}

int exec_exact(Exec *x, ProgramKind k, const StepValues *b, const Feed *feed)
{
    exec_run(x, k, b, feed);
    if (k != PGstep || !(exec_result(x, RESULToverflow) > 0))
        return 0;
    exec_run(x, PGfallback, b, feed);
    return 1;
}

/* A loss of -infinity, which is no fault in any other tensor. Null: none. */
static const char *bad_loss(Exec *x)
{
    const Role *r = x->rank[0].role;

    for (int i = 0; i < r->nout; i++) {
        const Buf *b = &r->buf[r->out[i].buf];
        if (r->out[i].result == RESULTterm && isinf(exec_out(x, i)))
            return strf(x->mem, "%s is infinite%s", r->out[i].name,
                        place_text(x->mem, b->file, b->line));
    }
    return NULL;
}

const char *exec_checked(Exec *x, ProgramKind k, const StepValues *b,
                         const Feed *feed)
{
    look_open(x);
    exec_exact(x, k, b, feed);
    look_close(x);
    return x->bad ? x->bad : bad_loss(x);
}

void exec_record(Exec *x, ProgramKind program)
{
    int64_t n = 0;

    for (int i = 0; i < x->nstage && program < NPROGRAM; i++) {
        const Stage *s = &x->stage[i];
        int prog = role_prog(s->rank[0]->role, program);
        const UnrolledProgram *c = prog < 0 ? NULL : &s->course[prog];
        for (int k = 0; c && k < c->nrow; k++)
            n += 1 + s->rank[0]->role->prog[prog].phase[c->row[k].phase].n;
    }
    x->ran = n ? alloc(x->mem, (size_t)n * sizeof *x->ran) : NULL;
    x->mark = n ? alloc(x->mem, (size_t)n * sizeof *x->mark) : NULL;
    x->maxran = n;
    x->nran = 0;
}

/* ---- what ran, as a file ------------------------------------------------- */

static void put_event(Text *out, const InstrTiming *r, const char *name,
                      double end)
{
    put(out, "%s{\"name\": ", out->len > 1 ? ",\n" : "\n");
    put_json(out, name);
    put(out,
        ", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": "
        "%.3f, \"args\": {\"micro\": %lld",
        r->stage, r->instr >= 0, r->start * 1e6, (end - r->start) * 1e6,
        (long long)r->micro);
}

/* Further what a user looks for, and the kernel a profiler names. */
static void put_facts(Text *out, const Instr *s)
{
    if (s && s->kernel)
        put(out, ", \"kernel\": \"%s\"", s->kernel);
    if (s && s->file) {
        put(out, ", \"at\": ");
        put_json(out, strf(out->arena, "%s:%d", s->file, s->line));
    }
    if (s && s->secs > 0)
        put(out, ", \"planned us\": %.1f", s->secs * 1e6);
    put(out, "}}");
}

/* Where the row that began at k ends: with its last instruction. */
static double row_end(const Exec *x, int64_t k)
{
    const InstrTiming *row = &x->ran[k];
    double end = row->start;

    for (k++; k < x->nran; k++) {
        const InstrTiming *r = &x->ran[k];
        if (r->stage == row->stage && r->instr < 0)
            break;
        end = r->stage == row->stage ? r->end : end;
    }
    return end;
}

static const Instr *timed_instr(const Exec *x, const InstrTiming *r,
                                ProgramKind program)
{
    const Role *role = &x->plan->role[r->stage];

    return r->instr < 0 ? NULL
                        : &role->prog[role_prog(role, program)].instr[r->instr];
}

double exec_alone(const Exec *x, ProgramKind program)
{
    double secs = 0;

    for (int64_t k = 0; k < x->nran; k++) {
        const Instr *s = timed_instr(x, &x->ran[k], program);
        if (s && instr_info(s->kind)->cls < CLASScollective)
            secs += x->ran[k].end - x->ran[k].start;
    }
    return secs;
}

char *exec_trace(Arena *a, const Exec *x, ProgramKind program, size_t *len)
{
    Text out = { .arena = a };

    put(&out, "[");
    for (int64_t k = 0; k < x->nran; k++) {
        const InstrTiming *r = &x->ran[k];
        const Role *role = &x->plan->role[r->stage];
        const Program *g = &role->prog[role_prog(role, program)];
        const Instr *s = timed_instr(x, r, program);
        put_event(&out, r,
                  !s         ? g->phase[r->phase].name
                  : s->label ? s->label
                             : instr_info(s->kind)->name,
                  s ? r->end : row_end(x, k));
        put_facts(&out, s);
    }
    put(&out, "\n]\n");
    *len = out.len;
    return out.s;
}
