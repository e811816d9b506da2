/* page_memory.c: for the page: bytes alive over a stage's step by class, and
 * the buffers alive at the peak. A repeated phase is counted once, since all
 * its runs are equal. Values kept between calls of a pipeline's table count
 * from the first to the last row that names them. */
#include "../frontend.h"

enum { POINTS = 400, ALIVE = 40, LEASTSHARE = 2000 };

typedef struct MemoryPoint {
    double time;
    int64_t bytes[NBUFCLASS];
    int instr, row; /* row: index in PageStage.row */
} MemoryPoint;

typedef struct MemoryCurve {
    Arena *arena;
    const Role *role;
    const PageStage *stage;
    int prog;
    int64_t (*at)[NBUFCLASS];   /* [instruction], without frames */
    int **frames;               /* [frame][row of the stage]: slots in use */
    int64_t (*slot)[NBUFCLASS]; /* [frame]: bytes of a slot */
    MemoryPoint *point;         /* vec */
} MemoryCurve;

static int64_t total(const int64_t *bytes)
{
    int64_t sum = 0;

    for (int c = 0; c < NBUFCLASS; c++)
        sum += bytes[c];
    return sum;
}

/* Does the buffer have its own memory? */
static int is_counted(const MemoryCurve *curve, const Buf *b)
{
    return !b->stack && !in_host(curve->role, b) &&
           (b->prog < 0 || b->prog == curve->prog);
}

static void find_loads(MemoryCurve *curve)
{
    int n = curve->stage->program->ninstr;

    curve->at = alloc(curve->arena, sizeof *curve->at * (size_t)(n + 1));
    for (int i = 0; i < curve->role->nbuf; i++) {
        const Buf *b = &curve->role->buf[i];
        if (!is_counted(curve, b) || b->frame)
            continue;
        curve->at[b->prog < 0 ? 0 : b->born][b->cls] += b->bytes;
        if (b->prog >= 0)
            curve->at[b->dies + 1][b->cls] -= b->bytes;
    }
    for (int i = 1; i < n; i++)
        for (int c = 0; c < NBUFCLASS; c++)
            curve->at[i][c] += curve->at[i - 1][c];
}

/* Returns the phases that name a buffer of frame f: their rows need its
 * slot. */
static int *phases_naming(Arena *a, const Role *role, int prog, int f)
{
    const Program *program = &role->prog[prog];
    int *names = alloc(a, sizeof(int) * (size_t)program->nphase);

    for (int i = 0; i < role->nbuf; i++)
        for (int k = 0; k < program->nphase && role->buf[i].frame == f + 1 &&
                        role->buf[i].prog == prog;
             k++)
            names[k] |= phase_names(program, &program->phase[k], i);
    return names;
}

RowSpan **frame_rows(Arena *a, const Role *role, int prog,
                     const ScheduleSlot *row)
{
    const Program *program = &role->prog[prog];
    RowSpan **v = alloc(a, sizeof *v * (size_t)(program->nframe + 1));

    for (int f = 0; f < program->nframe; f++) {
        int *names = phases_naming(a, role, prog, f);
        v[f] = alloc(a, sizeof **v * (size_t)(program->frame[f].nof + 1));
        for (int i = 0; i < (int)vec_len(row); i++) {
            RowSpan *span = &v[f][row[i].micro];
            if (!names[row[i].phase])
                continue;
            span->from = span->from ? span->from : i + 1;
            span->to = i + 1;
        }
    }
    return v;
}

/* Finds the bytes of slots; buffers that are not stacks count as temporary. */
static void find_slots(MemoryCurve *curve)
{
    const Program *program = curve->stage->program;

    size_t rows = vec_len(curve->stage->row);
    ScheduleSlot *row = NULL;

    for (size_t i = 0; i < rows; i++)
        vec_push(curve->arena, row, curve->stage->row[i].slot);
    RowSpan **span = frame_rows(curve->arena, curve->role, curve->prog, row);
    curve->frames = alloc(curve->arena, sizeof *curve->frames *
                                            (size_t)(program->nframe + 1));
    curve->slot = alloc(curve->arena,
                        sizeof *curve->slot * (size_t)(program->nframe + 1));
    for (int f = 0; f < program->nframe; f++) {
        curve->frames[f] = alloc(curve->arena, sizeof(int) * (rows + 1));
        for (int k = 0; k < program->frame[f].nof; k++)
            for (int r = span[f][k].from; r && r <= span[f][k].to; r++)
                curve->frames[f][r - 1]++;
        if (!frame_in_host(&program->frame[f]))
            curve->slot[f][Btemp] = program->frame[f].bytes;
    }
    for (int i = 0; i < curve->role->nbuf; i++) {
        const Buf *b = &curve->role->buf[i];
        if (b->prog != curve->prog || !b->frame || b->cls != Bstash)
            continue;
        curve->slot[b->frame - 1][Bstash] += b->bytes;
        curve->slot[b->frame - 1][Btemp] -= b->bytes;
    }
}

static void add_point(MemoryCurve *curve, double time, int instr, int row)
{
    MemoryPoint x = { .time = time, .instr = instr, .row = row };
    const Program *program = curve->stage->program;

    memcpy(x.bytes, curve->at[instr], sizeof x.bytes);
    for (int f = 0; f < program->nframe; f++)
        for (int c = 0; c < NBUFCLASS; c++)
            x.bytes[c] += curve->slot[f][c] * curve->frames[f][row];
    vec_push(curve->arena, curve->point, x);
}

/* Finds the points of the curve; a call has one, at its peak. */
static void find_points(MemoryCurve *curve)
{
    const Program *program = curve->stage->program;
    double now = 0, skipped = 0; /* skipped: seconds of a phase's later runs */

    for (size_t r = 0; r < vec_len(curve->stage->row); r++) {
        const PageRow *row = &curve->stage->row[r];
        const Phase *phase = &program->phase[row->slot.phase];
        int most = phase->first;
        if (phase->repeat && row->slot.micro) {
            skipped += row->end - row->from;
            continue;
        }
        for (int i = phase->first; i < phase->first + phase->n; i++) {
            most = total(curve->at[i]) > total(curve->at[most]) ? i : most;
            now = curve->stage->when[i] > now ? curve->stage->when[i] : now;
            if (phase->repeat)
                add_point(curve, now - skipped, i, (int)r);
        }
        if (!phase->repeat)
            add_point(curve, row->from - skipped, most, (int)r);
    }
}

/* Thins the points to the number that is drawn: of neighbours the largest, at
 * the time of the first. */
static void thin_points(MemoryCurve *curve)
{
    size_t n = vec_len(curve->point), per = (n + POINTS - 1) / POINTS, k = 0;

    for (size_t i = 0; i < n; i += per) {
        MemoryPoint x = curve->point[i];
        for (size_t j = i; j < i + per && j < n; j++)
            if (total(curve->point[j].bytes) > total(x.bytes))
                x = curve->point[j];
        x.time = curve->point[i].time;
        curve->point[k++] = x;
    }
    vec_cut(curve->point, k);
}

/* ---- live buffers -------------------------------------------------------- */

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
    PageAlive *alive = &out->alive[(uintptr_t)*slot - 1];
    alive->count += times;
    alive->bytes += times * b->bytes;
}

static void find_alive(const MemoryCurve *curve, PageMemory *out,
                       const MemoryPoint *most)
{
    Table *at = table_new(curve->arena);

    for (int i = 0; i < curve->role->nbuf; i++) {
        const Buf *b = &curve->role->buf[i];
        if (!is_counted(curve, b) || !b->bytes)
            continue;
        if (b->frame && curve->frames[b->frame - 1][most->row])
            add_alive(out, at, b, curve->frames[b->frame - 1][most->row]);
        else if (b->prog < 0 || (!b->frame && b->born <= most->instr &&
                                 most->instr <= b->dies))
            add_alive(out, at, b, 1);
    }
    vec_sort(out->alive, by_bytes);
}

/* ---- as text ------------------------------------------------------------- */

static void put_curve(Text *out, const MemoryCurve *curve, size_t most)
{
    int once = 0;

    for (int f = 0; f < curve->stage->program->nphase; f++)
        once |= curve->stage->program->phase[f].repeat > 1;
    put(out, "{\"once\":%d,\"at\":%zu,\"time\":[", once, most);
    for (size_t i = 0; i < vec_len(curve->point); i++)
        put(out, "%s%.0f", i ? "," : "", 1e9 * curve->point[i].time);
    put(out, "],\"bytes\":[");
    for (int c = 0; c < NBUFCLASS; c++) {
        put(out, "%s[", c ? "," : "");
        for (size_t i = 0; i < vec_len(curve->point); i++) {
            put(out, i ? "," : "");
            put_int(out, curve->point[i].bytes[c]);
        }
        put(out, "]");
    }
    put(out, "]}");
}

static int64_t bytes_alive(const PageAlive *alive)
{
    int64_t sum = 0;

    for (size_t i = 0; i < vec_len(alive); i++)
        sum += alive[i].bytes;
    return sum;
}

/* Buffers below 1 / LEASTSHARE of all are joined. */
static void put_alive(Text *out, const Plan *p, const PageAlive *alive)
{
    PageAlive rest = { "all others", "", NULL, 0, Btemp, 0, 0 };
    int64_t least = bytes_alive(alive) / LEASTSHARE;

    put(out, "[");
    for (size_t i = 0; i < vec_len(alive); i++) {
        if (i >= ALIVE || alive[i].bytes < least) {
            rest.count += alive[i].count;
            rest.bytes += alive[i].bytes;
            continue;
        }
        put(out, i ? ",[" : "[");
        put_page(out, alive[i].name);
        put(out, ",");
        put_page(out, page_path(p, alive[i].line));
        put(out, ",%d,%ld,%ld]", (int)alive[i].cls, alive[i].count,
            alive[i].bytes);
    }
    if (rest.count)
        put(out, ",[\"all others\",\"\",%d,%ld,%ld]", (int)rest.cls, rest.count,
            rest.bytes);
    put(out, "]");
}

PageMemory page_memory(Arena *a, const PageTime *time, int stage)
{
    const Role *role = &time->plan->role[stage];
    MemoryCurve m = { .arena = a,
                      .role = role,
                      .stage = &time->stage[stage],
                      .prog = role_prog(role, PGstep) };
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
    put_alive(&text, time->plan, out.alive);
    out.text = text.s;
    return out;
}
