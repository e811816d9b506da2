/* text.c: kernel arguments, kernel names, and the small language of lowering
 * texts ("a * sigmoid(a)") shared by all generators. */
#include "codegen.h"

#include <ctype.h>
#include <string.h>

int add_arg(Group *k, Arena *a, Node *n)
{
    n = storage(n);
    for (int i = 0; i < k->narg; i++)
        if (k->arg[i] == n)
            return i;
    vec_push(a, k->arg, n);
    return k->narg++;
}

int add_word(Group *k, Arena *a, Word x)
{
    vec_push(a, k->step.word, x);
    return k->step.nword++;
}

int add_int(Group *k, Arena *a, RankAffine x)
{
    return add_word(k, a, (Word){ .at = x });
}

int add_size(Group *k, Arena *a, int64_t x)
{
    return add_int(k, a, aff(x));
}

static uint64_t hash_text(const char *s)
{
    uint64_t h = 0;

    for (; *s; s++)
        h = mix64(h, (unsigned char)*s);
    return h;
}

void set_text(Group *k, Arena *a, const char *body)
{
    unsigned long long h = hash_text(body);
    const char *name = strf(a, "k_%016llx", h);

    k->step.kind = Ikernel;
    k->step.kernel = intern(name);
    k->text = strf(a,
                   "void %s(void *const *buf, const int64_t *iv,\n"
                   "    int64_t lo, int64_t hi)\n%s",
                   name, body);
}

/* The name stands for the @ before the parameters: it is the text's hash. */
void set_text_named(Group *k, Arena *a, const char *text)
{
    unsigned long long h = hash_text(text);
    const char *name = strf(a, "k_%016llx", h);
    const char *at = strstr(text, "@(");

    k->step.kind = Ikernel;
    k->step.kernel = intern(name);
    k->text = strf(a, "%.*s%s%s", (int)(at - text), text, name, at + 1);
}

void set_label(Group *k, Arena *a, const Node *n)
{
    if (n->name)
        k->step.label = n->name;
    else if (*n->scope->path)
        k->step.label = strf(a, "%s.%s", n->scope->path, optab[n->op].name);
    else
        k->step.label = optab[n->op].name;
    k->step.file = n->loc ? n->loc->file : NULL;
    k->step.line = n->loc ? n->loc->line : 0;
}

static const char *put_number(Text *t, const char *s, const char *suffix)
{
    size_t n = strspn(s, "0123456789.");

    putn(t, s, n);
    if (memchr(s, '.', n) && !strcmp(suffix, "_f32"))
        put(t, "f");
    return s + n;
}

static const char *put_name(Text *t, const char *s, const char *letters,
                            const char *const *arg, const char *suffix)
{
    size_t n = 0;

    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        n++;
    const char *at = n == 1 ? strchr(letters, s[0]) : NULL;
    if (at && s[1] != '(')
        put(t, "%s", arg[at - letters]);
    else
        putn(t, s, n);
    if (s[n] == '(')
        put(t, "%s", suffix);
    return s + n;
}

void put_expr(Text *t, const char *s, const char *letters,
              const char *const *arg, const char *suffix)
{
    while (*s)
        if (isdigit((unsigned char)*s))
            s = put_number(t, s, suffix);
        else if (isalpha((unsigned char)*s) || *s == '_')
            s = put_name(t, s, letters, arg, suffix);
        else
            putn(t, s++, 1);
}

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

int aff_zero(const RankAffine *x)
{
    for (int i = 0; i < MAXATOM; i++)
        if (x->k[i])
            return 0;
    return x->c == 0;
}

Dtype compute_type(Dtype t)
{
    switch (t) {
    case Df64: return Df64;
    case Di64: return Di64;
    case Df32:
    case Dbf16:
    case Dreal: return Df32;
    default: return Di32;
    }
}
