/* attr_test: attributes by the op table against the structs that are made of
 * it, for every attribute of every op. */
#include "../../ir/graph/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka after what it needs */
#include <cmocka.h>

/* Something that is not the default. */
static void set(Graph *g, Node *n, const AttrInfo *t)
{
    void *v = attr_at(n, t);
    Axis *two[] = { g_axis(g, "x"), g_axis(g, "y") };

    switch (t->type) {
    case ATint: *(int64_t *)v = -7; break;
    case ATreal: *(double *)v = -0.0; break; /* is said, though it is 0 */
    case ATflag: *(int *)v = 1; break;
    case ATstr: *(const char **)v = "a name"; break;
    case ATaxis: *(Axis **)v = two[1]; break;
    case ATaxes: *(Axes *)v = g_axes(g, two, 2); break;
    case ATatoms: *(uint32_t *)v = 1u << 31; break;
    case ATdtype: *(Dtype *)v = Dbf16; break;
    case ATscales: *(ScaleLayout *)v = SCALEmx; break;
    case ATreduce: *(Reduce *)v = Rlast; break;
    case ATrandom: *(RandomKind *)v = RANDuniform; break;
    case ATstepvalue: *(StepValue *)v = STEPmicro; break;
    }
}

/* Each is told from its default, by itself, and goes along to a node of any op
 * that has one of its name and type. */
static void each_counts(void **state)
{
    Graph *g = g_new(forever, "g");
    int seen = 0;

    (void)state;
    for (int op = 0; op < op_count; op++)
        for (int i = 0; i < optab[op].nattr; i++, seen++) {
            const AttrInfo *t = &optab[op].attr[i];
            Node a = { .op = (Op)op }, b = a;
            set(g, &a, t);
            assert_ptr_equal(attr_named((Op)op, t->name), t);
            for (int k = 0; k < optab[op].nattr; k++)
                assert_int_equal(attr_unsaid(&a, &optab[op].attr[k]), k != i);
            assert_false(same_attrs(&a, &b));
            assert_true(attrs_hash(1, &a) != attrs_hash(1, &b));
            attrs_like(&b, &a);
            assert_true(same_attrs(&a, &b));
            assert_true(attrs_hash(1, &a) == attrs_hash(1, &b));
        }
    print_message("%d attributes\n", seen);
    assert_true(seen > 80);
}

static void members_are_rows(void **state)
{
    Graph *g = g_new(forever, "g");
    Axis *x = g_axis(g, "x"), *y = g_axis(g, "y");
    Node n = { .op = Oslice, .at.slice = { x, 3, 4 } }, p = { .op = Opad };

    (void)state;
    assert_int_equal(*(int64_t *)attr_at(&n, attr_named(Oslice, "len")), 4);
    assert_ptr_equal(n_axis(&n), x);
    assert_ptr_equal(whole_axis(&n), x);
    attrs_like(&p, &n);
    assert_ptr_equal(p.at.pad.axis, x);
    assert_int_equal(p.at.pad.start, 3);
    Node c = { .op = Oconst, .at.constant.value = 0.5 };
    assert_true(*(double *)attr_at(&c, attr_named(Oconst, "value")) == 0.5);
    Node r = { .op = Oroute, .at.route = { .axis = x, .round = 2 } };
    assert_true(attrs_name(&r, x) && !attrs_name(&r, y));
    assert_null(whole_axis(&r));
    assert_null(attr_named(Oroute, "axes"));
}

/* Nodes may share a list: only the one that is changed has another. */
static void lists_are_shared(void **state)
{
    Graph *g = g_new(forever, "g");
    Axis *two[] = { g_axis(g, "x"), g_axis(g, "y") }, *z = g_axis(g, "z");
    Node a = { .op = Osum, .at.sum.axes = g_axes(g, two, 2) }, b = a;

    (void)state;
    attrs_replace(g, &b, two[0], z);
    assert_int_equal(axes_at(n_axes(&a), two[0]), 0);
    assert_int_equal(axes_at(n_axes(&b), z), 0);
    assert_int_equal(axes_at(n_axes(&b), two[1]), 1);
    Node m = { .op = Omerge, .at.merge = { g_axes(g, two, 2), z } };
    attrs_replace(g, &m, z, two[0]);
    Node d = { .op = Odot, .at.dot.axes = g_axes(g, two, 0) };
    assert_true(attr_unsaid(&d, attr_named(Odot, "axes"))); /* an empty list */
    assert_ptr_equal(m.at.merge.new, two[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_counts),
        cmocka_unit_test(members_are_rows),
        cmocka_unit_test(lists_are_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
