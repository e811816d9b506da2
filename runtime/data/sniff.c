/* sniff.c: detects the kind of a file by its first bytes, never by its name:
 * magic numbers first, then text or JSON. Tokens without a header have no magic
 * number; the vocabulary determines their width if only one is possible. */
#include <ctype.h>

#include "../../ir/settings/keys.h"
#include "data.h"

enum { SAMPLE = 1 << 16 };
enum { LOOK = 1 << 24 }; /* limit of compared tokens */

/* ---- marks --------------------------------------------------------------- */

/* Magic number of a format, or of a kind of file that is refused. */
typedef struct FileMark {
    const char *bytes;
    size_t n, at;
    int format;             /* FORMATauto: refused */
    const char *name, *way; /* way: remedy in the message; null: none */
} FileMark;

#define MARK(bytes) bytes, sizeof bytes - 1

/* clang-format off */
static const char unpack_it[] = "unpack it first", save_npy[] = "numpy.save writes an array as .npy, which is read";
static const FileMark marks[] = {
    { MARK("\x93NUMPY"), 0, FORMATnpy, "a .npy file", NULL },
    { MARK("PAR1"), 0, FORMATparquet, "a .parquet file", NULL },
    { MARK("PARE"), 0, FORMATparquet, "a .parquet file", NULL },
    { MARK("ARROW1\0\0"), 0, FORMATarrow, "an Arrow file", NULL },
    { MARK("\x88\xd8\x34\x01"), 0, FORMATllmc, "an llm.c file", NULL },
    { MARK("\xa1\xd9\x34\x01"), 0, FORMATllmc, "an llm.c file", NULL },
    { MARK("\x8a\xd8\x34\x01"), 0, FORMATllmc, "an llm.c file", NULL },
    { MARK("MMIDIDX\0\0"), 0, FORMATauto, "a Megatron index", "the .bin beside it holds the tokens" },
    { MARK("PK\3\4"), 0, FORMATauto, "a zip archive (as .npz is)", "unzip it first; numpy.save writes an array as .npy" },
    { MARK("PK\5\6"), 0, FORMATauto, "an empty zip archive", NULL },
    { MARK("ustar"), 257, FORMATauto, "a tar archive", unpack_it },
    { MARK("7z\xbc\xaf\x27\x1c"), 0, FORMATauto, "a 7z archive", unpack_it },
    { MARK("Rar!\x1a\7"), 0, FORMATauto, "a rar archive", unpack_it },
    { MARK("\x04\x22\x4d\x18"), 0, FORMATauto, "compressed by lz4", unpack_it },
    { MARK("LZIP"), 0, FORMATauto, "compressed by lzip", unpack_it },
    { MARK("\x5d\0\0\x80\0\xff\xff"), 0, FORMATauto, "compressed as .lzma", unpack_it },
    { MARK("\x1f\x9d\x90"), 0, FORMATauto, "compressed as .Z", unpack_it },
    { MARK("\x80\2\x8a\x0a"), 0, FORMATauto, "a file of torch.save", save_npy },
    { MARK("\x80\4\x95"), 0, FORMATauto, "a pickle of Python", save_npy },
    { MARK("\x80\5\x95"), 0, FORMATauto, "a pickle of Python", save_npy },
    { MARK("\x89HDF\r\n\x1a\n"), 0, FORMATauto, "an HDF5 file", save_npy },
    { MARK("\0\0\0\0{\""), 4, FORMATauto, "a safetensors file", save_npy },
    { MARK("\xff\xfe\0\0"), 0, FORMATauto, "a text in UTF-32", "save it as UTF-8" },
    { MARK("GGUF"), 0, FORMATauto, "a GGUF file", NULL },
    { MARK("ORC"), 0, FORMATauto, "an ORC file", ".parquet is read" },
    { MARK("Obj\1"), 0, FORMATauto, "an Avro file", ".parquet is read" },
    { MARK("FEA1"), 0, FORMATauto, "a Feather file of version 1", ".parquet is read" },
    { MARK("SQLite format 3\0"), 0, FORMATauto, "an SQLite database", NULL },
    { MARK("\x7f" "ELF"), 0, FORMATauto, "a program", NULL },
    { MARK("%PDF-"), 0, FORMATauto, "a PDF document", NULL },
    { MARK("version https://git-lfs"), 0, FORMATauto, "a pointer of Git LFS", "git lfs pull fetches the file" },
    { MARK("\x89PNG"), 0, FORMATauto, "a PNG image", NULL },
    { MARK("\xff\xd8\xff"), 0, FORMATauto, "a JPEG image", NULL },
};
/* clang-format on */

/* Returns the mark of a file; null: none. A text may begin with a mark of
 * letters. */
static const FileMark *mark_of(const uint8_t *s, size_t n, int istext)
{
    for (int i = 0; i < countof(marks); i++)
        if (n >= marks[i].at + marks[i].n &&
            !memcmp(s + marks[i].at, marks[i].bytes, marks[i].n) &&
            (!istext || (!marks[i].at && marks[i].n > 4)))
            return &marks[i];
    return NULL;
}

/* Does a message of Arrow's stream begin: its mark, and a length within the
 * file? */
static int opens_arrow(const uint8_t *s, size_t n, int64_t size)
{
    int64_t head = n >= 16 ? (int32_t)u32_at(s + 4) : 0;

    return head > 0 && head % 8 == 0 && head <= size - 8 &&
           u32_at(s) == UINT32_MAX && u32_at(s + 8) < head;
}

/* ---- texts --------------------------------------------------------------- */

/* Is it UTF-8 without NUL, or another encoding without control characters? */
static int is_text(const char *s, size_t n, int cut)
{
    int64_t bad = utf8_bad(s, n);
    int valid = bad < 0 || (cut && (size_t)bad + 4 > n);

    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        if (!c || (!valid &&
                   (c == 127 || (c < ' ' && !strchr("\t\n\v\f\r\b\x1b", c)))))
            return 0;
    }
    return 1;
}

static size_t spaces(const char *s, size_t n, size_t at)
{
    while (at < n && s[at] && strchr(" \t\r\n", s[at]))
        at++;
    return at;
}

/* Is it an object with a key and its colon, an empty one, or an array of
 * objects or strings? An incomplete text may continue as one. */
static int is_json(const char *s, size_t n)
{
    size_t at = spaces(s, n, 0);
    int array = at < n && s[at] == '[';
    JsonValue v;
    JsonError e;

    at = array ? spaces(s, n, at + 1) : at;
    int object = at < n && s[at] == '{';
    if (object)
        at = spaces(s, n, at + 1);
    if (at == n || s[at] == (object ? '}' : ']'))
        return array || object;
    if (array && strchr("[-0123456789", s[at]))
        return !jv_open(s, n, &v, &e) || e.at == n;
    if (s[at] != '"' || (!object && !array))
        return 0;
    if (!jv_open(s + at, n - at, &v, &e)) /* a complete string */
        return 1;
    at += e.at; /* after the string */
    return at == n || (object ? s[at] == ':' : strchr(",]", s[at]) != NULL);
}

/* Do the first records have two columns or more, equally many each, below short
 * names without leading blanks? Separators and line ends inside quotes do not
 * count; the last record may be incomplete. */
static int is_table(const char *s, size_t n, char separator)
{
    enum { RECORDS = 20, FEWEST = 3 };
    int64_t columns = 0, here = 0, records = 0;
    int quoted = 0;

    for (size_t i = 0; i < n && records < RECORDS; i++) {
        char before = i ? s[i - 1] : separator, c = s[i];
        int edge = c == separator || c == '\n';
        if (!records &&
            ((before == separator && (edge || c == ' ')) ||
             !(edge || isalnum((uint8_t)c) || strchr("_-. /\"\r", c))))
            return 0;
        quoted ^= c == '"';
        here += !quoted && c == separator;
        if (quoted || (c != '\n' && i + 1 < n))
            continue;
        columns = records++ ? columns : here;
        if (!columns || here != columns)
            return columns && i + 1 == n && records > FEWEST;
        here = 0;
    }
    return records >= FEWEST;
}

/* Finds the format of a text; data.format decides if it may be a table. */
static const char *text_format(Arena *a, const char *s, size_t n, int *format)
{
    int comma = is_table(s, n, ',');

    const char *line = memchr(s, '\n', n);
    size_t left = line ? n - (size_t)(line + 1 - s) : 0;
    int json = is_json(s, n) || /* reading reports a broken first row */
               (left > 1 && line[1] == '{' && is_json(line + 1, left)) ||
               (n > 1 && !memcmp(s, "{'", 2));
    *format = json ? FORMATjsonl : FORMATtext;
    if (*format == FORMATtext && (comma || is_table(s, n, '\t')))
        return strf(a,
                    "may be a table: data.format=%s takes its column "
                    "data.field, data.format=text takes it as it is",
                    comma ? "csv" : "tsv");
    return NULL;
}

/* ---- tokens without a header --------------------------------------------- */

static int all_below(const Tokens *tokens, int64_t bytes, int64_t vocab)
{
    int64_t n = tokens->size / bytes;

    for (int64_t i = 0; i < n && i < LOOK; i++) {
        const uint8_t *p = tokens->map + i * bytes;
        if ((bytes == 2 ? p[0] | p[1] << 8 : (int64_t)u32_at(p)) >= vocab)
            return 0;
    }
    return tokens->size % bytes == 0;
}

/* Are the first 16-bit numbers only letters, digits, punctuation and blanks? */
static int all_ascii(const Tokens *tokens)
{
    for (int64_t i = 0; i < tokens->size / 2 && i < SAMPLE; i++) {
        int c = tokens->map[2 * i];
        if (tokens->map[2 * i + 1] || !(isprint(c) || isspace(c)))
            return 0;
    }
    return 1;
}

static const char *raw_format(Arena *a, Tokens *tokens, int64_t vocab)
{
    if (vocab <= 0)
        return "is no text, and nothing in it says what it is "
               "(data.format=uint16 or uint32 reads it as tokens, bytes as "
               "bytes)";
    int narrow = vocab <= UINT16_MAX + 1 && all_below(tokens, 2, vocab);
    int wide = all_below(tokens, 4, vocab);
    if (narrow && wide)
        return "may hold tokens of 16 or of 32 bits (data.format=uint16 or "
               "uint32 says which)";
    if (!narrow && !wide)
        return strf(a,
                    "is no text, and no tokens of 16 or 32 bits below the "
                    "vocabulary of %ld (data.format=uint16, uint32 or bytes "
                    "reads it all the same)",
                    vocab);
    if (narrow && vocab > UINT8_MAX + 1 && all_ascii(tokens))
        return "seems to be a text in UTF-16 without a byte order mark "
               "(data.format=uint16 reads it as tokens)";
    tokens->format = narrow ? FORMATuint16 : FORMATuint32;
    return NULL;
}

/* ---- a file -------------------------------------------------------------- */

/* Decompresses the beginning of a file to s; *n: its bytes. */
static const char *unpacked(Arena *a, const Tokens *tokens, char *s, size_t *n)
{
    TextStream *in;
    const char *why = stream_open(a, &in, tokens->path);
    size_t k;

    for (*n = 0;
         !why && *n < SAMPLE && (k = stream_raw(in, s + *n, SAMPLE - *n));)
        *n += k;
    const char *broken = stream_close(in);
    return why ? why : *n ? NULL : broken;
}

static const char *refuse(Arena *a, const FileMark *mark, const char *packed)
{
    return strf(a, "is %s%s%s%s%s", mark->name, packed ? " inside " : "",
                packed ? packed : "",
                packed || mark->way ? ": " : ", which is not read",
                packed      ? "unpack it first"
                : mark->way ? mark->way
                            : "");
}

/* Converts UTF-16 with a byte order mark to UTF-8. */
static const char *decoded(Arena *a, const Tokens *tokens, Bytes *s)
{
    TextStream *in;
    const char *why = stream_open(a, &in, tokens->path);

    if (!why)
        stream_read(in, s);
    const char *broken = stream_close(in);
    return why ? why : broken;
}

const char *sniff(Arena *a, Tokens *tokens, int64_t vocab)
{
    size_t n = tokens->size < SAMPLE ? (size_t)tokens->size : SAMPLE;
    const char *s = (const char *)tokens->map, *why;
    Bytes text = { 0 };

    tokens->packed = packed_by(tokens->map, n);
    if (tokens->packed) {
        char *room = alloc(a, SAMPLE);
        why = unpacked(a, tokens, room, &n);
        s = room;
        if (why)
            return why;
        if (packed_by((const uint8_t *)s, n))
            return "is compressed twice: unpack it first";
    }
    const uint8_t *u = (const uint8_t *)s;
    int istext = is_text(s, n, n == SAMPLE);
    const FileMark *mark = mark_of(u, n, istext);
    tokens->foreign = mark && mark->format == FORMATauto;
    if (tokens->foreign || (mark && tokens->packed))
        return refuse(a, mark, tokens->packed);
    if (mark) {
        tokens->format = mark->format;
        return NULL;
    }
    if (!tokens->packed && opens_arrow(u, n, tokens->size)) {
        tokens->format = FORMATarrow;
        return NULL;
    }
    if (!tokens->packed && indexed_path(a, tokens->path, tokens->size)) {
        tokens->format = FORMATmegatron;
        return NULL;
    }
    if (text_coded(u, n) && !decoded(a, tokens, &text) && text.n &&
        is_text(text.s, text.n, 1)) {
        s = text.s;
        n = text.n;
        istext = 1;
    }
    if (istext)
        why = text_format(a, s, n, &tokens->format);
    else if (tokens->packed)
        why = strf(a, "is no text inside %s: unpack it first", tokens->packed);
    else
        why = raw_format(a, tokens, vocab);
    free(text.s);
    return why;
}
