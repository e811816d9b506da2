/* instruction.c: what the rows of instructions.def say: the operands of a kind
 * and its fields, by which they are printed, read, compared and checked. */
#include <string.h>

#include "plan.h"

/* ---- the table ----------------------------------------------------------- */

/* clang-format off */
#define DTYPE(x) { #x, FIELDdtype, offsetof(Args, x), 0, NDTYPE - 1 },
#define REDUCE(x) { #x, FIELDreduce, offsetof(Args, x), 0, Rmin },
#define FLAG(x) { #x, FIELDflag, offsetof(Args, x), 0, 1 },
#define SIZE(x) { #x, FIELDint, offsetof(Args, x), 0, HUGEBYTES },
#define INT(x, min, max) { #x, FIELDint, offsetof(Args, x), min, max },
#define HASH(x) { #x, FIELDhash, offsetof(Args, x), INT64_MIN, INT64_MAX },
#define BATCH(x) { #x, FIELDlist, offsetof(Args, x), 4, MAXBATCH },
#define GAPS(x) { #x, FIELDlist, offsetof(Args, x), 2, INT32_MAX },
#define ARGS(type, member, list) \
    static const Field *member##_fields(void) \
    { \
        typedef type Args; \
        static const Field f[] = { list { 0 } }; \
        return f; \
    }
#define PART ARGS
#define INSTR(name, cls, type, member, operands, doc)
#include "instructions.def"

static const Field *none_fields(void)
{
    static const Field f;
    return &f;
}

#define OP(access, x, dt) { #x, USE##access, 1, offsetof(Args, dt) },
#define RAW(access, x) { #x, USE##access, 0, sizeof(Args) },
#define ARGS(type, member, list)
#define INSTR(name, cls, type, member, operands, doc) \
    case I##name: { \
        typedef type Args; \
        static const OperandInfo op[] = { operands }; \
        static const InstrInfo info = { \
            #name, doc, CLASS##cls, member##_fields, \
            sizeof op / sizeof *op, op \
        }; \
        return &info; \
    }
const InstrInfo *instr_info(InstrKind k)
{
    switch (k) {
#include "instructions.def"
    case NINSTR: break;
    }
    die("no instruction of kind %d", (int)k);
}
/* clang-format on */

/* ---- operands ------------------------------------------------------------ */

int instr_many(const InstrInfo *o)
{
    return o->op[o->nop - 1].use >= USEeach;
}

const OperandInfo *instr_operand(const Instr *s, int i)
{
    const InstrInfo *o = instr_info(s->kind);
    return &o->op[i < o->nop ? i : o->nop - 1];
}

void instr_store(Instr *s)
{
    if (s->kind == Igemm)
        s->gemm.beta = 0;
    else if (s->kind == Igmm || s->kind == Igmm_wgrad)
        s->gmm.beta = 0;
    for (int i = 0; i < s->nword; i++)
        if (s->word[i].type == WORDadd)
            s->word[i].at.c = 0;
}

char instr_use(const Instr *s, int i)
{
    switch (instr_operand(s, i)->use) {
    case USEread:
    case USEeach: return 'r';
    case USEwrite: return 'w';
    case USEwork: return '-';
    case USEadd:
        return (s->kind == Igemm ? s->gemm.beta : s->gmm.beta) ? 'b' : 'w';
    case USEown: break;
    }
    return s->rw ? s->rw[i] : 'b';
}

const char *instr_label(const Instr *s)
{
    return s->label    ? s->label
           : s->kernel ? s->kernel
                       : instr_info(s->kind)->name;
}

/* ---- words of kernels ---------------------------------------------------- */

Word word_int(int64_t x)
{
    return (Word){ .at = aff(x) };
}

int64_t word_value(const Mesh *m, const Word *p, int64_t rank)
{
    int64_t word;
    if (p->type != WORDreal)
        return m ? aff_at(m, &p->at, rank) : p->at.c;
    memcpy(&word, &p->real, sizeof word);
    return word;
}

/* ---- fields -------------------------------------------------------------- */

const char *const reduces[NREDUCE] = { "add", "max", "min", "last" };

/* BatchLoops or GapList, as integers. */
typedef struct List {
    int n;
    int64_t *at;
} List;

/* args: the struct whose fields these are. */
static List list_of(const void *args, const Field *f)
{
    List l;
    memcpy(&l, (const char *)args + f->at, sizeof l);
    return l;
}

static int64_t value_of(const void *args, const Field *f)
{
    const void *at = (const char *)args + f->at;
    switch (f->type) {
    case FIELDdtype: return *(const Dtype *)at;
    case FIELDreduce: return *(const Reduce *)at;
    case FIELDflag: return *(const int *)at;
    default: return *(const int64_t *)at;
    }
}

Dtype instr_dtype(const Instr *s, int i)
{
    const OperandInfo *o = instr_operand(s, i);
    return o->typed ? *(const Dtype *)(const void *)((const char *)&s->none +
                                                     o->dtype)
                    : Dnone;
}

int same_args(const Instr *x, const Instr *y)
{
    const Field *f = instr_info(x->kind)->fields();
    for (; x->kind == y->kind && f->name; f++) {
        if (f->type != FIELDlist &&
            value_of(&x->none, f) != value_of(&y->none, f))
            return 0;
        if (f->type != FIELDlist)
            continue;
        List a = list_of(&x->none, f), b = list_of(&y->none, f);
        size_t bytes = (size_t)a.n * (size_t)f->min * sizeof *a.at;
        if (a.n != b.n || (bytes && memcmp(a.at, b.at, bytes)))
            return 0;
    }
    return x->kind == y->kind;
}

static int is_wrong(const void *args, const Field *f)
{
    if (f->type != FIELDlist) {
        int64_t v = value_of(args, f);
        return v < f->min || v > f->max ||
               (f->type == FIELDdtype && !dtypes[v].bytes);
    }
    List l = list_of(args, f);
    if (l.n < 0 || l.n > f->max)
        return 1;
    for (int64_t i = 0; i < l.n * f->min; i++)
        if (l.at[i] < 0 || l.at[i] > HUGEBYTES)
            return 1;
    return 0;
}

const char *args_wrong(Arena *a, const Instr *s)
{
    for (const Field *f = instr_info(s->kind)->fields(); f->name; f++)
        if (is_wrong(&s->none, f))
            return strf(a, "has a '%s' out of its range", f->name);
    return NULL;
}

const char *launch_wrong(const Launch *l)
{
    for (const Field *f = launch_fields(); f->name; f++)
        if (is_wrong(l, f))
            return f->name;
    return NULL;
}

/* ---- text ---------------------------------------------------------------- */

/* " name=" */
static void put_name(Text *out, const char *name)
{
    putn(out, " ", 1);
    putn(out, name, strlen(name));
    putn(out, "=", 1);
}

static void put_list(Text *out, const Field *f, const List *l)
{
    for (int64_t i = 0; i < l->n * f->min; i++) {
        if (i % f->min)
            putn(out, ",", 1);
        else
            put_name(out, f->name);
        put_int(out, l->at[i]);
    }
}

static void put_field(Text *out, const void *args, const Field *f)
{
    int64_t v = f->type == FIELDlist ? 0 : value_of(args, f);
    const char *word = f->type == FIELDdtype    ? dtypes[v].name
                       : f->type == FIELDreduce ? reduces[v]
                                                : NULL;
    if (f->type == FIELDlist) {
        List l = list_of(args, f);
        put_list(out, f, &l);
        return;
    }
    put_name(out, f->name);
    if (f->type == FIELDhash)
        put_bits(out, (uint64_t)v);
    else if (word)
        putn(out, word, strlen(word));
    else
        put_int(out, v);
}

/* Operands by name, "-" for none, but that of work space is left out; a list
 * with commas where there may be any number. */
static void put_operands(Text *out, const Instr *s)
{
    for (int i = 0; i < s->nbuf; i++) {
        const OperandInfo *o = instr_operand(s, i);
        if (s->buf[i] < 0 && o->use == USEwork)
            continue;
        if (i && o == instr_operand(s, i - 1))
            putn(out, ",", 1);
        else
            put_name(out, o->name);
        if (s->buf[i] < 0)
            putn(out, "-", 1);
        else
            put_int(out, s->buf[i]);
    }
}

void put_args(Text *out, const Instr *s)
{
    put_operands(out, s);
    for (const Field *f = instr_info(s->kind)->fields(); f->name; f++)
        put_field(out, &s->none, f);
}

void put_launch(Text *out, const Launch *l)
{
    for (const Field *f = launch_fields(); f->name; f++)
        if (value_of(l, f))
            put_field(out, l, f);
}

static void need_key(Lex *x, const char *name)
{
    if (!lex_key(x, name))
        lex_err(x, "expected '%s='", name);
}

static int lex_buffer(Lex *x)
{
    if (lex_mark(x, '-'))
        return -1;
    int64_t b = lex_digits(x);
    if (b < 0 || b >= INT32_MAX)
        lex_err(x, "no buffer %lld", (long long)b);
    return (int)b;
}

/* How many buffers stand here with commas between them. */
static int count_buffers(const Lex *x)
{
    int n = 1;
    for (const char *p = x->p; p < x->end; p++)
        if (*p == ',')
            n++;
        else if (*p != '-' && !lex_isdigit(*p))
            break;
    return n;
}

static void lex_operands(Lex *x, Instr *s)
{
    const InstrInfo *o = instr_info(s->kind);
    const OperandInfo *last = &o->op[o->nop - 1];
    s->nbuf = o->nop - instr_many(o);
    s->buf = alloc(x->arena, sizeof *s->buf * (size_t)o->nop);
    for (int i = 0; i < s->nbuf; i++) {
        int there = o->op[i].use != USEwork;
        if (there)
            need_key(x, o->op[i].name);
        else
            there = lex_key(x, o->op[i].name);
        s->buf[i] = there ? lex_buffer(x) : -1;
    }
    if (!instr_many(o) || !lex_key(x, last->name))
        return;
    int fixed = s->nbuf, *all = NULL;
    s->nbuf += count_buffers(x);
    all = alloc(x->arena, sizeof *all * (size_t)s->nbuf);
    memcpy(all, s->buf, sizeof *all * (size_t)fixed);
    for (int i = fixed; i < s->nbuf; i++) {
        if (i > fixed)
            lex_need(x, ',');
        all[i] = lex_buffer(x);
    }
    s->buf = all;
}

static void lex_list(Lex *x, void *args, const Field *f)
{
    int64_t *v = NULL;
    while (lex_key(x, f->name))
        for (int64_t i = 0; i < f->min; i++) {
            if (i)
                lex_need(x, ',');
            vec_push(x->arena, v, lex_digits(x));
        }
    List l = { (int)((int64_t)vec_len(v) / f->min), v };
    memcpy((char *)args + f->at, &l, sizeof l);
}

/* Behind "name=". */
static void lex_value(Lex *x, void *at, const Field *f)
{
    switch (f->type) {
    case FIELDdtype: *(Dtype *)at = lex_dtype(x); break;
    case FIELDreduce:
        *(Reduce *)at = (Reduce)lex_choice(x, reduces, Rmin + 1);
        break;
    case FIELDflag:
        *(int *)at = (int)lex_range(x, f->name, INT32_MIN, INT32_MAX);
        break;
    case FIELDhash: *(uint64_t *)at = lex_bits(x); break;
    default: *(int64_t *)at = lex_int(x);
    }
}

void lex_args(Lex *x, Instr *s)
{
    lex_operands(x, s);
    for (const Field *f = instr_info(s->kind)->fields(); f->name; f++)
        if (f->type == FIELDlist) {
            lex_list(x, &s->none, f);
        } else {
            need_key(x, f->name);
            lex_value(x, (char *)&s->none + f->at, f);
        }
}

void lex_launch(Lex *x, Launch *l)
{
    *l = (Launch){ 0 };
    for (const Field *f = launch_fields(); f->name; f++)
        if (lex_key(x, f->name))
            lex_value(x, (char *)l + f->at, f);
}
