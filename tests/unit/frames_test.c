/* frames_test: programs of pipeline stages run in the memory that the plan
 * gives them. Random stages under every schedule, from one value a call to
 * many, are executed on real bytes, row after row of their tables: a step fills
 * its result with a byte of its own and finds its operands' bytes, of its
 * micro-batch, as they were left. What is dead is poisoned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "../../passes/passes.h"
#include "lives.h"

static uint64_t seed;

static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- random stages ------------------------------------------------------- */

/* One node a kernel, with all operands as arguments; transfers as they are. */
static void fake_lower(Graph *g, Group *k, Arena *a)
{
    const Node *n = k->node[0];
    int moves = n->op == Osend || n->op == Orecv;

    k->narg = k->nin + (n->op == Osend ? 0 : k->nout);
    k->arg = alloc(a, sizeof(Node *) * (size_t)(k->narg + 1));
    memcpy(k->arg, k->in, sizeof(Node *) * (size_t)k->nin);
    if (n->op != Osend)
        memcpy(k->arg + k->nin, k->out, sizeof(Node *) * (size_t)k->nout);
    Kernel kernel = kernel_new(forever, "void @(void) {}");
    k->text = kernel.text;
    k->instr = (Instr){ .kind = Ikernel,
                        .kernel = kernel.name,
                        .launch = { .grain = 1 },
                        .label = n->name };
    if (moves) {
        k->instr.kind = n->op == Osend ? Isend : Irecv;
        k->instr.kernel = NULL;
        k->instr.nword = 0;
        k->instr.transfer =
            (TransferArgs){ Df32, local_elems(g, n->op == Osend ? n->in[0] : n),
                            n->op == Osend ? n->at.send.peer : n->at.recv.peer,
                            n_chan(n) };
        k->instr.atoms = g->mesh->mask[Mpp];
    }
    k->inplace = alloc(a, sizeof *k->inplace * (size_t)(k->nin + 1));
    for (int i = 0; i < k->nin && n->op == Oadd; i++) {
        k->inplace[k->ninplace][0] = 0;
        k->inplace[k->ninplace++][1] = i;
    }
}

static const Target fake = { .name = "host", .lower = fake_lower };

static Dim dim_no(Graph *g, int n)
{
    static const char *const names[] = { "a", "b", "c", "d" };
    static const int sizes[] = { 8, 100, 700, 2000 };

    return (Dim){ g_axis(g, names[n]), sizes[n] };
}

static Node *sized(Graph *g, Op op, Region reg, int call, int nin, Node **in)
{
    Node *x = g_node(g, op, NULL, nin, in);
    int n = below(4);

    x->dt = Df32;
    x->reg = reg;
    x->call = call;
    x->nd = 1;
    x->dim[0] =
        nin && op != Oadd && op != Oexp ? in[nin - 1]->dim[0] : dim_no(g, n);
    return x;
}

typedef struct Model {
    Schedule *s;
    StageTransfer *edge; /* vec */
    PipeRow **row;
    int chans, size;
} Model;

typedef struct Maker { /* a stage being made */
    Graph *g;
    const Model *m;
    Node **pre, **post; /* vecs: what their readers may take */
    Node ***kept;       /* by job and chunk: vec */
} Maker;

static Node ***kept(const Maker *k, int w, int chunk)
{
    return &k->kept[w * k->m->s->chunks + chunk];
}

static int call_of(Graph *g, Call c)
{
    for (size_t i = 0; i < vec_len(g->call); i++) {
        const Call *x = &g->call[i];
        if (x->k == c.k && x->w == c.w && x->chunk == c.chunk &&
            (c.k == ROWwork || (x->to == c.to && x->other == c.other)))
            return (int)i + 1;
    }
    vec_push(forever, g->call, c);
    return (int)vec_len(g->call);
}

static Node *pick(Node **v)
{
    return v[below((int)vec_len(v))];
}

static void add_accum(Maker *k, int call, Node *from)
{
    Node *x = sized(k->g, Oaccum, REGbody, call, 1, &from);

    x->at.accum.op = below(4) ? Radd : below(2) ? Rmax : Rlast;
    vec_push(forever, k->post, x);
}

/* What w of chunk c does, from what is there before it. */
static void add_work(Maker *k, int w, int c)
{
    Node **from = NULL, **mine = *kept(k, w, c);
    int call = call_of(k->g, (Call){ ROWwork, (WorkKind)w, c, WF, 0 });

    for (size_t i = 0; i < vec_len(k->pre); i++)
        if (!below(2))
            vec_push(forever, from, k->pre[i]);
    for (int q = 0; q <= w; q++) {
        Node **v = *kept(k, q, c);
        for (size_t i = 0; i < vec_len(v); i++)
            if (q == w || below(3))
                vec_push(forever, from, v[i]);
    }
    for (int i = 1 + below(k->m->size); i-- > 0;) {
        Node *in[3];
        int nin = from ? below(4) : 0;
        for (int j = 0; j < nin; j++)
            in[j] = pick(from);
        Node *x = sized(k->g, below(3) ? Oadd : Oexp, REGbody, call, nin, in);
        vec_push(forever, from, x);
        if (below(3))
            vec_push(forever, mine, x);
        else if (i == 0)
            vec_push(forever, mine, x);
    }
    *kept(k, w, c) = mine;
    for (int i = below(3); i-- > 0;)
        add_accum(k, call, pick(mine));
}

static void add_transfers(Maker *k, int role, int receive)
{
    const Schedule *s = k->m->s;

    for (size_t i = 0; i < vec_len(k->m->edge); i++) {
        StageTransfer e = k->m->edge[i];
        int from = s->rank[e.a], to = s->rank[e.b];
        if ((receive ? to : from) != role)
            continue;
        Call c = { receive ? ROWrecv : ROWsend, e.from, e.a, e.to, e.b };
        Node **v = *kept(k, e.from, e.a), *in = receive ? NULL : pick(v);
        if (!receive) {
            in = sized(k->g, Oexp, REGbody,
                       call_of(k->g, (Call){ ROWwork, e.from, e.a, WF, 0 }), 1,
                       &in);
            in->dim[0] = dim_no(k->g, (int)i % 4);
        }
        Node *x = sized(k->g, receive ? Orecv : Osend, REGbody,
                        call_of(k->g, c), !receive, &in);
        if (receive)
            x->at.recv = (struct recv_attrs){ from, (int64_t)i };
        else
            x->at.send = (struct send_attrs){ to, (int64_t)i };
        x->dim[0] = dim_no(k->g, (int)i % 4);
        if (receive)
            vec_push(forever, *kept(k, e.to, e.b), x);
        c.k = ROWwait;
        if (!receive)
            call_of(k->g, c);
    }
}

static void add_turns(Maker *k, int role)
{
    const PipeRow *row = k->m->row[role];

    for (size_t i = 0; i < vec_len(row); i++) {
        Call c = { row[i].k, row[i].w, row[i].chunk, WF, 0 };
        if (c.k != ROWwork) {
            const StageTransfer *e = &k->m->edge[row[i].edge];
            c = (Call){ c.k, e->from, e->a, e->to, e->b };
        }
        vec_push(forever, k->g->slot,
                 ((ScheduleSlot){ call_of(k->g, c) - 1, row[i].micro,
                                  row[i].pair }));
    }
}

static Graph *stage(const Model *m, int role, const Mesh *mesh, const Opts *o)
{
    Maker k = { .g = g_new(forever, "random"), .m = m };
    Graph *g = k.g;

    g->prog = PGstep;
    g->opts = (Opts *)o;
    g->mesh = (Mesh *)mesh;
    g->role = role;
    g->nrole = m->s->ranks;
    k.kept = alloc(forever, sizeof *k.kept * (size_t)(NJOB * m->s->chunks));
    for (int i = 1 + below(3); i-- > 0;)
        vec_push(forever, k.pre, sized(g, Oexp, REGpre, 0, 0, NULL));
    int splits = schedule_splits(m->s);
    add_transfers(&k, role, 1);
    for (int w = 0; w < NJOB; w++)
        for (int c = 0; c < m->s->chunks; c++)
            if (m->s->rank[c] == role &&
                (w == WF || (splits ? w != WB : w == WB)))
                add_work(&k, w, c);
    add_transfers(&k, role, 0);
    add_turns(&k, role);
    for (int i = below(4); i-- > 0 && k.post;) {
        Node *in[2] = { pick(k.post), pick(k.pre) };
        sized(g, Oexp, REGpost, 0, 2, in);
    }
    g_renumber(g);
    for (size_t i = 0; i < vec_len(g->node); i++)
        g->node[i]->name = intern(strf(forever, "n%zu", i));
    return g;
}

static Model *random_model(void)
{
    static const char *const kinds[] = { "1f1b", "interleaved", "zerobubble",
                                         "dualpipev" };
    Model *m = alloc(forever, sizeof *m);
    int kind = below(4), p = 2 + below(3);
    int vpp = kind == 1 ? 2 + below(2) : kind == 3 ? 2 : 1;

    m->size = 1 + below(12);
    m->s = schedule_make(forever, kinds[kind], p, vpp, 2 * p + below(9), NULL);
    int back = schedule_splits(m->s) ? WI : WB;
    for (int c = 0; c + 1 < m->s->chunks; c++) {
        if (m->s->rank[c] == m->s->rank[c + 1])
            continue;
        vec_push(forever, m->edge, ((StageTransfer){ WF, c, WF, c + 1 }));
        vec_push(forever, m->edge,
                 ((StageTransfer){ (WorkKind)back, c + 1, (WorkKind)back, c }));
    }
    m->row = schedule_rows(forever, m->s, m->edge, (int)vec_len(m->edge));
    return m;
}

static Group *group_of(Node *n)
{
    Group *k = alloc(forever, sizeof *k);

    *k = (Group){
        .fam = FAMloop, .reg = n->reg, .call = n->call, .n = 1, .nout = 1
    };
    k->node = k->out = alloc(forever, sizeof *k->node);
    k->node[0] = n;
    k->in = n->in;
    k->nin = n->nin;
    if (n->op != Osend && n->op != Orecv && !below(4))
        k->scratch = 1 + below(5000);
    return k;
}

static Plan *plan_of(const Model *m, Graph **g, Table *groups)
{
    int64_t size[NMESH] = { [Mpp] = m->s->ranks };
    Mesh *mesh = mesh_new(forever, m->s->ranks, size, "tp-cp-dp-pp", NULL);
    Opts *o = opts_new(forever);
    Emit *e = NULL;

    opts_set(o, "train.batch", strf(forever, "%d", m->s->micros), NULL);
    for (int r = 0; r < m->s->ranks; r++) {
        Group **k = NULL;
        g[r] = stage(m, r, mesh, o);
        compile_begin(g[r], &fake, &(CompileOptions){ 0 });
        if (!e)
            e = emit_new(forever, g[r], &fake);
        for (int reg = 0; reg < NREGION; reg++)
            for (size_t i = 0; i < vec_len(g[r]->node); i++) {
                Node *n = g[r]->node[i];
                if ((int)n->reg != reg)
                    continue;
                vec_push(forever, k, group_of(n));
                fake_lower(g[r], k[vec_len(k) - 1], forever);
                *table_at(groups,
                          KEYP(intern(strf(forever, "%d %s", r, n->name)))) =
                    k[vec_len(k) - 1];
            }
        emit_program(e, place_program(g[r], k));
    }
    return emit_finish(e, NULL);
}

/* ---- running them -------------------------------------------------------- */

typedef struct Run {
    const Graph *g;
    const Role *r;
    const Program *p;
    int role, micro, micros;
    Table *group; /* "role name" -> group */
    uint8_t *mem;
    uint8_t *now; /* [node][micro]: the byte it should hold */
    LastUse *dead;
    uint8_t tick;
} Run;

static uint8_t *bytes_at(const Run *x, int buf)
{
    const Buf *b = &x->r->buf[buf];
    const SlotGroup *f = b->frame ? &x->p->frame[b->frame - 1] : NULL;

    return x->mem + b->offset + (f ? f->slot[f->of[x->micro]] : 0);
}

/* What lives through the table has one value for all micro-batches. */
static uint8_t *now(const Run *x, Node *n)
{
    int one = n->reg != REGbody || n->op == Oaccum;

    return &x->now[storage(n)->id * x->micros + (one ? 0 : x->micro)];
}

static void check_value(const Run *x, Node *n, int buf, const char *label)
{
    const uint8_t *at = bytes_at(x, buf);

    for (int64_t i = 0; i < x->r->buf[buf].bytes; i++)
        if (at[i] != *now(x, n))
            fail_msg("stage %d, step %s, micro-batch %d: %s was overwritten",
                     x->role, label, x->micro, n->name);
}

static void fill(const Run *x, int buf, uint8_t v)
{
    memset(bytes_at(x, buf), v, (size_t)x->r->buf[buf].bytes);
}

static void write_value(Run *x, Node *n, int buf)
{
    *now(x, n) = (uint8_t)(1 + x->tick++ % 250);
    fill(x, buf, *now(x, n));
}

static void run_group(Run *x, const Group *k, const Instr *s)
{
    for (int i = 0; i < k->nin; i++)
        check_value(x, k->in[i], s->buf[i], s->label);
    if (s->kind == Isend || s->kind == Iwait)
        return;
    Node *n = k->out[0];
    if (n->op == Oaccum && n->at.accum.op != Rlast)
        check_value(x, n, s->buf[k->nin], s->label);
    if (k->scratch)
        fill(x, s->buf[s->nbuf - 1], 0xee);
    write_value(x, n, s->buf[k->nin]);
}

static const Group *find(const Run *x, const char *name)
{
    return table_get(x->group,
                     KEYP(intern(strf(forever, "%d %s", x->role, name))));
}

static void run_step(Run *x, int i)
{
    const Instr *s = &x->p->instr[i];
    const Group *k = find(x, s->kind == Iwait ? s->label + 5 : s->label);

    if (k) {
        run_group(x, k, s);
    } else {
        k = find(x, s->label + strlen("clear "));
        assert_non_null(k);
        *now(x, k->out[0]) = 7;
        fill(x, s->buf[0], 7);
    }
    for (size_t d = 0; d < vec_len(x->dead); d++)
        if (x->dead[d].instr == i && !x->dead[d].last)
            memset(x->mem + x->dead[d].offset, 0xff, (size_t)x->dead[d].bytes);
}

static void run_phase(Run *x, const Phase *f)
{
    for (int i = f->first; i < f->first + f->n; i++)
        run_step(x, i);
}

static void run_stage(Run *x)
{
    int tabled = 0;

    memset(x->mem + x->r->persist, 0xff, (size_t)(x->r->arena - x->r->persist));
    for (int f = 0; f < x->p->nphase; f++) {
        for (int t = 0; t < x->p->nslot && !x->p->phase[f].repeat && !tabled;
             t++) {
            x->micro = x->p->slot[t].micro;
            run_phase(x, &x->p->phase[x->p->slot[t].phase]);
        }
        tabled |= !x->p->phase[f].repeat;
        x->micro = 0;
        for (int k = 0; k < x->p->phase[f].repeat; k++)
            run_phase(x, &x->p->phase[f]);
    }
}

/* ---- tests --------------------------------------------------------------- */

static void stages_run_in_their_memory(void **state)
{
    int steps = 0, rows = 0, frames = 0;
    double worst = 1, sum = 0;
    const int rounds = 150;
    (void)state;

    for (int i = 0; i < rounds; i++) {
        Graph *g[8];
        Table *groups = table_new(forever);
        seed = (uint64_t)i;
        const Model *m = random_model();
        const Plan *p = plan_of(m, g, groups);
        for (int r = 0; r < p->nrole; r++) {
            const Role *o = &p->role[r];
            const char *why = lives_wrong(forever, o);
            if (why)
                fail_msg("round %d, stage %d: %s", i, r, why);
            Run x = { .g = g[r],
                      .r = o,
                      .p = o->prog,
                      .role = r,
                      .micros = m->s->micros,
                      .group = groups,
                      .dead = deaths(forever, o, 0) };
            x.mem = malloc((size_t)o->arena + 1);
            x.now = calloc(vec_len(g[r]->node) + 1, (size_t)x.micros);
            run_stage(&x);
            free(x.mem);
            free(x.now);
            steps += o->prog->ninstr;
            rows += o->prog->nslot;
            frames += o->prog->nframe;
            double ratio = (double)o->prog->transient / (double)o->prog->bound;
            worst = ratio > worst ? ratio : worst;
            sum += ratio / p->nrole;
        }
    }
    printf("# %d steps in %d rows, %d frames; height over bound %.3f, at worst "
           "%.3f\n",
           steps, rows, frames, sum / rounds, worst);
    assert_true(frames > 1000 && sum / rounds < 1.15);
}

/* Slots that move: what the one check finds the other does too, and it is never
 * silent where a byte is used twice. */
static void moved_slots_are_found(void **state)
{
    int found = 0, tried = 0;
    (void)state;

    for (int i = 0; i < 60; i++) {
        Graph *g[8];
        seed = (uint64_t)i;
        Plan *p = plan_of(random_model(), g, table_new(forever));
        const Role *r = &p->role[below(p->nrole)];
        Program *q = r->prog;
        assert_null(plan_wrong(forever, p));
        for (int k = 0; k < 20 && q->nframe; k++) {
            SlotGroup *f = &q->frame[below(q->nframe)];
            int64_t *at = &f->slot[below(f->nslot)], was = *at;
            *at =
                r->persist +
                256 *
                    below((int)((r->arena - r->persist - f->bytes) / 256 + 1));
            int one = plan_wrong(forever, p) != NULL;
            int two = lives_wrong(forever, r) != NULL;
            if (two && !one)
                fail_msg("%s", lives_wrong(forever, r));
            found += one;
            tried++;
            *at = was;
        }
    }
    printf("# %d of %d moved slots are wrong\n", found, tried);
    assert_true(tried > 500 && found > tried / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_run_in_their_memory),
        cmocka_unit_test(moved_slots_are_found),
    };
    return cmocka_run_group_tests_name("frames", tests, NULL, NULL);
}
