/* ckpt_retention.c: the folders in a run's ckpt/: which are checkpoints, which
 * is the newest whole one, which go.
 *
 *     step-00000100         a checkpoint, as we print its name
 *     .step-00000100.tmp    one that is being made
 *     .step-00000100.gone   one that is being removed
 *     .step-00000100.old    one that gives its name to another of its step;
 *                           if that has not come, it is that checkpoint
 *
 * All other names are somebody else's: they are not listed and not touched. A
 * folder changes its name before its files go, and names are synced before what
 * depends on them, so a crash leaves no half of a checkpoint under a name of
 * the first kind. The next save clears away what crashes have left. */
#include <sys/statvfs.h>

#include "ckpt.h"

typedef struct FoundCheckpoint {
    int64_t step;
    const char *name; /* of its folder */
} FoundCheckpoint;

/* ---- names --------------------------------------------------------------- */

static char *name_of(Arena *a, int64_t step)
{
    return strf(a, "step-%08ld", step);
}

static char *path_of(Arena *a, const char *dir, int64_t step)
{
    return strf(a, "%s/%s", dir, name_of(a, step));
}

static char *hidden(Arena *a, const char *dir, int64_t step, const char *what)
{
    return strf(a, "%s/.%s.%s", dir, name_of(a, step), what);
}

char *ckpt_folder(Arena *a, const char *dir, int64_t step)
{
    return hidden(a, dir, step, "tmp");
}

/* The step of a name that is "step-N" and then `end`, as we print it; -1. */
static int64_t step_named(const char *name, const char *end)
{
    char again[64], *rest;

    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9')
        return -1;
    int64_t step = strtoll(name + 5, &rest, 10);
    snprintf(again, sizeof again, "step-%08ld%s", step, end);
    return strcmp(name, again) ? -1 : step;
}

static int64_t hidden_named(const char *name, const char *what)
{
    char end[16];

    snprintf(end, sizeof end, ".%s", what);
    return *name == '.' ? step_named(name + 1, end) : -1;
}

/* ---- listing ------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    const FoundCheckpoint *x = a, *y = b;

    return x->step < y->step ? 1 : x->step > y->step ? -1 : 0;
}

static int is_listed(const FoundCheckpoint *checkpoint, int64_t step)
{
    for (size_t i = 0; i < vec_len(checkpoint); i++)
        if (checkpoint[i].step == step)
            return 1;
    return 0;
}

/* Checkpoints, newest first; whether they are whole is not looked at. A vec. */
static FoundCheckpoint *list_checkpoints(Arena *a, const char *dir, int *bad)
{
    char **name = folder_names(a, dir, bad);
    FoundCheckpoint *v = NULL;

    for (size_t i = 0; i < vec_len(name); i++)
        if (step_named(name[i], "") >= 0)
            vec_push(a, v,
                     ((FoundCheckpoint){ step_named(name[i], ""), name[i] }));
    for (size_t i = 0; i < vec_len(name); i++) {
        int64_t step = hidden_named(name[i], "old");
        if (step >= 0 && !is_listed(v, step))
            vec_push(a, v, ((FoundCheckpoint){ step, name[i] }));
    }
    vec_sort(v, newest_first);
    return v;
}

/* A folder that cannot be read may hold some: nothing is done without them. */
static FoundCheckpoint *list_or_err(Arena *a, const char *dir)
{
    int bad;
    FoundCheckpoint *v = list_checkpoints(a, dir, &bad);

    if (bad)
        err(NULL, "cannot read %s: %s", dir, strerror(bad));
    return v;
}

static int64_t count(const char *dir)
{
    Arena *a = arena_new();
    FoundCheckpoint *v = list_or_err(a, dir);
    int64_t n = (int64_t)vec_len(v);

    arena_free(a);
    return n;
}

int64_t ckpt_last(const char *dir)
{
    Arena *a = arena_new();
    FoundCheckpoint *v = list_or_err(a, dir);
    int64_t step = v ? v->step : -1;

    arena_free(a);
    return step;
}

int ckpt_exists(const char *dir)
{
    return count(dir) > 0;
}

/* Null, or why a folder is not what its name says. */
static const char *other_step(Arena *a, const char *why, int64_t step,
                              const State *state)
{
    return !why && state->step != step
               ? strf(a, "it is a checkpoint of step %ld", state->step)
               : why;
}

char *ckpt_newest(Arena *a, const char *dir, State *state, Comm *comm)
{
    int several = comm && comm->n < comm->world;
    FoundCheckpoint *v = list_or_err(a, dir), at = { -1, "" };
    char name[64];
    size_t i = 0;

    for (;; i++) {
        at = i < vec_len(v) ? v[i] : (FoundCheckpoint){ -1, "" };
        snprintf(name, sizeof name, "%s", at.name);
        if (several) {
            comm_share(comm, name, sizeof name);
            comm_share(comm, &at.step, sizeof at.step);
        }
        if (at.step < 0)
            break;
        char *path = strf(a, "%s/%s", dir, name);
        const char *why = several ? ckpt_verify_together(a, comm, path, state)
                                  : ckpt_verify(a, path, state);
        why = other_step(a, why, at.step, state);
        if (!why)
            return path;
        if (!several || !comm->first)
            warn(NULL, "%s is not used: %s", path, why);
    }
    if (i)
        err(NULL, "no checkpoint in %s is whole", dir);
    return NULL;
}

/* ---- removing ------------------------------------------------------------ */

/* Only the files we write go, never a tree. */
void ckpt_remove(Arena *a, const char *path)
{
    for (int i = 0; i < NCKPTFILE; i++) {
        unlink(strf(a, "%s/%s", path, ckptfile[i]));
        pieces_remove(a, strf(a, "%s/%s", path, ckptfile[i]));
    }
    unlink(strf(a, "%s/index", path));
    unlink(strf(a, "%s/tuned", path));
    rmdir(path);
}

void ckpt_sweep(Arena *a, const char *dir)
{
    int bad;
    char **name = folder_names(a, dir, &bad);

    folder_sweep(dir);
    unlink(strf(a, "%s/latest.tmp", dir)); /* format 1's */
    for (size_t i = 0; i < vec_len(name); i++) {
        int64_t step = hidden_named(name[i], "old");
        char *path = strf(a, "%s/%s", dir, name[i]);
        if (hidden_named(name[i], "tmp") >= 0 ||
            hidden_named(name[i], "gone") >= 0)
            ckpt_remove(a, path);
        else if (step >= 0 && access(path_of(a, dir, step), F_OK))
            rename(path, path_of(a, dir, step));
        else if (step >= 0)
            ckpt_remove(a, path);
    }
}

/* ---- the name of a new one ----------------------------------------------- */

/* Where names cannot be exchanged at once, the old one waits under a name that
 * is listed as long as the new one is not there. */
static int replace(const char *tmp, const char *to, const char *old)
{
    if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, to, RENAME_EXCHANGE))
        return rename(tmp, old);
    if (rename(to, old))
        return -1;
    if (!rename(tmp, to))
        return 0;
    int why = errno;
    rename(old, to);
    errno = why;
    return -1;
}

const char *ckpt_place(Arena *a, const char *dir, const char *tmp, int64_t step)
{
    char *to = path_of(a, dir, step), *old = hidden(a, dir, step, "old");
    int taken = !access(to, F_OK);

    if (taken ? replace(tmp, to, old) : rename(tmp, to))
        return ckpt_why(a, "cannot rename", tmp);
    if (file_sync(dir))
        return ckpt_why(a, "cannot sync", dir);
    if (taken)
        ckpt_remove(a, old);
    return NULL;
}

/* ---- how many stay ------------------------------------------------------- */

void ckpt_knows(Retention *retention, int64_t step, int whole)
{
    for (size_t i = 0; i < vec_len(retention->known); i++)
        if (retention->known[i].step == step) {
            retention->known[i].whole = whole;
            return;
        }
    vec_push(retention->mem, retention->known, ((Known){ step, whole }));
}

/* What is known already is not read again. */
static int is_whole(Arena *a, Pool *pool, Retention *retention, const char *dir,
                    const FoundCheckpoint *checkpoint)
{
    State s = { 0 };

    for (size_t i = 0; i < vec_len(retention->known); i++)
        if (retention->known[i].step == checkpoint->step)
            return retention->known[i].whole;
    const char *why =
        ckpt_read(a, pool, strf(a, "%s/%s", dir, checkpoint->name), &s);
    int whole = !other_step(a, why, checkpoint->step, &s);
    ckpt_knows(retention, checkpoint->step, whole);
    return whole;
}

static int is_our_file(Arena *a, const char *name)
{
    for (int i = 0; i < NCKPTFILE; i++)
        if (!strcmp(name, ckptfile[i]) ||
            !strcmp(name, strf(a, "%s.pieces", ckptfile[i])))
            return 1;
    return !strcmp(name, "index") || !strcmp(name, "tuned") ||
           !strcmp(name, ".") || !strcmp(name, "..");
}

/* Did we write it, and has nobody put anything in? */
static int is_ours(Arena *a, const char *path, int64_t step)
{
    State s;
    int bad;
    char **name = folder_names(a, path, &bad);

    for (size_t i = 0; i < vec_len(name); i++)
        bad |= !is_our_file(a, name[i]);
    return !bad && !access(strf(a, "%s/index", path), F_OK) &&
           !ckpt_state(a, path, &s) && s.step == step;
}

static void throw_away(Arena *a, const char *dir,
                       const FoundCheckpoint *checkpoint)
{
    char *path = strf(a, "%s/%s", dir, checkpoint->name);
    char *gone = hidden(a, dir, checkpoint->step, "gone");

    if (is_ours(a, path, checkpoint->step) && !rename(path, gone) &&
        !file_sync(dir))
        ckpt_remove(a, gone);
}

void ckpt_prune(Arena *a, Pool *pool, Retention *retention, const char *dir,
                int64_t newest)
{
    int bad;
    FoundCheckpoint *v = list_checkpoints(a, dir, &bad);
    int64_t whole = 1; /* the newest, which was written just now */

    ckpt_knows(retention, newest, 1);
    for (size_t i = 0; i < vec_len(v) && retention->most > 0 && !bad; i++) {
        if (v[i].step >= newest)
            continue;
        if (whole < retention->most)
            whole += is_whole(a, pool, retention, dir, &v[i]);
        else
            throw_away(a, dir, &v[i]);
    }
}

/* ---- room on the disk ---------------------------------------------------- */

/* Room for `saves` more, of which so many stay. Some file systems do not know
 * how much they have. */
void ckpt_room(const char *dir, int64_t bytes, int64_t keep, int64_t saves)
{
    int64_t old = count(dir), most;
    struct statvfs f;

    if (statvfs(dir, &f) || !f.f_blocks)
        return;
    int64_t room = (int64_t)(f.f_bavail * f.f_frsize);
    old = old < keep ? old : keep;
    most = keep && keep + 1 - old < saves ? keep + 1 - old : saves;
    if (room < bytes)
        err(NULL,
            "a checkpoint of this run takes %s GiB, and %s has room for %s",
            gib_text(forever, bytes, room), dir,
            gib_text(forever, room, bytes));
    int64_t all = bytes <= INT64_MAX / most ? bytes * most : INT64_MAX;
    if (room < all)
        warn(NULL,
             "this run's checkpoints take %s GiB more, and %s has room for %s "
             "(train.keep says how many stay)",
             gib_text(forever, all, room), dir, gib_text(forever, room, all));
}
