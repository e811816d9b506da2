/* mixtext.c: made-up text. Only characters that were in Unicode 9, so that all
 * libraries' tables agree on them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mixtext.h"

typedef struct Out {
    char *s;
    size_t n, cap;
    uint64_t state;
} Out;

static uint32_t draw(Out *o, uint32_t n)
{
    uint64_t z = o->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)((z ^ z >> 31) % n);
}

static void add(Out *o, const char *s, size_t n)
{
    if (o->cap - o->n < n + 1 &&
        !(o->s = realloc(o->s, o->cap = 2 * o->cap + n + 1)))
        abort();
    memcpy(o->s + o->n, s, n);
    o->s[o->n += n] = 0;
}

static void say(Out *o, const char *s)
{
    add(o, s, strlen(s));
}

static void letter(Out *o, uint32_t c)
{
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    if (n == 1)
        s[0] = (char)c;
    for (size_t i = n; n > 1 && i-- > 0; c >>= 6)
        s[i] = (char)(i ? 0x80 | (c & 0x3f) : (0xf00 >> n & 0xff) | c);
    add(o, s, n);
}

/* ---- scripts ------------------------------------------------------------- */

/* first to last, spaces between words or not */
/* clang-format off */
static const struct Script { uint32_t first, last; int spaces; } scripts[] = {
    {'a', 'z', 1}, {'a', 'z', 1}, {'a', 'z', 1}, {'A', 'Z', 1}, {0xc0, 0xd6, 1},
    {0xe0, 0xf6, 1}, {0x100, 0x17f, 1}, {0x3b1, 0x3c9, 1}, {0x410, 0x44f, 1},
    {0x531, 0x556, 1}, {0x5d0, 0x5ea, 1}, {0x621, 0x64a, 1}, {0x905, 0x939, 1},
    {0x93e, 0x94d, 1}, {0x985, 0x98c, 1}, {0xb95, 0xb95, 1}, {0xe01, 0xe3a, 0},
    {0xf40, 0xf47, 0}, {0x10d0, 0x10f0, 1}, {0x1200, 0x1248, 1},
    {0x13a0, 0x13f4, 1}, {0x1780, 0x17b3, 0}, {0x1820, 0x1842, 1},
    {0x1e00, 0x1eff, 1}, {0x3041, 0x3096, 0}, {0x30a1, 0x30fa, 0},
    {0x4e00, 0x9fd5, 0}, {0x4e00, 0x4eff, 0}, {0xac00, 0xd7a3, 1},
    {0xac00, 0xad00, 1}, {0x20000, 0x2a6d6, 0},
};
/* clang-format on */

/* What else may stand anywhere: ranges all of whose characters exist. */
/* clang-format off */
static const uint32_t others[][2] = {
    {0x1, 0x1d}, {0x7f, 0xbf}, {0x2b0, 0x2ff}, {0x300, 0x36f}, {0x660, 0x669},
    {0x966, 0x96f}, {0x1100, 0x11ff}, {0x180e, 0x180e}, {0x2000, 0x200f},
    {0x2010, 0x2029}, {0x202f, 0x203f}, {0x2070, 0x2071}, {0x2074, 0x208e},
    {0x20a0, 0x20be}, {0x2150, 0x218b}, {0x2190, 0x23fe}, {0x2460, 0x24ff},
    {0x2500, 0x27bf}, {0x3000, 0x303f}, {0x3099, 0x309f}, {0xe000, 0xe0ff},
    {0xf900, 0xfa6d}, {0xfb00, 0xfb06}, {0xfb1d, 0xfb36}, {0xfe20, 0xfe2f},
    {0xff01, 0xffbe}, {0x10300, 0x1031f}, {0x10400, 0x1044f},
    {0x1d15e, 0x1d164}, {0x1d400, 0x1d454}, {0x1d7ce, 0x1d7ff},
    {0x1f300, 0x1f64f}, {0x1f1e6, 0x1f1ff}, {0xe0020, 0xe007f},
    {0xf0000, 0xf00ff},
};
/* clang-format on */

enum {
    NSCRIPT = sizeof scripts / sizeof *scripts,
    NOTHER = sizeof others / sizeof *others,
    LEXICON = 60
};

/* Word number w of a script: always the same letters. */
static void word(Out *o, const struct Script *s, uint32_t w)
{
    Out r = { .state = s->first * 1000003ull + w * 7919ull };
    uint32_t len = 1 + draw(&r, 3) + draw(&r, 7);

    for (uint32_t i = 0; i < len; i++)
        letter(o, s->first + draw(&r, s->last - s->first + 1));
}

/* Early words of a lexicon are the frequent ones. */
static uint32_t pick(Out *o)
{
    return draw(o, 1 + draw(o, LEXICON));
}

static void prose(Out *o)
{
    static const char *const ends[] = {
        ". ",  ", ", "! ", "? ", ".\n", "\n\n",
        " - ", "; ", " (", ") ", "\" ", "... "
    };
    static const char *const tails[] = { "'s",  "'t", "'re", "'ve", "'m",
                                         "'ll", "'d", "'S",  "'LL", "\u2019s" };
    const struct Script *s = &scripts[draw(o, NSCRIPT)];

    for (uint32_t n = 20 + draw(o, 300); n > 0; n--) {
        word(o, s, pick(o));
        if (!draw(o, 9))
            say(o, tails[draw(o, 10)]);
        if (!draw(o, 6))
            say(o, ends[draw(o, 12)]);
        else if (s->spaces)
            say(o, " ");
        if (!draw(o, 40))
            s = &scripts[draw(o, NSCRIPT)];
    }
}

static void number(Out *o)
{
    for (uint32_t n = 1 + draw(o, 9); n > 0; n--)
        letter(o, '0' + draw(o, 10));
}

static void code(Out *o)
{
    /* clang-format off */
    static const char *const bits[] = {
        "if (", ") {\n", "}\n", "return ", ";\n", " = ", " == ", "->", "[i]",
        "for (int i = 0; i < n; i++)\n", "    ", "        ", "\t", "/* ", " */",
        "#include <", ">\n", "static const ", "void ", "def ", "self.", "::",
        "\r\n", "0x1f", "\"%s\\n\"", "// ", "<p class=\"", "</", "&&", "<|",
    };
    /* clang-format on */
    static const struct Script ascii = { 'a', 'z', 1 };

    for (uint32_t n = 20 + draw(o, 400); n > 0; n--) {
        uint32_t k = draw(o, 45);
        if (k < 30)
            say(o, bits[k]);
        else if (k < 35)
            number(o);
        else
            word(o, &ascii, pick(o));
        if (k > 40)
            say(o, "_");
    }
}

static void anything(Out *o)
{
    for (uint32_t n = 1 + draw(o, 200); n > 0; n--) {
        uint32_t k = draw(o, 3), i = draw(o, k ? NOTHER : NSCRIPT);
        uint32_t lo = k ? others[i][0] : scripts[i].first;
        uint32_t hi = k ? others[i][1] : scripts[i].last;
        letter(o, lo + draw(o, hi - lo + 1));
    }
}

/* A few places where marks and jamo wait to be put in order and together. */
static void marks(Out *o)
{
    /* clang-format off */
    static const char *const bits[] = {
        "e\u0301", "\u00e9", "a\u0323\u0302", "a\u0302\u0323", "\u1112\u1161",
        "\u1112\u1161\u11ab", "\uac00\u11a8", "o\u031b\u0323", "\u0958",
        "\u212b", "\u2126", "\ufb01", "\u0344", "q\u0307\u0323", " ", "\n",
        "\u3000", "\u00a0", "\xc2\x85", "\u2028", "\u180e", "'\u017f",
        "1\u0300", "<|endoftext|>", "<|im_start|>", " <mask> ", "foo", "foobar",
        "<x>", "<0x41>", "\u2581", "\u2581\u2581", "  ",
    };
    /* clang-format on */

    for (uint32_t n = 1 + draw(o, 200); n > 0; n--)
        say(o, bits[draw(o, sizeof bits / sizeof *bits)]);
}

static void run(Out *o)
{
    static const uint32_t of[] = {
        ' ', '\n', 'a', '=', '0', 0x4e00, 0x301, '\t'
    };
    uint32_t c = of[draw(o, 8)];

    for (uint32_t n = 1 + draw(o, 3000); n > 0; n--)
        letter(o, c);
}

char *mix_text(size_t bytes, size_t *len)
{
    Out o = { .state = 20260101 };

    while (o.n < bytes) {
        if (o.n)
            letter(&o, 0x1e);
        for (uint32_t n = 1 + draw(&o, 6); n > 0; n--) {
            uint32_t k = draw(&o, 20);
            if (k < 11)
                prose(&o);
            else if (k < 16)
                code(&o);
            else if (k < 17)
                anything(&o);
            else if (k < 19)
                marks(&o);
            else
                run(&o);
        }
    }
    *len = o.n;
    return o.s;
}
