/* file.c: a whole file into memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan.h"

char *file_read(Arena *a, const char *path, size_t *n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Text t = { .arena = a };
    struct stat st;
    char part[1 << 16];
    ssize_t k;

    if (fd < 0)
        return NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
        t.cap = (size_t)st.st_size + 1;
        t.s = alloc(a, t.cap);
    }
    do {
        k = read(fd, part, sizeof part);
        putn(&t, part, k > 0 ? (size_t)k : 0);
    } while (k > 0 || (k < 0 && errno == EINTR));
    int why = errno;
    close(fd);
    errno = why;
    *n = t.len;
    return k < 0 ? NULL : t.s;
}
