/* tablecheck.c: checks the table of a pipeline stage and the values that its
 * micro-batches keep between rows. See plancheck.c.
 *
 * rows each call once for each micro-batch buffers with a fixed place: used in
 * one call, or live through the whole table frames slots in the arena; two
 * micro-batches, or two frames, whose rows
 *            overlap in time never share a byte */
#include "verify.h"

typedef struct TableCheck { /* check of a program's table */
    const PlanCheck *c;
    const Program *g;
    int prog;
    int call, ncall; /* phases */
    int first, end;  /* instructions */
    int micros;
    int **uses; /* [call]: vec of the frames it names */
} TableCheck;

static const char *wrong(const TableCheck *check, const char *what)
{
    return program_told(check->c, check->g->kind, what);
}

/* ---- rows ---------------------------------------------------------------- */

static void find_calls(TableCheck *check)
{
    const Program *prog = check->g;
    while (check->call < prog->nphase && prog->phase[check->call].repeat)
        check->call++;
    while (check->call + check->ncall < prog->nphase &&
           !prog->phase[check->call + check->ncall].repeat)
        check->ncall++;
    if (!check->ncall)
        return;
    const Phase *last = &prog->phase[check->call + check->ncall - 1];
    check->first = prog->phase[check->call].first;
    check->end = last->first + last->n;
}

static const char *slots_wrong(TableCheck *check)
{
    const Program *prog = check->g;
    if (!check->ncall)
        return prog->nslot && law(Ltable_calls)
                   ? wrong(check, "has a table and no calls")
                   : NULL;
    if ((!prog->nslot || prog->nslot % check->ncall) && law(Ltable_full))
        return wrong(
            check,
            "has a table that does not have each call for each micro-batch");
    check->micros = prog->nslot / check->ncall;
    char *seen = alloc(check->c->arena, (size_t)prog->nslot);
    for (int i = 0; i < prog->nslot; i++) {
        const ScheduleSlot *slot = &prog->slot[i];
        if ((slot->phase < check->call ||
             slot->phase >= check->call + check->ncall || slot->micro < 0 ||
             slot->micro >= check->micros) &&
            law(Lrow_known))
            return wrong(check, strf(check->c->arena,
                                     "has no row %d: phase %d, micro-batch %d",
                                     i, slot->phase, slot->micro));
        char *at = &seen[(int64_t)(slot->phase - check->call) * check->micros +
                         slot->micro];
        if (*at && law(Lrow_once))
            return wrong(
                check, strf(check->c->arena, "has '%s' of micro-batch %d twice",
                            prog->phase[slot->phase].name, slot->micro));
        *at = 1;
    }
    return 0;
}

/* Other repeated phases must run for each micro-batch. */
static const char *repeats_wrong(const TableCheck *check)
{
    for (int i = 0; i < check->g->nphase && check->ncall; i++) {
        const Phase *phase = &check->g->phase[i];
        if (phase->repeat > 1 && phase->repeat != check->micros &&
            law(Ltable_repeats))
            return wrong(check,
                         strf(check->c->arena,
                              "has %d micro-batches, its phase '%s' %ld",
                              check->micros, phase->name, phase->repeat));
    }
    return 0;
}

/* ---- buffers ------------------------------------------------------------- */

static const Phase *call_of(const TableCheck *check, int instr)
{
    int lo = check->call, hi = check->call + check->ncall - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (check->g->phase[mid].first <= instr)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &check->g->phase[lo];
}

static const char *lives_wrong_in(const TableCheck *check, int buf)
{
    const Buf *b = &check->c->r->buf[buf];
    if (b->frame)
        return (b->born < check->first || b->dies >= check->end) &&
                       law(Lframe_life)
                   ? "is in a frame and lives beyond the table"
                   : NULL;
    if (b->dies < check->first || b->born >= check->end ||
        is_table_part(check->c->r, buf) || is_table_whole(check->c->r, buf) ||
        (b->born <= check->first && b->dies >= check->end - 1))
        return 0;
    if ((b->born < check->first || b->dies >= check->end) && law(Ltable_life))
        return "lives through a part of the table";
    const Phase *f = call_of(check, b->born);
    return b->dies >= f->first + f->n && law(Lcall_life)
               ? "is kept from one call to another without a frame"
               : NULL;
}

static const char *bufs_wrong(const TableCheck *check)
{
    const Role *role = check->c->r;
    for (int i = 0; i < role->nbuf; i++) {
        const Buf *b = &role->buf[i];
        const char *why =
            b->prog == check->prog ? lives_wrong_in(check, i) : NULL;
        if (why)
            return wrong(check,
                         strf(check->c->arena, "has a buffer '%s' that %s",
                              b->name, why));
    }
    return 0;
}

/* ---- frames -------------------------------------------------------------- */

static const char *frame_wrong(const TableCheck *check, const SlotGroup *group)
{
    const Role *role = check->c->r;
    if ((group->bytes < 0 || group->bytes > role->arena + role->host ||
         group->bytes % BUFALIGN) &&
        law(Lframe_size))
        return "has no size";
    if ((group->nof != check->micros || group->nslot < 0) && law(Lframe_slots))
        return "does not have a slot for each micro-batch";
    for (int i = 0; i < group->nof; i++)
        if ((group->of[i] < 0 || group->of[i] >= group->nslot) &&
            law(Lslot_known))
            return "names a slot that does not exist";
    int host = group->nslot && group->slot[0] >= HOSTSPACE;
    int64_t from = host ? HOSTSPACE : role->persist;
    int64_t to = host ? HOSTSPACE + role->host : role->arena;
    for (int i = 0; i < group->nslot; i++)
        if ((group->slot[i] < from || group->slot[i] % BUFALIGN ||
             group->slot[i] > to - group->bytes) &&
            law(Lslot_place))
            return "has a slot outside the arena";
    return 0;
}

/* Finds the frames that the instructions of each call name. */
static void find_uses(TableCheck *check)
{
    const Role *role = check->c->r;
    int *seen =
        alloc(check->c->arena, ((size_t)check->g->nframe + 1) * sizeof *seen);
    check->uses = alloc(check->c->arena,
                        ((size_t)check->ncall + 1) * sizeof *check->uses);
    for (int k = 0; k < check->ncall; k++) {
        const Phase *phase = &check->g->phase[check->call + k];
        for (int i = phase->first; i < phase->first + phase->n; i++) {
            const Instr *instr = &check->g->instr[i];
            for (int j = 0; j < instr->nbuf; j++) {
                int u = instr->buf[j] < 0 ? 0 : role->buf[instr->buf[j]].frame;
                if (!u || seen[u] == k + 1)
                    continue;
                seen[u] = k + 1;
                vec_push(check->c->arena, check->uses[k], u - 1);
            }
        }
    }
}

/* Returns v[u][micro]: the rows in which a micro-batch needs its slot of frame
 * u. */
static Span **find_spans(const TableCheck *check)
{
    Arena *a = check->c->arena;
    Span **v = alloc(a, ((size_t)check->g->nframe + 1) * sizeof *v);
    for (int u = 0; u < check->g->nframe; u++) {
        const SlotGroup *group = &check->g->frame[u];
        v[u] = alloc(a, (size_t)check->micros * sizeof **v);
        for (int m = 0; m < check->micros; m++)
            v[u][m] = (Span){ .id = u,
                              .offset = group->slot[group->of[m]],
                              .bytes = group->bytes,
                              .from = -1 };
    }
    for (int i = 0; i < check->g->nslot; i++) {
        const ScheduleSlot *slot = &check->g->slot[i];
        const int *use = check->uses[slot->phase - check->call];
        for (size_t k = 0; k < vec_len(use); k++) {
            Span *span = &v[use[k]][slot->micro];
            span->from = span->from < 0 ? i : span->from;
            span->to = i;
        }
    }
    return v;
}

static const char *frames_overlap(TableCheck *check)
{
    Span **v = find_spans(check), *all = NULL;
    int one, two;
    for (int u = 0; u < check->g->nframe; u++)
        for (int m = 0; m < check->micros; m++)
            if (v[u][m].from >= 0 && v[u][m].bytes)
                vec_push(check->c->arena, all, v[u][m]);
    if (!spans_meet(all, (int)vec_len(all), &one, &two) || !law(Lslots_apart))
        return 0;
    return wrong(check,
                 strf(check->c->arena,
                      "has frames '%s' and '%s' of micro-batches that "
                      "overlap while both are alive",
                      check->g->frame[one].name, check->g->frame[two].name));
}

const char *table_wrong(const PlanCheck *check, int prog)
{
    TableCheck t = { .c = check, .g = &check->r->prog[prog], .prog = prog };
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
            return wrong(&t, strf(check->arena, "has a frame '%s' that %s",
                                  t.g->frame[i].name, why));
    if ((why = bufs_wrong(&t)))
        return why;
    find_uses(&t);
    return frames_overlap(&t);
}

/* ---- for the check of buffers with a fixed place ------------------------- */

typedef struct SlotRange {
    int64_t from, to;
} SlotRange;

static int by_from(const void *a, const void *b)
{
    const SlotRange *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

void frame_runs(const PlanCheck *check, int prog, Span **v)
{
    TableCheck t = { .c = check, .g = &check->r->prog[prog], .prog = prog };
    SlotRange *r = NULL, at = { 0, 0 };

    find_calls(&t);
    for (int i = 0; i < t.g->nframe; i++)
        for (int k = 0; k < t.g->frame[i].nslot; k++) {
            const SlotGroup *group = &t.g->frame[i];
            vec_push(
                check->arena, r,
                ((SlotRange){ group->slot[k], group->slot[k] + group->bytes }));
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
            vec_push(check->arena, *v, x);
        at = more ? r[i] : at;
    }
}
