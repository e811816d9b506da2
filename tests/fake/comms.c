/* comms.c: communicators of ranks in several processes of this machine. Their
 * memory is in files without names, which other processes find by process and
 * number (/proc); it is gone with them. An idle communicator is a name. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "comms.h"

enum { PAUSE = 50000, MAXCOMMS = 256 };

typedef struct NcclId {
    char c[128];
} NcclId;
typedef struct Id {
    int process, file;
} Id;

static Comm *opened[MAXCOMMS];
static int nopened;
static _Atomic int naborted;

static void nap(void)
{
    nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
}

/* ---- shared files -------------------------------------------------------- */

static int new_file(size_t n)
{
    int fd = memfd_create("fake-nccl", MFD_CLOEXEC);

    return fd >= 0 && !ftruncate(fd, (off_t)n) ? fd : -1;
}

static int open_file(int process, int file)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void *map_file(int fd, size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd < 0 || p == MAP_FAILED) {
        wrong(INVALID, "the memory of a communicator is not there");
        abort();
    }
    return p;
}

char *post_write(Box *b, Mapped *m, size_t n)
{
    if (m->n < n) {
        if (m->p)
            munmap(m->p, m->n);
        else
            m->file = new_file(n);
        if (ftruncate(m->file, (off_t)n))
            abort();
        m->p = map_file(m->file, n);
        m->n = n;
        b->file = m->file;
        b->bytes = n;
    }
    return m->p;
}

const char *post_read(const Comm *c, int rank, Box *b, Mapped *m)
{
    if (m->n < b->bytes) {
        if (m->p)
            munmap(m->p, m->n);
        else
            m->file = open_file(c->shared->process[rank], b->file);
        m->n = b->bytes;
        m->p = map_file(m->file, m->n);
    }
    return m->p;
}

/* ---- opening ------------------------------------------------------------- */

/* As NCCL refuses it: a least and a most are both given or neither. */
static int lopsided(const int *config)
{
    enum { MIN = 6, MAX };
    return (config[MIN] == INT_MIN) != (config[MAX] == INT_MIN);
}

static Comm *new_comm(int ranks, int rank)
{
    Comm *c = calloc(1, sizeof *c);

    c->ranks = ranks;
    c->rank = rank;
    if (nopened == MAXCOMMS || ranks > MAXRANKS) {
        wrong(INVALID, "%d communicators, one of %d ranks", nopened, ranks);
        abort();
    }
    return opened[nopened++] = c;
}

/* Returns when all are there. */
static void join(Comm *c, int process, int file)
{
    int fd = open_file(process, file);

    c->shared = map_file(fd, sizeof *c->shared);
    close(fd);
    c->shared->process[c->rank] = getpid();
    c->shared->joined++;
    while (c->shared->joined < c->ranks)
        nap();
}

int ncclGetUniqueId(NcclId *id)
{
    Id own = { getpid(), new_file(sizeof(Shared)) };

    memset(id, 0, sizeof *id);
    memcpy(id, &own, sizeof own);
    return NCCLOK;
}

int ncclCommInitRankConfig(Comm **comm, int n, NcclId id, int rank,
                           void *config)
{
    Id of;

    if (lopsided(config) || rank < 0 || rank >= n)
        return NCCLINVALID;
    memcpy(&of, &id, sizeof of);
    *comm = new_comm(n, rank);
    if (!idle())
        join(*comm, of.process, of.file);
    return NCCLOK;
}

/* ---- splitting ----------------------------------------------------------- */

static void wait_for(const Comm *c, size_t field, uint64_t n)
{
    for (int r = 0; r < c->ranks; r++) {
        const char *p = (const char *)&c->shared->choice[r] + field;
        while (*(const _Atomic uint64_t *)(const void *)p < n)
            nap();
    }
}

/* The ranks of this color, by key, then rank: how many, which is mine. */
static int members(const Comm *c, int *who, int *me)
{
    const Choice *v = c->shared->choice;
    int n = 0;

    for (int r = 0; r < c->ranks; r++) {
        int at = n;
        if (v[r].color != v[c->rank].color)
            continue;
        for (; at && v[who[at - 1]].key > v[r].key; at--)
            who[at] = who[at - 1];
        who[at] = r;
        n++;
    }
    for (*me = 0; who[*me] != c->rank;)
        ++*me;
    return n;
}

static Comm *split(Comm *c, int color, int key)
{
    Choice *mine = &c->shared->choice[c->rank];
    uint64_t n = ++c->splits;
    int who[MAXRANKS], me = 0;
    Comm *sub = NULL;

    wait_for(c, offsetof(Choice, seen), n - 1);
    mine->color = color;
    mine->key = key;
    mine->made = n;
    wait_for(c, offsetof(Choice, made), n);
    if (color >= 0) {
        sub = new_comm(members(c, who, &me), 0);
        sub->rank = me;
        Choice *leads = &c->shared->choice[who[0]];
        if (!me) {
            mine->file = new_file(sizeof(Shared));
            mine->opened = n;
        }
        while (leads->opened < n)
            nap();
        join(sub, c->shared->process[who[0]], leads->file);
        if (!me)
            close(mine->file);
    }
    mine->seen = n;
    return sub;
}

int ncclCommSplit(Comm *c, int color, int key, Comm **sub, void *config)
{
    if (lopsided(config) || (color < 0 && color != -1))
        return NCCLINVALID;
    if (idle())
        *sub = color < 0 ? NULL : new_comm(c->ranks, c->rank);
    else
        *sub = split(c, color, key);
    return NCCLOK;
}

/* ---- closing ------------------------------------------------------------- */

static void close_box(Mapped *m)
{
    if (!m->p)
        return;
    munmap(m->p, m->n);
    close(m->file);
    *m = (Mapped){ 0 };
}

/* Others may still read what was posted last. */
int ncclCommFinalize(Comm *c)
{
    int e;

    device_lock();
    e = drain(NULL);
    device_unlock();
    for (int r = 0; r < c->ranks && c->shared && !e; r++)
        while (!c->aborted && (c->shared->all[r].taken < c->rounds ||
                               c->shared->pair[c->rank][r].taken < c->sent[r]))
            nap();
    return NCCLOK;
}

int ncclCommDestroy(Comm *c)
{
    for (int r = 0; r < c->ranks; r++) {
        close_box(&c->all[r]);
        close_box(&c->pair[0][r]);
        close_box(&c->pair[1][r]);
    }
    if (c->shared)
        munmap(c->shared, sizeof *c->shared);
    c->shared = NULL;
    return NCCLOK;
}

/* ---- failing ------------------------------------------------------------- */

int comms_aborted(void)
{
    return naborted;
}

int graphs_of_comms(void)
{
    int n = 0;

    for (int i = 0; i < nopened; i++)
        n += opened[i]->graphs;
    return n;
}

int ncclCommAbort(Comm *c)
{
    naborted += !c->aborted;
    c->aborted = 1;
    return NCCLOK;
}

/* An abort waits for the graphs that hold the communicator; a line of what it
 * ended goes to the file FAKE_LOG. */
int ncclEndAborted(void)
{
    const char *to = getenv("FAKE_LOG");

    while (graphs_of_comms() || !strcmp(setting("abort", ""), "hangs")) {
        device_lock();
        move_something();
        device_unlock();
        nap();
    }
    FILE *f = to ? fopen(to, "a") : NULL;
    if (f) {
        fprintf(f, "%d of %d aborted after run %d\n", naborted, nopened,
                runs_begun());
        fclose(f);
    }
    return NCCLOK;
}

int ncclCommGetAsyncError(Comm *c, int *error)
{
    (void)c;
    *error = from_run("broken", runs_begun()) ? NCCLREMOTE : NCCLOK;
    return NCCLOK;
}

const char *ncclGetErrorString(int error)
{
    return error == NCCLOK        ? "no error"
           : error == NCCLINVALID ? "invalid argument"
                                  : "remote process exited";
}

int ncclGetVersion(int *v)
{
    *v = 22807;
    return NCCLOK;
}
