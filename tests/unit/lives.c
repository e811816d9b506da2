/* lives.c: does any byte of the arena belong to two values at once? Worked out
 * from the instructions of a plan, by another way than the checks of ir/ go. */
#include <stdlib.h>
#include <string.h>

#include "../../ir/verify/live.h"
#include "lives.h"

static const char *agree(const SlotLives *l)
{
    for (int i = 0; i < l->r->nbuf; i++) {
        const SlotLife *x = &l->of[i];
        const Buf *b = &l->r->buf[i];
        if (x->first < 0)
            continue;
        if (b->prog != l->prog)
            return life_wrong(l, "belongs to another program", i, x->first);
        if (x->first < b->born)
            return life_wrong(l, "is used before it is born", i, x->first);
        if (x->last > b->dies)
            return life_wrong(l, "is used after it died", i, x->last);
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
            return life_wrong(l,
                              strf(l->arena, "overlaps '%s', which is alive",
                                   l->r->buf[other].name),
                              v[i].buf, l->of[v[i].buf].first);
        if (v[i].at < l->r->persist)
            return life_wrong(l, "lies among what lives always", v[i].buf,
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
                of[x->buf] = no_lives(l->arena, f->nof);
            SlotLife *y = &of[x->buf][r->micro];
            if (y->first < 0 && !x->written)
                return life_wrong(l,
                                  strf(l->arena,
                                       "is read in row %d and was never"
                                       " written",
                                       t),
                                  x->buf, p->phase[r->phase].first);
            if (y->first < 0)
                *y = (SlotLife){
                    x->buf, t,
                    t,      f->slot[f->of[r->micro]] + l->r->buf[x->buf].offset,
                    t,      0
                };
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
                return life_wrong(l,
                                  strf(l->arena,
                                       "overlaps '%s' of a micro-batch",
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

const char *lives_wrong(Arena *a, const Role *r)
{
    const char *why = NULL;

    for (int g = 0; g < r->nprog && !why; g++) {
        SlotLives l;
        why = lives_of(a, r, g, &l);
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

LastUse *deaths(Arena *a, const Role *role, int prog)
{
    const Program *program = &role->prog[prog];
    LastUse *v = NULL;

    vec_push(a, v,
             ((LastUse){ -1, role->persist, role->arena - role->persist, 0 }));
    for (int i = 0; i < role->nbuf; i++) {
        const Buf *b = &role->buf[i];
        if (b->prog != prog || !b->bytes || b->dies == program->ninstr - 1 ||
            b->frame || b->stack || joined(role, i, b->dies) ||
            in_host(role, b))
            continue;
        const Phase *f = instr_phase(program, b->dies);
        if (f && !f->repeat && b->born < f->first)
            continue; /* dies with the whole table */
        int last = f && f->repeat > 1 && b->born < f->first;
        vec_push(a, v, ((LastUse){ b->dies, b->offset, b->bytes, last }));
    }
    qsort(v, vec_len(v), sizeof *v, by_instr);
    return v;
}
