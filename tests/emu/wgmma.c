/* wgmma.c: products of warpgroups (PTX ISA, wgmma). A product that all 128
 * threads have asked for is made between that and the first wait for it; until
 * a thread's own wait its accumulators are poison. Operands in shared memory
 * are found by their descriptors, one in registers is read from the variables
 * when the product is made. Sums are fp32. */
#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 128, ROWS = 64, MAXN = 256, MAXK = 32, MAXOPEN = 64, AREGS = 4 };

/* ---- types --------------------------------------------------------------- */

static float from_f16(uint32_t h)
{
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    float x = e == 0    ? ldexpf((float)m, -24)
              : e == 31 ? (m ? NAN : INFINITY)
                        : ldexpf((float)(m + 1024), e - 25);

    return h >> 15 ? -x : x;
}

static float from_bf16(uint32_t h)
{
    return wide_bf16((uint16_t)h);
}

static float from_e4m3(uint32_t h)
{
    int e = (int)(h >> 3 & 15), m = (int)(h & 7);
    float x = e == 15 && m == 7 ? NAN
              : e == 0          ? ldexpf((float)m, -9)
                                : ldexpf((float)(m + 8), e - 10);

    return h >> 7 ? -x : x;
}

static float from_e5m2(uint32_t h)
{
    return from_f16(h << 8);
}

/* What a product may be of: both operands alike, K elements of 256 bits. */
static const struct Elements {
    Type type;
    int bytes;
    float (*value)(uint32_t);
} elements[] = {
    { Tbf16, 2, from_bf16 },
    { Tf16, 2, from_f16 },
    { Te4m3, 1, from_e4m3 },
    { Te5m2, 1, from_e5m2 },
};

static const struct Elements *elements_of(Type t)
{
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        if (elements[i].type == t)
            return &elements[i];
    return NULL;
}

/* d, a, b, scale-d, +-1, +-1 (, turned a, turned b): a in registers has no
 * "turned a", 8-bit types have neither. */
const char *check_wgmma(const Insn *i)
{
    const struct Elements *a = elements_of(i->type[1]);
    const struct Elements *b = elements_of(i->type[2]);
    int n = i->shape[1], in_regs = i->o[1].kind == Kvec;

    if (i->ntype != 3 || i->type[0] != Tf32 || !a || !b)
        return "types that are not known";
    if (a->bytes != b->bytes || (a->bytes == 2 && a != b))
        return "operands of two types";
    if (i->shape[0] != ROWS || n % 8 || n < 8 || n > MAXN ||
        i->shape[2] != 32 / a->bytes)
        return "a shape that is not possible";
    if (i->o[0].kind != Kvec || i->o[0].n != n / 2)
        return "another number of accumulators than its shape has";
    if (in_regs && i->o[1].n != AREGS)
        return "four registers of a";
    if (i->n != (a->bytes == 1 ? 6 : in_regs ? 7 : 8))
        return "another number of operands";
    return NULL;
}

/* ---- what is under way --------------------------------------------------- */

typedef struct Acc { /* sums between the first product and the wait */
    float v[ROWS][MAXN];
    int users; /* threads that have not taken theirs, of all products */
} Acc;

typedef struct Mma {
    const Insn *insn;
    int joined, left, made; /* threads that asked, took; is it made? */
    int chained;            /* goes on with the sums of the product before it
                               that had the same accumulators */
    Acc *acc;
    uint64_t a, b; /* descriptors */
    int fresh, turna, turnb;
    float sign;
    unsigned fence; /* of the thread that fenced first */
    const void *areg[GROUP][AREGS];
    uint32_t abits[GROUP][AREGS];
    void *d[GROUP][MAXN / 2];
} Mma;

typedef struct Lane { /* a thread's place in what is under way */
    unsigned issued, committed, taken; /* products */
    unsigned group[MAXOPEN], ngroup;   /* ends of groups not waited for */
    int fenced;
} Lane;

typedef struct Wg {
    StepValues *b;
    Thread *thread;
    unsigned first, next; /* numbers of the oldest and of the next product */
    int used;
    Mma *open[MAXOPEN];
    Lane lane[GROUP];
} Wg;

static Mma *mma_at(Wg *g, unsigned k)
{
    return g->open[k % MAXOPEN];
}

static Wg *group_of(SlotGroup *f, int *lane)
{
    Thread *t = f->t;
    int k = t->id / GROUP;

    if ((k + 1) * GROUP > t->b->nthread)
        fail(EFAILED, "a warpgroup of less than 128 threads");
    *lane = t->id % GROUP;
    t->b->wg[k]->used = 1;
    return t->b->wg[k];
}

void wgmma_start(StepValues *b)
{
    for (int k = 0; k < b->nthread / GROUP; k++) {
        Wg *g = b->wg[k];
        if (!g)
            g = b->wg[k] = calloc(1, sizeof *g);
        for (unsigned i = g->first; i != g->next; i++) {
            Mma *m = mma_at(g, i); /* of a launch that failed */
            if (m->chained == 0)
                free(m->acc);
            free(m);
        }
        g->b = b;
        g->thread = b->thread + k * GROUP;
        g->first = g->next = 0;
        if (g->used)
            memset(g->lane, 0, sizeof g->lane);
        g->used = 0;
    }
}

void wgmma_over(StepValues *b)
{
    for (int k = 0; k < b->nthread / GROUP; k++)
        if (b->wg[k]->first != b->wg[k]->next)
            fail(EFAILED, "a block ends while its products are under way");
}

/* ---- operands ------------------------------------------------------------ */

typedef struct Desc { /* PTX ISA, matrix descriptor */
    uint32_t start, leading, stride, base;
    uint32_t mask; /* of the swizzle: 16-byte pieces in its rows, less one */
} Desc;

static Desc read_desc(uint64_t v)
{
    static const uint32_t mask[4] = { 0, 7, 3, 1 };

    return (Desc){ .start = (uint32_t)(v & 0x3fff) << 4,
                   .leading = (uint32_t)(v >> 16 & 0x3fff) << 4,
                   .stride = (uint32_t)(v >> 32 & 0x3fff) << 4,
                   .base = (uint32_t)(v >> 49 & 7),
                   .mask = mask[v >> 62] };
}

/* The 16 bytes at a place of the matrix as it is without swizzle. Rows of the
 * swizzle's pattern are 128 bytes, counted from `base`. */
static void piece(const Wg *g, const Mma *m, const Desc *d, uint32_t at,
                  uint8_t to[16])
{
    at ^= (((at >> 7) - d->base) & d->mask) << 4;
    shared_bytes(g->thread, at, 16, NULL);
    proxy_reads(g->b, at, 16, m->fence, to);
}

/* Row r of 32 bytes along k, two pieces: c is which. Groups of eight rows are
 * `stride` apart; without swizzle a piece's neighbour is `leading` away. */
static uint32_t along_k(const Desc *d, uint32_t r, uint32_t c)
{
    uint32_t pitch = 16 * (d->mask + 1);

    return d->start + r % 8 * pitch + r / 8 * d->stride +
           c * (d->mask ? 16 : d->leading);
}

/* Eight elements of 16 bits from row 8 c on, at place k of the other axis. Of a
 * swizzled matrix rows of `pitch` bytes lie one behind the other, in groups of
 * eight `stride` apart, and further rows `leading` away; without swizzle eights
 * of k are `leading` apart and pieces `stride`. */
static uint32_t along_rows(const Desc *d, uint32_t k, uint32_t c)
{
    uint32_t wide = d->mask + 1, pitch = 16 * wide;

    if (!d->mask)
        return d->start + k % 8 * 16 + k / 8 * d->leading + c * d->stride;
    return d->start + k % 8 * pitch + k / 8 * d->stride + c % wide * 16 +
           c / wide * d->leading;
}

static uint32_t element_at(const uint8_t *p, int i, int bytes)
{
    return bytes == 1 ? p[i] : p[2 * i] | (uint32_t)p[2 * i + 1] << 8;
}

/* x[k][r] of n rows, from shared memory. */
static void read_matrix(const Wg *g, const Mma *m, uint64_t desc, int turned,
                        Type type, int n, float (*x)[MAXN])
{
    const struct Elements *e = elements_of(type);
    int each = 16 / e->bytes, K = 32 / e->bytes;
    Desc d = read_desc(desc);
    uint8_t p[16];

    if (!turned) {
        for (int r = 0; r < n; r++)
            for (int c = 0; c < 2; c++) {
                piece(g, m, &d, along_k(&d, (uint32_t)r, (uint32_t)c), p);
                for (int i = 0; i < each; i++)
                    x[c * each + i][r] = e->value(element_at(p, i, e->bytes));
            }
        return;
    }
    for (int k = 0; k < K; k++)
        for (int c = 0; c < n / 8; c++) {
            piece(g, m, &d, along_rows(&d, (uint32_t)k, (uint32_t)c), p);
            for (int i = 0; i < 8; i++)
                x[k][c * 8 + i] = e->value(element_at(p, i, 2));
        }
}

/* Register q of lane l: row l / 4 of its warp's 16 (+ 8: odd q), 4 bytes from
 * column l % 4 of the first or second half (q >> 1) of k. */
static void read_registers(const Mma *m, Type type, float (*x)[MAXN])
{
    const struct Elements *e = elements_of(type);
    int each = 4 / e->bytes;

    for (int t = 0; t < GROUP; t++)
        for (int q = 0; q < AREGS; q++) {
            uint32_t v = m->abits[t][q];
            int l = t % WARP, row = t / WARP * 16 + l / 4 + (q & 1) * 8;
            int k = (q >> 1) * 4 * each + l % 4 * each;
            if (m->areg[t][q])
                memcpy(&v, m->areg[t][q], sizeof v);
            for (int i = 0; i < each; i++)
                x[k + i][row] = e->value(v >> 8 * e->bytes * i &
                                         (e->bytes == 1 ? 0xff : 0xffff));
        }
}

/* ---- the product --------------------------------------------------------- */

typedef float Eight __attribute__((vector_size(32), aligned(4)));

/* Sums over k in order, each rounded to fp32. */
static void multiply(Acc *acc, float (*a)[MAXN], float (*b)[MAXN], int K, int n,
                     float sign)
{
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < K; k++) {
            Eight x = a[k][r] * sign - (Eight){ 0 };
            const Eight *y = (const Eight *)(const void *)b[k];
            Eight *to = (Eight *)(void *)acc->v[r];
            for (int j = 0; j < n / 8; j++)
                to[j] += x * y[j];
        }
}

static void make(Wg *g, Mma *m)
{
    static float a[MAXK][MAXN], b[MAXK][MAXN];
    const Insn *i = m->insn;
    int n = i->shape[1];

    if (i->o[1].kind == Kvec)
        read_registers(m, i->type[1], a);
    else
        read_matrix(g, m, m->a, m->turna, i->type[1], ROWS, a);
    read_matrix(g, m, m->b, m->turnb, i->type[2], n, b);
    if (m->fresh)
        memset(m->acc->v, 0, sizeof m->acc->v);
    multiply(m->acc, a, b, i->shape[2], n, m->sign);
    m->made = 1;
}

/* Products are made in order, all that one needs before it. */
static void make_up_to(Wg *g, unsigned number)
{
    for (unsigned k = g->first; k <= number; k++)
        if (!mma_at(g, k)->made)
            make(g, mma_at(g, k));
}

/* Where a thread's element of an accumulator is: see the PTX ISA's figure of
 * wgmma's D. */
static float *element_of(Acc *acc, int lane, int i)
{
    int l = lane % WARP, row = lane / WARP * 16 + l / 4 + (i >> 1 & 1) * 8;

    return &acc->v[row][(i >> 2) * 8 + l % 4 * 2 + (i & 1)];
}

/* ---- asking for one ------------------------------------------------------ */

/* The product under way that a thread's new one goes on with, by its first
 * accumulator, or null. */
static Mma *chain_of(Wg *g, int lane, const void *d)
{
    const Lane *l = &g->lane[lane];

    for (unsigned k = l->issued; k-- > l->taken;)
        if (mma_at(g, k)->d[lane][0] == d)
            return mma_at(g, k);
    return NULL;
}

static Mma *new_mma(Wg *g, const Insn *i, const Mma *before)
{
    Mma *m = calloc(1, sizeof *m);

    if (g->next - g->first == MAXOPEN)
        fail(EFAILED, "more than %d products under way", MAXOPEN);
    m->insn = i;
    m->left = GROUP;
    m->fence = ~0u;
    m->chained = before != NULL;
    m->acc = before ? before->acc : calloc(1, sizeof *m->acc);
    m->acc->users += GROUP;
    g->open[g->next++ % MAXOPEN] = m;
    return m;
}

static float sign_of(SlotGroup *f, const Operand *o)
{
    int64_t v = get_int(f, o, Ts32);

    if (v != 1 && v != -1)
        fail(EILLEGALINSTRUCTION, "a factor of %lld", (long long)v);
    return (float)v;
}

/* What all threads have to say alike. */
static Mma said(SlotGroup *f, const Insn *i)
{
    int in_regs = i->o[1].kind == Kvec;
    Mma m = { 0 };

    m.a = in_regs ? 0 : get_value(f, &i->o[1]);
    m.b = get_value(f, &i->o[2]);
    m.fresh = !get_value(f, &i->o[3]);
    m.sign = sign_of(f, &i->o[4]) * sign_of(f, &i->o[5]);
    if (i->n > 6)
        m.turnb = (int)get_value(f, &i->o[i->n - 1]);
    if (i->n > 7)
        m.turna = (int)get_value(f, &i->o[6]);
    return m;
}

static void *variable(const SlotGroup *f, const Operand *o)
{
    return o->kind == Karg ? f->arg[o->i].at : NULL;
}

static void take_registers(SlotGroup *f, const Insn *i, Mma *m, int lane)
{
    for (int q = 0; q < AREGS && i->o[1].kind == Kvec; q++) {
        m->areg[lane][q] = variable(f, &i->o[1].part[q]);
        m->abits[lane][q] = (uint32_t)get_value(f, &i->o[1].part[q]);
    }
}

/* A thread's sums go in, and poison where they were. */
static void take_sums(SlotGroup *f, const Insn *i, Mma *m, int lane)
{
    for (int k = 0; k < i->shape[1] / 2; k++) {
        void *at = variable(f, &i->o[0].part[k]);
        if (!at)
            fail(EILLEGALINSTRUCTION, "an accumulator that is no variable");
        m->d[lane][k] = at;
        if (!m->chained)
            memcpy(element_of(m->acc, lane, k), at, 4);
        memset(at, 0xff, 4);
    }
}

static void join(Mma *m, const Mma *s, const Insn *i, const Mma *before)
{
    if (m->joined == 0) {
        m->a = s->a, m->b = s->b;
        m->fresh = s->fresh, m->sign = s->sign;
        m->turna = s->turna, m->turnb = s->turnb;
    }
    if (m->insn != i || m->a != s->a || m->b != s->b || m->fresh != s->fresh ||
        m->sign != s->sign || m->turna != s->turna || m->turnb != s->turnb)
        fail(EFAILED, "threads of a warpgroup ask for different products");
    if ((before != NULL) != m->chained || (before && before->acc != m->acc))
        fail(EFAILED, "threads of a warpgroup sum in different places");
    if (before && before->insn->shape[1] != i->shape[1])
        fail(EFAILED, "accumulators of a product of another shape under way");
    m->joined++;
}

void run_wgmma(SlotGroup *f, const Insn *i)
{
    int lane;
    Wg *g = group_of(f, &lane);
    Lane *l = &g->lane[lane];
    const Mma s = said(f, i);
    Mma *before = chain_of(g, lane, variable(f, &i->o[0].part[0]));
    unsigned fence = proxy_fence_of(f->t);

    if (!l->fenced)
        fail(EFAILED, "no wgmma.fence since registers could be used");
    Mma *m =
        l->issued == g->next ? new_mma(g, i, before) : mma_at(g, l->issued);
    join(m, &s, i, before);
    take_registers(f, i, m, lane);
    take_sums(f, i, m, lane);
    m->fence = fence < m->fence ? fence : m->fence;
    l->issued++;
    if (m->joined < GROUP)
        return;
    if (machine.order == 1 || (machine.order > 1 && chance() % 3 == 0))
        make_up_to(g, l->issued - 1);
    wake(m);
}

/* ---- waiting ------------------------------------------------------------- */

void run_wgmma_fence(SlotGroup *f, const Insn *i)
{
    int lane;

    (void)i;
    group_of(f, &lane)->lane[lane].fenced = 1;
}

void run_wgmma_commit(SlotGroup *f, const Insn *i)
{
    int lane;
    Lane *l = &group_of(f, &lane)->lane[lane];

    (void)i;
    if (l->ngroup == MAXOPEN)
        fail(EFAILED, "more than %d groups under way", MAXOPEN);
    l->group[l->ngroup++] = l->issued;
    l->committed = l->issued;
}

/* A thread's sums come back, if no product under way goes on with them. */
static void give_sums(Wg *g, Mma *m, unsigned number, int lane)
{
    const Lane *l = &g->lane[lane];
    int goes_on = 0;

    for (unsigned k = number + 1; k < l->issued; k++)
        goes_on |= mma_at(g, k)->acc == m->acc;
    for (int k = 0; k < m->insn->shape[1] / 2 && !goes_on; k++)
        memcpy(m->d[lane][k], element_of(m->acc, lane, k), 4);
}

static void release(Wg *g)
{
    while (g->first != g->next && mma_at(g, g->first)->left == 0) {
        Mma *m = mma_at(g, g->first++);
        if ((m->acc->users -= GROUP) == 0)
            free(m->acc);
        free(m);
    }
}

void run_wgmma_wait(SlotGroup *f, const Insn *i)
{
    int lane;
    Wg *g = group_of(f, &lane);
    Lane *l = &g->lane[lane];
    unsigned may = (unsigned)get_value(f, &i->o[0]);

    if (may > 7)
        fail(EILLEGALINSTRUCTION, "%u groups", may);
    if (l->ngroup <= may)
        return;
    unsigned done = l->ngroup - may, end = l->group[done - 1];
    while (l->taken < end) {
        Mma *m = mma_at(g, l->taken);
        while (m->joined < GROUP)
            wait_on(f->t, m);
        make_up_to(g, l->taken);
        give_sums(g, m, l->taken, lane);
        m->left--;
        l->taken++;
    }
    l->ngroup -= done;
    memmove(l->group, l->group + done, l->ngroup * sizeof *l->group);
    l->fenced = 0;
    release(g);
}
