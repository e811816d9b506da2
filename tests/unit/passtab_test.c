/* passtab_test: the order of passes.def gives every pass what it needs, and an
 * order that does not is refused (passtab.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../passes/passes.h"

static int row_named(const char *name)
{
    int i = 0;

    while (i < npass && strcmp(passtab[i].name, name))
        i++;
    return i;
}

/* What is said of the table when row `from` stands at `to`; null: nothing. */
static const char *moved(int from, int to)
{
    PassInfo *tab = alloc(forever, (size_t)npass * sizeof *tab), x;
    const char *wrong = NULL;

    memcpy(tab, passtab, (size_t)npass * sizeof *tab);
    x = tab[from];
    for (; from < to; from++)
        tab[from] = tab[from + 1];
    for (; from > to; from--)
        tab[from] = tab[from - 1];
    tab[to] = x;
    for (ProgramKind k = PGstep; k < NPROGRAM && !wrong; k++)
        wrong = pass_order_wrong(forever, tab, npass, k, NULL);
    return wrong;
}

static void refused(const char *pass, const char *beside, const char *want)
{
    const char *wrong = moved(row_named(pass), row_named(beside));

    if (!wrong || !strstr(wrong, want))
        fail_msg("%s moved to %s: %s", pass, beside,
                 wrong ? wrong : "not refused");
}

/* What is said when `skip` (null: nothing) is left out. */
static const char *without(const char *skip)
{
    const char *wrong = NULL;

    for (ProgramKind k = PGstep; k < NPROGRAM && !wrong; k++)
        wrong = pass_order_wrong(forever, passtab, npass, k, skip);
    return wrong;
}

static void order_is_right(void **state)
{
    (void)state;
    const char *wrong = without(NULL);
    if (wrong)
        fail_msg("%s", wrong);
}

static void what_is_made_is_missed(void **state)
{
    (void)state;
    for (int i = 0; i < npass; i++)
        if (passtab[i].makes && !without(passtab[i].name))
            fail_msg("nobody needs what %s makes", passtab[i].name);
}

static void other_orders_are_refused(void **state)
{
    (void)state;
    refused("sharding", "precision", "which 'precision' makes");
    refused("expert_capacity", "route", "indexed by their router");
    refused("ring_attention", "pipe", "holds the program");
    refused("recompute", "legalize", "obey the rules");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_right),
        cmocka_unit_test(what_is_made_is_missed),
        cmocka_unit_test(other_orders_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
