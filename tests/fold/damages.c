/* damages.c: see damages.h. */
#include <string.h>

#include "damages.h"

/* Some step of a kind, of some program of some stage. */
static Instr *step_of(Mutant *m, InstrKind k)
{
    Role *r = &m->p->role[below(m, m->p->nrole)];
    Program *g = &r->prog[below(m, r->nprog)];
    Instr *s = g->ninstr ? &g->instr[below(m, g->ninstr)] : NULL;
    return s && s->kind == k ? s : NULL;
}

int beside_its_stack(Mutant *m)
{
    Role *r = &m->p->role[0];
    int i = 0;
    while (i < r->nbuf && !r->buf[i].stack)
        i++;
    if (i < r->nbuf)
        r->buf[i].offset += BUFALIGN;
    return i < r->nbuf;
}

/* Some signature with an operand in a stack; that one in *at. */
static KernelSignature *with_stack(Mutant *m, int *at)
{
    for (int k = below(m, m->p->nsig); k < m->p->nsig; k++)
        for (*at = 0; m->p->sig[k].use[*at]; ++*at)
            if (m->p->sig[k].op[*at].base)
                return &m->p->sig[k];
    return NULL;
}

/* It begins where its own rows say. */
int rows_from_rows(Mutant *m)
{
    int at;
    KernelSignature *d = with_stack(m, &at);
    if (!d)
        return 0;
    d->op[at].base = at + 1;
    return mutant_sign(m);
}

/* Of a kernel that takes rows of a stack, rows that lie in none. */
int rows_in_no_stack(Mutant *m)
{
    int at, to = -1;
    KernelSignature *d = with_stack(m, &at);
    for (int i = 0; d && d->use[i]; i++)
        to = !d->op[i].base && d->op[i].nd > 1 ? i : to;
    if (to < 0)
        return 0;
    d->op[to].base = d->op[at].base;
    return mutant_sign(m);
}

/* Of the step's instructions that have one, some one takes the map of another
 * that stands before it. */
static int takes_map(Mutant *m, int map_of(const Mutant *m, const Instr *s))
{
    Role *r = &m->p->role[0];
    Program *g = &r->prog[role_prog(r, PGstep)];
    Instr **with = NULL;
    for (int i = 0; i < g->ninstr; i++)
        if (map_of(m, &g->instr[i]) >= 0)
            vec_push(m->arena, with, &g->instr[i]);
    int at = 1 + below(m, (int)vec_len(with) - 1), to = below(m, at);
    int i = map_of(m, with[at]), k = map_of(m, with[to]);
    with[at]->buf[i] = with[to]->buf[k];
    with[at]->flow[i] = with[to]->flow[k];
    return 1;
}

static int map_of_rows(const Mutant *m, const Instr *s)
{
    (void)m;
    return s->kind == Igmm && s->gmm.stash ? OPERAND(gmm, map) : -1;
}

int rows_of_another(Mutant *m)
{
    return takes_map(m, map_of_rows);
}

/* The map that a route reads; -1: it is none, or a stack's first. */
static int map_before(const Mutant *m, const Instr *s)
{
    int makes = 0, reads = -1;
    for (int i = 0; i < s->nbuf && s->kind == Ikernel; i++) {
        const ValueUse *f = &s->flow[i];
        const KernelOperand *o = &m->p->sig[s->call.sig].op[i];
        makes |= f->make && m->p->shape[f->shape].map;
        reads = f->read && o->dt == Di32 && o->nd == 1 ? i : reads;
    }
    return makes ? reads : -1;
}

int behind_another(Mutant *m)
{
    return takes_map(m, map_before);
}

int no_items(Mutant *m)
{
    m->p->sig->launch.items = -1;
    return mutant_sign(m);
}

int no_grain(Mutant *m)
{
    m->p->sig->launch.grain = 0;
    return mutant_sign(m);
}

/* The step's first instruction of that kind behind another of it, or null. */
static Instr *next_of(Mutant *m, InstrKind k, const Instr *behind)
{
    Role *r = &m->p->role[0];
    Program *g = &r->prog[role_prog(r, PGstep)];
    int i = behind ? (int)(behind - g->instr) + 1 : 0;
    while (i < g->ninstr && g->instr[i].kind != k)
        i++;
    return i < g->ninstr ? &g->instr[i] : NULL;
}

int sent_as_narrower(Mutant *m)
{
    Instr *s = next_of(m, Isendrows, NULL), *other = s;
    while (other && other->rows.width >= s->rows.width)
        other = next_of(m, Isendrows, other);
    if (!other)
        return 0;
    s->rows.sig = other->rows.sig;
    return mutant_sign(m);
}

static Launch *exchange_launch(Mutant *m)
{
    return &m->p->sig[next_of(m, Isendrows, NULL)->rows.sig].launch;
}

int exchange_alone(Mutant *m)
{
    exchange_launch(m)->peers = 0;
    return mutant_sign(m);
}

int too_many_blocks(Mutant *m)
{
    exchange_launch(m)->items = PEERBLOCKS + 1;
    return mutant_sign(m);
}

int pairs_of_none(Mutant *m)
{
    m->p->sig->launch.pairs = 2;
    return mutant_sign(m);
}

int experts_without_map(Mutant *m)
{
    Instr *s = step_of(m, Igmm);
    if (s)
        s->gmm.stride = 0, s->gmm.experts = 100000;
    return s != NULL;
}

/* An operand less than its calls have. */
int one_less(Mutant *m)
{
    KernelSignature *d = &m->p->sig[below(m, m->p->nsig)];
    size_t n = strlen(d->use);
    d->use = strf(m->arena, "%.*s", (int)n - 1, d->use);
    mutant_sign(m);
    return n > 1;
}

int adds_to_nothing(Mutant *m)
{
    KernelSignature *d = &m->p->sig[below(m, m->p->nsig)];
    vec_push(m->arena, d->word, ((Word){ WORDadd, aff(1), 0 }));
    d->nword++;
    return mutant_sign(m);
}

int no_kernel(Mutant *m)
{
    m->p->sig->kernel = "k_none";
    return mutant_sign(m);
}

int copy_too_much(Mutant *m)
{
    Instr *s = step_of(m, Iallgather);
    if (!s)
        return 0;
    int all = s->buf[1];
    s->buf[1] = s->buf[0], s->buf[0] = all;
    s->kind = Icopy, s->nbuf = 2, s->atoms = 0;
    return 1;
}

int stray_int(Mutant *m)
{
    KernelSignature *d = &m->p->sig[below(m, m->p->nsig)];
    if (!d->nword || d->word[0].type != WORDint)
        return 0;
    d->word[0].at.k[MAXATOM - 1] = 1;
    return mutant_sign(m);
}

int table_of_nothing(Mutant *m)
{
    Program *g = &m->p->role[0].prog[0];
    g->nslot = 1;
    g->slot = alloc(m->arena, sizeof *g->slot);
    return 1;
}

int frame_of_nothing(Mutant *m)
{
    Program *g = &m->p->role[0].prog[0];
    g->nframe = 1;
    g->frame = alloc(m->arena, sizeof *g->frame);
    g->frame->name = "none";
    return 1;
}

/* The last of a bucket. */
static int tensor_less(Role *r, const char *name)
{
    int n = 0;
    for (int i = 0; i < r->ntensor; i++)
        if (strcmp(r->tensor[i].name, name) != 0)
            r->tensor[n++] = r->tensor[i];
    int less = n < r->ntensor;
    r->ntensor = n;
    return less;
}

int member_less(Mutant *m)
{
    Role *r = &m->p->role[0];
    return tensor_less(r, "optim.m.head") + tensor_less(r, "optim.v.head") == 2;
}

/* Its number. */
static int add_shape(Mutant *m, const ValueShape *x)
{
    int n = m->p->nshape++;
    ValueShape *v = alloc(m->arena, sizeof *v * (size_t)(n + 1));
    memcpy(v, m->p->shape, sizeof *v * (size_t)n);
    v[n] = *x;
    m->p->shape = v;
    return n;
}

/* A step makes a value of a kind as it is, with an axis of another name. */
static int renamed(Mutant *m, InstrKind k, int lasts)
{
    Instr *s = step_of(m, k);
    for (int i = 0; s && i < s->nbuf; i++) {
        ValueUse *f = &s->flow[i];
        if (!f->make || !m->p->shape[f->shape].nd ||
            (lasts && m->p->role[0].buf[s->buf[i]].prog >= 0))
            continue;
        ValueShape v = m->p->shape[f->shape];
        v.dim[0].axis = "another";
        f->shape = add_shape(m, &v);
        return 1;
    }
    return 0;
}

/* Two axes change places, and the plan has that shape. */
int output_turned(Mutant *m)
{
    Role *r = &m->p->role[0];
    for (int i = 0; i < r->ntensor; i++) {
        Tensor *t = &r->tensor[i];
        ValueShape v;
        if (t->kind != TKoutput)
            continue;
        PlanDim first = t->dim[1];
        t->dim[1] = t->dim[2], t->dim[2] = first;
        tensor_shape(t, &v);
        add_shape(m, &v);
        return 1;
    }
    return 0;
}

/* Where a program reads buffer `was` it reads another. */
static void read_other(const Program *g, int was, int other)
{
    for (int k = 0; k < g->ninstr; k++)
        for (int i = 0; i < g->instr[k].nbuf; i++) {
            if (g->instr[k].buf[i] != was)
                continue;
            g->instr[k].buf[i] = other;
            g->instr[k].flow[i].read = ~other;
        }
}

/* Both micro-batches of pairs are the first. */
int first_twice(Mutant *m)
{
    const Role *r = &m->p->role[0];
    int seconds = 0;
    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *t = &r->tensor[i];
        seconds += t->second;
        if (t->second)
            read_other(&r->prog[0], t->buf,
                       r->tensor[role_tensor(r, t->name)].buf);
    }
    return seconds;
}

int idle_buffer(Mutant *m)
{
    Role *r = &m->p->role[0];
    Buf *v = alloc(m->arena, sizeof *v * (size_t)(r->nbuf + 1));
    memcpy(v, r->buf, sizeof *v * (size_t)r->nbuf);
    v[r->nbuf++] = (Buf){ .name = "idle", .cls = Btemp, .dt = Df32 };
    r->buf = v;
    return 1;
}

int sum_renamed(Mutant *m)
{
    return renamed(m, Iallreduce, 0);
}

int receipt_renamed(Mutant *m)
{
    return renamed(m, Irecv, 0);
}

int weight_renamed(Mutant *m)
{
    return renamed(m, Ikernel, 1);
}

/* Two programs change places, and what lives in them. */
static void exchange_programs(Role *r, int one, int two)
{
    Program g = r->prog[one];
    r->prog[one] = r->prog[two], r->prog[two] = g;
    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog == one || r->buf[i].prog == two)
            r->buf[i].prog ^= one ^ two;
}

int step_is_fallback(Mutant *m)
{
    Role *r = &m->p->role[0];
    exchange_programs(r, 0, 1);
    ProgramKind k = r->prog[0].kind;
    r->prog[0].kind = r->prog[1].kind, r->prog[1].kind = k;
    return 1;
}

int init_too_early(Mutant *m)
{
    Role *r = &m->p->role[0];
    exchange_programs(r, r->nprog - 2, r->nprog - 1);
    return 1;
}

/* An init without work space of its own comes twice, once as forward. */
int forward_fills(Mutant *m)
{
    Role *r = &m->p->role[0];
    int n = r->nprog++;
    Program *v = alloc(m->arena, sizeof *v * (size_t)(n + 1));
    memcpy(v, r->prog, sizeof *v * (size_t)n);
    v[n] = v[n - 1];
    v[n - 1].kind = PGforward;
    r->prog = v;
    return 1;
}

/* The use that makes a value. */
static ValueUse *maker(const Program *g, int value)
{
    for (int i = 0; i < g->ninstr; i++)
        for (int k = 0; k < g->instr[i].nbuf; k++)
            if (g->instr[i].flow[k].make == value)
                return &g->instr[i].flow[k];
    return NULL;
}

/* What is whole over some ranks is added to terms of a sum over them as if it
 * were one: a square that all have counts in a norm as often as there are. */
int whole_as_term(Mutant *m)
{
    const Program *g = &m->p->role[0].prog[0];
    uint32_t over = 1u << below(m, m->p->mesh->natom);
    ValueUse **whole = NULL;
    for (int i = 0; i < g->ninstr; i++) {
        const Instr *s = &g->instr[i];
        uint32_t terms = 0;
        for (int k = 0; k < s->nbuf; k++)
            terms |= s->flow[k].make ? s->flow[k].part[Radd] : 0;
        for (int k = 0; k < s->nbuf && terms & over; k++) {
            int v = s->flow[k].make ? 0 : s->flow[k].read;
            ValueUse *f = v > 0 ? maker(g, v) : NULL;
            if (f && !(f->part[Radd] & over))
                vec_push(m->arena, whole, f);
        }
    }
    if (whole)
        whole[below(m, (int)vec_len(whole))]->part[Radd] |= over;
    return whole != NULL;
}

int says_nothing(Mutant *m)
{
    Instr *s = step_of(m, Ikernel);
    if (s)
        s->flow = NULL;
    return s != NULL;
}

/* Some buffer of the device lies in the host's arena. */
int into_host(Mutant *m)
{
    Role *r = &m->p->role[0];
    Buf *b = &r->buf[below(m, r->nbuf)];
    if (b->prog < 0 || b->offset >= HOSTSPACE)
        return 0;
    b->offset = HOSTSPACE + r->host;
    r->host += (b->bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
    return 1;
}

/* ---- what stores in the first micro-batch -------------------------------- */

/* An instruction of the step's is to store there; own: what it makes itself. */
static int stores_in(Mutant *m, InstrKind kind, int own)
{
    Role *r = &m->p->role[0];
    Program *g = &r->prog[role_prog(r, PGstep)];
    for (int i = 0; i < g->ninstr; i++)
        for (int k = 0; k < g->instr[i].nbuf; k++) {
            Instr *s = &g->instr[i];
            if (s->kind != kind || s->store_first || s->flow[k].read <= 0 ||
                !s->flow[k].make || below(m, 4))
                continue;
            s->store_first = 1;
            s->flow[k].read = own ? s->flow[k].make : s->flow[k].read;
            return 1;
        }
    return 0;
}

int stores_over(Mutant *m)
{
    return stores_in(m, Igemm, 0);
}

int stores_not(Mutant *m)
{
    return stores_in(m, Ikernel, 1);
}

/* ---- kernels of the host ------------------------------------------------- */

int kernel_of_host(Mutant *m)
{
    m->p->sig[below(m, m->p->nsig)].launch.host = 1;
    mutant_sign(m);
    return 1;
}

int text_of_both(Mutant *m)
{
    Plan *p = m->p;
    KernelSignature *more =
        alloc(m->arena, sizeof *more * (size_t)(p->nsig + 1));
    memcpy(more, p->sig, sizeof *more * (size_t)p->nsig);
    more[p->nsig] = more[below(m, p->nsig)];
    more[p->nsig++].launch.host = 1;
    p->sig = more;
    p->host = "";
    mutant_sign(m);
    return 1;
}

int text_of_another(Mutant *m)
{
    Kernel *k = m->p->kernel;
    int one = below(m, m->p->nkernel), two = below(m, m->p->nkernel);
    k[one].text = k[two].text;
    return one != two;
}
