/* live.c: which bytes of the arena matter when, worked out from the
 * instructions of a plan alone. The compiler's own idea of lives (Buf.born and
 * dies) is only compared with it. Two uses: checks of plans, and a table of
 * dead bytes for a runtime that fills them with NaN and must not notice. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

const char *life_wrong(const SlotLives *l, const char *what, int buf, int instr)
{
    const Program *p = &l->r->prog[l->prog];
    const char *label = instr < p->ninstr ? p->instr[instr].label : "the end";

    return strf(l->arena, "program %s, instruction %d (%s): '%s' %s",
                programnames[p->kind], instr, label ? label : "?",
                l->r->buf[buf].name, what);
}

static const Phase *phase_of(const Program *prog, int instr)
{
    for (int i = 0; i < prog->nphase; i++)
        if (instr >= prog->phase[i].first &&
            instr < prog->phase[i].first + prog->phase[i].n)
            return &prog->phase[i];
    return NULL;
}

int joined(const Role *r, int buf, int instr)
{
    const Buf *b = &r->buf[buf];
    const Instr *s = b->prog < 0 ? NULL : &r->prog[b->prog].instr[instr];

    if (!s || s->kind != Ijoin || b->born == instr || b->frame)
        return 0;
    for (int i = 1; i < s->nbuf; i++)
        if (s->buf[i] == buf)
            return 1;
    return 0;
}

/* ---- lives --------------------------------------------------------------- */

int only_writes(const Instr *s, int i)
{
    return strchr("w-", instr_use(s, i)) || (s->kind == Ikernel && !s->rw);
}

/* Instruction instr names a buffer, or what lies in that stack. */
static const char *name_buffer(SlotLives *l, int buf, int instr, int writes)
{
    const Program *p = &l->r->prog[l->prog];
    const Buf *b = &l->r->buf[buf];
    SlotLife *x = &l->of[buf];

    if (x->first < 0 && !writes && !b->frame)
        return life_wrong(l, "is read and was never written", buf, instr);
    if (x->first < 0)
        *x = (SlotLife){ buf, instr, instr, b->offset, instr };
    if (!b->frame && x->first >= l->from && instr <= l->to &&
        phase_of(p, x->first) != phase_of(p, instr)) {
        if (!writes)
            return life_wrong(l, "is kept from call to call in one place", buf,
                              instr);
        x->first = l->from;
    }
    x->last = instr;
    if (x->held < l->behind[instr] - 1)
        x->held = l->behind[instr] - 1;
    return NULL;
}

static const char *name_buffers(SlotLives *l, int instr)
{
    const Instr *s = &l->r->prog[l->prog].instr[instr];
    const char *why = NULL;

    for (int i = 0; i < s->nbuf && !why; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &l->r->buf[s->buf[i]];
        if (!b || b->prog == -1)
            continue;
        why = name_buffer(l, s->buf[i], instr, only_writes(s, i));
        if (b->stack && !why)
            why = name_buffer(l, b->stack - 1, instr, 1);
    }
    return why;
}

/* A phase that repeats, and a table, need again what they found when they
 * began. Outputs are read at the end. */
static void extend(SlotLives *l)
{
    const Program *p = &l->r->prog[l->prog];

    for (int i = 0; i < l->r->ntensor; i++) {
        const Tensor *t = &l->r->tensor[i];
        if (t->kind == TKoutput && l->of[t->buf].first >= 0)
            l->of[t->buf].last = p->ninstr - 1;
    }
    for (int i = 0; i < l->r->nbuf; i++) {
        SlotLife *x = &l->of[i];
        const Phase *f = x->first < 0 ? NULL : phase_of(p, x->last);
        if (f && f->repeat > 1 && x->first < f->first)
            x->last = f->first + f->n - 1;
        if (!f || l->from > l->to || x->first > l->to || x->last < l->from)
            continue;
        if (x->first < l->from && x->last < l->to)
            x->last = l->to;
        if (x->last > l->to && x->first > l->from)
            x->first = l->from;
    }
}

SlotLife *no_lives(Arena *a, int n)
{
    SlotLife *v = alloc(a, sizeof *v * ((size_t)n + 1));

    for (int i = 0; i < n; i++)
        v[i] = (SlotLife){ i, -1, -1, 0, -1 };
    return v;
}

const char *lives_of(Arena *a, const Role *r, int prog, SlotLives *l)
{
    const Program *p = &r->prog[prog];
    const char *why = NULL;

    *l = (SlotLives){ .arena = a,
                      .r = r,
                      .prog = prog,
                      .of = no_lives(a, r->nbuf),
                      .from = p->ninstr,
                      .to = -1,
                      .behind = instrs_behind(a, p) };
    for (int f = 0; f < p->nphase; f++) {
        const Phase *x = &p->phase[f];
        if (x->repeat || !x->n)
            continue;
        l->from = x->first < l->from ? x->first : l->from;
        l->to = x->first + x->n - 1;
    }
    for (int s = 0; s < p->ninstr && !why; s++)
        why = name_buffers(l, s);
    extend(l);
    return why;
}

/* Lives that are longer than needed, or shorter. Gradients and outputs stay to
 * the end, what other streams name may until they are done. */
static const char *loose(const SlotLives *l)
{
    int end = l->r->prog[l->prog].ninstr - 1;

    for (int i = 0; i < l->r->nbuf; i++) {
        const SlotLife *x = &l->of[i];
        const Buf *b = &l->r->buf[i];
        if (b->prog == l->prog && x->first < 0 && law(Llive_tight))
            return life_wrong(l, "is never used", i, b->born);
        int kept = b->dies == end || (x->held > x->last && b->dies == x->held);
        int born = x->first == b->born ||
                   (kept && b->born == l->from && x->first <= l->to);
        if (b->prog == l->prog && b->born == l->from && b->dies == l->to)
            continue; /* there through the whole table */
        if (b->prog == l->prog && (!born || (x->last != b->dies && !kept)) &&
            law(Llive_tight))
            return life_wrong(l,
                              strf(l->arena,
                                   "lives from instruction %d to %d, its "
                                   "instructions say %d to %d",
                                   b->born, b->dies, x->first, x->last),
                              i, x->first);
    }
    return NULL;
}

const char *lives_loose(Arena *a, const Role *r, int prog)
{
    SlotLives l;
    const char *why = lives_of(a, r, prog, &l);

    return why ? why : loose(&l);
}

/* ---- dead bytes ---------------------------------------------------------- */

static int by_instr(const void *a, const void *b)
{
    const LastUse *x = a, *y = b;
    if (x->instr != y->instr)
        return x->instr - y->instr;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

LastUse *deaths(Arena *a, const Role *r, int prog)
{
    const Program *p = &r->prog[prog];
    LastUse *v = NULL;

    vec_push(a, v, ((LastUse){ -1, r->persist, r->arena - r->persist, 0 }));
    for (int i = 0; i < r->nbuf; i++) {
        const Buf *b = &r->buf[i];
        if (b->prog != prog || !b->bytes || b->dies == p->ninstr - 1 ||
            b->frame || b->stack || joined(r, i, b->dies) || in_host(r, b))
            continue;
        const Phase *f = phase_of(p, b->dies);
        if (f && !f->repeat && b->born < f->first)
            continue; /* dies with the whole table */
        int last = f && f->repeat > 1 && b->born < f->first;
        vec_push(a, v, ((LastUse){ b->dies, b->offset, b->bytes, last }));
    }
    qsort(v, vec_len(v), sizeof *v, by_instr);
    return v;
}
