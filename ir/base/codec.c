/* codec.c: words of a record's line. One function reads and writes a record:
 * the functions here write the given value and return it, or return the value
 * read. */
#include "base.h"

/* Appends the blank before a word, except at the start of a line or after
 * "name=". */
static void put_blank(Text *out)
{
    if (out->len && !strchr("\n= ", out->s[out->len - 1]))
        putn(out, " ", 1);
}

const char *code_word(Codec *codec, const char *s)
{
    if (codec->in)
        return lex_word(codec->in);
    put_blank(codec->out);
    put_word(codec->out, s ? s : "");
    return s;
}

int64_t code_range(Codec *codec, const char *what, int64_t min, int64_t max,
                   int64_t v)
{
    if (codec->in)
        return lex_range(codec->in, what, min, max);
    put_blank(codec->out);
    put_int(codec->out, v);
    return v;
}

int64_t code_int(Codec *codec, int64_t v)
{
    return code_range(codec, "a number", INT64_MIN, INT64_MAX, v);
}

int code_index(Codec *codec, const char *what, int v)
{
    return (int)code_range(codec, what, -1, INT32_MAX - 1, v);
}

double code_num(Codec *codec, double v)
{
    if (codec->in)
        return lex_num(codec->in);
    put_blank(codec->out);
    put_hex(codec->out, v);
    return v;
}

int64_t code_digits(Codec *codec, const char *what, int64_t min, int64_t max,
                    int64_t v)
{
    if (!codec->in) {
        put_int(codec->out, v);
        return v;
    }
    lex_more(codec->in);
    v = lex_digits(codec->in);
    if (v < min || v > max)
        lex_err(codec->in, "no %s %ld", what, v);
    return v;
}

uint64_t code_hash(Codec *codec, uint64_t v)
{
    if (codec->in)
        return lex_bits(codec->in);
    put_blank(codec->out);
    put_bits(codec->out, v);
    return v;
}

int code_choice(Codec *codec, const char *const *names, int n, int v)
{
    if (codec->in)
        return lex_choice(codec->in, names, n);
    code_word(codec, names[v]);
    return v;
}

Dtype code_dtype(Codec *codec, Dtype dt)
{
    if (codec->in)
        return lex_dtype(codec->in);
    code_word(codec, dtypes[dt].name);
    return dt;
}

/* Codes a mark, after a blank. */
int code_mark(Codec *codec, const char *s, int there)
{
    if (codec->in)
        return lex_mark(codec->in, s[strspn(s, " ")]);
    if (there)
        putn(codec->out, s, strlen(s));
    return there;
}

void code_need(Codec *codec, const char *s)
{
    if (!code_mark(codec, s, 1))
        lex_err(codec->in, "expected '%s'", s + strspn(s, " "));
}

/* Codes an optional word that announces what follows. */
int code_option(Codec *codec, const char *s, int there)
{
    if (codec->in)
        return lex_take(codec->in, s);
    if (there)
        code_word(codec, s);
    return there;
}

void code_expect(Codec *codec, const char *s)
{
    if (!code_option(codec, s, 1))
        lex_err(codec->in, "expected '%s'", s);
}

int code_key(Codec *codec, const char *name, int there)
{
    if (codec->in)
        return lex_key(codec->in, name);
    if (there) {
        code_word(codec, name);
        putn(codec->out, "=", 1);
    }
    return there;
}

/* Codes an optional set of atoms, written if it is not empty. */
uint32_t code_atoms(Codec *codec, const char *s, uint32_t set)
{
    return code_option(codec, s, set != 0)
               ? (uint32_t)code_range(codec, "atoms", 0, UINT32_MAX, set)
               : set;
}

/* ---- lines --------------------------------------------------------------- */

void code_end(Codec *codec)
{
    if (codec->in)
        lex_next(codec->in);
    else
        putn(codec->out, "\n", 1);
}

void code_place(Codec *codec, const char **file, int *at)
{
    if (codec->in) {
        lex_place(codec->in, file, at);
    } else if (*file) {
        putn(codec->out, " @", 2);
        code_word(codec, *file);
        code_int(codec, *at);
    }
    code_end(codec);
}

/* Codes "kernel" name length, and the text below. */
const char *code_text(Codec *codec, const char *what, const char **name,
                      const char *s)
{
    if (!codec->in) {
        put_text(codec->out, what, name ? *name : NULL, s);
        return s;
    }
    if (name)
        *name = lex_word(codec->in);
    s = lex_text(codec->in);
    code_end(codec);
    return s;
}

/* ---- lists --------------------------------------------------------------- */

void *code_room(Codec *codec, void *v, int *n, size_t size)
{
    if (!codec->in)
        return v;
    v = vec_grow(codec->in->arena, v, size);
    memset((char *)v + (size_t)*n * size, 0, size);
    *n = (int)++((VecHead *)v)[-1].len;
    return v;
}

/* Does number i of at most MANYNUMBERS follow? */
int code_number_next(Codec *codec, int i, int n)
{
    if (!codec->in)
        return i < n;
    if (i > MANYNUMBERS)
        lex_err(codec->in, "more than %d numbers", MANYNUMBERS);
    return lex_more(codec->in) &&
           (lex_isdigit(*codec->in->p) || *codec->in->p == '-');
}

void code_limit(Codec *codec, int i, int most, const char *what)
{
    if (codec->in && i == most)
        lex_err(codec->in, "more than %d %s", most, what);
}
