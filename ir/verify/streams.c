/* streams.c: streams and events of instructions: their text, and the proof that
 * no two accesses race.
 *
 *     issue  = [ "stream=" stream ] [ "wait=" event { "," event } ]
 *              [ "record=" event ] [ "priority=1" ] [ "sms=" int ]
 *     event  = "e" number
 *
 * Instructions of one stream run in program order, those of other streams after
 * their events. The rows of a program are walked with a vector clock per
 * stream: the number of instructions of each other stream that are known to be
 * complete. An access must know the last write of its bytes, and a write also
 * the reads since then, otherwise the plan is refused. The bytes of the arena
 * are divided at the bounds of buffers into cells; adjacent cells with one
 * history form a run. Extra cells below the arena represent shared state beside
 * buffers: the order of collectives and of transfers on all their members, and
 * the workspace of products.
 *
 * A repeated phase is walked twice. An access that races with one two runs
 * later also races with that of the next run, which is on the same stream. If
 * instructions run only in the last run (last_only), this run is walked too,
 * and they appear in no other: instructions of every run must not rely on their
 * events. */
#include "verify.h"

enum { MAXEVENT = 1 << 20, MAXSMS = 1 << 16 };
enum { TRANSFERS = -3, COLLECTIVES, PRODUCTS }; /* addresses below the arena */

const char *const streamnames[NSTREAM] = { "compute", "comm",   "copy",
                                           "p2p",     "reload", "host" };

/* ---- text ---------------------------------------------------------------- */

static int event_text(Codec *codec, int event)
{
    code_need(codec, "e");
    return (int)code_digits(codec, "event", 1, MAXEVENT, event);
}

void issue_text(Codec *codec, Issue *issue)
{
    if (code_key(codec, "stream", issue->stream != STREAMcompute))
        issue->stream = (StreamKind)code_choice(codec, streamnames, NSTREAM,
                                                (int)issue->stream);
    if (code_key(codec, "wait", issue->nwait > 0))
        for (int i = 0; !i || code_mark(codec, ",", i < issue->nwait); i++) {
            int *event = code_at(codec, issue->wait, issue->nwait, i);
            *event = event_text(codec, *event);
        }
    if (code_key(codec, "record", issue->record))
        issue->record = event_text(codec, issue->record);
    if (code_key(codec, "priority", issue->priority))
        issue->priority =
            (int)code_range(codec, "priority", 1, 1, issue->priority);
    if (code_key(codec, "sms", issue->sms))
        issue->sms =
            (int)code_range(codec, "multiprocessors", 1, MAXSMS, issue->sms);
}

int program_streams(const Program *program)
{
    for (int i = 0; i < program->ninstr; i++) {
        const Issue *issue = &program->instr[i].issue;
        if (issue->stream != STREAMcompute || issue->record || issue->nwait)
            return 1;
    }
    return 0;
}

/* Per stream: the last instruction that compute has waited for. */
typedef struct Behind {
    int done[NSTREAM], *recorder;
} Behind;

static void pass_wait(Behind *x, const Program *program, int *behind, int instr,
                      int recorder)
{
    StreamKind on = program->instr[recorder].issue.stream;
    if (on == STREAMcompute || program->instr[instr].last_only)
        return; /* other runs do not wait for it */
    for (int i = x->done[on]; i <= recorder; i++)
        if (program->instr[i].issue.stream == on)
            behind[i] = instr;
    if (x->done[on] <= recorder)
        x->done[on] = recorder + 1;
}

/* An instruction of a call's last row on another stream: rows of other calls
 * follow, which may or may not wait. It ends when compute is after it and after
 * the table. */
static void outlast_table(const Program *program, int *behind)
{
    int first = program->ninstr, end = 0;
    for (int f = 0; f < program->nphase; f++) {
        const Phase *phase = &program->phase[f];
        if (phase->repeat)
            continue;
        first = phase->first < first ? phase->first : first;
        end = phase->first + phase->n;
    }
    for (int i = first; i < end; i++)
        if (program->instr[i].last_only && program->instr[i].issue.stream &&
            behind[i] < end)
            behind[i] = end;
}

int *instrs_behind(Arena *a, const Program *program)
{
    int *behind = alloc(a, sizeof *behind * (size_t)(program->ninstr + 1));
    Behind x = { { 0 }, NULL };
    for (int i = 0; i < program->ninstr; i++) {
        const Issue *issue = &program->instr[i].issue;
        behind[i] = issue->stream ? program->ninstr : i + 1;
        for (int k = 0; k < issue->nwait && issue->stream == STREAMcompute; k++)
            if ((size_t)issue->wait[k] < vec_len(x.recorder) &&
                issue->wait[k] > 0)
                pass_wait(&x, program, behind, i, x.recorder[issue->wait[k]]);
        while (issue->record && vec_len(x.recorder) <= (size_t)issue->record)
            vec_push(a, x.recorder, i);
        if (issue->record)
            x.recorder[issue->record] = i;
    }
    outlast_table(program, behind);
    return behind;
}

/* ---- clocks -------------------------------------------------------------- */

typedef struct Clock { /* number of completed instructions per stream */
    int64_t of[NSTREAM];
} Clock;

static void join(Clock *to, const Clock *from)
{
    for (int s = 0; s < NSTREAM; s++)
        if (to->of[s] < from->of[s])
            to->of[s] = from->of[s];
}

/* Returns [instruction]: its clock after one walk, including itself. A wait of
 * an instruction of the last run only does not advance its stream. */
static Clock *walk_clocks(Arena *a, const Program *program)
{
    Clock now[NSTREAM] = { 0 }, *event = NULL;
    Clock *at = alloc(a, sizeof *at * (size_t)(program->ninstr + 1));
    for (int i = 0; i < program->ninstr; i++) {
        const Issue *issue = &program->instr[i].issue;
        Clock *mine = &now[issue->stream];
        mine->of[issue->stream]++;
        at[i] = *mine;
        for (int k = 0; k < issue->nwait; k++)
            if ((size_t)issue->wait[k] < vec_len(event) && issue->wait[k] > 0)
                join(&at[i], &event[issue->wait[k]]);
        if (!program->instr[i].last_only)
            *mine = at[i];
        while (issue->record && vec_len(event) <= (size_t)issue->record)
            vec_push(a, event, (Clock){ 0 });
        if (issue->record)
            event[issue->record] = at[i];
    }
    return at;
}

/* Finds the first writer of each stream that knows of an instruction. Clocks of
 * a stream never decrease, so one pass over both lists suffices. */
int *writers_behind(Arena *a, const Program *program, const char *writes)
{
    const Clock *at = walk_clocks(a, program);
    int *behind = alloc(a, sizeof *behind * (size_t)(program->ninstr + 1));
    int *writer[NSTREAM] = { NULL }; /* vecs */
    size_t next[NSTREAM][NSTREAM] = { { 0 } };
    for (int i = 0; i < program->ninstr; i++)
        if (writes[i])
            vec_push(a, writer[program->instr[i].issue.stream], i);
    for (int i = 0; i < program->ninstr; i++) {
        StreamKind on = program->instr[i].issue.stream;
        behind[i] = i + 1;
        for (int s = 0; s < NSTREAM; s++) {
            size_t *k = &next[s][on];
            while (*k < vec_len(writer[s]) &&
                   at[writer[s][*k]].of[on] < at[i].of[on])
                ++*k;
            if (*k && behind[i] <= writer[s][*k - 1])
                behind[i] = writer[s][*k - 1] + 1;
        }
    }
    return behind;
}

/* ---- events -------------------------------------------------------------- */

typedef struct EventUse {
    int recorder, waited; /* instruction, from 1; number of waits */
    Clock at;             /* clock of the last record; 0: none yet */
} EventUse;

/* History of a run of cells, by counts of the streams. */
typedef struct Run {
    int64_t wrote, read[NSTREAM];
    StreamKind writer;
    int end; /* the cell after it */
} Run;

typedef struct Cells { /* a range of cells */
    int from, to;
} Cells;

typedef struct RacedUse { /* a use of an operand that can race */
    int operand, writes;
} RacedUse;

typedef struct StreamWalk {
    const PlanCheck *c;
    const Program *g;
    int prog;
    EventUse *event;    /* vec: [event] */
    Clock now[NSTREAM]; /* clock of each stream */
    int64_t *edge;      /* starts of cells, sorted; then their end */
    int nedge;
    Cells **at; /* [buffer][slot] */
    int *raced; /* [cell]: number of earlier cells that another stream than
                   compute accesses */
    int *
        *heard; /* [phase]: vec of instructions that can race, wait or record */
    RacedUse **raced_use; /* [instruction]: vecs */
    int **given;      /* [phase]: vec of buffers that get their micro-batch */
    char *ends;       /* [phase]: has its last run more instructions? */
    Run *run;         /* [first cell of a run] */
    uint64_t *begins; /* a bit per cell: does a run begin there? */
} StreamWalk;

static const char *wrong(const StreamWalk *walk, int instr, const char *what)
{
    return instr_told(walk->c, walk->g, instr, what);
}

static EventUse *event_of(StreamWalk *walk, int e)
{
    while (vec_len(walk->event) <= (size_t)e)
        vec_push(walk->c->arena, walk->event, ((EventUse){ 0 }));
    return &walk->event[e];
}

static const char *issue_wrong(StreamWalk *walk, int instr)
{
    const Instr *s = &walk->g->instr[instr];
    const Issue *issue = &s->issue;
    int kernel = instr_info(s->kind)->cls == CLASScompute;
    if ((issue->sms || issue->priority) && !kernel && law(Lissue_kernel))
        return wrong(walk, instr,
                     "is no kernel, and has a priority or a budget");
    for (int i = 0; i < issue->nwait; i++)
        event_of(walk, issue->wait[i])->waited++;
    if (!issue->record)
        return NULL;
    EventUse *e = event_of(walk, issue->record);
    if (e->recorder && law(Levent_once))
        return wrong(walk, instr,
                     strf(walk->c->arena, "records event %d, as another does",
                          issue->record));
    e->recorder = instr + 1;
    return NULL;
}

static const char *events_wrong(StreamWalk *walk)
{
    const char *why = NULL;
    for (int i = 0; i < walk->g->ninstr && !why; i++)
        why = issue_wrong(walk, i);
    for (size_t e = 0; e < vec_len(walk->event) && !why; e++)
        if (walk->event[e].recorder && !walk->event[e].waited &&
            law(Levent_waited))
            why = wrong(walk, walk->event[e].recorder - 1,
                        "records an event for which nobody waits");
    return why;
}

/* ---- bytes --------------------------------------------------------------- */

static const SlotGroup *frame_of(const StreamWalk *walk, const Buf *b)
{
    return b->frame ? &walk->g->frame[b->frame - 1] : NULL;
}

/* Returns the bytes that b may reach from its offset: in a stack it may begin
 * at any row. */
static int64_t reach(const StreamWalk *walk, const Buf *b)
{
    return b->stack ? walk->c->r->buf[b->stack - 1].bytes : b->bytes;
}

/* Returns the number of places of a buffer: one, or the slots of its frame. */
static int places(const StreamWalk *walk, const Buf *b)
{
    return b->frame ? frame_of(walk, b)->nslot : 1;
}

static int64_t place(const StreamWalk *walk, const Buf *b, int slot)
{
    return b->offset + (b->frame ? frame_of(walk, b)->slot[slot] : 0);
}

static void cut(StreamWalk *walk, int64_t from, int64_t bytes)
{
    vec_push(walk->c->arena, walk->edge, from);
    vec_push(walk->c->arena, walk->edge, from + bytes);
}

static int lives_in(const StreamWalk *walk, const Buf *b)
{
    return b->prog < 0 || b->prog == walk->prog;
}

/* Divides the arena into cells at the bounds of every place of every buffer. */
static void cut_cells(StreamWalk *walk)
{
    for (int k = TRANSFERS; k <= PRODUCTS; k++)
        cut(walk, k, 1);
    for (int i = 0; i < walk->c->r->nbuf; i++) {
        const Buf *b = &walk->c->r->buf[i];
        for (int k = 0; lives_in(walk, b) && k < places(walk, b); k++)
            cut(walk, place(walk, b, k), reach(walk, b));
    }
    vec_sort(walk->edge, by_value);
    for (size_t i = 0; i < vec_len(walk->edge); i++)
        if (!walk->nedge || walk->edge[i] != walk->edge[walk->nedge - 1])
            walk->edge[walk->nedge++] = walk->edge[i];
}

/* Finds the cells of each place of each buffer. */
static void find_cells(StreamWalk *walk)
{
    int n = walk->c->r->nbuf;
    walk->at = alloc(walk->c->arena, sizeof *walk->at * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const Buf *b = &walk->c->r->buf[i];
        size_t many = lives_in(walk, b) ? (size_t)places(walk, b) : 0;
        walk->at[i] = alloc(walk->c->arena, sizeof **walk->at * (many + 1));
        for (int k = 0; k < (int)many; k++) {
            int64_t from = place(walk, b, k);
            walk->at[i][k] = (Cells){ first_from(walk->edge, walk->nedge, from),
                                      first_from(walk->edge, walk->nedge,
                                                 from + reach(walk, b)) };
        }
    }
}

static int shared_byte(const Instr *instr)
{
    switch (instr_info(instr->kind)->cls) {
    case CLASStransfer: return TRANSFERS;
    case CLASScollective: return COLLECTIVES;
    case CLASSproduct: return PRODUCTS;
    default: return 0;
    }
}

static Cells shared_cells(int byte)
{
    return (Cells){ byte - TRANSFERS, byte - TRANSFERS + 1 };
}

static int count_raced(const StreamWalk *walk, Cells cells)
{
    return walk->raced[cells.to] - walk->raced[cells.from];
}

/* Can a use of the buffer access a cell that is raced? */
static int can_race(const StreamWalk *walk, int buf)
{
    int many = buf < 0 ? 0 : places(walk, &walk->c->r->buf[buf]), any = 0;
    for (int k = 0; k < many && !any; k++)
        any = count_raced(walk, walk->at[buf][k]);
    return any;
}

static RacedUse *raced_uses(const StreamWalk *walk, const Instr *instr)
{
    RacedUse *v = NULL;
    for (int i = 0; i < instr->nbuf; i++)
        if (can_race(walk, instr->buf[i]))
            vec_push(walk->c->arena, v,
                     ((RacedUse){ i, instr_use(instr, i) != 'r' }));
    return v;
}

static void add_cells(int *change, Cells cells)
{
    change[cells.from]++;
    change[cells.to]--;
}

/* Finds operands that can race: those that share a cell, at any place, with an
 * operand of another stream than compute. */
static void find_raced(StreamWalk *walk)
{
    Arena *a = walk->c->arena;
    size_t n = (size_t)walk->nedge + 1;
    int *change = alloc(a, n * sizeof *change), touching = 0;
    for (int i = 0; i < walk->g->ninstr; i++) {
        const Instr *s = &walk->g->instr[i];
        int both = s->issue.stream ? shared_byte(s) : 0;
        if (both)
            add_cells(change, shared_cells(both));
        for (int k = 0; k < s->nbuf && s->issue.stream; k++)
            for (int p = 0; s->buf[k] >= 0 &&
                            p < places(walk, &walk->c->r->buf[s->buf[k]]);
                 p++)
                add_cells(change, walk->at[s->buf[k]][p]);
    }
    walk->raced = alloc(a, n * sizeof *walk->raced);
    for (int c = 0; c < walk->nedge; c++) {
        touching += change[c];
        walk->raced[c + 1] = walk->raced[c] + (touching > 0);
    }
}

/* ---- runs of cells ------------------------------------------------------- */

static void begin_run(StreamWalk *walk, int cell, Run run)
{
    walk->run[cell] = run;
    walk->begins[cell / 64] |= UINT64_C(1) << cell % 64;
}

/* Creates one run of all cells, without history. */
static void make_runs(StreamWalk *walk)
{
    Arena *a = walk->c->arena;
    size_t n = (size_t)walk->nedge + 1;
    walk->run = alloc(a, n * sizeof *walk->run);
    walk->begins = alloc(a, (n / 64 + 1) * sizeof *walk->begins);
    begin_run(walk, 0, (Run){ .end = walk->nedge });
}

/* Splits the run of a cell before it. */
static void cut_run(StreamWalk *walk, int cell)
{
    int word = cell / 64;
    uint64_t bits = walk->begins[word] & (~UINT64_C(0) >> (63 - cell % 64));
    while (!bits)
        bits = walk->begins[--word];
    int first = 64 * word + 63 - __builtin_clzll(bits);
    if (first == cell)
        return;
    begin_run(walk, cell, walk->run[first]);
    walk->run[first].end = cell;
}

static int is_run(const StreamWalk *walk, Cells cells)
{
    return walk->begins[cells.from / 64] >> cells.from % 64 & 1 &&
           walk->run[cells.from].end == cells.to;
}

/* Does a stream know all accesses in the run that it must not race with? */
static int is_known(const Clock *now, const Run *run, int writes)
{
    int known = now->of[run->writer] >= run->wrote;
    for (int s = 0; s < NSTREAM && writes; s++)
        known &= now->of[s] >= run->read[s];
    return known;
}

/* Makes one run of these cells, with the history of a write. */
static void write_run(StreamWalk *walk, StreamKind on, Cells cells)
{
    Run *run = &walk->run[cells.from];
    for (int s = 0; s < NSTREAM; s++)
        run->read[s] = 0;
    run->wrote = walk->now[on].of[on];
    run->writer = on;
    run->end = cells.to;
}

/* Records an access to these cells, mostly of one run. Returns 0 if it
 * races. */
static int touch(StreamWalk *walk, StreamKind on, Cells cells, int writes)
{
    const Clock *now = &walk->now[on];
    int known = 1;
    if (cells.from == cells.to)
        return 1;
    if (!is_run(walk, cells)) {
        cut_run(walk, cells.from);
        if (cells.to < walk->nedge)
            cut_run(walk, cells.to);
    }
    for (int i = cells.from; i < cells.to; i = walk->run[i].end) {
        known &= is_known(now, &walk->run[i], writes);
        walk->run[i].read[on] = now->of[on];
        if (writes && i > cells.from)
            walk->begins[i / 64] &= ~(UINT64_C(1) << i % 64);
    }
    if (writes)
        write_run(walk, on, cells);
    return known;
}

static int touch_buffer(StreamWalk *walk, StreamKind on, int buf, int micro,
                        int writes)
{
    const Buf *b = &walk->c->r->buf[buf];
    int slot = b->frame ? frame_of(walk, b)->of[micro] : 0;
    return touch(walk, on, walk->at[buf][slot], writes);
}

/* ---- instructions -------------------------------------------------------- */

static const char *accesses_wrong(StreamWalk *walk, int instr, int micro)
{
    const Instr *s = &walk->g->instr[instr];
    StreamKind on = s->issue.stream;
    int both = shared_byte(s);
    if (both && !touch(walk, on, shared_cells(both), 1) && law(Lclass_ordered))
        return wrong(
            walk, instr,
            "is not ordered with what is of its class on another stream");
    const RacedUse *v = walk->raced_use[instr];
    for (size_t i = 0; i < vec_len(v); i++) {
        int buf = s->buf[v[i].operand];
        if (!touch_buffer(walk, on, buf, micro, v[i].writes) &&
            law(Laccess_ordered))
            return wrong(
                walk, instr,
                strf(walk->c->arena,
                     "uses '%s' while another stream may use its bytes",
                     walk->c->r->buf[buf].name));
    }
    return NULL;
}

static const char *begin(StreamWalk *walk, int instr, int micro)
{
    const Issue *issue = &walk->g->instr[instr].issue;
    Clock *now = &walk->now[issue->stream];
    for (int i = 0; i < issue->nwait; i++) {
        const Clock *e = &event_of(walk, issue->wait[i])->at;
        if (!e->of[STREAMcompute] && law(Levent_recorded))
            return wrong(walk, instr,
                         strf(walk->c->arena,
                              "waits for event %d, which is not recorded yet",
                              issue->wait[i]));
        join(now, e);
    }
    if (!now->of[STREAMcompute] && law(Lstream_begins))
        return wrong(walk, instr, "begins a stream behind nothing");
    now->of[issue->stream]++;
    const char *why = accesses_wrong(walk, instr, micro);
    if (issue->record)
        event_of(walk, issue->record)->at = *now;
    return why;
}

/* Returns [buffer]: does it hold a row's micro-batch number or inputs? */
static char *loaded(const StreamWalk *walk)
{
    const Role *role = walk->c->r;
    char *is = alloc(walk->c->arena, (size_t)role->nbuf + 1);
    for (int i = 0; i < role->ntensor; i++)
        if (role->tensor[i].kind == TKinput)
            is[role->tensor[i].buf] = 1;
    for (int i = 0; i < role->nin; i++)
        if (role->in[i].value == STEPmicro)
            is[role->in[i].buf] = 1;
    return is;
}

/* Lists the instructions of each phase that must be checked in each of its
 * rows. */
static void list_phases(StreamWalk *walk)
{
    Arena *a = walk->c->arena;
    const char *is = loaded(walk);
    walk->heard = alloc(a, sizeof *walk->heard * (size_t)(walk->g->nphase + 1));
    walk->given = alloc(a, sizeof *walk->given * (size_t)(walk->g->nphase + 1));
    walk->raced_use =
        alloc(a, sizeof *walk->raced_use * (size_t)(walk->g->ninstr + 1));
    walk->ends = alloc(a, (size_t)walk->g->nphase + 1);
    for (int p = 0; p < walk->g->nphase; p++)
        for (int i = 0; i < walk->g->phase[p].n; i++) {
            int at = walk->g->phase[p].first + i;
            const Instr *s = &walk->g->instr[at];
            int both = shared_byte(s);
            walk->ends[p] |= s->last_only != 0;
            walk->raced_use[at] = raced_uses(walk, s);
            if (s->issue.stream || s->issue.nwait || s->issue.record ||
                walk->raced_use[at] ||
                (both && count_raced(walk, shared_cells(both))))
                vec_push(a, walk->heard[p], at);
            for (int k = 0; k < s->nbuf; k++)
                if (s->buf[k] >= 0 && is[s->buf[k]] &&
                    can_race(walk, s->buf[k]))
                    vec_push(a, walk->given[p], s->buf[k]);
        }
}

/* Before a row compute loads the inputs of its micro-batch. */
static const char *load(StreamWalk *walk, int phase)
{
    const int *v = walk->given[phase];
    walk->now[STREAMcompute].of[STREAMcompute]++;
    for (size_t i = 0; i < vec_len(v); i++)
        if (!touch_buffer(walk, STREAMcompute, v[i], 0, 1) &&
            law(Laccess_ordered))
            return wrong(walk, walk->g->phase[phase].first,
                         strf(walk->c->arena,
                              "begins a row, which gets '%s' while another "
                              "stream may use it",
                              walk->c->r->buf[v[i]].name));
    return NULL;
}

static int is_walked(const StreamWalk *walk, const ScheduleSlot *row)
{
    int64_t n = walk->g->phase[row->phase].repeat;
    return !n || row->micro < 2 ||
           (walk->ends[row->phase] && row->micro == n - 1);
}

static const char *walk(StreamWalk *stream_walk)
{
    const ScheduleSlot *row =
        program_rows(stream_walk->c->arena, stream_walk->g);
    const char *why = NULL;
    for (size_t t = 0; t < vec_len(row) && !why; t++) {
        int p = row[t].phase;
        const int *v = stream_walk->heard[p];
        if (!is_walked(stream_walk, &row[t]))
            continue;
        int last = stream_walk->ends[p] && is_last_row(stream_walk->g, &row[t]);
        why = load(stream_walk, p);
        for (size_t k = 0; k < vec_len(v) && !why; k++)
            if (last || !stream_walk->g->instr[v[k]].last_only)
                why = begin(stream_walk, v[k], row[t].micro);
    }
    return why;
}

const char *streams_wrong(const PlanCheck *check, int prog)
{
    StreamWalk x = { .c = check, .g = &check->r->prog[prog], .prog = prog };
    const char *why = events_wrong(&x);
    if (why || !program_streams(x.g))
        return why;
    cut_cells(&x);
    find_cells(&x);
    find_raced(&x);
    list_phases(&x);
    make_runs(&x);
    why = walk(&x);
    for (int s = 0; s < NSTREAM && !why; s++)
        if (x.now[STREAMcompute].of[s] < x.now[s].of[s] && law(Lstream_ends))
            why = strf(check->arena,
                       "role %d: program '%s' ends while its stream %s goes on",
                       check->role, programnames[x.g->kind], streamnames[s]);
    return why;
}
