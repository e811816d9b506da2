/* rows.c: the texts of a table's column, one after another, from files of any
 * format that has such. */
#include "data.h"

const char *rows_open(TextRows *r, const char *path, enum data_format format,
                      const char *column)
{
    *r = (TextRows){ .mem = arena_new() };
    return format == FORMATparquet
               ? parquet_open(r->mem, &r->parquet, path, column)
               : arrow_open(r->mem, &r->arrow, path, column);
}

const char *rows_next(TextRows *r, size_t *n)
{
    r->number++;
    return r->parquet ? parquet_next(r->parquet, &r->why, n)
                      : arrow_next(r->arrow, &r->why, n);
}

void rows_close(TextRows *r)
{
    parquet_close(r->parquet);
    arrow_close(r->arrow);
    arena_free(r->mem);
}
