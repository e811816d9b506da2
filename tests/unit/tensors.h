/* tensors.h: tensors and results of a plan in memory, by name, for tests. */
#ifndef PLEAT_TENSORS_H
#define PLEAT_TENSORS_H

#include "../../runtime/runtime.h"

/* A result of the last run; NAN: no such result. */
double exec_named(const Exec *x, const char *name);
/* Elements of a tensor of the table, whole, or of a buffer, as rank `rank`
 * holds it; -1: neither. At most cap are written to out. Every rank must live
 * in this process to read a tensor that is spread over ranks. */
int64_t exec_read(Exec *x, const char *name, int64_t rank, double *out,
                  int64_t cap);
int64_t exec_write(Exec *x, const char *name, const double *in, int64_t n);
/* A file in memory, shared where writable; null: it cannot be read. */
uint8_t *file_map(const char *path, int64_t *size, int writable);

#endif
