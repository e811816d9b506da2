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
 * The name of a kernel is the hash of its text.
 *
 * Not proved: that the text of a kernel is what its signature says. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan.h"

/* ---- kernels ------------------------------------------------------------- */

enum { NAMEBYTES = 2 + 16 + 1 };

static uint64_t add_text(uint64_t h, const char *s, size_t n)
{
    while (n--)
        h = mix64(h, (unsigned char)*s++);
    return h;
}

/* The name of the kernel whose name is the n bytes of the text from byte `at`
 * on. The hash is of the text with @ in their place. */
static void put_name(char name[NAMEBYTES], const char *text, size_t at,
                     size_t n)
{
    const char *rest = text + at + n;
    uint64_t h = mix64(add_text(0, text, at), '@');

    snprintf(name, NAMEBYTES, "k_%016lx", add_text(h, rest, strlen(rest)));
}

Kernel kernel_new(Arena *a, const char *text)
{
    const char *at = strstr(text, "@(");
    size_t n = (size_t)(at - text);
    char name[NAMEBYTES];

    put_name(name, text, n, 1);
    return (Kernel){ intern(name),
                     strf(a, "%.*s%s%s", (int)n, text, name, at + 1) };
}

int kernel_is_named(const Kernel *kernel)
{
    const char *at = strstr(kernel->text, kernel->name);
    char name[NAMEBYTES];

    if (!at)
        return 0;
    put_name(name, kernel->text, (size_t)(at - kernel->text),
             strlen(kernel->name));
    return !strcmp(name, kernel->name);
}

/* ---- text ---------------------------------------------------------------- */

static void operand_text(Codec *codec, char *use, KernelOperand *operand)
{
    const char *word = code_word(codec, (char[]){ *use, 0 });

    if (codec->in && (!strchr("rwb-", *word) || word[1]))
        lex_err(codec->in, "no use '%s' of an operand", word);
    *use = *word;
    operand->dt = *use == '-' ? Dnone : code_dtype(codec, operand->dt);
    int64_t *extent = (int64_t *)operand->n;
    for (int i = 0; code_number_next(codec, i, operand->nd); i++) {
        code_limit(codec, i, MAXD + 1, "extents");
        int64_t *n = code_at(codec, extent, operand->nd, i);
        *n = code_range(codec, "extent", 0, HUGEBYTES, *n);
    }
    operand->n = extent;
    if (code_option(codec, "from", operand->base))
        operand->base = 1 + (int)code_range(codec, "operand", 0, INT32_MAX - 1,
                                            operand->base - 1);
    code_need(codec, " )");
}

static void kernel_word(Codec *codec, Word *word)
{
    static const char *const marks[] = { NULL, " +", " $", " =" };

    for (int type = WORDadd; type <= WORDreal; type++)
        if (code_mark(codec, marks[type], (int)word->type == type)) {
            word->type = (WordType)type;
            break;
        }
    if (word->type == WORDint)
        word->at = code_aff(codec, word->at);
    else if (word->type == WORDreal)
        word->real = code_num(codec, word->real);
    else
        word->at.c =
            code_digits(codec, "word", INT64_MIN, INT64_MAX, word->at.c);
}

/* Behind "sig". */
void signature_text(Codec *codec, KernelSignature *signature)
{
    char *uses = NULL;
    int nop = 0;

    signature->kernel = code_word(codec, signature->kernel);
    signature->expr = code_hash(codec, signature->expr);
    launch_text(codec, &signature->launch);
    for (int i = 0; code_mark(codec, " (", !codec->in && signature->use[i]);
         i++) {
        char use = codec->in ? 0 : signature->use[i];
        operand_text(codec, &use, code_at(codec, signature->op, nop, i));
        if (codec->in)
            vec_push(codec->in->arena, uses, use);
    }
    if (code_option(codec, "i", signature->nword))
        for (int i = 0; codec->in ? lex_more(codec->in) : i < signature->nword;
             i++)
            kernel_word(codec,
                        code_at(codec, signature->word, signature->nword, i));
    if (!codec->in)
        return;
    vec_push(codec->in->arena, uses, 0);
    signature->use = uses;
    set_signature_hash(signature);
}

void set_signature_hash(KernelSignature *signature)
{
    Text out = { .arena = arena_new() };
    KernelSignature copy = *signature;

    putn(&out, "sig", 3);
    signature_text(&(Codec){ .out = &out }, &copy);
    putn(&out, "\n", 1);
    signature->hash = XXH3_64bits(out.s, out.len);
    arena_free(out.arena);
}

/* ---- calls --------------------------------------------------------------- */

/* By operand what the call does to its buffer: several may have one. */
static const char *uses(Arena *a, const KernelSignature *signature,
                        const Instr *instr)
{
    char *rw = NULL;
    for (int i = 0; i < instr->nbuf; i++)
        for (int k = 0; k < instr->nbuf; k++)
            if (instr->buf[i] >= 0 && instr->buf[i] == instr->buf[k] &&
                signature->use[i] != signature->use[k]) {
                rw = rw ? rw : strf(a, "%s", signature->use);
                rw[i] = 'b';
            }
    return rw ? rw : signature->use;
}

KernelArgs instr_call(const Instr *instr)
{
    if (moves_rows(instr->kind))
        return (KernelArgs){ instr->rows.sig, instr->rows.hash };
    return instr->kind == Ikernel ? instr->call : (KernelArgs){ .sig = -1 };
}

void bind_signature(Arena *a, const KernelSignature *signature, Instr *instr)
{
    instr->kernel = signature->kernel;
    instr->launch = signature->launch;
    instr->word = signature->word;
    instr->nword = signature->nword;
    instr->rw = strlen(signature->use) == (size_t)instr->nbuf
                    ? uses(a, signature, instr)
                    : NULL;
}

char *kernels_of_host(Arena *a, const Plan *p)
{
    char *is = alloc(a, (size_t)p->nkernel + 1);
    for (int k = 0; k < p->nkernel && p->host; k++)
        for (int i = 0; i < p->nsig && !is[k]; i++)
            is[k] = p->sig[i].launch.host &&
                    !strcmp(p->sig[i].kernel, p->kernel[k].name);
    return is;
}

/* ---- each ---------------------------------------------------------------- */

int64_t operand_bytes(const KernelOperand *operand)
{
    int64_t n = dtypes[operand->dt].bytes;
    for (int d = 0; d < operand->nd; d++)
        n = sat_mul(n, operand->n[d]);
    return n;
}

int rows_from(const Plan *p, const Instr *instr, int i)
{
    if (instr->kind == Ikernel && instr->call.sig < p->nsig)
        return i < (int)strlen(p->sig[instr->call.sig].use)
                   ? p->sig[instr->call.sig].op[i].base - 1
                   : -1;
    if (instr->kind == Igmm || instr->kind == Igmm_wgrad)
        return i < 3 && instr->gmm.stash >> i & 1 ? OPERAND(gmm, map) : -1;
    return -1;
}
