/* ckptdir.c: one folder of a checkpoint: its files, how it is made and checked.
 * ckpt.c says what a folder holds, ckpt_retention.c which folders there are. */
#include <jansson.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ckpt.h"

const char *const ckptfile[NCKPTFILE] = { "model.safetensors",
                                          "optim.safetensors", "state.json" };

/* ---- files --------------------------------------------------------------- */

char *ckpt_why(Arena *a, const char *what, const char *path)
{
    return strf(a, "%s %s: %s", what, path, strerror(errno));
}

int ckpt_complain(const char *why)
{
    if (why)
        warn(NULL, "checkpoint not written: %s", why);
    return why ? -1 : 0;
}

const char *ckpt_layout(Arena *a, const char *path, const char *head,
                        size_t len, int64_t total)
{
    int fd = file_create(path, O_TRUNC);

    if (fd < 0)
        return ckpt_why(a, "cannot make", path);
    int why = file_put(fd, head, len) ? errno : EINTR;
    while (why == EINTR) /* a signal */
        why = posix_fallocate(fd, 0, total);
    if (close(fd) && !why)
        why = errno;
    errno = why;
    return why ? ckpt_why(a, "cannot write", path) : NULL;
}

char *hash_text(Arena *a, const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);

    return strf(a, "%016lx%016lx", h.high64, h.low64);
}

/* ---- making one ---------------------------------------------------------- */

static const char *write_one(Arena *a, const char *path, const Text *out)
{
    return file_write(path, out->s, out->len)
               ? ckpt_why(a, "cannot write", path)
               : NULL;
}

static const char *write_state(Arena *a, const char *dir, const State *state)
{
    Text out = { .arena = a };

    put(&out,
        "{\"format\": \"pleat %d\", \"step\": %ld, \"tokens\": %ld, "
        "\"samples\": %ld, \"skipped\": %ld, \"began\": %ld, \"seed\": %lu, "
        "\"plan\": \"%s\"}\n",
        format_now(FMTcheckpoint), state->step, state->tokens, state->samples,
        state->skipped, state->began, state->seed,
        state->plan ? state->plan : "");
    return write_one(a, strf(a, "%s/%s", dir, ckptfile[STATE]), &out);
}

static const char *write_index(Arena *a, Pool *pool, const char *dir)
{
    Text out = { .arena = a };

    for (int i = 0; i < NCKPTFILE; i++) {
        char *path = strf(a, "%s/%s", dir, ckptfile[i]);
        const void *kept = pieces_kept(a, path);
        int64_t size = 0;
        char *hash = pieces_hash(a, pool, path, kept, &size);
        if (!hash)
            return ckpt_why(a, "cannot read back", path);
        put(&out, "%s %ld %s\n", hash, size, ckptfile[i]);
        pieces_remove(a, path);
    }
    put(&out, "%s\n", hash_text(a, out.s, out.len));
    return write_one(a, strf(a, "%s/index", dir), &out);
}

/* The parts of a folder that we write; `latest` is a hint: without it nothing
 * is lost. */
static const char *commit(Arena *a, const char *dir, const char *tmp,
                          int64_t step)
{
    char *name = strf(a, "step-%08ld", step);
    char *latest = strf(a, "%s/latest", dir);

    if (file_sync(tmp))
        return ckpt_why(a, "cannot sync", tmp);
    const char *why = ckpt_place(a, dir, tmp, step);
    if (!why)
        file_replace(latest, OUTown, strf(a, "%s\n", name), strlen(name) + 1);
    return why;
}

const char *ckpt_begin(Arena *a, const char *dir, const char *tmp)
{
    if (folders_make(dir))
        return ckpt_why(a, "cannot make", dir);
    ckpt_sweep(a, dir);
    ckpt_remove(a, tmp);
    return mkdir(tmp, 0755) ? ckpt_why(a, "cannot make", tmp) : NULL;
}

const char *ckpt_end(Arena *a, Pool *pool, const char *dir, const char *tmp,
                     const State *state, const Text *tuned)
{
    const char *why = write_state(a, tmp, state);

    if (!why && tuned && tuned->len)
        why = write_one(a, strf(a, "%s/tuned", tmp), tuned);
    if (!why)
        why = write_index(a, pool, tmp);
    return why ? why : commit(a, dir, tmp, state->step);
}

/* ---- checking ------------------------------------------------------------ */

static const char *check_file(Arena *a, Pool *pool, const char *dir,
                              const char *line, const char *name,
                              const void *known)
{
    long long size = -1;
    char hash[33] = "", said[64] = "", *path = strf(a, "%s/%s", dir, name);
    int64_t have = 0;

    if (sscanf(line, "%32s %lld %63[^\n]", hash, &size, said) != 3 ||
        strcmp(said, name))
        return "its index is not readable";
    char *is = pieces_hash(a, pool, path, known, &have);
    if (!is)
        return strf(a, "%s is missing, empty or not readable", name);
    if (have != size)
        return strf(a, "%s has %ld bytes instead of %lld", name, have, size);
    const char *whole = strcmp(is, hash) ? pieces_whole(a, path) : hash;
    return whole && !strcmp(whole, hash)
               ? NULL
               : strf(a, "%s is damaged (its hash differs)", name);
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

/* A count of a checkpoint: 0 to 2^62, so that sums do not overflow. */
static int is_count(const json_t *v)
{
    int64_t n = json_integer_value(v);

    return json_is_integer(v) && n >= 0 && n <= INT64_MAX / 2;
}

const char *ckpt_state(Arena *a, const char *dir, State *state)
{
    json_error_t e;
    size_t n = 0;
    char *s = file_read(a, strf(a, "%s/%s", dir, ckptfile[STATE]), &n);
    json_t *j = s ? json_loadb(s, n, JSON_REJECT_DUPLICATES, &e) : NULL;
    const char *plan = json_string_value(json_object_get(j, "plan"));
    const struct {
        const char *key;
        int64_t *to;
    } count[] = { { "step", &state->step },
                  { "tokens", &state->tokens },
                  { "samples", &state->samples },
                  { "skipped", &state->skipped },
                  { "began", &state->began } }; /* older ones lack it */

    if (!json_is_integer(json_object_get(j, "step")) || !plan) {
        json_decref(j);
        return "its state.json is not readable";
    }
    const char *why = format_of(a, j);
    for (int i = 0; i < countof(count) && !why; i++) {
        const json_t *v = json_object_get(j, count[i].key);
        *count[i].to = json_integer_value(v);
        if (!is_count(v) && (v || count[i].to != &state->began))
            why = strf(a, "its state.json has no valid number of %s",
                       count[i].key);
    }
    const json_t *seed = json_object_get(j, "seed");
    if (!why && !json_is_integer(seed))
        why = "its state.json has no valid seed";
    state->seed = (uint64_t)json_integer_value(seed);
    state->plan = strf(a, "%s", plan);
    json_decref(j);
    return why;
}

static const char *check_folder(Arena *a, Pool *pool, const char *dir,
                                const void *const *known)
{
    const char *why = check_index(a, pool, dir, known);
    StFile *file;

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        why = st_open(a, strf(a, "%s/%s", dir, ckptfile[i]), &file);
        if (!why)
            st_close(file);
    }
    return why;
}

const char *ckpt_read(Arena *a, Pool *pool, const char *dir, State *state)
{
    const char *why = check_folder(a, pool, dir, NULL);

    return why ? why : ckpt_state(a, dir, state);
}

const char *ckpt_verify(Arena *a, const char *dir, State *state)
{
    Pool *pool = pool_open(0);
    const char *why = ckpt_read(a, pool, dir, state);

    pool_close(pool);
    return why;
}

const char *ckpt_verify_together(Arena *a, Comm *comm, const char *dir,
                                 State *state)
{
    Pool *pool = pool_open(0);
    const void *known[NCKPTFILE] = { NULL };
    char said[256] = "";

    for (int i = MODEL; i <= OPTIM; i++)
        known[i] =
            pieces_shared(a, pool, comm, strf(a, "%s/%s", dir, ckptfile[i]));
    const char *why = comm->first ? NULL : check_folder(a, pool, dir, known);
    pool_close(pool);
    snprintf(said, sizeof said, "%s", why ? why : "");
    comm_share(comm, said, sizeof said);
    return *said ? strf(a, "%s", said) : ckpt_state(a, dir, state);
}
