/* group.c: what NCCL does in a stream: collectives and messages. The calls of a
 * group go on together. Of each communicator a group has up to 2 ranks + 1
 * parts: its collectives, in their order, and what it sends to and receives
 * from each rank. A part is posted when its box is free and ends when the
 * others have taken it (a few bytes sent: at once, by chance); messages are
 * matched by their order alone. What ranks say of one call must agree.
 *
 * Sums are made as a ring makes them: from the rank behind the one that keeps
 * the result, rounded to the type at each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comms.h"

enum { MAXCALLS = 1 << 14, EAGER = 4096, ALIGN = 16 };
enum { SUM = 0, PROD = 1, MAX = 2, MIN = 3 };
enum { I8 = 0, U8, I32, U32, I64, U64, F16, F32, F64, BF16, NTYPE };

typedef enum Kind { GATHER, SCATTER, ALLREDUCE, REDUCE, SEND, RECV } Kind;

static const char *const names[] = { "all-gather", "reduce-scatter",
                                     "all-reduce", "reduce",
                                     "send",       "receive" };
static const int sizes[NTYPE] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };

typedef struct Call {
    Kind kind;
    int type, op, peer; /* or root */
    size_t n;           /* elements of a rank's share */
    const char *from;
    char *to;
    Comm *comm;
} Call;

typedef struct Said { /* of a call, in a box; its elements are at `at` */
    int kind, type, op, peer;
    size_t n, at, bytes;
} Said;

typedef struct Part {
    Comm *comm;
    Kind kind;          /* GATHER: any collective */
    int peer, first, n; /* its calls: n of order[] */
} Part;

typedef struct Group {
    Call *call;
    int ncall, *order;
    Part *part;
    int npart;
} Group;

/* ---- arithmetic ---------------------------------------------------------- */

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, 4);
    return x;
}

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    if (x != x)
        return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#define SAME(x) (x)
#define COMBINE(T, A, UP, DOWN)                                   \
    for (size_t i = 0; i < n; i++) {                              \
        T *d = (T *)(void *)to + i;                               \
        A x = UP(*d), y = UP(((const T *)(const void *)from)[i]); \
        x = op == SUM    ? x + y                                  \
            : op == PROD ? x * y                                  \
            : op == MAX  ? (y > x || x != x ? y : x)              \
                         : (y < x || x != x ? y : x);              \
        *d = (T)DOWN(x);                                          \
    }

/* to = to op from. A NaN is no greatest and no least. */
static void combine(int type, int op, char *to, const char *from, size_t n)
{
    switch (type) {
    case I8: COMBINE(int8_t, int, SAME, SAME) break;
    case U8: COMBINE(uint8_t, int, SAME, SAME) break;
    case I32: COMBINE(int32_t, int32_t, SAME, SAME) break;
    case U32: COMBINE(uint32_t, uint32_t, SAME, SAME) break;
    case I64: COMBINE(int64_t, int64_t, SAME, SAME) break;
    case U64: COMBINE(uint64_t, uint64_t, SAME, SAME) break;
    case F32: COMBINE(float, float, SAME, SAME) break;
    case F64: COMBINE(double, double, SAME, SAME) break;
    default: COMBINE(uint16_t, float, from_bf16, to_bf16) break;
    }
}

/* ---- posts --------------------------------------------------------------- */

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Of all ranks' elements a scatter has a share for each. */
static size_t bytes_in(const Call *c)
{
    size_t n = c->n * (size_t)sizes[c->type];

    return c->kind == SCATTER ? n * (size_t)c->comm->ranks : n;
}

static void post(const Group *g, const Part *p, Box *b, Mapped *m)
{
    size_t at = aligned(sizeof(int) + (size_t)p->n * sizeof(Said)), bytes = at;

    for (int i = 0; i < p->n; i++)
        bytes += aligned(bytes_in(&g->call[g->order[p->first + i]]));
    char *to = post_write(b, m, bytes);
    Said *said = (Said *)(void *)(to + sizeof(size_t));
    memcpy(to, &p->n, sizeof p->n);
    for (int i = 0; i < p->n; i++) {
        const Call *c = &g->call[g->order[p->first + i]];
        said[i] = (Said){ (int)c->kind, c->type, c->op,      c->peer,
                          c->n,         at,      bytes_in(c) };
        memcpy(to + at, c->from, said[i].bytes);
        at += aligned(said[i].bytes);
    }
    b->posted++;
}

static const Said *said_of(const char *post)
{
    return (const Said *)(const void *)(post + sizeof(size_t));
}

static int count_of(const char *post)
{
    int n;

    memcpy(&n, post, sizeof n);
    return n;
}

/* ---- collectives --------------------------------------------------------- */

static _Noreturn void disagree(const Comm *c, const Call *mine, int rank,
                               const Said *s, int there)
{
    wrong(INVALID,
          "rank %d of %d: %s of %zu (type %d, op %d, root %d); rank %d: %s of "
          "%zu (type %d, op %d, root %d)",
          c->rank, c->ranks, names[mine->kind], mine->n, mine->type, mine->op,
          mine->peer, rank, there ? names[s->kind] : "nothing",
          there ? s->n : 0, there ? s->type : 0, there ? s->op : 0,
          there ? s->peer : 0);
    abort();
}

/* Elements [from, from + n) of all ranks as a ring adds them for `keeper`. */
static void ring(const Call *c, const char *const *in, int keeper, size_t from,
                 size_t n, char *to)
{
    int ranks = c->comm->ranks;
    size_t at = from * (size_t)sizes[c->type];

    memcpy(to, in[(keeper + 1) % ranks] + at, n * (size_t)sizes[c->type]);
    for (int i = 2; i <= ranks; i++)
        combine(c->type, c->op, to, in[(keeper + i) % ranks] + at, n);
}

static void compute(const Call *c, const char *const *in)
{
    size_t bytes = c->n * (size_t)sizes[c->type], done = 0;
    int ranks = c->comm->ranks, me = c->comm->rank;

    switch (c->kind) {
    case GATHER:
        for (int r = 0; r < ranks; r++)
            memcpy(c->to + (size_t)r * bytes, in[r], bytes);
        break;
    case SCATTER: ring(c, in, me, (size_t)me * c->n, c->n, c->to); break;
    case REDUCE:
        if (c->peer == me)
            ring(c, in, me, 0, c->n, c->to);
        break;
    default:
        for (int r = 0; r < ranks; r++) {
            size_t end = c->n * (size_t)(r + 1) / (size_t)ranks;
            ring(c, in, r, done, end - done,
                 c->to + done * (size_t)sizes[c->type]);
            done = end;
        }
    }
}

/* What all ranks posted for this round. */
static void take_round(const Group *g, const Part *p)
{
    Comm *c = p->comm;
    const char *post[MAXRANKS], *in[MAXRANKS];

    for (int r = 0; r < c->ranks; r++)
        post[r] = r == c->rank
                      ? c->all[r].p
                      : post_read(c, r, &c->shared->all[r], &c->all[r]);
    for (int i = 0; i < p->n; i++) {
        const Call *k = &g->call[g->order[p->first + i]];
        for (int r = 0; r < c->ranks; r++) {
            const Said *s = &said_of(post[r])[i];
            int there = i < count_of(post[r]);
            if (!there || count_of(post[r]) != p->n ||
                s->kind != (int)k->kind || s->type != k->type ||
                s->op != k->op || s->n != k->n || s->peer != k->peer)
                disagree(c, k, r, s, there);
            in[r] = post[r] + s->at;
        }
        compute(k, in);
    }
}

static int all_at(const Comm *c, size_t field, uint64_t n)
{
    int yes = 1;

    for (int r = 0; r < c->ranks; r++) {
        const char *p = (const char *)&c->shared->all[r] + field;
        yes &= *(const _Atomic uint64_t *)(const void *)p >= n;
    }
    return yes;
}

/* stage 0: not posted, 1: posted, 2: done. */
static Moved collect(const Group *g, const Part *p, int *stage)
{
    Comm *c = p->comm;
    Box *mine = &c->shared->all[c->rank];

    if (*stage == 0) {
        if (c->busy || !all_at(c, offsetof(Box, taken), c->rounds))
            return BLOCKED;
        post(g, p, mine, &c->all[c->rank]);
        c->busy = 1;
        *stage = 1;
        return MOVED;
    }
    if (!all_at(c, offsetof(Box, posted), c->rounds + 1))
        return BLOCKED;
    take_round(g, p);
    mine->taken = ++c->rounds;
    c->busy = 0;
    *stage = 2;
    return DONE;
}

/* ---- messages ------------------------------------------------------------ */

static Moved send(const Group *g, const Part *p, int *stage)
{
    Comm *c = p->comm;
    Box *b = &c->shared->pair[c->rank][p->peer];

    if (*stage == 0) {
        if (b->taken < c->sent[p->peer])
            return BLOCKED;
        post(g, p, b, &c->pair[0][p->peer]);
        c->sent[p->peer]++;
        *stage = 1;
        if (b->bytes > EAGER || one_of(2))
            return MOVED;
    } else if (b->taken < c->sent[p->peer]) {
        return BLOCKED;
    }
    *stage = 2;
    return DONE;
}

/* The next message, if it is there. */
static int receive_one(const Call *k)
{
    Comm *c = k->comm;
    Box *b = &c->shared->pair[k->peer][c->rank];

    if (b->posted <= c->got[k->peer])
        return 0;
    const char *post = post_read(c, k->peer, b, &c->pair[1][k->peer]);
    const Said *s = &said_of(post)[c->taken[k->peer]];
    if (s->type != k->type || s->n != k->n)
        disagree(c, k, k->peer, s, 1);
    memcpy(k->to, post + s->at, s->bytes);
    if (++c->taken[k->peer] == (uint64_t)count_of(post)) {
        c->taken[k->peer] = 0;
        b->taken = ++c->got[k->peer];
    }
    return 1;
}

/* stage: how many have come, -1 - n when all. */
static Moved receive(const Group *g, const Part *p, int *stage)
{
    int before = *stage;

    while (*stage < p->n && receive_one(&g->call[g->order[p->first + *stage]]))
        ++*stage;
    return *stage == p->n ? DONE : *stage > before ? MOVED : BLOCKED;
}

/* ---- a group's task ------------------------------------------------------ */

static int is_over(const Part *p, int stage)
{
    return p->kind == RECV ? stage == p->n : stage == 2;
}

static Moved part_go(const Group *g, const Part *p, int *stage)
{
    if (is_over(p, *stage))
        return BLOCKED;
    return p->kind == GATHER ? collect(g, p, stage)
           : p->kind == SEND ? send(g, p, stage)
                             : receive(g, p, stage);
}

/* What an aborted collective left is no result. */
static Moved abandon(const Group *g)
{
    for (int i = 0; i < g->ncall && !idle(); i++)
        if (g->call[i].to)
            memset(g->call[i].to, 0xff,
                   g->call[i].n * (size_t)sizes[g->call[i].type]);
    return DONE;
}

static Moved group_go(const void *what, Run *r)
{
    const Group *g = what;
    int over = 0, moved = 0;

    if (comms_aborted())
        return abandon(g);
    if (r->replayed &&
        (from_run("stuck", r->number) || from_run("broken", r->number)))
        return BLOCKED;
    if (idle())
        return DONE;
    if (!r->state)
        r->state = calloc((size_t)g->npart + 1, sizeof(int));
    int *stage = r->state;
    for (int i = 0; i < g->npart; i++) {
        moved += part_go(g, &g->part[i], &stage[i]) != BLOCKED;
        over += is_over(&g->part[i], stage[i]);
    }
    return over == g->npart ? DONE : moved ? MOVED : BLOCKED;
}

static void group_forget(void *what)
{
    Group *g = what;

    free(g->call);
    free(g->order);
    free(g->part);
    free(g);
}

void comms_held(const Task *t, int by)
{
    const Group *g = t->what;

    for (int i = 0; t->go == group_go && i < g->npart; i++)
        g->part[i].comm->graphs += by;
}

/* ---- making it ----------------------------------------------------------- */

static struct { /* between GroupStart and GroupEnd */
    int depth, n;
    Call call[MAXCALLS];
    Stream *stream;
    int status;
} open;

static Kind kind_of(const Call *c)
{
    return c->kind < SEND ? GATHER : c->kind;
}

static Part *part_of(Group *g, const Call *c)
{
    int peer = kind_of(c) == GATHER ? 0 : c->peer;

    for (int i = 0; i < g->npart; i++)
        if (g->part[i].comm == c->comm && g->part[i].kind == kind_of(c) &&
            g->part[i].peer == peer)
            return &g->part[i];
    g->part[g->npart] = (Part){ c->comm, kind_of(c), peer, 0, 0 };
    return &g->part[g->npart++];
}

static Group *group_of(const Call *call, int n)
{
    Group *g = calloc(1, sizeof *g);
    size_t room = (size_t)n + 1;
    int at = 0;

    g->call = malloc(room * sizeof *g->call);
    g->order = malloc(room * sizeof *g->order);
    g->part = malloc(room * sizeof *g->part);
    memcpy(g->call, call, (size_t)n * sizeof *call);
    g->ncall = n;
    for (int i = 0; i < n; i++)
        part_of(g, &call[i])->n++;
    for (int k = 0; k < g->npart; k++) {
        g->part[k].first = at;
        for (int i = 0; i < n; i++)
            if (part_of(g, &call[i]) == &g->part[k])
                g->order[at++] = i;
    }
    return g;
}

static int close_group(void)
{
    int n = open.n, status = open.status;

    open.n = 0;
    open.status = 0;
    if (status || !n)
        return status;
    Group *g = group_of(open.call, n);
    return enqueue(open.stream, group_go, group_forget, g) ? 1 : NCCLOK;
}

int ncclGroupStart(void)
{
    device_lock();
    open.depth++;
    device_unlock();
    return NCCLOK;
}

int ncclEndAborted(void);

int ncclGroupEnd(void)
{
    device_lock();
    int e = --open.depth ? NCCLOK : close_group();
    device_unlock();
    return comms_aborted() ? ncclEndAborted() : e;
}

/* Buffers of the device; NULL and a status where they are not. */
static int buffers(Call *c, const void *from, void *to, size_t nto)
{
    size_t in = bytes_in(c);

    c->from = from ? device_at((uintptr_t)from, in, names[c->kind]) : NULL;
    c->to = to ? device_at((uintptr_t)to, nto, names[c->kind]) : NULL;
    if ((from && !c->from) || (to && !c->to))
        return NCCLINVALID;
    if ((uintptr_t)from % (size_t)sizes[c->type] ||
        (uintptr_t)to % (size_t)sizes[c->type])
        return wrong(NCCLINVALID, "%s: elements that are not aligned",
                     names[c->kind]);
    return NCCLOK;
}

static int valid(const Call *c)
{
    int ranks = c->comm ? c->comm->ranks : 0;

    return c->type >= 0 && c->type < NTYPE && c->type != F16 && c->op >= SUM &&
           c->op <= MIN && c->peer >= 0 && c->peer < ranks;
}

/* `parts` of c.n elements go to `to`. */
static int ask(Call c, const void *from, void *to, int parts, Stream *s)
{
    int e = valid(&c) ? NCCLOK : NCCLINVALID;

    if (e)
        wrong(INVALID, "%s: type %d, op %d, rank %d", names[c.kind], c.type,
              c.op, c.peer);
    device_lock();
    if (!e)
        e = buffers(&c, from, to, (size_t)parts * c.n * (size_t)sizes[c.type]);
    if (!e && open.n && open.stream != s)
        e = wrong(NCCLINVALID, "a group in two streams");
    if (!e && open.n == MAXCALLS)
        e = wrong(NCCLINVALID, "a group of more than %d calls", MAXCALLS);
    if (e)
        open.status = e;
    else
        open.call[open.n++] = c;
    open.stream = s;
    if (!open.depth)
        e = close_group();
    device_unlock();
    return e;
}

int ncclAllGather(const void *from, void *to, size_t n, int type, Comm *c,
                  Stream *s)
{
    return ask((Call){ .kind = GATHER, .type = type, .n = n, .comm = c }, from,
               to, c->ranks, s);
}

int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op,
                      Comm *c, Stream *s)
{
    return ask((Call){ SCATTER, type, op, 0, n, NULL, NULL, c }, from, to, 1,
               s);
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op,
                  Comm *c, Stream *s)
{
    return ask((Call){ ALLREDUCE, type, op, 0, n, NULL, NULL, c }, from, to, 1,
               s);
}

int ncclReduce(const void *from, void *to, size_t n, int type, int op, int root,
               Comm *c, Stream *s)
{
    return ask((Call){ REDUCE, type, op, root, n, NULL, NULL, c }, from,
               c->rank == root ? to : NULL, 1, s);
}

int ncclSend(const void *p, size_t n, int type, int peer, Comm *c, Stream *s)
{
    return ask((Call){ SEND, type, 0, peer, n, NULL, NULL, c }, p, NULL, 0, s);
}

int ncclRecv(void *p, size_t n, int type, int peer, Comm *c, Stream *s)
{
    return ask((Call){ RECV, type, 0, peer, n, NULL, NULL, c }, NULL, p, 1, s);
}
