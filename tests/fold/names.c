/* names.c: other names for rename.c to give; what a plan is but for names. */
#include <ctype.h>
#include <string.h>

#include "rename.h"

/* ---- names --------------------------------------------------------------- */

#define USUAL                                                                  \
    "seq", "batch", "ffn", "expert", "vocab", "kv", "heads", "hidden", "key",  \
        "d", "grad", "post", "body", "den", "group", "dim", "m", "loss", "lm", \
        "step", "own", "sums", "inner", "choice", "state", "x", "optim",       \
        "layers", "mtp", "micro0", "row0", "a0", "v", "recv", "send", "init",  \
        "eval", "forward", "head", "norm"
const char *const usual_words[] = { USUAL, NULL };

static int holds(const char *text, const char *word)
{
    size_t n = strlen(word);

    for (const char *s = text; s && (s = strstr(s, word)); s += n)
        if ((s == text || !isalnum((unsigned char)s[-1])) &&
            !isalnum((unsigned char)s[n]))
            return 1;
    return 0;
}

/* The k-th of the words that the text lacks; null: there are not so many.
 * Scopes begin elsewhere in the list than axes. */
static const char *listed(const Names *n, NameKind kind, int k)
{
    int most = 0;

    while (n->word && n->word[most])
        most++;
    for (int i = 0; i < most; i++) {
        const char *w =
            n->word[(i + (kind == NAMEscope ? most / 4 : 0)) % most];
        if (!holds(n->text, w) && !k--)
            return intern(w);
    }
    return NULL;
}

static const char *word(const Names *n, NameKind kind, int k)
{
    const char *w = kind == NAMElocal ? NULL : listed(n, kind, k);

    return w ? w
             : intern(strf(forever, "%c%c%c%d%c", 'p' + (int)kind,
                           'a' + (int)(mix64(7, (uint64_t)k) % 26),
                           'a' + (int)(mix64(9, (uint64_t)k) % 26), k,
                           'a' + (int)kind));
}

const char *new_word(void *ctx, NameKind kind, const char *name)
{
    Names *n = ctx;
    size_t k = 0;

    while (k < vec_len(n->was[kind]) && n->was[kind][k] != name)
        k++;
    if (k == vec_len(n->was[kind]))
        vec_push(forever, n->was[kind], name);
    return word(n, kind, (int)k);
}

const char *same_word(void *ctx, NameKind kind, const char *name)
{
    (void)ctx;
    (void)kind;
    return name;
}

/* ---- plans without names ------------------------------------------------- */

static const char *numbered(const char ***seen, const char *name)
{
    size_t k = 0;

    if (!name)
        return NULL;
    while (k < vec_len(*seen) && strcmp((*seen)[k], name))
        k++;
    if (k == vec_len(*seen))
        vec_push(forever, *seen, name);
    return strf(forever, "n%zu", k);
}

/* Random numbers are keyed by paths. */
static void strip_program(Program *g)
{
    for (int i = 0; i < g->ninstr; i++) {
        g->instr[i].label = "";
        if (g->instr[i].kind == Ikernel)
            g->instr[i].call.hash = 0;
    }
}

static void strip_signature(KernelSignature *d)
{
    for (int k = 0; k < d->nword; k++)
        if (d->word[k].type == WORDkey)
            d->word[k].at.c = 0;
}

static void strip_role(Role *r, const char ***axes, const char ***paths)
{
    for (int i = 0; i < r->nbuf; i++)
        r->buf[i].name = "";
    for (int i = 0; i < r->nout; i++)
        r->out[i].name = numbered(paths, r->out[i].name);
    for (int i = 0; i < r->nprog; i++)
        strip_program(&r->prog[i]);
    for (int i = 0; i < r->ntensor; i++) {
        Tensor *t = &r->tensor[i];
        t->name = numbered(paths, t->name);
        for (int d = 0; d < t->nd; d++)
            t->dim[d].axis = numbered(axes, t->dim[d].axis);
    }
}

/* Names become numbers, in the order in which they first appear. */
char *plan_without_names(Plan *p)
{
    const char **axes = NULL, **paths = NULL;
    size_t len;

    for (int i = 0; i < p->nshape; i++)
        for (int d = 0; d < p->shape[i].nd; d++)
            p->shape[i].dim[d].axis = numbered(&axes, p->shape[i].dim[d].axis);
    for (int i = 0; i < p->nrole; i++)
        strip_role(&p->role[i], &axes, &paths);
    for (int i = 0; i < p->nsig; i++)
        strip_signature(&p->sig[i]);
    p->nsource = 0;
    return plan_print(forever, p, &len);
}

const char *first_difference(const char *x, const char *y)
{
    while (*x || *y) {
        size_t n = strcspn(x, "\n"), m = strcspn(y, "\n");
        if (strncmp(x, "xxh3", 4) && (n != m || strncmp(x, y, n)))
            return strf(forever, "%.*s\n# %.*s", (int)n, x, (int)m, y);
        x += n + (x[n] != 0);
        y += m + (y[m] != 0);
    }
    return NULL;
}
