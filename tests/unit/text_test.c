/* text_test.c: graphs as text: what is printed comes back, what is wrong in a
 * text is said with its line, repeated scopes fold, and no text crashes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../ir/graph/graph.h"

static jmp_buf heard;
static char message[4096];

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

static Graph *try_parse(Arena *a, const char *s, size_t n)
{
    Graph *volatile g = NULL;

    err_hook = hear;
    if (!setjmp(heard))
        g = graph_parse(a, s, n, "x.ir", NULL);
    err_hook = NULL;
    return g;
}

/* A bit of everything, in the form it is printed in. */
static const char everything[] =
    "graph \"my model\" step local {\n"
    "  option train.lr 1e-3\n"
    "  option name \"a \\\\ b\"\n"
    "  mesh world=8 order=tp-cp-dp-pp tp=2 cp=1 dp=4 pp=1 etp=1 ep=4 edp=2\n"
    "  axis micro    1\n"
    "  axis batch    2\n"
    "  axis seq      8  !m.lua:3\n"
    "  axis key      0 root=seq\n"
    "  axis token    0 of=batch,seq\n"
    "  axis hidden   16\n"
    "  axis ffn      32\n"
    "  axis expert   8\n"
    "  axis top      2\n"
    "  axis row      0\n"
    "  param w            normal 0.02            f32  [hidden ffn]         "
    "!m.lua:7 <m.lua:9\n"
    "  param e            uniform 0.1 expert=expert  f32  [expert hidden ffn]\n"
    "  moment optim.m.w   const 0                f32  [hidden ffn]\n"
    "  master optim.w     copy 0 of=w            f32  [hidden ffn]\n"
    "  hf \"model.{i}.w\" w expert=-1 ( hidden 16 0 16 ) ( ffn 32 0 32 \"\" 2 "
    "1 1 )"
    "\n"
    "  def twice.1 {\n"
    "    %a = arg index=0  f32  [micro=4 batch seq hidden]\n"
    "    %y = add %a %a    f32  [micro=4 batch seq hidden]\n"
    "  }\n"
    "  pre:\n"
    "    %c   = const value=-0.1              f32  []\n"
    "    %inf = const value=-inf              f32  []\n"
    "    %r   = random kind=normal arg=1 key=-77  f32  [hidden]\n"
    "  body:\n"
    "    %x        = input                    f32  [micro=4 batch seq hidden]"
    "  @ dp:micro\n"
    "    %w        = param                    f32  [hidden ffn]  @ tp:ffn\n"
    "    %e        = param                    f32  [expert hidden ffn]  "
    "@ ep:expert\n"
    "    %a.w      = dot %x %w axes=hidden    f32  [micro=4 batch seq ffn]  "
    "@ tp:ffn dp:micro\n"
    "    %a.s      = sum %a.w axes=ffn        f32  [micro=4 batch seq]  "
    "@ tp:+ dp:micro  !m.lua:12\n"
    "    %a.all    = allreduce %a.s atoms=tp  f32  [micro=4 batch seq]  "
    "@ dp:micro\n"
    "    %a.m      = max %a.w axes=ffn        f32  [micro=4 batch seq]  "
    "@ tp:+max dp:micro\n"
    "    %a.k      = topk %x k=2 axis=hidden new=top again=1  i32  "
    "[micro=4 batch seq top]  @ dp:micro\n"
    "    %b        = sum %x axes=micro,batch,seq scope=q  f32  [hidden]  "
    "@ dp:+\n"
    "    %acc      = accum %b op=add  f32  [hidden]  @ dp:+\n"
    "  post:\n"
    "    %all      = allreduce %acc atoms=dp  f32  [hidden]\n"
    "    %t        = sum %all axes=hidden     f32  []\n"
    "    %res      = result %t name=loss\n"
    "}\n";

/* parse(print(g)) prints the same bytes, with and without places. */
static void lawful(const Graph *g)
{
    Arena *a = arena_new();

    for (int flags = 0; flags <= PRINTloc; flags++) {
        char *s = graph_print(a, g, flags);
        Graph *h = try_parse(a, s, strlen(s));
        if (!h)
            fail_msg("%s in\n%s", message, s);
        assert_string_equal(graph_print(a, h, flags), s);
    }
    arena_free(a);
}

static void comes_back(void **state)
{
    (void)state;
    Graph *g = try_parse(forever, everything, strlen(everything));

    if (!g)
        fail_msg("%s", message);
    lawful(g);
    assert_int_equal(g->level, LOCAL);
    assert_string_equal(opts_str(g->opts, "name"), "a \\ b");
    assert_ptr_equal(g_axis(g, "key")->root, g_axis(g, "seq"));
    assert_int_equal(g_axis(g, "token")->nfactor, 2);
    assert_int_equal(g_param(g, "w")->loc->up->line, 9);
    assert_ptr_equal(g_param(g, "e")->expert, g_axis(g, "expert"));
    assert_int_equal(g->hf->fixat[0], -1);
    Node *x = g->node[3], *e = g->node[5];
    assert_int_equal(x->op, Oinput);
    assert_string_equal(x->at.input.name, "x");
    assert_int_equal(x->dim[0].n, 4);
    assert_int_equal(x->dim[2].n, 8);
    assert_int_equal(e->sh[0].k, S);
    assert_int_equal(e->sh[2].k, R);
    assert_string_equal(g->node[6]->scope->path, "a");
    assert_int_equal(g->node[8]->at.allreduce.atoms, 1);
    assert_int_equal(g->node[9]->sh[0].op, Rmax);
    assert_int_equal(g->node[10]->again, 1);
    assert_string_equal(g->node[11]->scope->path, "q");
    assert_true(g->node[0]->at.constant.value == -0.1);
    assert_int_equal(g->node[2]->at.random.key, -77);
}

/* ---- wrong texts --------------------------------------------------------- */

static const char head[] =
    "graph g step logical {\n  axis hidden 16\n  axis seq 8\n"
    "  param w const 0 f32 [hidden]\n";

/* clang-format off */
static const struct { const char *text, *said; } wrong[] = {
    { "%a = silu %b f32 []", "x.ir:5: error: no node '%b' stands above" },
    { "%a = sillu %a f32 []", "no op 'sillu' (did you mean 'silu'?)" },
    { "%a = iota axis=hiden i32 [hidden]", "unknown axis 'hiden' (did you mean "
      "'hidden'?)" },
    { "%a = iota axis=hidden i32 [hidden]\n%a = iota axis=seq i32 [seq]",
      "x.ir:6: error: two nodes '%a'" },
    { "%a = iota axis=hidden i32 [hidden]\n%b = add %a i32 [hidden]",
      "add has 2 operands (a b), not 1" },
    { "%a = iota axis=hidden q=3 i32 [hidden]", "iota has no attribute 'q'" },
    { "%a = const value=x f32 []", "'x' is not a number" },
    { "%a = input f32 [seq seq]", "axis 'seq' stands twice" },
    { "%a = input f32 [seq=0]", "axis 'seq' is 0" },
    { "%a = input f32 [seq", "the line ends too early" },
    { "%a = input f32 [seq] extra", "unexpected 'e' before the end" },
    { "%a = input f32 [seq hidden]\n%b = sum %a axes=seq f32 [seq]",
      "is [seq=8], and its operands make [hidden=16]" },
    { "%a = input f32 [seq]\n%b = add %a %a bf16 [seq]",
      "is bf16, and its operands make f32" },
    { "%a = input f32 [seq]\n%b = input f32 [seq=4]\n%c = add %a %b f32 [seq]",
      "add: axis 'seq' is 8 in argument 1 and 4 in argument 2" },
    { "%w = param bf16 [hidden]", "has not the type 'w' is declared with" },
    { "%v = param f32 [hidden]", "'v' is not in the table" },
    { "%w = state f32 [hidden]", "'w' is a param" },
    { "body:\n%a = input f32 [seq]\n%b = silu %a f32 [seq]\npost:\n"
      "%c = silu %b f32 [seq]", "in post reads %b of body" },
    { "pre:\n%b = iota axis=seq i32 [seq]\nden:\n%c = neg %b i32 [seq]",
      "in den reads %b of pre" },
    { "post:\n%b = iota axis=seq i32 [seq]\n%c = accum %b op=add i32 [seq]",
      "accumulates in post" },
    { "%b = iota axis=seq i32 [seq]\n%c = accum %b op=sum i32 [seq]",
      "'sum' is none of add, max, min, last" },
    { "%a = input f32 [seq]\n%b = shift %a axis=seq by=1 wrap=2 f32 [seq]",
      "wrap is 2, not between 0 and 1" },
    { "%a = input f32 [seq]\n%b = cumsum %a f32 [seq]", "cumsum: lacks 'axis'" },
    { "%a = input f32 [seq]\n%b = slice %a axis=seq len=2 f32 [seq=2]",
      "slice: lacks 'start'" },
    { "%a = input f32 [seq]\n%b = sum %a f32 [seq]", "sum: lacks 'axes'" },
    { "%a = input f32 [seq]\n%b = cast %a f32 [seq]", "lacks 'to'" },
    { "%a = input f32 [seq]\n%b = result %a", "lacks 'name'" },
    { "%a = input f32 [seq hidden]\n%b = topk %a k=1 axis=seq new=hidden",
      "its operand has the axis 'hidden'" },
    { "%a = input f32 [seq]\n%b = write %a %a", "no parameter and no state" },
    { "%a = arg index=0 f32 []", "stands outside a body" },
    { "%a = input f32 [seq]\n%b = gather %a %a axis=seq f32 [seq]",
      "operand 2 has the axis 'seq' that is indexed" },
    { "%a = input f32 [seq]\n%e = input f32 [hidden]\n"
      "%b = gather %a %e axis=seq f32 [hidden]",
      "operand 2 is f32, not an integer" },
    { "%a = input f32 [seq]\n%b = part %a index=0 f32 [seq]", "part 0 of 0" },
    { "%a = call f.1 f32 []", "no body 'f.1' stands above" },
    { "def f.1 {\n%a = arg index=0 f32 [seq]\n}\n%x = input f32 [hidden]\n"
      "%y = call f.1 %x f32 [hidden]", "has not the type of the body's" },
    { "def f.1 {\n%a = arg index=1 f32 [seq]\n}\n%x = input f32 [seq]\n"
      "%y = call f.1 %x f32 [seq]", "its body has an argument 1" },
    { "def f.1 {\n%a = arg index=0 f32 [seq]\n%b = silu %c f32 [seq]\n}",
      "no node '%c' stands above" },
    { "def f.1 {\n}\ndef f.1 {\n}", "two bodies 'f.1'" },
    { "side:\n", "'side:' begins neither a node nor a region" },
    { "param w const 0 f32 [hidden]", "two parameters 'w'" },
    { "option train.lrr 3", "did you mean 'train.lr'" },
    { "mesh world=8 order=tp-cp-dp-pp tp=3", "does not divide" },
    { "%a = input f32 [seq] @ qp:seq", "'qp' is no mesh axis and no atom" },
    { "%a = input f32 [seq] @ a0:sec", "unknown axis 'sec'" },
    { "%a = input f32 [seq] !nowhere", "'nowhere' is not file:line" },
    { "%a = input f32 [seq]\n%b = silu %a map=%a f32 [seq]",
      "has a route and no rows" },
};
/* clang-format on */

static void wrong_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Arena *a = arena_new();
        char *s = strf(a, "%s%s\n}\n", head, wrong[i].text);
        if (try_parse(a, s, strlen(s)))
            fail_msg("taken: %s", wrong[i].text);
        if (!strstr(message, wrong[i].said))
            fail_msg("said %s, not %s", message, wrong[i].said);
        arena_free(a);
    }
    assert_null(try_parse(forever, head, strlen(head)));
    assert_non_null(strstr(message, "the text ends too early"));
}

/* Types at the level they are checked at. */
/* clang-format off */
static const struct { const char *level, *text, *said; } untyped[] = {
    { "placed", "%a = input real [seq]", "has no precision" },
    { "placed", "%a = input f32 [seq=9] @ tp:seq", "of 9 is cut into 2" },
    { "placed", "%a = input f32 [seq]\n%b = exp %a f32 [seq] @ tp:+",
      "no way to run it makes its type" },
    { "local", "%a = input f32 [seq] @ tp:seq\n%b = exp %a f32 [seq]",
      "makes this type of those operands" },
    { "local", "%a = input f32 [seq] @ tp:seq\n"
      "%b = allgather %a axis=seq atoms=dp f32 [seq]", "makes this type" },
    { "local", "%a = input f32 [seq] @ tp:seq\n"
      "%b = allgather %a axis=seq atoms=tp f32 [seq]", NULL },
    { "local", "%a = input f32 [seq]\n%b = exp %a kernel=1 f32 [seq]",
      "there is no kernel 1" },
    { "legal", "%a = input f32 [seq]\n%b = exp %a kernel=3 f32 [seq]",
      "there is no kernel 3" },
    { "legal", "%a = input f32 [seq]\n%b = exp %a kernel=1 piece=1 f32 [seq]\n"
      "%c = exp %b kernel=1 piece=2 f32 [seq]", "%b, of its kernel, is of" },
    { "legal", "%a = input f32 [seq]\n%b = exp %a kernel=1 f32 [seq]", NULL },
};
/* clang-format on */

static void types(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof untyped / sizeof *untyped; i++) {
        Arena *a = arena_new();
        char *s = strf(a,
                       "graph g step %s {\n  mesh world=4 order=tp-cp-dp-pp "
                       "tp=2\n  axis seq 8\n%s\n}\n",
                       untyped[i].level, untyped[i].text);
        Graph *g = try_parse(a, s, strlen(s));
        if (!untyped[i].said && !g)
            fail_msg("%s: %s", untyped[i].text, message);
        if (untyped[i].said && (g || !strstr(message, untyped[i].said)))
            fail_msg("said %s, not %s", g ? "nothing" : message,
                     untyped[i].said);
        arena_free(a);
    }
}

/* ---- repeated scopes ----------------------------------------------------- */

/* n layers of h = h + silu(h . w), and their gradients in the other order. */
static char *layers(Arena *a, int n)
{
    Text t = { .arena = a };

    put(&t, "graph g step logical {\n  axis t 4\n  axis h 8\n  axis k 8\n");
    for (int i = 0; i < n; i++)
        put(&t, "  param layers.%d.w const 0 f32 [h k]\n", i);
    put(&t, "%%x = input f32 [t h]\n");
    for (int i = 0; i < n; i++) {
        const char *in = i ? strf(a, "layers.%d.add", i - 1) : "x";
        put(&t, "%%layers.%d.w = param f32 [h k]\n", i);
        put(&t, "%%layers.%d.w.2 = dot %%%s %%layers.%d.w axes=h f32 [t k]\n",
            i, in, i);
        put(&t, "%%layers.%d.silu = silu %%layers.%d.w.2 f32 [t k]\n", i, i);
        put(&t,
            "%%layers.%d.r = rename %%layers.%d.silu from=k to=h f32 "
            "[t h]\n",
            i, i);
        put(&t, "%%layers.%d.add = add %%%s %%layers.%d.r f32 [t h]\n", i, in,
            i);
    }
    for (int i = n; i--;)
        put(&t, "%%d.layers.%d.mul = mul %%%s %%layers.%d.add f32 [t h]\n", i,
            i == n - 1 ? "x" : strf(a, "d.layers.%d.mul", i + 1), i);
    put(&t, "}\n");
    return t.s;
}

static void folds(void **state)
{
    (void)state;
    Arena *a = arena_new();
    char *s = layers(a, 12);
    Graph *g = try_parse(a, s, strlen(s));

    if (!g)
        fail_msg("%s", message);
    lawful(g);
    assert_string_equal(graph_print(a, g, PRINTfold),
                        "graph g step logical {\n"
                        "  axis t   4\n"
                        "  axis h   8\n"
                        "  axis k   8\n"
                        "  # layers.0 .. layers.11: x12\n"
                        "  param layers.{i}.w   const 0  f32  [h k]\n"
                        "  body:\n"
                        "    %x                = input                         "
                        "              f32  [t h]\n"
                        "    # layers.0 .. layers.11: x12\n"
                        "    %layers.{i}.w     = param                         "
                        "              f32  [h k]\n"
                        "    %layers.{i}.w.2   = dot %layers.{i-1}.add "
                        "%layers.{i}.w axes=h  f32  [t k]\n"
                        "    %layers.{i}.silu  = silu %layers.{i}.w.2          "
                        "              f32  [t k]\n"
                        "    %layers.{i}.r     = rename %layers.{i}.silu "
                        "from=k to=h         f32  [t h]\n"
                        "    %layers.{i}.add   = add %layers.{i-1}.add "
                        "%layers.{i}.r         f32  [t h]\n"
                        "    # layers.11 .. layers.0: x12\n"
                        "    %d.layers.{i}.mul = mul %d.layers.{i+1}.mul "
                        "%layers.{i}.add     f32  [t h]\n"
                        "}\n");
    arena_free(a);
}

/* ---- hostile texts ------------------------------------------------------- */

static uint32_t chance(void)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)(x >> 32);
}

static void mutate(char *s, size_t *n)
{
    static const char likely[] = "0123456789-+*a%= {}[]()\"\n@!<,.:wxe";
    size_t at = chance() % *n, len = 1 + chance() % 40, to;

    len = len < *n - at ? len : *n - at;
    switch (chance() % 4) {
    case 0: s[at] = (char)chance(); break;
    case 1: s[at] = likely[chance() % (sizeof likely - 1)]; break;
    case 2:
        memmove(s + at, s + at + len, *n - at - len);
        *n -= len;
        break;
    default:
        to = chance() % *n;
        memmove(s + to + len, s + to, *n - to);
        *n += len;
        memmove(s + to, s + at + (at >= to ? len : 0), len);
    }
}

static void hostile_texts(void **state)
{
    (void)state;
    int taken = 0,
        rounds = getenv("TEXT_ROUNDS") ? atoi(getenv("TEXT_ROUNDS")) : 4000;
    size_t n = strlen(everything);
    char *s = malloc(n + 4096);

    for (int i = 0; i < rounds; i++) {
        Arena *a = arena_new();
        size_t m = n;
        memcpy(s, everything, n);
        for (uint32_t k = chance() % 3 + 1; k--;)
            mutate(s, &m);
        Graph *g = try_parse(a, s, m);
        if (g) {
            taken++;
            lawful(g);
        }
        arena_free(a);
    }
    print_message("# %d of %d mutated graphs were still graphs\n", taken,
                  rounds);
    assert_in_range(taken, rounds / 100, rounds - 1);
    free(s);
}

/* ---- speed --------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A graph of 36,000 nodes, as a large model's step: the same bytes again. Times
 * are for reading, nothing depends on them. */
static void big_graphs_come_back(void **state)
{
    (void)state;
    Arena *a = arena_new();
    char *s = layers(a, 6000);
    double t0 = now();
    Graph *g = try_parse(a, s, strlen(s));
    double t1 = now();
    assert_non_null(g);
    char *one = graph_print(a, g, 0);
    double t2 = now();
    assert_null(graph_wrong(a, g));
    double t3 = now();
    Graph *h = try_parse(a, one, strlen(one));
    assert_non_null(h);
    assert_string_equal(one, graph_print(a, h, 0));
    print_message("# 36000 nodes: printed in %.0f ms, read in %.0f ms, checked "
                  "in %.0f ms\n",
                  1e3 * (t2 - t1), 1e3 * (t1 - t0), 1e3 * (t3 - t2));
    arena_free(a);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(wrong_texts),
        cmocka_unit_test(types),
        cmocka_unit_test(folds),
        cmocka_unit_test(hostile_texts),
        cmocka_unit_test(big_graphs_come_back),
    };
    /* clang-format on */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
