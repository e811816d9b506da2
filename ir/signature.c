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

static void operand_text(Codec *t, char *use, KernelOperand *o)
{
    const char *word = code_word(t, (char[]){ *use, 0 });

    if (t->in && (!strchr("rwb-", *word) || word[1]))
        lex_err(t->in, "no use '%s' of an operand", word);
    *use = *word;
    o->dt = *use == '-' ? Dnone : code_dtype(t, o->dt);
    int64_t *extent = (int64_t *)o->n;
    for (int i = 0; code_number_next(t, i, o->nd); i++) {
        code_limit(t, i, MAXD + 1, "extents");
        int64_t *n = code_at(t, extent, o->nd, i);
        *n = code_range(t, "extent", 0, HUGEBYTES, *n);
    }
    o->n = extent;
    if (code_option(t, "from", o->base))
        o->base =
            1 + (int)code_range(t, "operand", 0, INT32_MAX - 1, o->base - 1);
    code_need(t, " )");
}

static void kernel_word(Codec *t, Word *w)
{
    static const char *const marks[] = { NULL, " +", " $", " =" };

    for (int type = WORDadd; type <= WORDreal; type++)
        if (code_mark(t, marks[type], (int)w->type == type)) {
            w->type = (WordType)type;
            break;
        }
    if (w->type == WORDint)
        w->at = code_aff(t, w->at);
    else if (w->type == WORDreal)
        w->real = code_num(t, w->real);
    else
        w->at.c = code_digits(t, "word", INT64_MIN, INT64_MAX, w->at.c);
}

/* Behind "sig". */
void signature_text(Codec *t, KernelSignature *s)
{
    char *uses = NULL;
    int nop = 0;

    s->kernel = code_word(t, s->kernel);
    s->expr = code_hash(t, s->expr);
    launch_text(t, &s->launch);
    for (int i = 0; code_mark(t, " (", !t->in && s->use[i]); i++) {
        char use = t->in ? 0 : s->use[i];
        operand_text(t, &use, code_at(t, s->op, nop, i));
        if (t->in)
            vec_push(t->in->arena, uses, use);
    }
    if (code_option(t, "i", s->nword))
        for (int i = 0; t->in ? lex_more(t->in) : i < s->nword; i++)
            kernel_word(t, code_at(t, s->word, s->nword, i));
    if (!t->in)
        return;
    vec_push(t->in->arena, uses, 0);
    s->use = uses;
    set_signature_hash(t->in->arena, s);
}

void set_signature_hash(Arena *a, KernelSignature *s)
{
    Text out = { .arena = a };
    KernelSignature copy = *s;

    putn(&out, "sig", 3);
    signature_text(&(Codec){ .out = &out }, &copy);
    putn(&out, "\n", 1);
    s->hash = XXH3_64bits(out.s, out.len);
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

int rows_from(const Plan *p, const Instr *s, int i)
{
    if (s->kind == Ikernel && s->call.sig < p->nsig)
        return i < (int)strlen(p->sig[s->call.sig].use)
                   ? p->sig[s->call.sig].op[i].base - 1
                   : -1;
    if (s->kind == Igmm || s->kind == Igmm_wgrad)
        return i < 3 && s->gmm.stash >> i & 1 ? OPERAND(gmm, map) : -1;
    return -1;
}

/* Is what says where an operand's rows begin one that is read, a map? */
static int begins(const KernelSignature *s, const KernelOperand *o)
{
    int b = o->base - 1;
    return b >= 0 && b < (int)strlen(s->use) && s->use[b] == 'r' &&
           s->op[b].dt == Di32 && s->op[b].nd == 1 && o->nd > 1;
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
    if ((l->threads ? l->grain || !l->y || !l->z || !l->then != !l->pairs ||
                          (l->then && l->persistent)
                    : !l->grain || l->y || l->z || l->shared || l->persistent ||
                          l->hopper || l->then || l->pairs) &&
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
