/* instr_check.c: has a step the arguments of its kind, and do they stay inside
 * its buffers on every rank? See plancheck.c. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { BATCHES = 3 };

/* ---- numbers: saturate far beyond any size ------------------------------- */

int64_t sat_mul(int64_t a, int64_t b)
{
    int64_t v;
    if (!__builtin_mul_overflow(a, b, &v) && v > -HUGEBYTES && v < HUGEBYTES)
        return v;
    return (a < 0) == (b < 0) ? HUGEBYTES : -HUGEBYTES;
}

int64_t sat_add(int64_t a, int64_t b)
{
    int64_t v;
    if (!__builtin_add_overflow(a, b, &v) && v > -HUGEBYTES && v < HUGEBYTES)
        return v;
    return a < 0 ? -HUGEBYTES : HUGEBYTES;
}

Range aff_range(const Mesh *m, const Aff *x)
{
    Range r = { sat_add(x->c, 0), sat_add(x->c, 0) };
    for (int i = 0; i < m->natom; i++) {
        int64_t far = sat_mul(x->k[i], m->atom[i].size - 1);
        if (far < 0)
            r.min = sat_add(r.min, far);
        else
            r.max = sat_add(r.max, far);
    }
    return r;
}

int aff_stray(const Mesh *m, const Aff *x)
{
    for (int i = m->natom; i < MAXATOM; i++)
        if (x->k[i])
            return 1;
    return 0;
}

/* ---- arguments ----------------------------------------------------------- */

/* Instruction s of program g, being looked at. */
typedef struct At {
    const PlanCheck *c;
    const Instr *s;
    int prog, step;
} At;

static int64_t bytes_of(const At *x, int arg)
{
    return x->c->r->buf[x->s->buf[arg]].bytes;
}

static Range arg(const At *x, int i)
{
    return aff_range(x->c->p->mesh, &x->s->iv[i]);
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

/* Kernels have gaps among their arguments, others may have no work space: the
 * last of three buffers and more. */
static int may_lack(const Instr *s, int i)
{
    int n = instrinfo[s->kind].nbuf;
    return s->kind == Ikernel || (n >= 3 && i == n - 1);
}

static const char *alive(const At *x, int i)
{
    const Role *r = x->c->r;
    int b = x->s->buf[i];
    if ((b < -1 || b >= r->nbuf) && law(Linstr_buffer))
        return "names a buffer that does not exist";
    if (b < 0)
        return may_lack(x->s, i) || !law(Linstr_lacks) ? 0 : "lacks a buffer";
    const Buf *u = &r->buf[b];
    if (u->prog == -1)
        return 0;
    if ((u->prog != x->prog || x->step < u->born || x->step > u->dies) &&
        law(Linstr_alive))
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
            return HUGEBYTES;
        last = sat_add(last, sat_mul(n[i] - 1, stride[i]));
    }
    return sat_add(last, 1);
}

enum { GDT, GDTC, GM, GN, GK, GLDA, GLDB, GLDC, GTA, GTB, GACC, GBATCH };

static int fits_gemm(const At *x, int which, int64_t elem)
{
    static const int rows[] = { GM, GK, GM }, cols[] = { GK, GN, GN };
    static const int turned[] = { GTA, GTB, -1 }, ld[] = { GLDA, GLDB, GLDC };
    int t = turned[which] >= 0 && x->s->iv[turned[which]].c;
    int64_t n[2 + BATCHES] = {
        arg(x, t ? cols[which] : rows[which]).max,
        arg(x, t ? rows[which] : cols[which]).max,
    };
    int64_t stride[2 + BATCHES] = { arg(x, ld[which]).max, 1 };
    int k = 2;
    for (int i = GBATCH; i < x->s->nint; i += 4, k++) {
        n[k] = arg(x, i).max;
        stride[k] = arg(x, i + 1 + which).max;
    }
    return sat_mul(extent(n, stride, k), elem) <= bytes_of(x, which);
}

static const char *gemm_wrong(const At *x)
{
    int extra = x->s->nint - GBATCH;
    if ((extra < 0 || extra % 4 || extra > 4 * BATCHES) && law(Lgemm_args))
        return "has not the arguments of a gemm";
    int64_t in = width(x, GDT), out = width(x, GDTC);
    if ((!in || !out) && law(Lgemm_dtype))
        return "has no dtype";
    for (int i = GM; i < x->s->nint; i++)
        if (arg(x, i).min < 0 && law(Lgemm_negative))
            return "has a negative size";
    for (int i = GTA; i <= GACC; i++)
        if (!fixed(x, i, 0, 1) && law(Lgemm_flags))
            return "has a flag that is neither 0 nor 1";
    for (int i = 0; i < 3; i++)
        if (!fits_gemm(x, i, i < 2 ? in : out) && law(Lgemm_bounds))
            return strf(x->c->arena, "goes beyond its buffer %c", "ABC"[i]);
    return 0;
}

enum { XDT, XDTOUT, XE, XK, XN, XLDW, XTW, XSTRIDE, XACC, XCAP };

/* Offsets of the map, then rows of K and N, weights E x (K x N). */
static const char *grouped_wrong(const At *x)
{
    int64_t in = width(x, XDT), out = width(x, XDTOUT);
    int weight = x->s->kind == Igmm ? 1 : 2, rows = x->s->kind == Igmm ? 2 : 1;
    if ((!in || !out) && law(Lgmm_dtype))
        return "has no dtype";
    for (int i = XE; i <= XCAP; i++)
        if (arg(x, i).min < 0 && law(Lgmm_negative))
            return "has a negative size";
    if ((!fixed(x, XTW, 0, 1) || !fixed(x, XACC, 0, 1)) && law(Lgmm_flags))
        return "has a flag that is neither 0 nor 1";
    int turned = x->s->iv[XTW].c != 0;
    int64_t E = arg(x, XE).max, K = arg(x, XK).max, N = arg(x, XN).max;
    int64_t cap = arg(x, XCAP).max;
    int64_t n[3] = { turned ? N : K, turned ? K : N, E };
    int64_t stride[3] = { arg(x, XLDW).max, 1, arg(x, XSTRIDE).max };
    int64_t wide = x->s->kind == Igmm ? in : out;
    int64_t rowbytes = x->s->kind == Igmm ? out : in;
    if (sat_mul(extent(n, stride, 3), wide) > bytes_of(x, weight) &&
        law(Lgmm_weights))
        return "goes beyond its weights";
    if ((sat_mul(sat_mul(cap, K), in) > bytes_of(x, 0) ||
         sat_mul(sat_mul(cap, N), rowbytes) > bytes_of(x, rows)) &&
        law(Lgmm_rows))
        return "goes beyond its rows";
    if (sat_mul(sat_add(E, 1), 4) > bytes_of(x, 3) && law(Lgmm_map))
        return "goes beyond its map";
    return 0;
}

/* zig and low from integer i on; half: what must have two halves. */
static int zigzags(const At *x, int i, int half, int64_t ranks)
{
    int64_t zig = x->s->iv[i].c < 0 ? -x->s->iv[i].c : x->s->iv[i].c;

    if (!fixed(x, i, -ranks, ranks) || !fixed(x, i + 1, 0, ranks))
        return 0;
    if (!zig)
        return 1;
    int64_t low = x->s->iv[i + 1].c;
    return low && ranks % (zig * low) == 0 && fixed(x, half, 0, HUGEBYTES) &&
           x->s->iv[half].c % 2 == 0;
}

/* Elements that a collective reads and writes on one rank. */
static const char *comm_wrong(const At *x)
{
    const Instr *s = x->s;
    int64_t elem = width(x, 0), ranks = mesh_extent(x->c->p->mesh, s->atoms);
    int64_t n = 1, send, recv;
    int last = s->kind == Ialltoall ? 5 : s->kind == Ippermute ? 1 : 2;
    if (!elem && law(Lcomm_dtype))
        return "has no dtype";
    for (int i = 1; i <= last; i++) {
        if (arg(x, i).min < 0 && law(Lcomm_negative))
            return "has a negative size";
        n = sat_mul(n, arg(x, i).max);
    }
    send = recv = n;
    if (s->kind == Iallgather)
        recv = sat_mul(n, ranks);
    if (s->kind == Ireducescatter)
        send = sat_mul(n, ranks);
    if (s->kind == Ialltoall) {
        if (!fixed(x, 6, 0, 1) && law(Lexchange_flag))
            return "has a flag that is neither 0 nor 1";
        for (int i = 2; i <= 4; i += 2)
            if ((arg(x, i).min % ranks || arg(x, i).max % ranks) &&
                law(Lexchange_divides))
                return "has an axis that its group does not divide";
        if (!zigzags(x, 7, s->iv[7].c < 0 ? 4 : 2, ranks) &&
            law(Lexchange_zigzag))
            return "has halves that its group does not have";
        if (s->iv[7].c && s->iv[s->iv[7].c < 0 ? 4 : 2].c % (2 * ranks) &&
            law(Lexchange_halves))
            return "has an axis without halves";
        send = recv = n / ranks;
    } else if (s->kind == Ippermute) {
        if (!fixed(x, 2, 1, ranks - 1) && law(Lppermute_by))
            return "turns to no other rank";
    } else if (s->kind != Iallgather && !fixed(x, 3, 0, 2) &&
               law(Lcomm_reduces)) {
        return "has no reduction";
    }
    if (((s->kind == Iallgather && !zigzags(x, 3, 2, ranks)) ||
         (s->kind == Ireducescatter && !zigzags(x, 4, 2, ranks))) &&
        law(Lcomm_zigzag))
        return "has halves that its group does not have";
    if (sat_mul(send, elem) > bytes_of(x, 0) && law(Lcomm_sends))
        return "sends more than its buffer has";
    if (sat_mul(recv, elem) > bytes_of(x, 1) && law(Lcomm_receives))
        return "receives beyond its buffer";
    return 0;
}

static int by_pointer(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

/* A letter for each buffer, "-" where there is none. */
static const char *uses_wrong(const Instr *s)
{
    if (strlen(s->rw) != (size_t)s->nbuf && law(Luses_all))
        return "does not say of each buffer how it is used";
    for (int i = 0; i < s->nbuf; i++)
        if ((s->buf[i] < 0 ? s->rw[i] != '-' : !strchr("rwb", s->rw[i])) &&
            law(Luses_known))
            return "uses a buffer in no known way";
    return 0;
}

static const char *kernel_wrong(const At *x)
{
    const PlanCheck *c = x->c;
    const char *name = intern(x->s->kernel ? x->s->kernel : "");
    if (!bsearch(&name, c->kernels, (size_t)c->p->nkernel, sizeof name,
                 by_pointer) &&
        law(Lkernel_there))
        return strf(c->arena, "calls kernel '%s', which is not in the plan",
                    name);
    if (x->s->nint < 2 && law(Lkernel_items))
        return "has no number of items";
    if ((arg(x, 0).min < 0 || arg(x, 1).min < 0) && law(Litems_negative))
        return "has a negative number of items";
    return x->s->rw ? uses_wrong(x->s) : 0;
}

/* dtype count peer chan; peer: a position over the atoms, not its own. */
static const char *transfer_wrong(const At *x)
{
    const Mesh *m = x->c->p->mesh;
    int64_t w = width(x, 0);

    if (!w && law(Lmove_dtype))
        return "has no dtype";
    if ((!fixed(x, 1, 0, HUGEBYTES) ||
         sat_mul(arg(x, 1).max, w) > bytes_of(x, 0)) &&
        law(Lmove_bounds))
        return "goes beyond its buffer";
    if ((!x->s->atoms || x->s->atoms != m->mask[Mpp] ||
         !fixed(x, 2, 0, m->size[Mpp] - 1)) &&
        law(Lmove_peer))
        return "has no peer";
    if (x->c->p->nrole > 1 && x->s->iv[2].c == x->c->role && law(Lmove_self))
        return "is for its own stage";
    if (!fixed(x, 3, 0, 1 << 20) && law(Lmove_channel))
        return "has no channel";
    return NULL;
}

/* Is the next gap, from integer i on, [from, to)? How many integers it has. */
static int gap(const At *x, int i, int64_t from, int64_t to)
{
    if (from == to)
        return 0;
    return i + 1 < x->s->nint && fixed(x, i, from, from) &&
                   fixed(x, i + 1, to - from, to - from)
               ? 2
               : -1;
}

/* Parts and gaps, in this order, are all of the whole. */
static const char *join_wrong(const At *x)
{
    const Instr *s = x->s;
    const Buf *buf = x->c->r->buf;
    int64_t at = 0;
    int k, i = 1;
    if ((s->nbuf < 1 || s->nint < 1 || !width(x, 0)) && law(Ljoin_whole))
        return "has no whole";
    const Buf *all = &buf[s->buf[0]];
    for (k = 1; k < s->nbuf; k++) {
        const Buf *b = &buf[s->buf[k]];
        int64_t from = b->offset - all->offset;
        if ((b->frame || all->frame || b->prog < 0 || from < at ||
             b->bytes > all->bytes - from) &&
            law(Ljoin_gaps))
            return strf(x->c->arena, "joins '%s', which lies elsewhere",
                        b->name);
        int n = gap(x, i, at, from);
        if (n < 0 && law(Ljoin_gaps))
            return "has other gaps than its parts leave";
        i += n;
        at = from + b->bytes;
    }
    k = gap(x, i, at, all->bytes);
    return (k < 0 || i + k != s->nint) && law(Ljoin_gaps)
               ? "has other gaps than its parts leave"
               : NULL;
}

static const char *args_wrong(const At *x)
{
    const Instr *s = x->s;
    switch (s->kind) {
    case Ikernel: return kernel_wrong(x);
    case Izero: return 0;
    case Ijoin: return join_wrong(x);
    case Icopy:
        return bytes_of(x, 0) > bytes_of(x, 1) && law(Lcopy_bounds)
                   ? "copies beyond its buffer"
                   : 0;
    case Igemm: return gemm_wrong(x);
    case Igmm:
    case Igmm_wgrad: return grouped_wrong(x);
    case Iallgather:
    case Ireducescatter:
    case Iallreduce:
    case Ialltoall:
    case Ippermute: return comm_wrong(x);
    case Isend:
    case Irecv:
    case Iwait: return transfer_wrong(x);
    case NINSTR: break;
    }
    return "is of no kind";
}

static const char *at_wrong(const At *x)
{
    const Instr *s = x->s;
    const Mesh *m = x->c->p->mesh;
    const char *why;
    if (s->rw && s->kind != Ikernel && law(Lonly_kernels_use))
        return "is no kernel and says how it uses its buffers";
    const InstrInfo *o = &instrinfo[s->kind];
    if ((s->nbuf < 0 || (o->nbuf >= 0 && s->nbuf != o->nbuf)) &&
        law(Linstr_buffers))
        return strf(x->c->arena, "has %d buffers, not %d", s->nbuf, o->nbuf);
    if ((s->nint < 0 || (o->nint >= 0 && s->nint != o->nint)) &&
        law(Linstr_ints))
        return strf(x->c->arena, "has %d integers, not %d", s->nint, o->nint);
    if (s->atoms && (s->kind < Iallgather || s->kind > Iwait) &&
        law(Linstr_group))
        return "is no collective and has a group";
    if (m->natom < 32 && s->atoms >> m->natom && law(Linstr_atoms))
        return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < s->nint; i++)
        if (aff_stray(m, &s->iv[i]) && law(Lint_atoms))
            return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < s->nbuf; i++)
        if ((why = alive(x, i)))
            return why;
    return args_wrong(x);
}

const char *instr_wrong(const PlanCheck *c, int prog, int step)
{
    const Program *g = &c->r->prog[prog];
    At x = { c, &g->instr[step], prog, step };
    const char *why = at_wrong(&x);
    return why ? strf(c->arena, "role %d: program '%s': step %d '%s' %s",
                      c->role, programnames[g->kind], step, x.s->label, why)
               : NULL;
}
