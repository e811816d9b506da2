/* exec.c: opens a plan. exec_open allocates each rank's arena once and binds
 * every instruction of every program, on any device: buffer addresses, integers
 * of this rank, its group and the device's own data. Nothing is allocated
 * later; interpreter.c runs the instructions. Results and buffers are read
 * through the functions at the end of this file. */
#include "exec.h"

/* ---- addresses ----------------------------------------------------------- */

uint8_t *rank_place(const Rank *rank, int64_t address)
{
    return address < HOSTSPACE ? rank->base + address
                               : rank->host + (address - HOSTSPACE);
}

uint8_t *rank_mirror(const Rank *rank, int64_t address)
{
    return address < HOSTSPACE ? rank->arena + address
                               : rank->host + (address - HOSTSPACE);
}

int rank_hosts(const Rank *rank, const void *p)
{
    const uint8_t *at = p;

    return rank->host && at >= rank->host && at < rank->host + rank->role->host;
}

/* The address of a buffer; a buffer in a frame has its place of micro-batch
 * 0. */
static int64_t address_of(const Role *role, const Buf *b)
{
    const SlotGroup *group = b->frame && b->prog >= 0
                                 ? &role->prog[b->prog].frame[b->frame - 1]
                                 : NULL;

    return b->offset + (group ? group->slot[0] : 0);
}

uint8_t *rank_address(const Rank *rank, int buf)
{
    return rank_place(rank, address_of(rank->role, &rank->role->buf[buf]));
}

/* ---- binding instructions ------------------------------------------------ */

static int is_transfer(InstrKind k)
{
    return instr_info(k)->cls == CLASStransfer;
}

static void bind_group(Exec *exec, BoundInstr *bound)
{
    const Mesh *m = exec->plan->mesh;

    bound->group = mesh_extent(m, bound->instr->atoms);
    bound->ranks =
        alloc(exec->mem, (size_t)bound->group * sizeof *bound->ranks);
    mesh_group(m, bound->instr->atoms, bound->rank, bound->ranks);
    bound->me = mesh_pos(m, bound->instr->atoms, bound->rank);
    for (int64_t j = 0; j < bound->group && is_collective(bound->instr->kind);
         j++)
        bound->wide |= role_of(exec->plan, bound->ranks[j]) !=
                       role_of(exec->plan, bound->rank);
}

int instr_lasts(const Role *role, const Instr *instr)
{
    for (int i = 0; i < instr->nbuf; i++) {
        const Buf *b = instr->buf[i] < 0 ? NULL : &role->buf[instr->buf[i]];
        if (b && b->prog < 0 && b->cls <= Boptim && instr_use(instr, i) != 'r')
            return 1;
    }
    return 0;
}

/* Event e of a program on this rank; created at its first use. */
static void *event_of(Exec *exec, void ***events, int e)
{
    while (vec_len(*events) <= (size_t)e)
        vec_push(exec->mem, *events, NULL);
    if (!(*events)[e])
        (*events)[e] = exec->dev->event(exec->on, EVENTplain);
    return (*events)[e];
}

static void bind_launch(Exec *exec, BoundInstr *bound, void ***events)
{
    const Issue *issue = &bound->instr->issue;

    bound->on = issue->stream;
    for (int i = 0; i < issue->nwait; i++) {
        void *e = event_of(exec, events, issue->wait[i]);
        vec_push(exec->mem, bound->wait, e);
    }
    bound->signal =
        issue->record ? event_of(exec, events, issue->record) : NULL;
}

static CopyKind copy_kind(const Role *role, const Instr *instr)
{
    if (in_host(role, &role->buf[instr->buf[OPERAND(copy, from)]]))
        return COPYin;
    return in_host(role, &role->buf[instr->buf[OPERAND(copy, to)]])
               ? COPYout
               : COPYwithin;
}

static void bind_instr(Exec *exec, const Rank *rank, BoundInstr *bound,
                       const Instr *instr)
{
    *bound = (BoundInstr){ .instr = instr, .rank = rank->id, .adds = 1 };
    bound->lasts = instr_lasts(rank->role, instr);
    bound->buf =
        alloc(exec->mem, (size_t)(instr->nbuf + 1) * sizeof *bound->buf);
    for (int i = 0; i < instr->nbuf; i++)
        bound->buf[i] =
            instr->buf[i] < 0 ? NULL : rank_address(rank, instr->buf[i]);
    if (instr->kind == Icopy)
        bound->copy = copy_kind(rank->role, instr);
    bound->iv =
        alloc(exec->mem, (size_t)(instr->nword + 2) * sizeof *bound->iv);
    for (int i = 0; i < instr->nword; i++)
        bound->iv[i] = word_value(exec->plan->mesh, &instr->word[i], rank->id);
    for (int i = 0; i < instr->nword && instr->store_first; i++)
        if (instr->word[i].type == WORDadd)
            bound->add = &bound->iv[i];
    bound->bytes = instr->nbuf && instr->buf[0] >= 0
                       ? rank->role->buf[instr->buf[0]].bytes
                       : 0;
    if (is_transfer(instr->kind))
        bound->bytes = instr->transfer.n * dtypes[instr->transfer.dt].bytes;
    if (is_collective(instr->kind) || is_transfer(instr->kind))
        bind_group(exec, bound);
}

/* ---- binding phases ------------------------------------------------------ */

static void bind_patches(Exec *exec, const Rank *rank, int g, int f)
{
    const Phase *phase = &rank->role->prog[g].phase[f];

    for (int k = phase->first; k < phase->first + phase->n; k++) {
        const BoundInstr *bound = &rank->bound[g][k];
        for (int i = 0; i < bound->instr->nbuf; i++) {
            const Buf *buf = bound->instr->buf[i] < 0
                                 ? NULL
                                 : &rank->role->buf[bound->instr->buf[i]];
            Patch q = { &bound->buf[i], buf ? buf->offset : 0,
                        buf ? buf->frame - 1 : -1 };
            if (q.frame >= 0 && buf->prog == g)
                vec_push(exec->mem, rank->patch[g][f], q);
        }
    }
}

static void bind_program(Exec *exec, Rank *rank, int g)
{
    const Program *p = &rank->role->prog[g];
    void **events = NULL;

    rank->bound[g] =
        alloc(exec->mem, (size_t)(p->ninstr + 1) * sizeof **rank->bound);
    rank->patch[g] =
        alloc(exec->mem, (size_t)(p->nphase + 1) * sizeof **rank->patch);
    for (int f = 0; f < p->nphase; f++) {
        for (int k = p->phase[f].first; k < p->phase[f].first + p->phase[f].n;
             k++) {
            BoundInstr *b = &rank->bound[g][k];
            bind_instr(exec, rank, b, &p->instr[k]);
            bind_launch(exec, b, &events);
            exec->dev->bind(exec->on, b, p, instr_runs(p, f, b->instr));
        }
        bind_patches(exec, rank, g, f);
    }
}

static void bind_rank(Exec *exec, Rank *rank)
{
    rank->bound =
        alloc(exec->mem, (size_t)rank->role->nprog * sizeof *rank->bound);
    rank->patch =
        alloc(exec->mem, (size_t)rank->role->nprog * sizeof *rank->patch);
    for (int g = 0; g < rank->role->nprog; g++)
        bind_program(exec, rank, g);
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

/* Refuses a plan larger than the machine's memory: pages are allocated when
 * they are first written, so the allocation itself would succeed. */
static void need_room(const Exec *exec)
{
    int64_t need = exec_bytes(exec), have = host_free();

    if (need > have)
        err(NULL,
            "out of memory: the plan needs %.1f GiB, and this process may take "
            "%.1f GiB",
            (double)need / (1 << 30), (double)have / (1 << 30));
}

static void open_rank(Exec *exec, Rank *rank, int64_t id)
{
    int role = role_of(exec->plan, id);

    *rank = (Rank){ .id = id,
                    .role = &exec->plan->role[role],
                    .stage = exec_stage(exec, role) };
    vec_push(exec->mem, rank->stage->rank, rank);
    rank->stage->nrank++;
}

/* Refuses a plan whose ranks on this machine offload more than its memory,
 * before any of them allocates. */
static void need_host_room(Exec *exec)
{
    const Comm *comm = exec->comm;
    int64_t have = host_free(), mine = 0, need = 0, any = 0;
    int64_t *all = alloc(exec->mem, (size_t)comm->world * sizeof *all);

    for (int i = 0; i < exec->plan->nrole; i++)
        any |= exec->plan->role[i].host;
    for (int64_t i = 0; i < comm->n; i++)
        mine += exec->rank[i].role->host;
    if (any && comm->n < comm->world)
        comm_gather(exec->comm, &mine, all, sizeof mine);
    for (int64_t r = 0; r < comm->world && comm->n < comm->world; r++)
        if (!strcmp(comm->peer[r].host, comm->peer[comm->first].host))
            need += all[r];
    need = comm->n < comm->world ? need : mine;
    if (need > have)
        err(NULL,
            "out of memory: ranks of this machine offload %s GiB to its "
            "memory, and may take %s GiB of it (train.offload=none keeps it)",
            gib_text(exec->mem, need, have), gib_text(exec->mem, have, need));
}

/* Allocates a rank's offloaded buffers in host memory, pinned where the device
 * needs it. */
static uint8_t *open_host_arena(Exec *exec, const Role *role)
{
    if (!role->host)
        return NULL;
    uint8_t *p =
        exec->dev->alloc(exec->on, ARENApinned, role->host, MEMoffloaded);
    return exec_apart(exec) ? p : poison_pages(p, role->host);
}

/* Allocates a rank's arenas and finds the addresses of its buffers. */
static void open_arena(Exec *exec, Rank *rank)
{
    rank->base =
        exec->dev->alloc(exec->on, exec->arenas, rank->role->arena, MEMplan);
    rank->arena = exec_apart(exec)
                      ? pages(rank->role->arena, memory_uses[MEMplan])
                      : poison_pages(rank->base, rank->role->arena);
    rank->host = open_host_arena(exec, rank->role);
    rank->buf = alloc(exec->mem, (size_t)rank->role->nbuf * sizeof *rank->buf);
    for (int i = 0; i < rank->role->nbuf; i++)
        rank->buf[i] =
            rank_mirror(rank, address_of(rank->role, &rank->role->buf[i]));
}

/* Warns if the plan's calibration was measured on another chip. */
static void check_chip(const Exec *exec)
{
    const char *measured = opts_str(exec->plan->opts, "cluster.device");

    if (measured && exec->dev->chip &&
        strcmp(measured, exec->dev->chip(exec->on)))
        err(opts_loc(exec->plan->opts, "cluster.device"),
            "the plan's times are of another chip: its machine was measured on "
            "%s, this is %s (pleat bench --calibrate FILE measures it)",
            measured, exec->dev->chip(exec->on));
}

Exec *exec_open_on(const Device *device, const Plan *p, Comm *comm)
{
    Arena *a = arena_new();
    Exec *x = alloc(a, sizeof *x);

    *x = (Exec){ .plan = p, .mem = a, .comm = comm, .dev = device };
    x->limits = limits_of(p);
    comm_need_near(comm, p);
    x->arenas = plan_shares(p) ? ARENApeer : ARENAdevice;
    x->progress.mesh = p->mesh;
    x->progress.where = device->where;
    start_phase("binding");
    x->pool = pool_open(0);
    x->on = device->open(&(DeviceArgs){ a, p, comm, x->pool });
    x->progress.device = x->on;
    check_chip(x);
    x->rank = alloc(a, (size_t)comm->n * sizeof *x->rank);
    x->stage = alloc(a, (size_t)p->nrole * sizeof *x->stage);
    x->meet = alloc(a, (size_t)p->nrole * sizeof *x->meet);
    for (int64_t i = 0; i < comm->n; i++)
        open_rank(x, &x->rank[i], comm->first + i);
    if (!exec_apart(x))
        need_room(x);
    need_host_room(x);
    start_phase("memory");
    for (int64_t i = 0; i < comm->n; i++)
        open_arena(x, &x->rank[i]);
    device->load(x->on);
    start_phase("binding");
    for (int64_t i = 0; i < comm->n; i++)
        bind_rank(x, &x->rank[i]);
    device->bound(x->on);
    x->poison = poison_asked() && !exec_apart(x);
    start_phase("memory");
    if (exec_apart(x))
        staged_open(x);
    return x;
}

Exec *exec_open(const Plan *p, Comm *comm)
{
    return exec_open_on(device_for(p, comm), p, comm);
}

void exec_close(Exec *exec)
{
    if (exec->staged)
        staged_close(exec);
    for (int64_t i = 0; i < exec->comm->n; i++) {
        Rank *rank = &exec->rank[i];
        exec->dev->free(exec->on, exec->arenas, rank->base, rank->role->arena);
        if (rank->host)
            exec->dev->free(exec->on, ARENApinned, rank->host,
                            rank->role->host);
        if (exec_apart(exec))
            drop_pages(rank->arena, rank->role->arena);
    }
    exec->dev->close(exec->on);
    pool_close(exec->pool);
    arena_free(exec->mem);
}

/* ---- reading from outside ------------------------------------------ */

const Role *exec_role(const Exec *exec, int64_t rank)
{
    return exec->rank[rank - exec->comm->first].role;
}

void *exec_buf(const Exec *exec, int64_t rank, int buf)
{
    return exec->rank[rank - exec->comm->first].buf[buf];
}

int64_t exec_bytes(const Exec *exec)
{
    int64_t n = 0;

    for (int64_t i = 0; i < exec->comm->n; i++)
        n += exec->rank[i].role->arena +
             (exec_apart(exec) ? 0 : exec->rank[i].role->host);
    return n;
}

double plain_nan(double v)
{
    return v == v ? v : fabs(v);
}

double exec_out_at(const Exec *exec, int i, int64_t k)
{
    const Scalar *scalar = &exec->rank[0].role->out[i];

    return plain_nan(elem_get(scalar->dt, exec->rank[0].buf[scalar->buf], k));
}

double exec_out(const Exec *exec, int i)
{
    return exec_out_at(exec, i, 0);
}

double exec_result(const Exec *exec, ResultKind k)
{
    int i = role_result(exec->rank[0].role, k);

    return i < 0 ? NAN : exec_out(exec, i);
}

int64_t exec_usage(Exec *exec, Text *out)
{
    int64_t outside = exec->dev->usage(exec->on, out);

    if (exec->staged)
        staged_usage(exec, out);
    return outside;
}

/* ---- description of the plan --------------------------------------------- */

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
