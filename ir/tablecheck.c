/* tablecheck.c: what must hold of the table of a pipeline stage and of what its
 * micro-batches keep from one row to a later one. See plancheck.c.
 *
 *   rows     each call once for each micro-batch
 *   buffers  with one place: inside one call, or there through the whole table
 *   frames   slots in the arena; two micro-batches, or two frames, whose rows
 *            overlap in time never share a byte */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct TableCheck { /* a program's table being looked at */
    const PlanCheck *c;
    const Program *g;
    int prog;
    int call, ncall; /* phases */
    int first, end;  /* instructions */
    int micros;
    int **uses; /* by call: vec of the frames it names */
} TableCheck;

static const char *wrong(const TableCheck *t, const char *what)
{
    return program_told(t->c, t->g->kind, what);
}

/* ---- rows ---------------------------------------------------------------- */

static void find_calls(TableCheck *t)
{
    const Program *prog = t->g;
    while (t->call < prog->nphase && prog->phase[t->call].repeat)
        t->call++;
    while (t->call + t->ncall < prog->nphase &&
           !prog->phase[t->call + t->ncall].repeat)
        t->ncall++;
    if (!t->ncall)
        return;
    const Phase *last = &prog->phase[t->call + t->ncall - 1];
    t->first = prog->phase[t->call].first;
    t->end = last->first + last->n;
}

static const char *slots_wrong(TableCheck *t)
{
    const Program *prog = t->g;
    if (!t->ncall)
        return prog->nslot && law(Ltable_calls)
                   ? wrong(t, "has a table and no calls")
                   : NULL;
    if ((!prog->nslot || prog->nslot % t->ncall) && law(Ltable_full))
        return wrong(
            t, "has a table that does not have each call for each micro-batch");
    t->micros = prog->nslot / t->ncall;
    char *seen = alloc(t->c->arena, (size_t)prog->nslot);
    for (int i = 0; i < prog->nslot; i++) {
        const ScheduleSlot *r = &prog->slot[i];
        if ((r->phase < t->call || r->phase >= t->call + t->ncall ||
             r->micro < 0 || r->micro >= t->micros) &&
            law(Lrow_known))
            return wrong(t, strf(t->c->arena,
                                 "has no row %d: phase %d, micro-batch %d", i,
                                 r->phase, r->micro));
        char *at = &seen[(int64_t)(r->phase - t->call) * t->micros + r->micro];
        if (*at && law(Lrow_once))
            return wrong(t,
                         strf(t->c->arena, "has '%s' of micro-batch %d twice",
                              prog->phase[r->phase].name, r->micro));
        *at = 1;
    }
    return 0;
}

/* What else repeats does so for each micro-batch. */
static const char *repeats_wrong(const TableCheck *t)
{
    for (int i = 0; i < t->g->nphase && t->ncall; i++) {
        const Phase *f = &t->g->phase[i];
        if (f->repeat > 1 && f->repeat != t->micros && law(Ltable_repeats))
            return wrong(t, strf(t->c->arena,
                                 "has %d micro-batches, its phase '%s' %lld",
                                 t->micros, f->name, (long long)f->repeat));
    }
    return 0;
}

/* ---- buffers ------------------------------------------------------------- */

static const Phase *call_of(const TableCheck *t, int instr)
{
    int lo = t->call, hi = t->call + t->ncall - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (t->g->phase[mid].first <= instr)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &t->g->phase[lo];
}

static const char *lives_wrong_in(const TableCheck *t, const Buf *b)
{
    if (b->frame)
        return (b->born < t->first || b->dies >= t->end) && law(Lframe_life)
                   ? "is in a frame and lives beyond the table"
                   : NULL;
    if (b->dies < t->first || b->born >= t->end ||
        (b->born <= t->first && b->dies >= t->end - 1))
        return 0;
    if ((b->born < t->first || b->dies >= t->end) && law(Ltable_life))
        return "lives through a part of the table";
    const Phase *f = call_of(t, b->born);
    return b->dies >= f->first + f->n && law(Lcall_life)
               ? "is kept from one call to another without a frame"
               : NULL;
}

static const char *bufs_wrong(const TableCheck *t)
{
    const Role *r = t->c->r;
    for (int i = 0; i < r->nbuf; i++) {
        const Buf *b = &r->buf[i];
        const char *why = b->prog == t->prog ? lives_wrong_in(t, b) : NULL;
        if (why)
            return wrong(t, strf(t->c->arena, "has a buffer '%s' that %s",
                                 b->name, why));
    }
    return 0;
}

/* ---- frames -------------------------------------------------------------- */

static const char *frame_wrong(const TableCheck *t, const SlotGroup *f)
{
    const Role *r = t->c->r;
    if ((f->bytes < 0 || f->bytes > r->arena + r->host ||
         f->bytes % BUFALIGN) &&
        law(Lframe_size))
        return "has no size";
    if ((f->nof != t->micros || f->nslot < 0) && law(Lframe_slots))
        return "does not have a slot for each micro-batch";
    for (int i = 0; i < f->nof; i++)
        if ((f->of[i] < 0 || f->of[i] >= f->nslot) && law(Lslot_known))
            return "names a slot that does not exist";
    int host = f->nslot && f->slot[0] >= HOSTSPACE;
    int64_t from = host ? HOSTSPACE : r->persist;
    int64_t to = host ? HOSTSPACE + r->host : r->arena;
    for (int i = 0; i < f->nslot; i++)
        if ((f->slot[i] < from || f->slot[i] % BUFALIGN ||
             f->slot[i] > to - f->bytes) &&
            law(Lslot_place))
            return "has a slot outside the arena";
    return 0;
}

/* Which frames the instructions of each call name. */
static void find_uses(TableCheck *t)
{
    const Role *r = t->c->r;
    int *seen = alloc(t->c->arena, ((size_t)t->g->nframe + 1) * sizeof *seen);
    t->uses = alloc(t->c->arena, ((size_t)t->ncall + 1) * sizeof *t->uses);
    for (int k = 0; k < t->ncall; k++) {
        const Phase *f = &t->g->phase[t->call + k];
        for (int i = f->first; i < f->first + f->n; i++) {
            const Instr *s = &t->g->instr[i];
            for (int j = 0; j < s->nbuf; j++) {
                int u = s->buf[j] < 0 ? 0 : r->buf[s->buf[j]].frame;
                if (!u || seen[u] == k + 1)
                    continue;
                seen[u] = k + 1;
                vec_push(t->c->arena, t->uses[k], u - 1);
            }
        }
    }
}

/* Rows in which each micro-batch needs its slot of frame u: v[u][micro]. */
static Span **find_spans(const TableCheck *t)
{
    Arena *a = t->c->arena;
    Span **v = alloc(a, ((size_t)t->g->nframe + 1) * sizeof *v);
    for (int u = 0; u < t->g->nframe; u++) {
        const SlotGroup *f = &t->g->frame[u];
        v[u] = alloc(a, (size_t)t->micros * sizeof **v);
        for (int m = 0; m < t->micros; m++)
            v[u][m] = (Span){ .id = u,
                              .offset = f->slot[f->of[m]],
                              .bytes = f->bytes,
                              .from = -1 };
    }
    for (int i = 0; i < t->g->nslot; i++) {
        const ScheduleSlot *r = &t->g->slot[i];
        const int *use = t->uses[r->phase - t->call];
        for (size_t k = 0; k < vec_len(use); k++) {
            Span *x = &v[use[k]][r->micro];
            x->from = x->from < 0 ? i : x->from;
            x->to = i;
        }
    }
    return v;
}

static const char *frames_overlap(TableCheck *t)
{
    Span **v = find_spans(t), *all = NULL;
    int one, two;
    for (int u = 0; u < t->g->nframe; u++)
        for (int m = 0; m < t->micros; m++)
            if (v[u][m].from >= 0 && v[u][m].bytes)
                vec_push(t->c->arena, all, v[u][m]);
    if (!spans_meet(all, (int)vec_len(all), &one, &two) || !law(Lslots_apart))
        return 0;
    return wrong(t, strf(t->c->arena,
                         "has frames '%s' and '%s' of micro-batches that "
                         "overlap while both are alive",
                         t->g->frame[one].name, t->g->frame[two].name));
}

const char *table_wrong(const PlanCheck *c, int prog)
{
    TableCheck t = { .c = c, .g = &c->r->prog[prog], .prog = prog };
    const char *why;

    find_calls(&t);
    if ((why = slots_wrong(&t)) || (why = repeats_wrong(&t)))
        return why;
    if (!t.ncall)
        return t.g->nframe && law(Lframes_calls)
                   ? wrong(&t, "has frames and no calls")
                   : NULL;
    for (int i = 0; i < t.g->nframe; i++)
        if ((why = frame_wrong(&t, &t.g->frame[i])))
            return wrong(&t, strf(c->arena, "has a frame '%s' that %s",
                                  t.g->frame[i].name, why));
    if ((why = bufs_wrong(&t)))
        return why;
    find_uses(&t);
    return frames_overlap(&t);
}

/* ---- for the check of buffers with one place ----------------------------- */

typedef struct SlotRange {
    int64_t from, to;
} SlotRange;

static int by_from(const void *a, const void *b)
{
    const SlotRange *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

void frame_runs(const PlanCheck *c, int prog, Span **v)
{
    TableCheck t = { .c = c, .g = &c->r->prog[prog], .prog = prog };
    SlotRange *r = NULL, at = { 0, 0 };

    find_calls(&t);
    for (int i = 0; i < t.g->nframe; i++)
        for (int k = 0; k < t.g->frame[i].nslot; k++) {
            const SlotGroup *f = &t.g->frame[i];
            vec_push(c->arena, r,
                     ((SlotRange){ f->slot[k], f->slot[k] + f->bytes }));
        }
    vec_sort(r, by_from);
    for (size_t i = 0; i <= vec_len(r); i++) {
        int more = i < vec_len(r);
        if (more && at.to > at.from && r[i].from <= at.to) {
            at.to = r[i].to > at.to ? r[i].to : at.to;
            continue;
        }
        Span x = { .id = -1,
                   .offset = at.from,
                   .bytes = at.to - at.from,
                   .from = t.first,
                   .to = t.end - 1 };
        if (x.bytes && t.end > t.first)
            vec_push(c->arena, *v, x);
        at = more ? r[i] : at;
    }
}
