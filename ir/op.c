/* op.c: the op table. Rows of ops.def are texts; they are read once, before
 * main, into OpInfo. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ir.h"

OpInfo optab[NOP];

/* clang-format off */
static const struct { const char *name, *operands, *special, *grad, *lower;
                      OpClass cls; } row[NOP] = {
#define OP(name, cls, operands, attrs, special, grad, lower)                   \
    { #name, operands, special, #grad, #lower, cls },
#include "ops.def"
#undef OP
};
/* clang-format on */

static char *dup(const char *s, size_t n)
{
    char *d = calloc(n + 1, 1);

    return d ? memcpy(d, s, n) : NULL;
}

static void set_attrs(OpInfo *o, const AttrInfo *v)
{
    static const char *const shared[NSHARED] = {
        [SHaxis] = "axis",
        [SHaxes] = "axes",
        [SHatoms] = "atoms",
        [SHchan] = "chan",
    };

    o->attr = v;
    for (; v->name; v++, o->nattr++)
        for (int k = 0; k < NSHARED; k++)
            if (shared[k] ? !strcmp(v->name, shared[k]) : v->type == ATstr)
                o->shared[k] = v;
}

static void set_all_attrs(void)
{
#define ATTR(ctype, type, name, use) { #name, type, use, offsetof(At, name) },
#define OP(name, cls, operands, attrs, special, grad, lower)            \
    {                                                                   \
        typedef struct name##_attrs At __attribute__((unused));         \
        static const AttrInfo v[] = { attrs{ NULL, ATint, ATmay, 0 } }; \
        set_attrs(&optab[O##name], v);                                  \
    }
#include "ops.def"
#undef OP
#undef ATTR
}

static int count_words(const char *s)
{
    int n = 0;

    while (*(s += strspn(s, " "))) {
        n++;
        s += strcspn(s, " ");
    }
    return n;
}

/* E("dy * b", "dy * a") -> the texts between quotes */
static int read_texts(const char *s, const char **out, int max)
{
    int n = 0;

    while ((s = strchr(s, '"')) && n < max) {
        size_t len = strcspn(s + 1, "\"");
        out[n++] = dup(s + 1, len);
        s += len + 2;
    }
    return n;
}

static void read_grad(OpInfo *o, const char *s)
{
    if (!strncmp(s, "E(", 2)) {
        o->gradkind = 'E';
        o->ngrad = read_texts(s, o->grad, 3);
    } else if (strcmp(s, "NONE")) {
        o->gradkind = s[0];
    }
}

static void read_lower(OpInfo *o, const char *s)
{
    o->lowerkind = s[0];
    if (s[0] == 'E')
        read_texts(s, &o->lower, 1);
    else
        o->lower = dup(s + 2, strlen(s) - 3);
}

__attribute__((constructor)) static void read_table(void)
{
    set_all_attrs();
    for (int i = 0; i < NOP; i++) {
        OpInfo *o = &optab[i];
        o->name = row[i].name;
        o->cls = row[i].cls;
        o->special = row[i].special;
        o->operands = row[i].operands;
        o->nin = strchr(o->operands, '*') ? -1 : count_words(o->operands);
        read_grad(o, row[i].grad);
        read_lower(o, row[i].lower);
    }
}

int op_named(const char *name)
{
    for (int i = 0; i < NOP; i++)
        if (!strcmp(optab[i].name, name))
            return i;
    return -1;
}

int op_is(Op op, const char *word)
{
    return has_word(optab[op].special, ' ', word);
}
