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
#include "emit.h"

/* What the ranks of one stage run, as far as it is made. */
typedef struct StageBuilder {
    Buf *buf; /* vecs */
    Tensor *tensor;
    const char **parameter; /* of each, a parameter's path; null: none */
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
    Kernel *kernel;   /* vec; all stages too */
    Table *kernels;   /* name -> 1 + number */
    Text prelude;     /* the target's, then what kernels share */
    const char *host; /* ... before kernels of its host; null: there are none */
    Table *shared;    /* texts that are in it */
};

/* ---- what lives always --------------------------------------------------- */

static void place_of(const Loc *loc, const char **file, int *line)
{
    *file = loc ? loc->file : NULL;
    *line = loc ? loc->line : 0;
}

static int add_buf(Emit *emit, Buf b, const Loc *loc)
{
    place_of(loc, &b.file, &b.line);
    vec_push(emit->arena, emit->now->buf, b);
    return (int)vec_len(emit->now->buf) - 1;
}

static void fill_dim(Emit *emit, const Graph *g, const Node *n, int d,
                     PlanDim *dim)
{
    Piece piece[MAXPIECE];
    Axis *a = n->dim[d].a;

    dim->axis = unpadded(a)->name;
    dim->role = a->role;
    dim->n = a->parts ? unpadded(a)->n : n->dim[d].n;
    dim->npiece = pieces(g, n, d, piece);
    if (a->parts) {
        dim->npiece = 2;
        uneven_pieces(g->mesh, dim->n, cut_atoms(g->mesh, n, a), piece);
    }
    dim->piece = alloc(emit->arena, sizeof *piece * (size_t)dim->npiece);
    memcpy(dim->piece, piece, sizeof *piece * (size_t)dim->npiece);
}

/* A tensor of the parameter at a path, or null. */
static void add_tensor(Emit *emit, const Graph *g, const Node *n,
                       const char *name, TensorKind kind, const char *parameter,
                       int buf)
{
    Tensor t = {
        .name = name, .kind = kind, .dt = n->dt, .nd = n->nd, .buf = buf
    };
    t.second = n->op == Oinput && n->at.input.second;
    t.below = n->op == Oinput ? n->at.input.below : 0;

    for (int d = 0; d < n->nd; d++)
        fill_dim(emit, g, n, d, &t.dim[d]);
    place_of(n->loc, &t.file, &t.line);
    vec_push(emit->arena, emit->now->tensor, t);
    vec_push(emit->arena, emit->now->parameter, parameter);
}

/* What this rank has of a bucket's member, as the optimizer's value. */
static void add_member(Emit *emit, Graph *g, const Node *bucket,
                       const Param *of, const Param *p, int buf)
{
    const Axis *flat = bucket->dim[bucket->nd - 1].a;
    Node n = { .op = Oparam, .dt = of->dt, .nd = p->nd, .loc = p->loc };
    size_t last = vec_len(emit->now->tensor);

    memcpy(n.dim, p->dim, sizeof n.dim);
    n.sh = param_type(g, p);
    const char *name =
        intern(strf(emit->arena, "%.*s%s", kind_prefix(of->kind, of->path),
                    of->path, p->path));
    int copy = of->kind == TKparam && p->copy;
    add_tensor(emit, g, &n, name, copy ? TKcopy : of->kind, p->path, buf);
    Tensor *tensor = &emit->now->tensor[last];
    tensor->at = p->at;
    tensor->run = local_n(g, bucket, bucket->nd - 1);
    tensor->shard = flat->atoms;
}

static void add_members(Emit *emit, Graph *g, const Node *n, const Param *of,
                        int buf)
{
    for (size_t i = 0; i < vec_len(g->param); i++) {
        const Param *p = g->param[i];
        if (is_member(p, of->bucket))
            add_member(emit, g, n, of, p, buf);
    }
}

static int add_lasting(Emit *emit, Graph *g, const Node *n)
{
    Buf b = { .name = n_name(n),
              .cls = Bio,
              .dt = n->dt,
              .prog = -1,
              .offset = is_hosted(n) ? HOSTSPACE : 0,
              .bytes = local_bytes(g, n) };

    if (n->op == Ostepval || n->op == Oresult) {
        int in = n->op == Ostepval;
        b.name = strf(emit->arena, in ? "step.%s" : "result.%s", n_name(n));
        Scalar s = { .name = n_name(n), .dt = n->dt };
        if (n->nd)
            s.dim = (ValueDim){ unpadded(n->dim[0].a)->name, local_n(g, n, 0),
                                0, 0 };
        s.buf = add_buf(emit, b, in ? NULL : n->loc);
        if (in)
            s.value = n->at.stepval.name;
        else if (!result_named(&s))
            die("emit: no result '%s'", s.name);
        if (in)
            vec_push(emit->arena, emit->now->in, s);
        else
            vec_push(emit->arena, emit->now->out, s);
        return s.buf;
    }
    const Param *p = n->op == Oinput ? NULL : g_param(g, n_name(n));
    if (p)
        b.cls = tensor_kinds[p->kind].cls;
    int i = add_buf(emit, b, n->loc);
    if (p && p->bucket && !is_member(p, NULL))
        add_members(emit, g, n, p, i);
    else
        add_tensor(emit, g, n, n_name(n),
                   !p                   ? TKinput
                   : !p->copy           ? p->kind
                   : p->kind == TKparam ? TKcopy
                                        : TKcopied,
                   p ? p->of : NULL, i);
    return i;
}

static const char *key_of(const Emit *emit, const Node *n)
{
    static const char *const prefix[] = {
        [Oinput] = "input", [Ostepval] = "step", [Oresult] = "result",
        [Oparam] = "param", [Ostate] = "param",
    };
    int second = n->op == Oinput && n->at.input.second;
    return intern(strf(emit->arena, "%s%s %s", second ? "second " : "",
                       prefix[n->op], n_name(n)));
}

typedef struct Lasting {
    const Node *n;
    int buf;
} Lasting;

/* Programs must agree on what they share. */
static void same_as_before(const Emit *emit, const Graph *g, const Node *n,
                           const Lasting *was)
{
    const Buf *b = &emit->now->buf[was->buf];

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

static int lasting(Emit *emit, Graph *g, const Node *n)
{
    Lasting **at =
        (Lasting **)table_at(emit->now->named, KEYP(key_of(emit, n)));

    if (*at) {
        same_as_before(emit, g, n, *at);
    } else {
        *at = alloc(emit->arena, sizeof **at);
        **at = (Lasting){ n, add_lasting(emit, g, n) };
    }
    return (*at)->buf;
}

/* ---- buffers ------------------------------------------------------------- */

static const char *live_name(const ProgramBuilder *builder, const Live *live)
{
    if (live->stack)
        return strf(builder->emit->arena, "stash.%d", live->stack);
    return live->node ? live->node->name
                      : strf(builder->emit->arena, "work of %s",
                             builder->group[live->instr]->instr.label);
}

static void add_live(ProgramBuilder *builder, Live *live, int stack)
{
    Buf b = { .name = live_name(builder, live),
              .cls = live->stack  ? Bstash
                     : live->node ? Btemp
                                  : Bscratch,
              .dt = live->node ? live->node->dt : Du8,
              .offset = live->offset,
              .bytes = live->bytes,
              .born = live->born,
              .dies = live->dies,
              .frame = live->frame,
              .stack = stack,
              .prog = (int)vec_len(builder->emit->now->prog) };
    int i = add_buf(builder->emit, b, live->node ? live->node->loc : NULL);

    if (live->stack)
        live->buf = i;
    else if (live->node)
        live->node->buf = i;
    else
        builder->work[live->instr] = i;
}

/* The buffer of what lies where another does: of its own in a stack. */
static void add_to(ProgramBuilder *builder, Live *live, const Live *root)
{
    if (!root->stack) {
        live->node->buf = root->node->buf;
        return;
    }
    live->offset = root->offset;
    live->frame = root->frame;
    add_live(builder, live, 1 + root->buf);
}

/* From here on n->buf is the buffer of a stored value. Those that took over
 * another's follow once that one has a number. */
static void number_buffers(ProgramBuilder *builder)
{
    Graph *g = builder->graph;
    Layout *layout = builder->layout;

    builder->work = alloc(builder->emit->arena,
                          sizeof(int) * (vec_len(builder->group) + 1));
    for (size_t i = 0; i < vec_len(builder->group); i++)
        builder->work[i] = -1;
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->buf = -1;
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (is_persistent(g->node[i]))
            g->node[i]->buf = lasting(builder->emit, g, g->node[i]);
    for (int i = 0; i < layout->n; i++)
        if (layout->live[i].same < 0)
            add_live(builder, &layout->live[i], 0);
    for (int i = 0; i < layout->n; i++)
        if (layout->live[i].node && layout->live[i].same >= 0)
            add_to(builder, &layout->live[i],
                   &layout->live[layout_root(layout, i)]);
}

static void add_outputs(ProgramBuilder *builder)
{
    for (size_t i = 0; i < vec_len(builder->graph->node); i++) {
        Node *n = builder->graph->node[i], view;
        if (n->op != Ooutput)
            continue;
        int b = storage(n->in[0])->buf;
        if (b < 0)
            die("emit: output '%s' was never made", n->at.output.name);
        view = *n->in[0];
        view.loc = n->loc;
        add_tensor(builder->emit, builder->graph, &view, n->at.output.name,
                   TKoutput, NULL, b);
        if (builder->emit->now->buf[b].prog >= 0)
            builder->emit->now->buf[b].name = n->at.output.name;
    }
}

/* ---- instructions -------------------------------------------------------- */

static void add_shared(Emit *emit, const char *text)
{
    void **at = table_at(emit->shared, KEYP(text));

    if (!*at)
        putn(&emit->prelude, text, strlen(text));
    *at = emit;
}

/* Adds the kernel of group, unless it is there. */
static void add_kernel(Emit *emit, const Group *group)
{
    const char *name = intern(group->instr.kernel);
    void **at = table_at(emit->kernels, KEYP(name));

    if (*at)
        return;
    vec_push(emit->arena, emit->kernel, ((Kernel){ name, group->text }));
    if (group->shared)
        add_shared(emit, group->shared);
    if (group->host && emit->target->host)
        emit->host = emit->target->host->prelude;
    *at = emit;
}

static void fill_instr(ProgramBuilder *builder, int i, Instr *instr)
{
    const Group *k = builder->group[i];
    const InstrInfo *info = instr_info(k->instr.kind);
    int work = builder->work[i];
    int n = instr_many(info) ? k->narg + (work >= 0) : info->nop;
    Issue issue = instr->issue;

    *instr = k->instr;
    instr->issue = issue;
    instr->nbuf = n;
    instr->buf =
        alloc(builder->emit->arena, sizeof *instr->buf * (size_t)(n + 1));
    for (int j = 0; j < n; j++)
        instr->buf[j] = j < k->narg && k->arg[j] ? storage(k->arg[j])->buf : -1;
    if (work >= 0)
        instr->buf[n - 1] = work;
    if (builder->graph->compile->options.prices)
        return;
    flow_instr(builder, k, instr);
    if (!instr->kernel)
        return;
    sign_call(builder, k, instr);
    add_kernel(builder->emit, k);
}

static void enter_stage(Emit *emit, const Graph *g)
{
    int n = g->nrole ? g->nrole : 1;

    if (!emit->stage) {
        emit->stage = alloc(emit->arena, sizeof *emit->stage * (size_t)n);
        emit->nstage = n;
        for (int i = 0; i < n; i++)
            emit->stage[i].named = table_new(emit->arena);
    }
    if (n != emit->nstage || g->role < 0 || g->role >= n)
        die("emit: program %s of stage %d of %d, not %d", programnames[g->prog],
            g->role, n, emit->nstage);
    emit->now = &emit->stage[g->role];
}

static double seconds_rebuilt(const ProgramBuilder *builder,
                              const Program *program)
{
    double sum = 0;

    for (int f = 0; f < program->nphase; f++)
        for (int i = program->phase[f].first;
             i < program->phase[f].first + program->phase[f].n; i++) {
            const Group *group = builder->group[i];
            int again = group->nout > 0;
            for (int j = 0; j < group->nout; j++)
                again &= is_rebuilt(group->out[j]);
            if (again)
                sum += group->instr.secs *
                       (double)instr_runs(program, f, &group->instr);
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
    m->nnamed = name_values(m->arena, g, m->group, (int)vec_len(m->group));
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
    price_dispatcher(g, m->group, p->ninstr);
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
    if (!g->call && program_trains(g->prog))
        p->kept = kept_of(g->arena, g, m->group, p, m->layout);
    return m;
}

static Plan plan_like(const ProgramBuilder *builder, Role *role, Program *prog)
{
    *prog = builder->prog;
    *role = (Role){ .nprog = 1, .prog = prog };
    return (Plan){ .mesh = builder->graph->mesh, .nrole = 1, .role = role };
}

double program_secs(const ProgramBuilder *builder)
{
    Program prog;
    Role role;
    Plan p = plan_like(builder, &role, &prog);

    return plan_secs(&p, prog.kind);
}

int64_t program_micros(const ProgramBuilder *builder)
{
    Program prog;
    Role role;
    Plan p = plan_like(builder, &role, &prog);

    return plan_micros(&p, prog.kind);
}

double program_unwaiting(const ProgramBuilder *builder)
{
    Program prog;
    Role role;
    Plan p = plan_like(builder, &role, &prog);
    Arena *a = arena_new();

    prog.instr = alloc(a, sizeof *prog.instr * (size_t)(prog.ninstr + 1));
    memcpy(prog.instr, builder->prog.instr,
           sizeof *prog.instr * (size_t)prog.ninstr);
    for (int f = 0; f < prog.nphase; f++)
        for (int i = prog.phase[f].first;
             i < prog.phase[f].first + prog.phase[f].n; i++)
            if (builder->group[i]->fam == FAMcopy &&
                builder->phase[f].reg == REGbody)
                prog.instr[i].secs = 0;
    double secs = plan_secs(&p, prog.kind);
    arena_free(a);
    return secs;
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

double program_unhidden(const ProgramBuilder *builder)
{
    Program prog;
    Role role;
    Plan p = plan_like(builder, &role, &prog);

    prog.phase =
        alloc(builder->arena, sizeof *prog.phase * (size_t)prog.nphase);
    prog.nphase = 0;
    for (int f = 0; f < builder->prog.nphase; f++)
        if (builder->phase[f].reg == REGden || builder->phase[f].reg == REGbody)
            prog.phase[prog.nphase++] = builder->phase[f];
    return plan_secs(&p, prog.kind) - plan_bare(&p, prog.kind);
}

void emit_program(Emit *emit, ProgramBuilder *builder)
{
    Program *program = &builder->prog;

    builder->emit = emit;
    builder->shapes = emit->shapes;
    builder->sigs = emit->sigs;
    if (!emit->mesh)
        emit->mesh = builder->graph->mesh;
    enter_stage(emit, builder->graph);
    if (emit->now->host < builder->layout->host)
        emit->now->host = builder->layout->host;
    number_buffers(builder);
    add_outputs(builder);
    for (int i = 0; i < program->ninstr; i++)
        fill_instr(builder, i, &program->instr[i]);
    if (!builder->graph->compile->options.prices)
        flow_ends(builder, program);
    vec_push(emit->arena, emit->now->prog, *program);
}

/* ---- the whole ----------------------------------------------------------- */

Emit *emit_new(Arena *a, Graph *g, const Target *target)
{
    Emit *e = alloc(a, sizeof *e);

    *e = (Emit){ .arena = a, .logical = g, .target = target };
    e->kernels = table_new(a);
    e->prelude.arena = a;
    e->shared = table_new(a);
    if (target->prelude)
        putn(&e->prelude, target->prelude, strlen(target->prelude));
    e->shapes = shapes_new(a);
    e->sigs = signatures_new(a);
    return e;
}

/* What lives always in an arena, classes one after another from `from` on; its
 * bytes. */
static int64_t place_lasting(Role *role, int64_t from)
{
    int64_t at = from;

    for (int c = 0; c < NBUFCLASS; c++)
        for (int i = 0; i < role->nbuf; i++) {
            Buf *b = &role->buf[i];
            if (b->prog >= 0 || b->cls != (BufClass)c ||
                b->offset / HOSTSPACE != from / HOSTSPACE)
                continue;
            b->offset = at;
            at += (b->bytes + BUFALIGN - 1) / BUFALIGN * BUFALIGN;
        }
    return at - from;
}

/* What lives always, then the part that programs share. */
static void place_all(Role *role)
{
    int64_t most = 0, host = place_lasting(role, HOSTSPACE);

    role->persist = place_lasting(role, 0);
    role->host += host;
    for (int i = 0; i < role->nbuf; i++)
        if (role->buf[i].prog >= 0 && !role->buf[i].frame)
            role->buf[i].offset +=
                role->buf[i].offset < HOSTSPACE ? role->persist : host;
    for (int i = 0; i < role->nprog; i++) {
        Program *program = &role->prog[i];
        for (int f = 0; f < program->nframe; f++)
            for (int k = 0; k < program->frame[f].nslot; k++)
                program->frame[f].slot[k] +=
                    program->frame[f].slot[k] < HOSTSPACE ? role->persist
                                                          : host;
        if (program->transient > most)
            most = program->transient;
    }
    role->arena = role->persist + most;
}

/* Which tensors are of which. */
static void settle_companions(Arena *a, const StageBuilder *builder)
{
    Table *at = table_new(a); /* path of a parameter -> Tensor */

    for (size_t i = 0; i < vec_len(builder->tensor); i++) {
        Tensor *t = &builder->tensor[i];
        if (tensor_is(t, PARAMETERS))
            *table_at(at, KEYP(intern(t->name))) = t;
    }
    for (size_t i = 0; i < vec_len(builder->tensor); i++) {
        Tensor *t = &builder->tensor[i];
        const Tensor *of =
            tensor_is(t, COMPANIONS) && builder->parameter[i]
                ? table_get(at, KEYP(intern(builder->parameter[i])))
                : NULL;
        t->of = of ? (int)(of - builder->tensor) : 0;
    }
}

static Role *make_roles(const Emit *emit)
{
    Role *r = alloc(emit->arena, sizeof *r * (size_t)emit->nstage);

    for (int i = 0; i < emit->nstage; i++) {
        const StageBuilder *builder = &emit->stage[i];
        settle_companions(emit->arena, builder);
        r[i] = (Role){
            .nbuf = (int)vec_len(builder->buf),
            .buf = builder->buf,
            .nprog = (int)vec_len(builder->prog),
            .prog = builder->prog,
            .ntensor = (int)vec_len(builder->tensor),
            .tensor = builder->tensor,
            .nin = (int)vec_len(builder->in),
            .in = builder->in,
            .nout = (int)vec_len(builder->out),
            .out = builder->out,
            .host = builder->host,
        };
        place_all(&r[i]);
    }
    return r;
}

Plan *emit_finish(Emit *emit, const CompileOptions *options)
{
    Plan *p = alloc(emit->arena, sizeof *p);
    Graph *g = emit->logical;

    *p = (Plan){
        .model = g->name,
        .target = emit->target->name,
        .mesh = emit->mesh,
        .opts = g->opts,
        .nshape = (int)vec_len(shapes_all(emit->shapes)),
        .shape = shapes_all(emit->shapes),
        .nrole = emit->nstage,
        .role = make_roles(emit),
        .prelude = emit->prelude.s,
        .host = emit->host,
        .nkernel = (int)vec_len(emit->kernel),
        .kernel = emit->kernel,
        .nhf = g->nhf,
        .hf = g->hf,
    };
    p->tokens = (int64_t)(micro_batches(g) * g_tokens(g));
    p->flops = flops_per_token(g, &p->params, &p->active) * (double)p->tokens;
    signatures_give(emit->sigs, p);
    if (options) {
        p->nsource = options->nsource;
        p->source = options->source;
    }
    if (!options || !options->prices)
        plan_check(p);
    return p;
}
