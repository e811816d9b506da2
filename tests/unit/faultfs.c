/* faultfs.c: strikes at one call to the file system. Preloaded into a process
 * it counts the calls that concern paths with $FAULT_IN in them, and at the
 * k-th does what FAULT=what:k says:
 *
 *   kill     the process ends before the call
 *   power    the machine does: all that was not synced is gone, data and names
 *   torn     the same, but names last and data do not
 *   above    of what was not synced names in the folder $FAULT_TOP are gone,
 *            and what is below lasts; below: the reverse
 *   enospc   the call fails once; from it on all that take room do: full
 *   eio      the call fails once
 *   short    a write writes half of what it was given
 *   slow     it takes 4 seconds; stop: the process is stopped
 *
 * FAULT_NOT: not those paths. FAULT_LOG names a file that gets a line for each
 * call: number, call, path.
 * FAULT_RANK: only that process of mpirun's. FAULT_NOEXCHANGE: names are not
 * exchanged. What power takes back is known from a list of what was done to
 * names since their folders were synced, and of files written since they were;
 * what is removed waits in the folder $FAULT_GRAVE. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAXFD = 1024, MAXDEED = 4096, PATH = 512 };

typedef enum Kind { CREATE, MKDIR, RMDIR, UNLINK, RENAME, EXCHANGE } Kind;

typedef struct Deed { /* done to a name since its folder was synced */
    Kind kind;
    int over; /* a file had the name before: it is in the grave */
    int grave;
    char path[PATH], to[PATH];
} Deed;

static struct {
    pthread_mutex_t lock;
    char fd[MAXFD][PATH]; /* open ones; empty: not counted */
    Deed deed[MAXDEED];
    int ndeed, graves;
    char dirty[MAXFD][PATH]; /* files written and not synced */
    off_t kept[MAXFD];       /* ... and their bytes before that */
    int ndirty;
    long calls, at;
    char what[16];
    int full, ready, off;
} f = { .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP };

/* ---- the real ones ------------------------------------------------------- */

#define REAL(ret, name, ...)                                    \
    static ret (*real_##name)(__VA_ARGS__);                     \
    static void find_##name(void)                               \
    {                                                           \
        if (!real_##name)                                       \
            *(void **)(&real_##name) = dlsym(RTLD_NEXT, #name); \
    }

REAL(int, open, const char *, int, ...)
REAL(int, close, int)
REAL(ssize_t, read, int, void *, size_t)
REAL(ssize_t, pread, int, void *, size_t, off_t)
REAL(ssize_t, write, int, const void *, size_t)
REAL(ssize_t, pwrite, int, const void *, size_t, off_t)
REAL(int, fsync, int)
REAL(int, ftruncate, int, off_t)
REAL(int, posix_fallocate, int, off_t, off_t)
REAL(int, rename, const char *, const char *)
REAL(int, renameat2, int, const char *, int, const char *, unsigned)
REAL(int, mkdir, const char *, mode_t)
REAL(int, rmdir, const char *)
REAL(int, unlink, const char *)
REAL(int, link, const char *, const char *)
REAL(FILE *, fopen, const char *, const char *)
REAL(DIR *, opendir, const char *)

static void find_all(void)
{
    find_open(), find_close(), find_read(), find_pread(), find_write();
    find_pwrite(), find_fsync(), find_ftruncate(), find_posix_fallocate();
    find_rename(), find_renameat2(), find_mkdir(), find_rmdir();
    find_unlink(), find_link(), find_fopen(), find_opendir();
}

static void prepare(void)
{
    const char *fault = getenv("FAULT"), *rank = getenv("FAULT_RANK");
    const char *mine = getenv("OMPI_COMM_WORLD_RANK");

    if (f.ready)
        return;
    f.ready = 1;
    find_all();
    f.off = !getenv("FAULT_IN") || (rank && strcmp(rank, mine ? mine : ""));
    if (fault && sscanf(fault, "%15[a-z]:%ld", f.what, &f.at) != 2)
        abort();
}

static int is(const char *what)
{
    return !strcmp(f.what, what);
}

/* Does the machine? */
static int stops(void)
{
    return is("power") || is("torn") || is("above") || is("below");
}

static int counts(const char *path)
{
    prepare();
    const char *but = getenv("FAULT_NOT");
    return !f.off && path && strstr(path, getenv("FAULT_IN")) &&
           !(but && strstr(path, but));
}

static const char *path_of(int fd)
{
    return fd >= 0 && fd < MAXFD && *f.fd[fd] ? f.fd[fd] : NULL;
}

/* ---- what was done ------------------------------------------------------- */

static char *grave(int n)
{
    static char path[PATH];

    snprintf(path, sizeof path, "%s/%d", getenv("FAULT_GRAVE"), n);
    return path;
}

static Deed *did(Kind kind, const char *path, const char *to)
{
    Deed *d = &f.deed[f.ndeed++];

    if (f.ndeed == MAXDEED)
        abort();
    *d = (Deed){ .kind = kind };
    snprintf(d->path, PATH, "%s", path);
    snprintf(d->to, PATH, "%s", to ? to : "");
    return d;
}

static int under(const char *path, const char *folder)
{
    size_t n = strlen(folder);

    return !strncmp(path, folder, n) && (!path[n] || path[n] == '/');
}

static void put_under(char *path, const char *from, const char *to)
{
    char now[PATH];

    snprintf(now, PATH, "%s%s", to, path + strlen(from));
    memcpy(path, now, PATH);
}

/* A name has changed, or two were exchanged: so have all below them. */
static void follow(char *path, const char *from, const char *to, int both)
{
    if (under(path, from))
        put_under(path, from, to);
    else if (both && under(path, to))
        put_under(path, to, from);
}

static void follow_all(const char *from, const char *to, int both, int ndeed)
{
    for (int i = 0; i < ndeed; i++) {
        follow(f.deed[i].path, from, to, both);
        follow(f.deed[i].to, from, to, both);
    }
    for (int i = 0; i < f.ndirty; i++)
        follow(f.dirty[i], from, to, both);
    for (int i = 0; i < MAXFD; i++)
        if (*f.fd[i])
            follow(f.fd[i], from, to, both);
}

/* Before it is written to. */
static void is_dirty(const char *path, int emptied)
{
    struct stat st;

    for (int i = 0; i < f.ndirty; i++)
        if (!strcmp(f.dirty[i], path))
            return;
    if (f.ndirty == MAXFD)
        abort();
    f.kept[f.ndirty] = !emptied && !stat(path, &st) ? st.st_size : 0;
    snprintf(f.dirty[f.ndirty++], PATH, "%s", path);
}

static int lies_in(const char *path, const char *folder)
{
    const char *end = strrchr(path, '/');

    return end && (size_t)(end - path) == strlen(folder) &&
           !strncmp(path, folder, strlen(folder));
}

static void synced(const char *path)
{
    int n = 0;

    for (int i = 0; i < f.ndirty; i++)
        if (strcmp(f.dirty[i], path)) {
            f.kept[n] = f.kept[i];
            memmove(f.dirty[n++], f.dirty[i], PATH);
        }
    f.ndirty = n;
    n = 0;
    for (int i = 0; i < f.ndeed; i++)
        if (!lies_in(f.deed[i].path, path))
            f.deed[n++] = f.deed[i];
    f.ndeed = n;
}

/* ---- taking it back ------------------------------------------------------ */

static void undo(int i)
{
    Deed *d = &f.deed[i];

    switch (d->kind) {
    case CREATE: real_unlink(d->path); break;
    case MKDIR: real_rmdir(d->path); break;
    case RMDIR: real_mkdir(d->path, 0755); break;
    case UNLINK: real_rename(grave(d->grave), d->path); break;
    case EXCHANGE:
        real_renameat2(AT_FDCWD, d->path, AT_FDCWD, d->to, RENAME_EXCHANGE);
        follow_all(d->path, d->to, 1, i);
        break;
    case RENAME:
        real_rename(d->to, d->path);
        follow_all(d->to, d->path, 0, i);
        if (d->over)
            real_rename(grave(d->grave), d->to);
    }
}

static int is_top(const char *path)
{
    return lies_in(path, getenv("FAULT_TOP"));
}

/* The machine stops: what is lost of data, and which names. */
static void lose(void)
{
    int all = is("power"), above = is("above"), below = is("below");

    for (int i = 0; i < f.ndirty && (all || is("torn")); i++)
        if (truncate(f.dirty[i], f.kept[i]) && errno != ENOENT)
            abort();
    for (int i = f.ndeed - 1; i >= 0; i--)
        if (all || (above && is_top(f.deed[i].path)) ||
            (below && !is_top(f.deed[i].path)))
            undo(i);
}

/* ---- striking ------------------------------------------------------------ */

static void log_call(const char *call, const char *path)
{
    const char *to = getenv("FAULT_LOG");
    char line[PATH + 64];
    int fd = to ? real_open(to, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    int n = snprintf(line, sizeof line, "%ld %s %s\n", f.calls, call, path);

    if (fd < 0)
        return;
    if (real_write(fd, line, (size_t)n) != n)
        abort();
    real_close(fd);
}

/* Before a call: 0, or the errno with which it fails. room: it takes some. */
static int strike(const char *call, const char *path, int room)
{
    f.calls++;
    log_call(call, path);
    f.full |= is("full") && f.calls == f.at;
    if (f.full && room)
        return ENOSPC;
    if (f.calls != f.at)
        return 0;
    if (stops())
        lose();
    if (stops() || is("kill"))
        kill(getpid(), SIGKILL);
    if (is("stop"))
        kill(getpid(), SIGSTOP);
    if (is("slow"))
        sleep(4);
    return is("eio") ? EIO : is("enospc") && room ? ENOSPC : 0;
}

static int leave(int got, int why)
{
    int e = why ? why : errno;

    pthread_mutex_unlock(&f.lock);
    errno = e;
    return why ? -1 : got;
}

/* Of n bytes to write: so many are. */
static size_t most(size_t n)
{
    return is("short") && f.calls == f.at ? (n + 1) / 2 : n;
}

/* ---- names --------------------------------------------------------------- */

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list ap;
    int fd = -1;

    va_start(ap, flags);
    if (flags & O_CREAT)
        mode = (mode_t)va_arg(ap, int);
    va_end(ap);
    if (!counts(path))
        return real_open(path, flags, mode);
    pthread_mutex_lock(&f.lock);
    int makes = flags & O_CREAT && access(path, F_OK);
    int why = strike("open", path, makes);
    if (!why)
        fd = real_open(path, flags, mode);
    if (fd >= 0 && fd < MAXFD) {
        size_t n = strlen(path);
        while (n > 1 && path[n - 1] == '/')
            n--;
        snprintf(f.fd[fd], PATH, "%.*s", (int)n, path);
    }
    if (fd >= 0 && makes)
        did(CREATE, path, NULL);
    if (fd >= 0 && flags & O_TRUNC)
        is_dirty(path, 1);
    return leave(fd, why);
}

int close(int fd)
{
    prepare();
    pthread_mutex_lock(&f.lock);
    const char *path = path_of(fd);
    int why = path ? strike("close", path, 0) : 0;
    if (path)
        f.fd[fd][0] = 0;
    return leave(real_close(fd), why);
}

FILE *fopen(const char *path, const char *mode)
{
    int why = 0;

    if (counts(path)) {
        pthread_mutex_lock(&f.lock);
        why = strike("fopen", path, 0);
        pthread_mutex_unlock(&f.lock);
    }
    errno = why;
    return why ? NULL : real_fopen(path, mode);
}

DIR *opendir(const char *path)
{
    int why = 0;

    if (counts(path)) {
        pthread_mutex_lock(&f.lock);
        why = strike("opendir", path, 0);
        pthread_mutex_unlock(&f.lock);
    }
    errno = why;
    return why ? NULL : real_opendir(path);
}

int mkdir(const char *path, mode_t mode)
{
    if (!counts(path))
        return real_mkdir(path, mode);
    pthread_mutex_lock(&f.lock);
    int why = strike("mkdir", path, 1);
    int bad = why ? -1 : real_mkdir(path, mode);
    if (!bad)
        did(MKDIR, path, NULL);
    return leave(bad, why);
}

int rmdir(const char *path)
{
    if (!counts(path))
        return real_rmdir(path);
    pthread_mutex_lock(&f.lock);
    int why = strike("rmdir", path, 0);
    int bad = why ? -1 : real_rmdir(path);
    if (!bad)
        did(RMDIR, path, NULL);
    return leave(bad, why);
}

int unlink(const char *path)
{
    if (!counts(path))
        return real_unlink(path);
    pthread_mutex_lock(&f.lock);
    int why = strike("unlink", path, 0), n = f.graves;
    int bad = why       ? -1
              : stops() ? real_rename(path, grave(n))
                        : real_unlink(path);
    if (!bad) {
        did(UNLINK, path, NULL)->grave = n;
        f.graves++;
    }
    return leave(bad, why);
}

int link(const char *from, const char *to)
{
    if (!counts(to))
        return real_link(from, to);
    pthread_mutex_lock(&f.lock);
    int why = strike("link", to, 1);
    int bad = why ? -1 : real_link(from, to);
    if (!bad)
        did(CREATE, to, NULL);
    return leave(bad, why);
}

int rename(const char *from, const char *to)
{
    if (!counts(from))
        return real_rename(from, to);
    pthread_mutex_lock(&f.lock);
    int why = strike("rename", from, 1), n = f.graves;
    int over = !why && stops() && !real_link(to, grave(n));
    int bad = why ? -1 : real_rename(from, to);
    if (!bad) {
        follow_all(from, to, 0, f.ndeed);
        Deed *d = did(RENAME, from, to);
        d->over = over;
        d->grave = n;
        f.graves++;
    }
    return leave(bad, why);
}

int renameat2(int at, const char *from, int att, const char *to, unsigned flags)
{
    if (!counts(from))
        return real_renameat2(at, from, att, to, flags);
    pthread_mutex_lock(&f.lock);
    int why = strike("renameat2", from, 1);
    if (!why && getenv("FAULT_NOEXCHANGE"))
        why = EINVAL;
    int bad = why ? -1 : real_renameat2(at, from, att, to, flags);
    if (!bad) {
        follow_all(from, to, 1, f.ndeed);
        did(EXCHANGE, from, to);
    }
    return leave(bad, why);
}

/* ---- data ---------------------------------------------------------------- */

ssize_t read(int fd, void *to, size_t n)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_read(fd, to, n);
    pthread_mutex_lock(&f.lock);
    int why = strike("read", path, 0);
    return leave(why ? -1 : (int)real_read(fd, to, n), why);
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_pread(fd, to, n, at);
    pthread_mutex_lock(&f.lock);
    int why = strike("pread", path, 0);
    return leave(why ? -1 : (int)real_pread(fd, to, n, at), why);
}

ssize_t write(int fd, const void *from, size_t n)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_write(fd, from, n);
    pthread_mutex_lock(&f.lock);
    int why = strike("write", path, 1);
    is_dirty(path, 0);
    return leave(why ? -1 : (int)real_write(fd, from, most(n)), why);
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_pwrite(fd, from, n, at);
    pthread_mutex_lock(&f.lock);
    int why = strike("pwrite", path, 1);
    is_dirty(path, 0);
    return leave(why ? -1 : (int)real_pwrite(fd, from, most(n), at), why);
}

int ftruncate(int fd, off_t n)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_ftruncate(fd, n);
    pthread_mutex_lock(&f.lock);
    int why = strike("ftruncate", path, 1);
    is_dirty(path, 0);
    return leave(why ? -1 : real_ftruncate(fd, n), why);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_posix_fallocate(fd, at, n);
    pthread_mutex_lock(&f.lock);
    int why = strike("posix_fallocate", path, 1);
    is_dirty(path, 0);
    int bad = why ? why : real_posix_fallocate(fd, at, n);
    pthread_mutex_unlock(&f.lock);
    return bad;
}

int fsync(int fd)
{
    prepare();
    const char *path = path_of(fd);
    if (!path)
        return real_fsync(fd);
    pthread_mutex_lock(&f.lock);
    int why = strike("fsync", path, 1);
    int bad = why ? -1 : real_fsync(fd);
    if (!bad)
        synced(path);
    return leave(bad, why);
}
