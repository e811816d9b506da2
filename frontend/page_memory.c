/* page_memory.c: bytes alive in a stage's step over time, by class, for its
 * page, and what is alive where it is most. A phase that repeats is counted
 * once, as all its runs are alike. What micro-batches keep from call to call of
 * a pipeline's table counts from the first to the last row that names it. */
#include <stdlib.h>
#include <string.h>

#include "frontend.h"

enum { POINTS = 400, ALIVE = 40 };

typedef struct MemoryPoint {
    double time;
    int64_t bytes[NBUFCLASS];
    int instr, row; /* row: index of PageStage.row */
} MemoryPoint;

typedef struct MemoryCurve {
    Arena *arena;
    const Role *role;
    const PageStage *stage;
    int prog;
    int64_t (*at)[NBUFCLASS]; /* by instruction, without frames */
    int **frames;             /* by frame, by row of the stage: slots in use */
    int64_t (*slot)[NBUFCLASS]; /* by frame: bytes of one */
    MemoryPoint *point;         /* vec */
} MemoryCurve;

static int64_t total(const int64_t *bytes)
{
    int64_t sum = 0;

    for (int c = 0; c < NBUFCLASS; c++)
        sum += bytes[c];
    return sum;
}

/* Does it take room of its own? */
static int is_counted(const MemoryCurve *m, const Buf *b)
{
    return !b->stack && !in_host(m->role, b) &&
           (b->prog < 0 || b->prog == m->prog);
}

static void find_loads(MemoryCurve *m)
{
    int n = m->stage->program->ninstr;

    m->at = alloc(m->arena, sizeof *m->at * (size_t)(n + 1));
    for (int i = 0; i < m->role->nbuf; i++) {
        const Buf *b = &m->role->buf[i];
        if (!is_counted(m, b) || b->frame)
            continue;
        m->at[b->prog < 0 ? 0 : b->born][b->cls] += b->bytes;
        if (b->prog >= 0)
            m->at[b->dies + 1][b->cls] -= b->bytes;
    }
    for (int i = 1; i < n; i++)
        for (int c = 0; c < NBUFCLASS; c++)
            m->at[i][c] += m->at[i - 1][c];
}

/* What phases name of frame f, whose rows then need its slot. */
static int *phases_naming(Arena *a, const Role *r, int prog, int f)
{
    const Program *g = &r->prog[prog];
    int *names = alloc(a, sizeof(int) * (size_t)g->nphase);

    for (int i = 0; i < r->nbuf; i++)
        for (int k = 0; k < g->nphase && r->buf[i].frame == f + 1 &&
                        r->buf[i].prog == prog;
             k++)
            names[k] |= phase_names(g, &g->phase[k], i);
    return names;
}

RowSpan **frame_rows(Arena *a, const Role *r, int prog, const ScheduleSlot *row)
{
    const Program *g = &r->prog[prog];
    RowSpan **v = alloc(a, sizeof *v * (size_t)(g->nframe + 1));

    for (int f = 0; f < g->nframe; f++) {
        int *names = phases_naming(a, r, prog, f);
        v[f] = alloc(a, sizeof **v * (size_t)(g->frame[f].nof + 1));
        for (int i = 0; i < (int)vec_len(row); i++) {
            RowSpan *x = &v[f][row[i].micro];
            if (!names[row[i].phase])
                continue;
            x->from = x->from ? x->from : i + 1;
            x->to = i + 1;
        }
    }
    return v;
}

/* What is no stack counts as temporary. */
static void find_slots(MemoryCurve *m)
{
    const Program *g = m->stage->program;

    size_t rows = vec_len(m->stage->row);
    ScheduleSlot *row = NULL;

    for (size_t i = 0; i < rows; i++)
        vec_push(m->arena, row, m->stage->row[i].slot);
    RowSpan **span = frame_rows(m->arena, m->role, m->prog, row);
    m->frames = alloc(m->arena, sizeof *m->frames * (size_t)(g->nframe + 1));
    m->slot = alloc(m->arena, sizeof *m->slot * (size_t)(g->nframe + 1));
    for (int f = 0; f < g->nframe; f++) {
        m->frames[f] = alloc(m->arena, sizeof(int) * (rows + 1));
        for (int k = 0; k < g->frame[f].nof; k++)
            for (int r = span[f][k].from; r && r <= span[f][k].to; r++)
                m->frames[f][r - 1]++;
        if (!frame_in_host(&g->frame[f]))
            m->slot[f][Btemp] = g->frame[f].bytes;
    }
    for (int i = 0; i < m->role->nbuf; i++) {
        const Buf *b = &m->role->buf[i];
        if (b->prog != m->prog || !b->frame || b->cls != Bstash)
            continue;
        m->slot[b->frame - 1][Bstash] += b->bytes;
        m->slot[b->frame - 1][Btemp] -= b->bytes;
    }
}

static void add_point(MemoryCurve *m, double time, int instr, int row)
{
    MemoryPoint x = { .time = time, .instr = instr, .row = row };
    const Program *g = m->stage->program;

    memcpy(x.bytes, m->at[instr], sizeof x.bytes);
    for (int f = 0; f < g->nframe; f++)
        for (int c = 0; c < NBUFCLASS; c++)
            x.bytes[c] += m->slot[f][c] * m->frames[f][row];
    vec_push(m->arena, m->point, x);
}

/* A call's point is its instruction at which most is alive. */
static void find_points(MemoryCurve *m)
{
    const Program *g = m->stage->program;
    double now = 0, skipped = 0; /* skipped: in runs after a phase's first */

    for (size_t r = 0; r < vec_len(m->stage->row); r++) {
        const PageRow *row = &m->stage->row[r];
        const Phase *f = &g->phase[row->slot.phase];
        int most = f->first;
        if (f->repeat && row->slot.micro) {
            skipped += row->end - row->from;
            continue;
        }
        for (int i = f->first; i < f->first + f->n; i++) {
            most = total(m->at[i]) > total(m->at[most]) ? i : most;
            now = m->stage->when[i] > now ? m->stage->when[i] : now;
            if (f->repeat)
                add_point(m, now - skipped, i, (int)r);
        }
        if (!f->repeat)
            add_point(m, row->from - skipped, most, (int)r);
    }
}

/* As few as are drawn: of neighbours the one at which most is alive, from the
 * first one's time on. */
static void thin_points(MemoryCurve *m)
{
    size_t n = vec_len(m->point), per = (n + POINTS - 1) / POINTS, k = 0;

    for (size_t i = 0; i < n; i += per) {
        MemoryPoint x = m->point[i];
        for (size_t j = i; j < i + per && j < n; j++)
            if (total(m->point[j].bytes) > total(x.bytes))
                x = m->point[j];
        x.time = m->point[i].time;
        m->point[k++] = x;
    }
    vec_cut(m->point, k);
}

/* ---- what is alive ------------------------------------------------------- */

static int by_bytes(const void *x, const void *y)
{
    const PageAlive *a = x, *b = y;

    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return strcmp(a->name, b->name);
}

static void add_alive(PageMemory *out, Table *at, const Buf *b, int times)
{
    Arena *a = table_arena(at);
    int64_t number;
    const char *name = pattern_of(b->name, &number);
    const char *line = b->file ? strf(a, "%s:%d", b->file, b->line) : "";
    void **slot = table_at(
        at, KEYP(intern(strf(a, "%s %d %s", name, (int)b->cls, line))));

    if (!*slot) {
        vec_push(a, out->alive,
                 ((PageAlive){ name, line, b->file, b->line, b->cls, 0, 0 }));
        *slot = (void *)(uintptr_t)vec_len(out->alive);
    }
    PageAlive *x = &out->alive[(uintptr_t)*slot - 1];
    x->count += times;
    x->bytes += times * b->bytes;
}

static void find_alive(const MemoryCurve *m, PageMemory *out,
                       const MemoryPoint *most)
{
    Table *at = table_new(m->arena);

    for (int i = 0; i < m->role->nbuf; i++) {
        const Buf *b = &m->role->buf[i];
        if (!is_counted(m, b) || !b->bytes)
            continue;
        if (b->frame && m->frames[b->frame - 1][most->row])
            add_alive(out, at, b, m->frames[b->frame - 1][most->row]);
        else if (b->prog < 0 || (!b->frame && b->born <= most->instr &&
                                 most->instr <= b->dies))
            add_alive(out, at, b, 1);
    }
    vec_sort(out->alive, by_bytes);
}

/* ---- as text ------------------------------------------------------------- */

static void put_curve(Text *out, const MemoryCurve *m, size_t most)
{
    int once = 0;

    for (int f = 0; f < m->stage->program->nphase; f++)
        once |= m->stage->program->phase[f].repeat > 1;
    put(out, "{\"once\":%d,\"at\":%zu,\"time\":[", once, most);
    for (size_t i = 0; i < vec_len(m->point); i++)
        put(out, "%s%.0f", i ? "," : "", 1e9 * m->point[i].time);
    put(out, "],\"bytes\":[");
    for (int c = 0; c < NBUFCLASS; c++) {
        put(out, "%s[", c ? "," : "");
        for (size_t i = 0; i < vec_len(m->point); i++) {
            put(out, i ? "," : "");
            put_int(out, m->point[i].bytes[c]);
        }
        put(out, "]");
    }
    put(out, "]}");
}

static void put_alive(Text *out, const PageAlive *v)
{
    PageAlive rest = { "all others", "", NULL, 0, Btemp, 0, 0 };

    put(out, "[");
    for (size_t i = 0; i < vec_len(v); i++) {
        if (i >= ALIVE) {
            rest.count += v[i].count;
            rest.bytes += v[i].bytes;
            continue;
        }
        put(out, i ? ",[" : "[");
        put_page(out, v[i].name);
        put(out, ",");
        put_page(out, v[i].line);
        put(out, ",%d,%lld,%lld]", (int)v[i].cls, (long long)v[i].count,
            (long long)v[i].bytes);
    }
    if (rest.count)
        put(out, ",[\"all others\",\"\",%d,%lld,%lld]", (int)rest.cls,
            (long long)rest.count, (long long)rest.bytes);
    put(out, "]");
}

PageMemory page_memory(Arena *a, const PageTime *t, int stage)
{
    const Role *r = &t->plan->role[stage];
    MemoryCurve m = { .arena = a,
                      .role = r,
                      .stage = &t->stage[stage],
                      .prog = role_prog(r, PGstep) };
    PageMemory out = { 0 };
    Text text = { .arena = a };
    size_t most = 0;

    find_slots(&m);
    find_loads(&m);
    find_points(&m);
    thin_points(&m);
    for (size_t i = 0; i < vec_len(m.point); i++)
        if (total(m.point[i].bytes) > total(m.point[most].bytes))
            most = i;
    find_alive(&m, &out, &m.point[most]);
    put(&text, "\"memory\":");
    put_curve(&text, &m, most);
    put(&text, ",\"alive\":");
    put_alive(&text, out.alive);
    out.text = text.s;
    return out;
}
