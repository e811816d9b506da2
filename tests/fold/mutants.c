/* mutants.c: one kind of damage a function. Each changes one fact of a plan as
 * a compiler's bug might; lives and phases are kept in step with what is
 * dropped or doubled, so that only the fact itself can give it away. */
#include <string.h>

#include "mutants.h"

static uint64_t next(Mutant *m)
{
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return m->seed >> 33;
}

int below(Mutant *m, int n)
{
    return n > 0 ? (int)(next(m) % (uint64_t)n) : 0;
}

/* ---- choosing ------------------------------------------------------------ */

static Role *some_role(Mutant *m)
{
    return &m->p->role[below(m, m->p->nrole)];
}

typedef struct Assignment {
    Role *r;
    Program *g;
    int i;
} Assignment;
typedef int (*Wanted)(const Mutant *m, const Assignment *x);

static Instr *step_at(const Assignment *x)
{
    return &x->g->instr[x->i];
}

/* A random step of a random role that is wanted; g null: none. */
static Assignment some_step(Mutant *m, Wanted f)
{
    Assignment *v = NULL;
    Role *r = some_role(m);

    for (int k = 0; k < r->nprog; k++)
        for (int i = 0; i < r->prog[k].ninstr; i++) {
            Assignment x = { r, &r->prog[k], i };
            if (f(m, &x))
                vec_push(m->arena, v, x);
        }
    return v ? v[below(m, (int)vec_len(v))] : (Assignment){ 0 };
}

static int is_coll(const Mutant *m, const Assignment *x)
{
    (void)m;
    return instr_info(step_at(x)->kind)->cls == CLASScollective;
}

static int is_reduction(const Mutant *m, const Assignment *x)
{
    InstrKind k = step_at(x)->kind;
    (void)m;
    return k == Ireducescatter || k == Iallreduce;
}

static int is_move(const Mutant *m, const Assignment *x)
{
    (void)m;
    return instr_info(step_at(x)->kind)->cls == CLASStransfer;
}

static int is_gemm(const Mutant *m, const Assignment *x)
{
    (void)m;
    return step_at(x)->kind == Igemm;
}

static int is_grouped(const Mutant *m, const Assignment *x)
{
    (void)m;
    return step_at(x)->kind == Igmm || step_at(x)->kind == Igmm_wgrad;
}

static int is_kernel(const Mutant *m, const Assignment *x)
{
    (void)m;
    return step_at(x)->kind == Ikernel;
}

static int is_zero(const Mutant *m, const Assignment *x)
{
    (void)m;
    return step_at(x)->kind == Izero;
}

static int any_step(const Mutant *m, const Assignment *x)
{
    (void)m, (void)x;
    return 1;
}

/* Writes a parameter, moment or state. */
static int is_update(const Mutant *m, const Assignment *x)
{
    const Instr *s = step_at(x);
    (void)m;
    for (int i = 0; i < s->nbuf; i++)
        if (s->buf[i] >= 0 && x->r->buf[s->buf[i]].cls <= Boptim &&
            s->flow[i].make)
            return 1;
    return 0;
}

/* Makes a term of a sum over ranks. */
static int is_partial(const Mutant *m, const Assignment *x)
{
    const Instr *s = step_at(x);
    (void)m;
    for (int i = 0; i < s->nbuf; i++)
        if (s->flow[i].part[0])
            return 1;
    return 0;
}

/* ---- steps come and go --------------------------------------------------- */

static int phase_of(const Program *g, int i)
{
    int f = 0;
    while (i >= g->phase[f].first + g->phase[f].n)
        f++;
    return f;
}

static void shift(const Assignment *x, int by)
{
    int prog = (int)(x->g - x->r->prog), f = phase_of(x->g, x->i);
    for (int b = 0; b < x->r->nbuf; b++) {
        Buf *u = &x->r->buf[b];
        if (u->prog != prog)
            continue;
        u->born += u->born > x->i ? by : 0;
        u->dies +=
            u->dies > x->i || (u->dies == x->i && by < 0 && u->born < u->dies)
                ? by
                : 0;
    }
    x->g->phase[f].n += by;
    for (f++; f < x->g->nphase; f++)
        x->g->phase[f].first += by;
}

static int drop(const Assignment *x)
{
    Program *g = x->g;
    if (!g)
        return 0;
    shift(x, -1);
    g->ninstr--;
    memmove(g->instr + x->i, g->instr + x->i + 1,
            sizeof *g->instr * (size_t)(g->ninstr - x->i));
    return 1;
}

static int twice(Mutant *m, const Assignment *x)
{
    Program *g = x->g;
    if (!g)
        return 0;
    Instr *v = alloc(m->arena, sizeof *v * (size_t)(g->ninstr + 1));
    memcpy(v, g->instr, sizeof *v * (size_t)(x->i + 1));
    memcpy(v + x->i + 1, g->instr + x->i,
           sizeof *v * (size_t)(g->ninstr - x->i));
    shift(x, 1);
    g->instr = v;
    g->ninstr++;
    return 1;
}

/* With the next one that is wanted of the same phase. */
static int swap(Mutant *m, Wanted f)
{
    Assignment x = some_step(m, f), y = x;
    if (!x.g)
        return 0;
    do
        y.i++;
    while (y.i < x.g->ninstr && !f(m, &y));
    if (y.i == x.g->ninstr)
        return 0;
    Instr t = *step_at(&x);
    *step_at(&x) = *step_at(&y);
    *step_at(&y) = t;
    return 1;
}

#define STEPS(name, f)                  \
    static int drop_##name(Mutant *m)   \
    {                                   \
        Assignment x = some_step(m, f); \
        return drop(&x);                \
    }                                   \
    static int double_##name(Mutant *m) \
    {                                   \
        Assignment x = some_step(m, f); \
        return twice(m, &x);            \
    }                                   \
    static int swap_##name(Mutant *m)   \
    {                                   \
        return swap(m, f);              \
    }

STEPS(collective, is_coll)
STEPS(transfer, is_move)
STEPS(step, any_step)
STEPS(zero, is_zero)

static int drop_update(Mutant *m)
{
    Assignment x = some_step(m, is_update);
    return drop(&x);
}

/* ---- arguments ----------------------------------------------------------- */

/* A field of some instruction becomes one of n, and another. */
static int choose(Mutant *m, Wanted f, FieldType type, int n)
{
    Assignment x = some_step(m, f);
    void **v = x.g ? args_of(m, step_at(&x), type) : NULL;
    int *at = v ? v[below(m, (int)vec_len(v))] : NULL;
    int was = at ? *at : 0;
    return at && (*at = below(m, n)) != was;
}

static int coll_atoms(Mutant *m)
{
    Assignment x = some_step(m, is_coll);
    uint32_t to = 1 + (uint32_t)below(m, (1 << m->p->mesh->natom) - 1);
    if (!x.g || step_at(&x)->atoms == to)
        return 0;
    step_at(&x)->atoms = to;
    return 1;
}

/* A group that has the right one in it. */
static int coll_more(Mutant *m)
{
    Assignment x = some_step(m, is_coll);
    uint32_t more = 1u << below(m, m->p->mesh->natom);
    if (!x.g || step_at(&x)->atoms & more)
        return 0;
    step_at(&x)->atoms |= more;
    return 1;
}

static int64_t another(Mutant *m, int64_t was)
{
    static const int64_t by[] = { -1, 1, 2, -8, 8 };
    return below(m, 3)   ? was + by[below(m, 5)]
           : below(m, 2) ? 2 * was
                         : was / 2;
}

static int vary(Mutant *m, Wanted f)
{
    Assignment x = some_step(m, f);
    void **v = x.g ? args_of(m, step_at(&x), FIELDint) : NULL;
    int64_t *at = v ? v[below(m, (int)vec_len(v))] : NULL;
    int64_t was = at ? *at : 0;
    return at && (*at = another(m, was)) != was;
}

static int coll_count(Mutant *m)
{
    return vary(m, is_coll);
}
static int coll_dtype(Mutant *m)
{
    return choose(m, is_coll, FIELDdtype, NDTYPE);
}
static int coll_op(Mutant *m)
{
    return choose(m, is_reduction, FIELDreduce, Rmin + 1);
}

static int coll_turned(Mutant *m)
{
    Assignment x = some_step(m, is_coll);
    if (!x.g || step_at(&x)->buf[0] == step_at(&x)->buf[1])
        return 0;
    int *b = alloc(m->arena, 3 * sizeof *b);
    memcpy(b, step_at(&x)->buf, 3 * sizeof *b);
    int t = b[0];
    b[0] = b[1], b[1] = t;
    step_at(&x)->buf = b;
    return 1;
}

static int move_peer(Mutant *m)
{
    Assignment x = some_step(m, is_move);
    int64_t to = below(m, (int)m->p->mesh->size[Mpp]);
    if (!x.g || step_at(&x)->transfer.peer == to)
        return 0;
    step_at(&x)->transfer.peer = to;
    return 1;
}

static int move_chan(Mutant *m)
{
    Assignment x = some_step(m, is_move);
    int64_t to = below(m, 12);
    if (!x.g || step_at(&x)->transfer.chan == to)
        return 0;
    step_at(&x)->transfer.chan = to;
    return 1;
}

static int move_dtype(Mutant *m)
{
    return choose(m, is_move, FIELDdtype, NDTYPE);
}

static int move_count(Mutant *m)
{
    Assignment x = some_step(m, is_move);
    int64_t was = x.g ? step_at(&x)->transfer.n : 0;
    return x.g && (step_at(&x)->transfer.n = another(m, was)) != was;
}

static int gemm_sizes(Mutant *m)
{
    return vary(m, is_gemm);
}

/* The sizes of a square matrix do not say which way it is turned, nor does the
 * verifier: those are left out. */
static int has_no_square(const Mutant *m, const Assignment *x)
{
    const GemmArgs *g = &step_at(x)->gemm;
    return is_gemm(m, x) && g->m != g->k && g->n != g->k;
}

static int gemm_flag(Mutant *m)
{
    return choose(m, has_no_square, FIELDflag, 2);
}

static int grouped_sizes(Mutant *m)
{
    return vary(m, is_grouped);
}

static int gemm_dtype(Mutant *m)
{
    return choose(m, is_gemm, FIELDdtype, NDTYPE);
}

/* Another buffer of the same size, alive at the step. */
static int operand(Mutant *m)
{
    Assignment x = some_step(m, any_step);
    if (!x.g)
        return 0;
    Instr *s = step_at(&x);
    int at = below(m, s->nbuf), *ok = NULL, prog = (int)(x.g - x.r->prog);
    for (int b = 0; s->nbuf && s->buf[at] >= 0 && b < x.r->nbuf; b++) {
        const Buf *u = &x.r->buf[b];
        if (b != s->buf[at] && u->bytes == x.r->buf[s->buf[at]].bytes &&
            (u->prog < 0 ||
             (u->prog == prog && u->born <= x.i && u->dies >= x.i)))
            vec_push(m->arena, ok, b);
    }
    if (!ok)
        return 0;
    int *v = alloc(m->arena, sizeof *v * (size_t)s->nbuf);
    memcpy(v, s->buf, sizeof *v * (size_t)s->nbuf);
    v[at] = ok[below(m, (int)vec_len(ok))];
    s->buf = v;
    return 1;
}

/* The number of another signature with as many operands. */
static int another_kernel(Mutant *m)
{
    Assignment x = some_step(m, is_kernel);
    if (!x.g)
        return 0;
    KernelArgs *v = &step_at(&x)->call;
    const char *use = m->p->sig[v->sig].use;
    int64_t was = v->sig, at = below(m, m->p->nsig);
    for (int i = 0; i < m->p->nsig; i++, at = (at + 1) % m->p->nsig)
        if (at != was && strlen(m->p->sig[at].use) == strlen(use))
            v->sig = at;
    return v->sig != was;
}

/* It says that it uses an operand in another way, and its calls repeat it. */
static int use_flag(Mutant *m)
{
    KernelSignature *d = &m->p->sig[below(m, m->p->nsig)];
    char *use = strf(m->arena, "%s", d->use);
    char *at = &use[below(m, (int)strlen(use))], was = *at;
    *at = "rwb"[below(m, 3)];
    d->use = use;
    mutant_sign(m);
    return *at != was && was != '-';
}

/* Two of its operands change places, there and where it is called. */
static int turned(Mutant *m)
{
    KernelSignature *d = &m->p->sig[below(m, m->p->nsig)];
    int n = (int)strlen(d->use), a = below(m, n), b = below(m, n);
    char *use = strf(m->arena, "%s", d->use);
    KernelOperand *op = alloc(m->arena, sizeof *op * (size_t)(n + 1));
    memcpy(op, d->op, sizeof *op * (size_t)n);
    use[a] = d->use[b], use[b] = d->use[a];
    op[a] = d->op[b], op[b] = d->op[a];
    d->use = use, d->op = op;
    mutant_sign(m);
    return a != b;
}

/* Two operands of a call change places. */
static int call_turned(Mutant *m)
{
    Assignment x = some_step(m, is_kernel);
    Instr *s = x.g ? step_at(&x) : NULL;
    if (!s || s->nbuf < 2)
        return 0;
    int a = below(m, s->nbuf), b = below(m, s->nbuf), was = s->buf[a];
    int *v = alloc(m->arena, sizeof *v * (size_t)s->nbuf);
    memcpy(v, s->buf, sizeof *v * (size_t)s->nbuf);
    v[a] = s->buf[b], v[b] = was;
    s->buf = v;
    return v[a] != v[b];
}

/* A sum is said to be over other ranks. */
static int terms(Mutant *m)
{
    Assignment x = some_step(m, is_partial);
    if (!x.g)
        return 0;
    Instr *s = step_at(&x);
    ValueUse *f = alloc(m->arena, sizeof *f * (size_t)s->nbuf);
    memcpy(f, s->flow, sizeof *f * (size_t)s->nbuf);
    int i = 0;
    while (!f[i].part[0])
        i++;
    uint32_t was = f[i].part[0];
    f[i].part[0] = (uint32_t)below(m, 1 << m->p->mesh->natom);
    s->flow = f;
    return f[i].part[0] != was;
}

/* The value that a step made before. */
static int stale(Mutant *m)
{
    Assignment x = some_step(m, any_step);
    if (!x.g)
        return 0;
    Instr *s = step_at(&x);
    ValueUse *f = alloc(m->arena, sizeof *f * (size_t)(s->nbuf + 1));
    memcpy(f, s->flow, sizeof *f * (size_t)s->nbuf);
    for (int i = 0; i < s->nbuf; i++)
        if (f[i].read > 1) {
            f[i].read--;
            s->flow = f;
            return 1;
        }
    return 0;
}

/* ---- tables -------------------------------------------------------------- */

static Program *tabled(Mutant *m)
{
    Role *r = some_role(m);
    Program *g = &r->prog[below(m, r->nprog)];
    return g->nslot > 1 ? g : NULL;
}

static int turn_micro(Mutant *m)
{
    Program *g = tabled(m);
    if (!g)
        return 0;
    ScheduleSlot *t = &g->slot[below(m, g->nslot)];
    int was = t->micro;
    t->micro += below(m, 2) ? 1 : t->micro ? -1 : 2;
    return t->micro != was;
}

static int turn_swap(Mutant *m)
{
    Program *g = tabled(m);
    if (!g)
        return 0;
    int a = below(m, g->nslot), b = below(m, g->nslot);
    ScheduleSlot t = g->slot[a];
    g->slot[a] = g->slot[b], g->slot[b] = t;
    return a != b;
}

/* Two rows of one call, one after the other, change micro-batches. */
static int call_swap(Mutant *m)
{
    Program *g = tabled(m);
    ScheduleSlot *x = g ? &g->slot[below(m, g->nslot)] : NULL, *y = x;
    if (!x)
        return 0;
    do
        y++;
    while (y < g->slot + g->nslot && y->phase != x->phase);
    if (y == g->slot + g->nslot)
        return 0;
    int micro = x->micro;
    x->micro = y->micro, y->micro = micro;
    return 1;
}

static int turn_drop(Mutant *m)
{
    Program *g = tabled(m);
    if (!g)
        return 0;
    int at = below(m, g->nslot);
    memmove(g->slot + at, g->slot + at + 1,
            sizeof *g->slot * (size_t)(--g->nslot - at));
    return 1;
}

static int turn_double(Mutant *m)
{
    Program *g = tabled(m);
    if (!g)
        return 0;
    int at = below(m, g->nslot);
    ScheduleSlot *v = alloc(m->arena, sizeof *v * (size_t)(g->nslot + 1));
    memcpy(v, g->slot, sizeof *v * (size_t)(at + 1));
    memcpy(v + at + 1, g->slot + at, sizeof *v * (size_t)(g->nslot - at));
    g->slot = v;
    g->nslot++;
    return 1;
}

static SlotGroup *some_frame(Mutant *m)
{
    Program *g = tabled(m);
    return g && g->nframe ? &g->frame[below(m, g->nframe)] : NULL;
}

static int64_t offset(Mutant *m)
{
    static const int64_t by[] = { 1, 16, 64, 128, 256, 256, 512, 768 };
    return (below(m, 2) ? 1 : -1) * by[below(m, 8)];
}

static int frame_slot(Mutant *m)
{
    SlotGroup *f = some_frame(m);
    if (!f || !f->nslot)
        return 0;
    f->slot[below(m, f->nslot)] += offset(m);
    return 1;
}

static int frame_of(Mutant *m)
{
    SlotGroup *f = some_frame(m);
    if (!f || f->nslot < 2)
        return 0;
    int *of = &f->of[below(m, f->nof)], was = *of;
    *of = below(m, f->nslot);
    return *of != was;
}

static int frame_bytes(Mutant *m)
{
    SlotGroup *f = some_frame(m);
    if (f)
        f->bytes += offset(m);
    return f != NULL;
}

static int repeat(Mutant *m)
{
    Role *r = some_role(m);
    Program *g = &r->prog[below(m, r->nprog)];
    Phase *f = &g->phase[below(m, g->nphase)];
    int64_t was = f->repeat;
    f->repeat = below(m, 4);
    return f->repeat != was && f->n > 0;
}

static int phase_swap(Mutant *m)
{
    Role *r = some_role(m);
    Program *g = &r->prog[below(m, r->nprog)];
    if (g->nphase < 2)
        return 0;
    int a = below(m, g->nphase - 1);
    Phase t = g->phase[a];
    g->phase[a] = g->phase[a + 1], g->phase[a + 1] = t;
    return 1;
}

/* ---- memory -------------------------------------------------------------- */

static Buf *some_buf(Mutant *m, Role *r)
{
    return &r->buf[below(m, r->nbuf)];
}

static int buf_offset(Mutant *m)
{
    Buf *b = some_buf(m, some_role(m));
    b->offset += offset(m);
    return b->bytes > 0;
}

static int buf_alias(Mutant *m)
{
    Role *r = some_role(m);
    Buf *b = some_buf(m, r), **v = NULL;
    for (int i = 0; i < r->nbuf; i++) {
        Buf *u = &r->buf[i];
        if (u != b && u->prog == b->prog && u->frame == b->frame && u->bytes &&
            b->bytes &&
            (u->prog < 0 || (u->born <= b->dies && b->born <= u->dies)))
            vec_push(m->arena, v, u);
    }
    if (!v)
        return 0;
    b->offset = v[below(m, (int)vec_len(v))]->offset;
    return 1;
}

static int buf_life(Mutant *m)
{
    Buf *b = some_buf(m, some_role(m));
    if (b->prog < 0)
        return 0;
    int by = below(m, 2) ? 1 : -1;
    *(below(m, 2) ? &b->born : &b->dies) += by;
    return 1;
}

static int buf_bytes(Mutant *m)
{
    Buf *b = some_buf(m, some_role(m));
    int64_t was = b->bytes;
    b->bytes = another(m, b->bytes);
    return b->bytes != was && b->cls != Bscratch;
}

static int heights(Mutant *m)
{
    Role *r = some_role(m);
    int64_t *v[] = { &r->arena, &r->persist,
                     &r->prog[below(m, r->nprog)].transient };
    *v[below(m, 3)] += offset(m);
    return 1;
}

static int buf_frame(Mutant *m)
{
    Role *r = some_role(m);
    Buf *b = some_buf(m, r);
    if (b->prog < 0 || !r->prog[b->prog].nframe)
        return 0;
    int was = b->frame;
    b->frame = below(m, r->prog[b->prog].nframe + 1);
    return b->frame != was;
}

/* A moment lies elsewhere in its bucket, or on other ranks. */
static int tensor_place(Mutant *m)
{
    Role *r = some_role(m), *x = r;
    Tensor *t = &r->tensor[below(m, r->ntensor)];
    (void)x;
    if (!t->run)
        return 0;
    if (below(m, 2)) {
        t->run += below(m, 2) ? 64 : -64;
    } else {
        uint32_t was = t->shard;
        t->shard = (uint32_t)below(m, 1 << m->p->mesh->natom);
        return t->shard != was;
    }
    return 1;
}

static int tensor_buf(Mutant *m)
{
    Role *r = some_role(m);
    Tensor *t = &r->tensor[below(m, r->ntensor)];
    int was = t->buf;
    t->buf = below(m, r->nbuf);
    return t->buf != was;
}

static int scalar_buf(Mutant *m)
{
    Role *r = some_role(m);
    int in = below(m, 2);
    Scalar *s = in ? &r->in[below(m, r->nin)] : &r->out[below(m, r->nout)];
    int was = s->buf;
    if (in ? !r->nin : !r->nout)
        return 0;
    s->buf = below(m, r->nbuf);
    return s->buf != was;
}

static int end_value(Mutant *m)
{
    Role *r = some_role(m);
    Program *g = &r->prog[below(m, r->nprog)];
    if (!g->nend)
        return 0;
    int at = below(m, g->nend);
    if (below(m, 2)) {
        g->end[at] = g->end[--g->nend];
    } else {
        g->end[at].value++;
    }
    return 1;
}

/* clang-format off */
const MutantKind mutantkinds[] = {
    {"drop a collective", drop_collective},
    {"a collective twice", double_collective},
    {"swap collectives", swap_collective},
    {"collective: other ranks", coll_atoms},
    {"collective: more ranks", coll_more},
    {"collective: count", coll_count},
    {"collective: dtype", coll_dtype},
    {"collective: reduction", coll_op},
    {"collective: operands turned", coll_turned},
    {"drop a transfer", drop_transfer},
    {"a transfer twice", double_transfer},
    {"swap transfers", swap_transfer},
    {"transfer: peer", move_peer},
    {"transfer: channel", move_chan},
    {"transfer: count", move_count},
    {"transfer: dtype", move_dtype},
    {"drop a step", drop_step},
    {"a step twice", double_step},
    {"swap neighbours", swap_step},
    {"drop a clear", drop_zero},
    {"a clear twice", double_zero},
    {"swap clears", swap_zero},
    {"drop an update", drop_update},
    {"another operand", operand},
    {"another kernel", another_kernel},
    {"kernel: operands turned", call_turned},
    {"signature: operands turned", turned},
    {"signature: uses", use_flag},
    {"terms of a sum", terms},
    {"another value", stale},
    {"product: sizes", gemm_sizes},
    {"product: flags", gemm_flag},
    {"product: dtype", gemm_dtype},
    {"grouped product: sizes", grouped_sizes},
    {"row: micro-batch", turn_micro},
    {"swap rows", turn_swap},
    {"swap micro-batches of a call", call_swap},
    {"drop a row", turn_drop},
    {"a row twice", turn_double},
    {"frame: slot", frame_slot},
    {"frame: micro-batch's slot", frame_of},
    {"frame: bytes", frame_bytes},
    {"phase: repeats", repeat},
    {"swap phases", phase_swap},
    {"buffer: place", buf_offset},
    {"buffer: another's place", buf_alias},
    {"buffer: life", buf_life},
    {"buffer: bytes", buf_bytes},
    {"buffer: frame", buf_frame},
    {"heights", heights},
    {"tensor: part of a bucket", tensor_place},
    {"tensor: buffer", tensor_buf},
    {"scalar: buffer", scalar_buf},
    {"end: value", end_value},
    {NULL, NULL},
};
/* clang-format on */
