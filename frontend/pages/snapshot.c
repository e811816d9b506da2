/* snapshot.c: `show --snapshot`: writes the memory of a plan as a PyTorch
 * memory snapshot (torch/cuda/_memory_viz.py) for pytorch.org/memory_viz: a
 * device per stage, its arena as one segment, and the allocations and frees of
 * a step. A repeated phase runs once. Values kept by micro-batches appear in
 * all rows of a pipeline's table, values private to a call in its first run.
 *
 * The file is a pickle of protocol 2 with the operations that the page's reader
 * supports. Repeated words are memoized. */
#include "../frontend.h"

enum { BASE = 1 << 30 }; /* address of an arena, not 0 */

typedef struct Pickle {
    Text out;
    Table *word; /* text -> 1 + its memo number */
    int words;
} Pickle;

/* ---- a pickle ------------------------------------------------------------ */

static void put_op(Pickle *pickle, char op)
{
    putn(&pickle->out, &op, 1);
}

static void put_bytes(Pickle *pickle, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        put_op(pickle, (char)(v >> 8 * i & 0xff));
}

static void put_number(Pickle *pickle, int64_t v)
{
    int wide = v > INT32_MAX;

    put_op(pickle, wide ? (char)0x8a : 'J'); /* LONG1, BININT */
    if (wide)
        put_op(pickle, 8);
    put_bytes(pickle, (uint64_t)v, wide ? 8 : 4);
}

static void put_string(Pickle *pickle, const char *s)
{
    void **at = table_at(pickle->word, KEYP(intern(s)));

    if (*at) {
        put_op(pickle, 'j'); /* LONG_BINGET */
        put_bytes(pickle, (uint64_t)(uintptr_t)*at - 1, 4);
        return;
    }
    put_op(pickle, 'X'); /* BINUNICODE, then LONG_BINPUT */
    put_bytes(pickle, strlen(s), 4);
    put(&pickle->out, "%s", s);
    put_op(pickle, 'r');
    put_bytes(pickle, (uint64_t)pickle->words, 4);
    *at = (void *)(uintptr_t)++pickle->words;
}

/* Appends a key and its value; the value is followed by 's' (SETITEM). */
static void put_field(Pickle *pickle, const char *key, int64_t v)
{
    put_string(pickle, key);
    put_number(pickle, v);
    put_op(pickle, 's');
}

static void put_text_field(Pickle *pickle, const char *key, const char *s)
{
    put_string(pickle, key);
    put_string(pickle, s);
    put_op(pickle, 's');
}

/* ---- events -------------------------------------------------------------- */

typedef struct SnapshotTrace {
    Pickle *x;
    const Role *role;
    const Program *program;
    int prog;
    int **born, **dies; /* [instruction]: vecs of buffers */
    int *table;         /* vec: buffers alive in all calls */
} SnapshotTrace;

static void put_frames(Pickle *pickle, const char *name, const char *file,
                       int line)
{
    put_string(pickle, "frames");
    put(&pickle->out, "]}");
    put_text_field(pickle, "name", name);
    put_text_field(pickle, "filename", file ? file : "plan");
    put_field(pickle, "line", line);
    put(&pickle->out, "as"); /* APPEND to the list, SETITEM */
}

static void put_event(Pickle *pickle, const char *action, const char *name,
                      const char *file, int line, int64_t at, int64_t bytes)
{
    put_op(pickle, '}');
    put_text_field(pickle, "action", action);
    put_field(pickle, "addr", BASE + at);
    put_field(pickle, "size", bytes);
    put_field(pickle, "stream", 0);
    put_frames(pickle, name, file, line);
    put_op(pickle, 'a');
}

static void put_change(Pickle *pickle, int taken, const char *name,
                       const char *file, int line, int64_t at, int64_t bytes)
{
    if (taken) {
        put_event(pickle, "alloc", name, file, line, at, bytes);
        return;
    }
    put_event(pickle, "free_requested", name, file, line, at, bytes);
    put_event(pickle, "free_completed", name, file, line, at, bytes);
}

static void put_buffer(const SnapshotTrace *trace, int buf, int taken)
{
    const Buf *b = &trace->role->buf[buf];

    if (!b->bytes || b->stack || b->frame)
        return;
    put_change(trace->x, taken, b->name, b->file, b->line, b->offset, b->bytes);
}

/* Runs an instruction; the result of a join replaces its parts. */
static void run_instruction(const SnapshotTrace *trace, int i)
{
    for (size_t k = 0; k < vec_len(trace->dies[i]); k++)
        if (joined(trace->role, trace->dies[i][k], i))
            put_buffer(trace, trace->dies[i][k], 0);
    for (size_t k = 0; k < vec_len(trace->born[i]); k++)
        put_buffer(trace, trace->born[i][k], 1);
    for (size_t k = 0; k < vec_len(trace->dies[i]); k++)
        if (!joined(trace->role, trace->dies[i][k], i))
            put_buffer(trace, trace->dies[i][k], 0);
}

/* Allocates and frees slots of frames that row r is the first, or the last, to
 * name. */
static void run_frames(const SnapshotTrace *trace, RowSpan *const *span,
                       int row, int taken)
{
    for (int f = 0; f < trace->program->nframe; f++) {
        const SlotGroup *group = &trace->program->frame[f];
        for (int m = 0; m < group->nof && !frame_in_host(group); m++)
            if ((taken ? span[f][m].from : span[f][m].to) == row + 1)
                put_change(trace->x, taken, group->name, NULL, 0,
                           group->slot[group->of[m]], group->bytes);
    }
}

static void list_lives(Arena *a, SnapshotTrace *trace)
{
    const Program *program = trace->program;
    size_t n = (size_t)program->ninstr + 1;

    trace->born = alloc(a, n * sizeof *trace->born);
    trace->dies = alloc(a, n * sizeof *trace->dies);
    for (int i = 0; i < trace->role->nbuf; i++) {
        const Buf *b = &trace->role->buf[i];
        if (b->prog != trace->prog || in_host(trace->role, b))
            continue;
        const Phase *from = instr_phase(program, b->born),
                    *to = instr_phase(program, b->dies);
        if (!from->repeat && from != to) {
            vec_push(a, trace->table, i);
            continue;
        }
        vec_push(a, trace->born[b->born], i);
        vec_push(a, trace->dies[b->dies], i);
    }
}

static void run_row(const SnapshotTrace *trace, const ScheduleSlot *row)
{
    const Phase *phase = &trace->program->phase[row->phase];

    for (int i = phase->first; i < phase->first + phase->n && !row->micro; i++)
        run_instruction(trace, i);
}

/* Is row r inside the table, whose rows are neighbours? */
static int in_table(const SnapshotTrace *trace, const ScheduleSlot *row, int r)
{
    return r >= 0 && r < (int)vec_len(row) &&
           !trace->program->phase[row[r].phase].repeat;
}

static void put_trace(SnapshotTrace *trace)
{
    Arena *a = arena_new();
    ScheduleSlot *row = program_rows(a, trace->program);
    RowSpan **span = frame_rows(a, trace->role, trace->prog, row);

    list_lives(a, trace);
    put_op(trace->x, ']');
    for (int i = 0; i < trace->role->nbuf; i++)
        if (trace->role->buf[i].prog < 0)
            put_buffer(trace, i, 1);
    for (int r = 0; r < (int)vec_len(row); r++) {
        int table = in_table(trace, row, r);
        for (size_t k = 0;
             k < vec_len(trace->table) && table && !in_table(trace, row, r - 1);
             k++)
            put_buffer(trace, trace->table[k], 1);
        run_frames(trace, span, r, 1);
        run_row(trace, &row[r]);
        run_frames(trace, span, r, 0);
        for (size_t k = 0;
             k < vec_len(trace->table) && table && !in_table(trace, row, r + 1);
             k++)
            put_buffer(trace, trace->table[k], 0);
    }
    put_op(trace->x, 'a');
    arena_free(a);
}

/* ---- segments ------------------------------------------------------------ */

static int by_offset(const void *x, const void *y)
{
    const Buf *a = *(const Buf *const *)x, *b = *(const Buf *const *)y;

    return (a->offset > b->offset) - (a->offset < b->offset);
}

static void put_block(Pickle *pickle, const Buf *b, int64_t bytes)
{
    put_op(pickle, '}');
    put_field(pickle, "size", bytes);
    put_field(pickle, "requested_size", b ? b->bytes : 0);
    put_text_field(pickle, "state", b ? "active_allocated" : "inactive");
    put_frames(pickle, b ? b->name : "free", b ? b->file : NULL,
               b ? b->line : 0);
    put_op(pickle, 'a');
}

/* Appends the blocks after the step: persistent buffers, and free memory. */
static void put_blocks(Pickle *pickle, Arena *a, const Role *role)
{
    const Buf **v = NULL;
    int64_t at = 0;

    for (int i = 0; i < role->nbuf; i++)
        if (role->buf[i].prog < 0 && role->buf[i].bytes &&
            !in_host(role, &role->buf[i]))
            vec_push(a, v, &role->buf[i]);
    vec_sort(v, by_offset);
    put_string(pickle, "blocks");
    put_op(pickle, ']');
    for (size_t i = 0; i < vec_len(v); i++) {
        int64_t next = i + 1 < vec_len(v) ? v[i + 1]->offset : role->persist;
        put_block(pickle, v[i], next - v[i]->offset);
        at = next;
    }
    if (at < role->arena)
        put_block(pickle, NULL, role->arena - at);
    put_op(pickle, 's');
}

static void put_segment(Pickle *pickle, Arena *a, const Role *role, int stage)
{
    put_op(pickle, '}');
    put_field(pickle, "device", stage);
    put_field(pickle, "address", BASE);
    put_field(pickle, "total_size", role->arena);
    put_field(pickle, "allocated_size", role->persist);
    put_field(pickle, "active_size", role->persist);
    put_field(pickle, "requested_size", role->persist);
    put_field(pickle, "stream", 0);
    put_text_field(pickle, "segment_type", "large");
    put_frames(pickle, "arena", NULL, 0);
    put_blocks(pickle, a, role);
    put_op(pickle, 'a');
}

char *draw_snapshot(const Plan *p, size_t *len)
{
    Arena *a = arena_new();
    Pickle x = { .out = { .arena = forever }, .word = table_new(a) };

    if (role_prog(p->role, PGstep) < 0)
        err(NULL, "%s has no program that trains: there is nothing to draw",
            p->model);
    put_op(&x, (char)0x80); /* PROTO */
    put_op(&x, 2);
    put_op(&x, '}');
    put_string(&x, "segments");
    put_op(&x, ']');
    for (int i = 0; i < p->nrole; i++)
        put_segment(&x, a, &p->role[i], i);
    put_op(&x, 's');
    put_string(&x, "device_traces");
    put_op(&x, ']');
    for (int i = 0; i < p->nrole; i++) {
        int prog = role_prog(&p->role[i], PGstep);
        SnapshotTrace s = { .x = &x,
                            .role = &p->role[i],
                            .program = &p->role[i].prog[prog],
                            .prog = prog };
        put_trace(&s);
    }
    put(&x.out, "s.");
    *len = x.out.len;
    arena_free(a);
    return x.out.s;
}
