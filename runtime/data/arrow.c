/* arrow.c: a column of texts in a file of Arrow's IPC format, as Hugging Face
 * datasets are on disk: messages, each a flatbuffer and the buffers it names
 * (arrow/format/Message.fbs, Schema.fbs). The stream is read, which a file has
 * between its "ARROW1"s. Every place is checked before it is read. */
#include "data.h"

enum { MOSTFIELDS = 1 << 16, CONTINUES = -1 };

typedef enum ArrowType { /* Schema.fbs, union Type */
                         ARROWnull = 1,
                         ARROWbinary = 4,
                         ARROWutf8 = 5,
                         ARROWlist = 12,
                         ARROWstruct = 13,
                         ARROWunion = 14,
                         ARROWfixed_list = 16,
                         ARROWmap = 17,
                         ARROWlarge_binary = 19,
                         ARROWlarge_utf8 = 20,
                         ARROWlarge_list = 21,
                         ARROWrun_end = 22
} ArrowType;

typedef enum ArrowHeader { HEADERschema = 1, HEADERbatch = 3 } ArrowHeader;

struct ArrowRows {
    const uint8_t *map;
    int64_t size, at;     /* the next message */
    int64_t fields;       /* of the schema, met so far */
    int bad;              /* a place beyond the file was asked for */
    int found, wide;      /* the column is there; its offsets have 64 bits */
    int64_t node, buffer; /* its numbers in each batch */
    int64_t rows, row;    /* of this batch */
    int over;             /* there is no message left */
    int64_t valid, offsets, data, bytes; /* places; valid 0: all are */
};

/* ---- places -------------------------------------------------------------- */

/* A little-endian number of n bytes, its sign kept; 0 beyond the file. */
static int64_t number_at(ArrowRows *rows, int64_t at, int n)
{
    uint64_t v = 0;

    if (at < 0 || at > rows->size - n) {
        rows->bad = 1;
        return 0;
    }
    for (int i = 0; i < n; i++)
        v |= (uint64_t)rows->map[at + i] << 8 * i;
    return n == 8                 ? (int64_t)v
           : v >> (8 * n - 1) & 1 ? (int64_t)(v | ~0ull << 8 * n)
                                  : (int64_t)v;
}

static int64_t follow(ArrowRows *rows, int64_t at)
{
    return at ? at + (int64_t)(uint32_t)number_at(rows, at, 4) : 0;
}

/* Field i of a table; 0: it has none. */
static int64_t field_at(ArrowRows *rows, int64_t table, int i)
{
    int64_t entry = table - number_at(rows, table, 4);
    int64_t slot = 4 + 2 * i;

    if (rows->bad || slot + 2 > (uint16_t)number_at(rows, entry, 2))
        return 0;
    int64_t offset = (uint16_t)number_at(rows, entry + slot, 2);
    return offset ? table + offset : 0;
}

/* A vector: its first element, and how many of so many bytes. */
static int64_t vector_at(ArrowRows *rows, int64_t table, int i, int64_t bytes,
                         int64_t *n)
{
    int64_t at = follow(rows, field_at(rows, table, i));

    *n = at ? (uint32_t)number_at(rows, at, 4) : 0;
    if (*n > 0 && *n > (rows->size - at - 4) / bytes)
        rows->bad = 1;
    *n = rows->bad ? 0 : *n;
    return at + 4;
}

/* ---- the schema ---------------------------------------------------------- */

/* Buffers that a field itself has; -1: of a type that is not known here. */
static int64_t buffers_of(ArrowRows *rows, int64_t field)
{
    int64_t at = field_at(rows, field, 2),
            type = at ? number_at(rows, at, 1) : 0;
    int64_t mode = field_at(rows, follow(rows, field_at(rows, field, 3)), 0);

    if (field_at(rows, field, 4)) /* indices of a dictionary */
        return 2;
    switch (type) {
    case ARROWnull:
    case ARROWrun_end: return 0;
    case ARROWstruct:
    case ARROWfixed_list: return 1;
    case ARROWunion: return mode && number_at(rows, mode, 2) ? 2 : 1;
    case ARROWbinary:
    case ARROWutf8:
    case ARROWlarge_binary:
    case ARROWlarge_utf8: return 3;
    default: return type > 0 && type <= ARROWlarge_list ? 2 : -1;
    }
}

/* Counts nodes and buffers of a field and those in it; null, or why not. */
static const char *pass_field(ArrowRows *rows, int64_t field, int depth)
{
    int64_t n, own = buffers_of(rows, field);
    int64_t child = vector_at(rows, field, 5, 4, &n);

    if (rows->bad || own < 0 || depth > 32 || ++rows->fields > MOSTFIELDS)
        return "has a column of a type that is not read";
    rows->node++;
    rows->buffer += own;
    n = field_at(rows, field, 4) ? 0 : n;
    for (int64_t i = 0; i < n; i++) {
        const char *why =
            pass_field(rows, follow(rows, child + 4 * i), depth + 1);
        if (why)
            return why;
    }
    return NULL;
}

static int is_named(ArrowRows *rows, int64_t field, const char *column)
{
    int64_t n, at = vector_at(rows, field, 0, 1, &n);

    return n == (int64_t)strlen(column) && n > 0 &&
           !memcmp(rows->map + at, column, (size_t)n);
}

static const char *read_schema(Arena *mem, ArrowRows *rows, int64_t schema,
                               const char *column)
{
    int64_t n, at = vector_at(rows, schema, 1, 4, &n);

    for (int64_t i = 0; i < n && !rows->found; i++) {
        int64_t field = follow(rows, at + 4 * i);
        int64_t place = field_at(rows, field, 2);
        int64_t type = place ? number_at(rows, place, 1) : 0;
        rows->found = is_named(rows, field, column);
        rows->wide = type == ARROWlarge_utf8;
        if (rows->found && !rows->wide && type != ARROWutf8)
            return strf(mem, "has a column \"%s\" that holds no texts", column);
        const char *why = rows->found ? NULL : pass_field(rows, field, 0);
        if (why)
            return why;
    }
    return rows->found ? NULL
                       : strf(mem, "has no column \"%s\" (data.field)", column);
}

/* ---- batches ------------------------------------------------------------- */

/* Where buffer i of a batch lies: its bytes. */
static int64_t buffer_at(ArrowRows *rows, int64_t first, int64_t body,
                         int64_t i, int64_t *place)
{
    int64_t offset = number_at(rows, first + 16 * i, 8);
    int64_t bytes = number_at(rows, first + 16 * i + 8, 8);

    if (offset < 0 || bytes < 0 || offset > rows->size - body ||
        bytes > rows->size - body - offset)
        rows->bad = 1;
    *place = rows->bad ? 0 : body + offset;
    return rows->bad ? 0 : bytes;
}

static const char *read_batch(ArrowRows *rows, int64_t batch, int64_t body)
{
    int64_t nodes, buffers, node = vector_at(rows, batch, 1, 16, &nodes);
    int64_t first = vector_at(rows, batch, 2, 16, &buffers);

    if (field_at(rows, batch, 3))
        return "is compressed inside, which is not read";
    if (rows->bad || rows->node >= nodes || rows->buffer + 3 > buffers)
        return "is damaged";
    rows->rows = number_at(rows, node + 16 * rows->node, 8);
    rows->row = 0;
    int64_t has = buffer_at(rows, first, body, rows->buffer, &rows->valid);
    int64_t offsets =
        buffer_at(rows, first, body, rows->buffer + 1, &rows->offsets);
    rows->bytes = buffer_at(rows, first, body, rows->buffer + 2, &rows->data);
    int64_t each = rows->wide ? 8 : 4;
    if (rows->bad || rows->rows < 0 ||
        (rows->rows && rows->rows >= offsets / each) ||
        (has && has < (rows->rows + 7) / 8))
        return "is damaged";
    rows->valid = has ? rows->valid : 0;
    return NULL;
}

/* The next message that is wanted. */
static const char *next_message(Arena *mem, ArrowRows *rows, const char *column)
{
    while (rows->at < rows->size) {
        int64_t head = number_at(rows, rows->at + 4, 4), start = rows->at + 8;
        if (number_at(rows, rows->at, 4) != CONTINUES || rows->bad)
            return "is damaged";
        if (!head)
            break;
        int64_t message = start + (uint32_t)number_at(rows, start, 4);
        int64_t length = field_at(rows, message, 3);
        int64_t body = start + head,
                n = length ? number_at(rows, length, 8) : 0;
        int64_t kind = field_at(rows, message, 1);
        int64_t table = follow(rows, field_at(rows, message, 2));
        if (rows->bad || head < 0 || n < 0 || n > rows->size - body)
            return "is cut off";
        rows->at = body + n;
        kind = kind ? number_at(rows, kind, 1) : 0;
        if (kind == HEADERschema && !rows->found)
            return read_schema(mem, rows, table, column);
        if (kind == HEADERbatch && rows->found)
            return read_batch(rows, table, body);
    }
    rows->over = 1;
    return NULL;
}

/* ---- interface ----------------------------------------------------------- */

const char *arrow_open(Arena *mem, ArrowRows **out, const char *path,
                       const char *column)
{
    ArrowRows *a = alloc(mem, sizeof *a);
    const char *why = map_whole(mem, path, &a->map, &a->size);

    *out = a;
    if (why)
        return why;
    a->at = a->size >= 8 && !memcmp(a->map, "ARROW1\0", 8) ? 8 : 0;
    why = next_message(mem, a, column);
    return why || a->found ? why : "is no file of Arrow's IPC format";
}

const char *arrow_next(ArrowRows *rows, const char **why, size_t *n)
{
    while (rows->row == rows->rows) {
        rows->rows = rows->row = 0;
        *why = next_message(forever, rows, NULL);
        if (*why || rows->over)
            return NULL;
    }
    int64_t i = rows->row++, each = rows->wide ? 8 : 4;
    int64_t from = number_at(rows, rows->offsets + i * each, (int)each);
    int64_t to = number_at(rows, rows->offsets + (i + 1) * each, (int)each);
    if (rows->valid && !(rows->map[rows->valid + i / 8] >> i % 8 & 1))
        from = to = 0;
    if (from < 0 || to < from || to > rows->bytes) {
        *why = "is damaged";
        return NULL;
    }
    *n = (size_t)(to - from);
    return (const char *)rows->map + rows->data + from;
}

void arrow_close(ArrowRows *rows)
{
    if (rows && rows->map)
        munmap((void *)(uintptr_t)rows->map, (size_t)rows->size);
}
