/* live.c: lifetimes of buffers, computed from a plan's instructions alone. The
 * compiler's lifetimes (Buf.born and dies) are only compared with these. */
#include "verify.h"

const char *life_wrong(const SlotLives *lives, const char *what, int buf,
                       int instr)
{
    const Program *program = &lives->r->prog[lives->prog];
    const char *label =
        instr < program->ninstr ? program->instr[instr].label : "the end";

    return strf(lives->arena, "program %s, instruction %d (%s): '%s' %s",
                programnames[program->kind], instr, label ? label : "?",
                lives->r->buf[buf].name, what);
}

int joined(const Role *role, int buf, int instr)
{
    const Buf *b = &role->buf[buf];
    const Instr *s = b->prog < 0 ? NULL : &role->prog[b->prog].instr[instr];

    if (!s || s->kind != Ijoin || b->born == instr || b->frame)
        return 0;
    for (int i = 1; i < s->nbuf; i++)
        if (s->buf[i] == buf)
            return 1;
    return 0;
}

int joined_last(const Role *role, int buf, int instr)
{
    return joined(role, buf, instr) &&
           role->prog[role->buf[buf].prog].instr[instr].last_only;
}

int joins_in_table(const Program *program, int instr)
{
    const Instr *s = &program->instr[instr];

    return s->kind == Ijoin && s->last_only &&
           !instr_phase(program, instr)->repeat;
}

int is_table_part(const Role *role, int buf)
{
    const Buf *b = &role->buf[buf];

    return b->prog >= 0 && joined(role, buf, b->dies) &&
           joins_in_table(&role->prog[b->prog], b->dies);
}

int is_table_whole(const Role *role, int buf)
{
    const Buf *b = &role->buf[buf];

    return b->prog >= 0 && joins_in_table(&role->prog[b->prog], b->born) &&
           role->prog[b->prog].instr[b->born].buf[0] == buf;
}

/* ---- lives --------------------------------------------------------------- */

int only_writes(const Instr *instr, int i)
{
    return strchr("w-", instr_use(instr, i)) ||
           (instr->kind == Ikernel && !instr->rw);
}

/* Returns the instruction from which the result of instr in operand i is live:
 * if only the first run of a phase stores, every run needs the one before. */
static int kept_from(const Program *program, int instr, int i)
{
    return stores_first(&program->instr[instr], i)
               ? instr_phase(program, instr)->first
               : instr;
}

/* Records that instruction instr names a buffer, or the buffers of a stack,
 * live from `from` on. */
static const char *name_buffer(SlotLives *lives, int buf, int instr, int from,
                               int writes)
{
    const Program *program = &lives->r->prog[lives->prog];
    const Buf *b = &lives->r->buf[buf];
    SlotLife *life = &lives->of[buf];

    if (life->first < 0 && !writes && !b->frame)
        return life_wrong(lives, "is read and was never written", buf, instr);
    if (life->first < 0)
        *life = (SlotLife){ buf, instr, instr, b->offset, instr, 0 };
    life->first = from < life->first ? from : life->first;
    if (!b->frame && life->first >= lives->from && instr <= lives->to &&
        instr_phase(program, life->first) != instr_phase(program, instr)) {
        if (!writes)
            return life_wrong(lives, "is kept from call to call in one place",
                              buf, instr);
        life->first = lives->from;
    }
    life->last = instr;
    int *behind = in_host(lives->r, b) ? lives->there : lives->behind;
    if (life->held < behind[instr] - 1)
        life->held = behind[instr] - 1;
    return NULL;
}

static const char *name_buffers(SlotLives *lives, int instr)
{
    const Instr *s = &lives->r->prog[lives->prog].instr[instr];
    const char *why = NULL;

    for (int i = 0; i < s->nbuf && !why; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &lives->r->buf[s->buf[i]];
        if (!b || b->prog == -1)
            continue;
        int from = kept_from(&lives->r->prog[lives->prog], instr, i);
        why = name_buffer(lives, s->buf[i], instr, from,
                          only_writes(s, i) || stores_first(s, i));
        lives->of[s->buf[i]].grows |=
            stores_first(s, i) || (s->kind == Ijoin && s->last_only && !i);
        if (b->stack && !why)
            why = name_buffer(lives, b->stack - 1, instr, instr, 1);
    }
    return why;
}

/* Extends lifetimes: a repeated phase, or a table, needs its initial values
 * again; outputs are read at the end. */
static void extend(SlotLives *lives)
{
    const Program *program = &lives->r->prog[lives->prog];

    for (int i = 0; i < lives->r->ntensor; i++) {
        const Tensor *tensor = &lives->r->tensor[i];
        if (tensor->kind == TKoutput && lives->of[tensor->buf].first >= 0)
            lives->of[tensor->buf].last = program->ninstr - 1;
    }
    for (int i = 0; i < lives->r->nbuf; i++) {
        SlotLife *life = &lives->of[i];
        const Phase *f =
            life->first < 0 ? NULL : instr_phase(program, life->last);
        if (f && f->repeat > 1 && (life->first < f->first || life->grows) &&
            !joined_last(lives->r, i, life->last))
            life->last = f->first + f->n - 1;
        if (!f || lives->from > lives->to || life->first > lives->to ||
            life->last < lives->from || is_table_part(lives->r, i) ||
            is_table_whole(lives->r, i))
            continue;
        if (life->first < lives->from && life->last < lives->to)
            life->last = lives->to;
        if (life->last > lives->to && life->first > lives->from)
            life->first = lives->from;
    }
}

SlotLife *no_lives(Arena *a, int n)
{
    SlotLife *v = alloc(a, sizeof *v * ((size_t)n + 1));

    for (int i = 0; i < n; i++)
        v[i] = (SlotLife){ i, -1, -1, 0, -1, 0 };
    return v;
}

static int *host_writers(Arena *a, const Role *role, const Program *program)
{
    char *writes = alloc(a, (size_t)program->ninstr + 1);

    for (int i = 0; i < program->ninstr; i++) {
        const Instr *instr = &program->instr[i];
        int to = instr->kind == Icopy ? instr->buf[OPERAND(copy, to)] : -1;
        writes[i] = (instr->kind == Ikernel && instr->launch.host) ||
                    (to >= 0 && in_host(role, &role->buf[to]));
    }
    return writers_behind(a, program, writes);
}

const char *lives_of(Arena *a, const Role *role, int prog, SlotLives *lives)
{
    const Program *program = &role->prog[prog];
    const char *why = NULL;

    *lives = (SlotLives){ .arena = a,
                          .r = role,
                          .prog = prog,
                          .of = no_lives(a, role->nbuf),
                          .from = program->ninstr,
                          .to = -1,
                          .behind = instrs_behind(a, program),
                          .there = host_writers(a, role, program) };
    for (int f = 0; f < program->nphase; f++) {
        const Phase *phase = &program->phase[f];
        if (phase->repeat || !phase->n)
            continue;
        lives->from = phase->first < lives->from ? phase->first : lives->from;
        lives->to = phase->first + phase->n - 1;
    }
    for (int s = 0; s < program->ninstr && !why; s++)
        why = name_buffers(lives, s);
    extend(lives);
    return why;
}

/* Finds a lifetime that is longer than needed, or shorter. Gradients and
 * outputs live to the end; buffers of other streams may live until these have
 * finished. */
static const char *loose(const SlotLives *lives)
{
    int end = lives->r->prog[lives->prog].ninstr - 1;

    for (int i = 0; i < lives->r->nbuf; i++) {
        const SlotLife *life = &lives->of[i];
        const Buf *b = &lives->r->buf[i];
        if (b->prog == lives->prog && life->first < 0 && law(Llive_tight))
            return life_wrong(lives, "is never used", i, b->born);
        int kept = b->dies == end ||
                   (life->held > life->last && b->dies == life->held);
        int born = life->first == b->born ||
                   (kept && b->born == lives->from && life->first <= lives->to);
        if (b->prog == lives->prog && b->born == lives->from &&
            b->dies == lives->to)
            continue; /* live through the whole table */
        if (b->prog == lives->prog &&
            (!born || (life->last != b->dies && !kept)) && law(Llive_tight))
            return life_wrong(lives,
                              strf(lives->arena,
                                   "lives from instruction %d to %d, its "
                                   "instructions say %d to %d",
                                   b->born, b->dies, life->first, life->last),
                              i, life->first);
    }
    return NULL;
}

const char *lives_loose(Arena *a, const Role *role, int prog)
{
    SlotLives l;
    const char *why = lives_of(a, role, prog, &l);

    return why ? why : loose(&l);
}
