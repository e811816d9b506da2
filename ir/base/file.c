/* file.c: opens inputs, which are regular files; changes names and folders,
 * which are synced when a function returns 0. output.c writes files. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"

/* errno ESPIPE means "not a regular file": open and read never return it. */
int file_open(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) || S_ISREG(st.st_mode))
        return fd;
    close(fd);
    errno = S_ISDIR(st.st_mode) ? EISDIR : ESPIPE;
    return -1;
}

FILE *file_stream(const char *path)
{
    int fd = file_open(path);

    return fd < 0 ? NULL : fdopen(fd, "rb");
}

const char *file_why(void)
{
    return errno == ESPIPE ? "it is a device or a pipe, not a file"
                           : strerror(errno);
}

char *file_read(Arena *a, const char *path, size_t *n)
{
    int fd = file_open(path);
    Text out = { .arena = a };
    struct stat st;
    char part[1 << 16];
    ssize_t k;

    if (fd < 0)
        return NULL;
    if (!fstat(fd, &st)) {
        out.cap = (size_t)st.st_size + 1;
        out.s = alloc(a, out.cap);
    }
    do {
        k = read(fd, part, sizeof part);
        putn(&out, part, k > 0 ? (size_t)k : 0);
    } while (k > 0 || (k < 0 && errno == EINTR));
    *n = out.len;
    return file_close(fd, k < 0) && k < 0 ? NULL : out.s;
}

char *file_need(Arena *a, const char *path, size_t *n)
{
    char *s = file_read(a, path, n);

    if (!s)
        err(NULL, "cannot read %s: %s", path, file_why());
    return s;
}

/* ---- writing ------------------------------------------------------------- */

/* A write that returns 0 is an error, since repeating it may never end. */
int file_put(int fd, const void *p, size_t n)
{
    for (const char *s = p; n;) {
        ssize_t k = write(fd, s, n);
        if (!k)
            errno = EIO;
        if (!k || (k < 0 && errno != EINTR))
            return -1;
        s += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return 0;
}

int file_close(int fd, int bad)
{
    int why = errno, no = close(fd) && errno != EINTR;

    if (bad)
        errno = why;
    return bad || no ? -1 : 0;
}

int file_flush(int fd)
{
    int bad;

    while ((bad = fsync(fd)) && errno == EINTR)
        ;
    return bad;
}

int file_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return -1;
    int bad = file_flush(fd);
    if (bad && errno == EINVAL && !fstat(fd, &st) && S_ISDIR(st.st_mode))
        bad = 0; /* this file system cannot sync folders */
    return file_close(fd, bad);
}

/* ---- names --------------------------------------------------------------- */

char *file_folder(Arena *a, const char *path)
{
    const char *end = path + strlen(path);

    while (end > path && end[-1] == '/')
        end--;
    while (end > path && end[-1] != '/')
        end--;
    return end > path ? strf(a, "%.*s", (int)(end - path), path) : ".";
}

const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

int file_stem(const char *path)
{
    const char *name = file_name(path), *dot = strrchr(name, '.');

    return (int)(dot && dot > name ? dot - path : (long)strlen(path));
}

static int sync_name(const char *path)
{
    Arena *a = arena_new();
    int bad = file_sync(file_folder(a, path)), why = errno;

    arena_free(a);
    errno = why;
    return bad;
}

int file_move(const char *from, const char *to)
{
    return rename(from, to) || sync_name(to) ? -1 : 0;
}

int folder_make(const char *path)
{
    return mkdir(path, 0755) || sync_name(path) ? -1 : 0;
}

int folder_exists(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

int folders_make(const char *path)
{
    Arena *a = arena_new();
    char *s = strf(a, "%s", path), c = *s;
    int bad = 0;

    for (char *p = s + 1; c && !bad; p++) {
        if ((c = *p) && c != '/')
            continue;
        *p = 0;
        bad = !folder_exists(s) && folder_make(s) &&
              !(errno == EEXIST && folder_exists(s)); /* a race */
        if (bad && errno == EEXIST)
            errno = ENOTDIR;
        *p = c;
    }
    int why = errno;
    arena_free(a);
    errno = why;
    return bad ? -1 : 0;
}
