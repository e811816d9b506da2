/* programtext.c: prints and parses programs of a plan; plantext.c has the
 * grammar. */
#include "plan.h"

/* ---- instructions -------------------------------------------------------- */

static void use_text(Codec *codec, ValueUse *use)
{
    static const char *const marks[] = { "+", "^", "_" };

    if (codec->in)
        *use = (ValueUse){ .as = -1, .shape = -1 };
    if (code_mark(codec, "-", !use->read && !use->make))
        return;
    if (code_mark(codec, "=", use->read < 0))
        use->read =
            ~(int)code_digits(codec, "buffer", 0, INT32_MAX, ~use->read);
    else if (codec->in ? lex_more(codec->in) && lex_isdigit(*codec->in->p)
                       : use->read)
        use->read = (int)code_digits(codec, "value", 1, INT32_MAX, use->read);
    if (code_mark(codec, "/", use->read && use->as >= 0))
        use->as = (int)code_digits(codec, "shape", 0, INT32_MAX, use->as);
    if (!code_mark(codec, ">", use->make))
        return;
    use->make = (int)code_digits(codec, "value", 1, INT32_MAX, use->make);
    code_need(codec, ":");
    use->shape = (int)code_digits(codec, "shape", 0, INT32_MAX, use->shape);
    for (int k = 0; k < 3; k++)
        if (code_mark(codec, marks[k], use->part[k] != 0))
            use->part[k] = (uint32_t)code_digits(codec, "group", 1, UINT32_MAX,
                                                 use->part[k]);
}

static ValueUse *flow_text(Codec *codec, ValueUse *flow, int n)
{
    if (codec->in)
        flow = alloc(codec->in->arena, (size_t)(n + 1) * sizeof *flow);
    else
        putn(codec->out, " ", 1);
    for (int i = 0; i < n; i++) {
        ValueUse use = flow[i];
        if (i)
            code_need(codec, ",");
        use_text(codec, &use);
        if (codec->in)
            flow[i] = use;
    }
    return flow;
}

static InstrKind kind_text(Codec *codec, InstrKind kind)
{
    const char *s = code_word(codec, instr_info(kind)->name);
    for (int i = 0; i < NINSTR; i++)
        if (!strcmp(instr_info((InstrKind)i)->name, s))
            return (InstrKind)i;
    lex_err(codec->in, "no instruction '%s'", s);
}

static void work_text(Codec *codec, Instr *instr)
{
    static const char *const words[NKERNELWORK] = {
        [WORKattention] = "attention",
        [WORKgrouped] = "grouped",
    };

    for (KernelWork w = WORKother + 1; w < NKERNELWORK; w++)
        if (code_option(codec, words[w], instr->work == w))
            instr->work = w;
}

static void instr_text(Codec *codec, Instr *instr)
{
    instr->kind = kind_text(codec, instr->kind);
    instr->label = code_word(codec, instr->label);
    args_text(codec, instr);
    if (code_option(codec, "v", instr->flow && instr->nbuf))
        instr->flow = flow_text(codec, instr->flow, instr->nbuf);
    instr->inner = code_atoms(codec, "inner", instr->inner);
    instr->spread = code_atoms(codec, "spread", instr->spread);
    instr->store_first = code_option(codec, "store_first", instr->store_first);
    instr->last_only = code_option(codec, "last_only", instr->last_only);
    instr->atoms = code_atoms(codec, "g", instr->atoms);
    issue_text(codec, &instr->issue);
    if (code_option(codec, "c",
                    instr->flops != 0 || instr->bytes != 0 ||
                        instr->secs != 0)) {
        instr->flops = code_num(codec, instr->flops);
        instr->bytes = code_num(codec, instr->bytes);
        instr->secs = code_num(codec, instr->secs);
        if (code_option(codec, "again", instr->again != 0))
            instr->again = code_num(codec, instr->again);
        instr->experts = code_option(codec, "experts", instr->experts);
        work_text(codec, instr);
    }
    code_place(codec, &instr->file, &instr->line);
}

/* ---- programs ------------------------------------------------------------ */

static void phase_text(Codec *codec, Phase *phase)
{
    const char *name = code_word(codec, phase->name);

    if (codec->in && !phase_named(codec->in->arena, name, phase))
        lex_err(codec->in, "no phase '%s'", name);
    phase->first = code_index(codec, "first instruction", phase->first);
    phase->n = code_index(codec, "count", phase->n);
    phase->repeat =
        code_range(codec, "micro-batches", 0, MAXMICROS, phase->repeat);
    phase->pair = code_option(codec, "pair", phase->pair);
    code_end(codec);
}

/* Codes a row of a table: the phase, "=" micro-batch if it is not the successor
 * of the phase's last one (next: [phase]), "&" if it may overlap with the next
 * row. */
static void slot_text(Codec *codec, ScheduleSlot *slot, int *next, int nphase)
{
    slot->phase = code_index(codec, "phase", slot->phase);
    if (codec->in && (slot->phase < 0 || slot->phase >= nphase))
        lex_err(codec->in, "phase %d of %d", slot->phase, nphase);
    if (code_mark(codec, " = ", slot->micro != next[slot->phase]))
        slot->micro = (int)code_range(codec, "micro-batch", 0, MAXMICROS - 1,
                                      slot->micro);
    else
        slot->micro = next[slot->phase];
    slot->pair = code_mark(codec, " &", slot->pair);
    next[slot->phase] = slot->micro + 1;
}

/* Does item i of n begin a line with per_line items? */
static int row_of(Codec *codec, const char *s, int i, int n, int per_line)
{
    if (codec->in ? lex_more(codec->in) && i : i < n && i % per_line)
        return 1;
    if (i)
        code_end(codec);
    return code_option(codec, s, i < n);
}

static void slots_text(Codec *codec, Program *prog)
{
    enum { PERLINE = 32 };
    Arena *a = codec->in ? codec->in->arena : codec->out->arena;
    int *next = alloc(a, sizeof *next * (size_t)(prog->nphase + 1));

    for (int i = 0; row_of(codec, "slots", i, prog->nslot, PERLINE); i++) {
        ScheduleSlot *slot = code_at(codec, prog->slot, prog->nslot, i);
        slot_text(codec, slot, next, prog->nphase);
    }
}

static void frame_text(Codec *codec, SlotGroup *group)
{
    group->name = code_word(codec, group->name);
    group->bytes = code_int(codec, group->bytes);
    code_expect(codec, "s");
    for (int i = 0; code_number_next(codec, i, group->nslot); i++) {
        int64_t *slot = code_at(codec, group->slot, group->nslot, i);
        *slot = code_int(codec, *slot);
    }
    code_expect(codec, "o");
    for (int i = 0; code_number_next(codec, i, group->nof); i++) {
        int *of = code_at(codec, group->of, group->nof, i);
        *of = code_index(codec, "slot", *of);
    }
    code_end(codec);
}

static void ends_text(Codec *codec, Program *prog)
{
    enum { PERLINE = 16 };

    for (int i = 0; row_of(codec, "end", i, prog->nend, PERLINE); i++) {
        FinalValue *last = code_at(codec, prog->end, prog->nend, i);
        last->buf = code_index(codec, "buffer", last->buf);
        last->value = code_index(codec, "value", last->value);
    }
}

void program_text(Codec *codec, Program *prog)
{
    prog->kind =
        (ProgramKind)code_choice(codec, programnames, NPROGRAM, prog->kind);
    code_expect(codec, "transient");
    prog->transient = code_int(codec, prog->transient);
    code_expect(codec, "bound");
    prog->bound = code_int(codec, prog->bound);
    if (code_option(codec, "rebuilt", prog->rebuilt > 0))
        prog->rebuilt = code_num(codec, prog->rebuilt);
    code_need(codec, " {");
    code_end(codec);
    for (int i = 0; code_option(codec, "phase", i < prog->nphase); i++)
        phase_text(codec, code_at(codec, prog->phase, prog->nphase, i));
    slots_text(codec, prog);
    for (int i = 0; code_option(codec, "frame", i < prog->nframe); i++)
        frame_text(codec, code_at(codec, prog->frame, prog->nframe, i));
    ends_text(codec, prog);
    for (int i = 0; !code_mark(codec, "}", i == prog->ninstr); i++)
        instr_text(codec, code_at(codec, prog->instr, prog->ninstr, i));
    code_end(codec);
}
