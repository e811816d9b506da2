/* str.c: strings. Names are interned and compared by pointer; growing texts
 * (dumps, plans, kernels) are a Text in an arena. */
#include "base.h"

/* ---- interned names: open addressing, at most half full ------------------ */

typedef struct Name {
    const char *s;
    size_t n;
    uint64_t hash;
} Name;

static Name *table;
static size_t slots, names;

static uint64_t hash(const char *s, size_t n) /* FNV-1a */
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static Name *slot_of(const char *s, size_t n, uint64_t h)
{
    size_t i = h & (slots - 1);
    while (table[i].s &&
           (table[i].hash != h || table[i].n != n || memcmp(table[i].s, s, n)))
        i = (i + 1) & (slots - 1);
    return &table[i];
}

static void rehash(void)
{
    Name *old = table;
    size_t n = slots;
    slots = n ? 2 * n : 1024;
    table = alloc(forever, slots * sizeof *table);
    for (size_t i = 0; i < n; i++)
        if (old[i].s)
            *slot_of(old[i].s, old[i].n, old[i].hash) = old[i];
}

const char *internn(const char *s, size_t n)
{
    if (2 * names >= slots)
        rehash();
    uint64_t h = hash(s, n);
    Name *e = slot_of(s, n, h);
    if (!e->s) {
        char *copy = alloc(forever, n + 1);
        memcpy(copy, s, n);
        *e = (Name){ copy, n, h };
        names++;
    }
    return e->s;
}

const char *intern(const char *s)
{
    return internn(s, strlen(s));
}

const char *next_word(const char **s, const char *between)
{
    const char *word = *s + strspn(*s, between);
    size_t n = strcspn(word, between);

    *s = word + n;
    return n ? internn(word, n) : NULL;
}

int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

int word_index(const char *s, const char *const *word, int n)
{
    int i = 0;
    while (i < n && strcmp(word[i], s))
        i++;
    return i < n ? i : -1;
}

/* ---- formatting ---------------------------------------------------------- */

char *vstrf(Arena *a, const char *fmt, va_list ap)
{
    char most[128]; /* most results fit and are formatted once */
    va_list again;
    va_copy(again, ap);
    int n = fmt ? vsnprintf(most, sizeof most, fmt, again) : -1;
    va_end(again);
    if (n < 0)
        die("strf: bad format");
    char *s = alloc(a, (size_t)n + 1);
    if ((size_t)n < sizeof most)
        memcpy(s, most, (size_t)n);
    else
        vsnprintf(s, (size_t)n + 1, fmt, ap);
    return s;
}

char *strf(Arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = vstrf(a, fmt, ap);
    va_end(ap);
    return s;
}

/* Makes room for n more bytes and the NUL. */
static void room(Text *out, size_t n)
{
    if (out->len + n < out->cap)
        return;
    size_t cap = out->cap ? 2 * out->cap : 256;
    while (cap <= out->len + n)
        cap *= 2;
    char *s = alloc(out->arena, cap);
    if (out->len)
        memcpy(s, out->s, out->len);
    out->s = s;
    out->cap = cap;
}

void putn(Text *out, const char *s, size_t n)
{
    room(out, n);
    if (n)
        memcpy(out->s + out->len, s, n);
    out->len += n;
    out->s[out->len] = 0;
}

void put_real(Text *out, double v)
{
    char s[40];
    int digits = 6;

    do
        snprintf(s, sizeof s, "%.*g", digits, v);
    while (digits++ < 17 && strtod(s, NULL) != v && !isnan(v));
    putn(out, s, strlen(s));
}

void put(Text *out, const char *fmt, ...)
{
    va_list ap;
    room(out, 128);
    for (;;) {
        size_t left = out->cap - out->len;
        va_start(ap, fmt);
        int n = vsnprintf(out->s + out->len, left, fmt, ap);
        va_end(ap);
        if (n < 0)
            die("put: bad format");
        if ((size_t)n < left) {
            out->len += (size_t)n;
            return;
        }
        room(out, (size_t)n);
    }
}

/* ---- suggestions --------------------------------------------------------- */

enum { LONGEST = 63 }; /* bytes of a name; longer ones get no suggestion */

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Returns the edit distance; a swap of neighbours counts once (optimal string
 * alignment). */
static int distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b);
    int row[3][LONGEST + 1];
    for (int j = 0; j <= m; j++)
        row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int change = up[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = least(up[j] + 1, now[j - 1] + 1, change);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], up2[j - 2] + 1, now[j]);
        }
    }
    return row[n % 3][m];
}

int has_word(const char *list, char mark, const char *w)
{
    size_t n = strlen(w);

    for (const char *s = list; s && (s = strstr(s, w)); s++)
        if ((s == list || s[-1] == mark) && (!s[n] || s[n] == mark))
            return 1;
    return 0;
}

const char *nearest(const char *s, const char *const *all, size_t n)
{
    const char *best = 0;
    size_t len = strlen(s);
    int limit = len < 3 ? 1 : len < 6 ? 2 : (int)(len / 3);
    if (len > LONGEST)
        return 0;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(all[i]);
        if (m > LONGEST)
            continue;
        int d = distance(s, all[i]);
        if (d <= limit && d < (int)(len > m ? len : m)) {
            best = all[i];
            limit = d - 1;
        }
    }
    return best;
}

const char *did_you_mean(const char *s, const char *const *all, size_t n)
{
    const char *near = nearest(s, all, n);

    return near ? strf(forever, " (did you mean '%s'?)", near) : "";
}

char *gib_text(Arena *a, int64_t bytes, int64_t other)
{
    for (int digits = 3;; digits++) {
        char *s = strf(a, "%.*f", digits, (double)bytes * 0x1p-30);
        if (bytes == other || digits == 10 ||
            strcmp(s, strf(a, "%.*f", digits, (double)other * 0x1p-30)))
            return s;
    }
}

/* ---- UTF-8 --------------------------------------------------------------- */

/* Returns the bytes of the character at s; 0: invalid. n > 0. */
static size_t valid_char(const uint8_t *s, size_t n)
{
    size_t len = s[0] < 0x80   ? 1
                 : s[0] < 0xc2 ? 0
                 : s[0] < 0xe0 ? 2
                 : s[0] < 0xf0 ? 3
                 : s[0] < 0xf5 ? 4
                               : 0;

    if (len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

int64_t utf8_bad(const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint64_t eight;
        len = 8;
        if (n - i >= 8 &&
            (memcpy(&eight, s + i, 8), !(eight & 0x8080808080808080ull)))
            continue;
        len = valid_char((const uint8_t *)s + i, n - i);
        if (!len)
            return (int64_t)i;
    }
    return -1;
}
