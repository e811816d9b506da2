/* sizes.c: steps fill their buffers and nothing is left over. stepcheck.c says
 * that no step goes beyond its buffers; a plan of the compiler has, besides,
 * operands that are exactly as large as their buffers, an arena and frames that
 * are exactly as high as what lies in them, groups of more than one rank, and
 * as many turns as a step has micro-batches.
 *
 * Not proved: which way a square matrix is turned. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct Sizes {
    const PlanCheck *c;
    const Step *s;
} Sizes;

static int64_t bytes_of(const Sizes *x, int i)
{
    return x->s->buf[i] < 0 ? -1 : x->c->r->buf[x->s->buf[i]].bytes;
}

static int64_t iv(const Sizes *x, int i)
{
    return x->s->iv[i].c;
}

static const char *fills(const Sizes *x, int i, int64_t elems, int64_t width)
{
    return sat_mul(elems, width) == bytes_of(x, i)
               ? NULL
               : strf(x->c->arena, "leaves a part of its buffer %d alone", i);
}

static const char *both(const char *a, const char *b)
{
    return a ? a : b;
}

/* ---- products ------------------------------------------------------------ */

enum { BATCHES = 3, GM = 2, GN = 3, GK = 4, GLD = 5, GTA = 8, GBATCH = 11 };

typedef struct Side {
    int64_t n, stride;
} Side;

static int by_stride(const Side *v, int a, int b)
{
    return v[a].stride != v[b].stride ? v[a].stride < v[b].stride
                                      : v[a].n < v[b].n;
}

/* Do boxes of these sides cover their buffer, no element twice? Sides with
 * stride 0 read it again. The elements of the buffer; -1: no. */
static int64_t tiles(Side *v, int n, int again)
{
    int64_t at = 1;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (by_stride(v, k, i)) {
                Side t = v[i];
                v[i] = v[k], v[k] = t;
            }
    for (int i = 0; i < n; i++) {
        if (v[i].n <= 1 || (again && v[i].stride == 0))
            continue;
        if (v[i].stride != at)
            return -1;
        at = sat_mul(at, v[i].n);
    }
    return at;
}

static const char *gemm_sizes(const Sizes *x)
{
    static const int rows[] = { GM, GK, GM }, cols[] = { GK, GN, GN };
    const char *why = 0;
    for (int i = 0; i < 3 && !why; i++) {
        int turned = i < 2 && iv(x, GTA + i), n = 2;
        Side v[2 + BATCHES] = {
            { iv(x, turned ? cols[i] : rows[i]), iv(x, GLD + i) },
            { iv(x, turned ? rows[i] : cols[i]), 1 },
        };
        for (int k = GBATCH; k < x->s->nint; k += 4)
            v[n++] = (Side){ iv(x, k), iv(x, k + 1 + i) };
        why = fills(x, i, tiles(v, n, i < 2), dtypes[iv(x, i == 2)].bytes);
    }
    return why;
}

enum { XE = 2, XK, XN, XLDW, XTW, XSTRIDE, XACC, XCAP };

static const char *grouped_sizes(const Sizes *x)
{
    int weight = x->s->kind == Sgmm ? 1 : 2, rows = x->s->kind == Sgmm ? 2 : 1;
    int in = dtypes[iv(x, 0)].bytes, out = dtypes[iv(x, 1)].bytes;
    int64_t K = iv(x, XK), N = iv(x, XN), turned = iv(x, XTW);
    Side v[3] = { { turned ? N : K, iv(x, XLDW) },
                  { turned ? K : N, 1 },
                  { iv(x, XE), iv(x, XSTRIDE) } };
    const char *w = fills(x, weight, tiles(v, 3, 0), weight == 1 ? in : out);
    const char *a = fills(x, 0, sat_mul(iv(x, XCAP), K), in);
    const char *b =
        fills(x, rows, sat_mul(iv(x, XCAP), N), rows == 2 ? out : in);
    return both(w, both(a, b));
}

/* ---- collectives and transfers ------------------------------------------- */

static const char *collective_sizes(const Sizes *x)
{
    const Step *s = x->s;
    int64_t ranks = mesh_extent(x->c->p->mesh, s->atoms), n = 1;
    int last = s->kind == Salltoall ? 5 : s->kind == Srotate ? 1 : 2;
    int width = dtypes[iv(x, 0)].bytes;
    if (ranks < 2)
        return "has a group of one rank";
    if (s->kind == Sallreduce && iv(x, 1) != 1)
        return "has more than one block";
    for (int i = 1; i <= last; i++)
        n = sat_mul(n, iv(x, i));
    int64_t send = s->kind == Salltoall        ? n / ranks
                   : s->kind == Sreducescatter ? sat_mul(n, ranks)
                                               : n;
    int64_t recv = s->kind == Salltoall    ? n / ranks
                   : s->kind == Sallgather ? sat_mul(n, ranks)
                                           : n;
    return both(fills(x, 0, send, width), fills(x, 1, recv, width));
}

static const char *step_sizes(const Sizes *x)
{
    switch (x->s->kind) {
    case Sgemm: return gemm_sizes(x);
    case Sgmm:
    case Sgmmw: return grouped_sizes(x);
    case Sallgather:
    case Sreducescatter:
    case Sallreduce:
    case Salltoall:
    case Srotate: return collective_sizes(x);
    case Scopy:
        return bytes_of(x, 0) == bytes_of(x, 1) ? NULL : "copies a part";
    case Ssend:
    case Srecv:
    case Swait: return fills(x, 0, iv(x, 1), dtypes[iv(x, 0)].bytes);
    default: return 0;
    }
}

/* ---- memory -------------------------------------------------------------- */

static int64_t top_of(const PlanCheck *c, int prog)
{
    const Program *g = prog < 0 ? NULL : &c->r->prog[prog];
    int64_t top = 0;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (b->prog == prog && !b->frame && b->offset + b->bytes > top)
            top = b->offset + b->bytes;
    }
    for (int i = 0; g && i < g->nframe; i++)
        for (int k = 0; k < g->frame[i].nslot; k++)
            if (g->frame[i].slot[k] + g->frame[i].bytes > top)
                top = g->frame[i].slot[k] + g->frame[i].bytes;
    return (top + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
}

static int64_t lasting_bytes(const Role *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0)
            n = sat_add(n,
                        (r->buf[i].bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN);
    return n;
}

static const char *heights_wrong(const PlanCheck *c)
{
    const Role *r = c->r;
    int64_t most = 0;
    if (top_of(c, -1) != r->persist || lasting_bytes(r) != r->persist)
        return "does not say how high what lives always is";
    for (int k = 0; k < r->nprog; k++) {
        int64_t top = top_of(c, k), n = r->prog[k].transient;
        if ((top > r->persist ? top - r->persist : 0) != n)
            return strf(c->arena, "program '%s' does not say how much it needs",
                        r->prog[k].name);
        most = n > most ? n : most;
    }
    return r->arena == r->persist + most
               ? NULL
               : "does not have the arena that its programs need";
}

/* ---- turns --------------------------------------------------------------- */

/* Micro-batches that a rank runs in turn, from the tokens of a step; 0: there
 * is no input to tell, -1: none. */
static int64_t turns_of(const Plan *p)
{
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            int64_t n = 1;
            for (int d = 0; d < t->nd; d++)
                n = sat_mul(n, t->dim[d].n);
            if (!strcmp(t->kind, "input"))
                return p->tokens > 0 && p->tokens % n == 0 ? p->tokens / n : -1;
        }
    return 0;
}

static const char *repeats_wrong(const PlanCheck *c, const Program *g)
{
    int data = !strncmp(g->name, "step", 4) || !strcmp(g->name, "eval");
    int64_t n = data ? turns_of(c->p) : 1;
    if (n < 0)
        return "has another number of tokens than its inputs";
    for (int f = 0; f < g->nphase && n; f++) {
        const Phase *x = &g->phase[f];
        int each = !strcmp(x->name, "den") || !strcmp(x->name, "body");
        if (x->repeat ? x->repeat != (each ? n : 1) : phase_turns(g, f) != n)
            return strf(c->arena, "program '%s' runs its phase '%s' %lld times",
                        g->name, x->name, (long long)phase_turns(g, f));
    }
    return 0;
}

/* ---- frames -------------------------------------------------------------- */

/* What lies in a frame lies there side by side, and fills it. */
static const char *frames_wrong(const PlanCheck *c, int prog)
{
    const Program *g = &c->r->prog[prog];
    int64_t *top = alloc(c->arena, sizeof *top * (size_t)(g->nframe + 1));
    Span *v = NULL;
    int one, two;
    for (int i = 0; i < c->r->nbuf; i++) {
        const Buf *b = &c->r->buf[i];
        if (b->prog != prog || !b->frame || !b->bytes)
            continue;
        Span x = { .id = i,
                   .offset = b->offset,
                   .bytes = b->bytes,
                   .from = b->frame,
                   .to = b->frame };
        vec_push(c->arena, v, x);
        if (b->offset + b->bytes > top[b->frame])
            top[b->frame] = b->offset + b->bytes;
    }
    if (spans_meet(v, (int)vec_len(v), &one, &two))
        return strf(c->arena, "buffers '%s' and '%s' overlap in their frame",
                    c->r->buf[one].name, c->r->buf[two].name);
    for (int i = 0; i < g->nframe; i++)
        if ((top[i + 1] + BUFALIGN - 1) / BUFALIGN * BUFALIGN !=
            g->frame[i].bytes)
            return strf(c->arena,
                        "frame '%s' is not as large as what lies "
                        "in it",
                        g->frame[i].name);
    return 0;
}

const char *sizes_wrong(const PlanCheck *c)
{
    const char *why = heights_wrong(c);
    for (int k = 0; k < c->r->nprog && !why; k++)
        why = repeats_wrong(c, &c->r->prog[k]);
    for (int k = 0; k < c->r->nprog && !why; k++)
        why = frames_wrong(c, k);
    if (why)
        return strf(c->arena, "role %d %s", c->role, why);
    for (int k = 0; k < c->r->nprog; k++)
        for (int i = 0; i < c->r->prog[k].nstep; i++) {
            Sizes x = { c, &c->r->prog[k].step[i] };
            if ((why = step_sizes(&x)))
                return strf(
                    c->arena,
                    "role %d: program '%s': step %d '%s'%s "
                    "%s",
                    c->role, c->r->prog[k].name, i,
                    x.s->label ? x.s->label : "",
                    x.s->file ? strf(c->arena, " (%s:%d)", x.s->file, x.s->line)
                              : "",
                    why);
        }
    return 0;
}
