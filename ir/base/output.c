/* output.c: files that this program writes. Each is written under a temporary
 * name beside its final one, synced and renamed, and the folder is synced; so
 * a final name never stands for a part. Nothing else of the program creates
 * files (tests/tidy). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "heap.h"

enum { MAXNAME = 200 }; /* bytes of a name that its temporary name has */

static const char temp_end[] = ".pleat-tmp";

/* ---- temporary names ----------------------------------------------------- */

static char *temp_of(Arena *a, const char *path)
{
    const char *name = file_name(path);

    return strf(a, "%.*s.%.*s%s", (int)(name - path), path, MAXNAME, name,
                temp_end);
}

static int is_temp(const char *name)
{
    return *name == '.' && ends_with(name, temp_end);
}

/* ---- kinds --------------------------------------------------------------- */

enum { FIRST = 512 }; /* bytes that are compared */

static const struct {
    const char *name, *start, *within;
    size_t n; /* bytes of start */
} kinds[] = {
#define OUTPUT(kind, name, start, within) \
    { name, start, within, sizeof start - 1 },
#include "outputs.def"
};

const char *output_start(OutputKind kind)
{
    return kinds[kind].start;
}

/* Is a file empty or an output of that kind? */
static int is_kind(Arena *a, const char *path, OutputKind kind)
{
    char s[FIRST + 1] = "";

    if (kind == OUTown)
        return 1;
    FILE *f = file_stream(path);
    size_t n = f ? fread(s, 1, FIRST, f) : 1;
    if (f)
        fclose(f);
    if (n && kind == OUTtokens) {
        const char *idx = strf(a, "%.*s.idx", (int)strlen(path) - 4, path);
        return !access(temp_of(a, idx), F_OK) || is_kind(a, idx, OUTindex);
    }
    return !n || (f && !memcmp(s, kinds[kind].start, kinds[kind].n) &&
                  strstr(s, kinds[kind].within));
}

void output_need(const char *path, OutputKind kind, const char *const *input,
                 size_t n)
{
    struct stat st, in;

    if (stat(path, &st) || !S_ISREG(st.st_mode))
        return;
    for (size_t i = 0; i < n; i++)
        if (!stat(input[i], &in) && in.st_dev == st.st_dev &&
            in.st_ino == st.st_ino)
            err(NULL, "%s is an input of this command: name another output",
                path);
    if (!is_kind(forever, path, kind))
        err(NULL, "%s is there and is not %s: remove it or name another output",
            path, kinds[kind].name);
}

/* ---- locks --------------------------------------------------------------- */

/* Lock a temporary file or folder that is open. 1: it has lost its name to the
 * process that had locked it. -1: that process has not ended. */
static int lock(int fd, const char *temp)
{
    struct stat mine, now;

    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        errno = EBUSY;
        return -1;
    }
    return fstat(fd, &mine) || stat(temp, &now) || mine.st_ino != now.st_ino;
}

static int open_temp(const char *temp, int flags)
{
    int fd, lost = 1;

    while (lost > 0) {
        fd = flags & O_DIRECTORY && mkdir(temp, 0777) && errno != EEXIST
                 ? -1
                 : open(temp, flags | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0 && flags & O_DIRECTORY) {
            int why = errno;
            rmdir(temp);
            errno = why;
        }
        if (fd < 0)
            return -1;
        if ((lost = lock(fd, temp)))
            file_close(fd, 1);
    }
    return lost ? -1 : fd;
}

/* ---- one file ------------------------------------------------------------ */

static ssize_t stream_put(void *ctx, const char *p, size_t n)
{
    Output *output = ctx;

    if (!output->error && !file_put(output->fd, p, n))
        return (ssize_t)n;
    output->error = output->error ? output->error : errno;
    return 0;
}

static int stream_close(void *ctx)
{
    (void)ctx;
    return 0;
}

/* The target of a link; what is there. /dev/stdout, /dev/fd/N, files of /proc
 * stand for open ones, whose names are not ours to change. */
static int find_target(Arena *a, Output *output, const char *path,
                       OutputKind kind)
{
    char *full = realpath(path, NULL);
    struct stat st;
    int there = !stat(path, &st);

    output->path = strf(a, "%s", full ? full : path);
    free(full);
    if ((there && S_ISDIR(st.st_mode)) || !*file_name(output->path)) {
        errno = there ? EISDIR : ENOENT;
        return -1;
    }
    output->in_place =
        !strncmp(path, "/dev/std", 8) || !strncmp(path, "/dev/fd/", 8) ||
        !strncmp(path, "/proc/", 6) || (there && !S_ISREG(st.st_mode));
    output->mode = there && !output->in_place ? st.st_mode & 07777u : 0;
    if (output->in_place)
        output->path = strf(a, "%s", path);
    else if (there && !is_kind(a, path, kind)) {
        errno = EEXIST;
        return -1;
    }
    return there ? access(path, W_OK) : 0;
}

Output *output_open(Arena *a, const char *path, OutputKind kind)
{
    Output *o = alloc(a, sizeof *o);

    if (find_target(a, o, path, kind))
        return NULL;
    o->temp = temp_of(a, o->path);
    o->fd = o->in_place
                ? open(o->path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY)
                : open_temp(o->temp, O_RDWR | O_CREAT);
    if (o->fd < 0)
        return NULL;
    o->file = fopencookie(
        o, "w",
        (cookie_io_functions_t){ .write = stream_put, .close = stream_close });
    if (o->file && (o->in_place || (!ftruncate(o->fd, 0) &&
                                    (!o->mode || !fchmod(o->fd, o->mode))))) {
        setvbuf(o->file, NULL, _IOFBF, 1 << 20);
        return o;
    }
    int why = errno;
    output_drop(o);
    errno = why;
    return NULL;
}

void output_drop(Output *output)
{
    if (!output->in_place && output->fd >= 0)
        unlink(output->temp);
    if (output->file)
        fclose(output->file);
    if (output->fd >= 0)
        close(output->fd);
    output->file = NULL;
    output->fd = -1;
}

static int complete(Output *output)
{
    int bad = fflush(output->file) || ferror(output->file);

    if (!bad && !output->in_place && file_flush(output->fd)) {
        bad = 1;
        output->error = errno;
    }
    if (bad && output->error)
        errno = output->error;
    return bad ? -1 : 0;
}

/* The lock goes after the name. */
static int rename_one(Output *output)
{
    if (!output->in_place && file_move(output->temp, output->path))
        return -1;
    int bad = file_close(output->fd, 0);
    output->fd = -1;
    return bad;
}

int output_commit(Output **output, int n)
{
    const char *index = n > 1 && output[n - 1] && !output[n - 1]->in_place
                            ? output[n - 1]->path
                            : NULL;
    int bad = 0, begun = 0;

    for (int i = 0; i < n && !bad; i++)
        bad = !output[i] || complete(output[i]);
    if (!bad && index) {
        begun = !unlink(index) || errno == ENOENT;
        bad = !begun || file_sync(file_folder(forever, index));
    }
    for (int i = 0; i < n && !bad; i++)
        bad = rename_one(output[i]);
    int why = errno;
    for (int i = n - 1; i >= 0; i--) {
        if (!output[i])
            continue;
        if (bad && begun && !output[i]->in_place)
            unlink(output[i]->path);
        output_drop(output[i]);
    }
    errno = why;
    return bad ? -1 : 0;
}

int file_replace(const char *path, OutputKind kind, const void *p, size_t n)
{
    Arena *a = arena_new();
    Output *o = output_open(a, path, kind);
    int bad = !o;

    if (o) {
        fwrite(p, 1, n, o->file);
        bad = output_commit(&o, 1);
    }
    int why = errno;
    arena_free(a);
    errno = why;
    return bad ? -1 : 0;
}

/* ---- files in folders that are not complete ------------------------------ */

int file_create(const char *path, int flags)
{
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0666);
}

int file_write(const char *path, const void *p, size_t n)
{
    int fd = file_create(path, O_TRUNC);

    return fd < 0 ? -1 : file_close(fd, file_put(fd, p, n) || file_flush(fd));
}

/* ---- folders ------------------------------------------------------------- */

char **folder_names(Arena *a, const char *path, int *why)
{
    DIR *folder = opendir(path);
    struct dirent *e;
    char **v = NULL;

    *why = folder || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    while (folder && (errno = 0, e = readdir(folder)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            vec_push(a, v, strf(a, "%s", e->d_name));
    if (folder) {
        *why = errno;
        closedir(folder);
    }
    if (v)
        qsort(v, vec_len(v), sizeof *v, by_text);
    return v;
}

/* Calls f with the paths of the names in a folder. */
static void each_name(const char *path, void (*f)(const char *path))
{
    Arena *a = arena_new();
    int why;
    char **name = folder_names(a, path, &why);

    for (size_t i = 0; i < vec_len(name); i++)
        f(strf(a, "%s/%s", path, name[i]));
    arena_free(a);
}

static void remove_file(const char *path)
{
    unlink(path);
}

OutputFolder folder_open(Arena *a, const char *path)
{
    char *full = realpath(path, NULL);
    OutputFolder f = { .path = strf(a, "%s", full ? full : path) };
    size_t n = strlen(f.path);

    free(full);
    while (n > 1 && f.path[n - 1] == '/')
        f.path[--n] = 0;
    f.temp = temp_of(a, f.path);
    f.fd = open_temp(f.temp, O_RDONLY | O_DIRECTORY);
    if (f.fd < 0)
        f.temp = NULL;
    else
        each_name(f.temp, remove_file);
    return f;
}

int folder_commit(OutputFolder *folder)
{
    int bad = file_sync(folder->temp) || file_move(folder->temp, folder->path);
    int why = errno;

    if (bad)
        folder_drop(folder);
    file_close(folder->fd, 1);
    folder->fd = -1;
    errno = why;
    return bad ? -1 : 0;
}

void folder_drop(OutputFolder *folder)
{
    each_name(folder->temp, remove_file);
    rmdir(folder->temp);
    file_close(folder->fd, 1);
    folder->fd = -1;
}

/* One that no process has locked, where the file system has locks. */
static void sweep(const char *path)
{
    struct stat st;

    if (!is_temp(file_name(path)) || lstat(path, &st) ||
        (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) && !lock(fd, path)) {
        if (S_ISDIR(st.st_mode)) {
            each_name(path, remove_file);
            rmdir(path);
        } else {
            unlink(path);
        }
    }
    file_close(fd, 1);
}

void folder_sweep(const char *path)
{
    each_name(path, sweep);
}
