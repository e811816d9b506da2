/* pipeplan.c: the plan behind pipe_test. Element by element, with weights a on
 * stage 0 and b on stage 1:
 *
 *     h = a x       e = c (b h - t), c = 1 + micro / 8     loss += c r^2 / 2
 *     db += e h     dh = e b                               da += dh x
 *
 * x is read again by the backward, h and x are kept in frames. The loss is one
 * term on stage 1 and zero on stage 0, summed over both; each weight lies on
 * the stage that has it, `a` on stage 1 too, as a copy that `post` refreshes.*/
#include <string.h>

#include "pipeplan.h"
#include "tinyplan.h"

static const char prelude[] =
    "#include <stdint.h>\n"
    "#define ARGS void *const *b, const int64_t *iv, int64_t lo, int64_t hi\n";

/* clang-format off */
static const Kernel kernels[] = {
    {"k_init", "void @(ARGS) {\n"
     "    double *w = b[0];\n"
     "    for (int64_t i = lo; i < hi; i++) w[i] = 0.25 * (double)(i + iv[0]);\n"
     "}\n"},
    {"k_f0", "void @(ARGS) {\n"
     "    const double *x = b[0], *a = b[1]; double *k = b[2], *h = b[3];\n"
     "    for (int64_t i = lo; i < hi; i++) k[i] = x[i], h[i] = a[i] * x[i];\n"
     "}\n"},
    {"k_f1", "void @(ARGS) {\n"
     "    const double *h = b[0], *w = b[1], *t = b[2]; double *e = b[4];\n"
     "    const int64_t *m = b[3]; double *loss = b[5];\n"
     "    for (int64_t i = lo; i < hi; i++) {\n"
     "        double c = 1 + (double)(*m + iv[0]) / 8;\n"
     "        double r = w[i] * h[i] - t[i];\n"
     "        e[i] = c * r; loss[0] += c * r * r / 2;\n"
     "    }\n}\n"},
    {"k_b1", "void @(ARGS) {\n"
     "    const double *h = b[0], *e = b[1], *w = b[2]; double *g = b[3];\n"
     "    double *d = b[4];\n"
     "    for (int64_t i = lo; i < hi; i++)\n"
     "        g[i] += e[i] * h[i], d[i] = e[i] * w[i];\n"
     "}\n"},
    {"k_b0", "void @(ARGS) {\n"
     "    const double *d = b[0], *x = b[1], *k = b[2]; double *g = b[3];\n"
     "    for (int64_t i = lo; i < hi; i++)\n"
     "        g[i] += d[i] * (x[i] + k[i]) / 2;\n"
     "}\n"},
    {"k_update", "void @(ARGS) {\n"
     "    const double *g = b[1], *lr = b[2]; double *w = b[0];\n"
     "    for (int64_t i = lo; i < hi; i++) w[i] -= lr[0] * g[i];\n"
     "}\n"},
};
/* clang-format on */

enum { W, COPY, IN, LR, MICRO, OUT, G, LOSS, X, H, E, D, NBUF };
enum { NKERNEL = sizeof kernels / sizeof *kernels };

typedef struct Make {
    Plan *p;
    Role *r;
    Program *g;
    int stage, line;
} Make;

static void add_buf(Make *k, int i, const char *name, BufClass cls, Dtype dt,
                    int64_t n)
{
    Buf *b = &k->r->buf[i];

    *b = (Buf){ .name = name,
                .cls = cls,
                .dt = dt,
                .offset = k->r->arena,
                .bytes = n * dtypes[dt].bytes,
                .prog = i < G ? -1 : 1,
                .file = "pipe.lua",
                .line = 10 + i };
    k->r->arena += (b->bytes + 255) / 256 * 256;
    k->r->nbuf++;
    if (i < G)
        k->r->persist = k->r->arena;
}

static void add_bufs(Make *k)
{
    static const char *const weight[] = { "a", "b" }, *const input[] = { "x",
                                                                         "t" };

    add_buf(k, W, weight[k->stage], Bparam, Df64, PIPEN);
    add_buf(k, COPY, "a.copy", Bparam, Df64, PIPEN);
    add_buf(k, IN, input[k->stage], Bio, Df64, PIPEN);
    add_buf(k, LR, "step.lr", Bio, Df64, 1);
    add_buf(k, MICRO, "step.micro", Bio, Di64, 1);
    add_buf(k, OUT, "result.loss", Bio, Df64, 1);
    add_buf(k, G, "grad", Btemp, Df64, PIPEN);
    add_buf(k, LOSS, "loss", Btemp, Df64, 1);
}

/* ---- instructions -------------------------------------------------------- */

static Instr *add_instr(Make *k, InstrKind kind, const char *label, int n,
                        const int *buf, const char *rw)
{
    Instr *s = &k->g->instr[k->g->ninstr++];

    *s = (Instr){ .kind = kind,
                  .kernel = kind == Ikernel ? intern(label) : NULL,
                  .label = label,
                  .nbuf = n,
                  .rw = kind == Ikernel ? rw : NULL,
                  .file = "pipe.lua",
                  .line = 30 + k->line++,
                  .secs = 1e-6 };
    s->buf = alloc(forever, 8 * sizeof *s->buf);
    memcpy(s->buf, buf, (size_t)n * sizeof *buf);
    s->word = alloc(forever, 8 * sizeof *s->word);
    return s;
}

#define INSTR(k, kind, label, rw, ...)                           \
    add_instr(k, kind, label,                                    \
              (int)(sizeof(int[]){ __VA_ARGS__ } / sizeof(int)), \
              (int[]){ __VA_ARGS__ }, rw)

/* v: items, grain, words. */
static void ints(Instr *s, int n, const int64_t *v)
{
    s->launch = (Launch){ .items = v[0], .grain = v[1] };
    s->nword = n - 2;
    for (int i = 0; i < s->nword; i++)
        s->word[i] = word_int(v[i + 2]);
}

#define INTS(s, ...)                                                   \
    ints(s, (int)(sizeof(int64_t[]){ __VA_ARGS__ } / sizeof(int64_t)), \
         (int64_t[]){ __VA_ARGS__ })

/* The rank's coordinate over dp: its own micro-batch of those of a turn. */
static RankAffine along_dp(const Plan *p)
{
    RankAffine x = aff(0);

    for (int a = 0, n = 1; a < p->mesh->natom; a++)
        if (p->mesh->mask[Mdp] >> a & 1) {
            x.k[a] = n;
            n *= (int)p->mesh->atom[a].size;
        }
    return x;
}

static void phase(Make *k, const char *name, int64_t repeat)
{
    Program *g = k->g;
    int first = g->nphase
                    ? g->phase[g->nphase - 1].first + g->phase[g->nphase - 1].n
                    : 0;

    Phase f;
    if (!phase_named(forever, name, &f))
        die("no phase '%s'", name);
    f.first = first;
    f.n = g->ninstr - first;
    f.repeat = repeat;
    g->phase[g->nphase++] = f;
}

static void kernel(Make *k, Instr *s)
{
    (void)k;
    INTS(s, PIPEN, PIPEN);
}

static void transfer(Make *k, InstrKind kind, const char *name, int buf,
                     int chan)
{
    Instr *s = INSTR(k, kind, name, 0, buf);

    s->transfer = (TransferArgs){ Df64, PIPEN, 1 - k->stage, chan };
    s->atoms = k->p->mesh->mask[Mpp];
    phase(k, name, 0);
}

static void sum(Make *k, int buf, int64_t n, MeshAxis over)
{
    Instr *s = INSTR(k, Iallreduce, "sum", 0, buf, buf, -1);

    s->allreduce = (AllreduceArgs){ Df64, n, Radd };
    s->atoms = k->p->mesh->mask[over];
}

static void calls(Make *k)
{
    if (k->stage == 0) {
        kernel(k, INSTR(k, Ikernel, "k_f0", "rrww", IN, W, X, H));
        phase(k, "F0", 0);
        kernel(k, INSTR(k, Ikernel, "k_b0", "rrrb", D, IN, X, G));
        phase(k, "B0", 0);
        transfer(k, Isend, "send.F0.F1", H, 1);
        transfer(k, Irecv, "recv.B1.B0", D, 2);
        transfer(k, Iwait, "wait.F0.F1", H, 1);
        return;
    }
    Instr *s = INSTR(k, Ikernel, "k_f1", "rrrrwb", H, W, IN, MICRO, E, LOSS);
    INTS(s, PIPEN, PIPEN, 0);
    s->word[0] = (Word){ .at = along_dp(k->p) };
    phase(k, "F1", 0);
    kernel(k, INSTR(k, Ikernel, "k_b1", "rrrbw", H, E, W, G, D));
    phase(k, "B1", 0);
    transfer(k, Irecv, "recv.F0.F1", H, 1);
    transfer(k, Isend, "send.B1.B0", D, 2);
    transfer(k, Iwait, "wait.B1.B0", D, 2);
}

static void post(Make *k)
{
    if (k->p->mesh->size[Mdp] > 1) {
        sum(k, G, PIPEN, Mdp);
        sum(k, LOSS, 1, Mdp);
    }
    sum(k, LOSS, 1, Mpp);
    INSTR(k, Icopy, "loss", 0, LOSS, OUT);
    kernel(k, INSTR(k, Ikernel, "k_update", "brr", W, G, LR));
    Instr *s =
        INSTR(k, k->stage ? Irecv : Isend, "tied", 0, k->stage ? COPY : W);
    s->transfer = (TransferArgs){ Df64, PIPEN, 1 - k->stage, 3 };
    s->atoms = k->p->mesh->mask[Mpp];
    if (!k->stage) {
        s = INSTR(k, Iwait, "tied", 0, W);
        s->transfer = (TransferArgs){ Df64, PIPEN, 1, 3 };
        s->atoms = k->p->mesh->mask[Mpp];
    }
    phase(k, "post", 1);
}

static void programs(Make *k)
{
    k->g = &k->r->prog[k->r->nprog++];
    k->g->kind = PGinit;
    k->g->phase = alloc(forever, 16 * sizeof *k->g->phase);
    k->g->instr = alloc(forever, 32 * sizeof *k->g->instr);
    INTS(INSTR(k, Ikernel, "k_init", "w", W), PIPEN, PIPEN, 1 + 3 * k->stage);
    INTS(INSTR(k, Ikernel, "k_init", "w", COPY), PIPEN, PIPEN, 1);
    phase(k, "pre", 1);
    k->g = &k->r->prog[k->r->nprog++];
    k->g->kind = PGstep;
    k->g->phase = alloc(forever, 16 * sizeof *k->g->phase);
    k->g->instr = alloc(forever, 32 * sizeof *k->g->instr);
    INSTR(k, Izero, "zero", 0, G);
    INSTR(k, Izero, "zero", 0, LOSS);
    phase(k, "pre", 1);
    calls(k);
    post(k);
}

/* ---- table and frames ---------------------------------------------------- */

static int phase_at(const Program *g, const char *name)
{
    for (int f = 0; f < g->nphase; f++)
        if (!strcmp(g->phase[f].name, name))
            return f;
    die("no phase %s", name);
}

static void table(Make *k)
{
    static const char *const what[] = { "", "send.", "recv.", "wait." };
    static const StageTransfer edges[] = { { WF, 0, WF, 1 }, { WB, 1, WB, 0 } };
    Schedule *s = schedule_make(forever, "1f1b", 2, 1, PIPEMICRO, NULL);
    PipeRow *v = schedule_rows(forever, s, edges, 2)[k->stage];
    ScheduleSlot *t = NULL;

    for (size_t i = 0; i < vec_len(v); i++) {
        char *name = strf(forever, "%c%d", jobnames[v[i].w], v[i].chunk);
        if (v[i].k != ROWwork)
            name = strf(forever, "%s%c%d.%c%d", what[v[i].k],
                        jobnames[edges[v[i].edge].from], edges[v[i].edge].a,
                        jobnames[edges[v[i].edge].to], edges[v[i].edge].b);
        vec_push(forever, t,
                 ((ScheduleSlot){ phase_at(k->g, name), v[i].micro, 0 }));
    }
    k->g->slot = t;
    k->g->nslot = (int)vec_len(t);
}

static int names(const Program *g, int f, int buf)
{
    for (int s = g->phase[f].first; s < g->phase[f].first + g->phase[f].n; s++)
        for (int i = 0; i < g->instr[s].nbuf; i++)
            if (g->instr[s].buf[i] == buf)
                return 1;
    return 0;
}

/* A frame of one buffer; each micro-batch takes the first slot that is free. */
static void frame(Make *k, int buf, const char *name)
{
    Program *g = k->g;
    SlotGroup *f = &g->frame[g->nframe++];
    int until[PIPEMICRO];

    *f = (SlotGroup){ .name = name, .bytes = 256, .nof = PIPEMICRO };
    f->slot = alloc(forever, PIPEMICRO * sizeof *f->slot);
    f->of = alloc(forever, PIPEMICRO * sizeof *f->of);
    for (int m = 0; m < PIPEMICRO; m++) {
        int first = -1, last = -1, at = 0;
        for (int i = 0; i < g->nslot; i++)
            if (g->slot[i].micro == m && names(g, g->slot[i].phase, buf)) {
                first = first < 0 ? i : first;
                last = i;
            }
        while (at < f->nslot && until[at] >= first)
            at++;
        if (at == f->nslot) {
            f->slot[f->nslot++] = k->r->arena;
            k->r->arena += 256;
        }
        until[at] = last;
        f->of[m] = at;
    }
    k->r->buf[buf] = (Buf){ .name = name,
                            .cls = Btemp,
                            .dt = Df64,
                            .prog = 1,
                            .bytes = PIPEN * 8,
                            .frame = g->nframe,
                            .file = "pipe.lua",
                            .line = 10 + buf };
}

static void frames(Make *k)
{
    k->g->frame = alloc(forever, 8 * sizeof *k->g->frame);
    for (int i = X; i <= D; i++)
        k->r->buf[i] =
            (Buf){ .name = "none", .prog = 1, .cls = Btemp, .dt = Df64 };
    frame(k, k->stage ? E : X, k->stage ? "e" : "x.kept");
    frame(k, H, "h");
    frame(k, D, "dh");
    k->r->nbuf = NBUF;
}

static void lives(Make *k)
{
    for (int i = 0; i < k->r->nbuf; i++) {
        Buf *b = &k->r->buf[i];
        int seen = 0;
        for (int s = 0; s < k->g->ninstr && b->prog == 1; s++)
            for (int j = 0; j < k->g->instr[s].nbuf; j++)
                if (k->g->instr[s].buf[j] == i) {
                    b->born = seen++ ? b->born : s;
                    b->dies = s;
                }
    }
}

/* ---- the rest ------------------------------------------------------------ */

static Tensor *tensor(Make *k, const char *name, TensorKind kind, int buf)
{
    Tensor *t = &k->r->tensor[k->r->ntensor++];
    Piece *p = alloc(forever, sizeof *p);

    *p = (Piece){ aff(0), PIPEN };
    *t = (Tensor){ .name = name,
                   .kind = kind,
                   .dt = Df64,
                   .nd = 1,
                   .buf = buf,
                   .dim = { { "hidden", ROLEnone, PIPEN, 1, p } },
                   .file = "pipe.lua",
                   .line = 3 };
    return t;
}

static void tensors(Make *k)
{
    tensor(k, k->stage ? "b" : "a", TKparam, W);
    if (k->stage)
        tensor(k, "a", TKcopy, COPY);
    Tensor *t = tensor(k, k->stage ? "t" : "x", TKinput, IN);
    Piece *p = alloc(forever, sizeof *p);
    *p = (Piece){ along_dp(k->p), 1 };
    t->nd = 2;
    t->dim[1] = t->dim[0];
    t->dim[0] = (PlanDim){ "micro", ROLEmicro, k->p->mesh->size[Mdp], 1, p };
}

static void make_role(Plan *p, int stage)
{
    static Scalar in[] = {
        { .name = "lr", .buf = LR, .dt = Df64, .value = STEPlr },
        { .name = "micro", .buf = MICRO, .dt = Di64, .value = STEPmicro }
    };
    static Scalar out[] = {
        { .name = "loss", .buf = OUT, .dt = Df64, .result = RESULTloss }
    };
    Make k = { p, &p->role[stage], NULL, stage, 0 };

    *k.r = (Role){ .nin = 2, .in = in, .nout = 1, .out = out };
    k.r->buf = alloc(forever, NBUF * sizeof *k.r->buf);
    k.r->prog = alloc(forever, 2 * sizeof *k.r->prog);
    k.r->tensor = alloc(forever, 4 * sizeof *k.r->tensor);
    add_bufs(&k);
    programs(&k);
    table(&k);
    frames(&k);
    lives(&k);
    tensors(&k);
}

Plan *pipe_plan(int64_t dp)
{
    Plan *p = alloc(forever, sizeof *p);
    int64_t size[NMESH] = { [Mdp] = dp, [Mpp] = 2 };

    *p = (Plan){ .model = "pipe",
                 .target = "host",
                 .prelude = prelude,
                 .nkernel = NKERNEL,
                 .nrole = 2,
                 .tokens = PIPEMICRO * dp };
    p->mesh = mesh_new(forever, 2 * dp, size, "tp-cp-dp-pp", NULL);
    p->opts = opts_new(forever);
    p->kernel = alloc(forever, sizeof kernels);
    memcpy(p->kernel, kernels, sizeof kernels);
    for (int i = 0; i < NKERNEL; i++)
        p->kernel[i].name = intern(kernels[i].name);
    p->role = alloc(forever, 2 * sizeof *p->role);
    make_role(p, 0);
    make_role(p, 1);
    sign_kernels(p);
    plan_check(p);
    return p;
}

/* ---- the same in plain C ------------------------------------------------- */

double pipe_input(const char *name, int64_t step, int64_t micro, int64_t i)
{
    return (double)((micro * 7 + i * 3 + step * 5 + *name) % 11) / 8 - 0.5;
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst)
{
    const Plan *p = *(Plan **)self;
    int64_t step = ((int64_t *)self)[1];
    int64_t dp = p->mesh->size[Mdp];
    int64_t micro = turn * dp + mesh_pos(p->mesh, p->mesh->mask[Mdp], rank);

    for (int i = 0; i < PIPEN; i++)
        ((double *)dst)[i] = pipe_input(t->name, step, micro, i);
}

Feed pipe_feed(const Plan *p, int64_t step)
{
    static struct {
        const Plan *p;
        int64_t step;
    } self;

    self.p = p;
    self.step = step;
    return (Feed){ fill, &self };
}

double pipe_step(int64_t dp, int64_t step, double lr, double *a, double *b)
{
    double da[PIPEN] = { 0 }, db[PIPEN] = { 0 }, loss = 0;

    for (int64_t m = 0; m < PIPEMICRO * dp; m++)
        for (int i = 0; i < PIPEN; i++) {
            double x = pipe_input("x", step, m, i), c = 1 + (double)m / 8;
            double r = b[i] * a[i] * x - pipe_input("t", step, m, i);
            loss += c * r * r / 2;
            db[i] += c * r * a[i] * x;
            da[i] += c * r * b[i] * x;
        }
    for (int i = 0; i < PIPEN; i++) {
        a[i] -= lr * da[i];
        b[i] -= lr * db[i];
    }
    return loss;
}
