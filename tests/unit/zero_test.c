/* zero_test: what ZeRO keeps on a rank and what it sends, read off plans: the
 * bytes published for a rank (DeepSeek-V3, EP64, 64 ranks of a stage), the
 * collectives, and where each parameter's masters
 * and moments lie in buckets. That they compute the same is models_test's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../frontend/frontend.h"

static Opts *keys_of(const char *keys)
{
    Opts *o = opts_new(forever);
    char *s = strf(forever, "%s", keys);

    for (char *w = strtok(s, " "); w; w = strtok(NULL, " ")) {
        size_t n = strcspn(w, "=");
        opts_set(o, internn(w, n), intern(w + n + 1), NULL);
    }
    /* reductions stay in post */
    opts_set(o, intern("fold.overlap"), intern("0"), NULL);
    /* no search for what fits: what is rebuilt is not read here */
    opts_set(o, intern("train.recompute"), intern("0"), NULL);
    return o;
}

static Plan *compiled(const Trace *t)
{
    return compile(t->g, &T_null, &(CompileOptions){ 0 });
}

/* Of all layers of the model. */
static Plan *deep_plan(const char *model, const char *keys)
{
    Trace t = trace(model, keys_of(keys), TRACEquiet);
    return compiled(&t);
}

#ifdef __SANITIZE_ADDRESS__
/* Of 12 layers where a model has 48 or 61: the same in a fifth of the time. */
static Plan *plan(const char *model, const char *keys)
{
    size_t n;
    char *text = file_read(forever, model, &n);
    char *at = strstr(text, "local layers");

    if (!at)
        return deep_plan(model, keys);
    at += strcspn(at, "0123456789");
    Source s = { model, strf(forever, "%.*s12%s", (int)(at - text), text,
                             at + strspn(at, "0123456789")) };
    Trace t = trace_sources(&s, 1, keys_of(keys));
    return compiled(&t);
}
#else
static Plan *plan(const char *model, const char *keys)
{
    return deep_plan(model, keys);
}
#endif

/* Elements of the whole tensor; of a rank's part before buckets share it. */
static double whole(const Tensor *t)
{
    double n = 1;

    for (int d = 0; d < t->nd; d++)
        n *= (double)t->dim[d].n;
    return n;
}

static int64_t part(const Tensor *t)
{
    int64_t n = 1;

    for (int d = 0; d < t->nd; d++) {
        int64_t len = 0;
        for (int i = 0; i < t->dim[d].npiece; i++)
            len += t->dim[d].piece[i].len;
        n *= len;
    }
    return n;
}

static double bytes_of(const Role *r, BufClass c)
{
    double sum = 0;

    for (int i = 0; i < r->nbuf; i++)
        if (r->buf[i].prog < 0 && r->buf[i].cls == c)
            sum += (double)r->buf[i].bytes;
    return sum;
}

static int is_expert(const Tensor *t)
{
    return t->nd == 3 && !strcmp(t->dim[0].axis, "expert");
}

/* ---- C5 ------------------------------------------------------------------ */

typedef struct Count {
    double dense, expert;
} Count;

/* Parameters of one layer, of all ranks. */
static Count layer(const Role *r, const char *scope)
{
    Count c = { 0 };

    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *t = &r->tensor[i];
        if (t->kind != TKparam || strncmp(t->name, scope, strlen(scope)))
            continue;
        *(is_expert(t) ? &c.expert : &c.dense) += whole(t);
    }
    return c;
}

/* Bytes that are kept of an element whose parameter lies as its master would:
 * both moments, and 16 bits of the master. */
enum { HALVES = 10 };

/* Padding is at most this share of large models' bytes. */
static const double SLACK = 1e-4;

static void deepseek(void **state)
{
    const double gib = 1 << 30;
    Plan *p =
        plan("models/deepseek_v3.lua", "precision=bf16 world=64 "
                                       "fold.dp=64 fold.ep=64 train.batch=64");
    const Role *r = p->role;
    Count one = layer(r, "layers.10."), all = layer(r, "");
    double want = 12 * all.dense / 64 + HALVES * all.expert / 64;

    (void)state;
    /* 16 layers, as the vector has them, to the digits it gives: it leaves out
       the router and the layer's two norms. */
    one.dense -= 7168 * 256 + 2 * 7168;
    assert_float_equal(one.dense / 1e6, 231.147, 1e-3);
    assert_float_equal(one.expert / 1e6, 11274.29, 5e-3);
    assert_float_equal(16 * 6 * (one.dense + one.expert / 64) / gib, 36.42,
                       5e-3);
    assert_float_equal(16 * 12 * (one.dense / 64 + one.expert / 64) / gib,
                       32.15, 5e-3);
    /* And the plan has these bytes, of all layers. */
    print_message("optimizer %.3f GiB, by formula %.3f\n",
                  bytes_of(r, Boptim) / gib, want / gib);
    assert_true(bytes_of(r, Boptim) >= want);
    assert_true(bytes_of(r, Boptim) < want * (1 + SLACK));
    assert_true(fabs(bytes_of(r, Bparam) / (2 * (all.dense + all.expert / 64)) -
                     1) < SLACK);
}

/* ---- C7 ------------------------------------------------------------------ */

/* Elements of a rank's part. */
static int64_t elems_of(const Instr *s)
{
    return s->kind == Iallgather ? s->allgather.outer * s->allgather.chunk
           : s->kind == Ireducescatter
               ? s->reducescatter.outer * s->reducescatter.chunk
               : s->allreduce.n;
}

/* Bytes that a rank receives in post by instructions of a kind over more than a
 * scalar. */
static double received(const Plan *p, InstrKind kind)
{
    const Program *g = &p->role->prog[role_prog(p->role, PGstep)];
    const Phase *post = &g->phase[g->nphase - 1];
    double sum = 0;

    for (int i = post->first; i < post->first + post->n; i++) {
        const Instr *s = &g->instr[i];
        if (s->kind != kind || elems_of(s) == 1)
            continue;
        double one = (double)(elems_of(s) * dtypes[instr_dtype(s, 0)].bytes) *
                     (double)(mesh_extent(p->mesh, s->atoms) - 1);
        if (kind != Iallreduce)
            assert_true(s->bytes == one);
        sum += one;
    }
    return sum;
}

/* fp32 gradients scattered, bf16 weights gathered, and nothing reduced to
 * all. */
static void sends(void **state)
{
    Plan *p = plan("models/qwen3_moe.lua", "precision=bf16 world=8 fold.dp=8 "
                                           "fold.ep=8 train.batch=8");
    Count all = layer(p->role, "");

    (void)state;
    assert_true(fabs(received(p, Ireducescatter) / (4 * all.dense * 7 / 8) -
                     1) < SLACK);
    assert_true(fabs(received(p, Iallgather) / (2 * all.dense * 7 / 8) - 1) <
                SLACK);
    assert_true(received(p, Iallreduce) == 0);
    p = plan("models/qwen3_moe.lua", "precision=bf16 world=8 fold.dp=8 "
                                     "fold.ep=8 train.batch=8 fold.zero=0");
    assert_true(received(p, Ireducescatter) == 0);
    assert_true(fabs(bytes_of(p->role, Boptim) /
                         (HALVES * (all.dense + all.expert / 8)) -
                     1) < SLACK);
}

/* ---- buckets ------------------------------------------------------------- */

typedef struct Seen {
    int alone, crosses, small, uneven;
} Seen;

static void in_bucket(const Plan *p, const Tensor *t, Seen *s)
{
    const Buf *b = &p->role->buf[t->buf];
    int64_t ranks = mesh_extent(p->mesh, t->shard), n = part(t);

    if (!t->run) {
        s->alone++;
        assert_int_equal(b->bytes, n * dtypes[t->dt].bytes);
        return;
    }
    assert_int_equal(t->at % 128, 0);
    assert_int_equal(t->run % 64, 0);
    assert_int_equal(b->bytes, t->run * dtypes[t->dt].bytes);
    assert_true(t->at + n <= t->run * ranks);
    s->crosses += t->at / t->run != (t->at + n - 1) / t->run;
    s->small += n < ranks;
    s->uneven += n % ranks != 0;
}

/* Do the parts of one buffer's tensors lie apart? */
static void apart(const Role *r, const Tensor *x)
{
    for (int i = 0; i < r->ntensor; i++) {
        const Tensor *y = &r->tensor[i];
        if (y->buf == x->buf && y != x)
            assert_true(y->at >= x->at + part(x) || x->at >= y->at + part(y));
    }
}

/* The smallest file size there can be: every bucket's members, each at a
 * multiple of 128, padded to 64 elements a rank. */
static double least_bytes(const Plan *p)
{
    const Role *r = p->role;
    double sum = 0;

    for (int b = 0; b < r->nbuf; b++) {
        int64_t n = 0, ranks = 1;
        for (int i = 0; i < r->ntensor; i++)
            if (r->tensor[i].buf == b && r->tensor[i].run) {
                n += (part(&r->tensor[i]) + 127) / 128 * 128;
                ranks = mesh_extent(p->mesh, r->tensor[i].shard);
            } else if (r->tensor[i].buf == b && r->buf[b].cls == Boptim) {
                n = part(&r->tensor[i]);
            }
        if (r->buf[b].cls == Boptim && r->buf[b].prog < 0)
            sum +=
                dtypes[r->buf[b].dt].bytes *
                (double)(ranks == 1 ? n
                                    : (n + 64 * ranks - 1) / (64 * ranks) * 64);
    }
    return sum;
}

static int is_first_moment(const Tensor *t)
{
    return !strncmp(t->name, "optim.m.", 8);
}

static Seen buckets(const char *model, const char *keys)
{
    Plan *p = plan(model, keys);
    Seen s = { 0 };
    int params = 0, v = 0;

    for (int i = 0; i < p->role->ntensor; i++) {
        const Tensor *t = &p->role->tensor[i];
        params += t->kind == TKparam;
        v += !strncmp(t->name, "optim.v.", 8);
        if (is_first_moment(t) || tensor_is(t, MASTERS)) {
            in_bucket(p, t, &s);
            apart(p->role, t);
        }
    }
    assert_int_equal(v, params);
    assert_true(bytes_of(p->role, Boptim) == least_bytes(p));
    return s;
}

static void members(void **state)
{
    Seen s = buckets("tests/hf/mixtral-aux.lua", "world=1 train.batch=2");

    (void)state;
    assert_int_equal(s.crosses + s.small, 0);
    s = buckets("tests/hf/mixtral-aux.lua",
                "fold.dp=4 fold.ep=4 train.batch=8 precision=bf16");
    assert_int_equal(s.alone, 2 * 2 * 3); /* experts: edp is 1 */
    assert_true(s.crosses > 0);
    s = buckets("tests/models/zoo.lua",
                "fold.tp=2 fold.dp=8 train.batch=16 axes.hidden=12");
    assert_true(s.crosses > 0 && s.uneven > 0 && s.small > 0);
    s = buckets("tests/hf/dsv3.lua", "fold.dp=8 fold.ep=2 fold.hybrid=2 "
                                     "train.batch=16 precision=bf16");
    assert_true(s.crosses > 0);
}

/* Bytes of all gradients' elements, by the buckets' sizes; and of buffers where
 * they lie: accumulators that are no part of a bucket, and buckets. */
static double gradients_need(const Plan *p)
{
    double sum = 0;
    char *seen = alloc(forever, (size_t)p->role->nbuf);

    for (int i = 0; i < p->role->ntensor; i++) {
        const Tensor *t = &p->role->tensor[i];
        if (!is_first_moment(t) || (t->run && seen[t->buf]++))
            continue;
        sum += 4 * (double)(t->run ? t->run * mesh_extent(p->mesh, t->shard)
                                   : part(t));
    }
    return sum;
}

static double gradients_have(const Plan *p)
{
    const Role *r = p->role;
    int prog = role_prog(r, PGstep);
    double sum = 0;

    for (int i = 0; i < r->nbuf; i++) {
        const Buf *b = &r->buf[i];
        size_t n = strlen(b->name);
        if (b->prog == prog && !joined(r, i, b->dies) &&
            (!strncmp(b->name, "grad.", 5) ||
             (n > 5 && !strcmp(b->name + n - 5, ".pack"))))
            sum += (double)b->bytes;
    }
    return sum;
}

/* Packing makes no copy: products add to the buckets where they are. */
static void once(void **state)
{
    /* clang-format off */
    static const struct { const char *model, *keys; } row[] = {
        { "models/qwen3_moe.lua", "precision=bf16 world=8 fold.dp=8 fold.ep=8 "
          "train.batch=16" },
        { "models/tiny.lua", "fold.dp=8 train.batch=64" },
        { "models/tiny.lua", "fold.dp=2 train.batch=64" },
        { "tests/models/zoo.lua", "fold.dp=8 train.batch=16 axes.hidden=12" },
        { "tests/hf/mixtral-aux.lua", "fold.tp=2 fold.dp=4 train.batch=16" },
        { "tests/hf/dsv3.lua", "fold.dp=8 fold.ep=2 fold.hybrid=2 "
          "train.batch=16 precision=bf16" },
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Plan *p = plan(row[i].model, row[i].keys);
        print_message("%s: gradients %.0f bytes, need %.0f\n", row[i].model,
                      gradients_have(p), gradients_need(p));
        assert_true(gradients_have(p) == gradients_need(p));
    }
}

/* Checks of plans see parts that lie elsewhere, overlap or outlive the join. */
static void parts(void **state)
{
    Plan *p = plan("models/tiny.lua", "fold.dp=8 train.batch=64");
    Program *g = &p->role->prog[role_prog(p->role, PGstep)];
    Instr *s = g->instr;

    (void)state;
    while (s->kind != Ijoin || !s->join.gap.n)
        assert_true(++s < g->instr + g->ninstr);
    Buf *b = &p->role->buf[s->buf[2]];
    assert_null(plan_wrong(forever, p));
    s->join.gap.at->bytes -= 4;
    assert_non_null(plan_wrong(forever, p));
    s->join.gap.at->bytes += 4;
    b->offset -= BUFALIGN;
    assert_non_null(plan_wrong(forever, p));
    b->offset += BUFALIGN;
    b->dies++;
    assert_non_null(plan_wrong(forever, p));
    b->dies--;
    assert_null(plan_wrong(forever, p));
}

/* Shards within 2 of 8 ranks take as much as with 2. */
static void hybrid(void **state)
{
    /* clang-format off */
    static const char *const keys[] = {
        "fold.dp=8 fold.hybrid=2", "fold.dp=2",
        "fold.dp=8 fold.hybrid=8", "fold.dp=8",
        "fold.dp=8 fold.hybrid=1", "fold.dp=8 fold.zero=0",
    };
    /* clang-format on */
    double b[6];

    (void)state;
    for (int i = 0; i < 6; i++)
        b[i] = bytes_of(plan("tests/hf/qwen3.lua",
                             strf(forever, "%s train.batch=16", keys[i]))
                            ->role,
                        Boptim);
    assert_true(b[0] == b[1] && b[2] == b[3] && b[4] == b[5]);
    assert_true(b[0] < 0.6 * b[4] && b[2] < 0.2 * b[4]);
}

/* ZeRO-3: of the weights too a rank has a run only, and of the gradients; what
 * a unit gathers does not last. ZeRO-2: of the gradients alone. */
static void shards(void **state)
{
    Plan *one =
        deep_plan("models/qwen3_moe.lua", "precision=bf16 world=8 fold.dp=8 "
                                          "fold.ep=8 train.batch=16");
    Plan *all = deep_plan("models/qwen3_moe.lua",
                          "precision=bf16 world=8 fold.dp=8 "
                          "fold.ep=8 train.batch=16 fold.zero=3");
    Plan *two = deep_plan("models/qwen3_moe.lua",
                          "precision=bf16 world=8 fold.dp=8 "
                          "fold.ep=8 train.batch=16 fold.zero=2");
    Count n = layer(one->role, "");
    double saved = bytes_of(one->role, Bparam) - bytes_of(all->role, Bparam);

    (void)state;
    assert_true(fabs(saved / (2 * n.dense * 7 / 8) - 1) < SLACK);
    /* their remainders lie as they do */
    assert_true(
        fabs(bytes_of(all->role, Boptim) / (HALVES * (n.dense + n.expert) / 8) -
             1) < SLACK);
    assert_true(fabs(bytes_of(one->role, Boptim) /
                         ((12 * n.dense + HALVES * n.expert) / 8) -
                     1) < SLACK);
    /* ZeRO-2: weights whole, gradients their shards */
    assert_true(bytes_of(two->role, Bparam) == bytes_of(one->role, Bparam));
    assert_true(received(two, Ireducescatter) == 0);
    assert_true(fabs(received(two, Iallgather) / (2 * n.dense * 7 / 8) - 1) <
                SLACK);
    assert_true(two->role->arena < one->role->arena - (int64_t)(2 * n.dense));
    /* gradients and weights in post: no more than their shards */
    assert_true(received(all, Ireducescatter) == 0);
    assert_true(received(all, Iallgather) == 0);
    assert_true(all->role->arena <
                one->role->arena - (int64_t)(saved + 2 * n.dense));
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek), cmocka_unit_test(sends),
        cmocka_unit_test(members),  cmocka_unit_test(hybrid),
        cmocka_unit_test(shards),   cmocka_unit_test(once),
        cmocka_unit_test(parts),
    };
    /* clang-format on */

    return cmocka_run_group_tests_name("zero", tests, NULL, NULL);
}
