/* parquet.c: a column of texts in a .parquet file, by DuckDB's C interface
 * where libduckdb is found (duckdb.org), as it streams them. */
#include <string.h>

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

static const char *start(Arena *a, ParquetRows *p, const char *path,
                         const char *column)
{
    const char *sql = strf(a, "SELECT %s FROM read_parquet(%s)",
                           quoted(a, column, '"'), quoted(a, path, '\''));

    if (dl.duckdb_open(NULL, &p->database) ||
        dl.duckdb_connect(p->database, &p->connection))
        return "cannot be read: DuckDB does not open";
    if (dl.duckdb_prepare(p->connection, sql, &p->statement))
        return said(a, dl.duckdb_prepare_error(p->statement));
    if (dl.duckdb_pending_prepared_streaming(p->statement, &p->pending))
        return said(a, dl.duckdb_pending_error(p->pending));
    p->running = 1;
    if (dl.duckdb_execute_pending(p->pending, &p->result))
        return said(a, dl.duckdb_result_error(&p->result));
    if (dl.duckdb_column_type(&p->result, 0) != VARCHAR)
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
static int next_chunk(ParquetRows *p, const char **why)
{
    if (p->chunk)
        dl.duckdb_destroy_data_chunk(&p->chunk);
    p->chunk = dl.duckdb_fetch_chunk(p->result);
    const char *wrong = dl.duckdb_result_error(&p->result);
    if (!p->chunk && wrong && *wrong)
        *why = said(forever, wrong);
    if (!p->chunk)
        return 0;
    void *column = dl.duckdb_data_chunk_get_vector(p->chunk, 0);
    p->rows = dl.duckdb_data_chunk_get_size(p->chunk);
    p->row = 0;
    p->text = dl.duckdb_vector_get_data(column);
    p->valid = dl.duckdb_vector_get_validity(column);
    return p->rows > 0;
}

const char *parquet_next(ParquetRows *p, const char **why, size_t *n)
{
    if (p->row == p->rows && !next_chunk(p, why))
        return NULL;
    uint64_t i = p->row++;
    const DuckString *s = &p->text[i];
    int is = !p->valid || p->valid[i / 64] >> i % 64 & 1;
    *n = is ? s->n : 0;
    return !is ? "" : s->n <= SHORT ? (const char *)s + 4 : s->value.s;
}

void parquet_close(ParquetRows *p)
{
    if (!p)
        return;
    if (p->chunk)
        dl.duckdb_destroy_data_chunk(&p->chunk);
    if (p->running)
        dl.duckdb_destroy_result(&p->result);
    dl.duckdb_destroy_pending(&p->pending);
    dl.duckdb_destroy_prepare(&p->statement);
    dl.duckdb_disconnect(&p->connection);
    dl.duckdb_close(&p->database);
}
