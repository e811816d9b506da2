/* instr_check.c: are the fields of an instruction in their ranges, and do they
 * stay inside its buffers? See plancheck.c. */
#include <string.h>

#include "plan.h"

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

int aff_stray(const Mesh *m, const RankAffine *x)
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
    int prog, instr;
} At;

static int64_t bytes_of(const At *x, int arg)
{
    return x->c->r->buf[x->s->buf[arg]].bytes;
}

/* Kernels have gaps among their operands, others may have no work space. */
static int may_lack(const Instr *s, int i)
{
    Access u = instr_operand(s, i)->use;
    return u == USEown || u == USEwork;
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
    if ((u->prog != x->prog || x->instr < u->born || x->instr > u->dies) &&
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

static const char *gemm_wrong(const At *x)
{
    const GemmArgs *g = &x->s->gemm;
    const int64_t row[] = { g->ta ? g->k : g->m, g->tb ? g->n : g->k, g->m };
    const int64_t col[] = { g->ta ? g->m : g->k, g->tb ? g->k : g->n, g->n };
    const int64_t ld[] = { g->lda, g->ldb, g->ldc };
    for (int i = 0; i < 3; i++) {
        int64_t n[2 + MAXBATCH] = { row[i], col[i] };
        int64_t stride[2 + MAXBATCH] = { ld[i], 1 };
        for (int k = 0; k < g->batch.n; k++) {
            const BatchLoop *b = &g->batch.at[k];
            n[2 + k] = b->n;
            stride[2 + k] = i == 0 ? b->a : i == 1 ? b->b : b->c;
        }
        int64_t elem = dtypes[instr_dtype(x->s, i)].bytes;
        if (sat_mul(extent(n, stride, 2 + g->batch.n), elem) > bytes_of(x, i) &&
            law(Lgemm_bounds))
            return strf(x->c->arena, "goes beyond its operand %s",
                        instr_operand(x->s, i)->name);
    }
    return 0;
}

/* Offsets of the map, then rows of k and n, weights experts x (k x n). */
static const char *grouped_wrong(const At *x)
{
    const GmmArgs *g = &x->s->gmm;
    int wgrad = x->s->kind == Igmm_wgrad;
    int weight = wgrad ? OPERAND(gmm_wgrad, dw) : OPERAND(gmm, w);
    int rows = wgrad ? OPERAND(gmm_wgrad, b) : OPERAND(gmm, out);
    int64_t n[3] = { g->tw ? g->n : g->k, g->tw ? g->k : g->n, g->experts };
    int64_t stride[3] = { g->ldw, 1, g->stride };
    int64_t in = dtypes[g->in].bytes, out = dtypes[g->out].bytes;
    if (sat_mul(extent(n, stride, 3), wgrad ? out : in) > bytes_of(x, weight) &&
        law(Lgmm_weights))
        return "goes beyond its weights";
    if ((sat_mul(sat_mul(g->cap, g->k), in) > bytes_of(x, 0) ||
         sat_mul(sat_mul(g->cap, g->n), wgrad ? in : out) >
             bytes_of(x, rows)) &&
        law(Lgmm_rows))
        return "goes beyond its rows";
    if (sat_mul(sat_add(g->experts, 1 + (g->stash > 0)), 4) >
            bytes_of(x, OPERAND(gmm, map)) &&
        law(Lgmm_map))
        return "goes beyond its map";
    return 0;
}

/* half: what must have two halves where zig is not 0. */
static int zigzags(int64_t zig, int64_t low, int64_t half, int64_t ranks)
{
    if (zig > ranks || low > ranks)
        return 0;
    return !zig || (low && ranks % (zig * low) == 0 && half % 2 == 0);
}

static int64_t ranks_of(const At *x)
{
    return mesh_extent(x->c->p->mesh, x->s->atoms);
}

/* Elements that a collective reads and writes on one rank. */
static const char *comm_fits(const At *x, int64_t send, int64_t recv)
{
    int64_t elem = dtypes[instr_dtype(x->s, 0)].bytes;
    if (sat_mul(send, elem) > bytes_of(x, 0) && law(Lcomm_sends))
        return "sends more than its buffer has";
    if (sat_mul(recv, elem) > bytes_of(x, 1) && law(Lcomm_receives))
        return "receives beyond its buffer";
    return 0;
}

static const char *allgather_wrong(const At *x)
{
    const AllgatherArgs *v = &x->s->allgather;
    int64_t n = sat_mul(v->outer, v->chunk), ranks = ranks_of(x);
    if (!zigzags(v->zig, v->low, v->chunk, ranks) && law(Lcomm_zigzag))
        return "has halves that its group does not have";
    return comm_fits(x, n, sat_mul(n, ranks));
}

static const char *reducescatter_wrong(const At *x)
{
    const ReducescatterArgs *v = &x->s->reducescatter;
    int64_t n = sat_mul(v->outer, v->chunk), ranks = ranks_of(x);
    if (!zigzags(v->zig, v->low, v->chunk, ranks) && law(Lcomm_zigzag))
        return "has halves that its group does not have";
    return comm_fits(x, sat_mul(n, ranks), n);
}

static const char *alltoall_wrong(const At *x)
{
    const AlltoallArgs *v = &x->s->alltoall;
    int64_t ranks = ranks_of(x), half = v->zig < 0 ? v->b : v->a;
    int64_t n = sat_mul(sat_mul(v->outer, v->a), sat_mul(v->mid, v->b));
    if ((v->a % ranks || v->b % ranks) && law(Lexchange_divides))
        return "has an axis that its group does not divide";
    if (!zigzags(v->zig < 0 ? -v->zig : v->zig, v->low, half, ranks) &&
        law(Lexchange_zigzag))
        return "has halves that its group does not have";
    if (v->zig && half % (2 * ranks) && law(Lexchange_halves))
        return "has an axis without halves";
    n = sat_mul(n, v->inner) / ranks;
    return comm_fits(x, n, n);
}

/* Rows of a rank's tokens, blocks of all ranks, and a map of both. */
static const char *rows_wrong(const At *x)
{
    const RowsArgs *v = &x->s->rows;
    int64_t ranks = ranks_of(x), tokens = sat_mul(v->tokens, v->width);
    int64_t blocks = sat_mul(sat_mul(ranks, v->pair), v->width);
    if (sat_mul(rows_map(v, ranks).n, 4) >
            bytes_of(x, OPERAND(sendrows, map)) &&
        law(Lrows_map))
        return "goes beyond its map";
    if (v->kernel >= x->c->p->nkernel && law(Lrows_kernel))
        return "is of a kernel that is not in the plan";
    return x->s->kind == Isendrows ? comm_fits(x, tokens, blocks)
                                   : comm_fits(x, blocks, tokens);
}

static const char *ppermute_wrong(const At *x)
{
    const PpermuteArgs *v = &x->s->ppermute;
    if ((v->by < 1 || v->by >= ranks_of(x)) && law(Lppermute_by))
        return "turns to no other rank";
    return comm_fits(x, v->n, v->n);
}

/* Its operands are as many as its signature has, each in its buffer. */
static const char *kernel_wrong(const At *x)
{
    const Instr *s = x->s;
    if (s->call.sig >= x->c->p->nsig && law(Lsig_there))
        return "has a signature that does not exist";
    const KernelSignature *d = &x->c->p->sig[s->call.sig];
    if (d->hash != s->call.hash && law(Lsig_hash))
        return strf(x->c->arena, "is no call of '%s' with signature %lld",
                    d->kernel, (long long)s->call.sig);
    if (strlen(d->use) != (size_t)s->nbuf && law(Lsig_operands))
        return "has other operands than its signature";
    for (int i = 0; i < s->nbuf; i++) {
        if ((d->use[i] == '-') != (s->buf[i] < 0) && law(Lsig_operands))
            return "has other operands than its signature";
        if (s->buf[i] >= 0 && operand_bytes(&d->op[i]) > bytes_of(x, i) &&
            law(Lsig_bounds))
            return strf(x->c->arena, "goes beyond '%s'",
                        x->c->r->buf[s->buf[i]].name);
    }
    return NULL;
}

/* peer: a position over the atoms, not its own. */
static const char *transfer_wrong(const At *x)
{
    const Mesh *m = x->c->p->mesh;
    const TransferArgs *v = &x->s->transfer;
    if (sat_mul(v->n, dtypes[v->dt].bytes) > bytes_of(x, 0) &&
        law(Lmove_bounds))
        return "goes beyond its buffer";
    if ((!x->s->atoms || x->s->atoms != m->mask[Mpp] ||
         v->peer >= m->size[Mpp]) &&
        law(Lmove_peer))
        return "has no peer";
    if (x->c->p->nrole > 1 && v->peer == x->c->role && law(Lmove_self))
        return "is for its own stage";
    return NULL;
}

/* Is the next gap [from, to), if there is one? Then it is taken. */
static int takes_gap(const GapList *v, int *next, int64_t from, int64_t to)
{
    if (from == to)
        return 1;
    if (*next >= v->n)
        return 0;
    const Gap *g = &v->at[(*next)++];
    return g->from == from && g->bytes == to - from;
}

/* Parts and gaps, in this order, are all of the whole. */
static const char *join_wrong(const At *x)
{
    const Instr *s = x->s;
    const Buf *buf = x->c->r->buf;
    int64_t at = 0;
    int next = 0;
    const Buf *all = &buf[s->buf[0]];
    for (int k = 1; k < s->nbuf; k++) {
        const Buf *b = &buf[s->buf[k]];
        int64_t from = b->offset - all->offset;
        if ((b->frame || all->frame || b->prog < 0 || from < at ||
             b->bytes > all->bytes - from) &&
            law(Ljoin_gaps))
            return strf(x->c->arena, "joins '%s', which lies elsewhere",
                        b->name);
        if (!takes_gap(&s->join.gap, &next, at, from) && law(Ljoin_gaps))
            return "has other gaps than its parts leave";
        at = from + b->bytes;
    }
    return (!takes_gap(&s->join.gap, &next, at, all->bytes) ||
            next != s->join.gap.n) &&
                   law(Ljoin_gaps)
               ? "has other gaps than its parts leave"
               : NULL;
}

static const char *copy_wrong(const At *x)
{
    return bytes_of(x, OPERAND(copy, from)) > bytes_of(x, OPERAND(copy, to)) &&
                   law(Lcopy_bounds)
               ? "copies beyond its buffer"
               : NULL;
}

static const char *kind_wrong(const At *x)
{
    const AllreduceArgs *sum = &x->s->allreduce;
    switch (x->s->kind) {
    case Ikernel: return kernel_wrong(x);
    case Izero: return 0;
    case Ijoin: return join_wrong(x);
    case Icopy: return copy_wrong(x);
    case Igemm: return gemm_wrong(x);
    case Igmm:
    case Igmm_wgrad: return grouped_wrong(x);
    case Iallgather: return allgather_wrong(x);
    case Ireducescatter: return reducescatter_wrong(x);
    case Iallreduce: return comm_fits(x, sum->n, sum->n);
    case Ialltoall: return alltoall_wrong(x);
    case Ippermute: return ppermute_wrong(x);
    case Isendrows:
    case Ireturnrows: return rows_wrong(x);
    case Isend:
    case Irecv:
    case Iwait: return transfer_wrong(x);
    case NINSTR: break;
    }
    return "is of no kind";
}

/* Operands in a stack begin where a map says, others at their place. */
static const char *stacks_wrong(const At *x)
{
    for (int i = 0; i < x->s->nbuf; i++) {
        const Buf *b = x->s->buf[i] < 0 ? NULL : &x->c->r->buf[x->s->buf[i]];
        int from = rows_from(x->c->p, x->s, i) >= 0;
        if ((b ? from != (b->stack > 0) || b->cls == Bstash : from) &&
            law(Lstack_rows))
            return strf(x->c->arena, "takes operand %d for what %s in a stack",
                        i, from ? "lies" : "does not lie");
    }
    return NULL;
}

static const char *memories_wrong(const At *x)
{
    const Role *r = x->c->r;
    int copies = x->s->kind == Icopy;
    for (int i = 0; i < x->s->nbuf; i++)
        if (x->s->buf[i] >= 0 && in_host(r, &r->buf[x->s->buf[i]]) &&
            copies-- < 1 && law(Lhost_copies))
            return strf(x->c->arena, "uses '%s' of the host's arena",
                        r->buf[x->s->buf[i]].name);
    return NULL;
}

static const char *at_wrong(const At *x)
{
    const Instr *s = x->s;
    const Mesh *m = x->c->p->mesh;
    const InstrInfo *o = instr_info(s->kind);
    const char *why;
    if ((why = args_wrong(x->c->arena, s)) && law(Lfield_range))
        return why;
    if (s->atoms && o->cls != CLASScollective && o->cls != CLASStransfer &&
        law(Linstr_group))
        return "is no collective and has a group";
    if (m->natom < 32 && s->atoms >> m->natom && law(Linstr_atoms))
        return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < s->nbuf; i++)
        if ((why = alive(x, i)))
            return why;
    why = kind_wrong(x);
    why = why ? why : memories_wrong(x);
    return why ? why : stacks_wrong(x);
}

const char *instr_wrong(const PlanCheck *c, int prog, int instr)
{
    const Program *g = &c->r->prog[prog];
    At x = { c, &g->instr[instr], prog, instr };
    const char *why = at_wrong(&x);
    return why ? instr_told(c, g, instr, why) : NULL;
}
