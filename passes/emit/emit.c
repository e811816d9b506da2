/* emit.c: groups and their buffers become a plan.
 *
 * All programs share one arena: first what lives always, once for all of them
 * (parameters, states, optimizer, inputs, scalars), then one part that each
 * program uses in its own way, as large as the largest needs.
 *
 *     [ param | state | optim | io ][ transient: step, eval, forward, init ]
 *
 * The host's arena is made in the same way.
 *
 * A pipeline stage is a role with buffers, tensors and programs of its own;
 * kernels are the plan's. */
#include <string.h>

#include "emit.h"

/* What the ranks of one stage run, as far as it is made. */
typedef struct StageBuilder {
    Buf *buf; /* vecs */
    Tensor *tensor;
    Scalar *in, *out;
    Program *prog;
    Table *named; /* path of what lives always -> Lasting */
    int64_t host; /* bytes of programs in the host's arena */
} StageBuilder;

struct Emit {
    Arena *arena;
    Graph *logical;
    const Target *target;
    Mesh *mesh;
    StageBuilder *stage;
    int nstage;
    StageBuilder *now; /* the one whose program is being made */
    Shapes *shapes;    /* all programs share them */
    Signatures *sigs;
    Kernel *kernel; /* vec; all stages too */
    Table *kernels; /* name -> 1 + number */
    Text prelude;   /* the target's, then what kernels share */
    Table *shared;  /* texts that are in it */
};

/* ---- what lives always --------------------------------------------------- */

static void place_of(const Loc *l, const char **file, int *line)
{
    *file = l ? l->file : NULL;
    *line = l ? l->line : 0;
}

static int add_buf(Emit *e, Buf b, const Loc *l)
{
    place_of(l, &b.file, &b.line);
    vec_push(e->arena, e->now->buf, b);
    return (int)vec_len(e->now->buf) - 1;
}

static void fill_dim(Emit *e, const Graph *g, const Node *n, int d, PlanDim *p)
{
    Piece piece[MAXPIECE];
    Axis *a = n->dim[d].a;

    p->axis = unpadded(a)->name;
    p->role = a->role;
    p->n = a->parts ? unpadded(a)->n : n->dim[d].n;
    p->npiece = pieces(g, n, d, piece);
    if (a->parts) {
        p->npiece = 2;
        uneven_pieces(g->mesh, p->n, cut_atoms(g->mesh, n, a), piece);
    }
    p->piece = alloc(e->arena, sizeof *piece * (size_t)p->npiece);
    memcpy(p->piece, piece, sizeof *piece * (size_t)p->npiece);
}

static void add_tensor(Emit *e, const Graph *g, const Node *n, const char *name,
                       TensorKind kind, int buf)
{
    Tensor t = {
        .name = name, .kind = kind, .dt = n->dt, .nd = n->nd, .buf = buf
    };
    t.second = n->op == Oinput && n->at.input.second;

    for (int d = 0; d < n->nd; d++)
        fill_dim(e, g, n, d, &t.dim[d]);
    place_of(n->loc, &t.file, &t.line);
    vec_push(e->arena, e->now->tensor, t);
}

/* What this rank has of a bucket's member, as the optimizer's value. */
static void add_member(Emit *e, Graph *g, const Node *bucket, const Param *of,
                       const Param *p, int buf)
{
    const Axis *flat = bucket->dim[bucket->nd - 1].a;
    Node n = { .op = Oparam, .dt = of->dt, .nd = p->nd, .loc = p->loc };
    size_t last = vec_len(e->now->tensor);

    memcpy(n.dim, p->dim, sizeof n.dim);
    param_type(g, p, n.sh);
    const char *prefix = tensor_kinds[of->kind].prefix;
    const char *name = intern(strf(e->arena, "%s%s", prefix, p->path));
    int copy = of->kind == TKparam && p->copy;
    add_tensor(e, g, &n, name, copy ? TKcopy : of->kind, buf);
    Tensor *t = &e->now->tensor[last];
    t->at = p->at;
    t->run = local_n(g, bucket, bucket->nd - 1);
    t->shard = flat->atoms;
}

static void add_members(Emit *e, Graph *g, const Node *n, const Param *of,
                        int buf)
{
    for (size_t i = 0; i < vec_len(g->param); i++) {
        const Param *p = g->param[i];
        if (is_member(p, of->bucket))
            add_member(e, g, n, of, p, buf);
    }
}

static int add_lasting(Emit *e, Graph *g, const Node *n)
{
    Buf b = { .name = n_name(n),
              .cls = Bio,
              .dt = n->dt,
              .prog = -1,
              .offset = is_hosted(n) ? HOSTSPACE : 0,
              .bytes = local_bytes(g, n) };

    if (n->op == Ostepval || n->op == Oresult) {
        int in = n->op == Ostepval;
        b.name = strf(e->arena, in ? "step.%s" : "result.%s", n_name(n));
        Scalar s = { .name = n_name(n), .dt = n->dt };
        if (n->nd)
            s.dim = (ValueDim){ unpadded(n->dim[0].a)->name, local_n(g, n, 0),
                                0, 0 };
        s.buf = add_buf(e, b, in ? NULL : n->loc);
        if (in)
            s.value = n->at.stepval.name;
        else if (!result_named(&s))
            die("emit: no result '%s'", s.name);
        if (in)
            vec_push(e->arena, e->now->in, s);
        else
            vec_push(e->arena, e->now->out, s);
        return s.buf;
    }
    const Param *p = n->op == Oinput ? NULL : g_param(g, n_name(n));
    if (p)
        b.cls = tensor_kinds[p->kind].cls;
    int i = add_buf(e, b, n->loc);
    if (p && p->bucket && !is_member(p, NULL))
        add_members(e, g, n, p, i);
    else
        add_tensor(e, g, n, n_name(n),
                   !p                   ? TKinput
                   : !p->copy           ? p->kind
                   : p->kind == TKparam ? TKcopy
                                        : TKcopied,
                   i);
    return i;
}

static const char *key_of(const Emit *e, const Node *n)
{
    static const char *const prefix[] = {
        [Oinput] = "input", [Ostepval] = "step", [Oresult] = "result",
        [Oparam] = "param", [Ostate] = "param",
    };
    int second = n->op == Oinput && n->at.input.second;
    return intern(strf(e->arena, "%s%s %s", second ? "second " : "",
                       prefix[n->op], n_name(n)));
}

typedef struct Lasting {
    const Node *n;
    int buf;
} Lasting;

/* Programs must agree on what they share. */
static void same_as_before(const Emit *e, const Graph *g, const Node *n,
                           const Lasting *was)
{
    const Buf *b = &e->now->buf[was->buf];

    if (b->bytes != local_bytes(g, n) || b->dt != n->dt)
        die("emit: '%s' is %s of %lld bytes in program %s, %s of %lld before",
            n_name(n), dtypes[n->dt].name, (long long)local_bytes(g, n),
            programnames[g->prog], dtypes[b->dt].name, (long long)b->bytes);
    if ((b->offset >= HOSTSPACE) != is_hosted(n))
        die("emit: '%s' is of another memory in program %s", n_name(n),
            programnames[g->prog]);
    for (int d = 0; d < n->nd; d++)
        if (n->dim[d].a->name != was->n->dim[d].a->name)
            die("emit: '%s' has other axes in program %s", n_name(n),
                programnames[g->prog]);
}

static int lasting(Emit *e, Graph *g, const Node *n)
{
    Lasting **at = (Lasting **)table_at(e->now->named, KEYP(key_of(e, n)));

    if (*at) {
        same_as_before(e, g, n, *at);
    } else {
        *at = alloc(e->arena, sizeof **at);
        **at = (Lasting){ n, add_lasting(e, g, n) };
    }
    return (*at)->buf;
}

/* ---- buffers ------------------------------------------------------------- */

static const char *live_name(const ProgramBuilder *m, const Live *x)
{
    if (x->stack)
        return strf(m->emit->arena, "stash.%d", x->stack);
    return x->node ? x->node->name
                   : strf(m->emit->arena, "work of %s",
                          m->group[x->instr]->instr.label);
}

static void add_live(ProgramBuilder *m, Live *x, int stack)
{
    Buf b = { .name = live_name(m, x),
              .cls = x->stack  ? Bstash
                     : x->node ? Btemp
                               : Bscratch,
              .dt = x->node ? x->node->dt : Du8,
              .offset = x->offset,
              .bytes = x->bytes,
              .born = x->born,
              .dies = x->dies,
              .frame = x->frame,
              .stack = stack,
              .prog = (int)vec_len(m->emit->now->prog) };
    int i = add_buf(m->emit, b, x->node ? x->node->loc : NULL);

    if (x->stack)
        x->buf = i;
    else if (x->node)
        x->node->buf = i;
    else
        m->work[x->instr] = i;
}

/* The buffer of what lies where another does: of its own in a stack. */
static void add_to(ProgramBuilder *m, Live *x, const Live *root)
{
    if (!root->stack) {
        x->node->buf = root->node->buf;
        return;
    }
    x->offset = root->offset;
    x->frame = root->frame;
    add_live(m, x, 1 + root->buf);
}

/* From here on n->buf is the buffer of a stored value. Those that took over
 * another's follow once that one has a number. */
static void number_buffers(ProgramBuilder *m)
{
    Graph *g = m->graph;
    Layout *l = m->layout;

    m->work = alloc(m->emit->arena, sizeof(int) * (vec_len(m->group) + 1));
    for (size_t i = 0; i < vec_len(m->group); i++)
        m->work[i] = -1;
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->buf = -1;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (is_persistent(g->node[i]))
            g->node[i]->buf = lasting(m->emit, g, g->node[i]);
    for (int i = 0; i < l->n; i++)
        if (l->live[i].same < 0)
            add_live(m, &l->live[i], 0);
    for (int i = 0; i < l->n; i++)
        if (l->live[i].node && l->live[i].same >= 0)
            add_to(m, &l->live[i], &l->live[layout_root(l, i)]);
}

static void add_outputs(ProgramBuilder *m)
{
    for (size_t i = 0; i < vec_len(m->graph->node); i++) {
        Node *n = m->graph->node[i], view;
        if (n->op != Ooutput)
            continue;
        int b = storage(n->in[0])->buf;
        if (b < 0)
            die("emit: output '%s' was never made", n->at.output.name);
        view = *n->in[0];
        view.loc = n->loc;
        add_tensor(m->emit, m->graph, &view, n->at.output.name, TKoutput, b);
        if (m->emit->now->buf[b].prog >= 0)
            m->emit->now->buf[b].name = n->at.output.name;
    }
}

/* ---- instructions -------------------------------------------------------- */

static void add_shared(Emit *e, const char *text)
{
    void **at = table_at(e->shared, KEYP(text));

    if (!*at)
        put(&e->prelude, "%s", text);
    *at = e;
}

/* Its number; -1: k has none. */
static int add_kernel(Emit *e, const Group *k)
{
    if (!k->instr.kernel)
        return -1;
    const char *name = intern(k->instr.kernel);
    void **at = table_at(e->kernels, KEYP(name));
    if (!*at) {
        vec_push(e->arena, e->kernel, ((Kernel){ name, k->text }));
        if (k->shared)
            add_shared(e, k->shared);
        *at = (void *)(uintptr_t)vec_len(e->kernel);
    }
    return (int)(uintptr_t)*at - 1;
}

static void fill_instr(ProgramBuilder *m, int i, Instr *s)
{
    const Group *k = m->group[i];
    const InstrInfo *o = instr_info(k->instr.kind);
    int work = m->work[i];
    int n = instr_many(o) ? k->narg + (work >= 0) : o->nop;
    Issue issue = s->issue;

    *s = k->instr;
    s->issue = issue;
    s->nbuf = n;
    s->buf = alloc(m->emit->arena, sizeof *s->buf * (size_t)(n + 1));
    for (int j = 0; j < n; j++)
        s->buf[j] = j < k->narg && k->arg[j] ? storage(k->arg[j])->buf : -1;
    if (work >= 0)
        s->buf[n - 1] = work;
    if (m->graph->compile->options.prices)
        return;
    flow_instr(m, k, s);
    if (moves_rows(s->kind)) {
        s->rows.kernel = add_kernel(m->emit, k);
        s->kernel = NULL;
    }
    if (s->kind != Ikernel)
        return;
    sign_call(m, k, s);
    add_kernel(m->emit, k);
}

static void enter_stage(Emit *e, const Graph *g)
{
    int n = g->nrole ? g->nrole : 1;

    if (!e->stage) {
        e->stage = alloc(e->arena, sizeof *e->stage * (size_t)n);
        e->nstage = n;
        for (int i = 0; i < n; i++)
            e->stage[i].named = table_new(e->arena);
    }
    if (n != e->nstage || g->role < 0 || g->role >= n)
        die("emit: program %s of stage %d of %d, not %d", programnames[g->prog],
            g->role, n, e->nstage);
    e->now = &e->stage[g->role];
}

static double seconds_rebuilt(const ProgramBuilder *m, const Program *p)
{
    double sum = 0;

    for (int f = 0; f < p->nphase; f++)
        for (int i = p->phase[f].first; i < p->phase[f].first + p->phase[f].n;
             i++) {
            const Group *k = m->group[i];
            int again = k->nout > 0;
            for (int j = 0; j < k->nout; j++)
                again &= is_rebuilt(k->out[j]);
            if (again)
                sum += k->instr.secs * (double)phase_runs(p, f);
        }
    return sum;
}

ProgramBuilder *place_program(Graph *g, Group **groups)
{
    ProgramBuilder *m = alloc(g->arena, sizeof *m);
    Program *p = &m->prog;

    *m = (ProgramBuilder){ .arena = g->arena,
                           .graph = g,
                           .target = pass_target(g) };
    make_phases(m, groups);
    make_joins(m);
    m->nnamed = name_values(m->arena, m->group, (int)vec_len(m->group));
    OffloadCopies *copies = take_copies(m);
    p->kind = g->prog;
    p->ninstr = (int)vec_len(m->group);
    p->nphase = (int)vec_len(m->phase);
    p->phase = m->phase;
    p->nslot = (int)vec_len(m->slot);
    p->slot = m->slot;
    p->instr = alloc(g->arena, sizeof *p->instr * (size_t)(p->ninstr + 1));
    mark_experts(g);
    for (int i = 0; i < p->ninstr; i++)
        predict(g, m->group[i], &m->group[i]->instr);
    for (int i = 0; i < p->ninstr; i++)
        p->instr[i] = m->group[i]->instr;
    if (opts_int(g->opts, "fold.overlap"))
        order_beside(m, p);
    if (copies)
        put_copies(m, p, copies);
    m->layout = layout(g, m->group, p);
    p->transient = m->layout->height;
    p->bound = m->layout->bound;
    p->nframe = (int)vec_len(m->layout->frame);
    p->frame = m->layout->frame;
    p->rebuilt = seconds_rebuilt(m, p);
    return m;
}

static Plan plan_like(const ProgramBuilder *m, Role *role, Program *prog)
{
    *prog = m->prog;
    *role = (Role){ .nprog = 1, .prog = prog };
    return (Plan){ .mesh = m->graph->mesh, .nrole = 1, .role = role };
}

double program_secs(const ProgramBuilder *m)
{
    Program prog;
    Role role;
    Plan p = plan_like(m, &role, &prog);

    return plan_secs(&p, prog.kind);
}

double stages_secs(Arena *a, ProgramBuilder *const *stage, size_t n)
{
    Role *role = alloc(a, n * sizeof *role);
    Program *prog = alloc(a, n * sizeof *prog);
    Plan p = { .mesh = stage[0]->graph->mesh, .nrole = (int)n, .role = role };

    for (size_t i = 0; i < n; i++)
        plan_like(stage[i], &role[i], &prog[i]);
    return plan_secs(&p, prog->kind);
}

double program_unhidden(const ProgramBuilder *m)
{
    Program prog;
    Role role;
    Plan p = plan_like(m, &role, &prog);

    prog.phase = alloc(m->arena, sizeof *prog.phase * (size_t)prog.nphase);
    prog.nphase = 0;
    for (int f = 0; f < m->prog.nphase; f++)
        if (m->phase[f].reg == REGden || m->phase[f].reg == REGbody)
            prog.phase[prog.nphase++] = m->phase[f];
    return plan_secs(&p, prog.kind) - plan_bare(&p, prog.kind);
}

void emit_program(Emit *e, ProgramBuilder *m)
{
    Program *p = &m->prog;

    m->emit = e;
    m->shapes = e->shapes;
    m->sigs = e->sigs;
    if (!e->mesh)
        e->mesh = m->graph->mesh;
    enter_stage(e, m->graph);
    if (e->now->host < m->layout->host)
        e->now->host = m->layout->host;
    number_buffers(m);
    add_outputs(m);
    for (int i = 0; i < p->ninstr; i++)
        fill_instr(m, i, &p->instr[i]);
    if (!m->graph->compile->options.prices)
        flow_ends(m, p);
    vec_push(e->arena, e->now->prog, *p);
}

/* ---- the whole ----------------------------------------------------------- */

Emit *emit_new(Arena *a, Graph *g, const Target *T)
{
    Emit *e = alloc(a, sizeof *e);

    *e = (Emit){ .arena = a, .logical = g, .target = T };
    e->kernels = table_new(a);
    e->prelude.arena = a;
    e->shared = table_new(a);
    put(&e->prelude, "%s", T->prelude);
    e->shapes = shapes_new(a);
    e->sigs = signatures_new(a);
    return e;
}

/* What lives always in an arena, classes one after another from `from` on; its
 * bytes. */
static int64_t place_lasting(Role *r, int64_t from)
{
    int64_t at = from;

    for (int c = 0; c < NBUFCLASS; c++)
        for (int i = 0; i < r->nbuf; i++) {
            Buf *b = &r->buf[i];
            if (b->prog >= 0 || b->cls != (BufClass)c ||
                b->offset / HOSTSPACE != from / HOSTSPACE)
                continue;
            b->offset = at;
            at += (b->bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
        }
    return at - from;
}

/* What lives always, then the part that programs share. */
static void place_all(Role *r)
{
    int64_t most = 0, host = place_lasting(r, HOSTSPACE);

    r->persist = place_lasting(r, 0);
    r->host += host;
    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog >= 0 && !r->buf[i].frame)
            r->buf[i].offset +=
                r->buf[i].offset < HOSTSPACE ? r->persist : host;
    for (int i = 0; i < r->nprog; i++) {
        Program *p = &r->prog[i];
        for (int f = 0; f < p->nframe; f++)
            for (int k = 0; k < p->frame[f].nslot; k++)
                p->frame[f].slot[k] +=
                    p->frame[f].slot[k] < HOSTSPACE ? r->persist : host;
        if (p->transient > most)
            most = p->transient;
    }
    r->arena = r->persist + most;
}

static Role *make_roles(const Emit *e)
{
    Role *r = alloc(e->arena, sizeof *r * (size_t)e->nstage);

    for (int i = 0; i < e->nstage; i++) {
        const StageBuilder *s = &e->stage[i];
        r[i] = (Role){
            .nbuf = (int)vec_len(s->buf),
            .buf = s->buf,
            .nprog = (int)vec_len(s->prog),
            .prog = s->prog,
            .ntensor = (int)vec_len(s->tensor),
            .tensor = s->tensor,
            .nin = (int)vec_len(s->in),
            .in = s->in,
            .nout = (int)vec_len(s->out),
            .out = s->out,
            .host = s->host,
        };
        place_all(&r[i]);
    }
    return r;
}

/* Of one micro-batch: the elements of the first input, a token each. */
static int64_t tokens_of(const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Oinput)
            return g_elems(g->node[i]);
    return 0;
}

Plan *emit_finish(Emit *e, const CompileOptions *o)
{
    Plan *p = alloc(e->arena, sizeof *p);
    Graph *g = e->logical;

    *p = (Plan){
        .model = g->name,
        .target = e->target->name,
        .mesh = e->mesh,
        .opts = g->opts,
        .nshape = (int)vec_len(shapes_all(e->shapes)),
        .shape = shapes_all(e->shapes),
        .nrole = e->nstage,
        .role = make_roles(e),
        .prelude = e->prelude.s,
        .nkernel = (int)vec_len(e->kernel),
        .kernel = e->kernel,
        .nhf = g->nhf,
        .hf = g->hf,
    };
    p->tokens = (int64_t)micro_batches(g) * tokens_of(g);
    p->flops = flops_per_token(g, &p->params, &p->active) * (double)p->tokens;
    signatures_give(e->sigs, p);
    if (o) {
        p->nsource = o->nsource;
        p->source = o->source;
    }
    if (!o || !o->prices)
        plan_check(p);
    return p;
}
