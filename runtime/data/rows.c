/* rows.c: reads the documents of a file of texts in order: JSON values (lines,
 * an array, or values separated by white space), records of csv and tsv, rows
 * of tables (arrow.c, parquet.c), or one text. */
#include "../../ir/settings/keys.h"
#include "data.h"

/* ---- characters ---------------------------------------------------------- */

/* Reads until the character at offset i is in the buffer. Returns 0 at the
 * end. */
static int reach(TextRows *rows, size_t i)
{
    while (rows->at + i >= rows->buf.n) {
        if (rows->at) {
            memmove(rows->buf.s, rows->buf.s + rows->at,
                    rows->buf.n -= rows->at);
            rows->at = 0;
        }
        if (!stream_read(rows->in, &rows->buf))
            return 0;
    }
    return 1;
}

/* Returns the character at offset i; -1: end. */
static inline int peek(TextRows *rows, size_t i)
{
    return rows->at + i < rows->buf.n || reach(rows, i)
               ? (uint8_t)rows->buf.s[rows->at + i]
               : -1;
}

static void pass(TextRows *rows, size_t n)
{
    for (; n--; rows->at++)
        rows->line += rows->buf.s[rows->at] == '\n';
}

/* ---- JSON ---------------------------------------------------------------- */

static int json_space(int c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static int pass_spaces(TextRows *rows)
{
    int c;

    while (json_space(c = peek(rows, 0)))
        pass(rows, 1);
    return c;
}

/* Skips ordinary characters of a string. */
static size_t plain(const TextRows *rows, size_t i)
{
    const char *s = rows->buf.s + rows->at;
    size_t n = rows->buf.n - rows->at;

    while (i < n && s[i] != '"' && s[i] != '\\' && s[i] != '\n')
        i++;
    return i;
}

/* Returns the bytes of the value here, by brackets and quotes only. A string
 * ends with its line, so that an unclosed one does not include later rows. */
static size_t value_size(TextRows *rows)
{
    int depth = 0, quoted = 0, c;

    for (size_t i = 0; (c = peek(rows, i = quoted ? plain(rows, i) : i)) >= 0;
         i++) {
        if (quoted) {
            quoted = c != '"';
            i += c == '\\';
            if (c == '\n' || (!quoted && !depth))
                return i + 1;
            continue;
        }
        if (!depth && i && (json_space(c) || c == ',' || c == ']' || c == '}'))
            return i;
        quoted = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth <= 0 && (c == '}' || c == ']' || c == ','))
            return i + 1;
    }
    return rows->buf.n - rows->at;
}

/* Skips the separator between two values. Returns 0 at the end, or sets
 * rows->why. */
static int pass_comma(TextRows *rows)
{
    int c = pass_spaces(rows);

    if (rows->array && c == ']') {
        pass(rows, 1);
        rows->array = 0;
        c = pass_spaces(rows);
        rows->why = c >= 0 ? "has more behind its array" : NULL;
        return 0;
    }
    if (rows->array && rows->number && c != ',')
        rows->why = c < 0 ? "is cut off inside its array"
                          : "lacks a comma between elements of its array";
    else if (rows->array && rows->number)
        pass(rows, 1);
    else if (rows->array && c < 0)
        rows->why = "is cut off inside its array";
    return !rows->why;
}

static const char *json_next(TextRows *rows, size_t *n)
{
    if (!rows->number && pass_spaces(rows) == '[') {
        pass(rows, 1);
        rows->array = 1;
    }
    if (!pass_comma(rows) || pass_spaces(rows) < 0)
        return NULL;
    rows->number = rows->line;
    *n = value_size(rows);
    const char *s = rows->buf.s + rows->at;
    pass(rows, *n);
    return s;
}

/* Returns a malloc'd message: the row lacks the key and has others. */
static char *lacks(JsonValue row, const char *field)
{
    Arena *a = arena_new();
    Text names = { .arena = a };
    JsonValue key, v;

    for (size_t at = 0; jv_next(row, &at, &key, &v);)
        name_add(&names, key.s + 1, (int64_t)key.n - 2);
    char *said = strdup(no_column(a, field, &names));
    arena_free(a);
    return said;
}

char *json_text(const char *row, size_t n, const char *field, char *to,
                size_t *len)
{
    JsonValue in, text;
    JsonError e;

    *len = 0;
    if (jv_open(row, n, &in, &e))
        return strdup(e.why);
    text = jv_kind(in) == JSONstring ? in : jv_get(in, field);
    if (jv_kind(text) == JSONnull)
        return NULL;
    if (!text.s)
        return jv_kind(in) == JSONobject
                   ? lacks(in, field)
                   : strdup("is no object of JSON with texts");
    const char *why = jv_decode(text, to, len);
    char *said = NULL;
    if (why && asprintf(&said, "has a \"%s\" that %s", field, why) < 0)
        said = strdup(why);
    return said;
}

/* ---- csv ----------------------------------------------------------------- */

/* Reads the next field of a record to rows->field, with the quoting of Python's
 * csv. Returns the character after it: the separator, '\n', or -1 at the
 * end. */
static int take_field(TextRows *rows, int separator)
{
    int quoted = peek(rows, 0) == '"', c;
    int64_t line = rows->line;

    rows->field.n = 0;
    pass(rows, (size_t)quoted);
    while ((c = peek(rows, 0)) >= 0) {
        pass(rows, 1);
        if (quoted && c == '"') {
            quoted = peek(rows, 0) == '"';
            if (!quoted)
                continue;
            pass(rows, 1);
        } else if (!quoted && (c == separator || c == '\n' || c == '\r')) {
            if (c == '\r' && peek(rows, 0) == '\n')
                pass(rows, 1);
            return c == separator ? c : '\n';
        }
        bytes_add(&rows->field, &(char){ (char)c }, 1);
    }
    if (quoted)
        rows->why =
            strf(rows->mem, "has a quote in line %ld that is not closed", line);
    return -1;
}

static int is_field(const TextRows *rows, const char *name)
{
    return rows->field.n == strlen(name) &&
           !memcmp(rows->field.s, name, rows->field.n);
}

/* Opens a csv or tsv; its first record has the names of columns. */
static const char *csv_open(TextRows *rows, const char *column)
{
    Text names = { .arena = rows->mem };
    int c = rows->separator;

    rows->column = -1;
    for (rows->columns = 0; c == rows->separator; rows->columns++) {
        c = take_field(rows, rows->separator);
        name_add(&names, rows->field.s, (int64_t)rows->field.n);
        if (rows->column < 0 && is_field(rows, column))
            rows->column = rows->columns;
    }
    if (rows->why || rows->column >= 0)
        return rows->why;
    return no_column(rows->mem, column, &names);
}

static const char *csv_next(TextRows *rows, size_t *n)
{
    int64_t k = 0;
    int c = peek(rows, 0);

    for (; c == '\n' || c == '\r'; c = peek(rows, 0))
        pass(rows, 1);
    rows->number = rows->line;
    rows->text.n = 0;
    if (c < 0)
        return NULL;
    for (c = rows->separator; c == rows->separator && !rows->why; k++) {
        c = take_field(rows, rows->separator);
        if (k == rows->column)
            bytes_add(&rows->text, rows->field.s, rows->field.n);
    }
    if (!rows->why && k != rows->columns)
        rows->why =
            strf(rows->mem, "has %ld columns in line %ld, %ld in its first", k,
                 rows->number, rows->columns);
    *n = rows->text.n;
    return rows->why ? NULL : rows->text.s ? rows->text.s : "";
}

/* ---- one text ------------------------------------------------------------ */

static const char *text_next(TextRows *rows, size_t *n)
{
    if (rows->number)
        return NULL;
    rows->number = 1;
    while (rows->in && stream_read(rows->in, &rows->buf))
        ;
    *n = rows->map ? (size_t)rows->size : rows->buf.n;
    return rows->map ? (const char *)rows->map : rows->buf.n ? rows->buf.s : "";
}

/* Opens one text, mapped if it needs no decoding. */
static const char *text_open(TextRows *rows, const char *path, int bytes)
{
    const char *why = map_whole(rows->mem, path, &rows->map, &rows->size);
    size_t n = why ? 0 : (size_t)rows->size;

    if (why || bytes || !text_coded(rows->map, n))
        return why;
    munmap((void *)(uintptr_t)rows->map, n);
    rows->map = NULL;
    return stream_open(rows->mem, &rows->in, path);
}

/* ---- interface ----------------------------------------------------------- */

void name_add(Text *names, const char *s, int64_t n)
{
    enum { SHOWN = 600 };

    if (names->len > SHOWN)
        return;
    put(names, names->len ? ", " : "");
    for (int64_t i = 0; i < n && names->len <= SHOWN; i++)
        putn(names, (uint8_t)s[i] < ' ' || s[i] == 127 ? "?" : s + i, 1);
    if (names->len > SHOWN)
        put(names, " ..");
}

const char *no_column(Arena *a, const char *column, const Text *names)
{
    return strf(a, "has no \"%s\" (data.field= names one of: %s)", column,
                names->s ? names->s : "nothing");
}

const char *rows_open(TextRows *rows, const char *path, int format,
                      const char *column)
{
    *rows = (TextRows){ .mem = arena_new(), .format = format, .line = 1 };
    switch (format) {
    case FORMATparquet:
        return parquet_open(rows->mem, &rows->parquet, path, column);
    case FORMATarrow: return arrow_open(rows->mem, &rows->arrow, path, column);
    case FORMATbytes:
    case FORMATtext: return text_open(rows, path, format == FORMATbytes);
    default: break;
    }
    const char *why = stream_open(rows->mem, &rows->in, path);
    rows->separator = format == FORMATcsv   ? ','
                      : format == FORMATtsv ? '\t'
                                            : 0;
    return why || !rows->separator ? why : csv_open(rows, column);
}

const char *rows_next(TextRows *rows, size_t *n)
{
    const char *s;

    switch (rows->format) {
    case FORMATparquet:
        rows->number++;
        return parquet_next(rows->mem, rows->parquet, &rows->why, n);
    case FORMATarrow:
        rows->number++;
        return arrow_next(rows->mem, rows->arrow, &rows->why, n);
    case FORMATbytes:
    case FORMATtext: return text_next(rows, n);
    case FORMATjsonl: s = json_next(rows, n); break;
    default: s = csv_next(rows, n);
    }
    return rows->why ? NULL : s;
}

const char *rows_close(TextRows *rows)
{
    const char *why = stream_close(rows->in);

    why = why ? why : rows->why;
    parquet_close(rows->parquet);
    arrow_close(rows->arrow);
    if (rows->map)
        munmap((void *)(uintptr_t)rows->map, (size_t)rows->size);
    free(rows->buf.s);
    free(rows->field.s);
    free(rows->text.s);
    return why;
}

/* ---- one stream of bytes ------------------------------------------------- */

static void keep_end(Tokens *tokens, const Bytes *all, int64_t *room)
{
    if (tokens->docs == *room)
        tokens->ends =
            enlarge(tokens->ends,
                    sizeof *tokens->ends * (size_t)(*room = 2 * *room + 64));
    tokens->ends[tokens->docs++] = (int64_t)all->n;
}

static const char *keep_row(Arena *a, Bytes *all, const TextRows *rows,
                            const char *field, const char *s, size_t n)
{
    if (rows->format != FORMATjsonl) {
        bytes_add(all, s, n);
        return NULL;
    }
    if (all->cap - all->n < n)
        all->s = enlarge(all->s, all->cap = 2 * all->cap + n);
    size_t len;
    char *said = json_text(s, n, field, all->s + all->n, &len);
    const char *why = said ? strf(a, "line %ld: %s", rows->number, said) : NULL;
    free(said);
    all->n += len;
    return why;
}

const char *texts_read(Arena *a, Tokens *tokens)
{
    TextRows rows;
    Bytes all = { 0 };
    int64_t room = 0;
    size_t n = 0;
    const char *s,
        *why = rows_open(&rows, tokens->path, tokens->format, tokens->field);
    int one = tokens->format == FORMATtext;

    tokens->docs = 0;
    while (!why && (s = rows_next(&rows, &n))) {
        why = keep_row(a, &all, &rows, tokens->field, s, n);
        if (!one)
            bytes_add(&all, "", 1);
        keep_end(tokens, &all, &room);
    }
    const char *broken = rows_close(&rows);
    why = broken ? broken : why;
    why = why ? strf(a, "%s", why) : tokens->docs ? NULL : "has no texts";
    arena_free(rows.mem);
    tokens->e = EU8;
    tokens->own = (uint8_t *)all.s;
    tokens->n = (int64_t)all.n;
    return why;
}
