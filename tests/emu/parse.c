/* parse.c: the text of an asm statement to instructions: scopes and registers,
 * guards, words with their modifiers, operands. What is not in the tables is
 * an error that names the instruction. */
#include "machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables -------------------------------------------------------------- */

/* clang-format off */
const TypeInfo ptx_types[NTYPE] = {
    [Tnone] = { "", 0, 0 },         [Tb8] = { "b8", 8, 'b' },
    [Tb16] = { "b16", 16, 'b' },    [Tb32] = { "b32", 32, 'b' },
    [Tb64] = { "b64", 64, 'b' },    [Tb128] = { "b128", 128, 'b' },
    [Tb1024] = { "b1024", 1024, 'b' },
    [Tu8] = { "u8", 8, 'u' },       [Tu16] = { "u16", 16, 'u' },
    [Tu32] = { "u32", 32, 'u' },    [Tu64] = { "u64", 64, 'u' },
    [Ts8] = { "s8", 8, 's' },       [Ts16] = { "s16", 16, 's' },
    [Ts32] = { "s32", 32, 's' },    [Ts64] = { "s64", 64, 's' },
    [Tf16] = { "f16", 16, 'f' },    [Tbf16] = { "bf16", 16, 'f' },
    [Tf16x2] = { "f16x2", 32, 'f' }, [Tbf16x2] = { "bf16x2", 32, 'f' },
    [Tf32] = { "f32", 32, 'f' },    [Ttf32] = { "tf32", 32, 'f' },
    [Tf64] = { "f64", 64, 'f' },    [Te4m3] = { "e4m3", 8, 'f' },
    [Te5m2] = { "e5m2", 8, 'f' },
    [Te4m3x2] = { "e4m3x2", 16, 'f' }, [Te5m2x2] = { "e5m2x2", 16, 'f' },
    [Tpred] = { "pred", 1, 'p' },
};

static const struct {
    const char *word;
    Field field;
    int value;
} modifier[] = {
    { "global", Fspace, Sglobal }, { "shared", Fspace, Sshared },
    { "shared::cta", Fspace, Sshared }, { "shared::cluster", Fspace, Scluster },
    { "v2", Fvec, 2 }, { "v4", Fvec, 4 }, { "v8", Fvec, 8 },
    { "x1", Fvec, 1 }, { "x2", Fvec, 2 }, { "x4", Fvec, 4 },
    { "weak", Fsem, SMweak }, { "volatile", Fsem, SMvolatile },
    { "relaxed", Fsem, SMrelaxed }, { "acquire", Fsem, SMacquire },
    { "release", Fsem, SMrelease }, { "acq_rel", Fsem, SMacqrel },
    { "sc", Fsem, SMacqrel },
    { "cta", Fscope, SCcta }, { "cluster", Fscope, SCcluster },
    { "gpu", Fscope, SCgpu }, { "sys", Fscope, SCsys },
    { "gl", Fscope, SCgpu },
    { "ca", Fcache, 1 }, { "cg", Fcache, 2 }, { "cs", Fcache, 3 },
    { "lu", Fcache, 4 }, { "cv", Fcache, 5 }, { "wb", Fcache, 6 },
    { "wt", Fcache, 7 }, { "nc", Fcache, 8 }, { "L2", Fcache, 9 },
    { "L1", Fcache, 9 }, { "L1::no_allocate", Fcache, 9 },
    { "L1::evict_first", Fcache, 9 }, { "L1::evict_last", Fcache, 9 },
    { "L2::64B", Fcache, 9 }, { "L2::128B", Fcache, 9 },
    { "L2::256B", Fcache, 9 },
    { "rn", Fround, 1 }, { "rz", Fround, 2 }, { "rm", Fround, 3 },
    { "rp", Fround, 4 }, { "rni", Fround, 1 }, { "rzi", Fround, 2 },
    { "rmi", Fround, 3 }, { "rpi", Fround, 4 }, { "rna", Fround, 5 },
    { "eq", Fcmp, Ceq }, { "ne", Fcmp, Cne }, { "lt", Fcmp, Clt },
    { "le", Fcmp, Cle }, { "gt", Fcmp, Cgt }, { "ge", Fcmp, Cge },
    { "add", Fhow, Hadd }, { "min", Fhow, Hmin }, { "max", Fhow, Hmax },
    { "and", Fhow, Hand }, { "or", Fhow, Hor }, { "xor", Fhow, Hxor },
    { "exch", Fhow, Hexch }, { "cas", Fhow, Hcas }, { "dec", Fhow, Hdec },
    { "inc", Fhow, Hinc }, { "idx", Fhow, Hidx }, { "up", Fhow, Hup },
    { "down", Fhow, Hdown }, { "bfly", Fhow, Hbfly },
    { "ballot", Fhow, Hballot }, { "any", Fhow, Hany }, { "all", Fhow, Hall },
    { "global_address", Fhow, Haddress }, { "rank", Fhow, Hrank },
    { "box_dim", Fhow, Hbox }, { "global_dim", Fhow, Hdims },
    { "global_stride", Fhow, Hstride }, { "element_stride", Fhow, Helement },
    { "elemtype", Fhow, Helemtype }, { "swizzle_mode", Fhow, Hswizzle },
    { "interleave_layout", Fhow, Hinterleave }, { "fill_mode", Fhow, Hfill },
    { "1d", Fdim, 1 }, { "2d", Fdim, 2 }, { "3d", Fdim, 3 }, { "4d", Fdim, 4 },
    { "5d", Fdim, 5 },
    { "ftz", Fflag, FLftz }, { "approx", Fflag, FLapprox },
    { "sync", Fflag, FLsync }, { "aligned", Fflag, FLaligned },
    { "read", Fflag, FLread }, { "parity", Fflag, FLparity },
    { "expect_tx", Fflag, FLexpect }, { "noinc", Fflag, FLnoinc },
    { "sat", Fflag, FLsat }, { "satfinite", Fflag, FLsat },
    { "wide", Fflag, FLwide }, { "hi", Fflag, FLhi }, { "lo", Fflag, FLlo },
    { "trans", Fflag, FLtrans }, { "bulk_group", Fflag, FLgroup },
    { "mbarrier::complete_tx::bytes", Fflag, FLbytes },
    { "tile", Fflag, FLtile }, { "multicast::cluster", Fflag, FLmulticast },
    { "tensormap::generic", Fflag, FLgeneric }, { "relu", Fflag, FLrelu },
    { "NaN", Fflag, FLnan },
};
/* clang-format on */

/* ---- reading ------------------------------------------------------------- */

typedef struct Reg {
    char name[24];
    int depth;
} Reg;

typedef struct Parse {
    const char *s, *constraints;
    Ptx *p;
    Reg reg[MAXREG];
    int nreg, depth, bad;
    Out *log;
    char now[112]; /* the instruction's words */
} Parse;

static void refuse(Parse *p, const char *what)
{
    if (!p->bad)
        out_put(p->log, "ptx error: %s: %s\n", p->now[0] ? p->now : p->s, what);
    p->bad = 1;
}

static void skip_space(Parse *p)
{
    for (;;) {
        p->s += strspn(p->s, " \t\r\n");
        if (strncmp(p->s, "//", 2))
            return;
        p->s += strcspn(p->s, "\n");
    }
}

static int accept(Parse *p, int c)
{
    skip_space(p);
    if (*p->s != c)
        return 0;
    p->s++;
    return 1;
}

static int is_name(int c)
{
    return isalnum(c) || c == '_' || c == '$' || c == ':' || c == '.';
}

/* A word with its dots. */
static void word(Parse *p, char *to, size_t cap)
{
    size_t n = 0;

    skip_space(p);
    while (is_name((unsigned char)p->s[n]))
        n++;
    size_t k = n < cap - 1 ? n : cap - 1;
    memcpy(to, p->s, k);
    to[k] = 0;
    p->s += n;
}

/* ---- operands ------------------------------------------------------------ */

static int find_reg(const Parse *p, const char *name)
{
    for (int i = p->nreg; i-- > 0;)
        if (!strcmp(p->reg[i].name, name))
            return i;
    return -1;
}

/* Special registers, by number: arguments.c says what they hold. */
static const char *const special[] = {
    "tid.x",       "tid.y",           "tid.z",
    "ntid.x",      "ntid.y",          "ntid.z",
    "ctaid.x",     "ctaid.y",         "ctaid.z",
    "nctaid.x",    "nctaid.y",        "nctaid.z",
    "laneid",      "warpid",          "smid",
    "nsmid",       "clock",           "clock64",
    "globaltimer", "cluster_ctarank", "cluster_nctarank",
    NULL
};

static void parse_percent(Parse *p, Operand *o)
{
    char name[40];

    if (isdigit((unsigned char)*p->s)) {
        o->kind = Karg;
        o->i = (int)strtol(p->s, (char **)(uintptr_t)&p->s, 10);
        if ((size_t)o->i * 2 >= strlen(p->constraints))
            refuse(p, "an operand that is not there");
        return;
    }
    accept(p, '%');
    word(p, name, sizeof name);
    o->kind = Kspecial;
    while (special[o->i] && strcmp(special[o->i], name))
        o->i++;
    if (!special[o->i])
        refuse(p, "an unknown special register");
}

static void parse_number(Parse *p, Operand *o)
{
    char *end;

    o->kind = Kimm;
    if (p->s[0] == '0' &&
        (p->s[1] == 'f' || p->s[1] == 'F' || p->s[1] == 'd' || p->s[1] == 'D'))
        o->imm = (int64_t)strtoull(p->s + 2, &end, 16);
    else
        o->imm = (int64_t)strtoull(p->s, &end, 0);
    if (*p->s == '-')
        o->imm = (int64_t)strtoll(p->s, &end, 0);
    if (end == p->s)
        refuse(p, "an operand that is not understood");
    p->s = end;
    if (*p->s == 'U')
        p->s++;
}

static void parse_operand(Parse *p, Operand *o);

static void parse_list(Parse *p, Operand *o, int close)
{
    do {
        o->part = realloc(o->part, (size_t)(o->n + 1) * sizeof *o->part);
        Operand part = { 0 };
        parse_operand(p, &part);
        o->part[o->n++] = part;
        if (o->kind == Kmem && accept(p, '+')) {
            Operand off = { 0 };
            parse_number(p, &off);
            o->imm = off.imm;
        }
    } while (!p->bad && accept(p, ','));
    if (!accept(p, close))
        refuse(p, "an open bracket");
}

static void parse_one(Parse *p, Operand *o)
{
    char name[40];

    *o = (Operand){ 0 };
    o->negated = accept(p, '!');
    skip_space(p);
    if (accept(p, '{')) {
        o->kind = Kvec;
        parse_list(p, o, '}');
    } else if (accept(p, '[')) {
        o->kind = Kmem;
        parse_list(p, o, ']');
    } else if (accept(p, '%')) {
        parse_percent(p, o);
    } else if (isdigit((unsigned char)*p->s) || *p->s == '-') {
        parse_number(p, o);
    } else {
        word(p, name, sizeof name);
        o->kind = strcmp(name, "_") ? Kreg : Ksink;
        o->i = o->kind == Kreg ? find_reg(p, name) : 0;
        if (o->i < 0)
            refuse(p, "a register that is not declared");
    }
}

/* d|p: two results, here a vector. */
static void parse_operand(Parse *p, Operand *o)
{
    parse_one(p, o);
    if (!p->bad && accept(p, '|')) {
        Operand *two = calloc(2, sizeof *two);
        two[0] = *o;
        parse_one(p, &two[1]);
        *o = (Operand){ .kind = Kvec, .n = 2, .part = two };
    }
}

/* ---- words --------------------------------------------------------------- */

/* The row with most words that the text begins with. */
static const OpRow *row_of(const char *text)
{
    const OpRow *best = NULL;
    size_t most = 0;

    for (const OpRow *r = ptx_rows; r->name; r++) {
        size_t n = strlen(r->name);
        if (n > most && !strncmp(text, r->name, n) &&
            (text[n] == '.' || !text[n]))
            best = r, most = n;
    }
    return best;
}

static int type_named(const char *word)
{
    for (int t = 1; t < NTYPE; t++)
        if (!strcmp(ptx_types[t].name, word))
            return t;
    return 0;
}

static void set_field(Parse *p, Insn *i, Field f, int value)
{
    int *one[NFIELD] = {
        [Fvec] = &i->vec,     [Fsem] = &i->sem,     [Fscope] = &i->scope,
        [Fcache] = &i->cache, [Fround] = &i->round, [Fcmp] = &i->cmp,
        [Fhow] = &i->how,     [Fdim] = &i->dim,
    };

    if (!(i->row->fields >> f & 1) ||
        (f == Fflag && !(i->row->flags >> value & 1))) {
        refuse(p, "a modifier that it does not take");
        return;
    }
    if (f == Fshape)
        return;
    if (f == Fflag)
        i->flags |= 1u << value;
    else if (f == Fspace && i->nspace < 3)
        i->space[i->nspace++] = (Space)value;
    else if (f == Ftype && i->ntype < MAXTYPE)
        i->type[i->ntype++] = (Type)value;
    else if (one[f])
        *one[f] = f == Fcache && *one[f] ? *one[f] : value; /* then hints */
    else
        refuse(p, "too many modifiers");
}

/* "add" of "red.add" and "cta" of "fence.cta" are of the sets that the row
 * takes: the first that fits. */
static void set_modifier(Parse *p, Insn *i, const char *word)
{
    int t = type_named(word), known = t;

    if (t) {
        set_field(p, i, Ftype, t);
        return;
    }
    if (sscanf(word, "m%dn%dk%d", &i->shape[0], &i->shape[1], &i->shape[2]) ==
        3) {
        set_field(p, i, Fshape, 0);
        return;
    }
    for (size_t k = 0; k < sizeof modifier / sizeof *modifier; k++) {
        if (strcmp(modifier[k].word, word))
            continue;
        known = 1;
        if (i->row->fields >> modifier[k].field & 1) {
            set_field(p, i, modifier[k].field, modifier[k].value);
            return;
        }
    }
    refuse(p, known ? "a modifier that it does not take" : "unknown modifier");
}

static void parse_words(Parse *p, Insn *i)
{
    char part[112];

    word(p, p->now, sizeof p->now);
    memcpy(i->text, p->now, sizeof i->text);
    i->row = row_of(p->now);
    if (!i->row) {
        refuse(p, "unknown instruction");
        return;
    }
    const char *s = p->now + strlen(i->row->name);
    while (*s == '.' && !p->bad) {
        size_t n = strcspn(++s, ".");
        memcpy(part, s, n);
        part[n] = 0;
        set_modifier(p, i, part);
        s += n;
    }
}

static void parse_insn(Parse *p)
{
    Insn i = { .guard = -1 };

    p->now[0] = 0;
    if (accept(p, '@')) {
        Operand o = { 0 };
        parse_operand(p, &o);
        i.guard = o.i;
        i.unless = o.negated;
        if (o.kind != Kreg)
            refuse(p, "a guard that is no register");
    }
    parse_words(p, &i);
    while (!p->bad && !accept(p, ';')) {
        if (i.n == MAXOPERAND)
            refuse(p, "too many operands");
        else
            parse_operand(p, &i.o[i.n++]);
        accept(p, ',');
        skip_space(p);
        if (!*p->s) /* the last may end without one */
            break;
    }
    if (!p->bad && (i.n < i.row->least || i.n > i.row->most))
        refuse(p, "another number of operands");
    const char *why = p->bad || !i.row->check ? NULL : i.row->check(&i);
    if (why)
        refuse(p, why);
    p->p->insn = realloc(p->p->insn, (size_t)(p->p->n + 1) * sizeof i);
    p->p->insn[p->p->n++] = i;
}

/* .reg .b32 a, b; */
static void declare(Parse *p)
{
    char type[24];

    word(p, type, sizeof type);
    if (!type_named(type + 1))
        refuse(p, "a register of an unknown type");
    do {
        if (p->nreg == MAXREG) {
            refuse(p, "too many registers");
            return;
        }
        Reg *r = &p->reg[p->nreg++];
        word(p, r->name, sizeof r->name);
        r->depth = p->depth;
    } while (accept(p, ','));
    if (!accept(p, ';'))
        refuse(p, "a declaration without an end");
}

static void leave_scope(Parse *p)
{
    p->depth--;
    for (int i = 0; i < p->nreg; i++)
        if (p->reg[i].depth > p->depth)
            p->reg[i].name[0] = 0; /* numbers stay */
}

static void one(Parse *p)
{
    if (accept(p, '{')) {
        p->depth++;
    } else if (accept(p, '}')) {
        leave_scope(p);
    } else if (!strncmp(p->s, ".reg", 4)) {
        p->s += 4;
        declare(p);
    } else if (!accept(p, ';')) {
        parse_insn(p);
    }
    skip_space(p);
}

static void free_parts(Operand *o)
{
    for (int k = 0; k < o->n; k++)
        free_parts(&o->part[k]);
    free(o->part);
}

void ptx_free(Ptx *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->insn[i].n; k++)
            free_parts(&p->insn[i].o[k]);
    free(p->insn);
    free(p);
}

Ptx *ptx_parse(const char *text, const char *constraints, Out *log)
{
    Parse p = { .s = text, .constraints = constraints, .log = log };

    p.p = calloc(1, sizeof *p.p);
    skip_space(&p);
    while (*p.s && !p.bad)
        one(&p);
    if (!p.bad && p.depth)
        refuse(&p, "an open scope");
    p.p->nreg = p.nreg;
    if (!p.bad)
        return p.p;
    ptx_free(p.p);
    return NULL;
}
