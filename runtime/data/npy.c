/* npy.c: NumPy's .npy files, versions 1 to 3: 6 bytes of magic, 2 of version,
 * the header's length (u16; from version 2 on u32), and the header, a Python
 * dictionary with 'descr', 'fortran_order' and 'shape', then the elements. */
#include "data.h"

/* Returns the value of a key in the header. */
static const char *value_of(const char *head, const char *key)
{
    const char *s = strstr(head, key);

    s = s ? strchr(s, ':') : NULL;
    return s ? s + 1 + strspn(s + 1, " ") : "";
}

static const char *take_elem(Arena *a, Tokens *tokens, const char *s)
{
    /* clang-format off */
    static const struct { const char *code; Elem e; } table[] = {
        {"'|u1'", EU8}, {"'|i1'", EI8}, {"'<u2'", EU16}, {"'<i2'", EI16},
        {"'<i4'", EI32}, {"'<u4'", EU32}, {"'<i8'", EI64}, {"'<f4'", EF32},
        {"'<f8'", EF64},
    };
    /* clang-format on */

    for (int i = 0; i < countof(table); i++)
        if (!strncmp(s, table[i].code, strlen(table[i].code))) {
            tokens->e = table[i].e;
            return NULL;
        }
    return strf(a,
                "has elements of type %.*s; use u1 i1 u2 i2 u4 i4 i8 f4 f8, "
                "little-endian",
                (int)strcspn(s, ",}\n"), s);
}

/* Reads the shape; with two or more dimensions the first counts rows. */
static const char *take_shape(Tokens *tokens, const char *s)
{
    int64_t n, cols = 1;
    int nd = 0;

    if (*s++ != '(')
        return "has a damaged shape";
    tokens->n = 1;
    for (; *s >= '0' && *s <= '9'; nd++) {
        char *end;
        n = strtoll(s, &end, 10);
        if (__builtin_mul_overflow(tokens->n, n, &tokens->n) ||
            (nd && __builtin_mul_overflow(cols, n, &cols)))
            return "has an absurd shape";
        tokens->rows = nd ? tokens->rows : n;
        s = end + strspn(end, ", ");
    }
    if (*s != ')')
        return "has a damaged shape";
    tokens->cols = nd > 1 ? cols : 0;
    tokens->rows = nd > 1 && cols ? tokens->rows : 0;
    return NULL;
}

const char *npy_read(Arena *a, Tokens *tokens)
{
    if (tokens->size < 12 || memcmp(tokens->map, "\x93NUMPY", 6))
        return "is no .npy file (raw tokens of 16 bits are "
               "data.format=uint16)";
    int version = tokens->map[6];
    int64_t at = version == 1 ? 10 : 12;
    int64_t len = version == 1 ? tokens->map[8] | tokens->map[9] << 8
                               : (int64_t)u32_at(tokens->map + 8);
    if (version < 1 || version > 3)
        return strf(a, "is a .npy file of version %d; 1 to 3 are known",
                    version);
    if (len > tokens->size - at)
        return "has a damaged header";
    char *head = strf(a, "%.*s", (int)len, (const char *)tokens->map + at);
    const char *why = take_elem(a, tokens, value_of(head, "'descr'"));
    if (!why && strncmp(value_of(head, "'fortran_order'"), "False", 5))
        why = "is in Fortran order";
    if (!why)
        why = take_shape(tokens, value_of(head, "'shape'"));
    if (!why && tokens->n > (tokens->size - at - len) / elem_bytes(tokens->e))
        why = "is cut off";
    tokens->data = tokens->map + at + len;
    return why;
}
