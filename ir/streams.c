/* streams.c: on which stream of a device an instruction runs and behind which
 * events: as text, and the proof that no two accesses race.
 *
 *     issue = [ "stream=" stream ] [ "wait=" event { "," event } ]
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

const char *const streamnames[NSTREAM] = { "compute", "comm", "copy", "p2p" };

/* ---- text ---------------------------------------------------------------- */

void put_issue(Text *t, const Issue *l)
{
    if (l->stream != STREAMcompute)
        put(t, " stream=%s", streamnames[l->stream]);
    for (int i = 0; i < l->nwait; i++)
        put(t, i ? ",e%d" : " wait=e%d", l->wait[i]);
    if (l->record)
        put(t, " record=e%d", l->record);
    if (l->priority)
        put(t, " priority=%d", l->priority);
    if (l->sms)
        put(t, " sms=%d", l->sms);
}

static int lex_event(Lex *x)
{
    lex_need(x, 'e');
    return (int)lex_range(x, "event", 1, MAXEVENT);
}

Issue lex_issue(Lex *x)
{
    Issue l = { 0 };
    if (lex_key(x, "stream"))
        l.stream = (StreamKind)lex_choice(x, streamnames, NSTREAM);
    if (lex_key(x, "wait"))
        do
            vec_push(x->arena, l.wait, lex_event(x));
        while (lex_mark(x, ','));
    l.nwait = (int)vec_len(l.wait);
    if (lex_key(x, "record"))
        l.record = lex_event(x);
    if (lex_key(x, "priority"))
        l.priority = (int)lex_range(x, "priority", 1, 1);
    if (lex_key(x, "sms"))
        l.sms = (int)lex_range(x, "multiprocessors", 1, MAXSMS);
    return l;
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
    char *loaded;       /* by buffer: before rows that read it */
    int64_t *edge;      /* sorted: where cells begin; vec */
    Cell *cell;
} StreamWalk;

static const char *wrong(const StreamWalk *x, int instr, const char *what)
{
    return strf(x->c->arena, "role %d: program '%s': instruction %d '%s' %s",
                x->c->role, programnames[x->g->kind], instr,
                instr_label(&x->g->instr[instr]), what);
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

static int64_t place(const StreamWalk *x, const Buf *b, int micro)
{
    const SlotGroup *f = b->frame ? &x->g->frame[b->frame - 1] : NULL;
    return b->offset + (f ? f->slot[f->of[micro]] : 0);
}

static int by_place(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void cut(StreamWalk *x, int64_t from, int64_t bytes)
{
    vec_push(x->c->arena, x->edge, from);
    vec_push(x->c->arena, x->edge, from + bytes);
}

/* Of every buffer that may be touched, at every place. */
static void cut_cells(StreamWalk *x)
{
    for (int k = TRANSFERS; k <= PRODUCTS; k++)
        cut(x, k, 1);
    for (int i = 0; i < x->c->r->nbuf; i++) {
        const Buf *b = &x->c->r->buf[i];
        if (b->prog >= 0 && b->prog != x->prog)
            continue;
        int micros = b->frame ? x->g->frame[b->frame - 1].nof : 1;
        for (int m = 0; m < micros; m++)
            cut(x, place(x, b, m), b->bytes);
    }
    qsort(x->edge, vec_len(x->edge), sizeof *x->edge, by_place);
    x->cell = alloc(x->c->arena, vec_len(x->edge) * sizeof *x->cell);
}

/* The first cell of those that begin at a place. */
static size_t cell_at(const StreamWalk *x, int64_t from)
{
    size_t lo = 0, hi = vec_len(x->edge);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (x->edge[mid] < from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Does the stream know of all that it must not race with? */
static int touch(StreamWalk *x, StreamKind on, int64_t from, int64_t bytes,
                 int writes)
{
    const Clock *now = &x->now[on];
    int known = 1;
    for (size_t i = cell_at(x, from); bytes && x->edge[i] < from + bytes; i++) {
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

/* ---- instructions -------------------------------------------------------- */

static int shared_byte(const Instr *s)
{
    switch (instr_info(s->kind)->cls) {
    case CLASStransfer: return TRANSFERS;
    case CLASScollective: return COLLECTIVES;
    case CLASSproduct: return PRODUCTS;
    default: return 0;
    }
}

static const char *accesses_wrong(StreamWalk *x, int instr, int micro)
{
    const Instr *s = &x->g->instr[instr];
    StreamKind on = s->issue.stream;
    int both = shared_byte(s);
    if (both && !touch(x, on, both, 1, 1) && law(Lclass_ordered))
        return wrong(x, instr,
                     "is not ordered with what is of its class on another "
                     "stream");
    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &x->c->r->buf[s->buf[i]];
        if (b &&
            !touch(x, on, place(x, b, micro), b->bytes,
                   instr_use(s, i) != 'r') &&
            law(Laccess_ordered))
            return wrong(x, instr,
                         strf(x->c->arena,
                              "uses '%s' while another stream may use "
                              "its bytes",
                              b->name));
    }
    return NULL;
}

static void join(Clock *to, const Clock *from)
{
    for (int s = 0; s < NSTREAM; s++)
        if (to->of[s] < from->of[s])
            to->of[s] = from->of[s];
}

static const char *step(StreamWalk *x, int instr, int micro)
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
static void find_loaded(StreamWalk *x)
{
    const Role *r = x->c->r;
    x->loaded = alloc(x->c->arena, (size_t)r->nbuf + 1);
    for (int i = 0; i < r->ntensor; i++)
        if (r->tensor[i].kind == TKinput)
            x->loaded[r->tensor[i].buf] = 1;
    for (int i = 0; i < r->nin; i++)
        if (r->in[i].value == STEPmicro)
            x->loaded[r->in[i].buf] = 1;
}

/* Before a row compute gets what it reads of its micro-batch. */
static const char *load(StreamWalk *x, const Phase *f)
{
    x->now[STREAMcompute].of[STREAMcompute]++;
    for (int k = f->first; k < f->first + f->n; k++) {
        const Instr *s = &x->g->instr[k];
        for (int i = 0; i < s->nbuf; i++) {
            const Buf *b = s->buf[i] < 0 ? NULL : &x->c->r->buf[s->buf[i]];
            if (b && x->loaded[s->buf[i]] &&
                !touch(x, STREAMcompute, b->offset, b->bytes, 1) &&
                law(Laccess_ordered))
                return wrong(x, k,
                             strf(x->c->arena,
                                  "gets '%s' while another stream may use it",
                                  b->name));
        }
    }
    return NULL;
}

static const char *walk(StreamWalk *x)
{
    const ScheduleSlot *row = program_rows(x->c->arena, x->g);
    const char *why = NULL;
    for (size_t t = 0; t < vec_len(row) && !why; t++) {
        const Phase *f = &x->g->phase[row[t].phase];
        if (f->repeat && row[t].micro > 1)
            continue;
        why = load(x, f);
        for (int k = 0; k < f->n && !why; k++)
            why = step(x, f->first + k, row[t].micro);
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
    find_loaded(&x);
    why = walk(&x);
    for (int s = 0; s < NSTREAM && !why; s++)
        if (x.now[STREAMcompute].of[s] < x.now[s].of[s] && law(Lstream_ends))
            why = strf(c->arena,
                       "role %d: program '%s' ends while its stream %s "
                       "goes on",
                       c->role, programnames[x.g->kind], streamnames[s]);
    return why;
}
