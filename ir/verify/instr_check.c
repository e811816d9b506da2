/* instr_check.c: are the fields of an instruction in their ranges, and do they
 * stay inside its buffers? See plancheck.c. */
#include "verify.h"

/* ---- numbers: saturate far beyond any size ------------------------------- */

/* ---- arguments ----------------------------------------------------------- */

/* Instruction s of program g, being looked at. */
typedef struct At {
    const PlanCheck *c;
    const Instr *s;
    int prog, instr;
} At;

static int64_t bytes_of(const At *place, int arg)
{
    return place->c->r->buf[place->s->buf[arg]].bytes;
}

/* Kernels have gaps among their operands, others may have no work space. */
static int may_lack(const Instr *instr, int i)
{
    Access u = instr_operand(instr, i)->use;
    return u == USEown || u == USEwork;
}

static const char *alive(const At *place, int i)
{
    const Role *role = place->c->r;
    int b = place->s->buf[i];
    if ((b < -1 || b >= role->nbuf) && law(Linstr_buffer))
        return "names a buffer that does not exist";
    if (b < 0)
        return may_lack(place->s, i) || !law(Linstr_lacks) ? 0
                                                           : "lacks a buffer";
    const Buf *buf = &role->buf[b];
    if (buf->prog == -1)
        return 0;
    if ((buf->prog != place->prog || place->instr < buf->born ||
         place->instr > buf->dies) &&
        law(Linstr_alive))
        return strf(place->c->arena, "uses '%s', which is not alive",
                    buf->name);
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

static const char *gemm_wrong(const At *place)
{
    const GemmArgs *args = &place->s->gemm;
    const int64_t row[] = { args->ta ? args->k : args->m,
                            args->tb ? args->n : args->k, args->m };
    const int64_t col[] = { args->ta ? args->m : args->k,
                            args->tb ? args->k : args->n, args->n };
    const int64_t ld[] = { args->lda, args->ldb, args->ldc };
    for (int i = 0; i < 3; i++) {
        int64_t n[2 + MAXBATCH] = { row[i], col[i] };
        int64_t stride[2 + MAXBATCH] = { ld[i], 1 };
        for (int k = 0; k < args->batch.n; k++) {
            const BatchLoop *loop = &args->batch.at[k];
            n[2 + k] = loop->n;
            stride[2 + k] = i == 0 ? loop->a : i == 1 ? loop->b : loop->c;
        }
        int64_t elem = dtypes[instr_dtype(place->s, i)].bytes;
        if (sat_mul(extent(n, stride, 2 + args->batch.n), elem) >
                bytes_of(place, i) &&
            law(Lgemm_bounds))
            return strf(place->c->arena, "goes beyond its operand %s",
                        instr_operand(place->s, i)->name);
    }
    return 0;
}

/* Offsets of the map, then rows of k and n, weights experts x (k place n). */
static const char *grouped_wrong(const At *place)
{
    const GmmArgs *args = &place->s->gmm;
    int wgrad = place->s->kind == Igmm_wgrad;
    int weight = wgrad ? OPERAND(gmm_wgrad, dw) : OPERAND(gmm, w);
    int rows = wgrad ? OPERAND(gmm_wgrad, b) : OPERAND(gmm, out);
    int64_t n[3] = { args->tw ? args->n : args->k, args->tw ? args->k : args->n,
                     args->experts };
    int64_t stride[3] = { args->ldw, 1, args->stride };
    int64_t in = dtypes[args->in].bytes, out = dtypes[args->out].bytes;
    if (sat_mul(extent(n, stride, 3), wgrad ? out : in) >
            bytes_of(place, weight) &&
        law(Lgmm_weights))
        return "goes beyond its weights";
    if ((sat_mul(sat_mul(args->cap, args->k), in) > bytes_of(place, 0) ||
         sat_mul(sat_mul(args->cap, args->n), wgrad ? in : out) >
             bytes_of(place, rows)) &&
        law(Lgmm_rows))
        return "goes beyond its rows";
    if (sat_mul(sat_add(args->experts, 1 + (args->stash > 0)), 4) >
            bytes_of(place, OPERAND(gmm, map)) &&
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

static int64_t ranks_of(const At *place)
{
    return mesh_extent(place->c->p->mesh, place->s->atoms);
}

/* Elements that a collective reads and writes on one rank. */
static const char *comm_fits(const At *place, int64_t send, int64_t recv)
{
    int64_t elem = dtypes[instr_dtype(place->s, 0)].bytes;
    if (sat_mul(send, elem) > bytes_of(place, 0) && law(Lcomm_sends))
        return "sends more than its buffer has";
    if (sat_mul(recv, elem) > bytes_of(place, 1) && law(Lcomm_receives))
        return "receives beyond its buffer";
    return 0;
}

static const char *allgather_wrong(const At *place)
{
    const AllgatherArgs *args = &place->s->allgather;
    int64_t n = sat_mul(args->outer, args->chunk), ranks = ranks_of(place);
    if (!zigzags(args->zig, args->low, args->chunk, ranks) && law(Lcomm_zigzag))
        return "has halves that its group does not have";
    return comm_fits(place, n, sat_mul(n, ranks));
}

static const char *reducescatter_wrong(const At *place)
{
    const ReducescatterArgs *args = &place->s->reducescatter;
    int64_t n = sat_mul(args->outer, args->chunk), ranks = ranks_of(place);
    if (!zigzags(args->zig, args->low, args->chunk, ranks) && law(Lcomm_zigzag))
        return "has halves that its group does not have";
    return comm_fits(place, sat_mul(n, ranks), n);
}

static const char *alltoall_wrong(const At *place)
{
    const AlltoallArgs *args = &place->s->alltoall;
    int64_t ranks = ranks_of(place), half = args->zig < 0 ? args->b : args->a;
    int64_t n =
        sat_mul(sat_mul(args->outer, args->a), sat_mul(args->mid, args->b));
    if ((args->a % ranks || args->b % ranks) && law(Lexchange_divides))
        return "has an axis that its group does not divide";
    if (!zigzags(args->zig < 0 ? -args->zig : args->zig, args->low, half,
                 ranks) &&
        law(Lexchange_zigzag))
        return "has halves that its group does not have";
    if (args->zig && half % (2 * ranks) && law(Lexchange_halves))
        return "has an axis without halves";
    n = sat_mul(n, args->inner) / ranks;
    return comm_fits(place, n, n);
}

/* Its operands are as many as its signature has, each in its buffer. */
static const char *call_wrong(const At *place)
{
    const Instr *instr = place->s;
    KernelArgs call = instr_call(instr);
    if (call.sig >= place->c->p->nsig && law(Lsig_there))
        return "has a signature that does not exist";
    const KernelSignature *signature = &place->c->p->sig[call.sig];
    if (signature->hash != call.hash && law(Lsig_hash))
        return strf(place->c->arena, "is no call of '%s' with signature %ld",
                    signature->kernel, call.sig);
    if (signature->launch.peers != moves_rows(instr->kind) && law(Lsig_peers))
        return "calls a kernel of another kind";
    if (strlen(signature->use) != (size_t)instr->nbuf && law(Lsig_operands))
        return "has other operands than its signature";
    for (int i = 0; i < instr->nbuf; i++) {
        if ((signature->use[i] == '-') != (instr->buf[i] < 0) &&
            law(Lsig_operands))
            return "has other operands than its signature";
        if (instr->buf[i] >= 0 &&
            operand_bytes(&signature->op[i]) > bytes_of(place, i) &&
            law(Lsig_bounds))
            return strf(place->c->arena, "goes beyond '%s'",
                        place->c->r->buf[instr->buf[i]].name);
    }
    return NULL;
}

static const char *rows_call_wrong(const At *place)
{
    const KernelSignature *signature = &place->c->p->sig[place->s->rows.sig];
    KernelSignature want = *signature;
    declare_rows(place->c->arena, place->s, ranks_of(place), &want);
    set_signature_hash(&want);
    return want.hash != signature->hash && law(Lrows_sig)
               ? "calls a kernel of other rows"
               : NULL;
}

/* Rows of a rank's tokens, blocks of all ranks, and a map of both. */
static const char *rows_wrong(const At *place)
{
    const RowsArgs *args = &place->s->rows;
    int64_t ranks = ranks_of(place),
            tokens = sat_mul(args->tokens, args->width);
    int64_t blocks = sat_mul(sat_mul(ranks, args->pair), args->width);
    if (sat_mul(rows_map(args, ranks).n, 4) >
            bytes_of(place, OPERAND(sendrows, map)) &&
        law(Lrows_map))
        return "goes beyond its map";
    const char *why = args->sig < 0 ? NULL : call_wrong(place);
    if (args->sig < 0 && args->hash && law(Lsig_hash))
        why = "has the hash of no signature";
    else if (args->sig >= 0 && !why)
        why = rows_call_wrong(place);
    if (why)
        return why;
    return place->s->kind == Isendrows ? comm_fits(place, tokens, blocks)
                                       : comm_fits(place, blocks, tokens);
}

static const char *ppermute_wrong(const At *place)
{
    const PpermuteArgs *args = &place->s->ppermute;
    if ((args->by < 1 || args->by >= ranks_of(place)) && law(Lppermute_by))
        return "turns to no other rank";
    return comm_fits(place, args->n, args->n);
}

/* peer: a position over the atoms, not its own. */
static const char *transfer_wrong(const At *place)
{
    const Mesh *m = place->c->p->mesh;
    const TransferArgs *args = &place->s->transfer;
    if (sat_mul(args->n, dtypes[args->dt].bytes) > bytes_of(place, 0) &&
        law(Lmove_bounds))
        return "goes beyond its buffer";
    if ((!place->s->atoms || place->s->atoms != m->mask[Mpp] ||
         args->peer >= m->size[Mpp]) &&
        law(Lmove_peer))
        return "has no peer";
    if (place->c->p->nrole > 1 && args->peer == place->c->role &&
        law(Lmove_self))
        return "is for its own stage";
    return NULL;
}

/* Is the next gap [from, to), if there is one? Then it is taken. */
static int takes_gap(const GapList *list, int *next, int64_t from, int64_t to)
{
    if (from == to)
        return 1;
    if (*next >= list->n)
        return 0;
    const Gap *gap = &list->at[(*next)++];
    return gap->from == from && gap->bytes == to - from;
}

/* Parts and gaps, in this order, are all of the whole. */
static const char *join_wrong(const At *place)
{
    const Instr *instr = place->s;
    const Buf *buf = place->c->r->buf;
    int64_t at = 0;
    int next = 0;
    const Buf *all = &buf[instr->buf[0]];
    for (int k = 1; k < instr->nbuf; k++) {
        const Buf *b = &buf[instr->buf[k]];
        int64_t from = b->offset - all->offset;
        if ((b->frame || all->frame || b->prog < 0 || from < at ||
             b->bytes > all->bytes - from) &&
            law(Ljoin_gaps))
            return strf(place->c->arena, "joins '%s', which lies elsewhere",
                        b->name);
        if (!takes_gap(&instr->join.gap, &next, at, from) && law(Ljoin_gaps))
            return "has other gaps than its parts leave";
        at = from + b->bytes;
    }
    return (!takes_gap(&instr->join.gap, &next, at, all->bytes) ||
            next != instr->join.gap.n) &&
                   law(Ljoin_gaps)
               ? "has other gaps than its parts leave"
               : NULL;
}

static const char *copy_wrong(const At *place)
{
    return bytes_of(place, OPERAND(copy, from)) >
                       bytes_of(place, OPERAND(copy, to)) &&
                   law(Lcopy_bounds)
               ? "copies beyond its buffer"
               : NULL;
}

static const char *kind_wrong(const At *place)
{
    const AllreduceArgs *sum = &place->s->allreduce;
    switch (place->s->kind) {
    case Ikernel: return call_wrong(place);
    case Izero: return 0;
    case Ijoin: return join_wrong(place);
    case Icopy: return copy_wrong(place);
    case Igemm: return gemm_wrong(place);
    case Igmm:
    case Igmm_wgrad: return grouped_wrong(place);
    case Iallgather: return allgather_wrong(place);
    case Ireducescatter: return reducescatter_wrong(place);
    case Iallreduce: return comm_fits(place, sum->n, sum->n);
    case Ialltoall: return alltoall_wrong(place);
    case Ippermute: return ppermute_wrong(place);
    case Isendrows:
    case Ireturnrows: return rows_wrong(place);
    case Isend:
    case Irecv:
    case Iwait: return transfer_wrong(place);
    case NINSTR: break;
    }
    return "is of no kind";
}

/* Operands in a stack begin where a map says, others at their place. */
static const char *stacks_wrong(const At *place)
{
    for (int i = 0; i < place->s->nbuf; i++) {
        const Buf *b =
            place->s->buf[i] < 0 ? NULL : &place->c->r->buf[place->s->buf[i]];
        int from = rows_from(place->c->p, place->s, i) >= 0;
        if ((b ? from != (b->stack > 0) || b->cls == Bstash : from) &&
            law(Lstack_rows))
            return strf(place->c->arena,
                        "takes operand %d for what %s in a stack", i,
                        from ? "lies" : "does not lie");
    }
    return NULL;
}

static const char *memories_wrong(const At *place)
{
    const Role *role = place->c->r;
    int copies = place->s->kind == Icopy,
        there = place->s->kind == Ikernel && place->s->launch.host;
    for (int i = 0; i < place->s->nbuf; i++) {
        const Buf *b =
            place->s->buf[i] < 0 ? NULL : &role->buf[place->s->buf[i]];
        if (b && there && (!in_host(role, b) || b->frame) && law(Lhost_kernels))
            return strf(place->c->arena,
                        "runs on the host and uses '%s', which has no one "
                        "place in its arena",
                        b->name);
        if (b && !there && in_host(role, b) && copies-- < 1 &&
            law(Lhost_copies))
            return strf(place->c->arena, "uses '%s' of the host's arena",
                        b->name);
    }
    return NULL;
}

static const char *at_wrong(const At *place)
{
    const Instr *instr = place->s;
    const Mesh *m = place->c->p->mesh;
    const InstrInfo *info = instr_info(instr->kind);
    const char *why;
    if ((why = args_wrong(place->c->arena, instr)) && law(Lfield_range))
        return why;
    if (instr->atoms && info->cls != CLASScollective &&
        info->cls != CLASStransfer && law(Linstr_group))
        return "is no collective and has a group";
    if (m->natom < 32 && instr->atoms >> m->natom && law(Linstr_atoms))
        return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < instr->nbuf; i++)
        if ((why = alive(place, i)))
            return why;
    why = kind_wrong(place);
    why = why ? why : memories_wrong(place);
    return why ? why : stacks_wrong(place);
}

const char *instr_wrong(const PlanCheck *check, int prog, int instr)
{
    const Program *g = &check->r->prog[prog];
    At x = { check, &g->instr[instr], prog, instr };
    const char *why = at_wrong(&x);
    return why ? instr_told(check, g, instr, why) : NULL;
}
