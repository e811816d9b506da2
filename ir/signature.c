/* signature.c: what kernels declare of their calls, and what calls repeat.
 *
 *     sig     = "sig" kernel expr { name "=" int } { "(" operand ")" }
 *               [ "i" { word } ]
 *     operand = "-" | use dtype { extent } [ "from" operand ]
 *     word    = aff | "+" int | "$" key | "=" real
 *
 *     sig k_7f0c.. 51ab.. items=16 grain=4 ( r f32 16 768 ) ( w f32 16 ) i 768
 *     kernel layers.0.norm.sum arg=12,40 sig=7 hash=c3d1.. v =12/3,>5:4
 *
 * A call names a signature by its number and repeats its hash, which is of the
 * whole line: a kernel that is called in place of another, and one that is
 * called with sizes that are not its own, do not pass. Whether the operands are
 * those of the call is looked at call by call (instr_check.c, value_types.c).
 *
 * Not proved: that the text of a kernel is what its signature says. */
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan.h"

/* ---- text ---------------------------------------------------------------- */

static void put_operand(Text *out, char use, const KernelOperand *o)
{
    putn(out, " ( ", 3);
    putn(out, &use, 1);
    if (use != '-')
        put(out, " %s", dtypes[o->dt].name);
    for (int d = 0; d < o->nd; d++) {
        putn(out, " ", 1);
        put_int(out, o->n[d]);
    }
    if (o->base)
        put(out, " from %d", o->base - 1);
    putn(out, " )", 2);
}

static void put_kernel_word(Text *out, const Word *p)
{
    static const char *const marks[] = { "", " +", " $", " =" };
    putn(out, marks[p->type], strlen(marks[p->type]));
    if (p->type == WORDint)
        put_aff(out, &p->at);
    else if (p->type == WORDreal)
        put_hex(out, p->real);
    else
        put_int(out, p->at.c);
}

void put_signature(Text *out, const KernelSignature *s)
{
    putn(out, "sig ", 4);
    put_word(out, s->kernel);
    putn(out, " ", 1);
    put_bits(out, s->expr);
    put_launch(out, &s->launch);
    for (int i = 0; s->use[i]; i++)
        put_operand(out, s->use[i], &s->op[i]);
    if (s->nword)
        putn(out, " i", 2);
    for (int i = 0; i < s->nword; i++)
        put_kernel_word(out, &s->word[i]);
    putn(out, "\n", 1);
}

void set_signature_hash(Arena *a, KernelSignature *s)
{
    Text out = { .arena = a };
    put_signature(&out, s);
    s->hash = XXH3_64bits(out.s, out.len);
}

static KernelOperand lex_operand(Lex *x, char *use)
{
    KernelOperand o = { .dt = Dnone };
    int64_t *n = NULL;
    const char *word = lex_word(x);
    if (!strchr("rwb-", *word) || word[1])
        lex_err(x, "no use '%s' of an operand", word);
    *use = *word;
    if (*use != '-')
        o.dt = lex_dtype(x);
    for (; !lex_mark(x, ')'); o.nd++) {
        if (lex_take(x, "from")) {
            o.base = 1 + (int)lex_range(x, "operand", 0, INT32_MAX - 1);
            lex_need(x, ')');
            break;
        }
        if (o.nd > MAXD)
            lex_err(x, "more than %d extents", MAXD);
        vec_push(x->arena, n, lex_range(x, "extent", 0, HUGEBYTES));
    }
    o.n = n;
    return o;
}

static Word lex_kernel_word(Lex *x)
{
    if (lex_mark(x, '+'))
        return (Word){ WORDadd, aff(lex_digits(x)), 0 };
    if (lex_mark(x, '$'))
        return (Word){ WORDkey, aff(lex_digits(x)), 0 };
    if (lex_mark(x, '='))
        return (Word){ WORDreal, aff(0), lex_num(x) };
    return (Word){ WORDint, lex_aff(x), 0 };
}

/* Behind "sig". */
void lex_signature(Lex *x, KernelSignature *s)
{
    char use = 0, *all = NULL;
    *s = (KernelSignature){ .kernel = lex_word(x) };
    s->expr = lex_bits(x);
    lex_launch(x, &s->launch);
    while (lex_mark(x, '(')) {
        vec_push(x->arena, s->op, lex_operand(x, &use));
        vec_push(x->arena, all, use);
    }
    vec_push(x->arena, all, 0);
    s->use = all;
    if (lex_take(x, "i"))
        while (lex_more(x))
            vec_push(x->arena, s->word, lex_kernel_word(x));
    s->nword = (int)vec_len(s->word);
    set_signature_hash(x->arena, s);
}

/* ---- calls --------------------------------------------------------------- */

/* By operand what the call does to its buffer: several may have one. */
static const char *uses(Arena *a, const KernelSignature *d, const Instr *s)
{
    char *rw = NULL;
    for (int i = 0; i < s->nbuf; i++)
        for (int k = 0; k < s->nbuf; k++)
            if (s->buf[i] >= 0 && s->buf[i] == s->buf[k] &&
                d->use[i] != d->use[k]) {
                rw = rw ? rw : strf(a, "%s", d->use);
                rw[i] = 'b';
            }
    return rw ? rw : d->use;
}

void bind_signature(Arena *a, const KernelSignature *d, Instr *s)
{
    s->kernel = d->kernel;
    s->launch = d->launch;
    s->word = d->word;
    s->nword = d->nword;
    s->rw = strlen(d->use) == (size_t)s->nbuf ? uses(a, d, s) : NULL;
}

/* ---- each ---------------------------------------------------------------- */

int64_t operand_bytes(const KernelOperand *o)
{
    int64_t n = dtypes[o->dt].bytes;
    for (int d = 0; d < o->nd; d++)
        n = sat_mul(n, o->n[d]);
    return n;
}

/* Is what says where an operand's rows begin one that is read, of integers? */
static int begins(const KernelSignature *s, const KernelOperand *o)
{
    int b = o->base - 1;
    return b >= 0 && b < (int)strlen(s->use) && s->use[b] == 'r' &&
           s->op[b].dt == Di32 && !s->op[b].base && o->nd > 1;
}

static const char *signature_wrong(const PlanCheck *c, const KernelSignature *s)
{
    const Mesh *m = c->p->mesh;
    const char *name = intern(s->kernel);
    if (!bsearch(&name, c->kernels, (size_t)c->p->nkernel, sizeof name,
                 by_pointer) &&
        law(Lkernel_there))
        return "is of a kernel that is not in the plan";
    const Launch *l = &s->launch;
    const char *field = launch_wrong(l);
    if (field && law(Llaunch_range))
        return strf(c->arena, "has a '%s' out of its range", field);
    if ((l->threads
             ? l->grain || !l->y || !l->z
             : !l->grain || l->y || l->z || l->shared || l->persistent) &&
        law(Llaunch))
        return "runs neither on a host nor on a GPU";
    for (int i = 0; i < s->nword; i++)
        if (aff_stray(m, &s->word[i].at) && law(Lint_atoms))
            return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < s->nword; i++)
        if (s->word[i].type == WORDadd &&
            s->word[i].at.c != (strchr(s->use, 'b') != NULL) && law(Lsig_adds))
            return "does not say whether it adds to an operand";
    for (int i = 0; s->use[i]; i++)
        if (s->op[i].base && !begins(s, &s->op[i]) && law(Lragged_base))
            return "has rows that begin where no operand says";
    return NULL;
}

const char *signatures_wrong(const PlanCheck *c)
{
    for (int i = 0; i < c->p->nsig; i++) {
        const char *why = signature_wrong(c, &c->p->sig[i]);
        if (why)
            return strf(c->arena, "signature %d of '%s' %s", i,
                        c->p->sig[i].kernel, why);
    }
    return NULL;
}
