/* csv.c: schedules in the table form of PyTorch's pipelining: a line a rank, a
 * cell an act.
 *
 *     0F0,0F1,1F0,(0F2;1B0)OVERLAP_F_B,,0I0,0W0
 *
 * Chunk, job, micro-batch; B all of a backward, I and W its two halves; an
 * empty cell is a moment without work, which says nothing of the order. Cells
 * of transfers and of gathered parameters (2RECV_F0, 1UNSHARD) are read and
 * left out: here they follow from the types. */
#include <string.h>
#include "plan.h"

enum { MOST = 1 << 20 }; /* chunks, micro-batches, ranks */

typedef struct Csv {
    Arena *arena;
    const char *p, *end; /* what is left of the line */
    Loc at;
    Schedule *s;
    int *rank; /* vec: by chunk, -1: none yet */
    int cells;
} Csv;

static _Noreturn void bad_cell(const Csv *c, const char *cell)
{
    int n = (int)(c->end - cell), k = 0;
    while (k < n && k < 40 && cell[k] != ',' && (unsigned char)cell[k] >= ' ')
        k++;
    err(&c->at,
        "'%.*s' is not a cell like 0F0, 2B1, 3I0, 3W0 or (0F1;3B1)OVERLAP_F_B",
        k, cell);
}

static void blanks(Csv *c)
{
    while (c->p < c->end && *c->p == ' ')
        c->p++;
}

static int digits(Csv *c, int *v)
{
    const char *from = c->p;
    *v = 0;
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++)
        *v = *v < MOST ? *v * 10 + (*c->p - '0') : MOST;
    return c->p > from;
}

static int take(Csv *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n))
        return 0;
    c->p += n;
    return 1;
}

/* What the tables of PyTorch's runtime also hold. */
static int other_cell(Csv *c)
{
    static const char *const words[] = {
        "SEND_F",  "RECV_F",  "SEND_B",      "RECV_B",
        "UNSHARD", "RESHARD", "REDUCE_GRAD",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take(c, words[i]))
            return 1;
    return 0;
}

static void seen_on(Csv *c, const ScheduleEntry *q)
{
    while (vec_len(c->rank) <= (size_t)q->chunk)
        vec_push(c->arena, c->rank, -1);
    if (c->rank[q->chunk] < 0)
        c->rank[q->chunk] = c->s->ranks;
    c->s->micros = q->micro >= c->s->micros ? q->micro + 1 : c->s->micros;
    c->cells++;
}

/* "0F3" to the row; zero: a cell that is left out. */
static int act(Csv *c, ScheduleEntry **row, const char *cell)
{
    ScheduleEntry q = { .pair = 0 };
    if (!digits(c, &q.chunk) || q.chunk == MOST || c->p == c->end)
        bad_cell(c, cell);
    if (other_cell(c)) {
        digits(c, &q.micro);
        return 0;
    }
    const char *job = strchr(jobnames, *c->p++);
    if (!job || !*job || !digits(c, &q.micro) || q.micro == MOST)
        bad_cell(c, cell);
    q.w = (WorkKind)(job - jobnames);
    seen_on(c, &q);
    vec_push(c->arena, *row, q);
    return 1;
}

static void cell(Csv *c, ScheduleEntry **row)
{
    blanks(c);
    const char *from = c->p;
    if (c->p == c->end || *c->p == ',')
        return;
    if (!take(c, "(")) {
        act(c, row, from);
    } else {
        size_t first = vec_len(*row);
        if (!act(c, row, from) || !take(c, ";") || !act(c, row, from) ||
            !take(c, ")OVERLAP_F_B"))
            bad_cell(c, from);
        (*row)[first].pair = 1;
    }
    blanks(c);
    if (c->p < c->end && *c->p != ',')
        bad_cell(c, from);
}

static void line(Csv *c)
{
    ScheduleEntry *row = NULL;
    for (;;) {
        cell(c, &row);
        if (c->p == c->end)
            break;
        c->p++;
    }
    if (!vec_len(row))
        err(&c->at, "rank %d has nothing to do", c->s->ranks);
    vec_push(c->arena, c->s->row, row);
    c->s->ranks++;
}

static void lines(Csv *c, const char *text, size_t len)
{
    const char *end = text + len;
    while (end > text && strchr("\r\n", end[-1]) && end[-1])
        end--;
    for (const char *p = text; p < end; p = c->end + 1) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        c->at.line++;
        c->p = p;
        c->end = nl ? nl : end;
        const char *stop = c->end;
        if (c->end > p && c->end[-1] == '\r')
            c->end--;
        line(c);
        c->end = stop;
    }
}

static void check(Csv *c)
{
    Schedule *s = c->s;
    int r = 0;
    s->chunks = (int)vec_len(c->rank);
    s->rank = c->rank;
    for (int k = 0; k < s->chunks; k++)
        if (s->rank[k] < 0)
            err(&c->at, "no rank has chunk %d, and there are %d", k, s->chunks);
    /* bounds what is allocated by the text's size */
    if ((int64_t)s->chunks * s->micros > c->cells)
        err(&c->at, "%d cells are too few for %d chunks of %d micro-batches",
            c->cells, s->chunks, s->micros);
    const char *why = schedule_wrong(c->arena, s, &r);
    c->at.line = r + 1;
    if (why)
        err(&c->at, "rank %d: %s", r, why);
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

static void put_act(Text *out, const ScheduleEntry *q)
{
    put(out, "%d%c%d", q->chunk, jobnames[q->w], q->micro);
}

char *schedule_print(Arena *a, const Schedule *s)
{
    Text out = { .arena = a };
    for (int r = 0; r < s->ranks; r++) {
        const ScheduleEntry *row = s->row[r];
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
