/* streams.c: on which stream of a device an instruction runs and behind which
 * events: as text, and the proof that no two accesses race.
 *
 *     issue  = [ "stream=" stream ] [ "wait=" event { "," event } ]
 *              [ "record=" event ] [ "priority=1" ] [ "sms=" int ]
 *     event  = "e" number
 *
 * Instructions of one stream run in the order of the program, others behind
 * their events. The rows of a program are walked with a vector clock for each
 * stream: how many instructions of each other stream are known to be done. An
 * access finds the last write of its bytes, and a write the reads since then,
 * in what its stream knows, or the plan is refused. Bytes are those of the
 * arena, cut wherever a buffer begins or ends. Below them stands for a byte
 * each what instructions share beside buffers: the order of collectives and of
 * transfers on all their members, and the work space of products.
 *
 * A phase that repeats is walked twice. An access that races with one two runs
 * later races with that of the next run too, which is on the same stream. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { MAXEVENT = 1 << 20, MAXSMS = 1 << 16 };
enum { TRANSFERS = -3, COLLECTIVES, PRODUCTS }; /* bytes below the arena */

const char *const streamnames[NSTREAM] = { "compute", "comm", "copy", "p2p",
                                           "reload" };

/* ---- text ---------------------------------------------------------------- */

static int event_text(Codec *t, int event)
{
    code_need(t, "e");
    return (int)code_digits(t, "event", 1, MAXEVENT, event);
}

void issue_text(Codec *t, Issue *l)
{
    if (code_key(t, "stream", l->stream != STREAMcompute))
        l->stream =
            (StreamKind)code_choice(t, streamnames, NSTREAM, (int)l->stream);
    if (code_key(t, "wait", l->nwait > 0))
        for (int i = 0; !i || code_mark(t, ",", i < l->nwait); i++) {
            int *event = code_at(t, l->wait, l->nwait, i);
            *event = event_text(t, *event);
        }
    if (code_key(t, "record", l->record))
        l->record = event_text(t, l->record);
    if (code_key(t, "priority", l->priority))
        l->priority = (int)code_range(t, "priority", 1, 1, l->priority);
    if (code_key(t, "sms", l->sms))
        l->sms = (int)code_range(t, "multiprocessors", 1, MAXSMS, l->sms);
}

int program_streams(const Program *g)
{
    for (int i = 0; i < g->ninstr; i++) {
        const Issue *l = &g->instr[i].issue;
        if (l->stream != STREAMcompute || l->record || l->nwait)
            return 1;
    }
    return 0;
}

/* The last instruction of a stream that compute has waited for. */
typedef struct Behind {
    int done[NSTREAM], *recorder;
} Behind;

static void pass_wait(Behind *x, const Program *g, int *behind, int instr,
                      int recorder)
{
    StreamKind on = g->instr[recorder].issue.stream;
    if (on == STREAMcompute)
        return;
    for (int i = x->done[on]; i <= recorder; i++)
        if (g->instr[i].issue.stream == on)
            behind[i] = instr;
    if (x->done[on] <= recorder)
        x->done[on] = recorder + 1;
}

int *instrs_behind(Arena *a, const Program *g)
{
    int *behind = alloc(a, sizeof *behind * (size_t)(g->ninstr + 1));
    Behind x = { { 0 }, NULL };
    for (int i = 0; i < g->ninstr; i++) {
        const Issue *l = &g->instr[i].issue;
        behind[i] = l->stream ? g->ninstr : i + 1;
        for (int k = 0; k < l->nwait && l->stream == STREAMcompute; k++)
            if ((size_t)l->wait[k] < vec_len(x.recorder) && l->wait[k] > 0)
                pass_wait(&x, g, behind, i, x.recorder[l->wait[k]]);
        while (l->record && vec_len(x.recorder) <= (size_t)l->record)
            vec_push(a, x.recorder, i);
        if (l->record)
            x.recorder[l->record] = i;
    }
    return behind;
}

/* ---- events -------------------------------------------------------------- */

typedef struct Clock { /* so many instructions of each stream */
    int64_t of[NSTREAM];
} Clock;

typedef struct EventUse {
    int recorder, waited; /* instruction, from 1; how many wait */
    Clock at;             /* when it was recorded last; 0: not yet */
} EventUse;

/* What happened to bytes, by the count of its stream. */
typedef struct Cell {
    int64_t wrote, read[NSTREAM];
    StreamKind writer;
} Cell;

typedef struct StreamWalk {
    const PlanCheck *c;
    const Program *g;
    int prog;
    EventUse *event;    /* by number; vec */
    Clock now[NSTREAM]; /* what each stream knows */
    int64_t *edge;      /* where cells begin, sorted; the last: they end */
    int nedge;
    int **first; /* by buffer and slot: a cell */
    int *raced;  /* by cell: another stream than compute touches it; then it, or
                    the next such cell; the last edge: none */
    int *
        *heard; /* by phase: instructions that can race, wait or record; vecs */
    int **given; /* by phase: buffers that get their micro-batch; vecs */
    Cell *cell;
} StreamWalk;

static const char *wrong(const StreamWalk *x, int instr, const char *what)
{
    return instr_told(x->c, x->g, instr, what);
}

static EventUse *event_of(StreamWalk *x, int e)
{
    while (vec_len(x->event) <= (size_t)e)
        vec_push(x->c->arena, x->event, ((EventUse){ 0 }));
    return &x->event[e];
}

static const char *issue_wrong(StreamWalk *x, int instr)
{
    const Instr *s = &x->g->instr[instr];
    const Issue *l = &s->issue;
    int kernel = instr_info(s->kind)->cls == CLASScompute;
    if ((l->sms || l->priority) && !kernel && law(Lissue_kernel))
        return wrong(x, instr, "is no kernel, and has a priority or a budget");
    for (int i = 0; i < l->nwait; i++)
        event_of(x, l->wait[i])->waited++;
    if (!l->record)
        return NULL;
    EventUse *e = event_of(x, l->record);
    if (e->recorder && law(Levent_once))
        return wrong(
            x, instr,
            strf(x->c->arena, "records event %d, as another does", l->record));
    e->recorder = instr + 1;
    return NULL;
}

static const char *events_wrong(StreamWalk *x)
{
    const char *why = NULL;
    for (int i = 0; i < x->g->ninstr && !why; i++)
        why = issue_wrong(x, i);
    for (size_t e = 0; e < vec_len(x->event) && !why; e++)
        if (x->event[e].recorder && !x->event[e].waited && law(Levent_waited))
            why = wrong(x, x->event[e].recorder - 1,
                        "records an event for which nobody waits");
    return why;
}

/* ---- bytes --------------------------------------------------------------- */

static const SlotGroup *frame_of(const StreamWalk *x, const Buf *b)
{
    return b->frame ? &x->g->frame[b->frame - 1] : NULL;
}

/* From its place on: what lies in a stack may begin at any of its rows. */
static int64_t reach(const StreamWalk *x, const Buf *b)
{
    return b->stack ? x->c->r->buf[b->stack - 1].bytes : b->bytes;
}

/* A buffer has a place, one in a frame as many as that has slots. */
static int places(const StreamWalk *x, const Buf *b)
{
    return b->frame ? frame_of(x, b)->nslot : 1;
}

static int64_t place(const StreamWalk *x, const Buf *b, int slot)
{
    return b->offset + (b->frame ? frame_of(x, b)->slot[slot] : 0);
}

static void cut(StreamWalk *x, int64_t from, int64_t bytes)
{
    vec_push(x->c->arena, x->edge, from);
    vec_push(x->c->arena, x->edge, from + bytes);
}

static int lives_in(const StreamWalk *x, const Buf *b)
{
    return b->prog < 0 || b->prog == x->prog;
}

/* Of every buffer that may be touched, at every place. */
static void cut_cells(StreamWalk *x)
{
    for (int k = TRANSFERS; k <= PRODUCTS; k++)
        cut(x, k, 1);
    for (int i = 0; i < x->c->r->nbuf; i++) {
        const Buf *b = &x->c->r->buf[i];
        for (int k = 0; lives_in(x, b) && k < places(x, b); k++)
            cut(x, place(x, b, k), reach(x, b));
    }
    vec_sort(x->edge, by_value);
    for (size_t i = 0; i < vec_len(x->edge); i++)
        if (!x->nedge || x->edge[i] != x->edge[x->nedge - 1])
            x->edge[x->nedge++] = x->edge[i];
    x->cell = alloc(x->c->arena, (size_t)x->nedge * sizeof *x->cell);
}

/* The first cell of each place of each buffer. */
static void find_cells(StreamWalk *x)
{
    int n = x->c->r->nbuf;
    x->first = alloc(x->c->arena, sizeof *x->first * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const Buf *b = &x->c->r->buf[i];
        size_t many = lives_in(x, b) ? (size_t)places(x, b) : 0;
        x->first[i] = alloc(x->c->arena, sizeof **x->first * (many + 1));
        for (int k = 0; k < (int)many; k++)
            x->first[i][k] = first_from(x->edge, x->nedge, place(x, b, k));
    }
}

static int shared_byte(const Instr *s)
{
    switch (instr_info(s->kind)->cls) {
    case CLASStransfer: return TRANSFERS;
    case CLASScollective: return COLLECTIVES;
    case CLASSproduct: return PRODUCTS;
    default: return 0;
    }
}

/* Any cell that the instruction may touch, if f is true of one. */
static int any_cell(StreamWalk *x, const Instr *s, int f(StreamWalk *, int))
{
    int both = shared_byte(s), any = both && f(x, both - TRANSFERS);
    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &x->c->r->buf[s->buf[i]];
        for (int p = 0; b && p < places(x, b); p++)
            for (int c = x->first[s->buf[i]][p];
                 x->edge[c] < place(x, b, p) + reach(x, b); c++)
                any |= f(x, c);
    }
    return any;
}

static int mark_raced(StreamWalk *x, int cell)
{
    return x->raced[cell] = 1;
}

static int is_raced(StreamWalk *x, int cell)
{
    return x->raced[cell];
}

/* What only compute touches cannot race: only cells that an instruction of
 * another stream touches are looked at. */
static void find_raced(StreamWalk *x)
{
    x->raced = alloc(x->c->arena, (size_t)x->nedge * sizeof *x->raced);
    for (int k = 0; k < x->g->ninstr; k++)
        if (x->g->instr[k].issue.stream)
            any_cell(x, &x->g->instr[k], mark_raced);
}

/* From each cell the way to the next of them. */
static void chain_raced(StreamWalk *x)
{
    for (int c = x->nedge - 1, next = c; c >= 0; c--)
        x->raced[c] = next = x->raced[c] ? c : next;
}

/* Of the bytes from a cell on, up to a place: does the stream know of all that
 * it must not race with? */
static int touch(StreamWalk *x, StreamKind on, int from, int64_t to, int writes)
{
    const Clock *now = &x->now[on];
    int known = 1;
    for (int i = x->raced[from]; x->edge[i] < to; i = x->raced[i + 1]) {
        Cell *c = &x->cell[i];
        known &= now->of[c->writer] >= c->wrote;
        for (int s = 0; s < NSTREAM && writes; s++)
            known &= now->of[s] >= c->read[s];
        if (writes)
            *c = (Cell){ .wrote = now->of[on], .writer = on };
        else
            c->read[on] = now->of[on];
    }
    return known;
}

static int touch_buffer(StreamWalk *x, StreamKind on, int buf, int micro,
                        int writes)
{
    const Buf *b = &x->c->r->buf[buf];
    int slot = b->frame ? frame_of(x, b)->of[micro] : 0;
    return touch(x, on, x->first[buf][slot], place(x, b, slot) + reach(x, b),
                 writes);
}

/* ---- instructions -------------------------------------------------------- */

static const char *accesses_wrong(StreamWalk *x, int instr, int micro)
{
    const Instr *s = &x->g->instr[instr];
    StreamKind on = s->issue.stream;
    int both = shared_byte(s);
    if (both && !touch(x, on, both - TRANSFERS, both + 1, 1) &&
        law(Lclass_ordered))
        return wrong(
            x, instr,
            "is not ordered with what is of its class on another stream");
    for (int i = 0; i < s->nbuf; i++)
        if (s->buf[i] >= 0 &&
            !touch_buffer(x, on, s->buf[i], micro, instr_use(s, i) != 'r') &&
            law(Laccess_ordered))
            return wrong(
                x, instr,
                strf(x->c->arena,
                     "uses '%s' while another stream may use its bytes",
                     x->c->r->buf[s->buf[i]].name));
    return NULL;
}

static void join(Clock *to, const Clock *from)
{
    for (int s = 0; s < NSTREAM; s++)
        if (to->of[s] < from->of[s])
            to->of[s] = from->of[s];
}

static const char *begin(StreamWalk *x, int instr, int micro)
{
    const Issue *l = &x->g->instr[instr].issue;
    Clock *now = &x->now[l->stream];
    for (int i = 0; i < l->nwait; i++) {
        const Clock *e = &event_of(x, l->wait[i])->at;
        if (!e->of[STREAMcompute] && law(Levent_recorded))
            return wrong(x, instr,
                         strf(x->c->arena,
                              "waits for event %d, which is not recorded yet",
                              l->wait[i]));
        join(now, e);
    }
    if (!now->of[STREAMcompute] && law(Lstream_begins))
        return wrong(x, instr, "begins a stream behind nothing");
    now->of[l->stream]++;
    const char *why = accesses_wrong(x, instr, micro);
    if (l->record)
        event_of(x, l->record)->at = *now;
    return why;
}

/* By buffer: does it say a row's micro-batch, or hold its inputs? */
static char *loaded(const StreamWalk *x)
{
    const Role *r = x->c->r;
    char *is = alloc(x->c->arena, (size_t)r->nbuf + 1);
    for (int i = 0; i < r->ntensor; i++)
        if (r->tensor[i].kind == TKinput)
            is[r->tensor[i].buf] = 1;
    for (int i = 0; i < r->nin; i++)
        if (r->in[i].value == STEPmicro)
            is[r->in[i].buf] = 1;
    return is;
}

/* What of each phase must be looked at in each of its rows. */
static void list_phases(StreamWalk *x)
{
    Arena *a = x->c->arena;
    const char *is = loaded(x);
    x->heard = alloc(a, sizeof *x->heard * (size_t)(x->g->nphase + 1));
    x->given = alloc(a, sizeof *x->given * (size_t)(x->g->nphase + 1));
    for (int p = 0; p < x->g->nphase; p++)
        for (int i = 0; i < x->g->phase[p].n; i++) {
            int at = x->g->phase[p].first + i;
            const Instr *s = &x->g->instr[at];
            if (s->issue.stream || s->issue.nwait || s->issue.record ||
                any_cell(x, s, is_raced))
                vec_push(a, x->heard[p], at);
            for (int k = 0; k < s->nbuf; k++)
                if (s->buf[k] >= 0 && is[s->buf[k]])
                    vec_push(a, x->given[p], s->buf[k]);
        }
}

/* Before a row compute gets what it reads of its micro-batch. */
static const char *load(StreamWalk *x, int phase)
{
    const int *v = x->given[phase];
    x->now[STREAMcompute].of[STREAMcompute]++;
    for (size_t i = 0; i < vec_len(v); i++)
        if (!touch_buffer(x, STREAMcompute, v[i], 0, 1) && law(Laccess_ordered))
            return wrong(x, x->g->phase[phase].first,
                         strf(x->c->arena,
                              "begins a row, which gets '%s' while another "
                              "stream may use it",
                              x->c->r->buf[v[i]].name));
    return NULL;
}

static const char *walk(StreamWalk *x)
{
    const ScheduleSlot *row = program_rows(x->c->arena, x->g);
    const char *why = NULL;
    for (size_t t = 0; t < vec_len(row) && !why; t++) {
        int p = row[t].phase;
        const int *v = x->heard[p];
        if (x->g->phase[p].repeat && row[t].micro > 1)
            continue;
        why = load(x, p);
        for (size_t k = 0; k < vec_len(v) && !why; k++)
            why = begin(x, v[k], row[t].micro);
    }
    return why;
}

const char *streams_wrong(const PlanCheck *c, int prog)
{
    StreamWalk x = { .c = c, .g = &c->r->prog[prog], .prog = prog };
    const char *why = events_wrong(&x);
    if (why || !program_streams(x.g))
        return why;
    cut_cells(&x);
    find_cells(&x);
    find_raced(&x);
    list_phases(&x);
    chain_raced(&x);
    why = walk(&x);
    for (int s = 0; s < NSTREAM && !why; s++)
        if (x.now[STREAMcompute].of[s] < x.now[s].of[s] && law(Lstream_ends))
            why = strf(c->arena,
                       "role %d: program '%s' ends while its stream %s goes on",
                       c->role, programnames[x.g->kind], streamnames[s]);
    return why;
}
