/* codec.c: words of a record's line. A record has one function, which reads and
 * writes it: what it calls here takes what stands there and returns it, or what
 * it read. */
#include <string.h>

#include "plan.h"

/* Before a word: none where a line begins or behind "name=". */
static void put_blank(Text *out)
{
    if (out->len && !strchr("\n= ", out->s[out->len - 1]))
        putn(out, " ", 1);
}

const char *code_word(Codec *t, const char *s)
{
    if (t->in)
        return lex_word(t->in);
    put_blank(t->out);
    put_word(t->out, s ? s : "");
    return s;
}

int64_t code_range(Codec *t, const char *what, int64_t min, int64_t max,
                   int64_t v)
{
    if (t->in)
        return lex_range(t->in, what, min, max);
    put_blank(t->out);
    put_int(t->out, v);
    return v;
}

int64_t code_int(Codec *t, int64_t v)
{
    return code_range(t, "a number", INT64_MIN, INT64_MAX, v);
}

int code_index(Codec *t, const char *what, int v)
{
    return (int)code_range(t, what, -1, INT32_MAX - 1, v);
}

double code_num(Codec *t, double v)
{
    if (t->in)
        return lex_num(t->in);
    put_blank(t->out);
    put_hex(t->out, v);
    return v;
}

int64_t code_digits(Codec *t, const char *what, int64_t min, int64_t max,
                    int64_t v)
{
    if (!t->in) {
        put_int(t->out, v);
        return v;
    }
    lex_more(t->in);
    v = lex_digits(t->in);
    if (v < min || v > max)
        lex_err(t->in, "no %s %lld", what, (long long)v);
    return v;
}

uint64_t code_hash(Codec *t, uint64_t v)
{
    if (t->in)
        return lex_bits(t->in);
    put_blank(t->out);
    put_bits(t->out, v);
    return v;
}

RankAffine code_aff(Codec *t, RankAffine x)
{
    if (t->in)
        return lex_aff(t->in);
    put_aff(t->out, &x);
    return x;
}

int code_choice(Codec *t, const char *const *names, int n, int v)
{
    if (t->in)
        return lex_choice(t->in, names, n);
    code_word(t, names[v]);
    return v;
}

Dtype code_dtype(Codec *t, Dtype dt)
{
    if (t->in)
        return lex_dtype(t->in);
    code_word(t, dtypes[dt].name);
    return dt;
}

/* A mark, and " " before it where the text has one. */
int code_mark(Codec *t, const char *s, int there)
{
    if (t->in)
        return lex_mark(t->in, s[strspn(s, " ")]);
    if (there)
        putn(t->out, s, strlen(s));
    return there;
}

void code_need(Codec *t, const char *s)
{
    if (!code_mark(t, s, 1))
        lex_err(t->in, "expected '%s'", s + strspn(s, " "));
}

/* A word that says that something follows. */
int code_option(Codec *t, const char *s, int there)
{
    if (t->in)
        return lex_take(t->in, s);
    if (there)
        code_word(t, s);
    return there;
}

void code_expect(Codec *t, const char *s)
{
    if (!code_option(t, s, 1))
        lex_err(t->in, "expected '%s'", s);
}

int code_key(Codec *t, const char *name, int there)
{
    if (t->in)
        return lex_key(t->in, name);
    if (there) {
        code_word(t, name);
        putn(t->out, "=", 1);
    }
    return there;
}

/* Optional: a set of atoms that is not empty. */
uint32_t code_atoms(Codec *t, const char *s, uint32_t set)
{
    return code_option(t, s, set != 0)
               ? (uint32_t)code_range(t, "atoms", 0, UINT32_MAX, set)
               : set;
}

/* ---- lines --------------------------------------------------------------- */

void code_end(Codec *t)
{
    if (t->in)
        lex_next(t->in);
    else
        putn(t->out, "\n", 1);
}

void code_place(Codec *t, const char **file, int *at)
{
    if (t->in) {
        lex_place(t->in, file, at);
    } else if (*file) {
        putn(t->out, " @", 2);
        code_word(t, *file);
        code_int(t, *at);
    }
    code_end(t);
}

/* "kernel" name length, and the text below. */
const char *code_text(Codec *t, const char *what, const char **name,
                      const char *s)
{
    if (!t->in) {
        put_text(t->out, what, name ? *name : NULL, s);
        return s;
    }
    if (name)
        *name = lex_word(t->in);
    s = lex_text(t->in);
    code_end(t);
    return s;
}

/* ---- lists --------------------------------------------------------------- */

void *code_room(Codec *t, void *v, int *n, size_t size)
{
    if (!t->in)
        return v;
    v = vec_grow(t->in->arena, v, size);
    memset((char *)v + (size_t)*n * size, 0, size);
    *n = (int)++((VecHead *)v)[-1].len;
    return v;
}

/* Does a number come, of no more than MANYNUMBERS? */
int code_number_next(Codec *t, int i, int n)
{
    if (!t->in)
        return i < n;
    if (i > MANYNUMBERS)
        lex_err(t->in, "more than %d numbers", MANYNUMBERS);
    return lex_more(t->in) && (lex_isdigit(*t->in->p) || *t->in->p == '-');
}

void code_limit(Codec *t, int i, int most, const char *what)
{
    if (t->in && i == most)
        lex_err(t->in, "more than %d %s", most, what);
}
