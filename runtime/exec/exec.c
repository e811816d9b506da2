/* exec.c: a plan in memory. exec_open allocates each rank's arena once and
 * binds every instruction of every program, on any device: buffer addresses,
 * integers for this rank, the group, then what the device makes of it. After
 * that nothing is allocated; interpreter.c runs them.
 * Here too is what others read from outside: results and buffers. */
#include <math.h>
#include <string.h>
#include <stdlib.h>
#include <string.h>

#include "exec.h"

/* ---- addresses ----------------------------------------------------------- */

uint8_t *rank_place(const Rank *r, int64_t address)
{
    return address < HOSTSPACE ? r->base + address
                               : r->host + (address - HOSTSPACE);
}

uint8_t *rank_mirror(const Rank *r, int64_t address)
{
    return address < HOSTSPACE ? r->arena + address
                               : r->host + (address - HOSTSPACE);
}

int rank_hosts(const Rank *r, const void *p)
{
    const uint8_t *at = p;

    return r->host && at >= r->host && at < r->host + r->role->host;
}

/* Of those in frames: of the first micro-batch. */
static int64_t address_of(const Role *r, const Buf *b)
{
    const SlotGroup *f =
        b->frame && b->prog >= 0 ? &r->prog[b->prog].frame[b->frame - 1] : NULL;

    return b->offset + (f ? f->slot[0] : 0);
}

uint8_t *rank_address(const Rank *r, int buf)
{
    return rank_place(r, address_of(r->role, &r->role->buf[buf]));
}

/* ---- binding instructions ------------------------------------------------ */

static int is_transfer(InstrKind k)
{
    return instr_info(k)->cls == CLASStransfer;
}

static void bind_group(Exec *x, BoundInstr *b)
{
    const Mesh *m = x->plan->mesh;

    b->group = mesh_extent(m, b->instr->atoms);
    b->ranks = alloc(x->mem, (size_t)b->group * sizeof *b->ranks);
    mesh_group(m, b->instr->atoms, b->rank, b->ranks);
    b->me = mesh_pos(m, b->instr->atoms, b->rank);
    for (int64_t j = 0; j < b->group && is_collective(b->instr->kind); j++)
        b->wide |= role_of(x->plan, b->ranks[j]) != role_of(x->plan, b->rank);
}

int instr_lasts(const Role *r, const Instr *s)
{
    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = s->buf[i] < 0 ? NULL : &r->buf[s->buf[i]];
        if (b && b->prog < 0 && b->cls <= Boptim && instr_use(s, i) != 'r')
            return 1;
    }
    return 0;
}

/* events: of the program on this rank, by number; made when first named. */
static void *event_of(Exec *x, void ***events, int e)
{
    while (vec_len(*events) <= (size_t)e)
        vec_push(x->mem, *events, NULL);
    if (!(*events)[e])
        (*events)[e] = x->dev->event(x->on, EVENTplain);
    return (*events)[e];
}

static void bind_launch(Exec *x, BoundInstr *b, void ***events)
{
    const Issue *l = &b->instr->issue;

    b->on = l->stream;
    for (int i = 0; i < l->nwait; i++) {
        void *e = event_of(x, events, l->wait[i]);
        vec_push(x->mem, b->wait, e);
    }
    b->signal = l->record ? event_of(x, events, l->record) : NULL;
}

static CopyKind copy_kind(const Role *r, const Instr *s)
{
    if (in_host(r, &r->buf[s->buf[OPERAND(copy, from)]]))
        return COPYin;
    return in_host(r, &r->buf[s->buf[OPERAND(copy, to)]]) ? COPYout
                                                          : COPYwithin;
}

static void bind_instr(Exec *x, const Rank *r, BoundInstr *b, const Instr *s)
{
    *b = (BoundInstr){ .instr = s, .rank = r->id };
    b->lasts = instr_lasts(r->role, s);
    b->buf = alloc(x->mem, (size_t)(s->nbuf + 1) * sizeof *b->buf);
    for (int i = 0; i < s->nbuf; i++)
        b->buf[i] = s->buf[i] < 0 ? NULL : rank_address(r, s->buf[i]);
    if (s->kind == Icopy)
        b->copy = copy_kind(r->role, s);
    b->iv = alloc(x->mem, (size_t)(s->nword + 2) * sizeof *b->iv);
    for (int i = 0; i < s->nword; i++)
        b->iv[i] = word_value(x->plan->mesh, &s->word[i], r->id);
    b->bytes = s->nbuf && s->buf[0] >= 0 ? r->role->buf[s->buf[0]].bytes : 0;
    if (is_transfer(s->kind))
        b->bytes = s->transfer.n * dtypes[s->transfer.dt].bytes;
    if (is_collective(s->kind) || is_transfer(s->kind))
        bind_group(x, b);
}

/* ---- binding phases ------------------------------------------------------ */

static void bind_patches(Exec *x, const Rank *r, int g, int f)
{
    const Phase *p = &r->role->prog[g].phase[f];

    for (int k = p->first; k < p->first + p->n; k++) {
        const BoundInstr *b = &r->bound[g][k];
        for (int i = 0; i < b->instr->nbuf; i++) {
            const Buf *t =
                b->instr->buf[i] < 0 ? NULL : &r->role->buf[b->instr->buf[i]];
            Patch q = { &b->buf[i], t ? t->offset : 0, t ? t->frame - 1 : -1 };
            if (q.frame >= 0 && t->prog == g)
                vec_push(x->mem, r->patch[g][f], q);
        }
    }
}

static void bind_program(Exec *x, Rank *r, int g)
{
    const Program *p = &r->role->prog[g];
    void **events = NULL;

    r->bound[g] = alloc(x->mem, (size_t)(p->ninstr + 1) * sizeof **r->bound);
    r->patch[g] = alloc(x->mem, (size_t)(p->nphase + 1) * sizeof **r->patch);
    for (int f = 0; f < p->nphase; f++) {
        for (int k = p->phase[f].first; k < p->phase[f].first + p->phase[f].n;
             k++) {
            BoundInstr *b = &r->bound[g][k];
            bind_instr(x, r, b, &p->instr[k]);
            bind_launch(x, b, &events);
            x->dev->bind(x->on, b, p, phase_runs(p, f));
        }
        bind_patches(x, r, g, f);
    }
}

static void bind_rank(Exec *x, Rank *r)
{
    r->bound = alloc(x->mem, (size_t)r->role->nprog * sizeof *r->bound);
    r->patch = alloc(x->mem, (size_t)r->role->nprog * sizeof *r->patch);
    for (int g = 0; g < r->role->nprog; g++)
        bind_program(x, r, g);
}

/* ---- opening ------------------------------------------------------------- */

static Limits limits_of(const Plan *p)
{
    Limits l = { INFINITY, INFINITY };

    if (p->opts) {
        opts_limit(p->opts, "train.skip_above", "loss", &l.loss);
        opts_limit(p->opts, "train.skip_above", "gnorm", &l.gnorm);
    }
    return l;
}

/* What no memory can hold would be found out only as the pages fill. */
static void need_room(const Exec *x)
{
    int64_t need = exec_bytes(x), have = host_free();

    if (need > have)
        err(NULL,
            "out of memory: the plan needs %.1f GiB, and this process may take "
            "%.1f GiB",
            (double)need / (1 << 30), (double)have / (1 << 30));
}

static void open_rank(Exec *x, Rank *r, int64_t id)
{
    int role = role_of(x->plan, id);

    *r = (Rank){ .id = id,
                 .role = &x->plan->role[role],
                 .stage = exec_stage(x, role) };
    vec_push(x->mem, r->stage->rank, r);
    r->stage->nrank++;
}

/* What ranks of this machine offload, before any of them takes it. */
static void need_host_room(Exec *x)
{
    const Comm *c = x->comm;
    int64_t have = host_free(), mine = 0, need = 0, any = 0;
    int64_t *all = alloc(x->mem, (size_t)c->world * sizeof *all);

    for (int i = 0; i < x->plan->nrole; i++)
        any |= x->plan->role[i].host;
    for (int64_t i = 0; i < c->n; i++)
        mine += x->rank[i].role->host;
    if (any && c->n < c->world)
        comm_gather(x->comm, &mine, all, sizeof mine);
    for (int64_t r = 0; r < c->world && c->n < c->world; r++)
        if (!strcmp(c->peer[r].host, c->peer[c->first].host))
            need += all[r];
    need = c->n < c->world ? need : mine;
    if (need > have)
        err(NULL,
            "out of memory: ranks of this machine offload %s GiB to its "
            "memory, and may take %s GiB of it (train.offload=none keeps it)",
            gib_text(x->mem, need, have), gib_text(x->mem, have, need));
}

/* What it offloads; pages of this process, which some devices want to stay. */
static uint8_t *open_host_arena(Exec *x, const Role *r)
{
    static const char what[] = "what the plan offloads";

    if (!r->host)
        return NULL;
    uint8_t *p = x->dev->alloc(x->on, ARENApinned, r->host, what);
    return exec_apart(x) ? p : poison_pages(p, r->host);
}

/* Its arenas, and where buffers lie in them. */
static void open_arena(Exec *x, Rank *r)
{
    static const char what[] = "the plan";

    r->base = x->dev->alloc(x->on, x->arenas, r->role->arena, what);
    r->arena = exec_apart(x) ? pages(r->role->arena, what)
                             : poison_pages(r->base, r->role->arena);
    r->host = open_host_arena(x, r->role);
    r->buf = alloc(x->mem, (size_t)r->role->nbuf * sizeof *r->buf);
    for (int i = 0; i < r->role->nbuf; i++)
        r->buf[i] = rank_mirror(r, address_of(r->role, &r->role->buf[i]));
}

/* A calibration says on which chip it was measured. */
static void check_chip(const Exec *x)
{
    const char *measured = opts_str(x->plan->opts, "cluster.device");

    if (measured && x->dev->chip && strcmp(measured, x->dev->chip(x->on)))
        err(opts_loc(x->plan->opts, "cluster.device"),
            "the plan's times are of another chip: its machine was measured on "
            "%s, this is %s (pleat bench --calibrate FILE measures it)",
            measured, x->dev->chip(x->on));
}

Exec *exec_open_on(const Device *d, const Plan *p, Comm *c)
{
    Arena *a = arena_new();
    Exec *x = alloc(a, sizeof *x);

    *x = (Exec){ .plan = p, .mem = a, .comm = c, .dev = d };
    x->limits = limits_of(p);
    comm_need_near(c, p);
    x->arenas = plan_shares(p) ? ARENApeer : ARENAdevice;
    x->progress.mesh = p->mesh;
    x->progress.where = d->where;
    start_phase("binding");
    x->pool = pool_open(0);
    x->on = d->open(&(DeviceArgs){ a, p, c, x->pool });
    x->progress.device = x->on;
    check_chip(x);
    x->rank = alloc(a, (size_t)c->n * sizeof *x->rank);
    x->stage = alloc(a, (size_t)p->nrole * sizeof *x->stage);
    x->meet = alloc(a, (size_t)p->nrole * sizeof *x->meet);
    for (int64_t i = 0; i < c->n; i++)
        open_rank(x, &x->rank[i], c->first + i);
    if (!exec_apart(x))
        need_room(x);
    need_host_room(x);
    for (int64_t i = 0; i < c->n; i++)
        open_arena(x, &x->rank[i]);
    d->load(x->on);
    start_phase("binding");
    for (int64_t i = 0; i < c->n; i++)
        bind_rank(x, &x->rank[i]);
    d->bound(x->on);
    x->poison = poison_asked() && !exec_apart(x);
    if (exec_apart(x))
        staged_open(x);
    return x;
}

Exec *exec_open(const Plan *p, Comm *c)
{
    return exec_open_on(device_for(p, c), p, c);
}

void exec_close(Exec *x)
{
    if (x->staged)
        staged_close(x);
    for (int64_t i = 0; i < x->comm->n; i++) {
        Rank *r = &x->rank[i];
        x->dev->free(x->on, x->arenas, r->base, r->role->arena);
        if (r->host)
            x->dev->free(x->on, ARENApinned, r->host, r->role->host);
        if (exec_apart(x))
            drop_pages(r->arena, r->role->arena);
    }
    x->dev->close(x->on);
    pool_close(x->pool);
    arena_free(x->mem);
}

/* ---- reading from outside ------------------------------------------ */

const Role *exec_role(const Exec *x, int64_t rank)
{
    return x->rank[rank - x->comm->first].role;
}

void *exec_buf(const Exec *x, int64_t rank, int buf)
{
    return x->rank[rank - x->comm->first].buf[buf];
}

int64_t exec_bytes(const Exec *x)
{
    int64_t n = 0;

    for (int64_t i = 0; i < x->comm->n; i++)
        n += x->rank[i].role->arena +
             (exec_apart(x) ? 0 : x->rank[i].role->host);
    return n;
}

double plain_nan(double v)
{
    return v == v ? v : fabs(v);
}

double exec_out_at(const Exec *x, int i, int64_t k)
{
    const Scalar *s = &x->rank[0].role->out[i];

    return plain_nan(elem_get(s->dt, x->rank[0].buf[s->buf], k));
}

double exec_out(const Exec *x, int i)
{
    return exec_out_at(x, i, 0);
}

double exec_result(const Exec *x, ResultKind k)
{
    int i = role_result(x->rank[0].role, k);

    return i < 0 ? NAN : exec_out(x, i);
}

int64_t exec_usage(Exec *x, Text *out)
{
    int64_t outside = x->dev->usage(x->on, out);

    if (x->staged)
        staged_usage(x, out);
    return outside;
}

/* ---- what the plan says about itself ------------------------------------- */

static int is_input(const Tensor *tensor)
{
    return tensor->kind == TKinput && !tensor->second;
}

const Tensor *plan_input(const Plan *p, int i)
{
    for (int r = 0; r < p->nrole; r++)
        for (int k = 0; k < p->role[r].ntensor; k++) {
            const Tensor *t = &p->role[r].tensor[k];
            int first = is_input(t);
            for (int q = 0; q < r && first; q++) {
                int at = role_tensor(&p->role[q], t->name);
                first = at < 0 || !is_input(&p->role[q].tensor[at]);
            }
            if (first && !i--)
                return t;
        }
    return NULL;
}
