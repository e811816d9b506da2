/* programtext.c: programs of a plan as text; plantext.c has the grammar. */
#include <string.h>

#include "plan.h"

/* ---- instructions -------------------------------------------------------- */

static void use_text(Codec *t, ValueUse *f)
{
    static const char *const marks[] = { "+", "^", "_" };

    if (t->in)
        *f = (ValueUse){ .as = -1, .shape = -1 };
    if (code_mark(t, "-", !f->read && !f->make))
        return;
    if (code_mark(t, "=", f->read < 0))
        f->read = ~(int)code_digits(t, "buffer", 0, INT32_MAX, ~f->read);
    else if (t->in ? lex_more(t->in) && lex_isdigit(*t->in->p) : f->read)
        f->read = (int)code_digits(t, "value", 1, INT32_MAX, f->read);
    if (code_mark(t, "/", f->read && f->as >= 0))
        f->as = (int)code_digits(t, "shape", 0, INT32_MAX, f->as);
    if (!code_mark(t, ">", f->make))
        return;
    f->make = (int)code_digits(t, "value", 1, INT32_MAX, f->make);
    code_need(t, ":");
    f->shape = (int)code_digits(t, "shape", 0, INT32_MAX, f->shape);
    for (int k = 0; k < 3; k++)
        if (code_mark(t, marks[k], f->part[k] != 0))
            f->part[k] =
                (uint32_t)code_digits(t, "group", 1, UINT32_MAX, f->part[k]);
}

static ValueUse *flow_text(Codec *t, ValueUse *flow, int n)
{
    if (t->in)
        flow = alloc(t->in->arena, (size_t)(n + 1) * sizeof *flow);
    else
        putn(t->out, " ", 1);
    for (int i = 0; i < n; i++) {
        ValueUse use = flow[i];
        if (i)
            code_need(t, ",");
        use_text(t, &use);
        if (t->in)
            flow[i] = use;
    }
    return flow;
}

static InstrKind kind_text(Codec *t, InstrKind kind)
{
    const char *s = code_word(t, instr_info(kind)->name);
    for (int i = 0; i < NINSTR; i++)
        if (!strcmp(instr_info((InstrKind)i)->name, s))
            return (InstrKind)i;
    lex_err(t->in, "no instruction '%s'", s);
}

static void instr_text(Codec *t, Instr *s)
{
    s->kind = kind_text(t, s->kind);
    s->label = code_word(t, s->label);
    args_text(t, s);
    if (code_option(t, "v", s->flow && s->nbuf))
        s->flow = flow_text(t, s->flow, s->nbuf);
    s->inner = code_atoms(t, "inner", s->inner);
    s->spread = code_atoms(t, "spread", s->spread);
    s->atoms = code_atoms(t, "g", s->atoms);
    issue_text(t, &s->issue);
    if (code_option(t, "c", s->flops != 0 || s->bytes != 0 || s->secs != 0)) {
        s->flops = code_num(t, s->flops);
        s->bytes = code_num(t, s->bytes);
        s->secs = code_num(t, s->secs);
        if (code_option(t, "again", s->again != 0))
            s->again = code_num(t, s->again);
        s->experts = code_option(t, "experts", s->experts);
    }
    code_place(t, &s->file, &s->line);
}

/* ---- programs ------------------------------------------------------------ */

static void phase_text(Codec *t, Phase *f)
{
    const char *name = code_word(t, f->name);

    if (t->in && !phase_named(t->in->arena, name, f))
        lex_err(t->in, "no phase '%s'", name);
    f->first = code_index(t, "first instruction", f->first);
    f->n = code_index(t, "count", f->n);
    f->repeat = code_range(t, "micro-batches", 0, MAXMICROS, f->repeat);
    f->pair = code_option(t, "pair", f->pair);
    code_end(t);
}

/* A row of a table: the phase, "=" micro-batch where that is not the one after
 * the phase's last (next, by phase), "&" when it may overlap with the next. */
static void slot_text(Codec *t, ScheduleSlot *s, int *next, int nphase)
{
    s->phase = code_index(t, "phase", s->phase);
    if (t->in && (s->phase < 0 || s->phase >= nphase))
        lex_err(t->in, "phase %d of %d", s->phase, nphase);
    if (code_mark(t, " = ", s->micro != next[s->phase]))
        s->micro =
            (int)code_range(t, "micro-batch", 0, MAXMICROS - 1, s->micro);
    else
        s->micro = next[s->phase];
    s->pair = code_mark(t, " &", s->pair);
    next[s->phase] = s->micro + 1;
}

/* Does a line of a list begin, which has so many items? */
static int row_of(Codec *t, const char *s, int i, int n, int per_line)
{
    if (t->in ? lex_more(t->in) && i : i < n && i % per_line)
        return 1;
    if (i)
        code_end(t);
    return code_option(t, s, i < n);
}

static void slots_text(Codec *t, Program *prog)
{
    enum { PERLINE = 32 };
    Arena *a = t->in ? t->in->arena : t->out->arena;
    int *next = alloc(a, sizeof *next * (size_t)(prog->nphase + 1));

    for (int i = 0; row_of(t, "slots", i, prog->nslot, PERLINE); i++) {
        ScheduleSlot *slot = code_at(t, prog->slot, prog->nslot, i);
        slot_text(t, slot, next, prog->nphase);
    }
}

static void frame_text(Codec *t, SlotGroup *f)
{
    f->name = code_word(t, f->name);
    f->bytes = code_int(t, f->bytes);
    code_expect(t, "s");
    for (int i = 0; code_number_next(t, i, f->nslot); i++) {
        int64_t *slot = code_at(t, f->slot, f->nslot, i);
        *slot = code_int(t, *slot);
    }
    code_expect(t, "o");
    for (int i = 0; code_number_next(t, i, f->nof); i++) {
        int *of = code_at(t, f->of, f->nof, i);
        *of = code_index(t, "slot", *of);
    }
    code_end(t);
}

static void ends_text(Codec *t, Program *prog)
{
    enum { PERLINE = 16 };

    for (int i = 0; row_of(t, "end", i, prog->nend, PERLINE); i++) {
        FinalValue *last = code_at(t, prog->end, prog->nend, i);
        last->buf = code_index(t, "buffer", last->buf);
        last->value = code_index(t, "value", last->value);
    }
}

void program_text(Codec *t, Program *prog)
{
    prog->kind =
        (ProgramKind)code_choice(t, programnames, NPROGRAM, prog->kind);
    code_expect(t, "transient");
    prog->transient = code_int(t, prog->transient);
    code_expect(t, "bound");
    prog->bound = code_int(t, prog->bound);
    if (code_option(t, "rebuilt", prog->rebuilt > 0))
        prog->rebuilt = code_num(t, prog->rebuilt);
    code_need(t, " {");
    code_end(t);
    for (int i = 0; code_option(t, "phase", i < prog->nphase); i++)
        phase_text(t, code_at(t, prog->phase, prog->nphase, i));
    slots_text(t, prog);
    for (int i = 0; code_option(t, "frame", i < prog->nframe); i++)
        frame_text(t, code_at(t, prog->frame, prog->nframe, i));
    ends_text(t, prog);
    for (int i = 0; !code_mark(t, "}", i == prog->ninstr); i++)
        instr_text(t, code_at(t, prog->instr, prog->ninstr, i));
    code_end(t);
}
