/* types_test: what a plan says of operands and shapes beside dtype and extents:
 * rows that begin where a word of the device says, and scales in blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../ir/plan/plan.h"

static char message[512];
static jmp_buf heard;

static void hear(const char *msg)
{
    snprintf(message, sizeof message, "%s", msg);
    longjmp(heard, 1);
}

/* ---- ragged operands ----------------------------------------------------- */

/* The line again, or why it is refused. */
static const char *told(const char *line)
{
    Lex x = { .arena = forever, .p = line, .end = line + strlen(line) };
    Text t = { .arena = forever };
    KernelSignature s = { 0 };

    err_hook = hear;
    if (!setjmp(heard)) {
        signature_text(&(Codec){ .in = &x }, &s);
        signature_text(&(Codec){ .out = &t }, &s);
        snprintf(message, sizeof message, "%s\n", t.s);
    }
    err_hook = NULL;
    return message;
}

#define NAME "k 0123456789abcdef"
#define WORD " ( r i32 1 )"

static void ragged(void **state)
{
    (void)state;
    assert_string_equal(told(NAME WORD " ( w bf16 4096 64 from 0 ) i 16 4\n"),
                        NAME WORD " ( w bf16 4096 64 from 0 ) i 16 4\n");
    assert_non_null(strstr(told(NAME " ( rw f32 8 8 from 0 )"), "no use 'rw'"));
    assert_non_null(strstr(told(NAME " ( w f32 8 8 from )"), "expected"));
    assert_non_null(strstr(told(NAME " ( w f32 8 8 from -1 )"), "operand"));
    assert_non_null(strstr(told(NAME " ( w f32 8 from 0 8 )"), "expected ')'"));
}

/* ---- scaled shapes ------------------------------------------------------- */

static ValueShape shape(ScaleLayout k, int64_t a, int64_t b, int64_t c)
{
    ValueShape s = { .dt = Dbf16, .scale = k, .nd = 3 };

    s.dim[0] = (ValueDim){ .axis = "a", .n = a };
    s.dim[1] = (ValueDim){ .axis = "b", .n = b };
    s.dim[2] = (ValueDim){ .axis = "c", .n = c };
    return s;
}

static void scaled(void **state)
{
    static const struct {
        ScaleLayout k;
        int64_t a, b, c, many;
    } rows[] = {
        { SCALEnone, 3, 256, 512, 0 },    { SCALEtensor, 3, 256, 512, 1 },
        { SCALErow, 3, 256, 512, 768 },   { SCALEwide, 3, 256, 512, 3072 },
        { SCALEsquare, 3, 256, 512, 24 }, { SCALEmx, 3, 256, 512, 12288 },
        { SCALEnv, 3, 256, 512, 24576 },  { SCALEwide, 3, 256, 500, -1 },
        { SCALEsquare, 3, 100, 512, -1 }, { SCALErow, 3, 100, 500, 300 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ValueShape s = shape(rows[i].k, rows[i].a, rows[i].b, rows[i].c);
        if (shape_scales(&s) != rows[i].many)
            fail_msg("%s: %lld scales", scalenames[rows[i].k],
                     (long long)shape_scales(&s));
        ValueShape other = shape(SCALEnone, rows[i].a, rows[i].b, rows[i].c);
        assert_int_equal(shapes_equal(&s, &other), rows[i].k == SCALEnone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(ragged),
                                        cmocka_unit_test(scaled) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
