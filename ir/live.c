/* live.c: which bytes of the arena matter when, worked out from the steps of a
 * plan alone. The compiler's own idea of lives (Buf.born and dies) is only
 * compared with it. Two uses: a check of every plan in tests, and a table of
 * dead bytes for a runtime that fills them with NaN and must not notice.     */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct Life { int buf, first, last; } Life;

typedef struct Lives {
    Arena *arena;
    const Role *r;
    int prog;
    Life *of;                     /* by buffer; first -1: never named         */
} Lives;

static const char *wrong(const Lives *l, const char *what, int buf, int step)
{
    const Program *p = &l->r->prog[l->prog];
    const char *label = step < p->nstep ? p->step[step].label : "the end";

    return strf(l->arena, "program %s, step %d (%s): '%s' %s", p->name, step,
                label ? label : "?", l->r->buf[buf].name, what);
}

static const Phase *phase_of(const Program *p, int step)
{
    for (int i = 0; i < p->nphase; i++)
        if (step >= p->phase[i].first &&
            step < p->phase[i].first + p->phase[i].n)
            return &p->phase[i];
    return NULL;
}

/* ---- lives --------------------------------------------------------------- */

/* Does step s only write its i-th buffer? Kernels do not say: 1.             */
static int writes(const Step *s, int i)
{
    switch (s->kind) {
    case Sgemm: return i == 3 || (i == 2 && !s->iv[10].c);
    case Sgmm: case Sgmmw: return i == 4 || (i == 2 && !s->iv[8].c);
    case Scopy: return i == 1;
    case Szero: case Skernel: return 1;
    default: return i > 0;
    }
}

static const char *name_buffers(Lives *l, int step)
{
    const Step *s = &l->r->prog[l->prog].step[step];

    for (int i = 0; i < s->nbuf; i++) {
        if (s->buf[i] < 0 || l->r->buf[s->buf[i]].prog == -1)
            continue;
        Life *x = &l->of[s->buf[i]];
        if (x->first < 0 && !writes(s, i))
            return wrong(l, "is read and was never written", s->buf[i], step);
        if (x->first < 0)
            *x = (Life){s->buf[i], step, step};
        x->last = step;
    }
    return NULL;
}

/* A phase that repeats needs again what it found when it began. Outputs are
 * read at the end.                                                           */
static void extend(Lives *l)
{
    const Program *p = &l->r->prog[l->prog];

    for (int i = 0; i < l->r->nbuf; i++) {
        Life *x = &l->of[i];
        const Phase *f = x->first < 0 ? NULL : phase_of(p, x->last);
        if (f && f->repeat > 1 && x->first < f->first)
            x->last = f->first + f->n - 1;
    }
    for (int i = 0; i < l->r->ntensor; i++) {
        const Tensor *t = &l->r->tensor[i];
        if (!strcmp(t->kind, "output") && l->of[t->buf].first >= 0)
            l->of[t->buf].last = p->nstep - 1;
    }
}

static const char *agree(const Lives *l)
{
    for (int i = 0; i < l->r->nbuf; i++) {
        const Life *x = &l->of[i];
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
    const Life *x = a, *y = b;
    return x->first != y->first ? x->first - y->first : x->buf - y->buf;
}

/* Alive at one time, by offset.                                              */
typedef struct Set { Life *at; int n; } Set;

static void bury(Set *s, int step)
{
    int k = 0;

    for (int i = 0; i < s->n; i++)
        if (s->at[i].last >= step)
            s->at[k++] = s->at[i];
    s->n = k;
}

/* Put x among the living; the index of one that it overlaps, or -1.          */
static int bear(const Lives *l, Set *s, Life x)
{
    const Buf *b = l->r->buf, *c = &b[x.buf];
    int lo = 0, hi = s->n;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (b[s->at[mid].buf].offset < c->offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    const Buf *up = lo < s->n ? &b[s->at[lo].buf] : NULL;
    const Buf *down = lo > 0 ? &b[s->at[lo - 1].buf] : NULL;
    if (up && up->offset < c->offset + c->bytes)
        return s->at[lo].buf;
    if (down && down->offset + down->bytes > c->offset)
        return s->at[lo - 1].buf;
    memmove(s->at + lo + 1, s->at + lo, sizeof x * (size_t)(s->n - lo));
    s->at[lo] = x;
    s->n++;
    return -1;
}

static const char *overlaps(const Lives *l)
{
    Life *v = alloc(l->arena, sizeof *v * (size_t)(l->r->nbuf + 1));
    Set s = {alloc(l->arena, sizeof *v * (size_t)(l->r->nbuf + 1)), 0};
    int n = 0, step = -1;

    for (int i = 0; i < l->r->nbuf; i++)
        if (l->of[i].first >= 0 && l->r->buf[i].bytes > 0)
            v[n++] = l->of[i];
    qsort(v, (size_t)n, sizeof *v, by_first);
    for (int i = 0; i < n; i++) {
        if (v[i].first != step)
            bury(&s, step = v[i].first);
        int other = bear(l, &s, v[i]);
        if (other >= 0)
            return wrong(l, strf(l->arena, "overlaps '%s', which is alive",
                                 l->r->buf[other].name), v[i].buf, step);
        if (l->r->buf[v[i].buf].offset < l->r->persist)
            return wrong(l, "lies among what lives always", v[i].buf, step);
    }
    return NULL;
}

static Lives lives(Arena *a, const Role *r, int prog)
{
    Lives l = {a, r, prog, alloc(a, sizeof(Life) * (size_t)(r->nbuf + 1))};

    for (int i = 0; i < r->nbuf; i++)
        l.of[i] = (Life){i, -1, -1};
    return l;
}

const char *lives_wrong(Arena *a, const Role *r)
{
    const char *why = NULL;

    for (int g = 0; g < r->nprog && !why; g++) {
        Lives l = lives(a, r, g);
        for (int s = 0; s < r->prog[g].nstep && !why; s++)
            why = name_buffers(&l, s);
        extend(&l);
        if (!why)
            why = agree(&l);
        if (!why)
            why = overlaps(&l);
    }
    return why;
}

/* ---- dead bytes ---------------------------------------------------------- */

static int by_step(const void *a, const void *b)
{
    const Death *x = a, *y = b;
    if (x->step != y->step)
        return x->step - y->step;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

Death *deaths(Arena *a, const Role *r, int prog)
{
    const Program *p = &r->prog[prog];
    Death *v = NULL;

    vec_push(a, v, ((Death){-1, r->persist, r->arena - r->persist, 0}));
    for (int i = 0; i < r->nbuf; i++) {
        const Buf *b = &r->buf[i];
        if (b->prog != prog || !b->bytes || b->dies == p->nstep - 1)
            continue;
        const Phase *f = phase_of(p, b->dies);
        int last = f && f->repeat > 1 && b->born < f->first;
        vec_push(a, v, ((Death){b->dies, b->offset, b->bytes, last}));
    }
    qsort(v, vec_len(v), sizeof *v, by_step);
    return v;
}

/* ---- in words ------------------------------------------------------------ */

void memory_report(FILE *f, const Role *r)
{
    double mib = 1 << 20;
    int64_t sum[NBUFCLASS] = {0};

    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0)
            sum[r->buf[i].cls] += r->buf[i].bytes;
    for (int c = 0; c < NBUFCLASS; c++)
        if (sum[c])
            fprintf(f, "%-10s %12.2f MiB\n", bufclasses[c],
                    (double)sum[c] / mib);
    for (int g = 0; g < r->nprog; g++) {
        const Program *p = &r->prog[g];
        fprintf(f, "%-10s %12.2f MiB, %d steps; bound %.2f MiB, ratio %.4f\n",
                p->name, (double)p->transient / mib, p->nstep,
                (double)p->bound / mib,
                p->bound ? (double)p->transient / (double)p->bound : 1);
    }
    fprintf(f, "%-10s %12.2f MiB\n", "arena", (double)r->arena / mib);
}
