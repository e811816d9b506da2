/* ckptdir.c: folders of checkpoints: their files, how they are made, checked,
 * listed and thrown away. ckpt.c says what a folder holds. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime.h"

const char *const ckptfile[NCKPTFILE] = { "model.safetensors",
                                          "optim.safetensors", "state.json" };

/* ---- files --------------------------------------------------------------- */

int ckpt_complain(const char *what, const char *path)
{
    warn(NULL, "checkpoint not written: %s %s: %s", what, path,
         strerror(errno));
    return -1;
}

static int write_all(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t k = write(fd, s, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -1;
        s += k;
        n -= (size_t)k;
    }
    return 0;
}

int ckpt_sync(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);

    if (fd < 0)
        return -1;
    int bad = fsync(fd);
    close(fd);
    return bad;
}

int ckpt_write(const char *path, const char *s, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0 || write_all(fd, s, n) || fsync(fd)) {
        ckpt_complain("cannot write", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return close(fd) ? ckpt_complain("cannot write", path) : 0;
}

/* A file of its full size, so that a full disk shows here and not in a
 * mapping. */
int ckpt_layout(const char *path, const char *head, size_t len, int64_t total)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0)
        return ckpt_complain("cannot make", path);
    int bad = write_all(fd, head, len);
    int no = bad ? 0 : posix_fallocate(fd, 0, total);
    if (no) {
        errno = no;
        bad = -1;
    }
    if (close(fd) || bad)
        return ckpt_complain("cannot write", path);
    return 0;
}

uint8_t *ckpt_map(const char *path, int64_t *size, int writable)
{
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    struct stat st;
    void *p = MAP_FAILED;

    if (fd >= 0 && !fstat(fd, &st) && st.st_size) {
        *size = st.st_size;
        p = mmap(NULL, (size_t)st.st_size,
                 writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                 0);
    }
    if (fd >= 0)
        close(fd);
    return p == MAP_FAILED ? NULL : p;
}

/* ---- making one ---------------------------------------------------------- */

static int write_state(Arena *a, const char *dir, const State *s)
{
    Text t = { .arena = a };

    put(&t,
        "{\"format\": \"pleat %d\", \"step\": %lld, \"tokens\": %lld, "
        "\"samples\": %lld, \"skipped\": %lld, \"seed\": %llu, "
        "\"plan\": \"%s\"}\n",
        format_now(FMTcheckpoint), (long long)s->step, (long long)s->tokens,
        (long long)s->samples, (long long)s->skipped,
        (unsigned long long)s->seed, s->plan ? s->plan : "");
    return ckpt_write(strf(a, "%s/%s", dir, ckptfile[STATE]), t.s, t.len);
}

char *hash_text(Arena *a, const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);

    return strf(a, "%016llx%016llx", (unsigned long long)h.high64,
                (unsigned long long)h.low64);
}

/* ---- the index ----------------------------------------------------------- */

static int write_index(Arena *a, Pool *pool, const char *dir)
{
    Text t = { .arena = a };

    for (int i = 0; i < NCKPTFILE; i++) {
        int64_t size = 0;
        char *path = strf(a, "%s/%s", dir, ckptfile[i]);
        uint8_t *map = ckpt_map(path, &size, 0);
        if (!map)
            return ckpt_complain("cannot read back", ckptfile[i]);
        const void *kept = pieces_kept(a, path, size);
        put(&t, "%s %lld %s\n", pieces_hash(a, pool, map, size, kept),
            (long long)size, ckptfile[i]);
        munmap(map, (size_t)size);
        pieces_remove(a, path);
    }
    put(&t, "%s\n", hash_text(a, t.s, t.len));
    return ckpt_write(strf(a, "%s/index", dir), t.s, t.len);
}

/* Only the files we write are removed, never a tree. */
static void remove_folder(Arena *a, const char *dir)
{
    for (int i = 0; i < NCKPTFILE; i++) {
        unlink(strf(a, "%s/%s", dir, ckptfile[i]));
        pieces_remove(a, strf(a, "%s/%s", dir, ckptfile[i]));
    }
    unlink(strf(a, "%s/index", dir));
    unlink(strf(a, "%s/tuned", dir));
    rmdir(dir);
}

/* A folder of that name (the same step saved before) changes places with the
 * new one, so at every moment one of them has the name. */
static int put_in_place(Arena *a, const char *tmp, const char *to)
{
    if (access(to, F_OK))
        return rename(tmp, to);
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, to, RENAME_EXCHANGE))
        return -1;
    remove_folder(a, tmp);
    return 0;
}

static int commit(Arena *a, const char *dir, const char *tmp, const char *name)
{
    char *latest = strf(a, "%s/latest", dir), *next = strf(a, "%s.tmp", latest);
    Text t = { .arena = a };

    if (ckpt_sync(tmp, O_RDONLY | O_DIRECTORY))
        return ckpt_complain("cannot sync", tmp);
    if (put_in_place(a, tmp, strf(a, "%s/%s", dir, name)))
        return ckpt_complain("cannot rename", tmp);
    ckpt_sync(dir, O_RDONLY | O_DIRECTORY);
    put(&t, "%s\n", name);
    if (ckpt_write(next, t.s, t.len) || rename(next, latest))
        return ckpt_complain("cannot write", latest);
    return 0;
}

char *ckpt_folder(Arena *a, const char *dir, int64_t step)
{
    return strf(a, "%s/.step-%08lld.tmp", dir, (long long)step);
}

int ckpt_begin(Arena *a, const char *dir, const char *tmp)
{
    mkdir(dir, 0755);
    remove_folder(a, tmp);
    return mkdir(tmp, 0755) ? ckpt_complain("cannot make", tmp) : 0;
}

int ckpt_end(Arena *a, const char *dir, const char *tmp, const State *s,
             int bad)
{
    char *name = strf(a, "step-%08lld", (long long)s->step);
    Pool *pool = pool_open(0);

    if (!bad)
        bad = write_state(a, tmp, s) || write_index(a, pool, tmp) ||
              commit(a, dir, tmp, name);
    if (bad)
        remove_folder(a, tmp);
    pool_close(pool);
    return bad;
}

/* ---- checking ------------------------------------------------------------ */

static const char *check_file(Arena *a, Pool *pool, const char *dir,
                              const char *line, const char *name,
                              const void *known)
{
    long long size = -1;
    int64_t have = 0;
    char hash[33] = "", said[64] = "";

    if (sscanf(line, "%32s %lld %63[^\n]", hash, &size, said) != 3 ||
        strcmp(said, name))
        return "its index is not readable";
    uint8_t *map = ckpt_map(strf(a, "%s/%s", dir, name), &have, 0);
    if (!map)
        return strf(a, "%s is missing or empty", name);
    const char *why = NULL;
    if (have != size)
        why = strf(a, "%s has %lld bytes instead of %lld", name,
                   (long long)have, size);
    else if (strcmp(pieces_hash(a, pool, map, have, known), hash) &&
             strcmp(pieces_whole(a, map, have), hash))
        why = strf(a, "%s is damaged (its hash differs)", name);
    munmap(map, (size_t)have);
    return why;
}

/* known: null, or by file: hashes of pieces that others have read. */
static const char *check_index(Arena *a, Pool *pool, const char *dir,
                               const void *const *known)
{
    size_t n = 0, body = 0;
    char *s = file_read(a, strf(a, "%s/index", dir), &n);

    if (!s)
        return "it has no index (not finished?)";
    if (n < 33 || s[n - 1] != '\n')
        return "its index is cut off";
    body = n - 33;
    s[n - 1] = 0;
    if (strcmp(hash_text(a, s, body), s + body))
        return "its index is damaged";
    for (int i = 0; i < NCKPTFILE; i++) {
        const char *why =
            check_file(a, pool, dir, s, ckptfile[i], known ? known[i] : NULL);
        if (why)
            return why;
        s = strchr(s, '\n') + 1;
    }
    return NULL;
}

/* "pleat 1" */
static const char *format_of(Arena *a, const json_t *j)
{
    const char *said = json_string_value(json_object_get(j, "format"));
    long long format = 0;

    if (!said || sscanf(said, "pleat %lld", &format) != 1)
        return "its state.json does not say its format";
    const char *why = format_wrong(a, FMTcheckpoint, format);
    return why ? strf(a, "it %s", why) : NULL;
}

static const char *read_state(Arena *a, const char *dir, State *s)
{
    json_error_t e;
    json_t *j = json_load_file(strf(a, "%s/%s", dir, ckptfile[STATE]),
                               JSON_REJECT_DUPLICATES, &e);
    const char *plan = json_string_value(json_object_get(j, "plan"));

    if (!json_is_integer(json_object_get(j, "step")) || !plan)
        return "its state.json is not readable";
    const char *why = format_of(a, j);
    if (why)
        return why;
    s->step = json_integer_value(json_object_get(j, "step"));
    s->tokens = json_integer_value(json_object_get(j, "tokens"));
    s->samples = json_integer_value(json_object_get(j, "samples"));
    s->skipped = json_integer_value(json_object_get(j, "skipped"));
    s->seed = (uint64_t)json_integer_value(json_object_get(j, "seed"));
    s->plan = strf(a, "%s", plan);
    json_decref(j);
    return NULL;
}

static const char *check_folder(Arena *a, Pool *pool, const char *dir,
                                const void *const *known)
{
    const char *why = check_index(a, pool, dir, known);
    StFile *f;

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        why = st_open(a, strf(a, "%s/%s", dir, ckptfile[i]), &f);
        if (!why)
            st_close(f);
    }
    return why;
}

const char *ckpt_verify(Arena *a, const char *dir, State *s)
{
    Pool *pool = pool_open(0);
    const char *why = check_folder(a, pool, dir, NULL);

    pool_close(pool);
    return why ? why : read_state(a, dir, s);
}

/* By all processes, each of which hashes a part; the first one judges. */
static const char *verify_together(Arena *a, Comm *c, const char *dir, State *s)
{
    Pool *pool = pool_open(0);
    const void *known[NCKPTFILE] = { NULL };
    char said[256] = "";

    for (int i = MODEL; i <= OPTIM; i++)
        known[i] =
            pieces_shared(a, pool, c, strf(a, "%s/%s", dir, ckptfile[i]));
    const char *why = c->first ? NULL : check_folder(a, pool, dir, known);
    pool_close(pool);
    snprintf(said, sizeof said, "%s", why ? why : "");
    comm_share(c, said, sizeof said);
    return *said ? strf(a, "%s", said) : read_state(a, dir, s);
}

/* ---- listing ------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    return strcmp(*(char *const *)b, *(char *const *)a);
}

/* Names of the finished checkpoints, newest first. A vec. */
static char **list_checkpoints(Arena *a, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char **v = NULL;

    while (d && (e = readdir(d)))
        if (!strncmp(e->d_name, "step-", 5))
            vec_push(a, v, strf(a, "%s", e->d_name));
    if (d)
        closedir(d);
    if (v)
        qsort(v, vec_len(v), sizeof *v, newest_first);
    return v;
}

int ckpt_exists(const char *dir)
{
    Arena *a = arena_new();
    int n = vec_len(list_checkpoints(a, dir)) > 0;

    arena_free(a);
    return n;
}

char *ckpt_newest(Arena *a, const char *dir, State *s, Comm *c)
{
    char **v = list_checkpoints(a, dir), name[64];
    int several = c && c->n < c->world;
    size_t i = 0;

    for (;; i++) {
        snprintf(name, sizeof name, "%s", i < vec_len(v) ? v[i] : "");
        if (several)
            comm_share(c, name, sizeof name);
        if (!*name)
            break;
        char *path = strf(a, "%s/%s", dir, name);
        const char *why =
            several ? verify_together(a, c, path, s) : ckpt_verify(a, path, s);
        if (!why)
            return path;
        if (!several || !c->first)
            warn(NULL, "%s is not used: %s", path, why);
    }
    if (i)
        err(NULL, "no checkpoint in %s is whole", dir);
    return NULL;
}

/* ---- throwing away ------------------------------------------------------- */

void ckpt_prune(const char *dir, int64_t keep)
{
    Arena *a = arena_new();
    char **v = list_checkpoints(a, dir);

    for (size_t i = (size_t)keep; keep > 0 && i < vec_len(v); i++)
        remove_folder(a, strf(a, "%s/%s", dir, v[i]));
    arena_free(a);
}
