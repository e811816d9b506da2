/* plan_test.c: a plan comes back from its text as it was; damage and lies are
 * refused by err() and never by a crash; big plans are read and written
 * fast. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lives.h"
#include "mend.h"
#include "tinyplan.h"

/* ---- a plan of n layers -------------------------------------------------- */

enum { PARAM = 4096, ACT = 1024 };
#define KERNEL "k_94465bb235c80022" /* of plan_of */

typedef struct Made {
    Arena *arena;
    Role r;
    Buf *buf;
    Instr *instr;
} Made;

static int buffer(Made *m, const char *name, BufClass cls, Dtype dt, int64_t at,
                  int64_t bytes, int prog, int born, int dies)
{
    Buf b = { .name = name,
              .cls = cls,
              .dt = dt,
              .offset = at,
              .bytes = bytes,
              .prog = prog,
              .born = born,
              .dies = dies,
              .file = "tiny model.lua",
              .line = 7 };

    vec_push(m->arena, m->buf, b);
    return (int)vec_len(m->buf) - 1;
}

/* Its arguments are the caller's to fill in. */
static Instr *instr(Made *m, InstrKind kind, const char *label, int nbuf,
                    const int *buf, uint32_t atoms)
{
    Instr s = { .kind = kind,
                .label = label,
                .nbuf = nbuf,
                .atoms = atoms,
                .file = "tiny model.lua",
                .line = 9,
                .flops = 3e9,
                .bytes = 0.1,
                .secs = 1e-300 };

    s.buf = alloc(m->arena, (size_t)nbuf * sizeof *s.buf);
    memcpy(s.buf, buf, (size_t)nbuf * sizeof *buf);
    if (kind == Ikernel) {
        s.kernel = KERNEL;
        s.launch = (Launch){ .items = 256, .grain = 64 };
        s.nword = 1;
        s.word = alloc(m->arena, sizeof *s.word);
        s.word[0] = (Word){ .at = { .c = 128, .k = { -64 } } };
    }
    if (kind == Iallreduce)
        s.allreduce = (AllreduceArgs){ Df32, 256, Radd };
    vec_push(m->arena, m->instr, s);
    return &m->instr[vec_len(m->instr) - 1];
}

/* Each layer: a gemm, a kernel on it, a sum over the ranks. */
static void layer(Made *m, int i, int64_t base)
{
    int w = buffer(m, strf(m->arena, "layers.%d.w", i), Bparam, Df32,
                   (int64_t)i * PARAM, PARAM, -1, 0, 0);
    int s = 3 * i, odd = i % 2;
    int64_t at = base + odd * 3 * ACT;
    int x = buffer(m, "x", Btemp, Df32, at, ACT, 0, s, s + 1);
    int y = buffer(m, "y", Btemp, Df32, at + ACT, ACT, 0, s, s + 2);
    int z = buffer(m, "z", Btemp, Df32, at + 2 * ACT, ACT, 0, s + 1, s + 2);

    instr(m, Igemm, "layers.0.dot", 4, (int[]){ x, w, y, -1 }, 0)->gemm =
        (GemmArgs){ .in = Df32,
                    .out = Df32,
                    .m = 8,
                    .n = 32,
                    .k = 32,
                    .lda = 32,
                    .ldb = 32,
                    .ldc = 32,
                    .tb = 1 };
    instr(m, Ikernel, "layers.0.silu", 2, (int[]){ y, z }, 0);
    instr(m, Iallreduce, "layers.0.sum", 3, (int[]){ z, y, -1 }, 1);
}

static Tensor *tensors(Made *m, int n)
{
    Tensor *v = alloc(m->arena, (size_t)n * sizeof *v);

    for (int i = 0; i < n; i++) {
        Piece *p = alloc(m->arena, 2 * sizeof *p);
        p[0] = (Piece){ .start = { .k = { 32 } }, .len = 32 };
        v[i] = (Tensor){ .name = strf(m->arena, "layers.%d.w", i),
                         .kind = TKparam,
                         .dt = Df32,
                         .nd = 2,
                         .buf = 4 * i };
        v[i].dim[0] =
            (PlanDim){ .axis = "hidden", .n = 64, .npiece = 1, .piece = p };
        p[1] = (Piece){ .len = 32 };
        v[i].dim[1] =
            (PlanDim){ .axis = "ffn", .n = 32, .npiece = 1, .piece = p + 1 };
    }
    return v;
}

static Phase phase(const char *name, int first, int n, int64_t repeat)
{
    Phase f;

    assert_true(phase_named(forever, name, &f));
    f.first = first, f.n = n, f.repeat = repeat;
    return f;
}

static Program *program(Made *m, int n)
{
    Program *g = alloc(m->arena, sizeof *g);
    Phase *f = alloc(m->arena, 2 * sizeof *f);

    f[0] = phase("body", 0, 3, 4);
    f[1] = phase("post", 3, 3 * n - 3, 1);
    *g = (Program){ .kind = PGstep,
                    .nphase = 2,
                    .phase = f,
                    .ninstr = 3 * n,
                    .instr = m->instr,
                    .transient = 6 * ACT,
                    .bound = 5 * ACT };
    return g;
}

static Plan *plan_of(Arena *a, int n)
{
    Made m = { .arena = a };
    Plan *p = alloc(a, sizeof *p);
    int64_t size[NMESH] = { [Mtp] = 2, [Mep] = 2 }, base = (int64_t)n * PARAM;
    static Source source = { "tiny model.lua", "-- a model\nloss('x', y)\n" };
    static HfMap hf = {
        .hf = "model.{i}.w",
        .param = "layers.0.w",
        .nfix = 1,
        .fixaxis = { "ffn" },
        .fixat = { -1 },
        .nd = 1,
        .dim = { { 2, { { "hidden", 64, 0, 64 }, { NULL, 1, 0, 1 } } } }
    };

    Kernel *kernel = alloc(a, sizeof *kernel);
    *kernel = kernel_new(a, "void @(void) {}\n/* \"}\" */");
    assert_string_equal(kernel->name, KERNEL);
    for (int i = 0; i < n; i++)
        layer(&m, i, base);
    *p = (Plan){
        .model = "tiny",
        .target = "host",
        .opts = opts_new(a),
        .mesh = mesh_new(a, 4, size, "tp-cp-dp-pp", NULL),
        .tokens = 4096,
        .params = 12345678901,
        .active = 99,
        .flops = 1.0 / 3,
        .nrole = 1,
        .role = &m.r,
        .prelude = "#include <x>\n",
        .nkernel = 1,
        .kernel = kernel,
        .nhf = 1,
        .hf = &hf,
        .nsource = 1,
        .source = &source,
    };
    opts_set(p->opts, "train.lr", "1e-3", NULL);
    opts_set(p->opts, "name", "runs/my \\ run", NULL);
    opts_set(p->opts, "axes.batch", "4", NULL);
    p->role = alloc(a, sizeof *p->role);
    int loss = buffer(&m, "loss", Bio, Df32, base + 6 * ACT, 4, -1, 0, 0);
    Scalar *out = alloc(a, sizeof *out);
    *out = (Scalar){
        .name = "loss", .buf = loss, .dt = Df32, .result = RESULTloss
    };
    *p->role = (Role){ .nbuf = (int)vec_len(m.buf),
                       .buf = m.buf,
                       .arena = base + 6 * ACT + 256,
                       .persist = base,
                       .nprog = 1,
                       .prog = program(&m, n),
                       .ntensor = n,
                       .tensor = tensors(&m, n),
                       .nout = 1,
                       .out = out };
    sign_kernels(p);
    return p;
}

/* ---- a plan of two stages ------------------------------------------------ */

/* Each stage: an accumulator that is cleared before the table; F keeps x, in a
 * frame, for B; stage 0 sends y, stage 1 receives it. Three micro-batches. */
enum { ACC, WORK, X, Y, NSTAGEBUF, MICROS = 3, SLOT = 2048 };

static void stage_bufs(Made *m)
{
    static const char *const names[] = { "acc", "work", "x", "y" };

    for (int i = 0; i < NSTAGEBUF; i++)
        buffer(m, names[i], Btemp, Df32,
               i == WORK ? 1024
               : i == Y  ? 1024
                         : 0,
               i == WORK || i == Y ? 512 : 1024, 0, 0, 0);
    m->buf[ACC].dies = 6;
    m->buf[WORK].born = m->buf[WORK].dies = 1;
    m->buf[X].born = 1, m->buf[X].dies = 2, m->buf[X].frame = 1;
    m->buf[Y].born = 1, m->buf[Y].dies = 5, m->buf[Y].frame = 1;
}

static void stage_instrs(Made *m, int role)
{
    TransferArgs sent = { Df32, 128, 1 - role, 7 };
    uint32_t pp = 1u << 1;

    instr(m, Izero, "clear acc", 1, (int[]){ ACC }, 0);
    instr(m, Ikernel, "F", 3, (int[]){ WORK, X, Y }, 0)->rw =
        role ? "wwr" : "www";
    instr(m, Ikernel, "B", 3, (int[]){ X, Y, ACC }, 0)->rw = "rrb";
    instr(m, role ? Irecv : Isend, "y", 1, (int[]){ Y }, pp)->transfer = sent;
    if (role)
        instr(m, Izero, "nothing", 1, (int[]){ Y }, 0);
    else
        instr(m, Iwait, "y", 1, (int[]){ Y }, pp)->transfer = sent;
    instr(m, Izero, "again", 1, (int[]){ Y }, 0);
    instr(m, Iallreduce, "sum", 3, (int[]){ ACC, ACC, -1 }, pp);
}

/* One after another, two in flight: F0 F1 B0 F2 B1 B2. */
static ScheduleSlot *stage_turns(Arena *a, int role, int *n)
{
    static const int order[][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 },
                                    { 0, 2 }, { 1, 1 }, { 1, 2 } };
    ScheduleSlot *v = NULL;

    for (int i = 0; i < 2 * MICROS; i++) {
        int micro = order[i][1], back = order[i][0];
        if (role && !back)
            vec_push(a, v, ((ScheduleSlot){ 3, micro, 0 }));
        vec_push(a, v, ((ScheduleSlot){ 1 + back, micro, i == 2 }));
        if (!role && !back)
            vec_push(a, v, ((ScheduleSlot){ 3, micro, 0 }));
        if (back)
            vec_push(a, v, ((ScheduleSlot){ 4, micro, 0 }));
    }
    *n = (int)vec_len(v);
    return v;
}

static Role stage(Arena *a, int role)
{
    static const char *const calls[][2] = { { "send.F0.F1", "wait.F0.F1" },
                                            { "recv.F0.F1", "recv.B1.B0" } };
    static const int of[] = { 0, 1, 0 };
    Made m = { .arena = a };
    Program *g = alloc(a, sizeof *g);
    SlotGroup *f = alloc(a, sizeof *f);
    Phase *h = alloc(a, 6 * sizeof *h);

    stage_bufs(&m);
    stage_instrs(&m, role);
    *f = (SlotGroup){ "F0-B0", SLOT, 2, alloc(a, 16), MICROS, alloc(a, 16) };
    f->slot[0] = SLOT, f->slot[1] = 2 * SLOT;
    memcpy(f->of, of, sizeof of);
    h[0] = phase("pre", 0, 1, 1);
    h[1] = phase("F0", 1, 1, 0);
    h[2] = phase("B0", 2, 1, 0);
    h[3] = phase(calls[role][0], 3, 1, 0);
    h[4] = phase(calls[role][1], 4, 2, 0);
    h[5] = phase("post", 6, 1, 1);
    *g = (Program){ .kind = PGstep,
                    .nphase = 6,
                    .phase = h,
                    .nframe = 1,
                    .frame = f,
                    .ninstr = 7,
                    .instr = m.instr,
                    .transient = 3 * SLOT,
                    .bound = 3 * SLOT };
    g->slot = stage_turns(a, role, &g->nslot);
    return (Role){ .nbuf = NSTAGEBUF,
                   .buf = m.buf,
                   .arena = 3 * SLOT,
                   .nprog = 1,
                   .prog = g };
}

static Plan *staged_plan(Arena *a)
{
    Plan *p = plan_of(a, 1);
    int64_t size[NMESH] = { [Mtp] = 2, [Mpp] = 2 };

    p->mesh = mesh_new(a, 4, size, "tp-cp-dp-pp", NULL);
    p->nhf = 0;
    p->nrole = 2;
    p->role = alloc(a, 2 * sizeof *p->role);
    for (int i = 0; i < 2; i++)
        p->role[i] = stage(a, i);
    sign_kernels(p);
    return p;
}

/* ---- hearing err() ------------------------------------------------------- */

static jmp_buf heard;
static char message[4096];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

/* The plan, or null with the message. */
static Plan *try_parse(Arena *a, const char *s, size_t n)
{
    Plan *volatile p = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        p = plan_parse(a, s, n, "m.plan");
    err_hook = NULL;
    return p;
}

/* ---- tests --------------------------------------------------------------- */

static void comes_back(void **state)
{
    (void)state;
    Arena *a = arena_new();
    size_t n, m;
    Plan *p = plan_of(a, 3);
    char *s = plan_print(a, p, &n);

    assert_null(plan_wrong(a, p));
    Plan *q = try_parse(a, s, n);
    if (!q)
        fail_msg("%s", message);
    char *t = plan_print(a, q, &m);
    assert_int_equal(n, m);
    assert_memory_equal(s, t, n);
    assert_true(q->flops == 1.0 / 3);
    assert_int_equal(q->role->prog->instr[1].word[0].at.k[0], -64);
    assert_string_equal(q->kernel->text, p->kernel->text);
    assert_string_equal(opts_str(q->opts, "name"), "runs/my \\ run");
    assert_null(q->hf->dim[0].f[1].axis);
    arena_free(a);
}

static void stages_come_back(void **state)
{
    (void)state;
    Arena *a = arena_new();
    size_t n, m;
    Plan *p = staged_plan(a);
    const char *why = plan_wrong(a, p);

    for (int i = 0; i < 2 && !why; i++)
        why = lives_wrong(a, &p->role[i]);
    if (why)
        fail_msg("%s", why);
    char *s = plan_print(a, p, &n);
    Plan *q = try_parse(a, s, n);
    if (!q)
        fail_msg("%s", message);
    char *t = plan_print(a, q, &m);
    assert_int_equal(n, m);
    assert_memory_equal(s, t, n);
    const Program *g = q->role[1].prog;
    assert_int_equal(g->nslot, 4 * MICROS);
    assert_int_equal(g->slot[4].phase, 2);
    assert_int_equal(g->slot[4].pair, 1);
    assert_int_equal(g->frame->of[2], 0);
    assert_string_equal(g->instr[2].rw, "rrb");
    assert_int_equal(q->role[0].buf[X].frame, 1);
    arena_free(a);
}

/* F takes 1 s, B 2 s, a transfer 0.5 s: worked out by hand. Stage 1 has its
 * first y at 1.5 and its last, which stage 0 makes from 4 on, at 5.5. */
static void time_of_stages(void **state)
{
    static const double secs[] = { 0, 1, 2, 0.5, 0, 0, 0.25 };
    (void)state;
    Arena *a = arena_new();
    Plan *p = staged_plan(a);

    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 7; i++)
            p->role[r].prog->instr[i].secs = secs[i];
    Planned t = plan_time(a, p, PGstep);
    assert_null(t.stuck);
    assert_true(t.makespan == 10.75);
    assert_true(t.busy[0] == 9.25 && t.busy[1] == 9.25);
    assert_int_equal(plan_micros(p, PGstep), MICROS);
    p->role[0].prog->instr[3].transfer.chan = 8;
    t = plan_time(a, p, PGstep);
    assert_non_null(t.stuck);
    assert_string_equal(t.stuck,
                        "stage 0 in wait 'y' of wait.F0.F1, stage 1 in "
                        "recv 'y' of recv.F0.F1");
    arena_free(a);
}

static void every_byte_counts(void **state)
{
    (void)state;
    Arena *a = arena_new();
    size_t n;
    char *s = plan_print(a, plan_of(a, 2), &n);

    for (size_t i = 0; i < n; i++) {
        Arena *b = arena_new();
        s[i] ^= 1;
        assert_null(try_parse(b, s, n));
        assert_non_null(strstr(message, "m.plan: error: "));
        s[i] ^= 1;
        arena_free(b);
    }
    for (size_t i = 0; i < n; i += 7) {
        Arena *b = arena_new();
        assert_null(try_parse(b, s, i));
        arena_free(b);
    }
    arena_free(a);
}

/* A lie with the right hash: what, by what, and what is then said. */
/* clang-format off */
static const struct { const char *was, *is, *said; } lies[] = {
    { "buf x temp f32 8192 ", "buf x temp f32 8193 ", "not aligned" },
    { "buf x temp f32 8192 1024", "buf x temp f32 8192 1099511627776",
      "does not lie in an arena" },
    { "buf x temp f32 8192 ", "buf x temp f32 4096 ", "overlap" },
    { "buf y temp f32 9216 ", "buf y temp f32 8192 ", "overlap" },
    { "buf x temp f32 8192 1024 life 0 0 1", "buf x temp f32 8192 1024 life "
      "0 1 1", "not alive" },
    { "life 0 0 1", "life 0 1 0", "life outside its program" },
    { "life 0 0 1", "life 1 0 1", "belongs to no program" },
    { "layers.0.w param f32 0 4096", "layers.0.w param f32 -256 4096",
      "does not lie" },
    { "layers.1.w param f32 4096 4096 @", "layers.1.w param f32 4096 4096 life "
      "0 0 5 @", "does not live always" },
    { "a=1 b=0 c=2 in", "a=1 b=0 c=99 in", "does not exist" },
    { "a=1 b=0 c=2 in", "a=1 b=0 c=- in", "lacks a buffer" },
    { "a=1 b=0 c=2 in", "a=1 c=2 in", "expected 'b='" },
    { "a=1 b=0 c=2 in", "a=1 b=0 c=2,2 in", "expected 'in='" },
    { "m=8 n=32", "m=9 n=32", "goes beyond its operand a" },
    { "ldc=32", "ldc=33", "goes beyond its operand c" },
    { "lda=32", "lda=33", "goes beyond its operand a" },
    { "m=8 n=32", "m=-8 n=32", "'m' out of its range" },
    { "ta=0 tb=1", "ta=0 tb=2", "'tb' out of its range" },
    { "ta=0 tb=1 beta=0", "ta=0 tb=1", "expected 'beta='" },
    { "in=f32 out=f32", "in=f77 out=f32", "no dtype 'f77'" },
    { "in=f32 out=f32", "in=none out=f32", "'in' out of its range" },
    { "beta=0 c", "beta=0 batch=2,0,0,0 batch=1,0,0,0 batch=1,0,0,0 "
      "batch=1,0,0,0 c", "'batch' out of its range" },
    { "n=256 op=add g 1", "n=257 op=add g 1", "sends more" },
    { "n=256 op=add g 1", "n=256 op=mul g 1", "'mul' is none of add, max, min" },
    { "n=256 op=add g 1", "n=256 op=add g 8", "atoms that the mesh" },
    { "n=256 op=add g 1", "n=256 g 1", "expected 'op='" },
    { "128+-64*a0", "128+-64*a9", "atoms that the mesh" },
    { "128+-64*a0", "128+-64*a99", "atom 99 of 16" },
    { "128+-64*a0", "128+99999999999999999999*a0", "too large" },
    { "sig " KERNEL "", "sig k_gelu", "not in the plan" },
    { "sig " KERNEL " 00", "sig " KERNEL " 01", "is no call of '" KERNEL "'" },
    { "sig " KERNEL " 00", "sig " KERNEL " 0x", "is no hash" },
    { "( b f32 256 )", "( b f32 255 )", "is no call of '" KERNEL "'" },
    { "( b f32 256 )", "( x f32 255 )", "no use 'x'" },
    { "( b f32 256 )", "( b f32 -1 )", "extent is -1" },
    { "grain=64", "grain=65", "is no call of '" KERNEL "'" },
    { "items=256", "items=-256", "has a 'items' out of its range" },
    { "sig=1", "sig=2", "signature that does not exist" },
    { "sig=1", "sig=0", NULL }, /* they are equal */
    { "phase post 3 3 1", "phase post 2 4 1", "does not follow" },
    { "phase post 3 3 1", "phase post 3 4 1", "6 instructions and phases for 7" },
    { "phase body 0 3 4", "phase body 0 3 -1", "micro-batches is -1" },
    { "( hidden 64 0+32*a0 32 )", "( hidden 64 1+32*a0 32 )", "other pieces" },
    { "( hidden 64 0+32*a0 32 )", "( hidden 99 0+32*a0 33 )", "all of axis" },
    { "tensor layers.1.w", "tensor layers.0.w", "name of another" },
    { "out loss f32 8", "out loss f32 9", "does not exist" },
    { "out loss f32 8", "out loss f64 8", "larger than its buffer" },
    { "hidden 64 0 64", "hidden 64 1 64", "beyond an axis" },
    { "kernel " KERNEL " 42", "kernel " KERNEL " 9999999999", "length is 9999999999" },
    { "kernel " KERNEL " 42", "kernel " KERNEL " 41", "m.plan:" },
    { "(void) {}", "(void) ;}", "'" KERNEL "' does not have the hash of its name" },
    { "role arena 14592", "role arena 14338", "lie in an arena" },
    { "mesh 4 tp-cp-dp-pp 2", "mesh 4 tp-cp-dp-pp 3", "the world has 4 ranks" },
    { "option train.lr", "option train.lrr", "did you mean 'train.lr'" },
    { "pleat-plan ", "pleat-plan 9", "is a plan of format 9" },
    { "program step", "porgram step", "a role has no 'porgram'" },
    { "c 0x1.65a0bcp+31", "c 0x1.65a0bcq+31", "is not a number" },
};
/* clang-format on */

/* Of the plan of stages. */
/* clang-format off */
static const struct { const char *was, *is, *said; } stage_lies[] = {
    { "phase B0 2 1 0", "phase B0 2 1 1", "has no row 1" },
    { "phase send.F0.F1 3 1 0", "phase send.F0.F1 3 1 1", "has no row" },
    { "phase pre 0 1 1", "phase pre 0 1 2", "3 micro-batches, its phase 'pre'" },
    { "slots 1 3 ", "slots 1 ", "each call for each micro-batch" },
    { "slots 1 3 ", "slots 1 1 ", "has no row" },
    { "2 & 4 1 3", "2 & 4 1 3 = 0", "of micro-batch 0 twice" },
    { "slots 1 3 ", "slots 1 3 = 9 ", "has no row" },
    { "slots 1 3 ", "slots 1 3 = -1 ", "micro-batch" },
    { "slots 1 3 ", "slots 1 5 ", "has no row" },
    { "slots 1 3 ", "slots 1 6 ", "phase 6 of 6" },
    { "frame F0-B0 2048", "frame F0-B0 2040", "has no size" },
    { "frame F0-B0 2048", "frame F0-B0 -2048", "not lie in its frame" },
    { "frame F0-B0 2048", "frame F0-B0 1280", "does not lie in its frame" },
    { "s 2048 4096", "s 2048 4352", "outside the arena" },
    { "s 2048 4096", "s 2048 4095", "outside the arena" },
    { "s 2048 4096", "s 2048 -256", "outside the arena" },
    { "s 2048 4096", "s 2048 3840", "frames 'F0-B0' and 'F0-B0'" },
    { "s 2048 4096", "s 2048", "slot that does not exist" },
    { "s 2048 4096", "s 0 4096", "overlap" },
    { "s 2048 4096", "s 1024 4096", "'frames' and 'work' overlap" },
    { "o 0 1 0", "o 0 1 1", "frames 'F0-B0' and 'F0-B0'" },
    { "o 0 1 0", "o 0 0 1", "frames 'F0-B0' and 'F0-B0'" },
    { "o 0 1 0", "o 0 1 2", "slot that does not exist" },
    { "o 0 1 0", "o 0 1", "a slot for each micro-batch" },
    { "life 0 1 2 frame 0", "life 0 1 2 frame 1", "frame that does not exist" },
    { "life 0 1 2 frame 0", "life 0 1 6 frame 0", "lives beyond the table" },
    { "life 0 1 2 frame 0", "life 0 1 2", "without a frame" },
    { "512 life 0 1 5 frame 0", "2048 life 0 1 5 frame 0",
      "does not lie in its frame" },
    { "work temp f32 1024 512 life 0 1 1", "work temp f32 1024 512 life 0 0 1",
      "through a part of the table" },
    { "acc temp f32 0 1024 life 0 0 6", "acc temp f32 0 1024 life 0 2 6",
      "not alive" },
    { "sig=0", "sig=1", "is no call of" },
    { "arg=1,2,3", "arg=1,2", "other operands than its signature" },
    { "arg=1,2,3", "arg=1,-,3", "other operands than its signature" },
    { "arg=1,2,3", "arg=1,3,3", "goes beyond 'y'" },
    { "n=128 peer=1 chan=7", "n=129 peer=1 chan=7", "beyond its buffer" },
    { "n=128 peer=1 chan=7", "n=-1 peer=1 chan=7", "'n' out of its range" },
    { "n=128 peer=1 chan=7", "n=128 peer=2 chan=7", "has no peer" },
    { "n=128 peer=1 chan=7", "n=128 peer=0 chan=7", "its own stage" },
    { "n=128 peer=1 chan=7", "n=128 peer=1 chan=-7", "'chan' out of its" },
    { "peer=1 chan=7 g 2", "peer=1 chan=7 g 1", "no peer" },
};
/* clang-format on */

static char *replaced(Arena *a, const char *s, size_t n, const char *was,
                      const char *is, size_t *len)
{
    const char *at = strstr(s, was);
    Text t = { .arena = a };

    if (!at)
        fail_msg("'%s' is not in the plan", was);
    putn(&t, s, (size_t)(at - s));
    putn(&t, is, strlen(is));
    putn(&t, at + strlen(was), n - (size_t)(at - s) - strlen(was));
    mend_plan(t.s, t.len, 1);
    *len = t.len;
    return t.s;
}

/* Any byte of what is executed, and the last line mended. */
static void executed_bytes_count(void **state)
{
    (void)state;
    Arena *a = arena_new();
    size_t n;
    char *s = plan_print(a, plan_of(a, 2), &n);
    const char *end = strstr(s, "\nexecuted ");

    for (char *at = s; at <= end; at++) {
        Arena *b = arena_new();
        *at ^= 1;
        mend_plan(s, n, 0);
        assert_null(try_parse(b, s, n));
        *at ^= 1;
        arena_free(b);
    }
    const char *source = strstr(end, "a model");
    s[source - s] ^= 1;
    mend_plan(s, n, 0);
    assert_non_null(try_parse(a, s, n));
    arena_free(a);
}

static void lies_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        Arena *a = arena_new();
        size_t n, m;
        char *s = plan_print(a, plan_of(a, 2), &n);
        char *t = replaced(a, s, n, lies[i].was, lies[i].is, &m);
        const Plan *p = try_parse(a, t, m);
        if (!p != (lies[i].said != NULL))
            fail_msg("'%s' for '%s' was taken", lies[i].is, lies[i].was);
        if (!p && !strstr(message, lies[i].said))
            fail_msg("'%s': said %s", lies[i].is, message);
        arena_free(a);
    }
}

static void lies_of_stages_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof stage_lies / sizeof *stage_lies; i++) {
        Arena *a = arena_new();
        size_t n, m;
        char *s = plan_print(a, staged_plan(a), &n);
        char *t = replaced(a, s, n, stage_lies[i].was, stage_lies[i].is, &m);
        if (try_parse(a, t, m))
            fail_msg("'%s' for '%s' was taken", stage_lies[i].is,
                     stage_lies[i].was);
        if (!strstr(message, stage_lies[i].said))
            fail_msg("'%s': said %s", stage_lies[i].is, message);
        arena_free(a);
    }
}

/* A tensor that is a run of a bucket: at run shard, elements of its buffer,
 * and what is said. */
static const struct {
    int64_t at, run;
    uint32_t shard;
    int64_t n;
    const char *said;
} runs[] = {
    /* clang-format off */
    { 0, 0, 0, 1024, NULL },
    { 0, 0, 0, 1023, "larger than its buffer" },
    { 5, 0, 0, 1029, NULL },
    { 5, 0, 0, 1028, "larger than its buffer" },
    { 0, 0, 2, 1024, "part of no bucket" },
    { 0, 512, 2, 512, NULL },
    { 0, 511, 2, 1024, "goes beyond its bucket" },
    { 100, 562, 2, 562, NULL },
    { 100, 561, 2, 1024, "goes beyond its bucket" },
    { 100, 600, 2, 599, "larger than its buffer" },
    { 3000, 2050, 2, 1974, NULL },
    { 3000, 2050, 2, 1973, "larger than its buffer" },
    { -1, 0, 0, 1024, "part of no bucket" },
    { 0, -5, 2, 1024, "part of no bucket" },
    { INT64_MAX, INT64_MAX, 2, 1024, "goes beyond its bucket" },
    { 0, 512, 4, 512, "part of no bucket" },
    /* clang-format on */
};

static void runs_of_buckets(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        Arena *a = arena_new();
        size_t n, m;
        Plan *p = plan_of(a, 1);
        Role *r = p->role;
        int b = r->nbuf;
        Buf *v = alloc(a, sizeof *v * (size_t)(b + 1));
        memcpy(v, r->buf, sizeof *v * (size_t)b);
        v[b] = (Buf){ .name = "bucket",
                      .cls = Bparam,
                      .dt = Df32,
                      .prog = -1,
                      .offset = r->arena = (r->arena + 255) / 256 * 256,
                      .bytes = 4 * runs[i].n };
        r->arena += v[b].bytes;
        r->buf = v;
        r->nbuf++;
        r->tensor->at = runs[i].at;
        r->tensor->run = runs[i].run;
        r->tensor->shard = runs[i].shard;
        r->tensor->buf = b;
        char *s = plan_print(a, p, &n);
        Plan *q = try_parse(a, s, n);
        if (!q != !!runs[i].said)
            fail_msg("row %zu: %s", i, q ? "was taken" : message);
        if (!q && !strstr(message, runs[i].said))
            fail_msg("row %zu: said %s", i, message);
        if (q) {
            char *t = plan_print(a, q, &m);
            assert_int_equal(n, m);
            assert_memory_equal(s, t, n);
        }
        arena_free(a);
    }
}

static uint32_t chance(void)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)(x >> 32);
}

/* Change, drop or double a few random bytes or lines of s[0, *n). */
static void mutate(char *s, size_t *n)
{
    static const char likely[] = "0123456789-+*a {}()\"\n@bigc9";
    size_t at = chance() % *n, len = 1 + chance() % 40, to;

    switch (chance() % 4) {
    case 0: s[at] = (char)chance(); break;
    case 1: s[at] = likely[chance() % (sizeof likely - 1)]; break;
    case 2:
        len = len < *n - at ? len : *n - at;
        memmove(s + at, s + at + len, *n - at - len);
        *n -= len;
        break;
    default:
        len = len < *n - at ? len : *n - at;
        to = chance() % *n;
        memmove(s + to + len, s + to, *n - to);
        *n += len;
        memmove(s + to, s + at + (at >= to ? len : 0), len);
    }
}

/* No crash, and no more memory than some multiple of the text: a count of
 * 2^40 allocates nothing. */
static void hostile_plans(void **state)
{
    (void)state;
    int taken = 0,
        rounds = getenv("PLAN_ROUNDS") ? atoi(getenv("PLAN_ROUNDS")) : 20000;
    Arena *a = arena_new();
    size_t n, two;
    char *one = plan_print(a, plan_of(a, 2), &n);
    char *stages = plan_print(a, staged_plan(a), &two);
    char *t = malloc(n + two + 4096);
    size_t before = arena_used(forever);

    for (int i = 0; i < rounds; i++) {
        Arena *b = arena_new();
        size_t m = (i % 2 ? two : n) - PLANHASHLINE;
        memcpy(t, i % 2 ? stages : one, m);
        for (uint32_t k = chance() % 4 + 1; k--;)
            mutate(t, &m);
        mend_plan(t, m + PLANHASHLINE, 1);
        taken += try_parse(b, t, m + PLANHASHLINE) != NULL;
        assert_true(arena_used(b) < (size_t)4 << 20);
        arena_free(b);
    }
    print_message("# %d of %d mutated plans were still plans\n", taken, rounds);
    assert_true(taken < rounds);
    assert_true(arena_used(forever) - before < (size_t)rounds * 8192);
    free(t);
    arena_free(a);
}

/* ---- overlaps against the plain definition ------------------------------- */

static int meet(const Buf *x, const Buf *y)
{
    int time = x->prog == -1 || y->prog == -1 ||
               (x->prog == y->prog && x->born <= y->dies && y->born <= x->dies);

    return time && x->bytes && y->bytes && x->offset < y->offset + y->bytes &&
           y->offset < x->offset + x->bytes;
}

static int any_meet(const Role *r)
{
    for (int i = 0; i < r->nbuf; i++)
        for (int k = 0; k < i; k++)
            if (meet(&r->buf[i], &r->buf[k]))
                return 1;
    return 0;
}

static void overlaps_found(void **state)
{
    (void)state;
    int yes = 0, zero = 0;
    const int rounds = 4000;
    Phase all = phase("body", 0, 4, 1);

    for (int i = 0; i < rounds; i++) {
        Arena *a = arena_new();
        Plan *p = plan_of(a, 2);
        p->nhf = 0;
        Role *r = p->role;
        Buf buf[6];
        Program prog[2] = { *r->prog, *r->prog };
        for (int k = 0; k < 2; k++) {
            prog[k].instr = alloc(a, 4 * sizeof(Instr));
            prog[k].ninstr = 4;
            prog[k].nphase = 1;
            prog[k].phase = &all;
            for (int s = 0; s < 4; s++)
                prog[k].instr[s] = (Instr){
                    .kind = Izero, .label = "", .nbuf = 1, .buf = &zero
                };
        }
        for (int k = 0; k < 6; k++) {
            int from = (int)(chance() % 4);
            buf[k] =
                (Buf){ .name = "b",
                       .cls = Btemp,
                       .dt = Df32,
                       .offset = 256 * (chance() % 48),
                       .bytes = chance() % 900,
                       .prog = k ? (int)(chance() % 3) - 1 : -1,
                       .born = from,
                       .dies = from + (int)(chance() % (4 - (unsigned)from)) };
        }
        *r = (Role){
            .nbuf = 6, .buf = buf, .arena = 13312, .nprog = 2, .prog = prog
        };
        const char *why = plan_wrong(a, p);
        int want = any_meet(r);
        yes += want;
        if (!why != !want)
            fail_msg("round %d: %s, want %d", i, why ? why : "fine", want);
        arena_free(a);
    }
    print_message("# %d of %d layouts overlap\n", yes, rounds);
    assert_in_range(yes, rounds / 10, rounds - rounds / 10);
}

/* ---- speed --------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As many steps as a plan of DeepSeek-V3: the same bytes again. Times are for
 * reading (`ninja bench`'s kind), nothing depends on them. */
static void big_plans_come_back(void **state)
{
    (void)state;
    Arena *a = arena_new();
    Plan *p = plan_of(a, 17000);
    size_t n, m;
    double t0 = now();
    char *s = plan_print(a, p, &n);
    double t1 = now();
    Plan *q = try_parse(a, s, n);
    double t2 = now();

    if (!q)
        fail_msg("%s", message);
    char *again = plan_print(a, q, &m);
    print_message("# %d steps, %.1f MB: printed in %.0f ms, read in %.0f ms\n",
                  q->role->prog->ninstr, 1e-6 * (double)n, 1e3 * (t1 - t0),
                  1e3 * (t2 - t1));
    assert_true(n == m && !memcmp(s, again, n));
    arena_free(a);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(stages_come_back),
        cmocka_unit_test(time_of_stages),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(executed_bytes_count),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(lies_of_stages_are_refused),
        cmocka_unit_test(runs_of_buckets),
        cmocka_unit_test(hostile_plans),
        cmocka_unit_test(overlaps_found),
        cmocka_unit_test(big_plans_come_back),
    };
    /* clang-format on */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
