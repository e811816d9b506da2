/* arrow.c: a column of texts in a file of Arrow's IPC format, as Hugging Face
 * datasets are on disk: messages, each a flatbuffer and its buffers
 * (arrow/format/Message.fbs, Schema.fbs), consecutive in a stream, listed in
 * the footer of a file. Every offset is checked before it is read. */
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
                         ARROWrun_end = 22,
                         ARROWbinary_view = 23,
                         ARROWutf8_view = 24,
                         ARROWlarge_list_view = 26
} ArrowType;

typedef enum ArrowHeader {
    HEADERschema = 1,
    HEADERdictionary,
    HEADERbatch
} ArrowHeader;

/* Entry of a text, by bytes: an offset of 32 or 64 bits; or a view: a length,
 * then 4 bytes of the text and its place, or the whole text. */
typedef enum ArrowEntry {
    ENTRYoffset = 4,
    ENTRYwide = 8,
    ENTRYview = 16
} ArrowEntry;

/* Texts of a batch: offsets of its buffers; valid 0: no nulls. list: place of
 * the list of view buffers. */
typedef struct ArrowTexts {
    int64_t rows, valid, entries, data, bytes, list, lists, body;
} ArrowTexts;

typedef struct ArrowPlace { /* place of a column in batches */
    int64_t node, buffer;
    int64_t views; /* columns of views before it, each with more buffers */
} ArrowPlace;

struct ArrowRows {
    const uint8_t *map;
    int64_t size, at;            /* offset of the next message */
    int file;                    /* a footer lists the places of messages: */
    int64_t block[2], blocks[2]; /* dictionaries, batches; remaining ones */
    int64_t fields;              /* fields of the schema visited so far */
    int bad;                     /* an offset beyond the file was read */
    int found;                   /* the column exists */
    ArrowEntry entry;
    ArrowPlace place;
    int64_t row;      /* row of the batch */
    int over;         /* no message is left */
    ArrowTexts batch; /* texts, or indices of a dictionary */
    int64_t dictionary;
    int index;         /* bytes of an index; 0: no dictionary */
    ArrowTexts *words; /* vec: parts of the dictionary */
};

/* ---- places -------------------------------------------------------------- */

/* Returns a signed little-endian number of n bytes; 0 beyond the file. */
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

/* Returns the offset of field i of a table; 0: absent. */
static int64_t field_at(ArrowRows *rows, int64_t table, int i)
{
    int64_t entry = table - number_at(rows, table, 4);
    int64_t slot = 4 + 2 * i;

    if (rows->bad || slot + 2 > (uint16_t)number_at(rows, entry, 2))
        return 0;
    int64_t offset = (uint16_t)number_at(rows, entry + slot, 2);
    return offset ? table + offset : 0;
}

/* Returns the offset of a vector's first element, and its number of elements of
 * `bytes` each. */
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

/* Returns the number of buffers of a field itself; -1: unknown type. */
static int64_t buffers_of(ArrowRows *rows, int64_t field)
{
    int64_t at = field_at(rows, field, 2),
            type = at ? number_at(rows, at, 1) : 0;
    int64_t mode = field_at(rows, follow(rows, field_at(rows, field, 3)), 0);

    if (field_at(rows, field, 4)) /* dictionary: the field has indices */
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
    case ARROWbinary_view:
    case ARROWutf8_view: rows->place.views++; return 2;
    default:
        return type > ARROWutf8_view && type <= ARROWlarge_list_view ? 3
               : type > 0 && type <= ARROWlarge_list                 ? 2
                                                                     : -1;
    }
}

/* Counts nodes and buffers of a field and its children. Returns null, or the
 * reason why not. */
static const char *pass_field(ArrowRows *rows, int64_t field, int depth)
{
    int64_t n, own = buffers_of(rows, field);
    int64_t child = vector_at(rows, field, 5, 4, &n);

    if (rows->bad || own < 0 || depth > 32 || ++rows->fields > MOSTFIELDS)
        return "has a column of a type that is not read";
    rows->place.node++;
    rows->place.buffer += own;
    n = field_at(rows, field, 4) ? 0 : n;
    for (int64_t i = 0; i < n; i++) {
        const char *why =
            pass_field(rows, follow(rows, child + 4 * i), depth + 1);
        if (why)
            return why;
    }
    return NULL;
}

/* Reads a column's dictionary encoding: id of the dictionary and bytes of an
 * index (Int: bitWidth, is_signed). */
static void read_dictionary(ArrowRows *rows, int64_t encoding)
{
    int64_t id = field_at(rows, encoding, 0);
    int64_t type = follow(rows, field_at(rows, encoding, 1));
    int64_t width = type ? field_at(rows, type, 0) : 0;
    int64_t bits = width ? number_at(rows, width, 4) : 32;

    rows->dictionary = id ? number_at(rows, id, 8) : 0;
    rows->index = (int)bits / 8;
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
        rows->bad = 1;
}

/* Stores the wanted column. */
static const char *take_column(Arena *mem, ArrowRows *rows, int64_t field,
                               int64_t type, const char *column)
{
    int64_t encoding = follow(rows, field_at(rows, field, 4));

    rows->found = 1;
    rows->entry = type == ARROWlarge_utf8  ? ENTRYwide
                  : type == ARROWutf8_view ? ENTRYview
                                           : ENTRYoffset;
    if (rows->entry == ENTRYoffset && type != ARROWutf8)
        return strf(mem, "has a column \"%s\" that holds no texts", column);
    if (encoding)
        read_dictionary(rows, encoding);
    return rows->bad ? "is damaged" : NULL;
}

static const char *read_schema(Arena *mem, ArrowRows *rows, int64_t schema,
                               const char *column)
{
    int64_t n, len, at = vector_at(rows, schema, 1, 4, &n);
    Text names = { .arena = mem };

    for (int64_t i = 0; i < n; i++) {
        int64_t field = follow(rows, at + 4 * i);
        int64_t place = field_at(rows, field, 2);
        int64_t type = place ? number_at(rows, place, 1) : 0;
        int64_t name = vector_at(rows, field, 0, 1, &len);
        const char *s = len ? (const char *)rows->map + name : "";
        if (len == (int64_t)strlen(column) && !memcmp(s, column, (size_t)len))
            return take_column(mem, rows, field, type, column);
        name_add(&names, s, len);
        const char *why = pass_field(rows, field, 0);
        if (why)
            return why;
    }
    return no_column(mem, column, &names);
}

/* ---- batches ------------------------------------------------------------- */

/* Returns the offset of buffer i of a batch, and its bytes. */
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

/* Reads the column at this place of a batch; each: bytes of an entry. */
static const char *read_texts(ArrowRows *rows, int64_t batch, int64_t body,
                              ArrowPlace place, int64_t each, int index,
                              ArrowTexts *t)
{
    int64_t nodes, buffers, lists, node = vector_at(rows, batch, 1, 16, &nodes);
    int64_t first = vector_at(rows, batch, 2, 16, &buffers), k = place.buffer;
    int64_t list = vector_at(rows, batch, 4, 8, &lists);
    int views = !index && each == ENTRYview;

    if (field_at(rows, batch, 3))
        return "is compressed inside, which is not read";
    *t = (ArrowTexts){ .body = body };
    for (int64_t i = 0; i < place.views + views; i++) {
        t->lists = i < lists ? number_at(rows, list + 8 * i, 8) : -1;
        if (t->lists < 0 || t->lists > buffers)
            return "is damaged";
        k += i < place.views ? t->lists : 0;
    }
    t->list = first + 16 * (k + 2);
    if (rows->bad || place.node >= nodes ||
        k + 2 + (views ? t->lists : !index) > buffers)
        return "is damaged";
    t->rows = number_at(rows, node + 16 * place.node, 8);
    int64_t has = buffer_at(rows, first, body, k, &t->valid);
    int64_t bytes = buffer_at(rows, first, body, k + 1, &t->entries);
    if (!views && !index)
        t->bytes = buffer_at(rows, first, body, k + 2, &t->data);
    int64_t ends = !views && !index; /* there is one more offset than rows */
    if (rows->bad || t->rows < 0 ||
        (t->rows && t->rows > bytes / each - ends) ||
        (has && has < (t->rows + 7) / 8))
        return "is damaged";
    t->valid = has ? t->valid : 0;
    return NULL;
}

static const char *read_batch(ArrowRows *rows, int64_t batch, int64_t body)
{
    rows->row = 0;
    return read_texts(rows, batch, body, rows->place,
                      rows->index ? rows->index : (int)rows->entry,
                      rows->index > 0, &rows->batch);
}

/* Reads a part of a dictionary; a part that is not a delta replaces it. */
static const char *read_words(Arena *mem, ArrowRows *rows, int64_t table,
                              int64_t body)
{
    int64_t id = field_at(rows, table, 0), delta = field_at(rows, table, 2);
    int64_t batch = follow(rows, field_at(rows, table, 1));
    ArrowTexts part;

    if ((id ? number_at(rows, id, 8) : 0) != rows->dictionary || !rows->index)
        return NULL;
    const char *why =
        read_texts(rows, batch, body, (ArrowPlace){ 0 }, rows->entry, 0, &part);
    if (!delta || !number_at(rows, delta, 1))
        rows->words = NULL;
    vec_push(mem, rows->words, part);
    return why;
}

/* Moves to the next message, of the stream or of the footer's list. Returns 0
 * if there is none. */
static int seek_message(ArrowRows *rows)
{
    enum { BLOCK = 24 };

    if (!rows->file)
        return rows->at < rows->size;
    for (int i = 0; i < 2; i++)
        if (rows->blocks[i] > 0) {
            rows->at = number_at(rows, rows->block[i], 8);
            rows->block[i] += BLOCK;
            rows->blocks[i]--;
            return 1;
        }
    return 0;
}

/* Reads messages up to the next batch. */
static const char *next_message(Arena *mem, ArrowRows *rows, const char *column)
{
    while (seek_message(rows)) {
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
        const char *why = kind == HEADERdictionary && rows->found
                              ? read_words(mem, rows, table, body)
                              : NULL;
        if (why)
            return why;
    }
    rows->over = 1;
    return NULL;
}

/* ---- interface ----------------------------------------------------------- */

/* Reads the footer at the end of a file (File.fbs: version, schema,
 * dictionaries, batches), which is followed by its length and "ARROW1". */
static const char *read_footer(Arena *mem, ArrowRows *rows, const char *column)
{
    int64_t tail = rows->size - 10, bytes, footer;

    rows->file = 1;
    bytes = tail < 8 ? -1 : number_at(rows, tail, 4);
    if (bytes < 0 || bytes > tail - 8 ||
        memcmp(rows->map + tail + 4, "ARROW1", 6) != 0)
        return "is cut off";
    footer = tail - bytes;
    footer += (uint32_t)number_at(rows, footer, 4);
    for (int i = 0; i < 2; i++)
        rows->block[i] = vector_at(rows, footer, 2 + i, 24, &rows->blocks[i]);
    int64_t schema = follow(rows, field_at(rows, footer, 1));
    return rows->bad ? "is damaged" : read_schema(mem, rows, schema, column);
}

const char *arrow_open(Arena *mem, ArrowRows **out, const char *path,
                       const char *column)
{
    ArrowRows *a = alloc(mem, sizeof *a);
    const char *why = map_whole(mem, path, &a->map, &a->size);

    *out = a;
    if (why)
        return why;
    why = a->size >= 8 && !memcmp(a->map, "ARROW1\0", 8)
              ? read_footer(mem, a, column)
              : next_message(mem, a, column);
    return why || a->found ? why : "is no file of Arrow's IPC format";
}

static int is_null(const ArrowRows *rows, const ArrowTexts *t, int64_t i)
{
    return t->valid && !(rows->map[t->valid + i / 8] >> i % 8 & 1);
}

/* Returns the offset of a text by its view. */
static int64_t view_at(ArrowRows *rows, const ArrowTexts *t, int64_t i,
                       int64_t *at)
{
    enum { INSIDE = 12 };
    int64_t view = t->entries + i * ENTRYview, place;
    int64_t n = number_at(rows, view, 4), k = number_at(rows, view + 8, 4);
    int64_t from = number_at(rows, view + 12, 4);

    *at = view + 4;
    if (n <= INSIDE)
        return n;
    if (k < 0 || k >= t->lists || from < 0)
        return -1;
    int64_t bytes = buffer_at(rows, t->list, t->body, k, &place);
    *at = place + from;
    return n > bytes - from ? -1 : n;
}

/* Returns text i of a batch; null: the file is damaged. */
static const char *text_at(ArrowRows *rows, const ArrowTexts *t, int64_t i,
                           size_t *n)
{
    int each = (int)rows->entry;
    int64_t len, at;

    if (is_null(rows, t, i))
        return "";
    if (rows->entry == ENTRYview) {
        len = view_at(rows, t, i, &at);
    } else {
        at = number_at(rows, t->entries + i * each, each);
        len = number_at(rows, t->entries + (i + 1) * each, each);
        len = at < 0 || len < at || len > t->bytes ? -1 : len - at;
        at += t->data;
    }
    *n = len < 0 ? 0 : (size_t)len;
    return len < 0 || rows->bad ? NULL : (const char *)rows->map + at;
}

/* Returns the dictionary's text of index i of the batch. */
static const char *word_at(ArrowRows *rows, int64_t i, size_t *n)
{
    const ArrowTexts *t = &rows->batch;
    int64_t k = number_at(rows, t->entries + i * rows->index, rows->index);

    if (is_null(rows, t, i))
        return "";
    if (rows->index < 8) /* signed and unsigned */
        k &= (1ll << 8 * rows->index) - 1;
    for (size_t part = 0; k >= 0 && part < vec_len(rows->words); part++) {
        if (k < rows->words[part].rows)
            return text_at(rows, &rows->words[part], k, n);
        k -= rows->words[part].rows;
    }
    return NULL;
}

const char *arrow_next(Arena *mem, ArrowRows *rows, const char **why, size_t *n)
{
    while (rows->row == rows->batch.rows) {
        rows->batch.rows = rows->row = 0;
        *why = next_message(mem, rows, NULL);
        if (*why || rows->over)
            return NULL;
    }
    *n = 0;
    int64_t i = rows->row++;
    const char *s =
        rows->index ? word_at(rows, i, n) : text_at(rows, &rows->batch, i, n);
    *why = s ? NULL : "is damaged";
    return s;
}

void arrow_close(ArrowRows *rows)
{
    if (rows && rows->map)
        munmap((void *)(uintptr_t)rows->map, (size_t)rows->size);
}
