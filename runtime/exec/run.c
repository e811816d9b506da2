/* run.c: runs a program once, checks its results, records its instructions and
 * writes the record as a trace. */
#include "exec.h"

static void set_scalar(const Rank *rank, const Scalar *scalar, double v)
{
    elem_set(scalar->dt, rank->buf[scalar->buf], 0, v);
}

static void set_micro(Exec *exec, const Rank *rank, int64_t micro)
{
    int i = role_value(rank->role, STEPmicro);

    if (i >= 0)
        set_scalar(rank, &rank->role->in[i], first_micro(exec, micro));
}

static void set_scalars(Exec *exec, const Rank *rank, const StepValues *values)
{
    for (int i = 0; i < rank->role->nin; i++) {
        const Scalar *s = &rank->role->in[i];
        if (s->value != STEPmicro)
            set_scalar(rank, s, step_value(exec, values, s->value));
    }
}

void exec_run(Exec *exec, ProgramKind k, const StepValues *values,
              const Feed *feed)
{
    double began = monotonic();

    exec->progress.step = values ? values->step : exec->progress.step;
    if (exec->staged) {
        staged_run(exec, k, values, feed);
        return;
    }
    exec_start(exec, k);
    for (int64_t r = 0; r < exec->comm->n && values; r++)
        set_scalars(exec, &exec->rank[r], values);
    exec->feed = feed;
    exec->micro = set_micro;
    exec_stages(exec);
    exec->dev->finish(exec->on);
    exec->feed = NULL;
    atomic_store_explicit(&exec->progress.now, NULL, memory_order_relaxed);
    exec_times(exec, began);
}

void exec_filled(Exec *exec)
{
    exec_push(exec);
    if (role_prog(&exec->plan->role[0], PGweights) >= 0)
        exec_run(exec, PGweights, NULL, NULL);
}

int exec_exact(Exec *exec, ProgramKind k, const StepValues *values,
               const Feed *feed)
{
    exec_run(exec, k, values, feed);
    if (!program_budgeted(k) || !(exec_result(exec, RESULToverflow) > 0))
        return 0;
    exec_run(exec, PGfallback, values, feed);
    return 1;
}

/* Returns a line if the loss is -infinity, which is valid in other tensors;
 * null: it is not. */
static const char *bad_loss(Exec *exec)
{
    const Role *role = exec->rank[0].role;

    for (int i = 0; i < role->nout; i++) {
        const Buf *b = &role->buf[role->out[i].buf];
        if (role->out[i].result == RESULTterm && isinf(exec_out(exec, i)))
            return strf(exec->mem, "%s is infinite%s", role->out[i].name,
                        place_text(exec->mem, b->file, b->line));
    }
    return NULL;
}

const char *exec_checked(Exec *exec, ProgramKind k, const StepValues *values,
                         const Feed *feed)
{
    look_open(exec);
    exec_exact(exec, k, values, feed);
    look_close(exec);
    return exec->bad ? exec->bad : bad_loss(exec);
}

void exec_record(Exec *exec, ProgramKind program)
{
    int64_t n = 0;

    for (int i = 0; i < exec->nstage && program < NPROGRAM; i++) {
        const Stage *stage = &exec->stage[i];
        int prog = role_prog(stage->rank[0]->role, program);
        const UnrolledProgram *unrolled_program =
            prog < 0 ? NULL : &stage->course[prog];
        for (int k = 0; unrolled_program && k < unrolled_program->nrow; k++)
            n += 1 + stage->rank[0]
                         ->role->prog[prog]
                         .phase[unrolled_program->row[k].phase]
                         .n;
    }
    exec->ran = n ? alloc(exec->mem, (size_t)n * sizeof *exec->ran) : NULL;
    exec->maxmark = 2 * n;
    exec->mark =
        n ? alloc(exec->mem, (size_t)exec->maxmark * sizeof *exec->mark) : NULL;
    exec->maxran = n;
    exec->nran = 0;
}

/* ---- trace of a run ------------------------------------------------------ */

/* Writes one trace event: thread 0 has the rows of the table, then one thread
 * per stream. */
static void put_event(Text *out, const InstrTiming *timing, const char *name,
                      int row, double end)
{
    put(out, "%s{\"name\": ", out->len > 1 ? ",\n" : "\n");
    put_json(out, name);
    put(out,
        ", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": "
        "%.3f, \"args\": {\"micro\": %ld",
        timing->stage, row, timing->start * 1e6, (end - timing->start) * 1e6,
        timing->micro);
}

/* Writes an event's kernel name, line of the model and planned time. */
static void put_facts(Text *out, const Instr *instr)
{
    if (instr && instr->kernel)
        put(out, ", \"kernel\": \"%s\"", instr->kernel);
    if (instr && instr->file) {
        put(out, ", \"at\": ");
        put_json(out, strf(out->arena, "%s:%d", instr->file, instr->line));
    }
    if (instr && instr->secs > 0)
        put(out, ", \"planned us\": %.1f", instr->secs * 1e6);
    put(out, "}}");
}

/* Returns the end of the row that began at record k: that of its last
 * instruction. */
static double row_end(const Exec *exec, int64_t k)
{
    const InstrTiming *row = &exec->ran[k];
    double end = row->start;

    for (k++; k < exec->nran; k++) {
        const InstrTiming *timing = &exec->ran[k];
        if (timing->stage == row->stage && timing->instr < 0)
            break;
        if (timing->stage == row->stage && timing->end > end)
            end = timing->end;
    }
    return end;
}

static const Instr *timed_instr(const Exec *exec, const InstrTiming *timing,
                                ProgramKind program)
{
    const Role *role = &exec->plan->role[timing->stage];

    return timing->instr < 0
               ? NULL
               : &role->prog[role_prog(role, program)].instr[timing->instr];
}

double exec_alone(const Exec *exec, ProgramKind program)
{
    double secs = 0;

    for (int64_t k = 0; k < exec->nran; k++) {
        const Instr *s = timed_instr(exec, &exec->ran[k], program);
        if (s && instr_info(s->kind)->cls < CLASScollective &&
            s->issue.stream == STREAMcompute)
            secs += exec->ran[k].end - exec->ran[k].start;
    }
    return secs;
}

char *exec_trace(Arena *a, const Exec *exec, ProgramKind program, size_t *len)
{
    Text out = { .arena = a };

    put(&out, "[");
    for (int64_t k = 0; k < exec->nran; k++) {
        const InstrTiming *r = &exec->ran[k];
        const Role *role = &exec->plan->role[r->stage];
        const Program *g = &role->prog[role_prog(role, program)];
        const Instr *s = timed_instr(exec, r, program);
        put_event(&out, r,
                  !s         ? g->phase[r->phase].name
                  : s->label ? s->label
                             : instr_info(s->kind)->name,
                  s ? 1 + (int)s->issue.stream : 0,
                  s ? r->end : row_end(exec, k));
        put_facts(&out, s);
    }
    put(&out, "\n]\n");
    *len = out.len;
    return out.s;
}
