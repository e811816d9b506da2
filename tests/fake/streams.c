/* streams.c: streams, events, and when their tasks run. A GPU does what it was
 * given while the host goes on; here tasks run inside of calls, by
 *
 *   order=late     when somebody waits or asks, and no more than is asked for
 *   order=early    at once, as far as they can
 *   order=chance   some at once, some when somebody waits     (what holds if
 * unset)
 *   seed=n         which of several streams or nodes goes on
 *
 * so a missing event or a buffer that is used too soon gives other numbers.
 * What waits for another process is passed over: no call but those that wait
 * blocks. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"

enum { PAUSE = 20000, ATONCE = 8, ASKED = 32 }; /* ns, tasks, tasks */

typedef struct Item { /* in a stream */
    Task *task;
    Run run;
    struct Item *next;
} Item;

struct Stream {
    Item *head, *last;
    Graph *capture; /* that its tasks go to, or null */
    int origin;     /* began it */
    Tail tail;
    Stream *next;
};

typedef struct Event {
    int64_t recorded, reached; /* times */
    double at;                 /* of the device's clock */
    Graph *capture;            /* recorded in one, behind tail */
    Tail tail;
    int asked; /* since it was recorded */
} Event;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static Stream *streams;
static int stalled;
static double clock_ms;

void device_lock(void)
{
    pthread_mutex_lock(&lock);
}

void device_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void pass_time(double ms)
{
    clock_ms += ms;
}

/* ---- tasks --------------------------------------------------------------- */

static void let_go(Task *t)
{
    if (--t->holders)
        return;
    t->forget(t->what);
    free(t);
}

static void pop(Stream *s)
{
    Item *i = s->head;

    s->head = i->next;
    if (!s->head)
        s->last = NULL;
    let_go(i->task);
    free(i->run.state);
    free(i);
}

int is_stalled(void)
{
    return stalled;
}

/* The first task of a stream, or a part of it. */
static Moved step(Stream *s)
{
    if (!s->head || faulted)
        return BLOCKED;
    Moved m = s->head->task->go(s->head->task->what, &s->head->run);
    if (m == DONE)
        pop(s);
    if (m != BLOCKED)
        stalled = 0;
    return m;
}

int move_something(void)
{
    unsigned n = 0, k;

    for (Stream *s = streams; s; s = s->next)
        n++;
    k = n ? one_of(n) : 0;
    for (unsigned i = 0; i < n; i++) {
        Stream *s = streams;
        for (unsigned j = (k + i) % n; j; j--)
            s = s->next;
        if (step(s) != BLOCKED)
            return 1;
    }
    return 0;
}

/* What may run before anybody waits for it. */
static void run_ahead(void)
{
    const char *order = setting("order", "chance");
    unsigned n = *order == 'l'   ? 0
                 : *order == 'e' ? ~0u
                 : one_of(4)     ? 0
                                 : one_of(ATONCE);

    while (n-- && move_something())
        ;
}

int enqueue(Stream *s, Moved go(const void *, Run *), void forget(void *),
            void *what)
{
    Task *t = malloc(sizeof *t);

    *t = (Task){ go, forget, what, 1 };
    if (s && s->capture) {
        graph_add(s->capture, &s->tail, t);
        return 0;
    }
    if (faulted || !s) {
        let_go(t);
        return faulted ? faulted : wrong(INVALID, "work on no stream");
    }
    Item *i = calloc(1, sizeof *i);
    i->task = t;
    i->run.number = runs_begun() + 1;
    if (s->last)
        s->last->next = i;
    else
        s->head = i;
    s->last = i;
    run_ahead();
    return 0;
}

int is_capturing(const Stream *s)
{
    return s && s->capture;
}

/* ---- waiting ------------------------------------------------------------- */

static int has_any(const Stream *s)
{
    if (s)
        return s->head != NULL;
    for (s = streams; s; s = s->next)
        if (s->head)
            return 1;
    return 0;
}

/* Others may use the device while nothing here can go on. */
static void wait_a_little(void)
{
    if (move_something())
        return;
    device_unlock();
    nanosleep(&(struct timespec){ 0, PAUSE }, NULL);
    device_lock();
}

int drain(Stream *s)
{
    while (!faulted && has_any(s))
        wait_a_little();
    return faulted;
}

/* ---- streams ------------------------------------------------------------- */

int cuStreamCreateWithPriority(Stream **s, unsigned flags, int priority)
{
    enum { APART = 1 };

    if (!(flags & APART))
        return wrong(INVALID, "a stream that waits for the null stream");
    if (priority > LEAST || priority < GREATEST)
        return wrong(INVALID, "a priority that no stream has");
    *s = calloc(1, sizeof **s);
    device_lock();
    (*s)->next = streams;
    streams = *s;
    device_unlock();
    return 0;
}

int cuStreamCreate(Stream **s, unsigned flags)
{
    return cuStreamCreateWithPriority(s, flags, LEAST);
}

int cuStreamSynchronize(Stream *s)
{
    device_lock();
    int e = is_capturing(s) ? CAPTURING : drain(s);
    device_unlock();
    return e;
}

int cuStreamQuery(Stream *s)
{
    device_lock();
    move_something();
    int e = is_capturing(s) ? CAPTURING
            : faulted       ? faulted
            : s->head       ? NOTREADY
                            : 0;
    device_unlock();
    return e;
}

/* ---- capture ------------------------------------------------------------- */

int cuStreamBeginCapture_v2(Stream *s, int mode)
{
    enum { THREADLOCAL = 1 };

    if (mode != THREADLOCAL || is_capturing(s))
        return wrong(INVALID, "a capture inside of another, or of mode %d",
                     mode);
    device_lock();
    s->capture = graph_new();
    s->origin = 1;
    s->tail.n = 0;
    device_unlock();
    return 0;
}

/* What other streams did in it must have been waited for. */
static int leave_capture(const Stream *s)
{
    int joined = 1;

    for (Stream *o = streams; o; o = o->next)
        if (o != s && o->capture == s->capture) {
            joined &= graph_has(s->capture, &s->tail, &o->tail);
            o->capture = NULL;
        }
    return joined;
}

int cuStreamEndCapture(Stream *s, Graph **g)
{
    if (!is_capturing(s) || !s->origin)
        return wrong(INVALID, "the end of a capture that did not begin here");
    device_lock();
    int joined = leave_capture(s);
    *g = joined ? s->capture : NULL;
    if (!joined)
        graph_free(s->capture);
    s->capture = NULL;
    s->origin = 0;
    device_unlock();
    return joined ? 0 : UNJOINED;
}

/* ---- events -------------------------------------------------------------- */

typedef struct Meeting { /* of a stream with an event */
    Event *e;
    int64_t times;
} Meeting;

int cuEventCreate(Event **e, unsigned flags)
{
    (void)flags;
    *e = calloc(1, sizeof **e);
    return 0;
}

int cuEventDestroy_v2(Event *e)
{
    device_lock();
    while (!faulted && e->reached < e->recorded)
        wait_a_little();
    if (e->reached == e->recorded) {
        free(e->tail.node);
        free(e);
    }
    device_unlock();
    return 0;
}

static Moved record_go(const void *what, Run *r)
{
    const Meeting *m = what;

    (void)r;
    m->e->reached = m->times;
    m->e->at = clock_ms;
    return DONE;
}

static Moved wait_go(const void *what, Run *r)
{
    const Meeting *m = what;

    (void)r;
    stalled |= m->e->reached < m->times;
    return m->e->reached >= m->times ? DONE : BLOCKED;
}

static Meeting *meeting(Event *e, int64_t times)
{
    Meeting *m = malloc(sizeof *m);

    *m = (Meeting){ e, times };
    return m;
}

int cuEventRecord(Event *e, Stream *s)
{
    int bad = 0;

    device_lock();
    e->capture = s->capture;
    if (s->capture) {
        tail_copy(&e->tail, &s->tail);
    } else {
        e->asked = 0;
        e->recorded++;
        bad = enqueue(s, record_go, free, meeting(e, e->recorded));
    }
    device_unlock();
    return bad;
}

static int is_active(const Graph *g)
{
    const Stream *s = streams;

    while (s && s->capture != g)
        s = s->next;
    return g && s;
}

/* An event of a capture takes the stream into it. */
static int wait_in_capture(Stream *s, Event *e)
{
    if (s->capture ? s->capture != e->capture : !is_active(e->capture))
        return wrong(ISOLATED, "a wait across the border of a capture");
    if (!s->capture && s->head)
        drain(s);
    if (!s->capture)
        s->tail.n = 0;
    s->capture = e->capture;
    tail_add(&s->tail, &e->tail);
    return 0;
}

/* A node that waits for an event outside of its graph. */
static Moved outside_go(const void *what, Run *r)
{
    const Event *e = what;

    (void)r;
    stalled |= e->reached < e->recorded;
    return e->reached >= e->recorded ? DONE : BLOCKED;
}

static void not_ours(void *what)
{
    (void)what;
}

int cuStreamWaitEvent(Stream *s, Event *e, unsigned flags)
{
    enum { OUTSIDE = 1 };
    int bad = 0;

    if (flags == OUTSIDE && (!is_capturing(s) || e->capture))
        return wrong(INVALID, "a wait for what is outside of no capture");
    device_lock();
    if (flags == OUTSIDE)
        bad = enqueue(s, outside_go, not_ours, e);
    else if (s->capture || e->capture)
        bad = wait_in_capture(s, e);
    else if (e->recorded)
        bad = enqueue(s, wait_go, free, meeting(e, e->recorded));
    device_unlock();
    return bad;
}

/* Who asks once sees that it takes time. */
int cuEventQuery(Event *e)
{
    int ready = 0;

    device_lock();
    int known = e->reached >= e->recorded && *setting("order", "c") == 'e';
    if (e->asked++ || known)
        for (unsigned n = 1 + one_of(ASKED); n && !faulted; n--) {
            ready = e->reached >= e->recorded;
            if (ready || !move_something())
                break;
        }
    ready = ready || known;
    int answer = e->capture ? ISCAPTURED
                 : faulted  ? faulted
                            : !ready * NOTREADY;
    device_unlock();
    return answer;
}

int cuEventSynchronize(Event *e)
{
    device_lock();
    while (!faulted && e->reached < e->recorded)
        wait_a_little();
    int answer = e->capture ? ISCAPTURED : faulted;
    device_unlock();
    return answer;
}

int cuEventElapsedTime(float *ms, Event *from, Event *to)
{
    if (from->reached < from->recorded || to->reached < to->recorded)
        return NOTREADY;
    *ms = (float)(to->at - from->at);
    return 0;
}
