/* plancheck.c: what must hold in a plan before anything runs it. The reader
 * asks it of files, the compiler of its own work, so it believes nothing: every
 * index is in range, every buffer lies in the arena, nothing that is alive at
 * one time overlaps, every step has the arguments of its kind and they stay
 * inside their buffers on every rank.
 *
 * Each function returns null or what is wrong.                               */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct Check {
    Arena *arena;
    const Plan *p;
    const Role *r;
    int role;
    const char **kernels;         /* names, sorted by pointer                 */
} Check;

enum { ALIGN = 256, BATCHES = 3 };
#define HUGE_BYTES ((int64_t)1 << 56)

/* ---- numbers ------------------------------------------------------------- */

/* Least and largest value over all ranks; saturates far beyond any size. */
typedef struct Range { int64_t min, max; } Range;

static int64_t mul(int64_t a, int64_t b)
{
    int64_t v;
    if (!__builtin_mul_overflow(a, b, &v) && v > -HUGE_BYTES && v < HUGE_BYTES)
        return v;
    return (a < 0) == (b < 0) ? HUGE_BYTES : -HUGE_BYTES;
}

static int64_t add(int64_t a, int64_t b)
{
    int64_t v;
    if (!__builtin_add_overflow(a, b, &v) && v > -HUGE_BYTES && v < HUGE_BYTES)
        return v;
    return a < 0 ? -HUGE_BYTES : HUGE_BYTES;
}

static Range range(const Mesh *m, const Aff *x)
{
    Range r = {add(x->c, 0), add(x->c, 0)};
    for (int i = 0; i < m->natom; i++) {
        int64_t far = mul(x->k[i], m->atom[i].size - 1);
        if (far < 0)
            r.min = add(r.min, far);
        else
            r.max = add(r.max, far);
    }
    return r;
}

/* Does an affine speak of atoms that the mesh does not have? */
static int stray(const Mesh *m, const Aff *x)
{
    for (int i = m->natom; i < MAXATOM; i++)
        if (x->k[i])
            return 1;
    return 0;
}

/* ---- buffers ------------------------------------------------------------- */

static const char *buf_wrong(const Check *c, const Buf *b)
{
    const Role *r = c->r;
    if (b->bytes < 0 || b->offset < 0 || b->offset > r->arena ||
        b->bytes > r->arena - b->offset)
        return "does not lie in the arena";
    if (b->offset % ALIGN)
        return "is not aligned to 256 bytes";
    if (b->prog >= r->nprog || b->prog < -1)
        return "belongs to no program";
    if (b->prog >= 0 && b->cls <= Boptim)
        return "of a persistent class does not live always";
    if (b->prog >= 0 && (b->born < 0 || b->born > b->dies ||
                         b->dies >= r->prog[b->prog].nstep))
        return "has a life outside its program";
    return 0;
}

/* A tree over the runs of bytes between all ends of buffers: how many living
 * buffers cover each. top[i] is the largest count below i, own[i] what covers
 * all of i.                                                                  */
typedef struct Cover { int n, *top, *own; } Cover;

static void cover(Cover *t, int i, int lo, int hi, int a, int b, int v)
{
    if (b <= lo || hi <= a)
        return;
    if (a <= lo && hi <= b) {
        t->own[i] += v;
        t->top[i] += v;
        return;
    }
    int mid = (lo + hi) / 2;
    cover(t, 2 * i, lo, mid, a, b, v);
    cover(t, 2 * i + 1, mid, hi, a, b, v);
    int l = t->top[2 * i], r = t->top[2 * i + 1];
    t->top[i] = t->own[i] + (l > r ? l : r);
}

static int covered(const Cover *t, int i, int lo, int hi, int a, int b)
{
    if (b <= lo || hi <= a)
        return 0;
    if (a <= lo && hi <= b)
        return t->top[i];
    int mid = (lo + hi) / 2;
    int l = covered(t, 2 * i, lo, mid, a, b);
    int r = covered(t, 2 * i + 1, mid, hi, a, b);
    return t->own[i] + (l > r ? l : r);
}

/* A buffer being laid: where it is among the ends, when it begins and ends. */
typedef struct Laid { const Buf *b; int lo, hi, from, to; } Laid;

static int by_int(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int by_from(const void *a, const void *b)
{
    const Laid *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->b > y->b) - (x->b < y->b);
}

static int by_to(const void *a, const void *b)
{
    const Laid *x = *(Laid *const *)a, *y = *(Laid *const *)b;
    return (x->to > y->to) - (x->to < y->to);
}

static int rank_in(const int64_t *v, int n, int64_t x)
{
    const int64_t *at = bsearch(&x, v, (size_t)n, sizeof *v, by_int);
    return (int)(at - v);
}

/* Who overlaps v[at]: only for the message. */
static const char *overlap(const Check *c, const Laid *v, int at)
{
    const Laid *x = &v[at];
    for (int i = 0; i < at; i++)
        if (v[i].to >= x->from && v[i].lo < x->hi && x->lo < v[i].hi)
            return strf(c->arena, "role %d: buffers '%s' and '%s' overlap "
                        "while both are alive", c->role, v[i].b->name,
                        x->b->name);
    die("plan: overlap of '%s' with nobody", x->b->name);
}

/* Buffers alive in a program: what lives always is born at -1. */
static int gather(const Check *c, int prog, Laid *v)
{
    int n = 0;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (b->bytes && b->prog == -1)
            v[n++] = (Laid){.b = b, .from = -1, .to = INT32_MAX};
        else if (b->bytes && b->prog == prog)
            v[n++] = (Laid){.b = b, .from = b->born, .to = b->dies};
    }
    return n;
}

/* Number the ends of all n buffers; returns how many runs lie between them. */
static int number_ends(Arena *a, Laid *v, int n)
{
    int64_t *end = alloc(a, (size_t)(2 * n + 1) * sizeof *end);
    int k = 0;
    for (int i = 0; i < n; i++) {
        end[2 * i] = v[i].b->offset;
        end[2 * i + 1] = v[i].b->offset + v[i].b->bytes;
    }
    qsort(end, (size_t)(2 * n), sizeof *end, by_int);
    for (int i = 0; i < 2 * n; i++)
        if (!i || end[i] != end[k - 1])
            end[k++] = end[i];
    for (int i = 0; i < n; i++) {
        v[i].lo = rank_in(end, k, v[i].b->offset);
        v[i].hi = rank_in(end, k, v[i].b->offset + v[i].b->bytes);
    }
    return k;
}

static const char *overlaps(const Check *c, int prog)
{
    Arena *a = arena_new();
    size_t max = (size_t)c->r->nbuf + 1;
    Laid *v = alloc(a, max * sizeof *v), **ends = alloc(a, max * sizeof *ends);
    int n = gather(c, prog, v), done = 0;
    const char *why = 0;
    Cover t = {.n = number_ends(a, v, n)};
    t.top = alloc(a, 4 * ((size_t)t.n + 1) * sizeof *t.top);
    t.own = alloc(a, 4 * ((size_t)t.n + 1) * sizeof *t.own);
    qsort(v, (size_t)n, sizeof *v, by_from);
    for (int i = 0; i < n; i++)
        ends[i] = &v[i];
    qsort(ends, (size_t)n, sizeof *ends, by_to);
    for (int i = 0; i < n && !why; i++) {
        for (; ends[done]->to < v[i].from; done++)
            cover(&t, 1, 0, t.n, ends[done]->lo, ends[done]->hi, -1);
        if (covered(&t, 1, 0, t.n, v[i].lo, v[i].hi))
            why = overlap(c, v, i);
        cover(&t, 1, 0, t.n, v[i].lo, v[i].hi, 1);
    }
    arena_free(a);
    return why;
}

static const char *bufs_wrong(const Check *c)
{
    const Role *r = c->r;
    const char *why;
    if (r->arena < 0 || r->arena > HUGE_BYTES || r->persist < 0 ||
        r->persist > r->arena)
        return strf(c->arena, "role %d: arena of %lld bytes, %lld of them "
                    "always", c->role, (long long)r->arena,
                    (long long)r->persist);
    for (int i = 0; i < r->nbuf; i++)
        if ((why = buf_wrong(c, &r->buf[i])))
            return strf(c->arena, "role %d: buffer '%s' %s", c->role,
                        r->buf[i].name, why);
    for (int i = -1; i < r->nprog; i++)
        if ((why = overlaps(c, i)))
            return why;
    return 0;
}

/* ---- steps --------------------------------------------------------------- */

/* Step s of program g, being looked at. */
typedef struct At { const Check *c; const Step *s; int prog, step; } At;

static int64_t bytes_of(const At *x, int arg)
{
    return x->c->r->buf[x->s->buf[arg]].bytes;
}

static Range arg(const At *x, int i)
{
    return range(x->c->p->mesh, &x->s->iv[i]);
}

/* Is argument i the same small number on all ranks, in [min, max]? */
static int fixed(const At *x, int i, int64_t min, int64_t max)
{
    Range r = arg(x, i);
    return r.min == r.max && r.min >= min && r.max <= max;
}

/* Bytes of a dtype given as argument i; 0: no such dtype. */
static int64_t width(const At *x, int i)
{
    return fixed(x, i, 0, NDTYPE - 1) ? dtypes[x->s->iv[i].c].bytes : 0;
}

static const char *alive(const At *x, int i)
{
    const Role *r = x->c->r;
    int b = x->s->buf[i];
    if (b < -1 || b >= r->nbuf)
        return "names a buffer that does not exist";
    if (b < 0)
        return x->s->kind == Skernel || i == stepinfo[x->s->kind].nbuf - 1
            ? 0 : "lacks a buffer";
    const Buf *u = &r->buf[b];
    if (u->prog == -1)
        return 0;
    if (u->prog != x->prog || x->step < u->born || x->step > u->dies)
        return strf(x->c->arena, "uses '%s', which is not alive", u->name);
    return 0;
}

/* Elements from 0 to the last of a box: sum of (n - 1) * stride, plus 1. */
static int64_t extent(const int64_t *n, const int64_t *stride, int k)
{
    int64_t last = 0;
    for (int i = 0; i < k; i++) {
        if (n[i] <= 0)
            return 0;
        if (stride[i] < 0)
            return HUGE_BYTES;
        last = add(last, mul(n[i] - 1, stride[i]));
    }
    return add(last, 1);
}

enum { GDT, GDTC, GM, GN, GK, GLDA, GLDB, GLDC, GTA, GTB, GACC, GBATCH };

static int fits_gemm(const At *x, int which, int64_t elem)
{
    static const int rows[] = {GM, GK, GM}, cols[] = {GK, GN, GN};
    static const int turned[] = {GTA, GTB, -1}, ld[] = {GLDA, GLDB, GLDC};
    int t = turned[which] >= 0 && x->s->iv[turned[which]].c;
    int64_t n[2 + BATCHES] = {
        arg(x, t ? cols[which] : rows[which]).max,
        arg(x, t ? rows[which] : cols[which]).max,
    };
    int64_t stride[2 + BATCHES] = {arg(x, ld[which]).max, 1};
    int k = 2;
    for (int i = GBATCH; i < x->s->nint; i += 4, k++) {
        n[k] = arg(x, i).max;
        stride[k] = arg(x, i + 1 + which).max;
    }
    return mul(extent(n, stride, k), elem) <= bytes_of(x, which);
}

static const char *gemm_wrong(const At *x)
{
    int extra = x->s->nint - GBATCH;
    if (extra < 0 || extra % 4 || extra > 4 * BATCHES)
        return "has not the arguments of a gemm";
    int64_t in = width(x, GDT), out = width(x, GDTC);
    if (!in || !out)
        return "has no dtype";
    for (int i = GM; i < x->s->nint; i++)
        if (arg(x, i).min < 0)
            return "has a negative size";
    for (int i = GTA; i <= GACC; i++)
        if (!fixed(x, i, 0, 1))
            return "has a flag that is neither 0 nor 1";
    for (int i = 0; i < 3; i++)
        if (!fits_gemm(x, i, i < 2 ? in : out))
            return strf(x->c->arena, "goes beyond its buffer %c", "ABC"[i]);
    return 0;
}

enum { XDT, XDTOUT, XE, XK, XN, XLDW, XTW, XSTRIDE, XACC, XCAP };

/* Offsets of the map, then rows of K and N, weights E x (K x N). */
static const char *grouped_wrong(const At *x)
{
    int64_t in = width(x, XDT), out = width(x, XDTOUT);
    int weight = x->s->kind == Sgmm ? 1 : 2, rows = x->s->kind == Sgmm ? 2 : 1;
    if (!in || !out)
        return "has no dtype";
    for (int i = XE; i <= XCAP; i++)
        if (arg(x, i).min < 0)
            return "has a negative size";
    if (!fixed(x, XTW, 0, 1) || !fixed(x, XACC, 0, 1))
        return "has a flag that is neither 0 nor 1";
    int turned = x->s->iv[XTW].c != 0;
    int64_t E = arg(x, XE).max, K = arg(x, XK).max, N = arg(x, XN).max;
    int64_t cap = arg(x, XCAP).max;
    int64_t n[3] = {turned ? N : K, turned ? K : N, E};
    int64_t stride[3] = {arg(x, XLDW).max, 1, arg(x, XSTRIDE).max};
    int64_t wide = x->s->kind == Sgmm ? in : out;
    int64_t rowbytes = x->s->kind == Sgmm ? out : in;
    if (mul(extent(n, stride, 3), wide) > bytes_of(x, weight))
        return "goes beyond its weights";
    if (mul(mul(cap, K), in) > bytes_of(x, 0) ||
        mul(mul(cap, N), rowbytes) > bytes_of(x, rows))
        return "goes beyond its rows";
    return mul(add(E, 1), 4) > bytes_of(x, 3) ? "goes beyond its map" : 0;
}

/* zig and low from integer i on; half: what must have two halves.            */
static int zigzags(const At *x, int i, int half, int64_t ranks)
{
    int64_t zig = x->s->iv[i].c < 0 ? -x->s->iv[i].c : x->s->iv[i].c;

    if (!fixed(x, i, -ranks, ranks) || !fixed(x, i + 1, 0, ranks))
        return 0;
    if (!zig)
        return 1;
    int64_t low = x->s->iv[i + 1].c;
    return low && ranks % (zig * low) == 0 && fixed(x, half, 0, HUGE_BYTES) &&
           x->s->iv[half].c % 2 == 0;
}

/* Elements that a collective reads and writes on one rank. */
static const char *comm_wrong(const At *x)
{
    const Step *s = x->s;
    int64_t elem = width(x, 0), ranks = mesh_extent(x->c->p->mesh, s->atoms);
    int64_t n = 1, send, recv;
    int last = s->kind == Salltoall ? 5 : s->kind == Srotate ? 1 : 2;
    if (!elem)
        return "has no dtype";
    for (int i = 1; i <= last; i++) {
        if (arg(x, i).min < 0)
            return "has a negative size";
        n = mul(n, arg(x, i).max);
    }
    send = recv = n;
    if (s->kind == Sallgather)
        recv = mul(n, ranks);
    if (s->kind == Sreducescatter)
        send = mul(n, ranks);
    if (s->kind == Salltoall) {
        if (!fixed(x, 6, 0, 1))
            return "has a flag that is neither 0 nor 1";
        for (int i = 2; i <= 4; i += 2)
            if (arg(x, i).min % ranks || arg(x, i).max % ranks)
                return "has an axis that its group does not divide";
        if (!zigzags(x, 7, s->iv[7].c < 0 ? 4 : 2, ranks))
            return "has halves that its group does not have";
        if (s->iv[7].c && s->iv[s->iv[7].c < 0 ? 4 : 2].c % (2 * ranks))
            return "has an axis without halves";
        send = recv = n / ranks;
    } else if (s->kind == Srotate) {
        if (!fixed(x, 2, 1, ranks - 1))
            return "turns to no other rank";
    } else if (s->kind != Sallgather && !fixed(x, 3, 0, 2)) {
        return "has no reduction";
    }
    if ((s->kind == Sallgather && !zigzags(x, 3, 2, ranks)) ||
        (s->kind == Sreducescatter && !zigzags(x, 4, 2, ranks)))
        return "has halves that its group does not have";
    if (mul(send, elem) > bytes_of(x, 0))
        return "sends more than its buffer has";
    return mul(recv, elem) > bytes_of(x, 1) ? "receives beyond its buffer" : 0;
}

static int by_pointer(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

static const char *kernel_wrong(const At *x)
{
    const Check *c = x->c;
    const char *name = intern(x->s->kernel ? x->s->kernel : "");
    if (!bsearch(&name, c->kernels, (size_t)c->p->nkernel, sizeof name,
                 by_pointer))
        return strf(c->arena, "calls kernel '%s', which is not in the plan",
                    name);
    if (x->s->nint < 2)
        return "has no number of items";
    if (arg(x, 0).min < 0 || arg(x, 1).min < 0)
        return "has a negative number of items";
    return 0;
}

/* dtype count peer chan; peer: a position over the atoms, not its own.       */
static const char *transfer_wrong(const At *x)
{
    int64_t w = width(x, 0);

    if (!w)
        return "has no dtype";
    if (!fixed(x, 1, 0, HUGE_BYTES) || mul(arg(x, 1).max, w) > bytes_of(x, 0))
        return "goes beyond its buffer";
    if (!x->s->atoms ||
        !fixed(x, 2, 0, mesh_extent(x->c->p->mesh, x->s->atoms) - 1))
        return "has no peer";
    return fixed(x, 3, 0, 1 << 20) ? NULL : "has no channel";
}

static const char *args_wrong(const At *x)
{
    const Step *s = x->s;
    switch (s->kind) {
    case Skernel: return kernel_wrong(x);
    case Szero: return 0;
    case Scopy:
        return bytes_of(x, 0) > bytes_of(x, 1) ? "copies beyond its buffer" : 0;
    case Sgemm: return gemm_wrong(x);
    case Sgmm: case Sgmmw: return grouped_wrong(x);
    case Sallgather: case Sreducescatter: case Sallreduce: case Salltoall:
    case Srotate:
        return comm_wrong(x);
    case Ssend: case Srecv: case Swait: return transfer_wrong(x);
    case NSTEPKIND: break;
    }
    return "is of no kind";
}

static const char *step_wrong(const At *x)
{
    const Step *s = x->s;
    const Mesh *m = x->c->p->mesh;
    const char *why;
    if ((unsigned)s->kind >= NSTEPKIND)
        return "is of no kind";
    const StepInfo *o = &stepinfo[s->kind];
    if (s->nbuf < 0 || (o->nbuf >= 0 && s->nbuf != o->nbuf))
        return strf(x->c->arena, "has %d buffers, not %d", s->nbuf, o->nbuf);
    if (s->nint < 0 || (o->nint >= 0 && s->nint != o->nint))
        return strf(x->c->arena, "has %d integers, not %d", s->nint, o->nint);
    if (m->natom < 32 && s->atoms >> m->natom)
        return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < s->nint; i++)
        if (stray(m, &s->iv[i]))
            return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < s->nbuf; i++)
        if ((why = alive(x, i)))
            return why;
    return args_wrong(x);
}

/* Phases follow each other and cover all steps. */
static const char *phases_wrong(const Check *c, const Program *g)
{
    int64_t at = 0;
    for (int i = 0; i < g->nphase; i++) {
        const Phase *f = &g->phase[i];
        if (f->first != at || f->n < 0 || f->repeat < 1)
            return strf(c->arena, "role %d: program '%s': phase '%s' does not "
                        "follow", c->role, g->name, f->name);
        at += f->n;
    }
    if (at != g->nstep)
        return strf(c->arena, "role %d: program '%s' has %d steps and phases "
                    "for %lld", c->role, g->name, g->nstep, (long long)at);
    return 0;
}

static const char *program_wrong(const Check *c, int k)
{
    const Program *g = &c->r->prog[k];
    const char *why = phases_wrong(c, g);
    for (int i = 0; i < g->nstep && !why; i++) {
        At x = {c, &g->step[i], k, i};
        if ((why = step_wrong(&x)))
            why = strf(c->arena, "role %d: program '%s': step %d '%s' %s",
                       c->role, g->name, i, g->step[i].label, why);
    }
    return why;
}

/* ---- tensors ------------------------------------------------------------- */

/* Elements of a dim on one rank; -1: pieces that go beyond the axis. */
static int64_t dim_elems(const Mesh *m, const PlanDim *d)
{
    int64_t n = 0;
    if (d->n < 0 || d->npiece < 0)
        return -1;
    for (int i = 0; i < d->npiece; i++) {
        Range r = range(m, &d->piece[i].start);
        int64_t len = d->piece[i].len;
        if (stray(m, &d->piece[i].start) || r.min < 0 || len < 0 ||
            len > d->n || r.max > d->n - len)
            return -1;
        n = add(n, len);
    }
    return n;
}

static const char *tensor_wrong(const Check *c, const Tensor *t)
{
    int64_t n = 1;
    if (!*t->name)
        return "has no name";
    if (t->buf < 0 || t->buf >= c->r->nbuf)
        return "names a buffer that does not exist";
    if (t->nd < 0 || t->nd > MAXD)
        return "has too many axes";
    if (dtypes[t->dt].bytes == 0)
        return "has a dtype without size";
    for (int i = 0; i < t->nd; i++) {
        int64_t e = dim_elems(c->p->mesh, &t->dim[i]);
        if (e < 0)
            return strf(c->arena, "has pieces beyond axis '%s'",
                        t->dim[i].axis);
        n = mul(n, e);
    }
    if (mul(n, dtypes[t->dt].bytes) > c->r->buf[t->buf].bytes)
        return "is larger than its buffer";
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *twice(const Check *c)
{
    int n = c->r->ntensor;
    const char **v = alloc(c->arena, ((size_t)n + 1) * sizeof *v);
    for (int i = 0; i < n; i++)
        v[i] = c->r->tensor[i].name;
    qsort(v, (size_t)n, sizeof *v, by_name);
    for (int i = 1; i < n; i++)
        if (!strcmp(v[i], v[i - 1]))
            return strf(c->arena, "role %d: two tensors '%s'", c->role, v[i]);
    return 0;
}

static const char *scalar_wrong(const Check *c, const Scalar *s)
{
    if (s->buf < 0 || s->buf >= c->r->nbuf)
        return "names a buffer that does not exist";
    if (dtypes[s->dt].bytes == 0)
        return "has a dtype without size";
    if (dtypes[s->dt].bytes > c->r->buf[s->buf].bytes)
        return "is larger than its buffer";
    return 0;
}

static const char *scalars_wrong(const Check *c, const Scalar *s, int n)
{
    const char *why;
    for (int i = 0; i < n; i++)
        if ((why = scalar_wrong(c, &s[i])))
            return strf(c->arena, "role %d: scalar '%s' %s", c->role,
                        s[i].name, why);
    return 0;
}

static const char *role_wrong(const Check *c)
{
    const Role *r = c->r;
    const char *why = bufs_wrong(c);
    for (int i = 0; i < r->ntensor && !why; i++)
        if ((why = tensor_wrong(c, &r->tensor[i])))
            why = strf(c->arena, "role %d: tensor '%s' %s", c->role,
                       r->tensor[i].name, why);
    if (!why)
        why = twice(c);
    if (!why)
        why = scalars_wrong(c, r->in, r->nin);
    if (!why)
        why = scalars_wrong(c, r->out, r->nout);
    for (int i = 0; i < r->nprog && !why; i++)
        why = program_wrong(c, i);
    return why;
}

/* ---- the rest ------------------------------------------------------------ */

static const char *hf_wrong(const Check *c, const HfMap *h)
{
    for (int i = 0; i < h->nd; i++)
        for (int k = 0; k < h->dim[i].nf; k++) {
            const HfFactor *f = &h->dim[i].f[k];
            if (f->start < 0 || f->n < 1 ||
                (f->axis && f->start > f->total - f->n))
                return strf(c->arena, "hf '%s' goes beyond axis '%s'", h->hf,
                            f->axis ? f->axis : "");
        }
    for (int i = 0; i < h->nfix; i++)
        if (h->fixat[i] < -1)
            return strf(c->arena, "hf '%s' has a negative index", h->hf);
    return 0;
}

static const char *kernels_wrong(Check *c)
{
    int n = c->p->nkernel;
    c->kernels = alloc(c->arena, ((size_t)n + 1) * sizeof *c->kernels);
    for (int i = 0; i < n; i++)
        c->kernels[i] = intern(c->p->kernel[i].name);
    qsort(c->kernels, (size_t)n, sizeof *c->kernels, by_pointer);
    for (int i = 1; i < n; i++)
        if (c->kernels[i] == c->kernels[i - 1])
            return strf(c->arena, "two kernels '%s'", c->kernels[i]);
    return 0;
}

const char *plan_wrong(Arena *a, const Plan *p)
{
    Check c = {.arena = a, .p = p};
    const char *why = kernels_wrong(&c);
    if (p->nrole != 1 && p->nrole != p->mesh->size[Mpp])
        return strf(a, "%d roles for %lld pipeline stages", p->nrole,
                    (long long)p->mesh->size[Mpp]);
    for (int i = 0; i < p->nhf && !why; i++)
        why = hf_wrong(&c, &p->hf[i]);
    for (c.role = 0; c.role < p->nrole && !why; c.role++) {
        c.r = &p->role[c.role];
        why = role_wrong(&c);
    }
    return why;
}

void plan_check(const Plan *p)
{
    Arena *a = arena_new();
    const char *why = plan_wrong(a, p);
    if (why)
        die("plan: %s", why);
    arena_free(a);
}
