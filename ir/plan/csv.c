/* csv.c: schedules as tables of PyTorch's pipelining: a line per rank, a cell
 * per act.
 *
 *     0F0,0F1,1F0,(0F2;1B0)OVERLAP_F_B,,0I0,0W0
 *
 * Chunk, work, micro-batch; B is a whole backward, I and W its two halves; an
 * empty cell is idle time, without effect on the order. Cells of transfers and
 * of gathered parameters (2RECV_F0, 1UNSHARD) are ignored: here they follow
 * from the types. */
#include "plan.h"

enum { MOST = 1 << 20 }; /* limit of chunks, micro-batches, ranks */

typedef struct Csv {
    Arena *arena;
    const char *p, *end; /* rest of the line */
    Loc at;
    Schedule *s;
    int *rank; /* vec: [chunk], -1: none yet */
    int cells;
} Csv;

static _Noreturn void bad_cell(const Csv *csv, const char *cell)
{
    int n = (int)(csv->end - cell), k = 0;
    while (k < n && k < 40 && cell[k] != ',' && (unsigned char)cell[k] >= ' ')
        k++;
    err(&csv->at,
        "'%.*s' is not a cell like 0F0, 2B1, 3I0, 3W0 or (0F1;3B1)OVERLAP_F_B",
        k, cell);
}

static void blanks(Csv *csv)
{
    while (csv->p < csv->end && *csv->p == ' ')
        csv->p++;
}

static int digits(Csv *csv, int *v)
{
    const char *from = csv->p;
    *v = 0;
    for (; csv->p < csv->end && *csv->p >= '0' && *csv->p <= '9'; csv->p++)
        *v = *v < MOST ? *v * 10 + (*csv->p - '0') : MOST;
    return csv->p > from;
}

static int take(Csv *csv, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(csv->end - csv->p) < n || memcmp(csv->p, word, n))
        return 0;
    csv->p += n;
    return 1;
}

/* Is it another cell of PyTorch's tables, which is ignored? */
static int other_cell(Csv *csv)
{
    static const char *const words[] = {
        "SEND_F",  "RECV_F",  "SEND_B",      "RECV_B",
        "UNSHARD", "RESHARD", "REDUCE_GRAD",
    };
    for (int i = 0; i < countof(words); i++)
        if (take(csv, words[i]))
            return 1;
    return 0;
}

static void seen_on(Csv *csv, const ScheduleEntry *entry)
{
    while (vec_len(csv->rank) <= (size_t)entry->chunk)
        vec_push(csv->arena, csv->rank, -1);
    if (csv->rank[entry->chunk] < 0)
        csv->rank[entry->chunk] = csv->s->ranks;
    csv->s->micros =
        entry->micro >= csv->s->micros ? entry->micro + 1 : csv->s->micros;
    csv->cells++;
}

/* Appends "0F3" to the row. Returns 0 for an ignored cell. */
static int act(Csv *csv, ScheduleEntry **row, const char *cell)
{
    ScheduleEntry q = { .pair = 0 };
    if (!digits(csv, &q.chunk) || q.chunk == MOST || csv->p == csv->end)
        bad_cell(csv, cell);
    if (other_cell(csv)) {
        digits(csv, &q.micro);
        return 0;
    }
    const char *job = strchr(jobnames, *csv->p++);
    if (!job || !*job || !digits(csv, &q.micro) || q.micro == MOST)
        bad_cell(csv, cell);
    q.w = (WorkKind)(job - jobnames);
    seen_on(csv, &q);
    vec_push(csv->arena, *row, q);
    return 1;
}

static void cell(Csv *csv, ScheduleEntry **row)
{
    blanks(csv);
    const char *from = csv->p;
    if (csv->p == csv->end || *csv->p == ',')
        return;
    if (!take(csv, "(")) {
        act(csv, row, from);
    } else {
        size_t first = vec_len(*row);
        if (!act(csv, row, from) || !take(csv, ";") || !act(csv, row, from) ||
            !take(csv, ")OVERLAP_F_B"))
            bad_cell(csv, from);
        (*row)[first].pair = 1;
    }
    blanks(csv);
    if (csv->p < csv->end && *csv->p != ',')
        bad_cell(csv, from);
}

static void line(Csv *csv)
{
    ScheduleEntry *row = NULL;
    for (;;) {
        cell(csv, &row);
        if (csv->p == csv->end)
            break;
        csv->p++;
    }
    if (!vec_len(row))
        err(&csv->at, "rank %d has nothing to do", csv->s->ranks);
    vec_push(csv->arena, csv->s->row, row);
    csv->s->ranks++;
}

static void lines(Csv *csv, const char *text, size_t len)
{
    const char *end = text + len;
    while (end > text && strchr("\r\n", end[-1]) && end[-1])
        end--;
    for (const char *p = text; p < end; p = csv->end + 1) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        csv->at.line++;
        csv->p = p;
        csv->end = nl ? nl : end;
        const char *stop = csv->end;
        if (csv->end > p && csv->end[-1] == '\r')
            csv->end--;
        line(csv);
        csv->end = stop;
    }
}

static void check(Csv *csv)
{
    Schedule *s = csv->s;
    int r = 0;
    s->chunks = (int)vec_len(csv->rank);
    s->rank = csv->rank;
    for (int k = 0; k < s->chunks; k++)
        if (s->rank[k] < 0)
            err(&csv->at, "no rank has chunk %d, and there are %d", k,
                s->chunks);
    /* limits allocations by the text's size */
    if ((int64_t)s->chunks * s->micros > csv->cells)
        err(&csv->at, "%d cells are too few for %d chunks of %d micro-batches",
            csv->cells, s->chunks, s->micros);
    const char *why = schedule_wrong(csv->arena, s, &r);
    csv->at.line = r + 1;
    if (why)
        err(&csv->at, "rank %d: %s", r, why);
}

Schedule *schedule_csv(Arena *a, const char *text, size_t len, const char *name)
{
    Schedule *s = alloc(a, sizeof *s);
    Csv c = { .arena = a, .s = s, .at = { intern(name), 0, 0 } };
    s->name = c.at.file;
    lines(&c, text, len);
    if (!s->ranks) {
        c.at.line = 1;
        err(&c.at, "a schedule without ranks");
    }
    check(&c);
    return s;
}

Schedule *schedule_read(Arena *a, const char *path)
{
    size_t n;
    char *s = file_read(a, path, &n);

    return s ? schedule_csv(a, s, n, path) : NULL;
}

static void put_act(Text *out, const ScheduleEntry *entry)
{
    put(out, "%d%c%d", entry->chunk, jobnames[entry->w], entry->micro);
}

char *schedule_print(Arena *a, const Schedule *schedule)
{
    Text out = { .arena = a };
    for (int r = 0; r < schedule->ranks; r++) {
        const ScheduleEntry *row = schedule->row[r];
        for (size_t i = 0; i < vec_len(row); i++) {
            const char *open = row[i].pair ? "(" : "";
            put(&out, "%s%s", i ? "," : "", open);
            put_act(&out, &row[i]);
            if (!*open)
                continue;
            putn(&out, ";", 1);
            put_act(&out, &row[++i]);
            put(&out, ")OVERLAP_F_B");
        }
        putn(&out, "\n", 1);
    }
    return out.s;
}
