/* rows.c: the texts of a table's column, one after another, from files of any
 * format that has such. */
#include "data.h"

const char *rows_open(TextRows *rows, const char *path, enum data_format format,
                      const char *column)
{
    *rows = (TextRows){ .mem = arena_new() };
    return format == FORMATparquet
               ? parquet_open(rows->mem, &rows->parquet, path, column)
               : arrow_open(rows->mem, &rows->arrow, path, column);
}

const char *rows_next(TextRows *rows, size_t *n)
{
    rows->number++;
    return rows->parquet ? parquet_next(rows->parquet, &rows->why, n)
                         : arrow_next(rows->arrow, &rows->why, n);
}

void rows_close(TextRows *rows)
{
    parquet_close(rows->parquet);
    arrow_close(rows->arrow);
    arena_free(rows->mem);
}
