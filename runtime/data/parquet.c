/* parquet.c: a column of texts in a .parquet file, by DuckDB's C interface
 * where libduckdb is found (duckdb.org), as it streams them. */
#include "data.h"

enum { VARCHAR = 17, SHORT = 12 }; /* duckdb_type; bytes inside a string_t */

typedef struct DuckString { /* duckdb_string_t */
    uint32_t n;
    char begin[4]; /* a short text lies here and in `rest` */
    union {
        const char *s; /* a longer one, whole */
        char rest[SHORT - 4];
    } value;
} DuckString;

struct ParquetRows {
    void *database, *connection, *statement, *pending, *chunk;
    DuckResult result;
    const DuckString *text;
    const uint64_t *valid; /* null: all are */
    uint64_t rows, row;
    int running;
};

/* What SQL reads as s between quotes of that kind. */
static const char *quoted(Arena *a, const char *s, char quote)
{
    Text t = { .arena = a };

    putn(&t, &quote, 1);
    for (; *s; s++) {
        putn(&t, s, 1);
        if (*s == quote)
            putn(&t, s, 1);
    }
    putn(&t, &quote, 1);
    return t.s;
}

static const char *said(Arena *a, const char *what)
{
    return strf(a, "is not read by DuckDB: %.*s",
                what ? (int)strcspn(what, "\n") : 0, what ? what : "");
}

static const char *start(Arena *a, ParquetRows *rows, const char *path,
                         const char *column)
{
    const char *sql = strf(a, "SELECT %s FROM read_parquet(%s)",
                           quoted(a, column, '"'), quoted(a, path, '\''));

    if (dl.duckdb_open(NULL, &rows->database) ||
        dl.duckdb_connect(rows->database, &rows->connection))
        return "cannot be read: DuckDB does not open";
    if (dl.duckdb_prepare(rows->connection, sql, &rows->statement))
        return said(a, dl.duckdb_prepare_error(rows->statement));
    if (dl.duckdb_pending_prepared_streaming(rows->statement, &rows->pending))
        return said(a, dl.duckdb_pending_error(rows->pending));
    rows->running = 1;
    if (dl.duckdb_execute_pending(rows->pending, &rows->result))
        return said(a, dl.duckdb_result_error(&rows->result));
    if (dl.duckdb_column_type(&rows->result, 0) != VARCHAR)
        return strf(a, "has a column \"%s\" that holds no texts", column);
    return NULL;
}

const char *parquet_open(Arena *a, ParquetRows **out, const char *path,
                         const char *column)
{
    if (!dl_open(LIBduckdb))
        return strf(a,
                    "needs libduckdb (duckdb.org: libduckdb-linux-*.zip): %s",
                    dl_why(LIBduckdb));
    *out = alloc(a, sizeof **out);
    return start(a, *out, path, column);
}

/* 0: there is no more, or *why. */
static int next_chunk(ParquetRows *rows, const char **why)
{
    if (rows->chunk)
        dl.duckdb_destroy_data_chunk(&rows->chunk);
    rows->chunk = dl.duckdb_fetch_chunk(rows->result);
    const char *wrong = dl.duckdb_result_error(&rows->result);
    if (!rows->chunk && wrong && *wrong)
        *why = said(forever, wrong);
    if (!rows->chunk)
        return 0;
    void *column = dl.duckdb_data_chunk_get_vector(rows->chunk, 0);
    rows->rows = dl.duckdb_data_chunk_get_size(rows->chunk);
    rows->row = 0;
    rows->text = dl.duckdb_vector_get_data(column);
    rows->valid = dl.duckdb_vector_get_validity(column);
    return rows->rows > 0;
}

const char *parquet_next(ParquetRows *rows, const char **why, size_t *n)
{
    if (rows->row == rows->rows && !next_chunk(rows, why))
        return NULL;
    uint64_t i = rows->row++;
    const DuckString *string = &rows->text[i];
    int is = !rows->valid || rows->valid[i / 64] >> i % 64 & 1;
    *n = is ? string->n : 0;
    return !is                  ? ""
           : string->n <= SHORT ? (const char *)string + 4
                                : string->value.s;
}

void parquet_close(ParquetRows *rows)
{
    if (!rows)
        return;
    if (rows->chunk)
        dl.duckdb_destroy_data_chunk(&rows->chunk);
    if (rows->running)
        dl.duckdb_destroy_result(&rows->result);
    dl.duckdb_destroy_pending(&rows->pending);
    dl.duckdb_destroy_prepare(&rows->statement);
    dl.duckdb_disconnect(&rows->connection);
    dl.duckdb_close(&rows->database);
}
