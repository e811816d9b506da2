/* ckpt_save.c: checkpoints while training goes on. A save is a row of stages; a
 * thread runs them, from a snapshot of what the checkpoint holds:
 *
 *     copy      every process    what it writes, to the host's memory
 *     begin     the first        the folder under another name, files' sizes
 *     write     every process    its boxes, and their hashes
 *     rest      every process    hashes of what no process had whole
 *     end       the first        state, index, sync, the folder's name, pruning
 *
 * After a stage that others build on all processes say whether they are well:
 * MPI is asked by the thread that trains, without waiting, as often as it calls
 * saver_poll. One process alone goes through all stages by itself. One save is
 * in flight: the next waits for it. Without a snapshot, and at the end of a
 * run, training waits; the stages and the bytes are the same. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt.h"

enum { PAUSE = 200000, GIVEUP = 10 }; /* ns; s */
enum { MOSTTHREADS = 16, PERTHREAD = 4 };

struct Saver {
    Arena *mem;
    Exec *x;
    const char *dir;
    int first, several; /* this process is; there are */
    CkptFile live[2];   /* from: the tensors */
    CkptFile copied[2]; /* from: the snapshot */
    Snapshot *snap;     /* null: saves wait */
    Pool *own;          /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* of these three: */
    pthread_cond_t turn;
    int go, stop, there; /* run stages; end; the snapshot is taken */

    /* the save in flight: the thread's while `go`, else the trainer's */
    int busy, ready, asking, beside;
    const CkptFile *file;
    Pool *pool;
    Arena *a;
    Retention keep;
    State state;
    Text tuned;
    char *tmp;
    int at, bad, speaks;  /* stage; a process failed; this one says why */
    const char *why;      /* how this one failed */
    double began, waited; /* seconds: for the one before */
    Saved saved;
};

static Saver *current; /* for saver_finish */

/* ---- stages -------------------------------------------------------------- */

static const char *path_of(Saver *s, int file)
{
    return strf(s->a, "%s/%s", s->tmp, ckptfile[file]);
}

static const char *copy(Saver *s)
{
    double began = monotonic();
    int bad = s->file == s->copied && snapshot_wait(s->snap, s->pool);

    s->saved.copied = monotonic() - began;
    pthread_mutex_lock(&s->lock);
    s->there = 1;
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->lock);
    return bad ? "the device gave no copy of what it holds" : NULL;
}

static const char *begin(Saver *s)
{
    const char *why = ckpt_begin(s->a, s->dir, s->tmp);

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        const CkptFile *f = &s->file[i];
        why = pieces_layout(s->a, path_of(s, i), f->head, f->len, f->total);
    }
    return why;
}

static const char *write_boxes(Saver *s)
{
    const char *why = NULL;

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        const CkptFile *f = &s->file[i];
        why = pieces_write(s->a, s->pool, path_of(s, i), s->x->plan->mesh,
                           f->box, f->total, PWhashed);
    }
    return why;
}

static const char *rest(Saver *s)
{
    const char *why = NULL;

    for (int i = MODEL; i <= OPTIM && !why && s->several; i++)
        why = pieces_rest(s->a, s->pool, path_of(s, i), s->x->comm->first,
                          s->x->comm->world);
    return why;
}

static const char *end(Saver *s)
{
    const char *why = NULL;

    if (!s->bad)
        why = ckpt_end(s->a, s->pool, s->dir, s->tmp, &s->state, &s->tuned);
    if (s->bad || why)
        ckpt_remove(s->a, s->tmp);
    else
        ckpt_prune(s->a, s->pool, &s->keep, s->dir, s->state.step);
    return why;
}

/* all: every process runs it. meets: then all say whether they are well. */
static const struct {
    const char *(*run)(Saver *);
    int all, meets;
} stages[] = {
    /* clang-format off */
    { copy,        1, 0 },
    { begin,       0, 1 },
    { write_boxes, 1, 1 },
    { rest,        1, 1 },
    { end,         0, 1 },
    /* clang-format on */
};

enum { NSTAGE = sizeof stages / sizeof *stages, END = NSTAGE - 1 };

/* From the next stage to one where all meet, or to the last. */
static void run_stages(Saver *s)
{
    int meets = 0;

    while (s->at < NSTAGE && !meets) {
        int i = s->at++, mine = stages[i].all || s->first;
        meets = s->several && stages[i].meets;
        if (!mine || (s->bad && i != END))
            continue;
        const char *why = stages[i].run(s);
        s->why = s->why ? s->why : why;
        s->bad |= why != NULL;
    }
}

static void *work(void *self)
{
    Saver *s = self;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (!s->go) {
            pthread_cond_wait(&s->turn, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        run_stages(s);
        pthread_mutex_lock(&s->lock);
        s->go = 0;
        pthread_cond_broadcast(&s->turn);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the trainer's side -------------------------------------------------- */

static void take_turn(Saver *s)
{
    if (!s->beside) {
        watch_works(1);
        run_stages(s);
        watch_works(0);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->go = 1;
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->lock);
}

static int is_working(Saver *s)
{
    pthread_mutex_lock(&s->lock);
    int go = s->go;
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* Do all know how all are? The lowest rank that failed says why. */
static int agreed(Saver *s)
{
    const Comm *c = s->x->comm;
    int64_t mine = s->bad ? c->world - c->first : 0, most;

    if (!s->asking)
        comm_ask(s->x->comm, mine);
    s->asking = !comm_answer(s->x->comm, &most);
    if (s->asking)
        return 0;
    s->speaks |= most && s->why && most == mine;
    s->bad = most != 0;
    return 1;
}

static void finish(Saver *s)
{
    if (s->file == s->live)
        exec_drop(s->x);
    s->saved.bad = s->bad;
    s->saved.took = monotonic() - s->began;
    if (s->why && (s->speaks || !s->several))
        ckpt_complain(s->why);
    arena_free(s->a);
    s->busy = 0;
    s->ready = 1;
}

/* As far as it goes without waiting. */
static void advance(void *self)
{
    Saver *s = self;

    if (!s->busy || is_working(s) || (s->several && !agreed(s)))
        return;
    if (s->at == NSTAGE) {
        finish(s);
        return;
    }
    if (s->bad)
        s->at = END;
    take_turn(s);
}

const Saved *saver_poll(Saver *s)
{
    advance(s);
    if (!s->ready)
        return NULL;
    s->ready = 0;
    return &s->saved;
}

/* Until none is in flight: for this process, or for others. */
static void wait_here(Saver *s)
{
    int others = 0;

    while (s->busy) {
        advance(s);
        int mine = is_working(s);
        watch_works(mine && s->busy);
        if (!mine && s->busy && !others)
            watch_others();
        others = !mine && s->busy;
        if (!others)
            watch_leave();
        if (s->busy)
            nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
    }
}

const Saved *saver_wait(Saver *s)
{
    double began = monotonic();

    wait_here(s);
    s->waited += monotonic() - began;
    return saver_poll(s);
}

/* Before the first step that writes what lasts. */
static void guard(void *self)
{
    Saver *s = self;
    double began = monotonic();

    pthread_mutex_lock(&s->lock);
    while (!s->there)
        pthread_cond_wait(&s->turn, &s->lock);
    pthread_mutex_unlock(&s->lock);
    s->x->guard = NULL;
    s->saved.stopped += monotonic() - began;
}

/* Where its bytes come from, and who moves them. */
static void take_source(Saver *s, SaveHow how)
{
    int copies = s->snap && (how == SAVEbeside || exec_apart(s->x));

    s->beside = s->snap && how == SAVEbeside;
    s->file = copies ? s->copied : s->live;
    s->pool = s->beside ? s->own : s->x->pool;
    s->there = 0;
    s->saved.snapshot = copies ? snapshot_size(s->snap) : 0;
    if (copies)
        snapshot_start(s->snap);
    else
        exec_pull(s->x);
    if (s->beside && snapshot_by_threads(s->snap)) {
        s->x->guarded = s;
        s->x->guard = guard;
    }
}

void saver_save(Saver *s, const State *state, const Text *tuned, SaveHow how)
{
    if (s->busy)
        die("save: one is in flight");
    s->began = monotonic();
    s->saved = (Saved){ .step = state->step,
                        .bytes = s->saved.bytes,
                        .stopped = s->waited };
    s->waited = 0;
    s->state = *state;
    s->a = arena_new();
    s->tmp = ckpt_folder(s->a, s->dir, state->step);
    s->tuned = (Text){ .arena = s->a };
    if (tuned && tuned->len)
        putn(&s->tuned, tuned->s, tuned->len);
    s->at = s->bad = s->speaks = s->ready = 0;
    s->why = NULL;
    s->busy = 1;
    take_source(s, how);
    take_turn(s);
    if (!s->beside)
        wait_here(s);
    s->saved.stopped += monotonic() - s->began;
}

/* ---- opening ------------------------------------------------------------- */

/* Few threads beside those that compute: on a GPU nearly all are idle. */
static int threads_beside(const Exec *x)
{
    int n = pool_size(x->pool);

    n = exec_apart(x) ? n : n / PERTHREAD;
    return n < 1 ? 1 : n > MOSTTHREADS ? MOSTTHREADS : n;
}

/* The same boxes, in the snapshot. */
static void copy_files(Saver *s)
{
    for (int i = MODEL; i <= OPTIM; i++) {
        const FilePart *box = s->live[i].box;
        s->copied[i] = s->live[i];
        s->copied[i].box = NULL;
        for (size_t k = 0; k < vec_len(box); k++) {
            FilePart b = box[k];
            if (b.t)
                b.from = snapshot_of(s->snap, b.rank, b.from);
            vec_push(s->mem, s->copied[i].box, b);
        }
    }
}

static void open_beside(Saver *s, Text *out)
{
    static int ends;

    s->snap = snapshot_open(s->mem, s->x, out);
    int bad = s->snap && pthread_create(&s->thread, NULL, work, s);
    if (comm_max(s->x->comm, bad) && s->snap) {
        put(out,
            "checkpoints: training waits for each; there are no threads\n");
        snapshot_close(s->snap);
        s->snap = NULL;
    }
    if (!s->snap)
        return;
    s->own = pool_open(threads_beside(s->x));
    if (!ends++)
        atexit(saver_finish), fault_first(saver_finish);
    copy_files(s);
    s->x->idle = s->several ? advance : NULL;
    s->x->idler = s;
}

Saver *saver_open(Exec *x, const char *dir, int64_t keep, int64_t good,
                  SaveHow how, Text *out)
{
    Arena *a = arena_new();
    Saver *s = alloc(a, sizeof *s);

    *s = (Saver){ .mem = a,
                  .x = x,
                  .dir = dir,
                  .first = x->comm->first == 0,
                  .several = x->comm->n < x->comm->world,
                  .keep = { .mem = arena_new(), .most = keep } };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->turn, NULL);
    for (int i = MODEL; i <= OPTIM; i++) {
        s->live[i] = ckpt_file(a, x, i);
        s->saved.bytes += s->live[i].total;
    }
    if (good >= 0)
        ckpt_knows(&s->keep, good, 1);
    comm_questions(x->comm);
    if (how == SAVEbeside)
        open_beside(s, out);
    current = s;
    return s;
}

void saver_close(Saver *s)
{
    current = NULL;
    if (s->snap) {
        pthread_mutex_lock(&s->lock);
        s->stop = 1;
        pthread_cond_broadcast(&s->turn);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        pool_close(s->own);
        s->x->idle = NULL;
        snapshot_close(s->snap);
    }
    s->x->guard = NULL;
    arena_free(s->keep.mem);
    arena_free(s->mem);
}

int ckpt_save(Exec *x, const char *dir, const State *state)
{
    Saver *s = saver_open(x, dir, 0, -1, SAVEwaits, NULL);

    saver_save(s, state, NULL, SAVEwaits);
    int bad = saver_poll(s)->bad;
    saver_close(s);
    return bad ? -1 : 0;
}

/* A GPU that hangs gives no snapshot. */
void saver_finish(void)
{
    Saver *s = current;
    double began = monotonic();

    if (!s || !s->busy || !s->beside || s->several ||
        pthread_equal(pthread_self(), s->thread))
        return;
    pthread_mutex_lock(&s->lock);
    while (s->go && (s->there || monotonic() - began < GIVEUP)) {
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}
