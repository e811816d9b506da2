/* front_test: what a model file becomes. Sizes of the models we ship are the
 * published ones, and their FLOPs what is counted by hand; attention takes
 * every square value with it; hf{} cuts tensors where it says; one text gives
 * one graph. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../functions.h"
#include "../../frontend/frontend.h"

static Graph *traced(const char *text)
{
    Source s = { "model.lua", text };

    return trace_sources(&s, 1, opts_new(forever)).g;
}

static Node *find(const Graph *g, Op op, const char *s)
{
    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == op && (!s || !strcmp(n_name(g->node[i]), s)))
            return g->node[i];
    return NULL;
}

static int count(const Graph *g, Op op)
{
    int n = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        n += g->node[i]->op == op;
    return n;
}

/* ---- models -------------------------------------------------------------- */

static const struct {
    /* clang-format off */
    const char *file;
    int64_t params, states;
    double active, gflop;         /* billions; GFLOP a token, at 4096 tokens  */
} published[] = {
    { "models/mixtral.lua", 46702792704, 0, 12.880, 79.706 },
    { "models/qwen3_moe.lua", 30532122624, 0, 3.353, 23.006 },
    { "models/qwen2_moe.lua", 57408658944, 0, 14.249, 84.654 },
    { "models/olmoe.lua", 6919161856, 0, 1.282, 7.866 },
    { "models/deepseek_v2_lite.lua", 15706484224, 0, 2.661, 16.386 },
    /* With the biases 682,636,487,424.                                       */
    { "models/deepseek_v3.lua", 682636472320, 15104, 38.240, 259.993 },
    { "models/llama3.lua", 8030261248, 0, 8.030, 48.249 },
};
/* clang-format on */

/* The table has three digits, and counts DeepSeek's two inner norms as products
 * (the "+ 1" of C3): 6 * 61 * (1536 + 512) = 0.00075 GFLOP. */
static void near(double got, double want)
{
    if (got < want - 0.001 || got > want + 0.001)
        fail_msg("%.4f is not %.3f", got, want);
}

static void sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        Graph *g = trace(published[i].file, opts_new(forever), TRACEquiet).g;
        int64_t params, active, states = 0;
        double flops = flops_per_token(g, &params, &active);
        for (size_t k = 0; k < vec_len(g->param); k++)
            if (g->param[k]->kind == TKstate)
                states += g->param[k]->dim[0].n;
        assert_int_equal(params, published[i].params);
        assert_int_equal(states, published[i].states);
        near(1e-9 * (double)active, published[i].active);
        near(1e-9 * flops, published[i].gflop);
        assert_int_equal(g->nhf, (int)vec_len(g->param));
    }
}

/* ---- attention ----------------------------------------------------------- */

#define HEAD                                                              \
    "axes { batch=2, seq=8, hidden=4, heads=2, dim=6 }\n"                 \
    "local x = input('x', 'batch seq hidden')\n"                          \
    "local q = dot(x, param('wq', 'hidden heads dim'), 'hidden')\n"       \
    "local k = rename(dot(x, param('wk', 'hidden heads dim'), 'hidden')," \
    " {seq='key'})\n"                                                     \
    "local v = rename(x, {seq='key'})\n"
#define TAIL "loss('l', mean(y, 'batch seq heads hidden'))\n"

static int live_square(const Graph *g)
{
    int n = 0;

    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *x = g->node[i];
        int seq = 0, key = 0;
        for (int d = 0; d < x->nd; d++) {
            seq |= !strcmp(x->dim[d].a->name, "seq");
            key |= !strcmp(x->dim[d].a->name, "key");
        }
        n += seq && key;
    }
    return n;
}

/* Window, slope, cap and two products: all of it moves into the body, what is
 * not square becomes an operand, and iota is made, not read. */
static void attention_takes_squares(void **state)
{
    Graph *g = traced(
        HEAD
        "local ago = iota('seq') - rename(iota('seq'), {seq='key'})\n"
        "local s = 30 * tanh((dot(q, k, 'dim') + dot(q * 2, k, 'dim')) / 30)\n"
        "s = s - param('slope', 'heads') * ago\n"
        "s = where(land(ge(ago, 0), lt(ago, 4)), s, -inf)\n"
        "local y = attention(s, v, 'key')\n" TAIL);
    Node *a = find(g, Ocall, "attention");

    (void)state;
    assert_non_null(a);
    assert_int_equal(live_square(g), 0);
    assert_int_equal(a->nin, 5); /* q * 2, q, k, slope, v */
    assert_int_equal(count(a->body, Oarg), 5);
    assert_int_equal(count(a->body, Odot), 3);
    assert_int_equal(count(a->body, Oiota), 2);
    assert_int_equal(count(a->body, Otanh), 1);
    assert_int_equal(count(a->body, Orename), 0);
    assert_string_equal(a->at.call.key->name, "key");
    assert_string_equal(a->at.call.query->name, "seq");
    assert_int_equal(a->body->node[vec_len(a->body->node) - 1]->op, Odot);
}

/* causal() is opened inside; a use of the scores elsewhere keeps them there. */
static void attention_leaves_other_uses(void **state)
{
    Graph *g = traced(
        HEAD "local s = dot(q, k, 'dim')\n"
             "local y = attention(causal(s, 'seq', 'key'), v, 'key')\n"
             "metric('top', mean(max(s, 'key'), 'batch seq heads'))\n" TAIL);
    Node *a = find(g, Ocall, "attention");

    (void)state;
    assert_int_equal(live_square(g), 1);
    assert_int_equal(count(a->body, Ocall), 0);
    assert_int_equal(count(a->body, Owhere), 1);
    assert_int_equal(a->nin, 3);
}

/* What compares scores that are read outside is an operand; positions are
 * compared inside, and scores that nothing else reads. */
static void attention_compares_once(void **state)
{
    static const struct {
        const char *mask;
        int inside;
    } c[] = {
        { "ge(s, min(topk(s, 2, 'key'), 'top'))", 0 },
        { "ge(dot(q, k, 'dim'), max(dot(q, k, 'dim'), 'key'))", 0 },
        { "ge(2 * s, metered)", 0 },
        { "ge(s, bar)", 1 },
        { "ge(s - bar, 0)", 1 },
        { "land(ge(s, max(s, 'key')), ge(iota('seq'), iota('key', k)))", 1 },
        { "ge(f32(iota('seq')) - f32(iota('key', k)), 1)", 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        Graph *g = traced(strf(
            forever,
            HEAD "local s = dot(q, k, 'dim')\n"
                 "local bar, mask = param('bar', 'heads'), nil\n"
                 "loss('bar', mean(bar * bar, 'heads'))\n"
                 "if %d == 1 then metric('top', mean(max(s * 2, 'key'), "
                 "'batch seq heads')) end\n"
                 "local metered = bar\n"
                 "mask = %s\n"
                 "local y = attention(where(mask, s, -inf), v, 'key')\n" TAIL,
            strstr(c[i].mask, "metered") != NULL, c[i].mask));
        Node *a = find(g, Ocall, "attention");
        assert_int_equal(count(a->body, Oge), c[i].inside);
        assert_int_equal(count(a->body, Odot), 2);
    }
}

/* A mask of one score in two attentions is an operand of both. */
static void attentions_share_a_mask(void **state)
{
    Graph *g = traced(
        HEAD "local s = dot(q, k, 'dim')\n"
             "local mask = ge(s, param('bar', 'heads'))\n"
             "local y = attention(where(mask, s, -inf), v, 'key')\n"
             "y = y + attention(where(mask, -s, -inf), v * 2, 'key')\n" TAIL);

    (void)state;
    assert_int_equal(count(g, Oge), 1);
    assert_int_equal(count(find(g, Ocall, "attention")->body, Oge), 0);
}

/* The query is what the key was renamed from, a declared key too; else the
 * largest axis that values lack; keys that topk chose for each query have none.
 */
static void attention_finds_queries(void **state)
{
    static const struct {
        const char *text, *query;
    } c[] = {
        { "axes { key=8 } y = attention(dot(q, rename(x, {seq='key'}), 'h'), "
          "rename(x, {seq='key'}), 'key')",
          "seq" },
        { "axes { a=4, b=2 } local m = merge(split(x, 'seq', 'a b'), 'a b', "
          "'key') y = attention(dot(q, m, 'h'), m, 'key')",
          "seq" },
        { "local k = rename(x, {seq='key'}) local s, e = topk(dot(x, k, 'h'), "
          "3, 'key') y = attention(causal(s, 'seq', 'top'), gather(k, e), "
          "'top')",
          NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        Graph *g = traced(strf(forever,
                               "axes { batch=2, seq=8, h=4, g=3 }\n"
                               "local x = input('x', 'batch seq h')\n"
                               "local q, y = x * param('w', 'g h'), nil\n"
                               "%s\nloss('q', mean(q, 'batch seq g h'))\n"
                               "loss('l', mean(sum(y * y, 'h'), %s))\n",
                               c[i].text,
                               c[i].query ? "'batch seq g'" : "'batch seq'"));
        Node *a = find(g, Ocall, "attention");
        if (c[i].query)
            assert_string_equal(a->at.call.query->name, c[i].query);
        else
            assert_null(a->at.call.query);
    }
}

/* ---- composites, names, numbers ------------------------------------------ */

static void composites_are_one_node(void **state)
{
    Graph *g =
        traced(HEAD "local y = scope('norm', rmsnorm, q, 'dim')\n"
                    "loss('l', mean(rope(y, 'dim', 'seq', 1e4) * sum(k, 'key'),"
                    " 'batch seq heads dim'))\n");
    Node *norm = find(g, Ocall, "rmsnorm"), *rope = find(g, Ocall, "rope");

    (void)state;
    assert_int_equal(norm->nin, 2);
    assert_string_equal(norm->in[1]->at.param.path, "norm.weight");
    assert_int_equal(rope->nin, 1);
    assert_ptr_equal(rope->in[0], norm);
    assert_int_equal(count(g, Ocall), 2);
    assert_true(same_dims(rope, norm));
    assert_int_equal(rope->dt, Dreal);
}

/* A local function may wrap the layer whose name it takes. */
static void local_function_wraps_layer(void **state)
{
    Graph *g = traced(HEAD "local function attention(t)\n"
                           "  return attention(dot(t, k, 'dim'), v, 'key')\n"
                           "end\n"
                           "local y = attention(q)\n" TAIL);

    (void)state;
    assert_non_null(find(g, Ocall, "attention"));
}

/* Orders, random numbers and names of tables are the same in every run, and
 * what a model does to Lua's own tables is not seen by the layers. */
static void nothing_by_chance(void **state)
{
    (void)state;
    traced("axes { a=2 } output('y', iota('a'))\n"
           "local t = { z=1, y=2, [3]=3, [1.5]=4, [true]=5, [1]=6 }\n"
           "local keys = {}\n"
           "for k in pairs(t) do keys[#keys + 1] = tostring(k) end\n"
           "assert(table.concat(keys, ' ') == '1 1.5 3 y z true')\n"
           "local k, n = nil, 0\n"
           "repeat k = next(t, k) n = n + 1\n"
           "  assert(k == nil or tostring(k) == keys[n]) until k == nil\n"
           "assert(n == 7 and next {} == nil)\n"
           "for name in pairs(t) do t[name] = nil t.z = nil end\n"
           "assert(next(t) == nil)\n"
           "assert(tostring {} == 'table' and tostring(print) == 'function')\n"
           "assert(('%s %5s|%%'):format({}, 'a') == 'table     a|%')\n"
           "assert(math.random(1000) == 414 and math.random(1000) == 488)\n");
    const char *rope = "axes { a=2, b=4 } output('y', rope(f32(iota('a') + "
                       "iota('b')), 'b', 'a', 1e4, { yarn={ factor=2,"
                       " original=8 } }))\n";
    Graph *g = traced(rope),
          *h = traced(
              strf(forever, "math.log, math.max = print, print %s", rope));
    assert_string_equal(graph_print(forever, g, 0), graph_print(forever, h, 0));
}

static Dtype type_of(const Graph *g, const char *output)
{
    return find(g, Ooutput, output)->in[0]->dt;
}

static void numbers_take_the_dtype_beside(void **state)
{
    Graph *g = traced(
        "axes { batch=2, seq=8, vocab=4 }\n"
        "local i, x = input('tokens', 'batch seq'), input('x', 'batch seq')\n"
        "output('whole', i * 3 + 1)\n"
        "output('half', i * 0.5)\n"
        "output('real', x * 0.5 + 1)\n"
        "output('f32', f32(x) ^ 2)\n"
        "output('truth', lt(i, 3))\n"
        "output('share', mean(one_hot(index(i, 'vocab')), 'seq'))\n");

    (void)state;
    assert_int_equal(type_of(g, "whole"), Di32);
    assert_int_equal(type_of(g, "half"), Df32);
    assert_int_equal(type_of(g, "real"), Dreal);
    assert_int_equal(type_of(g, "f32"), Df32);
    assert_int_equal(type_of(g, "truth"), Dbool);
    assert_int_equal(type_of(g, "share"), Df32);
}

/* Every op that is not hidden is a function, and editors know
 * it. */
static void every_op_is_a_function(void **state)
{
    const char *editor = editor_text(forever), *check = luacheck_text(forever);
    Text t = { .arena = forever };

    (void)state;
    for (int op = 0; op < op_count; op++) {
        if (op_is((Op)op, OPhidden))
            continue;
        put(&t, "assert(type(%s) == 'function')\n", optab[op].name);
        if (!strstr(editor, optab[op].name))
            fail_msg("what editors get lacks '%s'", optab[op].name);
        if (!strstr(check, strf(forever, "\"%s\"", optab[op].name)))
            fail_msg("what luacheck gets lacks '%s'", optab[op].name);
    }
    put(&t, "axes { a=2 } output('y', iota('a'))\n");
    traced(t.s);
}

/* "x tensor, axis axis" -> "x, axis" */
static const char *argument_names(const char *items)
{
    Text t = { .arena = forever };

    for (const char *s = items; *(s += strspn(s, ", "));) {
        put(&t, "%s%.*s", t.len ? ", " : "", (int)strcspn(s, " ,"), s);
        s += strcspn(s, ",");
    }
    return t.s;
}

/* What editors show of a function is what it takes; of several ways to write a
 * call one, and of functions of one kind (sum, mean, ..) the first. */
static void editors_know_arguments(void **state)
{
    const char *editor = editor_text(forever);
    /* clang-format off */
    static const struct { const char *name, *items; } rows[] = {
#define TAKES(name, items) {#name, items},
#define FIELDS(name, items)
#include "../../frontend/lang/takes.def"
    };
    /* clang-format on */
    int seen = 0;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *name = rows[i].name;
        char *head = strf(forever, "\nfunction %s(", name);
        char *whole =
            strf(forever, "%s%s) end", head, argument_names(rows[i].items));
        int other = i && !strcmp(rows[i - 1].name, name);
        other |= i + 1 < sizeof rows / sizeof *rows &&
                 !strcmp(rows[i + 1].name, name);
        if (!other && strstr(editor, head) && !strstr(editor, whole))
            fail_msg("editor.lua has not: %s", whole + 1);
        seen += strstr(editor, whole) != NULL;
    }
    assert_true(seen >= 50);
}

/* ---- Hugging Face names -------------------------------------------------- */

static const HfMap *mapping(const Graph *g, const char *param)
{
    for (int i = 0; i < g->nhf; i++)
        if (!strcmp(g->hf[i].param, param))
            return &g->hf[i];
    return NULL;
}

static void hf_cuts_tensors(void **state)
{
    Graph *g = trace("models/deepseek_v3.lua", opts_new(forever), 0).g;
    const HfMap *rope = mapping(g, "layers.7.attn.wq_rope");
    const HfMap *w1 = mapping(g, "layers.60.moe.w1");

    (void)state;
    assert_string_equal(rope->hf, "model.layers.7.self_attn.q_b_proj.weight");
    assert_int_equal(rope->nd, 2);
    assert_int_equal(rope->dim[0].nf, 2);
    assert_string_equal(rope->dim[0].f[0].axis, "heads");
    assert_string_equal(rope->dim[0].f[1].axis, "rot");
    assert_int_equal(rope->dim[0].f[1].total, 192);
    assert_int_equal(rope->dim[0].f[1].start, 128);
    assert_int_equal(rope->dim[0].f[1].n, 64);
    assert_string_equal(w1->hf, "model.layers.60.mlp.experts.{expert}."
                                "gate_proj.weight");
    assert_int_equal(w1->nfix, 1);
    assert_string_equal(w1->fixaxis[0], "expert");
    assert_int_equal(w1->fixat[0], -1);
    assert_null(mapping(g, "layers.2.moe.w1"));
}

/* ---- one text, one graph ------------------------------------------------- */

static void same_text_same_graph(void **state)
{
    char *a, *b;

    (void)state;
    Graph *g = trace("models/tiny.lua", opts_new(forever), 0).g;
    g_names(g);
    a = graph_print(forever, g, PRINTloc);
    g = trace("models/tiny.lua", opts_new(forever), 0).g;
    g_names(g);
    b = graph_print(forever, g, PRINTloc);
    assert_string_equal(a, b);
}

static void command_line_wins(void **state)
{
    Opts *o = opts_new(forever);

    (void)state;
    opts_set(o, "axes.seq", "128", NULL);
    opts_set(o, "train.lr", "0.5", NULL);
    Graph *g = trace("models/tiny.lua", o, 0).g;
    assert_int_equal(find(g, Oinput, "tokens")->dim[2].n, 128);
    assert_true(opts_num(g->opts, "train.lr") == 0.5);
    assert_int_equal(opts_int(g->opts, "train.steps"), 300);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(attention_takes_squares),
        cmocka_unit_test(attention_leaves_other_uses),
        cmocka_unit_test(attention_compares_once),
        cmocka_unit_test(attentions_share_a_mask),
        cmocka_unit_test(attention_finds_queries),
        cmocka_unit_test(composites_are_one_node),
        cmocka_unit_test(local_function_wraps_layer),
        cmocka_unit_test(numbers_take_the_dtype_beside),
        cmocka_unit_test(every_op_is_a_function),
        cmocka_unit_test(editors_know_arguments),
        cmocka_unit_test(nothing_by_chance),
        cmocka_unit_test(hf_cuts_tensors),
        cmocka_unit_test(same_text_same_graph),
        cmocka_unit_test(command_line_wins),
    };
    /* clang-format on */

    return cmocka_run_group_tests(tests, NULL, NULL);
}
