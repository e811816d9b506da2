/* instruction.c: the table of instructions.def: operands and fields of each
 * kind, and generic functions that print, parse, compare and check them. */
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
            countof(op), op \
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

int instr_many(const InstrInfo *info)
{
    return info->op[info->nop - 1].use >= USEeach;
}

const OperandInfo *instr_operand(const Instr *instr, int i)
{
    const InstrInfo *info = instr_info(instr->kind);
    return &info->op[i < info->nop ? i : info->nop - 1];
}

void instr_store(Instr *instr)
{
    if (instr->kind == Igemm)
        instr->gemm.beta = 0;
    else if (instr->kind == Igmm || instr->kind == Igmm_wgrad)
        instr->gmm.beta = 0;
    for (int i = 0; i < instr->nword; i++)
        if (instr->word[i].type == WORDadd)
            instr->word[i].at.c = 0;
}

char instr_use(const Instr *instr, int i)
{
    switch (instr_operand(instr, i)->use) {
    case USEread:
    case USEeach: return 'r';
    case USEwrite: return 'w';
    case USEwork: return '-';
    case USEadd:
        return (instr->kind == Igemm ? instr->gemm.beta : instr->gmm.beta)
                   ? 'b'
                   : 'w';
    case USEown: break;
    }
    return instr->rw ? instr->rw[i] : 'b';
}

int stores_first(const Instr *instr, int i)
{
    return instr->store_first && instr_use(instr, i) == 'b';
}

const char *instr_label(const Instr *instr)
{
    return instr->label    ? instr->label
           : instr->kernel ? instr->kernel
                           : instr_info(instr->kind)->name;
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

/* BatchLoops or GapList as integers. */
typedef struct List {
    int n;
    int64_t *at;
} List;

/* Returns the list of a field. args: the struct with the fields. */
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

Dtype instr_dtype(const Instr *instr, int i)
{
    const OperandInfo *o = instr_operand(instr, i);
    return o->typed
               ? *(const Dtype *)(const void *)((const char *)&instr->none +
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

const char *args_wrong(Arena *a, const Instr *instr)
{
    for (const Field *f = instr_info(instr->kind)->fields(); f->name; f++)
        if (is_wrong(&instr->none, f))
            return strf(a, "has a '%s' out of its range", f->name);
    return NULL;
}

const char *launch_wrong(const Launch *launch)
{
    for (const Field *f = launch_fields(); f->name; f++)
        if (is_wrong(launch, f))
            return f->name;
    return NULL;
}

/* ---- text ---------------------------------------------------------------- */

static void need_key(Codec *codec, const char *name)
{
    if (!code_key(codec, name, 1))
        lex_err(codec->in, "expected '%s='", name);
}

static int buffer_text(Codec *codec, int buf)
{
    if (code_mark(codec, "-", buf < 0))
        return -1;
    return (int)code_digits(codec, "buffer", 0, INT32_MAX - 1, buf);
}

/* Codes operands by name, "-" for none, without the workspace; with commas
 * where any number is allowed. */
static void operands_text(Codec *codec, Instr *instr)
{
    const InstrInfo *info = instr_info(instr->kind);
    int fixed = info->nop - instr_many(info), i = 0;

    for (; i < fixed && (codec->in || i < instr->nbuf); i++) {
        int *buf = code_at(codec, instr->buf, instr->nbuf, i), there = 1;
        if (info->op[i].use != USEwork)
            need_key(codec, info->op[i].name);
        else
            there = code_key(codec, info->op[i].name, *buf >= 0);
        *buf = there ? buffer_text(codec, *buf) : -1;
    }
    if (!instr_many(info) ||
        !code_key(codec, info->op[fixed].name, i < instr->nbuf))
        return;
    do {
        int *buf = code_at(codec, instr->buf, instr->nbuf, i);
        *buf = buffer_text(codec, *buf);
        i++;
    } while (code_mark(codec, ",", i < instr->nbuf));
}

static void list_text(Codec *codec, void *args, const Field *f)
{
    List l = list_of(args, f);
    int n = l.n * (int)f->min;

    for (int i = 0; code_key(codec, f->name, i < n);)
        for (int64_t k = 0; k < f->min; k++, i++) {
            if (k)
                code_need(codec, ",");
            int64_t *v = code_at(codec, l.at, n, i);
            *v = code_digits(codec, f->name, INT64_MIN, INT64_MAX, *v);
        }
    l.n = n / (int)f->min;
    memcpy((char *)args + f->at, &l, sizeof l);
}

/* Codes the value after "name=". */
static void value_text(Codec *codec, void *args, const Field *f)
{
    void *at = (char *)args + f->at;
    Reduce *reduce = at;
    int *flag = at;

    switch (f->type) {
    case FIELDdtype: *(Dtype *)at = code_dtype(codec, *(Dtype *)at); break;
    case FIELDreduce:
        *reduce = (Reduce)code_choice(codec, reduces, Rmin + 1, (int)*reduce);
        break;
    case FIELDflag:
        *flag = (int)code_range(codec, f->name, INT32_MIN, INT32_MAX, *flag);
        break;
    case FIELDhash: *(uint64_t *)at = code_hash(codec, *(uint64_t *)at); break;
    default: *(int64_t *)at = code_int(codec, *(int64_t *)at);
    }
}

void args_text(Codec *codec, Instr *instr)
{
    operands_text(codec, instr);
    for (const Field *f = instr_info(instr->kind)->fields(); f->name; f++)
        if (f->type == FIELDlist) {
            list_text(codec, &instr->none, f);
        } else {
            need_key(codec, f->name);
            value_text(codec, &instr->none, f);
        }
}

void launch_text(Codec *codec, Launch *launch)
{
    for (const Field *f = launch_fields(); f->name; f++)
        if (code_key(codec, f->name, value_of(launch, f) != 0))
            value_text(codec, launch, f);
}
