/* fakeduck: a libduckdb of one table, for tests: 5000 texts "row N xx..", as
 * many x as N % 20, null where N % 7 is 6, in chunks of 2048. Column "nope" is
 * not there, "n" holds numbers; a file named bad ends in the first chunk. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5000, CHUNK = 2048, VARCHAR = 17, BIGINT = 5, LONGEST = 64 };

typedef struct DuckText {
    uint32_t n;
    char begin[4];
    union {
        char *s;
        char rest[8];
    } value;
} DuckText;

typedef struct FakeResult {
    uint64_t old[3];
    void *columns;
    char *message;
    void *data;
} FakeResult;

static struct {
    int numbers, missing, broken, open;
    int64_t at, n;
    DuckText text[CHUNK];
    char room[CHUNK][LONGEST];
    uint64_t valid[CHUNK / 64];
} fake;

int duckdb_open(const char *path, void **database)
{
    *database = &fake;
    fake.open++;
    return path != NULL;
}

int duckdb_connect(void *database, void **connection)
{
    *connection = database;
    return 0;
}

int duckdb_prepare(void *connection, const char *sql, void **statement)
{
    *statement = connection;
    fake.numbers = strstr(sql, "SELECT \"n\" FROM") != NULL;
    fake.missing = strstr(sql, "SELECT \"nope\" FROM") != NULL;
    fake.broken = strstr(sql, "bad.parquet')") != NULL;
    fake.at = 0;
    return fake.missing || !strstr(sql, " FROM read_parquet('");
}

const char *duckdb_prepare_error(void *statement)
{
    (void)statement;
    return "Binder Error: no such column\nLINE 1: SELECT";
}

int duckdb_pending_prepared_streaming(void *statement, void **pending)
{
    *pending = statement;
    return 0;
}

const char *duckdb_pending_error(void *pending)
{
    (void)pending;
    return NULL;
}

int duckdb_execute_pending(void *pending, FakeResult *result)
{
    *result = (FakeResult){ .data = pending };
    return 0;
}

const char *duckdb_result_error(FakeResult *result)
{
    return result->data && fake.broken && fake.at ? "IO Error: gone" : NULL;
}

int duckdb_column_type(FakeResult *result, uint64_t column)
{
    (void)result;
    return column ? 0 : fake.numbers ? BIGINT : VARCHAR;
}

static void put_text(int64_t i, int64_t row)
{
    DuckText *t = &fake.text[i];
    int n = snprintf(fake.room[i], LONGEST, "row %lld %.*s", (long long)row,
                     (int)(row % 20), "xxxxxxxxxxxxxxxxxxxx");

    memset(t, 0, sizeof *t);
    t->n = (uint32_t)n;
    memcpy(t->begin, fake.room[i], 4);
    if (n <= 12)
        memcpy(t->value.rest, fake.room[i] + 4, 8);
    else
        t->value.s = fake.room[i];
    fake.valid[i / 64] |= (uint64_t)(row % 7 != 6) << i % 64;
}

void *duckdb_fetch_chunk(FakeResult result)
{
    if (!result.data || fake.at == ROWS || (fake.broken && fake.at))
        return NULL;
    memset(fake.valid, 0, sizeof fake.valid);
    fake.n = ROWS - fake.at < CHUNK ? ROWS - fake.at : CHUNK;
    for (int64_t i = 0; i < fake.n; i++)
        put_text(i, fake.at + i);
    fake.at += fake.n;
    return &fake;
}

uint64_t duckdb_data_chunk_get_size(void *chunk)
{
    (void)chunk;
    return (uint64_t)fake.n;
}

void *duckdb_data_chunk_get_vector(void *chunk, uint64_t column)
{
    return column ? NULL : chunk;
}

void *duckdb_vector_get_data(void *vector)
{
    (void)vector;
    return fake.text;
}

uint64_t *duckdb_vector_get_validity(void *vector)
{
    (void)vector;
    return fake.valid;
}

void duckdb_destroy_data_chunk(void **chunk)
{
    *chunk = NULL;
}

void duckdb_destroy_result(FakeResult *result)
{
    result->data = NULL;
}

void duckdb_destroy_pending(void **pending)
{
    *pending = NULL;
}

void duckdb_destroy_prepare(void **statement)
{
    *statement = NULL;
}

void duckdb_disconnect(void **connection)
{
    *connection = NULL;
}

void duckdb_close(void **database)
{
    if (!*database || --fake.open)
        abort();
    *database = NULL;
}

const char *duckdb_library_version(void)
{
    return "v9.9.9";
}
