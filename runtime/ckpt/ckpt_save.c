/* ckpt_save.c: asynchronous checkpoints. A save is a sequence of stages. A
 * thread runs them from a snapshot of the checkpoint's tensors:
 *
 *     copy      every process    copy its parts to the host's memory
 *     begin     the first        make the folder (temporary name) and files
 *     write     every process    write its boxes and hash them
 *     rest      every process    hash pieces that no process held whole
 *     end       the first        state, index, sync, rename, pruning
 *
 * After some stages all processes agree whether they succeeded. The training
 * thread polls that collective in saver_poll and does not wait. A single
 * process needs no agreement. At most one save is in flight: the next waits for
 * it. Without a snapshot, and at the end of a run, training waits; stages and
 * bytes are the same. */
#include <pthread.h>
#include <time.h>

#include "ckpt.h"

enum { PAUSE = 200000, GIVEUP = 10 }; /* ns; s */
enum { MOSTTHREADS = 16, PERTHREAD = 4 };

struct Saver {
    Arena *mem;
    Exec *x;
    const char *dir;
    int first, several; /* is this process the first? are there several? */
    CkptFile live[2];   /* sources in the tensors */
    CkptFile copied[2]; /* sources in the snapshot */
    Snapshot *snap;     /* null: training waits for saves */
    Pool *own;          /* the save thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* of the next three */
    pthread_cond_t turn;
    int go, stop, there; /* run stages; end the thread; snapshot taken */

    /* the save in flight; owned by the thread while `go`, else by the
     * trainer */
    int busy, ready, asking, beside;
    const CkptFile *file;
    Pool *pool;
    Arena *a;
    Retention keep;
    State state;
    Text tuned;
    char *tmp;
    int at, bad, speaks;  /* stage; a process failed; this one reports it */
    const char *why;      /* error of this process */
    double began, waited; /* seconds; waited: for the previous save */
    Saved saved;
};

static Saver *current; /* for saver_finish */

/* ---- stages -------------------------------------------------------------- */

static const char *path_of(Saver *saver, int file)
{
    return strf(saver->a, "%s/%s", saver->tmp, ckptfile[file]);
}

static const char *copy(Saver *saver)
{
    double began = monotonic();
    int bad =
        saver->file == saver->copied && snapshot_wait(saver->snap, saver->pool);

    saver->saved.copied = monotonic() - began;
    pthread_mutex_lock(&saver->lock);
    saver->there = 1;
    pthread_cond_broadcast(&saver->turn);
    pthread_mutex_unlock(&saver->lock);
    return bad ? "the device gave no copy of what it holds" : NULL;
}

static const char *begin(Saver *saver)
{
    const char *why = ckpt_begin(saver->a, saver->dir, saver->tmp);

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        const CkptFile *file = &saver->file[i];
        why = pieces_layout(saver->a, path_of(saver, i), file->head, file->len,
                            file->total);
    }
    return why;
}

static const char *write_boxes(Saver *saver)
{
    const char *why = NULL;

    for (int i = MODEL; i <= OPTIM && !why; i++) {
        const CkptFile *file = &saver->file[i];
        why = pieces_write(saver->a, saver->pool, path_of(saver, i),
                           saver->x->plan->mesh, file->box, file->total,
                           PWhashed);
    }
    return why;
}

static const char *rest(Saver *saver)
{
    const char *why = NULL;

    for (int i = MODEL; i <= OPTIM && !why && saver->several; i++)
        why = pieces_rest(saver->a, saver->pool, path_of(saver, i),
                          saver->x->comm->first, saver->x->comm->world);
    return why;
}

static const char *end(Saver *saver)
{
    const char *why = NULL;

    if (!saver->bad)
        why = ckpt_end(saver->a, saver->pool, saver->dir, saver->tmp,
                       &saver->state, &saver->tuned);
    if (saver->bad || why)
        ckpt_remove(saver->a, saver->tmp);
    else
        ckpt_prune(saver->a, saver->pool, &saver->keep, saver->dir,
                   saver->state.step);
    return why;
}

/* all: every process runs it. meets: all processes agree on success after it.
 */
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

enum { NSTAGE = countof(stages), END = NSTAGE - 1 };

/* Runs stages from the next one through the first that meets, or the last. */
static void run_stages(Saver *saver)
{
    int meets = 0;

    while (saver->at < NSTAGE && !meets) {
        int i = saver->at++, mine = stages[i].all || saver->first;
        meets = saver->several && stages[i].meets;
        if (!mine || (saver->bad && i != END))
            continue;
        const char *why = stages[i].run(saver);
        saver->why = saver->why ? saver->why : why;
        saver->bad |= why != NULL;
    }
}

static void *work(void *self)
{
    Saver *saver = self;

    pthread_mutex_lock(&saver->lock);
    while (!saver->stop) {
        if (!saver->go) {
            pthread_cond_wait(&saver->turn, &saver->lock);
            continue;
        }
        pthread_mutex_unlock(&saver->lock);
        run_stages(saver);
        pthread_mutex_lock(&saver->lock);
        saver->go = 0;
        pthread_cond_broadcast(&saver->turn);
    }
    pthread_mutex_unlock(&saver->lock);
    return NULL;
}

/* ---- the trainer's side -------------------------------------------------- */

static void take_turn(Saver *saver)
{
    if (!saver->beside) {
        watch_works(1);
        run_stages(saver);
        watch_works(0);
        return;
    }
    pthread_mutex_lock(&saver->lock);
    saver->go = 1;
    pthread_cond_broadcast(&saver->turn);
    pthread_mutex_unlock(&saver->lock);
}

static int is_working(Saver *saver)
{
    pthread_mutex_lock(&saver->lock);
    int go = saver->go;
    pthread_mutex_unlock(&saver->lock);
    return go;
}

/* Has the agreement finished? The lowest failed rank reports its error. */
static int agreed(Saver *saver)
{
    const Comm *comm = saver->x->comm;
    int64_t mine = saver->bad ? comm->world - comm->first : 0, most;

    if (!saver->asking)
        comm_ask(saver->x->comm, mine);
    saver->asking = !comm_answer(saver->x->comm, &most);
    if (saver->asking)
        return 0;
    saver->speaks |= most && saver->why && most == mine;
    saver->bad = most != 0;
    return 1;
}

static void finish(Saver *saver)
{
    if (saver->file == saver->live)
        exec_drop(saver->x);
    saver->saved.bad = saver->bad;
    saver->saved.took = monotonic() - saver->began;
    if (saver->why && (saver->speaks || !saver->several))
        ckpt_complain(saver->why);
    arena_free(saver->a);
    saver->busy = 0;
    saver->ready = 1;
}

/* Advances the save in flight as far as possible without waiting. */
static void advance(void *self)
{
    Saver *saver = self;

    if (!saver->busy || is_working(saver) || (saver->several && !agreed(saver)))
        return;
    if (saver->at == NSTAGE) {
        finish(saver);
        return;
    }
    if (saver->bad)
        saver->at = END;
    take_turn(saver);
}

const Saved *saver_poll(Saver *saver)
{
    advance(saver);
    if (!saver->ready)
        return NULL;
    saver->ready = 0;
    return &saver->saved;
}

/* Waits until no save is in flight in this process or in others. */
static void wait_here(Saver *saver)
{
    int others = 0;

    while (saver->busy) {
        advance(saver);
        int mine = is_working(saver);
        watch_works(mine && saver->busy);
        if (!mine && saver->busy && !others)
            watch_others();
        others = !mine && saver->busy;
        if (!others)
            watch_leave();
        if (saver->busy)
            nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
    }
}

const Saved *saver_wait(Saver *saver)
{
    double began = monotonic();

    wait_here(saver);
    saver->waited += monotonic() - began;
    return saver_poll(saver);
}

/* Called before the first step that writes persistent tensors. */
static void guard(void *self)
{
    Saver *saver = self;
    double began = monotonic();

    pthread_mutex_lock(&saver->lock);
    while (!saver->there)
        pthread_cond_wait(&saver->turn, &saver->lock);
    pthread_mutex_unlock(&saver->lock);
    saver->x->guard = NULL;
    saver->saved.stopped += monotonic() - began;
}

/* Chooses the source of the bytes and the thread that moves them. */
static void take_source(Saver *saver, SaveHow how)
{
    int copies = saver->snap && (how == SAVEbeside || exec_apart(saver->x));

    saver->beside = saver->snap && how == SAVEbeside;
    saver->file = copies ? saver->copied : saver->live;
    saver->pool = saver->beside ? saver->own : saver->x->pool;
    saver->there = 0;
    saver->saved.snapshot = copies ? snapshot_size(saver->snap) : 0;
    if (copies)
        snapshot_start(saver->snap);
    else
        exec_pull(saver->x);
    if (saver->beside && snapshot_by_threads(saver->snap)) {
        saver->x->guarded = saver;
        saver->x->guard = guard;
    }
}

void saver_save(Saver *saver, const State *state, const Text *tuned,
                SaveHow how)
{
    if (saver->busy)
        die("save: one is in flight");
    saver->began = monotonic();
    saver->saved = (Saved){ .step = state->step,
                            .bytes = saver->saved.bytes,
                            .stopped = saver->waited };
    saver->waited = 0;
    saver->state = *state;
    saver->a = arena_new();
    saver->tmp = ckpt_folder(saver->a, saver->dir, state->step);
    saver->tuned = (Text){ .arena = saver->a };
    if (tuned && tuned->len)
        putn(&saver->tuned, tuned->s, tuned->len);
    saver->at = saver->bad = saver->speaks = saver->ready = 0;
    saver->why = NULL;
    saver->busy = 1;
    take_source(saver, how);
    take_turn(saver);
    if (!saver->beside)
        wait_here(saver);
    saver->saved.stopped += monotonic() - saver->began;
}

/* ---- opening ------------------------------------------------------------- */

/* Threads of a save: few while the host computes, most of them on a GPU. */
static int threads_beside(const Exec *exec)
{
    int n = pool_size(exec->pool);

    n = exec_apart(exec) ? n : n / PERTHREAD;
    return n < 1 ? 1 : n > MOSTTHREADS ? MOSTTHREADS : n;
}

/* Sets the boxes of `copied` to those of `live`, with snapshot addresses. */
static void copy_files(Saver *saver)
{
    for (int i = MODEL; i <= OPTIM; i++) {
        const FilePart *box = saver->live[i].box;
        saver->copied[i] = saver->live[i];
        saver->copied[i].box = NULL;
        for (size_t k = 0; k < vec_len(box); k++) {
            FilePart b = box[k];
            if (b.t)
                b.from = snapshot_of(saver->snap, b.rank, b.from);
            if (b.remainder)
                b.remainder = snapshot_of(saver->snap, b.rank, b.remainder);
            vec_push(saver->mem, saver->copied[i].box, b);
        }
    }
}

static void open_beside(Saver *saver, Text *out)
{
    static int ends;

    saver->snap = snapshot_open(saver->mem, saver->x, out);
    int bad = saver->snap && pthread_create(&saver->thread, NULL, work, saver);
    if (comm_max(saver->x->comm, bad) && saver->snap) {
        put(out,
            "checkpoints: training waits for each; there are no threads\n");
        snapshot_close(saver->snap);
        saver->snap = NULL;
    }
    if (!saver->snap)
        return;
    saver->own = pool_open(threads_beside(saver->x));
    if (!ends++)
        atexit(saver_finish), fault_first(saver_finish);
    copy_files(saver);
    saver->x->idle = saver->several ? advance : NULL;
    saver->x->idler = saver;
}

Saver *saver_open(Exec *exec, const char *dir, int64_t keep, int64_t good,
                  SaveHow how, Text *out)
{
    Arena *a = arena_new();
    Saver *s = alloc(a, sizeof *s);

    *s = (Saver){ .mem = a,
                  .x = exec,
                  .dir = dir,
                  .first = exec->comm->first == 0,
                  .several = exec->comm->n < exec->comm->world,
                  .keep = { .mem = arena_new(), .most = keep } };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->turn, NULL);
    for (int i = MODEL; i <= OPTIM; i++) {
        s->live[i] = ckpt_file(a, exec, i);
        s->saved.bytes += s->live[i].total;
    }
    if (good >= 0)
        ckpt_knows(&s->keep, good, 1);
    comm_questions(exec->comm);
    if (how == SAVEbeside)
        open_beside(s, out);
    current = s;
    return s;
}

void saver_close(Saver *saver)
{
    current = NULL;
    if (saver->snap) {
        pthread_mutex_lock(&saver->lock);
        saver->stop = 1;
        pthread_cond_broadcast(&saver->turn);
        pthread_mutex_unlock(&saver->lock);
        pthread_join(saver->thread, NULL);
        pool_close(saver->own);
        saver->x->idle = NULL;
        snapshot_close(saver->snap);
    }
    saver->x->guard = NULL;
    arena_free(saver->keep.mem);
    arena_free(saver->mem);
}

int ckpt_save(Exec *exec, const char *dir, const State *state)
{
    Saver *s = saver_open(exec, dir, 0, -1, SAVEwaits, NULL);

    saver_save(s, state, NULL, SAVEwaits);
    int bad = saver_poll(s)->bad;
    saver_close(s);
    return bad ? -1 : 0;
}

/* A device that hangs cannot give a snapshot. */
void saver_finish(void)
{
    Saver *saver = current;
    double began = monotonic();

    if (!saver || !saver->busy || !saver->beside || saver->several ||
        pthread_equal(pthread_self(), saver->thread))
        return;
    pthread_mutex_lock(&saver->lock);
    while (saver->go && (saver->there || monotonic() - began < GIVEUP)) {
        pthread_mutex_unlock(&saver->lock);
        nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
        pthread_mutex_lock(&saver->lock);
    }
    pthread_mutex_unlock(&saver->lock);
}
