/* snapshot.c: `show --snapshot`: the memory of a plan as PyTorch's memory
 * snapshot (torch/cuda/_memory_viz.py), which pytorch.org/memory_viz draws: a
 * device a stage, its arena as one segment, and of a step what is taken and
 * given back. A repeated phase runs once. Of a pipeline's table: what its
 * micro-batches keep, in all rows; what is private to a call, in its first run.
 *
 * The file is a pickle of protocol 2 with the operations that the page's own
 * reader knows. Words that repeat are remembered under numbers. */
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum { BASE = 1 << 30 }; /* address of an arena: none is 0 */

typedef struct Pickle {
    Text out;
    Table *word; /* text -> 1 + its number */
    int words;
} Pickle;

/* ---- a pickle ------------------------------------------------------------ */

static void put_op(Pickle *x, char op)
{
    putn(&x->out, &op, 1);
}

static void put_bytes(Pickle *x, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        put_op(x, (char)(v >> 8 * i & 0xff));
}

static void put_number(Pickle *x, int64_t v)
{
    int wide = v > INT32_MAX;

    put_op(x, wide ? (char)0x8a : 'J'); /* LONG1, BININT */
    if (wide)
        put_op(x, 8);
    put_bytes(x, (uint64_t)v, wide ? 8 : 4);
}

static void put_string(Pickle *x, const char *s)
{
    void **at = table_at(x->word, KEYP(intern(s)));

    if (*at) {
        put_op(x, 'j'); /* LONG_BINGET */
        put_bytes(x, (uint64_t)(uintptr_t)*at - 1, 4);
        return;
    }
    put_op(x, 'X'); /* BINUNICODE, then LONG_BINPUT */
    put_bytes(x, strlen(s), 4);
    put(&x->out, "%s", s);
    put_op(x, 'r');
    put_bytes(x, (uint64_t)x->words, 4);
    *at = (void *)(uintptr_t)++x->words;
}

/* The value of a key follows, then 's' (SETITEM). */
static void put_field(Pickle *x, const char *key, int64_t v)
{
    put_string(x, key);
    put_number(x, v);
    put_op(x, 's');
}

static void put_text_field(Pickle *x, const char *key, const char *s)
{
    put_string(x, key);
    put_string(x, s);
    put_op(x, 's');
}

/* ---- events -------------------------------------------------------------- */

typedef struct SnapshotTrace {
    Pickle *x;
    const Role *role;
    const Program *program;
    int prog;
    int **born, **dies; /* by instruction: vecs of buffers */
    int *table;         /* vec: those there through all calls */
} SnapshotTrace;

static void put_frames(Pickle *x, const char *name, const char *file, int line)
{
    put_string(x, "frames");
    put(&x->out, "]}");
    put_text_field(x, "name", name);
    put_text_field(x, "filename", file ? file : "plan");
    put_field(x, "line", line);
    put(&x->out, "as"); /* APPEND to the list, SETITEM */
}

static void put_event(Pickle *x, const char *action, const char *name,
                      const char *file, int line, int64_t at, int64_t bytes)
{
    put_op(x, '}');
    put_text_field(x, "action", action);
    put_field(x, "addr", BASE + at);
    put_field(x, "size", bytes);
    put_field(x, "stream", 0);
    put_frames(x, name, file, line);
    put_op(x, 'a');
}

static void put_change(Pickle *x, int taken, const char *name, const char *file,
                       int line, int64_t at, int64_t bytes)
{
    if (taken) {
        put_event(x, "alloc", name, file, line, at, bytes);
        return;
    }
    put_event(x, "free_requested", name, file, line, at, bytes);
    put_event(x, "free_completed", name, file, line, at, bytes);
}

static void put_buffer(const SnapshotTrace *s, int buf, int taken)
{
    const Buf *b = &s->role->buf[buf];

    if (!b->bytes || b->stack || b->frame)
        return;
    put_change(s->x, taken, b->name, b->file, b->line, b->offset, b->bytes);
}

/* What a join makes takes the places of its parts. */
static void run_instruction(const SnapshotTrace *s, int i)
{
    for (size_t k = 0; k < vec_len(s->dies[i]); k++)
        if (joined(s->role, s->dies[i][k], i))
            put_buffer(s, s->dies[i][k], 0);
    for (size_t k = 0; k < vec_len(s->born[i]); k++)
        put_buffer(s, s->born[i][k], 1);
    for (size_t k = 0; k < vec_len(s->dies[i]); k++)
        if (!joined(s->role, s->dies[i][k], i))
            put_buffer(s, s->dies[i][k], 0);
}

/* Slots of frames that row r is the first, or the last, to name. */
static void run_frames(const SnapshotTrace *s, RowSpan *const *span, int row,
                       int taken)
{
    for (int f = 0; f < s->program->nframe; f++) {
        const SlotGroup *g = &s->program->frame[f];
        for (int m = 0; m < g->nof && !frame_in_host(g); m++)
            if ((taken ? span[f][m].from : span[f][m].to) == row + 1)
                put_change(s->x, taken, g->name, NULL, 0, g->slot[g->of[m]],
                           g->bytes);
    }
}

static const Phase *phase_at(const Program *g, int instr)
{
    const Phase *f = g->phase;

    while (instr >= f->first + f->n)
        f++;
    return f;
}

static void list_lives(Arena *a, SnapshotTrace *s)
{
    const Program *g = s->program;
    size_t n = (size_t)g->ninstr + 1;

    s->born = alloc(a, n * sizeof *s->born);
    s->dies = alloc(a, n * sizeof *s->dies);
    for (int i = 0; i < s->role->nbuf; i++) {
        const Buf *b = &s->role->buf[i];
        if (b->prog != s->prog || in_host(s->role, b))
            continue;
        const Phase *from = phase_at(g, b->born), *to = phase_at(g, b->dies);
        if (!from->repeat && from != to) {
            vec_push(a, s->table, i);
            continue;
        }
        vec_push(a, s->born[b->born], i);
        vec_push(a, s->dies[b->dies], i);
    }
}

static void run_row(const SnapshotTrace *s, const ScheduleSlot *row)
{
    const Phase *f = &s->program->phase[row->phase];

    for (int i = f->first; i < f->first + f->n && !row->micro; i++)
        run_instruction(s, i);
}

/* The rows of calls are neighbours. */
static int in_table(const SnapshotTrace *s, const ScheduleSlot *row, int r)
{
    return r >= 0 && r < (int)vec_len(row) &&
           !s->program->phase[row[r].phase].repeat;
}

static void put_trace(SnapshotTrace *s)
{
    Arena *a = arena_new();
    ScheduleSlot *row = program_rows(a, s->program);
    RowSpan **span = frame_rows(a, s->role, s->prog, row);

    list_lives(a, s);
    put_op(s->x, ']');
    for (int i = 0; i < s->role->nbuf; i++)
        if (s->role->buf[i].prog < 0)
            put_buffer(s, i, 1);
    for (int r = 0; r < (int)vec_len(row); r++) {
        int table = in_table(s, row, r);
        for (size_t k = 0;
             k < vec_len(s->table) && table && !in_table(s, row, r - 1); k++)
            put_buffer(s, s->table[k], 1);
        run_frames(s, span, r, 1);
        run_row(s, &row[r]);
        run_frames(s, span, r, 0);
        for (size_t k = 0;
             k < vec_len(s->table) && table && !in_table(s, row, r + 1); k++)
            put_buffer(s, s->table[k], 0);
    }
    put_op(s->x, 'a');
    arena_free(a);
}

/* ---- segments ------------------------------------------------------------ */

static int by_offset(const void *x, const void *y)
{
    const Buf *a = *(const Buf *const *)x, *b = *(const Buf *const *)y;

    return (a->offset > b->offset) - (a->offset < b->offset);
}

static void put_block(Pickle *x, const Buf *b, int64_t bytes)
{
    put_op(x, '}');
    put_field(x, "size", bytes);
    put_field(x, "requested_size", b ? b->bytes : 0);
    put_text_field(x, "state", b ? "active_allocated" : "inactive");
    put_frames(x, b ? b->name : "free", b ? b->file : NULL, b ? b->line : 0);
    put_op(x, 'a');
}

/* When the step has ended: what lives always, and room. */
static void put_blocks(Pickle *x, Arena *a, const Role *r)
{
    const Buf **v = NULL;
    int64_t at = 0;

    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0 && r->buf[i].bytes && !in_host(r, &r->buf[i]))
            vec_push(a, v, &r->buf[i]);
    vec_sort(v, by_offset);
    put_string(x, "blocks");
    put_op(x, ']');
    for (size_t i = 0; i < vec_len(v); i++) {
        int64_t next = i + 1 < vec_len(v) ? v[i + 1]->offset : r->persist;
        put_block(x, v[i], next - v[i]->offset);
        at = next;
    }
    if (at < r->arena)
        put_block(x, NULL, r->arena - at);
    put_op(x, 's');
}

static void put_segment(Pickle *x, Arena *a, const Role *r, int stage)
{
    put_op(x, '}');
    put_field(x, "device", stage);
    put_field(x, "address", BASE);
    put_field(x, "total_size", r->arena);
    put_field(x, "allocated_size", r->persist);
    put_field(x, "active_size", r->persist);
    put_field(x, "requested_size", r->persist);
    put_field(x, "stream", 0);
    put_text_field(x, "segment_type", "large");
    put_frames(x, "arena", NULL, 0);
    put_blocks(x, a, r);
    put_op(x, 'a');
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
