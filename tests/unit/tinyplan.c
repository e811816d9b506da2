/* tinyplan.c: the plan behind tests of the runtime. Written by hand, so that
 * what they find is the runtime's: parameter w (bf16, with an fp32 master and a
 * moment that are spread over dp as ZeRO-1 does), state `count`, programs init,
 * step, eval and forward, with collectives of three kinds. */
#include <string.h>

#include "tinyplan.h"

static const char prelude[] =
    "#include <stdint.h>\n"
    "#include <math.h>\n"
    "#define ARGS void *const *b, const int64_t *iv, int64_t lo, int64_t hi\n"
    "static inline float up(uint16_t x)\n"
    "{ union { uint32_t u; float f; } v = {(uint32_t)x << 16}; return v.f; }\n"
    "static inline uint16_t down(float f)\n"
    "{ union { float f; uint32_t u; } v = {f};\n"
    "  return (uint16_t)(f != f ? v.u >> 16 | 64\n"
    "                    : (v.u + 0x7fff + (v.u >> 16 & 1)) >> 16); }\n";

/* iv of all: items, grain, then as named. */
static const char k_init[] = /* w master m; vocab first rows */
    "void @(ARGS)\n{\n"
    "    uint16_t *w = b[0]; float *master = b[1], *m = b[2];\n"
    "    for (int64_t r = lo; r < hi; r++)\n"
    "        for (int64_t c = 0; c < iv[0]; c++) {\n"
    "            float v = (float)((r * 31 + c * 17) % 13 - 6) * 0.0517f;\n"
    "            w[r * iv[0] + c] = down(v);\n"
    "            int64_t k = (r - iv[1]) * iv[0] + c;\n"
    "            if (r < iv[1] || r >= iv[1] + iv[2]) continue;\n"
    "            master[k] = v; m[k] = 0;\n"
    "        }\n}\n";
static const char k_den[] = /* labels den; tokens */
    "void @(ARGS)\n{\n"
    "    const int32_t *y = b[0]; float *den = b[1];\n"
    "    for (int64_t i = 0; i < iv[0]; i++) den[0] += y[i] >= 0;\n"
    "    (void)lo; (void)hi;\n}\n";
static const char k_body[] = /* w tokens labels grad loss; vocab tokens */
    "void @(ARGS)\n{\n"
    "    const uint16_t *w = b[0]; const int32_t *x = b[1], *y = b[2];\n"
    "    float *grad = b[3]; double *loss = b[4], p[64];\n"
    "    int64_t V = iv[0];\n"
    "    for (int64_t i = 0; i < iv[1]; i++) {\n"
    "        const uint16_t *row = w + x[i] * V;\n"
    "        double z = 0;\n"
    "        if (y[i] < 0) continue;\n"
    "        for (int64_t c = 0; c < V; c++) z += p[c] = exp(up(row[c]));\n"
    "        loss[0] -= log(p[y[i]] / z);\n"
    "        for (int64_t c = 0; c < V; c++)\n"
    "            grad[x[i] * V + c] += (float)(p[c] / z - (c == y[i]));\n"
    "    }\n    (void)lo; (void)hi;\n}\n";
static const char k_update[] = /* gshard den m master wshard lr; vocab */
    "void @(ARGS)\n{\n"
    "    const float *g = b[0], *den = b[1], *lr = b[5];\n"
    "    float *m = b[2], *master = b[3]; uint16_t *w = b[4];\n"
    "    for (int64_t i = lo * iv[0]; i < hi * iv[0]; i++) {\n"
    "        m[i] = 0.9f * m[i] + g[i] / den[0];\n"
    "        master[i] -= lr[0] * m[i];\n"
    "        w[i] = down(master[i]);\n"
    "    }\n}\n";
static const char k_result[] = /* loss den out ok count; counts */
    "void @(ARGS)\n{\n"
    "    const double *loss = b[0]; const float *den = b[1];\n"
    "    float *out = b[2], *ok = b[3]; int64_t *count = b[4];\n"
    "    out[0] = (float)(loss[0] / den[0]);\n"
    "    ok[0] = out[0] - out[0] == 0;\n"
    "    count[0] += iv[0];\n"
    "    (void)lo; (void)hi;\n}\n";
static const char k_logits[] = /* w tokens logits; vocab */
    "void @(ARGS)\n{\n"
    "    const uint16_t *w = b[0]; const int32_t *x = b[1]; float *y = b[2];\n"
    "    for (int64_t i = lo; i < hi; i++)\n"
    "        for (int64_t c = 0; c < iv[0]; c++)\n"
    "            y[i * iv[0] + c] = up(w[x[i] * iv[0] + c]);\n}\n";

static const Kernel kernels[] = {
    { "k_init", k_init },     { "k_den", k_den },
    { "k_body", k_body },     { "k_update", k_update },
    { "k_result", k_result }, { "k_logits", k_logits },
};

enum {
    W,
    MASTER,
    M,
    COUNT,
    TOKENS,
    LABELS,
    LR,
    STEP,
    MICRO,
    LOSS,
    OK,
    GRAD,
    GSHARD,
    WSHARD,
    SUM,
    DEN,
    LOGITS,
    NBUF
};

typedef struct Make {
    Plan *p;
    Role *r;
    int64_t dp;
    int line;
} Make;

static void add_buf(Make *k, int i, const char *name, BufClass cls, Dtype dt,
                    int64_t n)
{
    Buf *b = &k->r->buf[i];

    *b = (Buf){ name, cls, dt, k->r->arena, n * dtypes[dt].bytes, -1,
                0,    0,   0,  0,           "tiny.lua",           10 + i };
    k->r->arena += (b->bytes + 255) / 256 * 256;
    k->r->nbuf++;
}

static Instr *add_step(Make *k, Program *g, InstrKind kind, const char *name)
{
    Instr *s = &g->instr[g->ninstr++];

    *s = (Instr){ .kind = kind,
                  .kernel = kind == Ikernel ? name : NULL,
                  .label = name,
                  .file = "tiny.lua",
                  .line = 40 + k->line++,
                  .secs = 1e-6 };
    s->buf = alloc(forever, 8 * sizeof *s->buf);
    s->word = alloc(forever, 8 * sizeof *s->word);
    return s;
}

static void bufs(Instr *s, int n, const int *b)
{
    s->nbuf = n;
    memcpy(s->buf, b, (size_t)n * sizeof *b);
}

/* v: items, grain, words. */
static void ints(Instr *s, int n, const int64_t *v)
{
    s->launch = (Launch){ .items = v[0], .grain = v[1] };
    s->nword = n - 2;
    for (int i = 0; i < s->nword; i++)
        s->word[i] = word_int(v[i + 2]);
}

#define BUFS(s, ...)                                           \
    bufs(s, (int)(sizeof(int[]){ __VA_ARGS__ } / sizeof(int)), \
         (int[]){ __VA_ARGS__ })
#define INTS(s, ...)                                                   \
    ints(s, (int)(sizeof(int64_t[]){ __VA_ARGS__ } / sizeof(int64_t)), \
         (int64_t[]){ __VA_ARGS__ })

/* k times the rank's dp coordinate. */
static RankAffine along_dp(const Plan *p, int64_t k)
{
    RankAffine x = aff(0);

    for (int a = 0; a < p->mesh->natom; a++)
        if (p->mesh->mask[Mdp] >> a & 1) {
            x.k[a] = k;
            k *= p->mesh->atom[a].size;
        }
    return x;
}

static Program *add_program(Make *k, ProgramKind kind)
{
    Program *g = &k->r->prog[k->r->nprog++];

    g->kind = kind;
    g->phase = alloc(forever, 8 * sizeof *g->phase);
    g->instr = alloc(forever, 32 * sizeof *g->instr);
    return g;
}

static void add_phase(Program *g, const char *name, int64_t repeat)
{
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

static void program_init(Make *k)
{
    Program *g = add_program(k, PGinit);
    Instr *s = add_step(k, g, Ikernel, "k_init");
    int64_t rows = TINYVOCAB / k->dp;

    BUFS(s, W, MASTER, M);
    INTS(s, TINYVOCAB, 4, TINYVOCAB, 0, rows);
    s->word[1] = (Word){ .at = along_dp(k->p, rows) };
    BUFS(add_step(k, g, Izero, "zero"), COUNT);
    add_phase(g, "pre", 1);
}

static void add_losses(Make *k, Program *g)
{
    int64_t turns = 4 / k->dp, n = TINYBATCH * TINYSEQ;
    Instr *s;

    BUFS(add_step(k, g, Izero, "zero"), DEN);
    BUFS(add_step(k, g, Izero, "zero"), SUM);
    BUFS(add_step(k, g, Izero, "zero"), GRAD);
    add_phase(g, "start", 1);
    s = add_step(k, g, Ikernel, "k_den");
    BUFS(s, LABELS, DEN);
    INTS(s, 1, 1, n);
    add_phase(g, "den", turns);
    s = add_step(k, g, Ikernel, "k_body");
    BUFS(s, W, TOKENS, LABELS, GRAD, SUM);
    INTS(s, 1, 1, TINYVOCAB, n);
    add_phase(g, "body", turns);
}

static void add_sums(Make *k, Program *g, int64_t counts)
{
    uint32_t dp = k->p->mesh->mask[Mdp];
    Instr *s = add_step(k, g, Iallreduce, "allreduce");

    BUFS(s, DEN, DEN, -1);
    s->allreduce = (AllreduceArgs){ Df32, 1, Radd };
    s->atoms = dp;
    s = add_step(k, g, Iallreduce, "allreduce");
    BUFS(s, SUM, SUM, -1);
    s->allreduce = (AllreduceArgs){ Df64, 1, Radd };
    s->atoms = dp;
    s = add_step(k, g, Ikernel, "k_result");
    BUFS(s, SUM, DEN, LOSS, OK, COUNT);
    INTS(s, 1, 1, counts);
}

static void program_step(Make *k)
{
    Program *g = add_program(k, PGstep);
    uint32_t dp = k->p->mesh->mask[Mdp];
    int64_t rows = TINYVOCAB / k->dp;

    add_losses(k, g);
    add_sums(k, g, 1);
    Instr *s = add_step(k, g, Ireducescatter, "reducescatter");
    BUFS(s, GRAD, GSHARD, -1);
    s->reducescatter =
        (ReducescatterArgs){ Df32, 1, rows * TINYVOCAB, Radd, 0, 0 };
    s->atoms = dp;
    s = add_step(k, g, Ikernel, "k_update");
    BUFS(s, GSHARD, DEN, M, MASTER, WSHARD, LR);
    INTS(s, rows, 1, TINYVOCAB);
    s = add_step(k, g, Iallgather, "allgather");
    BUFS(s, WSHARD, W, -1);
    s->allgather = (AllgatherArgs){ Dbf16, 1, rows * TINYVOCAB, 0, 0 };
    s->atoms = dp;
    add_phase(g, "post", 1);
}

static void program_eval(Make *k)
{
    Program *g = add_program(k, PGeval);

    add_losses(k, g);
    add_sums(k, g, 0);
    add_phase(g, "post", 1);
}

static void program_forward(Make *k)
{
    Program *g = add_program(k, PGforward);
    Instr *s = add_step(k, g, Ikernel, "k_logits");

    BUFS(s, W, TOKENS, LOGITS);
    INTS(s, TINYBATCH * TINYSEQ, 1, TINYVOCAB);
    add_phase(g, "body", 1);
}

static PlanDim dim(const char *axis, int64_t n, RankAffine start, int64_t len)
{
    PlanDim d = { .axis = axis,
                  .n = n,
                  .npiece = 1,
                  .piece = alloc(forever, sizeof(Piece)) };

    for (int k = ROLEmicro; k < NROLE; k++) /* named after their roles */
        if (!strcmp(axis, axisroles[k]))
            d.role = (AxisRole)k;
    d.piece[0] = (Piece){ start, len };
    return d;
}

static Tensor *add_tensor(Make *k, const char *name, TensorKind kind, int buf)
{
    Tensor *t = &k->r->tensor[k->r->ntensor++];

    *t = (Tensor){ .name = name,
                   .kind = kind,
                   .dt = k->r->buf[buf].dt,
                   .buf = buf,
                   .file = "tiny.lua",
                   .line = 2 };
    return t;
}

static void add_tensors(Make *k)
{
    int64_t rows = TINYVOCAB / k->dp;
    RankAffine shard = along_dp(k->p, rows);
    static const char *const sharded[] = { "optim.master.w", "optim.m.w" };
    static const TensorKind kinds[] = { TKmaster, TKmoment };
    static const char *const inputs[] = { "tokens", "labels" };
    Tensor *t = add_tensor(k, "w", TKparam, W);

    t->nd = 2;
    t->dim[0] = dim("vocab", TINYVOCAB, aff(0), TINYVOCAB);
    t->dim[1] = dim("next", TINYVOCAB, aff(0), TINYVOCAB);
    for (int i = 0; i < 2; i++) {
        t = add_tensor(k, sharded[i], kinds[i], MASTER + i);
        t->nd = 2;
        t->dim[0] = dim("vocab", TINYVOCAB, shard, rows);
        t->dim[1] = dim("next", TINYVOCAB, aff(0), TINYVOCAB);
    }
    add_tensor(k, "count", TKstate, COUNT);
    for (int i = 0; i < 2; i++) {
        t = add_tensor(k, inputs[i], TKinput, TOKENS + i);
        t->nd = 3;
        t->below = TINYVOCAB;
        t->dim[0] = dim("micro", k->dp, along_dp(k->p, 1), 1);
        t->dim[1] = dim("batch", TINYBATCH, aff(0), TINYBATCH);
        t->dim[2] = dim("seq", TINYSEQ, aff(0), TINYSEQ);
    }
    t = add_tensor(k, "logits", TKoutput, LOGITS);
    t->nd = 4;
    t->dim[0] = dim("micro", k->dp, along_dp(k->p, 1), 1);
    t->dim[1] = dim("batch", TINYBATCH, aff(0), TINYBATCH);
    t->dim[2] = dim("seq", TINYSEQ, aff(0), TINYSEQ);
    t->dim[3] = dim("vocab", TINYVOCAB, aff(0), TINYVOCAB);
}

static void add_bufs(Make *k)
{
    int64_t V = TINYVOCAB, n = TINYBATCH * TINYSEQ, part = V * V / k->dp;

    add_buf(k, W, "w", Bparam, Dbf16, V * V);
    add_buf(k, MASTER, "optim.master.w", Boptim, Df32, part);
    add_buf(k, M, "optim.m.w", Boptim, Df32, part);
    add_buf(k, COUNT, "count", Bstate, Di64, 1);
    k->r->persist = k->r->arena;
    add_buf(k, TOKENS, "tokens", Bio, Di32, n);
    add_buf(k, LABELS, "labels", Bio, Di32, n);
    add_buf(k, LR, "lr", Bio, Df32, 1);
    add_buf(k, STEP, "step", Bio, Di64, 1);
    add_buf(k, MICRO, "micro", Bio, Di64, 1);
    add_buf(k, LOSS, "loss", Bio, Df32, 1);
    add_buf(k, OK, "ok", Bio, Df32, 1);
    add_buf(k, GRAD, "grad.w", Btemp, Df32, V * V);
    add_buf(k, GSHARD, "gshard", Btemp, Df32, part);
    add_buf(k, WSHARD, "wshard", Btemp, Dbf16, part);
    add_buf(k, SUM, "sum", Btemp, Df64, 1);
    add_buf(k, DEN, "den", Btemp, Df32, 1);
    add_buf(k, LOGITS, "logits", Bio, Df32, n * V);
}

static void add_scalars(Make *k)
{
    static Scalar in[] = {
        { .name = "lr", .buf = LR, .dt = Df32, .value = STEPlr },
        { .name = "step", .buf = STEP, .dt = Di64, .value = STEPstep },
        { .name = "micro", .buf = MICRO, .dt = Di64, .value = STEPmicro }
    };
    static Scalar out[] = {
        { .name = "loss", .buf = LOSS, .dt = Df32, .result = RESULTloss },
        { .name = "ok", .buf = OK, .dt = Df32, .result = RESULTok }
    };

    k->r->nin = 3;
    k->r->in = in;
    k->r->nout = 2;
    k->r->out = out;
}

static Opts *options(const char *keys)
{
    Opts *o = opts_new(forever);
    char key[64], value[512];
    int used;

    while (*keys && sscanf(keys, "%63[^=]=%511s%n", key, value, &used) == 2) {
        opts_set(o, key, value, NULL);
        keys += used + (keys[used] == ' ');
    }
    return o;
}

static KernelSignature declared(const Role *r, const Instr *s)
{
    KernelSignature d = { .kernel = s->kernel,
                          .launch = s->launch,
                          .nword = s->nword,
                          .word = s->word };
    char *use = alloc(forever, (size_t)s->nbuf + 1);

    d.op = alloc(forever, sizeof *d.op * (size_t)(s->nbuf + 1));
    for (int i = 0; i < s->nbuf; i++) {
        const Buf *b = &r->buf[s->buf[i]];
        int64_t *n = alloc(forever, sizeof *n);
        *n = b->bytes / dtypes[b->dt].bytes;
        use[i] = s->rw ? s->rw[i] : 'b';
        d.op[i] = (KernelOperand){ b->dt, 1, n, 0 };
    }
    d.use = use;
    set_signature_hash(&d);
    return d;
}

static void sign(Plan *p, const Role *r, Instr *s, const Kernel *named)
{
    for (int i = 0; i < p->nkernel; i++)
        if (!strcmp(p->kernel[i].name, s->kernel)) {
            s->kernel = named[i].name;
            break;
        }
    KernelSignature d = declared(r, s);

    vec_push(forever, p->sig, d);
    s->call = (KernelArgs){ p->nsig++, d.hash };
    bind_signature(forever, &d, s);
}

void sign_kernels(Plan *p)
{
    Kernel *named = alloc(forever, sizeof *named * (size_t)p->nkernel);

    for (int i = 0; i < p->nkernel; i++)
        named[i] = strstr(p->kernel[i].text, "@(")
                       ? kernel_new(forever, p->kernel[i].text)
                       : p->kernel[i];
    p->nsig = 0;
    p->sig = NULL;
    for (int r = 0; r < p->nrole; r++)
        for (int k = 0; k < p->role[r].nprog; k++) {
            const Program *g = &p->role[r].prog[k];
            for (int i = 0; i < g->ninstr; i++)
                if (g->instr[i].kind == Ikernel)
                    sign(p, &p->role[r], &g->instr[i], named);
        }
    p->kernel = named;
}

Plan *tiny_plan(int64_t dp, const char *keys)
{
    Plan *p = alloc(forever, sizeof *p);
    Role *r = alloc(forever, sizeof *r);
    Make k = { p, r, dp, 0 };
    int64_t size[NMESH] = { [Mdp] = dp };

    p->model = "tiny";
    p->target = "host";
    p->mesh = mesh_new(forever, dp, size, "tp-cp-dp-pp", NULL);
    p->opts = options(keys);
    p->tokens = 4 * TINYBATCH * TINYSEQ;
    p->prelude = prelude;
    p->nkernel = sizeof kernels / sizeof *kernels;
    p->kernel = alloc(forever, sizeof kernels);
    memcpy(p->kernel, kernels, sizeof kernels);
    for (int i = 0; i < p->nkernel; i++)
        p->kernel[i].name = intern(kernels[i].name);
    p->nrole = 1;
    p->role = r;
    r->buf = alloc(forever, NBUF * sizeof *r->buf);
    r->prog = alloc(forever, 4 * sizeof *r->prog);
    r->tensor = alloc(forever, 16 * sizeof *r->tensor);
    add_bufs(&k);
    add_scalars(&k);
    program_init(&k);
    program_step(&k);
    program_eval(&k);
    program_forward(&k);
    add_tensors(&k);
    sign_kernels(p);
    plan_check(p);
    return p;
}
