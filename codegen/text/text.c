/* text.c: kernel arguments, kernel names and C text of scalar expressions,
 * shared by all generators. */
#include "text.h"

int add_arg(Group *group, Arena *a, Node *n)
{
    n = storage(n);
    for (int i = 0; i < group->narg; i++)
        if (group->arg[i] == n)
            return i;
    vec_push(a, group->arg, n);
    return group->narg++;
}

int add_word(Group *group, Arena *a, Word x)
{
    vec_push(a, group->instr.word, x);
    return group->instr.nword++;
}

int add_int(Group *group, Arena *a, RankAffine x)
{
    return add_word(group, a, (Word){ .at = x });
}

int add_size(Group *group, Arena *a, int64_t x)
{
    return add_int(group, a, aff(x));
}

void put_pointer(Text *out, const Graph *g, Group *group, Arena *a, int i,
                 const char *type, int bytes, const char *name)
{
    const Node *n = group->arg[i];

    if (!n->stash) {
        put(out, "    %s *const %s = buf[%d];\n", type, name, i);
        return;
    }
    MapLayout l = map_layout(g, n->map);
    int map = add_arg(group, a, n->map), word = add_size(group, a, l.base);
    int row = add_size(group, a, local_bytes(g, n) / l.cap / bytes);
    put(out,
        "    %s *const %s = (%s *)buf[%d] + "
        "((const int32_t *)buf[%d])[iv[%d]] * iv[%d];\n",
        type, name, type, i, map, word, row);
}

void set_items(Group *group, int64_t items, int64_t grain)
{
    group->instr.launch = (Launch){ .items = items, .grain = grain };
}

/* Dies if the text contains "(null)", printf's output for a missing
 * argument. */
static void check_text(const char *text)
{
    const char *from = strstr(text, "(null)");

    if (!from)
        return;
    while (from > text && from[-1] != '\n')
        from--;
    die("the text of a kernel has a null string: %.*s",
        (int)strcspn(from, "\n"), from);
}

void set_text_named(Group *group, Arena *a, const char *text)
{
    check_text(text);
    Kernel kernel = kernel_new(a, text);

    group->instr.kind = Ikernel;
    group->instr.kernel = kernel.name;
    group->text = kernel.text;
}

void set_text(Group *group, Arena *a, const char *body)
{
    set_text_named(group, a,
                   strf(a,
                        "void @(void *const *buf, const int64_t *iv,\n"
                        "    int64_t lo, int64_t hi)\n%s",
                        body));
}

void set_label(Group *group, Arena *a, const Node *n)
{
    if (n->name)
        group->instr.label = n->name;
    else if (*n->scope->path)
        group->instr.label =
            strf(a, "%s.%s", n->scope->path, optab[n->op].name);
    else
        group->instr.label = optab[n->op].name;
    group->instr.file = n->loc ? n->loc->file : NULL;
    group->instr.line = n->loc ? n->loc->line : 0;
}

/* ---- lines --------------------------------------------------------------- */

void vput_line(Text *out, int depth, const char *fmt, va_list ap)
{
    put(out, "%*s", 4 * depth, "");
    put(out, "%s\n", vstrf(out->arena, fmt, ap));
}

void put_line(Text *out, int depth, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vput_line(out, depth, fmt, ap);
    va_end(ap);
}

void put_define(Text *out, const char *name, int64_t v)
{
    put(out, "#define %s %ld\n", name, v);
}

int64_t divide_up(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

/* ---- expressions in C ---------------------------------------------------- */

const ScalarExpr *scalar_of(const char *text)
{
    static Table *known;

    if (!known)
        known = table_new(forever);
    void **slot = table_at(known, KEYP(intern(text)));
    if (!*slot)
        *slot = (void *)(uintptr_t)scalar_parse(text, "a b c d");
    return *slot;
}

static void put_level(Text *out, const ScalarExpr *scalar,
                      const ScalarNames *names, int level);

static void put_call(Text *out, const ScalarExpr *scalar,
                     const ScalarNames *names)
{
    put(out, "%s%s(",
        scalar->word ? scalar->word->text : optab[scalar->op].name,
        names->dt == Df64 ? "_f64" : "_f32");
    for (int i = 0; i < scalar->n; i++) {
        put(out, "%s", i ? ", " : "");
        put_level(out, scalar->in[i], names, 1);
    }
    put(out, ")");
}

/* Operators of one precedence level associate to the left. */
static void put_operator(Text *out, const ScalarExpr *scalar,
                         const ScalarNames *names)
{
    int level = scalar->word->level;

    if (scalar->n == 1) {
        put(out, "%s", scalar->word->text);
        put_level(out, scalar->in[0], names, level);
        return;
    }
    put_level(out, scalar->in[0], names, level + (scalar->n == 3));
    put(out, " %s ", scalar->word->text);
    put_level(out, scalar->in[1], names, scalar->n == 3 ? level : level + 1);
    if (scalar->n == 3) {
        put(out, " : ");
        put_level(out, scalar->in[2], names, level);
    }
}

/* Prints the expression, in parentheses if its precedence is below `level`. */
static void put_level(Text *out, const ScalarExpr *scalar,
                      const ScalarNames *names, int level)
{
    int inside = scalar->word && scalar->word->level < level;

    put(out, "%s", inside ? "(" : "");
    switch (scalar->kind) {
    case SCoperand: put(out, "%s", names->operand[scalar->operand]); break;
    case SCresult: put(out, "%s", names->result); break;
    case SCgrad: put(out, "%s", names->grad); break;
    case SCnumber:
        put(out, "%s%s", scalar->literal,
            strchr(scalar->literal, '.') && names->dt != Df64 ? "f" : "");
        break;
    case SCop:
        if (!scalar->word || scalar->word->level == SCALARCALL)
            put_call(out, scalar, names);
        else
            put_operator(out, scalar, names);
    }
    put(out, "%s", inside ? ")" : "");
}

void put_scalar(Text *out, const ScalarExpr *scalar, const ScalarNames *names)
{
    put_level(out, scalar, names, 1);
}

/* ---- integers that depend on the rank ------------------------------------ */

RankAffine aff_add(RankAffine x, RankAffine y)
{
    x.c += y.c;
    for (int i = 0; i < MAXATOM; i++)
        x.k[i] += y.k[i];
    return x;
}

RankAffine aff_scale(RankAffine x, int64_t k)
{
    x.c *= k;
    for (int i = 0; i < MAXATOM; i++)
        x.k[i] *= k;
    return x;
}

int aff_zero(const RankAffine *affine)
{
    for (int i = 0; i < MAXATOM; i++)
        if (affine->k[i])
            return 0;
    return affine->c == 0;
}

Dtype compute_type(Dtype t)
{
    if (t == Df64 || t == Di64)
        return t;
    return dtypes[t].kind == 'f' ? Df32 : Di32;
}

const char *text_load(Arena *a, Dtype dt, const char *x)
{
    return *dtypes[dt].load ? strf(a, "%s(%s)", dtypes[dt].load, x) : x;
}

const char *text_save(Arena *a, Dtype dt, const char *x)
{
    return *dtypes[dt].save ? strf(a, "%s(%s)", dtypes[dt].save, x)
                            : strf(a, "(%s)%s", dtypes[dt].store, x);
}

const char *text_quotients(Arena *a, const char *q, int n, const char *x,
                           const char *y)
{
    return strf(a,
                "float %s[%d]; { float a[%d], b[%d]; LANES(%d) a[l] = %s, b[l] "
                "= %s; divide(%s, a, b); }",
                q, n, n, n, n, x, y, q);
}
