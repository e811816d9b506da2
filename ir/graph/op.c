/* op.c: the op table. Rows of ops.def and functions.def are texts, which are
 * parsed into OpInfo once, before main. */
#include "graph.h"

/* clang-format off */
static const struct { const char *name, *operands, *grad, *lower;
                      OpClass cls; Family fam; unsigned special; } row[] = {
#define E(text) FAMloop
#define F(family) FAM##family
#define OP(name, cls, operands, attrs, special, grad, lower)                   \
    { #name, operands, #grad, #lower, cls, lower, special },
#define FUNCTION(name, operands, special, grad, lower)                         \
    { #name, operands, #grad, #lower, EW, FAMloop, special },
#include "ops.def"
#include "functions.def"
#undef FUNCTION
#undef OP
#undef E
#undef F
};
/* clang-format on */
const int op_count = countof(row);
OpInfo optab[countof(row)];

static void set_attrs(OpInfo *info, const AttrInfo *v)
{
    static const char *const shared[NSHARED] = {
        [SHaxis] = "axis",
        [SHaxes] = "axes",
        [SHatoms] = "atoms",
        [SHchan] = "chan",
    };

    info->attr = v;
    for (; v->name; v++, info->nattr++)
        for (int k = 0; k < NSHARED; k++)
            if (shared[k] ? !strcmp(v->name, shared[k]) : v->type == ATstr)
                info->shared[k] = v;
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

    while (next_word(&s, " "))
        n++;
    return n;
}

/* Parses the quoted texts of E("dy * b", "0") to trees; "0": null. */
static void read_exprs(const OpInfo *info, const char *s,
                       const ScalarExpr **out)
{
    while ((s = strchr(s, '"'))) {
        size_t len = strcspn(s + 1, "\"");
        const char *text = internn(s + 1, len);
        *out++ =
            text == intern("0") ? NULL : scalar_parse(text, info->operands);
        s += len + 2;
    }
}

/* Parses the texts of a row, after all names, since texts name ops. */
static void read_texts(OpInfo *info, const char *grad, const char *lower)
{
    info->gradkind = !strcmp(grad, "NONE") ? 0 : grad[0];
    if (info->gradkind == 'E')
        read_exprs(info, grad, info->grad);
    if (lower[0] == 'E')
        read_exprs(info, lower, &info->expr);
}

/* Derives gradients from the op's expression. */
static void derive(Op op)
{
    OpInfo *info = &optab[op];
    const ScalarExpr *d[3] = { 0 };

    if (info->gradkind != 'A' || !info->expr)
        return;
    for (int k = 0; k < info->nin; k++)
        d[k] = scalar_grad(op, k);
    memcpy(info->grad, d, sizeof d);
    info->gradkind = 'E';
}

__attribute__((constructor)) static void read_table(void)
{
    set_all_attrs();
    for (int i = 0; i < countof(row); i++) {
        OpInfo *o = &optab[i];
        o->name = row[i].name;
        o->cls = row[i].cls;
        o->fam = row[i].fam;
        o->special = row[i].special;
        o->operands = row[i].operands;
        o->grad_text = row[i].grad;
        o->value_text = row[i].lower;
        o->nin = strchr(o->operands, '*') ? -1 : count_words(o->operands);
    }
    for (int i = 0; i < countof(row); i++)
        read_texts(&optab[i], row[i].grad, row[i].lower);
    for (int i = 0; i < countof(row); i++)
        derive((Op)i);
    for (int i = 0; i < countof(row); i++)
        if (optab[i].expr)
            optab[i].expr = scalar_open(optab[i].expr);
}

int op_named(const char *name)
{
    for (int i = 0; i < countof(row); i++)
        if (!strcmp(optab[i].name, name))
            return i;
    return -1;
}
