/* watchdog.c: reports absent ranks. It runs only under a launcher, where
 * another process may be dead, stopped, or in another step.
 *
 * A thread of every rank listens on a datagram socket; ranks exchange the
 * addresses at start. If no step has ended for 60 seconds, the launcher ends
 * the run, or NCCL reports that a peer or the network has failed, the thread
 * asks the ranks that its rank waits for about their position. Threads answer
 * while their rank waits in MPI or computes; a rank that does not answer within
 * seconds is dead or stopped. Ranks that answer may be slow (checkpoint, file
 * system) and have 600 seconds. $PLEAT_TIMEOUT sets both limits.
 *
 * The first rank that finds the cause reports it in one line, tells all others
 * to be silent, aborts the waits of its GPU and ends with status 3; the others
 * follow unless the launcher ends them before. No datagram is sent in a run
 * without faults. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include "comm.h"

enum {
    TICK = 100,
    SLOW = 600, /* milliseconds, seconds */
    SILENT = 60,
    ANSWER = 300,
    ASKED = 10,   /* questions before a rank counts as silent */
    STAGGER = 40, /* milliseconds */
    PATIENCE = 2, /* seconds for ranks that may know the cause */
    SILENCE = 10, /* seconds in which another ends this rank */
    LONGEST = 5,  /* seconds: limit of one check */
    MAXSETS = 64,
    LISTED = 8,
    FAILED = 3
};

typedef enum NoteKind { ASK, TELL, SAID } NoteKind;
enum { WORKS = 2 }; /* the rank writes a checkpoint */

typedef struct Note { /* a datagram */
    uint64_t token;   /* identifies this run */
    int32_t kind, rank;
    uint32_t atoms, inside; /* ASK: group; TELL: waits in MPI, or WORKS */
    int64_t count;          /* collectives started over these atoms */
    char where[200];
} Note;

typedef struct Answer {
    int came, inside, there;
    char where[200];
} Answer;

static struct {
    int fd;
    int64_t me, world;
    Peer *peer;
    int64_t *all; /* every rank */
    uint64_t token;
    pthread_t thread;
    atomic_int on, stop, said, told, ended; /* told: another rank reports */
    _Atomic(const Progress *) run;
    void (*end)(void); /* see watch_ends */
    const char *(*asked)(void);
    double limit, silent; /* seconds for ranks that answer, and that do not */
} w = { .fd = -1 };

/* Position of this rank, which other ranks ask for. */
static struct {
    pthread_mutex_t lock;
    const int64_t *ranks; /* ranks that this one waits for */
    int64_t n;
    uint32_t atoms;
    int64_t count;
    int inside, works, nset;
    int64_t entered;          /* waits so far */
    double since, inside_for; /* seconds */
    struct {
        uint32_t atoms;
        int64_t count;
    } set[MAXSETS];
} at = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the rank's position ------------------------------------------------- */

void watch_enter(uint32_t atoms, const int64_t *ranks, int64_t n)
{
    int i = 0;

    if (!atomic_load_explicit(&w.on, memory_order_relaxed))
        return;
    pthread_mutex_lock(&at.lock);
    while (i < at.nset && at.set[i].atoms != atoms)
        i++;
    if (i == at.nset && i < MAXSETS)
        at.set[at.nset++].atoms = atoms;
    at.count = i < MAXSETS ? ++at.set[i].count : 0;
    at.atoms = atoms;
    at.ranks = ranks;
    at.n = n;
    at.inside = 1;
    at.since = monotonic();
    at.entered++;
    pthread_mutex_unlock(&at.lock);
}

void watch_all(void)
{
    watch_enter(UINT32_MAX, w.all, w.world);
}

void watch_others(void)
{
    watch_enter(0, w.all, w.world);
}

void watch_works(int on)
{
    pthread_mutex_lock(&at.lock);
    at.works = on;
    pthread_mutex_unlock(&at.lock);
}

void watch_leave(void)
{
    if (!atomic_load_explicit(&w.on, memory_order_relaxed))
        return;
    pthread_mutex_lock(&at.lock);
    at.inside_for += at.inside ? monotonic() - at.since : 0;
    at.inside = 0;
    pthread_mutex_unlock(&at.lock);
}

double watch_waited(void)
{
    return at.inside_for; /* written by this thread only */
}

void watch_ends(void (*end)(void), const char *(*asked)(void))
{
    w.end = end;
    w.asked = asked;
}

void watch_end(void)
{
    if (w.end)
        w.end();
}

static const char *watch_asked(void)
{
    return w.asked ? w.asked() : NULL;
}

void watch_signal(void)
{
    atomic_store(&w.ended, 1);
}

/* ---- words --------------------------------------------------------------- */

/* "step 18 allreduce over tp, layers.0.attn.wo (tiny.lua:12)"; a GPU may be
 * "after" its last collective. */
static void put_where(char *s, size_t size)
{
    const Progress *progress = atomic_load(&w.run);
    const Instr *at_step = progress ? atomic_load(&progress->now) : NULL;
    const Instr *trail = NULL;
    char group[64] = "", line[96] = "";
    int ended = 0;
    int64_t awaited = progress ? atomic_load(&progress->awaited) : 0;

    if (progress && progress->where &&
        (trail = progress->where(progress->device, &ended)) &&
        (at_step || awaited || !ended))
        at_step = trail;
    if (!at_step && progress)
        snprintf(s, size, "between steps, after %ld", progress->step + 1);
    else if (!at_step)
        snprintf(s, size, "starting");
    if (!at_step)
        return;
    const char *kind = instr_info(at_step->kind)->name, *label = at_step->label;
    if (!label || !strcmp(label, kind))
        label = "";
    if (at_step->atoms)
        mesh_words(progress->mesh, at_step->atoms, group, sizeof group);
    if (at_step->file)
        snprintf(line, sizeof line, " (%s:%d)", at_step->file, at_step->line);
    snprintf(s, size, "step %ld %s%s%s%s%s%s%s",
             awaited ? awaited : progress->step + 1, ended ? "after " : "",
             kind, *group ? " over " : "", group, *label ? " " : "", label,
             line);
}

/* ---- datagrams ----------------------------------------------------------- */

static void post(int64_t rank, const Note *note)
{
    const Peer *p = &w.peer[rank], *me = &w.peer[w.me];
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = p->port };

    to.sin_addr.s_addr =
        strcmp(p->host, me->host) ? p->address : htonl(INADDR_LOOPBACK);
    sendto(w.fd, note, sizeof *note, MSG_DONTWAIT, (struct sockaddr *)&to,
           sizeof to);
}

static void tell(const Note *ask)
{
    Note n = { .token = w.token,
               .kind = TELL,
               .rank = (int32_t)w.me,
               .atoms = ask->atoms };

    pthread_mutex_lock(&at.lock);
    for (int i = 0; i < at.nset; i++)
        if (at.set[i].atoms == ask->atoms)
            n.count = at.set[i].count;
    n.inside = at.works ? WORKS : (uint32_t)at.inside;
    pthread_mutex_unlock(&at.lock);
    put_where(n.where, sizeof n.where);
    post(ask->rank, &n);
}

/* Reads datagrams for ms milliseconds; answers go to a[], indexed as
 * ranks[0..n). */
static void listen_for(int ms, const int64_t *ranks, int64_t n, int64_t count,
                       Answer *answer)
{
    struct pollfd p = { .fd = w.fd, .events = POLLIN };
    Note m;

    if (poll(&p, 1, ms) <= 0)
        return;
    while (recv(w.fd, &m, sizeof m, MSG_DONTWAIT) == (ssize_t)sizeof m) {
        m.where[sizeof m.where - 1] = 0;
        if (m.token != w.token || m.rank < 0 || m.rank >= w.world)
            continue;
        if (m.kind == SAID) {
            atomic_store(&w.said, 1);
            atomic_store(&w.told, 1);
        } else if (m.kind == ASK) {
            tell(&m);
        }
        for (int64_t i = 0; i < n && m.kind == TELL; i++)
            if (ranks[i] == m.rank) {
                answer[i] =
                    (Answer){ 1, (int)m.inside, count && m.count >= count, "" };
                memcpy(answer[i].where, m.where, sizeof m.where);
            }
    }
}

static void listen_long(int ms, const int64_t *ranks, int64_t n, int64_t count,
                        Answer *answer)
{
    for (double end = monotonic() + ms * 1e-3; monotonic() < end;)
        listen_for(10, ranks, n, count, answer);
}

static void idle(int ms)
{
    if (pthread_equal(pthread_self(), w.thread))
        listen_long(ms, NULL, 0, 0, NULL);
    else
        nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

int watch_claim(void)
{
    Note n = { .token = w.token, .kind = SAID, .rank = (int32_t)w.me };

    if (!atomic_load(&w.on))
        return 1;
    for (int i = 0; i < w.me % 25 && !atomic_load(&w.said); i++)
        idle(STAGGER);
    if (atomic_exchange(&w.said, 1))
        return 0;
    for (int64_t r = 0; r < w.world; r++)
        if (r != w.me)
            post(r, &n);
    return 1;
}

/* ---- the report ---------------------------------------------------------- */

static void put_missing(Text *out, int64_t rank, const Answer *answer,
                        int ended)
{
    const Peer *peer = &w.peer[rank];

    put(out, " rank %ld", rank);
    if (!answer->came)
        put(out, " (host %s, pid %d), which %s", peer->host, (int)peer->pid,
            ended ? "is gone" : "does not answer: stopped or dead");
    else
        put(out, ", which is at %s", answer->where);
}

static _Noreturn void leave(void)
{
    watch_end();
    _exit(atomic_load(&w.run) ? FAILED : err_status);
}

/* Reason of an inquiry. */
typedef struct StallReason {
    double waited;    /* seconds without progress */
    int ended;        /* the launcher ends the run */
    const char *nccl; /* error that NCCL reports; null: none */
} StallReason;

static void put_worry(Text *out, const StallReason *reason)
{
    if (reason->nccl)
        put(out, "NCCL: %s", reason->nccl);
    else if (reason->ended)
        put(out, "the run was ended");
    else
        put(out, "no progress for %.0f s", reason->waited);
}

/* The ranks that this one waits for, and their answers. */
typedef struct Inquiry {
    Arena *mem;
    int64_t n, count, *ranks;
    uint32_t atoms;
    Answer *answer;
} Inquiry;

static Inquiry inquire(void)
{
    Inquiry q = { .mem = arena_new() };

    pthread_mutex_lock(&at.lock);
    q.n = at.inside ? at.n : 0;
    q.count = at.atoms ? at.count : 0;
    q.atoms = at.atoms;
    q.ranks = alloc(q.mem, (size_t)(q.n + 1) * sizeof *q.ranks);
    if (q.n)
        memcpy(q.ranks, at.ranks, (size_t)q.n * sizeof *q.ranks);
    pthread_mutex_unlock(&at.lock);
    q.answer = alloc(q.mem, (size_t)(q.n + 1) * sizeof *q.answer);
    return q;
}

/* Asks ranks that have not answered. Returns how many still have not. */
static int64_t ask(const Inquiry *inquiry)
{
    Note n = { .token = w.token,
               .kind = ASK,
               .rank = (int32_t)w.me,
               .atoms = inquiry->atoms,
               .count = inquiry->count };
    int64_t silent = 0;

    for (int64_t i = 0; i < inquiry->n; i++)
        if (inquiry->ranks[i] != w.me && !inquiry->answer[i].came)
            post(inquiry->ranks[i], &n);
    listen_long(ANSWER, inquiry->ranks, inquiry->n, inquiry->count,
                inquiry->answer);
    for (int64_t i = 0; i < inquiry->n; i++)
        silent += inquiry->ranks[i] != w.me && !inquiry->answer[i].came;
    return silent;
}

/* Appends the ranks that are not at this rank's position. Returns 1 if they are
 * the cause of its wait. *works: some write a checkpoint. */
static int put_missing_ranks(Text *out, const Inquiry *inquiry, int ended,
                             int *works)
{
    int64_t listed = 0;
    int knows = 0;

    for (int64_t i = 0; i < inquiry->n; i++) {
        const Answer *a = &inquiry->answer[i];
        if (inquiry->ranks[i] == w.me || (a->came && (a->there || ended)))
            continue;
        knows |= !a->came || !a->inside;
        *works |= a->inside == WORKS;
        if (listed++ < LISTED) {
            put(out, listed == 1 ? "; waits for" : ",");
            put_missing(out, inquiry->ranks[i], a, ended);
        }
    }
    if (listed > LISTED)
        put(out, " and %ld more", listed - LISTED);
    return knows;
}

/* Reports the cause and ends the run. Returns 0 if other ranks may know more,
 * or all ranks answer within the limit; -1: ranks write a checkpoint. */
static int report(const StallReason *reason)
{
    int soon = reason->ended || reason->nccl,
        late = soon || reason->waited >= w.limit;
    Inquiry q = inquire();
    int64_t silent = q.n && !atomic_load(&w.said) ? ask(&q) : 0;
    int works = 0;
    char where[200];

    for (int i = 1; i < ASKED && silent && !soon && !atomic_load(&w.said); i++)
        silent = ask(&q);
    put_where(where, sizeof where);
    Text t = { .arena = q.mem };
    put(&t, "rank %ld (host %s): %s: ", w.me, w.peer[w.me].host, where);
    put_worry(&t, reason);
    int knows = put_missing_ranks(&t, &q, reason->ended, &works) ||
                reason->nccl || (!q.n && !reason->ended);
    int waits =
        !knows && (reason->ended || reason->waited < w.limit + PATIENCE);
    works = works && !knows;
    if (waits || works || (!late && !silent) || !watch_claim()) {
        arena_free(q.mem);
        return works ? -1 : 0;
    }
    fprintf(stderr, "%s\n", t.s);
    leave();
}

/* ---- the thread ---------------------------------------------------------- */

/* Returns a counter that grows while the run makes progress; *waits: does the
 * rank wait for anything? */
static int64_t progress(int *waits)
{
    const Progress *x = atomic_load(&w.run);

    pthread_mutex_lock(&at.lock);
    int64_t n = at.entered;
    *waits = at.inside;
    pthread_mutex_unlock(&at.lock);
    if (x && atomic_load(&x->now))
        *waits = 1;
    return n + (x ? atomic_load_explicit(&x->ticks, memory_order_relaxed) : 0);
}

/* Ends this rank after another one has reported: frees its GPU, then leaves
 * time for the launcher to end the run. */
static _Noreturn void follow(void)
{
    double end = monotonic() + SILENCE;

    watch_end();
    while (!atomic_load(&w.ended) && monotonic() < end)
        idle(TICK);
    leave();
}

/* Returns seconds without progress, except those in which this process was
 * stopped. */
static double without_progress(double waited, double *last, int64_t *seen,
                               int *waits)
{
    double now = monotonic(), passed = now - *last;
    int64_t n = progress(waits);
    int moved = n != *seen || !*waits;

    *last = now;
    *seen = n;
    return moved ? 0 : waited + (passed < LONGEST ? passed : LONGEST);
}

static void *watch(void *arg)
{
    int64_t seen = -1;
    double last = monotonic(), waited = 0, next = w.silent;
    int waits;

    while (!atomic_load(&w.stop)) {
        listen_for(TICK, NULL, 0, 0, NULL);
        waited = without_progress(waited, &last, &seen, &waits);
        next = waited > 0 ? next : w.silent;
        StallReason y = { waited, atomic_load(&w.ended), watch_asked() };
        int asks = y.ended || y.nccl || waited >= w.limit || waited >= next;
        if (waits && !atomic_load(&w.said) && asks) {
            waited = report(&y) < 0 ? 0 : waited;
            next = waited + w.silent;
        }
        if (atomic_load(&w.told))
            follow();
    }
    return arg;
}

void watch_start(const Progress *progress)
{
    atomic_store(&w.run, atomic_load(&w.on) ? progress : NULL);
}

void watch_stop(void)
{
    atomic_store(&w.run, NULL);
}

/* ---- opening ------------------------------------------------------------- */

/* Returns an address that other hosts can reach: that of the first interface
 * that is up. */
static uint32_t own_address(void)
{
    struct ifaddrs *list = NULL;
    uint32_t a = htonl(INADDR_LOOPBACK);

    if (getifaddrs(&list))
        return a;
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
            i->ifa_flags & IFF_UP && !(i->ifa_flags & IFF_LOOPBACK)) {
            struct sockaddr_in in;
            memcpy(&in, i->ifa_addr, sizeof in);
            a = in.sin_addr.s_addr;
            break;
        }
    freeifaddrs(list);
    return a;
}

/* Writes "0-7,16": the processors that this process may use. */
static void put_cpus(char *s, size_t size)
{
    cpu_set_t set;
    size_t n = 0;

    *s = 0;
    if (sched_getaffinity(0, sizeof set, &set))
        return;
    for (int i = 0; i < CPU_SETSIZE && n < size; i++) {
        int from = i;
        if (!CPU_ISSET(i, &set))
            continue;
        while (i + 1 < CPU_SETSIZE && CPU_ISSET(i + 1, &set))
            i++;
        n += (size_t)snprintf(s + n, size - n, i > from ? "%s%d-%d" : "%s%d",
                              n ? "," : "", from, i);
    }
}

static Peer self(uint16_t port)
{
    Peer p = { .address = own_address(), .port = port, .pid = (int)getpid() };

    const char *as = getenv("PLEAT_HOST"); /* tests: several hosts on one */

    gethostname(p.host, sizeof p.host - 1);
    if (as)
        snprintf(p.host, sizeof p.host, "%s", as);
    put_cpus(p.cpus, sizeof p.cpus);
    if (getrandom(&p.token, sizeof p.token, 0) < 0)
        p.token = (uint64_t)p.pid;
    return p;
}

const Peer *watch_open(Arena *a, int64_t me, int64_t world)
{
    struct sockaddr_in in = { .sin_family = AF_INET };
    socklen_t len = sizeof in;
    const char *limit = getenv("PLEAT_TIMEOUT");

    double given = limit ? atof(limit) : 0;
    w.limit = given > 0 ? given : SLOW;
    w.silent = given > 0 ? given : SILENT;
    w.all = alloc(a, (size_t)world * sizeof *w.all);
    for (int64_t i = 0; i < world; i++)
        w.all[i] = i;
    w.fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int bad = w.fd < 0 || bind(w.fd, (struct sockaddr *)&in, sizeof in) ||
              getsockname(w.fd, (struct sockaddr *)&in, &len);
    Peer mine = self(bad ? 0 : in.sin_port);
    w.peer = alloc(a, (size_t)world * sizeof *w.peer);
    mpi_gather(&mine, w.peer, sizeof mine);
    w.token = w.peer[0].token;
    w.me = me;
    w.world = world;
    atomic_store(&w.stop, 0);
    atomic_store(&w.on, !bad && !pthread_create(&w.thread, NULL, watch, NULL));
    return w.peer;
}

void watch_close(void)
{
    if (!atomic_load(&w.on))
        return;
    atomic_store(&w.stop, 1);
    pthread_join(w.thread, NULL);
    atomic_store(&w.on, 0);
    close(w.fd);
}
