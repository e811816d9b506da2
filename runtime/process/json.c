/* json.c: a pull reader for JSON that other programs wrote; json.h says what
 * it reads beyond the standard. */
#include "process.h"

/* ---- checking ------------------------------------------------------------ */

typedef struct Scanner {
    const char *s, *end;
    const char *why;     /* null: no damage so far */
    uint8_t *isobject;   /* stack: one bit for each open array or object */
    size_t depth, bytes; /* bits used and bytes allocated of isobject */
    uint8_t few[32];     /* isobject of shallow texts */
} Scanner;

static void scanner_open(Scanner *c, const char *s, const char *end)
{
    c->s = s;
    c->end = end;
    c->why = NULL;
    c->isobject = c->few;
    c->depth = 0;
    c->bytes = sizeof c->few;
}

static void scanner_close(const Scanner *c)
{
    if (c->isobject != c->few)
        free(c->isobject);
}

static int fail(Scanner *c, const char *why)
{
    c->why = c->s == c->end ? "the text ends too early" : why;
    return 0;
}

static void spaces(Scanner *c)
{
    while (c->s < c->end &&
           (*c->s == ' ' || *c->s == '\n' || *c->s == '\r' || *c->s == '\t'))
        c->s++;
}

static int at_char(const Scanner *c, char want)
{
    return c->s < c->end && *c->s == want;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

static int scan_escape(Scanner *c)
{
    c->s++;
    if (c->s == c->end || !*c->s || !strchr("\"\\/bfnrtu", *c->s))
        return fail(c, "an escape that JSON lacks");
    if (*c->s++ == 'u')
        for (int i = 0; i < 4; i++, c->s++)
            if (c->s == c->end || hex(*c->s) < 0)
                return fail(c, "\\u without four hexadecimal digits");
    return 1;
}

static int scan_string(Scanner *c)
{
    for (c->s++; c->s < c->end && *c->s != '"';)
        if (*c->s == '\\') {
            if (!scan_escape(c))
                return 0;
        } else if ((uint8_t)*c->s < ' ') {
            return fail(c, "a control character in a string");
        } else {
            c->s++;
        }
    if (c->s == c->end)
        return fail(c, "");
    c->s++;
    return 1;
}

static int scan_digits(Scanner *c)
{
    const char *from = c->s;

    while (c->s < c->end && *c->s >= '0' && *c->s <= '9')
        c->s++;
    return c->s > from ? 1 : fail(c, "a number without a digit");
}

static int scan_number(Scanner *c)
{
    c->s += *c->s == '-';
    if (at_char(c, '0'))
        c->s++;
    else if (!scan_digits(c))
        return 0;
    if (at_char(c, '.') && (c->s++, !scan_digits(c)))
        return 0;
    if (at_char(c, 'e') || at_char(c, 'E')) {
        c->s++;
        c->s += at_char(c, '+') || at_char(c, '-');
        return scan_digits(c);
    }
    return 1;
}

/* Checks a string, a number or a word. */
static int scan_atom(Scanner *c)
{
    static const char *const words[] = { "null", "true",     "false",
                                         "NaN",  "Infinity", "-Infinity" };
    size_t left = (size_t)(c->end - c->s);

    if (at_char(c, '"'))
        return scan_string(c);
    for (int i = 0; i < countof(words); i++) {
        size_t n = strlen(words[i]);
        if (left && !strncmp(c->s, words[i], left < n ? left : n)) {
            c->s += left < n ? left : n;
            return left < n ? fail(c, "") : 1;
        }
    }
    if (left && *c->s && strchr("-0123456789", *c->s))
        return scan_number(c);
    return fail(c, "neither a value nor its end");
}

/* Enters an array or object. */
static int descend(Scanner *c)
{
    uint8_t bit = (uint8_t)(1 << c->depth % 8);

    if (c->depth / 8 == c->bytes) {
        int own = c->isobject != c->few;
        uint8_t *p = realloc(own ? c->isobject : NULL, 2 * c->bytes);
        if (!p)
            return fail(c, "too deep for this machine's memory");
        if (!own)
            memcpy(p, c->few, sizeof c->few);
        c->isobject = p;
        c->bytes *= 2;
    }
    if (*c->s++ == '{')
        c->isobject[c->depth / 8] |= bit;
    else
        c->isobject[c->depth / 8] &= (uint8_t)~bit;
    c->depth++;
    return 1;
}

static int in_object(const Scanner *c)
{
    size_t top = c->depth - 1;

    return c->isobject[top / 8] >> top % 8 & 1;
}

/* Checks a member's key and colon. */
static int scan_key(Scanner *c)
{
    if (!at_char(c, '"'))
        return fail(c, "no key where one must stand");
    if (!scan_string(c))
        return 0;
    spaces(c);
    if (!at_char(c, ':'))
        return fail(c, "no colon after a key");
    c->s++;
    spaces(c);
    return 1;
}

/* Checks the value after spaces. Returns 0 if it is damaged. */
static int scan_value(Scanner *c)
{
    for (;;) {
        spaces(c);
        int opens = at_char(c, '{') || at_char(c, '[');
        if (opens ? !descend(c) : !scan_atom(c))
            return 0;
        for (spaces(c); c->depth; spaces(c)) {
            if (at_char(c, in_object(c) ? '}' : ']')) {
                c->s++;
                c->depth--;
                opens = 0;
                continue;
            }
            if (!opens && !at_char(c, ','))
                return fail(c, "no comma between two values");
            c->s += !opens;
            spaces(c);
            if (in_object(c) && !scan_key(c))
                return 0;
            break;
        }
        if (!c->depth)
            return 1;
    }
}

static int damaged(const Scanner *c, const char *s, JsonError *e)
{
    *e = (JsonError){ .why = c->why, .at = (size_t)(c->s - s), .line = 1 };
    for (const char *p = s; p < c->s; p++)
        if (*p == '\n') {
            e->line++;
            s = p + 1;
        }
    e->column = c->s - s + 1;
    return -1;
}

/* Returns the value that begins here, without trailing spaces. */
static JsonValue take_value(Scanner *c)
{
    const char *from = c->s;

    if (!scan_value(c))
        return (JsonValue){ 0 };
    size_t n = (size_t)(c->s - from);
    while (strchr(" \n\r\t", from[n - 1]))
        n--;
    return (JsonValue){ from, n };
}

int jv_open(const char *s, size_t n, JsonValue *v, JsonError *e)
{
    Scanner c;
    int mark = n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3);

    scanner_open(&c, s + (mark ? 3 : 0), s + n);
    spaces(&c);
    *v = take_value(&c);
    if (v->s && c.s < c.end)
        fail(&c, "more than one value");
    scanner_close(&c);
    if (!c.why)
        return 0;
    *v = (JsonValue){ 0 };
    return damaged(&c, s, e);
}

int jv_load(Arena *a, const char *path, JsonValue *v, JsonError *e)
{
    size_t n = 0;
    char *s = file_read(a, path, &n);

    *v = (JsonValue){ 0 };
    if (!s && errno == ENOENT)
        return 0;
    *e = (JsonError){ .why = s ? NULL : intern(file_why()) };
    return s ? jv_open(s, n, v, e) : -1;
}

/* ---- members ------------------------------------------------------------- */

JsonKind jv_kind(JsonValue v)
{
    switch (v.s ? *v.s : 0) {
    case 0: return JSONnone;
    case 'n': return JSONnull;
    case 'f': return JSONfalse;
    case 't': return JSONtrue;
    case '"': return JSONstring;
    case '[': return JSONarray;
    case '{': return JSONobject;
    default: return JSONnumber;
    }
}

int jv_next(JsonValue in, size_t *at, JsonValue *key, JsonValue *v)
{
    int object = jv_kind(in) == JSONobject;
    Scanner c;

    *key = *v = (JsonValue){ 0 };
    if (!object && jv_kind(in) != JSONarray)
        return 0;
    scanner_open(&c, in.s + (*at ? *at : 1), in.s + in.n);
    spaces(&c);
    c.s += at_char(&c, ',');
    spaces(&c);
    if (c.s + 1 == c.end)
        return 0;
    if (object) {
        key->s = c.s;
        scan_string(&c);
        key->n = (size_t)(c.s - key->s);
        spaces(&c);
        c.s++; /* the colon */
        spaces(&c);
    }
    *v = take_value(&c);
    scanner_close(&c);
    *at = (size_t)(v->s - in.s) + v->n;
    return 1;
}

int64_t jv_count(JsonValue in)
{
    JsonValue key, v;
    int64_t n = 0;

    for (size_t at = 0; jv_next(in, &at, &key, &v);)
        n++;
    return n;
}

void jv_fields(JsonValue in, const char *const *key, int nkey, JsonValue *v)
{
    JsonValue name, x;

    memset(v, 0, (size_t)nkey * sizeof *v);
    if (jv_kind(in) != JSONobject)
        return;
    for (size_t at = 0; jv_next(in, &at, &name, &x);)
        for (int i = 0; i < nkey; i++)
            if (jv_is(name, key[i]))
                v[i] = x;
}

JsonValue jv_get(JsonValue in, const char *key)
{
    JsonValue v;

    jv_fields(in, &key, 1, &v);
    return v;
}

/* ---- strings ------------------------------------------------------------- */

static uint32_t four_digits(const char *s)
{
    return (uint32_t)(hex(s[0]) << 12 | hex(s[1]) << 8 | hex(s[2]) << 4 |
                      hex(s[3]));
}

static size_t put_utf8(uint32_t c, char *to)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t head[] = { 0, 0, 0xc0, 0xe0, 0xf0 };

    for (size_t i = n; --i; c >>= 6)
        to[i] = (char)(0x80 | (c & 0x3f));
    *to = (char)(head[n] | c);
    return n;
}

/* Returns the code point of an escape; *s is after "\u" and moves past the
 * digits, and past a surrogate's other half. */
static uint32_t escaped(const char **s, const char *end)
{
    uint32_t c = four_digits(*s), low;

    *s += 4;
    if (c < 0xd800 || c > 0xdfff)
        return c;
    if (c > 0xdbff || end - *s < 6 || memcmp(*s, "\\u", 2))
        return 0xfffd;
    low = four_digits(*s + 2);
    if (low < 0xdc00 || low > 0xdfff)
        return 0xfffd;
    *s += 6;
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

/* Writes the next byte, or an escape's character in UTF-8, to `to`. Returns 1
 * to 4 bytes. */
static size_t next_bytes(const char **s, const char *end, char *to)
{
    static const char from[] = "bfnrt", is[] = "\b\f\n\r\t";

    *to = *(*s)++;
    if (*to != '\\')
        return 1;
    *to = *(*s)++;
    if (*to == 'u')
        return put_utf8(escaped(s, end), to);
    const char *p = strchr(from, *to);
    if (p)
        *to = is[p - from];
    return 1;
}

static size_t decode(JsonValue v, char *to)
{
    const char *end = v.s + v.n - 1, *start = to;

    for (const char *s = v.s + 1; s < end;) {
        const char *escape = memchr(s, '\\', (size_t)(end - s));
        size_t plain = (size_t)((escape ? escape : end) - s);
        memcpy(to, s, plain);
        s += plain;
        to += plain;
        if (s < end)
            to += next_bytes(&s, end, to);
    }
    return (size_t)(to - start);
}

const char *jv_decode(JsonValue v, char *to, size_t *n)
{
    *n = 0;
    if (jv_kind(v) != JSONstring)
        return "is no text";
    if (utf8_bad(v.s, v.n) >= 0)
        return "is no valid UTF-8";
    *n = decode(v, to);
    return NULL;
}

char *jv_text(Arena *a, JsonValue v, size_t *n)
{
    size_t len;

    if (jv_kind(v) != JSONstring)
        return NULL;
    char *s = alloc(a, v.n);
    if (jv_decode(v, s, &len) || (!n && memchr(s, 0, len)))
        return NULL;
    s[len] = 0;
    if (n)
        *n = len;
    return s;
}

int jv_is(JsonValue v, const char *text)
{
    size_t len = strlen(text);
    char to[4];

    if (jv_kind(v) != JSONstring)
        return 0;
    const char *s = v.s + 1, *end = v.s + v.n - 1;
    while (s < end) {
        size_t n = next_bytes(&s, end, to);
        if (n > len || memcmp(to, text, n))
            return 0;
        text += n;
        len -= n;
    }
    return !len;
}

/* ---- numbers ------------------------------------------------------------- */

double jv_real(JsonValue v)
{
    JsonKind kind = jv_kind(v);
    char few[64], *s = few;

    if (kind == JSONtrue || kind == JSONfalse)
        return kind == JSONtrue;
    if (kind != JSONnumber || *v.s == 'N')
        return (double)NAN;
    if (v.n >= sizeof few && !(s = malloc(v.n + 1)))
        return (double)NAN;
    memcpy(s, v.s, v.n);
    s[v.n] = 0;
    double x = strtod(s, NULL);
    if (s != few)
        free(s);
    return x;
}

int jv_int(JsonValue v, int64_t *x)
{
    double real = jv_kind(v) == JSONnumber ? jv_real(v) : (double)NAN;
    char s[32] = { 0 };

    if (real != rint(real) || fabs(real) > 0x1p63)
        return 0;
    if (v.n < sizeof s)
        memcpy(s, v.s, v.n);
    if (*s && !s[strspn(s, "-0123456789")]) { /* a real has 53 bits */
        errno = 0;
        *x = strtoll(s, NULL, 10);
        return !errno;
    }
    *x = real < 0x1p63 ? (int64_t)real : 0;
    return real < 0x1p63;
}

/* ---- equality ------------------------------------------------------------ */

static int same_text(Arena *a, JsonValue x, JsonValue y)
{
    char *s = alloc(a, x.n), *t = alloc(a, y.n);
    size_t n = decode(x, s), m = decode(y, t);

    return n == m && !memcmp(s, t, n);
}

/* Returns the value of this key; JSONnone: there is none. */
static JsonValue member(Arena *a, JsonValue in, JsonValue key)
{
    JsonValue name, v, found = { 0 };

    for (size_t at = 0; jv_next(in, &at, &name, &v);)
        if (same_text(a, name, key))
            found = v;
    return found;
}

static int same_members(Arena *a, JsonValue x, JsonValue y)
{
    JsonValue key, v, other, none;
    size_t at = 0, there = 0;

    while (jv_next(x, &at, &key, &v)) {
        if (key.s)
            other = member(a, y, key);
        else
            jv_next(y, &there, &none, &other);
        if (!jv_same(a, v, other))
            return 0;
    }
    return jv_count(x) == jv_count(y);
}

int jv_same(Arena *a, JsonValue x, JsonValue y)
{
    JsonKind kind = jv_kind(x);

    if (kind != jv_kind(y))
        return 0;
    if (kind == JSONnumber)
        return jv_real(x) == jv_real(y);
    if (kind == JSONstring)
        return same_text(a, x, y);
    return same_members(a, x, y);
}

/* ---- changing an object -------------------------------------------------- */

JsonMember *jv_members(Arena *a, JsonValue object)
{
    JsonMember m, *v = NULL;

    for (size_t at = 0; jv_next(object, &at, &m.key, &m.value);)
        vec_push(a, v, m);
    return v;
}

static JsonValue literal(const char *s)
{
    return (JsonValue){ s, strlen(s) };
}

JsonValue jv_string(Arena *a, const char *text)
{
    Text out = { .arena = a };

    put_json(&out, text);
    return literal(out.s);
}

JsonValue jv_member(const JsonMember *members, const char *key)
{
    JsonValue v = { 0 };

    for (size_t i = 0; i < vec_len(members); i++)
        v = jv_is(members[i].key, key) ? members[i].value : v;
    return v;
}

void jv_set(Arena *a, JsonMember **members, const char *key, JsonValue value)
{
    JsonMember m = { jv_string(a, key), value };
    int found = 0;

    for (size_t i = 0; i < vec_len(*members); i++)
        if (jv_is((*members)[i].key, key)) {
            (*members)[i].value = value;
            found = 1;
        }
    if (!found)
        vec_push(a, *members, m);
}

JsonValue jv_object(Arena *a, const JsonMember *members, int indent)
{
    Text out = { .arena = a };
    int n = 0;

    put(&out, "{");
    for (size_t i = 0; i < vec_len(members); i++)
        if (members[i].value.s)
            put(&out, "%s\n%*s%.*s: %.*s", n++ ? "," : "", indent + 2, "",
                (int)members[i].key.n, members[i].key.s,
                (int)members[i].value.n, members[i].value.s);
    put(&out, "%s%*s}", n ? "\n" : "", n ? indent : 0, "");
    return literal(out.s);
}
