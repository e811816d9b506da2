/* ckpt.c: checkpoints. A folder holds logical tensors, whatever the fold:
 *
 *     step-00000100/model.safetensors   weights (masters, if any) and states
 *                   optim.safetensors   moments
 *                   state.json          step, tokens, data position, seed, plan
 *                   index               XXH3-128 and size of each, then its own
 *     latest                            the newest's name, a hint for people
 *
 * Every process writes the boxes it owns into files that rank 0 laid out. The
 * folder is made under another name, its files and itself are synced, and it
 * is renamed: a crash leaves the old checkpoints and at most one folder that
 * begins with a dot. Reading trusts the index only: a file that does not hash
 * to what it says is refused, and the checkpoint before is taken.            */
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

enum { MODEL, OPTIM, STATE, NFILES };
static const char *const filenames[NFILES] = {
    "model.safetensors", "optim.safetensors", "state.json"
};
static const char *const ourkinds[] = {"param state", "m v"};

/* ---- which tensors go where ---------------------------------------------- */

static int has_word(const char *words, const char *w)
{
    size_t n = strlen(w);

    for (; *words; words += strcspn(words, " "), words += *words == ' ')
        if (strcspn(words, " ") == n && !strncmp(words, w, n))
            return 1;
    return 0;
}

/* What holds a tensor's exact value: its master, if it has one. */
static const Tensor *source_of(Arena *a, const Role *r, const Tensor *t)
{
    int i = role_tensor(r, strf(a, "optim.master.%s", t->name));

    return i < 0 ? t : &r->tensor[i];
}

static const char *axes_of(Arena *a, const Tensor *t)
{
    Text s = {.arena = a};

    put(&s, "%s", t->nd ? t->dim[0].axis : "");
    for (int d = 1; d < t->nd; d++)
        put(&s, " %s", t->dim[d].axis);
    return s.s;
}

static StTensor describe(Arena *a, const Tensor *t, const char *name)
{
    StTensor s = {.name = name, .dt = dtypes[t->dt].st, .nd = t->nd,
                  .bytes = dtypes[t->dt].bytes, .axes = axes_of(a, t)};

    for (int d = 0; d < t->nd; d++)
        s.n[d] = t->dim[d].n;
    return s;
}

static int listed(const StTensor *v, const char *name)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (!strcmp(v[i].name, name))
            return 1;
    return 0;
}

/* Tensors of one of the files, over all roles. A vec. */
static StTensor *list_tensors(Arena *a, const Plan *p, int file)
{
    StTensor *v = NULL;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            if (!has_word(ourkinds[file], t->kind) ||
                (r && listed(v, t->name)))
                continue;
            StTensor s = describe(a, source_of(a, &p->role[r], t), t->name);
            vec_push(a, v, s);
        }
    return v;
}

/* ---- files --------------------------------------------------------------- */

static int complain(const char *what, const char *path)
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

static int sync_path(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);

    if (fd < 0)
        return -1;
    int bad = fsync(fd);
    close(fd);
    return bad;
}

static int write_text(const char *path, const char *s, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0 || write_all(fd, s, n) || fsync(fd)) {
        complain("cannot write", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return close(fd) ? complain("cannot write", path) : 0;
}

/* A file of its full size, so that a full disk shows here and not in a
 * mapping.                                                                   */
static int lay_out(const char *path, const char *head, size_t len,
                   int64_t total)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0)
        return complain("cannot make", path);
    int bad = write_all(fd, head, len);
    int no = bad ? 0 : posix_fallocate(fd, 0, total);
    if (no) {
        errno = no;
        bad = -1;
    }
    if (close(fd) || bad)
        return complain("cannot write", path);
    return 0;
}

static uint8_t *map_file(const char *path, int64_t *size, int writable)
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

/* ---- saving -------------------------------------------------------------- */

typedef struct Copy { uint8_t *file; const uint8_t *local; int size; } Copy;

static void copy_run(void *ctx, int64_t global, int64_t local, int64_t n)
{
    const Copy *c = ctx;

    memcpy(c->file + global * c->size, c->local + local * c->size,
           (size_t)(n * c->size));
}

/* What this process owns of a file's tensors. */
static int write_parts(Exec *x, Arena *a, const char *path, const StTensor *v,
                       size_t head)
{
    int64_t size = 0;
    uint8_t *map = map_file(path, &size, 1);
    const Mesh *m = x->plan->mesh;

    if (!map)
        return complain("cannot map", path);
    for (int64_t k = 0; k < x->comm->n; k++) {
        int64_t rank = x->comm->first + k;
        const Role *r = exec_role(x, rank);
        for (size_t i = 0; i < vec_len(v); i++) {
            int at = role_tensor(r, v[i].name);
            if (at < 0)
                continue;
            const Tensor *t = source_of(a, r, &r->tensor[at]);
            Copy c = {map + head + v[i].begin, exec_buf(x, rank, t->buf),
                      v[i].bytes};
            if (tensor_owner(m, t, rank))
                tensor_runs(m, t, rank, copy_run, &c);
        }
    }
    munmap(map, (size_t)size);
    return sync_path(path, O_RDWR) ? complain("cannot sync", path) : 0;
}

static int write_file(Exec *x, Arena *a, const char *dir, int file)
{
    char *path = strf(a, "%s/%s", dir, filenames[file]);
    StTensor *v = list_tensors(a, x->plan, file);
    size_t len;
    int64_t total, bad = 0;
    char *head = st_header(a, v, (int)vec_len(v), &len, &total);

    if (x->comm->first == 0)
        bad = lay_out(path, head, len, total) != 0;
    bad = comm_max(x->comm, bad);
    if (!bad)
        bad = write_parts(x, a, path, v, len) != 0;
    return comm_max(x->comm, bad) ? -1 : 0;
}

static int write_state(Arena *a, const char *dir, const State *s)
{
    Text t = {.arena = a};

    put(&t, "{\"format\": \"pleat 1\", \"step\": %lld, \"tokens\": %lld, "
        "\"samples\": %lld, \"skipped\": %lld, \"seed\": %llu, "
        "\"plan\": \"%s\"}\n", (long long)s->step, (long long)s->tokens,
        (long long)s->samples, (long long)s->skipped,
        (unsigned long long)s->seed, s->plan ? s->plan : "");
    return write_text(strf(a, "%s/%s", dir, filenames[STATE]), t.s, t.len);
}

static char *hash_text(Arena *a, const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(p, n);

    return strf(a, "%016llx%016llx", (unsigned long long)h.high64,
                (unsigned long long)h.low64);
}

static int write_index(Arena *a, const char *dir)
{
    Text t = {.arena = a};

    for (int i = 0; i < NFILES; i++) {
        int64_t size = 0;
        uint8_t *map = map_file(strf(a, "%s/%s", dir, filenames[i]), &size, 0);
        if (!map)
            return complain("cannot read back", filenames[i]);
        put(&t, "%s %lld %s\n", hash_text(a, map, (size_t)size),
            (long long)size, filenames[i]);
        munmap(map, (size_t)size);
    }
    put(&t, "%s\n", hash_text(a, t.s, t.len));
    return write_text(strf(a, "%s/index", dir), t.s, t.len);
}

/* Only the files we write are removed, never a tree. */
static void remove_folder(Arena *a, const char *dir)
{
    for (int i = 0; i < NFILES; i++)
        unlink(strf(a, "%s/%s", dir, filenames[i]));
    unlink(strf(a, "%s/index", dir));
    rmdir(dir);
}

/* A folder of that name (the same step saved before) changes places with the
 * new one, so at every moment one of them has the name.                      */
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
    Text t = {.arena = a};

    if (sync_path(tmp, O_RDONLY | O_DIRECTORY))
        return complain("cannot sync", tmp);
    if (put_in_place(a, tmp, strf(a, "%s/%s", dir, name)))
        return complain("cannot rename", tmp);
    sync_path(dir, O_RDONLY | O_DIRECTORY);
    put(&t, "%s\n", name);
    if (write_text(next, t.s, t.len) || rename(next, latest))
        return complain("cannot write", latest);
    return 0;
}

int ckpt_save(Exec *x, const char *dir, const State *s)
{
    Arena *a = arena_new();
    int first = x->comm->first == 0;
    char *name = strf(a, "step-%08lld", (long long)s->step);
    char *tmp = strf(a, "%s/.%s.tmp", dir, name);
    int64_t bad = 0;

    if (first) {
        mkdir(dir, 0755);
        remove_folder(a, tmp);
        if (mkdir(tmp, 0755))
            bad = complain("cannot make", tmp) != 0;
    }
    bad = comm_max(x->comm, bad);
    for (int f = MODEL; f <= OPTIM && !bad; f++)
        bad = write_file(x, a, tmp, f) != 0;
    if (first && !bad)
        bad = write_state(a, tmp, s) || write_index(a, tmp) ||
              commit(a, dir, tmp, name);
    if (first && bad)
        remove_folder(a, tmp);
    bad = comm_max(x->comm, bad);
    arena_free(a);
    return bad ? -1 : 0;
}

/* ---- checking ------------------------------------------------------------ */

static char *read_text(Arena *a, const char *path, size_t *n)
{
    int64_t size = 0;
    uint8_t *map = map_file(path, &size, 0);

    if (!map)
        return NULL;
    char *s = alloc(a, (size_t)size + 1);
    memcpy(s, map, (size_t)size);
    munmap(map, (size_t)size);
    *n = (size_t)size;
    return s;
}

static const char *check_file(Arena *a, const char *dir, const char *line,
                              const char *name)
{
    long long size = -1;
    int64_t have = 0;
    char hash[33] = "", said[64] = "";

    if (sscanf(line, "%32s %lld %63[^\n]", hash, &size, said) != 3 ||
        strcmp(said, name))
        return "its index is not readable";
    uint8_t *map = map_file(strf(a, "%s/%s", dir, name), &have, 0);
    if (!map)
        return strf(a, "%s is missing or empty", name);
    const char *why = NULL;
    if (have != size)
        why = strf(a, "%s has %lld bytes instead of %lld", name,
                   (long long)have, size);
    else if (strcmp(hash_text(a, map, (size_t)have), hash))
        why = strf(a, "%s is damaged (its hash differs)", name);
    munmap(map, (size_t)have);
    return why;
}

static const char *check_index(Arena *a, const char *dir)
{
    size_t n = 0, body = 0;
    char *s = read_text(a, strf(a, "%s/index", dir), &n);

    if (!s)
        return "it has no index (not finished?)";
    if (n < 33 || s[n - 1] != '\n')
        return "its index is cut off";
    body = n - 33;
    s[n - 1] = 0;
    if (strcmp(hash_text(a, s, body), s + body))
        return "its index is damaged";
    for (int i = 0; i < NFILES; i++) {
        const char *why = check_file(a, dir, s, filenames[i]);
        if (why)
            return why;
        s = strchr(s, '\n') + 1;
    }
    return NULL;
}

static const char *read_state(Arena *a, const char *dir, State *s)
{
    json_error_t e;
    json_t *j = json_load_file(strf(a, "%s/%s", dir, filenames[STATE]),
                               JSON_REJECT_DUPLICATES, &e);
    const char *plan = json_string_value(json_object_get(j, "plan"));

    if (!json_is_integer(json_object_get(j, "step")) || !plan)
        return "its state.json is not readable";
    s->step = json_integer_value(json_object_get(j, "step"));
    s->tokens = json_integer_value(json_object_get(j, "tokens"));
    s->samples = json_integer_value(json_object_get(j, "samples"));
    s->skipped = json_integer_value(json_object_get(j, "skipped"));
    s->seed = (uint64_t)json_integer_value(json_object_get(j, "seed"));
    s->plan = strf(a, "%s", plan);
    json_decref(j);
    return NULL;
}

const char *ckpt_verify(Arena *a, const char *dir, State *s)
{
    const char *why = check_index(a, dir);
    StFile *f;

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        why = st_open(a, strf(a, "%s/%s", dir, filenames[i]), &f);
        if (!why)
            st_close(f);
    }
    return why ? why : read_state(a, dir, s);
}

/* ---- loading ------------------------------------------------------------- */

static _Noreturn void bad_shape(const StFile *f, const StTensor *s,
                                const Tensor *t)
{
    Text a = {.arena = forever}, b = {.arena = forever};

    for (int d = 0; d < s->nd; d++)
        put(&a, "%s%lld", d ? " " : "", (long long)s->n[d]);
    for (int d = 0; d < t->nd; d++)
        put(&b, "%s%s=%lld", d ? " " : "", t->dim[d].axis,
            (long long)t->dim[d].n);
    err(&(Loc){t->file, t->line, NULL}, "'%s' is [%s] here and [%s] in %s",
        t->name, b.s ? b.s : "", a.s ? a.s : "", f->path);
}

/* Position of an axis in a list of names, or -1. */
static int axis_at(const char *axes, const char *axis)
{
    size_t n = strlen(axis);

    for (int i = 0; *axes; i++) {
        size_t len = strcspn(axes, " ");
        if (len == n && !strncmp(axes, axis, n))
            return i;
        axes += len + (axes[len] == ' ');
    }
    return -1;
}

/* By axis name where the file says them, else dim by dim. */
static View view_of(const StFile *f, const StTensor *s, const Tensor *t)
{
    View v = {.data = f->data + s->begin, .dt = s->dt};
    int64_t stride[MAXD], step = 1;

    if (s->nd != t->nd)
        bad_shape(f, s, t);
    for (int d = s->nd - 1; d >= 0; step *= s->n[d--])
        stride[d] = step;
    for (int d = 0; d < t->nd; d++) {
        int k = s->axes ? axis_at(s->axes, t->dim[d].axis) : d;
        if (k < 0 || k >= s->nd || s->n[k] != t->dim[d].n)
            bad_shape(f, s, t);
        v.stride[d] = stride[k];
        v.fix[d] = -1;
    }
    if ((dtypes[t->dt].kind == 'f') != st_isfloat(s->dt))
        err(NULL, "'%s' is %s here and %s in %s", t->name, dtypes[t->dt].name,
            s->dt, f->path);
    return v;
}

/* The name a tensor's value has in our files. */
static const char *stored_name(const Tensor *t)
{
    static const char master[] = "optim.master.";

    return strcmp(t->kind, "master") ? t->name : t->name + sizeof master - 1;
}

typedef struct Files { StFile **file; int n; const char *what; } Files;

static StTensor *find_in(const Files *s, const char *name, StFile **f)
{
    for (int i = 0; i < s->n; i++) {
        StTensor *t = st_find(s->file[i], name);
        if (t) {
            *f = s->file[i];
            return t;
        }
    }
    return NULL;
}

/* Fill the tensors of these kinds on every rank here. Kinds in `must` have to
 * be in the files.                                                           */
static void load_tensors(Exec *x, const Files *s, const char *kinds,
                         const char *must)
{
    for (int64_t k = 0; k < x->comm->n; k++) {
        int64_t rank = x->comm->first + k;
        const Role *r = exec_role(x, rank);
        for (int i = 0; i < r->ntensor; i++) {
            const Tensor *t = &r->tensor[i];
            StFile *f;
            if (!has_word(kinds, t->kind))
                continue;
            StTensor *st = find_in(s, stored_name(t), &f);
            if (!st && has_word(must, t->kind))
                err(&(Loc){t->file, t->line, NULL}, "%s has no tensor '%s'",
                    s->what, stored_name(t));
            if (!st)
                continue;
            View v = view_of(f, st, t);
            view_load(x->plan->mesh, t, rank, &v, exec_buf(x, rank, t->buf));
        }
    }
}

/* A tensor of the files that no role knows. */
static void refuse_leftovers(const Plan *p, const Files *s)
{
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->file[i]->n; k++) {
            const char *name = s->file[i]->t[k].name;
            int known = 0;
            for (int r = 0; r < p->nrole && !known; r++)
                known = role_tensor(&p->role[r], name) >= 0;
            if (!known)
                err(NULL, "%s has a tensor '%s' that the model has not",
                    s->what, name);
        }
}

static StFile *open_or_err(Arena *a, const char *path)
{
    StFile *f;
    const char *why = st_open(a, path, &f);

    if (why)
        err(NULL, "%s", why);
    return f;
}

/* ---- resuming ------------------------------------------------------------ */

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

/* The newest checkpoint that verifies; a note for each that does not. */
static char *newest_good(Arena *a, const char *dir, State *s)
{
    char **v = list_checkpoints(a, dir);

    for (size_t i = 0; i < vec_len(v); i++) {
        char *path = strf(a, "%s/%s", dir, v[i]);
        const char *why = ckpt_verify(a, path, s);
        if (!why)
            return path;
        warn(NULL, "%s is not used: %s", path, why);
    }
    if (vec_len(v))
        err(NULL, "no checkpoint in %s is whole", dir);
    return NULL;
}

int ckpt_resume(Exec *x, const char *dir, State *s)
{
    Arena *a = forever;
    char *path = newest_good(a, dir, s);
    StFile *file[2];

    if (!path)
        return 0;
    for (int i = MODEL; i <= OPTIM; i++)
        file[i] = open_or_err(a, strf(a, "%s/%s", path, filenames[i]));
    Files src = {file, 2, path};
    refuse_leftovers(x->plan, &src);
    load_tensors(x, &src, "param copy state master m v",
                 "param copy state master m v");
    st_close(file[0]);
    st_close(file[1]);
    return 1;
}

/* ---- starting from weights ----------------------------------------------- */

static int exists(const char *path)
{
    return !access(path, R_OK);
}

/* A vec of the files a Hugging Face index names, each once. */
static StFile **open_indexed(Arena *a, const char *dir, const char *index)
{
    json_error_t e;
    json_t *j = json_load_file(index, JSON_REJECT_DUPLICATES, &e), *v;
    json_t *map = json_object_get(j, "weight_map");
    const char *name, **seen = NULL;
    StFile **files = NULL;

    if (!json_is_object(map))
        err(NULL, "%s is no index: %s", index, j ? "no weight_map" : e.text);
    json_object_foreach(map, name, v) {
        const char *file = json_string_value(v);
        size_t i = 0;
        if (!file || strchr(file, '/'))
            err(NULL, "%s: '%s' is in no file of this folder", index, name);
        while (i < vec_len(seen) && strcmp(seen[i], file))
            i++;
        if (i < vec_len(seen))
            continue;
        vec_push(a, seen, strf(a, "%s", file));
        vec_push(a, files, open_or_err(a, strf(a, "%s/%s", dir, file)));
    }
    json_decref(j);
    return files;
}

/* The files behind `from`: a file, a checkpoint, a run, or a Hub folder. */
static StFile **open_from(Arena *a, const char *path)
{
    StFile **v = NULL;
    State s;
    char *index = strf(a, "%s/model.safetensors.index.json", path);
    char *single = strf(a, "%s/model.safetensors", path);
    struct stat st;

    if (stat(path, &st))
        err(NULL, "from: %s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        vec_push(a, v, open_or_err(a, path));
        return v;
    }
    if (exists(strf(a, "%s/index", path))) {
        const char *why = ckpt_verify(a, path, &s);
        if (why)
            err(NULL, "from: %s: %s", path, why);
    } else if (ckpt_exists(path)) {
        return open_from(a, newest_good(a, path, &s));
    } else if (ckpt_exists(strf(a, "%s/ckpt", path))) {
        return open_from(a, strf(a, "%s/ckpt", path));
    } else if (exists(index)) {
        return open_indexed(a, path, index);
    }
    if (!exists(single))
        err(NULL, "from: %s holds no checkpoint and no model.safetensors",
            path);
    vec_push(a, v, open_or_err(a, single));
    return v;
}

static int uses_hf_names(const Plan *p, const Files *s)
{
    StFile *f;

    for (int i = 0; i < p->nhf; i++)
        if (find_in(s, p->hf[i].hf, &f))
            return 1;
    return 0;
}

void ckpt_from(Exec *x, const char *path)
{
    StFile **v = open_from(forever, path);
    Files s = {v, (int)vec_len(v), path};

    if (uses_hf_names(x->plan, &s)) {
        hf_load(x, v, s.n, path);
    } else {
        if (role_prog(&x->plan->role[0], "step") >= 0)
            refuse_leftovers(x->plan, &s);
        load_tensors(x, &s, "param copy state master", "param copy");
    }
    for (int i = 0; i < s.n; i++)
        st_close(v[i]);
}
