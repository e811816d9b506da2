/* draw_test: pictures in others' forms. Graphs: a strict reader of Graphviz's
 * language takes them; every node and operand is in them, those of repeats once
 * with how often they repeat. Time: JSON for Chrome and Perfetto, a step with
 * its line of the model. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "../../frontend/frontend.h"

/* ---- the language: what of it the pictures may use ----------------------- */

typedef struct Dot {
    const char *p;
    Table *node, *cluster;     /* names met */
    const char **tail, **head; /* vecs: of arrows */
    int dashed, named;         /* arrows; names of what is elsewhere */
    long long all;             /* nodes, each as often as it repeats */
    char text[4096];           /* the last quoted text */
} Dot;

static void blanks(Dot *d)
{
    d->p += strspn(d->p, " \n");
}

static int mark(Dot *d, const char *s)
{
    blanks(d);
    if (strncmp(d->p, s, strlen(s)))
        return 0;
    d->p += strlen(s);
    return 1;
}

static void need(Dot *d, const char *s)
{
    if (!mark(d, s))
        fail_msg("%s is missing before: %.40s", s, d->p);
}

static const char *name(Dot *d)
{
    blanks(d);
    const char *s = d->p;

    if (!isalpha((unsigned char)*s))
        fail_msg("not a name: %.40s", s);
    while (isalnum((unsigned char)*d->p) || *d->p == '_')
        d->p++;
    return internn(s, (size_t)(d->p - s));
}

static void quoted(Dot *d)
{
    size_t n = 0;

    need(d, "\"");
    for (; *d->p != '"'; d->p++) {
        if ((unsigned char)*d->p < ' ' || n + 3 > sizeof d->text)
            fail_msg("in a string: %.40s", d->p);
        if (*d->p == '\\') {
            assert_non_null(memchr("n\\\"", d->p[1], 3));
            d->text[n++] = *d->p++;
        }
        d->text[n++] = *d->p;
    }
    d->p++;
    d->text[n] = 0;
}

/* key=value, ...; the label stays in d->text. Returns whether it has `is`. */
static int attributes(Dot *d, const char *is)
{
    char label[sizeof d->text] = "";
    int found = 0;

    do {
        const char *key = name(d);
        need(d, "=");
        blanks(d);
        if (*d->p == '"')
            quoted(d);
        else
            snprintf(d->text, sizeof d->text, "%.*s", (int)strcspn(d->p, ",];"),
                     d->p),
                d->p += strcspn(d->p, ",];");
        found |= !strcmp(strf(forever, "%s=%s", key, d->text), is);
        if (!strcmp(key, "label"))
            strcpy(label, d->text);
    } while (mark(d, ","));
    strcpy(d->text, label);
    return found;
}

static void body(Dot *d, long long times);

static void cluster(Dot *d, long long times)
{
    const char *s = name(d);
    void **seen = table_at(d->cluster, KEYP(s));

    assert_int_equal(strncmp(s, "cluster_", 8), 0);
    need(d, "{");
    if (!*seen) {
        need(d, "label=");
        quoted(d);
        need(d, ";");
        const char *x = strstr(d->text, ": x");
        times *= x ? atoi(x + 3) : 1;
    }
    *seen = d;
    body(d, times);
}

static void node(Dot *d, const char *s, long long times)
{
    void **seen = table_at(d->node, KEYP(s));

    assert_null(*seen);
    *seen = d;
    need(d, "[");
    if (attributes(d, "shape=plaintext"))
        d->named++;
    else
        d->all += times;
    assert_true(*d->text);
    need(d, "]");
    need(d, ";");
}

static void arrow(Dot *d, const char *from)
{
    vec_push(forever, d->tail, from);
    const char *to = name(d);
    vec_push(forever, d->head, to);
    need(d, "[");
    d->dashed += attributes(d, "style=dashed");
    assert_non_null(strchr(d->text, '[')); /* its shape */
    need(d, "]");
    need(d, ";");
}

static void body(Dot *d, long long times)
{
    while (!mark(d, "}")) {
        const char *s = name(d);
        if (!strcmp(s, "subgraph"))
            cluster(d, times);
        else if (mark(d, "->"))
            arrow(d, s);
        else
            node(d, s, times);
    }
}

static Dot read_dot(const Text *t)
{
    Dot d = { .p = t->s,
              .node = table_new(forever),
              .cluster = table_new(forever) };

    while (mark(&d, "subgraph"))
        cluster(&d, 1);
    blanks(&d);
    assert_int_equal(*d.p, 0);
    for (size_t i = 0; i < vec_len(d.tail); i++) {
        assert_non_null(table_get(d.node, KEYP(d.tail[i])));
        assert_non_null(table_get(d.node, KEYP(d.head[i])));
    }
    return d;
}

/* ---- graphs -------------------------------------------------------------- */

static int is_number(const Node *n)
{
    return n->op == Oconst && n->nd == 0;
}

static void check(Graph *g)
{
    Text once = { .arena = forever }, all = { .arena = forever };
    int nodes = 0, arrows = 0;

    g_renumber(g);
    graph_dot(&all, g, 0, 0);
    graph_dot(&once, g, 0, 1);
    for (size_t i = 0; i < vec_len(g->node); i++) {
        const Node *n = g->node[i];
        nodes += !is_number(n);
        for (int k = 0; k < n->nin; k++)
            arrows += !is_number(n->in[k]);
    }
    Dot d = read_dot(&all), f = read_dot(&once);
    assert_int_equal(d.all, nodes);
    assert_int_equal(vec_len(d.tail), arrows);
    assert_int_equal(d.dashed, 0);
    assert_int_equal(f.all, nodes);
    assert_true(vec_len(f.tail) <= vec_len(d.tail));
}

static void test_models(void **unused)
{
    static const char *const files[] = { "tiny", "mixtral", "deepseek_v3",
                                         "qwen2_moe", "olmoe" };

    (void)unused;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check(trace(strf(forever, "models/%s.lua", files[i]), opts_new(forever),
                    TRACEquiet)
                  .g);
}

/* Layers that are the same: one stands there, and says what it reads. */
static const char chain[] = "axes { batch=1, seq=2, hidden=4 }\n"
                            "local x = input('x', 'batch seq hidden', 'f32')\n"
                            "for i = 0, 8 do\n"
                            "    scope('layers.' .. i, function()\n"
                            "        x = silu(x) * param('w', 'hidden')\n"
                            "    end)\n"
                            "end\n"
                            "loss('l', mean(x, 'batch seq hidden'))\n";

static Graph *chain_graph(void)
{
    Source s = { "model.lua", chain };

    return trace_sources(&s, 1, opts_new(forever)).g;
}

static void test_repeats(void **unused)
{
    Text t = { .arena = forever };

    (void)unused;
    Graph *g = chain_graph();
    check(g);
    graph_dot(&t, g, 0, 1);
    assert_non_null(strstr(t.s, "label=\"layers.1 .. layers.8: x8\""));
    assert_non_null(strstr(t.s, "model.lua:5\""));
    assert_non_null(strstr(t.s, "[label=\"f32 [batch=1 seq=2 hidden=4]\"]"));
    assert_int_equal(read_dot(&t).dashed, 1);
}

/* After a pass: shards on arrows, the backward pass a box that names what it
 * takes from the forward pass. */
static void test_passes(void **unused)
{
    static const char *const dumps[] = { "grad", "sharding", "collectives" };

    (void)unused;
    for (size_t i = 0; i < sizeof dumps / sizeof *dumps; i++) {
        Text t = { .arena = forever };
        CompileOptions o = { .dump = dumps[i], .dot = &t };
        Opts *keys = opts_new(forever);
        opts_set(keys, "world", "4", NULL);
        opts_set(keys, "fold.ep", "2", NULL);
        opts_set(keys, "fold.tp", "2", NULL);
        compile(trace("models/tiny.lua", keys, TRACEquiet).g,
                target_named("host"), &o);
        Dot d = read_dot(&t);
        assert_true(d.named > 0);
        assert_non_null(strstr(t.s, "label=\"backward\""));
        assert_int_equal(strstr(t.s, "\\n@ ") != NULL, i > 0);
        assert_int_equal(strstr(t.s, "allgather") != NULL, i > 1);
    }
}

/* ---- time ---------------------------------------------------------------- */

/* Predicted steps, of a model whose name JSON must quote; each has its line. */
static void test_time(void **unused)
{
    Source s = { "my \"model\"\\.lua", chain };
    size_t len, steps = 0, lines = 0, k;
    json_t *v;

    (void)unused;
    CompileOptions o = { .dump = NULL };
    Plan *p = compile(trace_sources(&s, 1, opts_new(forever)).g,
                      target_named("host"), &o);
    char *text = draw_time(p, &len);
    json_t *j = json_loadb(text, len, 0, NULL);
    assert_non_null(j);
    json_array_foreach(json_object_get(j, "traceEvents"), k, v)
    {
        const char *line = json_string_value(
            json_object_get(json_object_get(v, "args"), "line"));
        if (strcmp(json_string_value(json_object_get(v, "ph")), "X"))
            continue;
        assert_true(json_number_value(json_object_get(v, "dur")) >= 0);
        lines += line && !strncmp(line, strf(forever, "%s:", s.file),
                                  strlen(s.file) + 1);
        steps++;
    }
    assert_true(steps > 5);
    assert_int_equal(lines, steps);
    json_decref(j);
}

int main(void)
{
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_time),
    };
    /* clang-format on */

    return cmocka_run_group_tests_name("draw", tests, NULL, NULL);
}
