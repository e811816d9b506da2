/* live.c: which bytes of the arena matter when, worked out from the
 * instructions of a plan alone. The compiler's own idea of lives (Buf.born and
 * dies) is only compared with it. Two uses: a check of every plan in tests, and
 * a table of dead bytes for a runtime that fills them with NaN and must not
 * notice. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct SlotLife {
    int buf, first, last;
    int64_t at;
} SlotLife;

typedef struct SlotLives {
    Arena *arena;
    const Role *r;
    int prog;
    SlotLife *of; /* by buffer; first -1: never named */
    int from, to; /* instructions of a stage's calls; from > to: none*/
} SlotLives;

static const char *wrong(const SlotLives *l, const char *what, int buf,
                         int instr)
{
    const Program *p = &l->r->prog[l->prog];
    const char *label = instr < p->ninstr ? p->instr[instr].label : "the end";

    return strf(l->arena, "program %s, instruction %d (%s): '%s' %s",
                programnames[p->kind], instr, label ? label : "?",
                l->r->buf[buf].name, what);
}

static const Phase *phase_of(const Program *p, int instr)
{
    for (int i = 0; i < p->nphase; i++)
        if (instr >= p->phase[i].first &&
            instr < p->phase[i].first + p->phase[i].n)
            return &p->phase[i];
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

/* 1 where a kernel does not say. */
static int only_writes(const Instr *s, int i)
{
    return strchr("w-", instr_use(s, i)) || (s->kind == Ikernel && !s->rw);
}

static const char *name_buffers(SlotLives *l, int instr)
{
    const Program *p = &l->r->prog[l->prog];
    const Instr *s = &p->instr[instr];

    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &l->r->buf[s->buf[i]];
        if (!b || b->prog == -1)
            continue;
        SlotLife *x = &l->of[s->buf[i]];
        if (x->first < 0 && !only_writes(s, i) && !b->frame)
            return wrong(l, "is read and was never written", s->buf[i], instr);
        if (x->first < 0)
            *x = (SlotLife){ s->buf[i], instr, instr, b->offset };
        if (!b->frame && x->first >= l->from && instr <= l->to &&
            phase_of(p, x->first) != phase_of(p, instr)) {
            if (!only_writes(s, i))
                return wrong(l, "is kept from call to call in one place",
                             s->buf[i], instr);
            x->first = l->from;
        }
        x->last = instr;
    }
    return NULL;
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

static const char *agree(const SlotLives *l)
{
    for (int i = 0; i < l->r->nbuf; i++) {
        const SlotLife *x = &l->of[i];
        const Buf *b = &l->r->buf[i];
        if (x->first < 0)
            continue;
        if (b->prog != l->prog)
            return wrong(l, "belongs to another program", i, x->first);
        if (x->first < b->born)
            return wrong(l, "is used before it is born", i, x->first);
        if (x->last > b->dies)
            return wrong(l, "is used after it died", i, x->last);
    }
    return NULL;
}

/* ---- overlaps ------------------------------------------------------------ */

static int by_first(const void *a, const void *b)
{
    const SlotLife *x = a, *y = b;
    return x->first != y->first ? x->first - y->first : x->buf - y->buf;
}

/* Alive at one time, by offset. */
typedef struct LifeSet {
    SlotLife *at;
    int n;
} LifeSet;

static void bury(LifeSet *s, int instr)
{
    int k = 0;

    for (int i = 0; i < s->n; i++)
        if (s->at[i].last >= instr)
            s->at[k++] = s->at[i];
    s->n = k;
}

/* Put x among the living; the index of one that it overlaps, or -1. */
static int bear(const SlotLives *l, LifeSet *s, SlotLife x)
{
    const Buf *b = l->r->buf;
    int lo = 0, hi = s->n;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->at[mid].at < x.at)
            lo = mid + 1;
        else
            hi = mid;
    }
    const SlotLife *up = lo < s->n ? &s->at[lo] : NULL;
    const SlotLife *down = lo > 0 ? &s->at[lo - 1] : NULL;
    if (up && up->at < x.at + b[x.buf].bytes)
        return up->buf;
    if (down && down->at + b[down->buf].bytes > x.at)
        return down->buf;
    memmove(s->at + lo + 1, s->at + lo, sizeof x * (size_t)(s->n - lo));
    s->at[lo] = x;
    s->n++;
    return -1;
}

/* Do two of these n meet, alive at one time? */
static const char *meet(const SlotLives *l, SlotLife *v, int n)
{
    LifeSet s = { alloc(l->arena, sizeof *v * ((size_t)n + 1)), 0 };
    int time = -1;

    qsort(v, (size_t)n, sizeof *v, by_first);
    for (int i = 0; i < n; i++) {
        if (v[i].first != time)
            bury(&s, time = v[i].first);
        int other = bear(l, &s, v[i]);
        if (other >= 0)
            return wrong(l,
                         strf(l->arena, "overlaps '%s', which is alive",
                              l->r->buf[other].name),
                         v[i].buf, l->of[v[i].buf].first);
        if (v[i].at < l->r->persist)
            return wrong(l, "lies among what lives always", v[i].buf,
                         l->of[v[i].buf].first);
    }
    return NULL;
}

static const char *overlaps(const SlotLives *l)
{
    SlotLife *v = alloc(l->arena, sizeof *v * ((size_t)l->r->nbuf + 1));
    int n = 0;

    for (int i = 0; i < l->r->nbuf; i++)
        if (l->of[i].first >= 0 && l->r->buf[i].bytes > 0 &&
            !l->r->buf[i].frame) {
            v[n] = l->of[i];
            v[n++].last -= joined(l->r, i, l->of[i].last);
        }
    return meet(l, v, n);
}

/* ---- what micro-batches keep --------------------------------------------- */

/* Framed buffers that a call names, and whether it writes them first. */
typedef struct SlotAccess {
    int buf, written;
} SlotAccess;

static SlotAccess **named_by_call(const SlotLives *l)
{
    const Program *p = &l->r->prog[l->prog];
    SlotAccess **v = alloc(l->arena, sizeof *v * ((size_t)p->nphase + 1));
    int *seen = alloc(l->arena, sizeof *seen * ((size_t)l->r->nbuf + 1));

    for (int f = 0; f < p->nphase; f++)
        for (int i = 0; i < p->phase[f].n && !p->phase[f].repeat; i++) {
            const Instr *s = &p->instr[p->phase[f].first + i];
            for (int j = 0; j < s->nbuf; j++) {
                int b = s->buf[j];
                if (b < 0 || !l->r->buf[b].frame || seen[b] == f + 1)
                    continue;
                seen[b] = f + 1;
                vec_push(l->arena, v[f],
                         ((SlotAccess){ b, only_writes(s, j) }));
            }
        }
    return v;
}

static SlotLife *none(Arena *a, int n)
{
    SlotLife *v = alloc(a, sizeof *v * ((size_t)n + 1));

    for (int i = 0; i < n; i++)
        v[i] = (SlotLife){ i, -1, -1, 0 };
    return v;
}

/* Rows from the first to the last that name a framed buffer for one micro-batch
 * (Life.first and last are rows here); the first must write it. */
static const char *live_in_rows(const SlotLives *l, SlotLife **out)
{
    const Program *p = &l->r->prog[l->prog];
    SlotAccess **by = named_by_call(l);
    SlotLife **of = alloc(l->arena, sizeof *of * ((size_t)l->r->nbuf + 1));

    for (int t = 0; t < p->nslot; t++) {
        const ScheduleSlot *r = &p->slot[t];
        for (size_t k = 0; k < vec_len(by[r->phase]); k++) {
            const SlotAccess *x = &by[r->phase][k];
            const SlotGroup *f = &p->frame[l->r->buf[x->buf].frame - 1];
            if (!of[x->buf])
                of[x->buf] = none(l->arena, f->nof);
            SlotLife *y = &of[x->buf][r->micro];
            if (y->first < 0 && !x->written)
                return wrong(l,
                             strf(l->arena,
                                  "is read in row %d and was never"
                                  " written",
                                  t),
                             x->buf, p->phase[r->phase].first);
            if (y->first < 0)
                *y = (SlotLife){ x->buf, t, t,
                                 f->slot[f->of[r->micro]] +
                                     l->r->buf[x->buf].offset };
            y->last = t;
        }
    }
    for (int b = 0; b < l->r->nbuf; b++)
        for (int m = 0; of[b] && m < p->frame[l->r->buf[b].frame - 1].nof; m++)
            if (of[b][m].first >= 0 && l->r->buf[b].bytes)
                vec_push(l->arena, *out, of[b][m]);
    return NULL;
}

/* What has one place and is there while the table runs, against all places of
 * framed buffers: each by itself, since those may share bytes. */
static const char *meets_table(const SlotLives *l, const SlotLife *v)
{
    const Role *r = l->r;

    for (int i = 0; i < r->nbuf; i++) {
        const SlotLife *x = &l->of[i];
        const Buf *b = &r->buf[i];
        if (x->first < 0 || b->frame || x->last < l->from || x->first > l->to)
            continue;
        for (size_t k = 0; k < vec_len(v); k++)
            if (v[k].at < b->offset + b->bytes &&
                b->offset < v[k].at + r->buf[v[k].buf].bytes)
                return wrong(l,
                             strf(l->arena, "overlaps '%s' of a micro-batch",
                                  r->buf[v[k].buf].name),
                             i, x->first);
    }
    return NULL;
}

static const char *frames_wrong(const SlotLives *l)
{
    SlotLife *v = NULL;
    const char *why = l->from > l->to ? NULL : live_in_rows(l, &v);

    if (!why)
        why = meets_table(l, v);
    return why ? why : meet(l, v, (int)vec_len(v));
}

static SlotLives lives(Arena *a, const Role *r, int prog)
{
    const Program *p = &r->prog[prog];
    SlotLives l = { a, r, prog, none(a, r->nbuf), p->ninstr, -1 };

    for (int f = 0; f < p->nphase; f++) {
        const Phase *x = &p->phase[f];
        if (x->repeat || !x->n)
            continue;
        l.from = x->first < l.from ? x->first : l.from;
        l.to = x->first + x->n - 1;
    }
    return l;
}

/* Lives that are longer than needed, or shorter. Gradients and outputs stay to
 * the end. */
static const char *loose(const SlotLives *l)
{
    int end = l->r->prog[l->prog].ninstr - 1;

    for (int i = 0; i < l->r->nbuf; i++) {
        const SlotLife *x = &l->of[i];
        const Buf *b = &l->r->buf[i];
        if (b->prog == l->prog && x->first < 0 && law(Llive_tight))
            return wrong(l, "is never used", i, b->born);
        int kept = b->dies == end;
        int born = x->first == b->born ||
                   (kept && b->born == l->from && x->first <= l->to);
        if (b->prog == l->prog && b->born == l->from && b->dies == l->to)
            continue; /* there through the whole table */
        if (b->prog == l->prog && (!born || (x->last != b->dies && !kept)) &&
            law(Llive_tight))
            return wrong(l,
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
    SlotLives l = lives(a, r, prog);
    const char *why = NULL;

    for (int s = 0; s < r->prog[prog].ninstr && !why; s++)
        why = name_buffers(&l, s);
    extend(&l);
    return why ? why : loose(&l);
}

const char *lives_wrong(Arena *a, const Role *r)
{
    const char *why = NULL;

    for (int g = 0; g < r->nprog && !why; g++) {
        SlotLives l = lives(a, r, g);
        for (int s = 0; s < r->prog[g].ninstr && !why; s++)
            why = name_buffers(&l, s);
        extend(&l);
        if (!why)
            why = agree(&l);
        if (!why)
            why = overlaps(&l);
        if (!why)
            why = frames_wrong(&l);
    }
    return why;
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
            b->frame || joined(r, i, b->dies))
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
