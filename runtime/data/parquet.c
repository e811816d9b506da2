/* parquet.c: reads a column of texts of a .parquet file: row groups, pages and
 * their compression (parquet-format's parquet.thrift, in Thrift's compact
 * protocol). Nested columns are refused. Every offset is checked before it is
 * read. */
#include <zlib.h>

#include "data.h"

/* ---- Thrift -------------------------------------------------------------- */

enum { FIELDS = 16, DEEPEST = 64 };

enum { THRIFTtrue = 1, THRIFTfalse, THRIFTbyte, THRIFTi16, THRIFTi64 = 6 };
enum {
    THRIFTdouble = 7,
    THRIFTbinary,
    THRIFTlist,
    THRIFTset,
    THRIFTstruct = 12
};

typedef struct Thrift {
    const uint8_t *at, *end;
    int bad;
} Thrift;

/* Fields by number. v: an integer or a text's length, -1: absent; at: the place
 * of a text, list or struct. */
typedef struct ThriftFields {
    int64_t v[FIELDS];
    const uint8_t *at[FIELDS];
} ThriftFields;

static void skip_bytes(Thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->at)) {
        t->bad = 1;
        t->at = t->end;
    } else {
        t->at += n;
    }
}

static int64_t list_head(Thrift *t, int *type)
{
    int head = t->at < t->end ? *t->at : 0;

    skip_bytes(t, 1);
    *type = head & 15;
    return head >> 4 < 15 ? head >> 4
                          : (int64_t)(varint_take(&t->at, t->end) & INT32_MAX);
}

/* Reads the head of the next field of a struct. Returns 0 if there is none. */
static int field_head(Thrift *t, int64_t *id, int *type)
{
    int head = t->at < t->end ? *t->at : 0;

    skip_bytes(t, 1);
    *type = head & 15;
    *id = head >> 4 ? *id + (head >> 4)
          : head    ? (int16_t)zigzag_take(&t->at, t->end)
                    : 0;
    return !t->bad && head;
}

/* Skips a value. A map is damage: parquet.thrift has none. */
static void skip_value(Thrift *t, int type, int depth)
{
    int64_t id = 0, n;
    int kind;

    if (depth > DEEPEST || t->at == t->end)
        t->bad = 1;
    else if (type == THRIFTbyte || type == THRIFTdouble)
        skip_bytes(t, type == THRIFTbyte ? 1 : 8);
    else if (type >= THRIFTi16 && type <= THRIFTi64)
        varint_take(&t->at, t->end);
    else if (type == THRIFTbinary)
        skip_bytes(t, varint_take(&t->at, t->end));
    else if (type == THRIFTlist || type == THRIFTset)
        for (n = list_head(t, &kind); n > 0 && !t->bad; n--)
            skip_value(t, kind == THRIFTtrue ? THRIFTbyte : kind, depth + 1);
    else if (type == THRIFTstruct)
        while (field_head(t, &id, &kind))
            skip_value(t, kind, depth + 1);
    else if (type != THRIFTtrue && type != THRIFTfalse)
        t->bad = 1;
}

/* Reads a struct and moves t after it. */
static void take_struct(Thrift *t, ThriftFields *f)
{
    int64_t id = 0;
    int type;

    memset(f->v, -1, sizeof f->v);
    memset(f->at, 0, sizeof f->at);
    while (field_head(t, &id, &type)) {
        const uint8_t *at = t->at;
        skip_value(t, type, 0);
        if (id < 0 || id >= FIELDS || t->bad)
            continue;
        if (type <= THRIFTfalse)
            f->v[id] = type == THRIFTtrue;
        else if (type >= THRIFTi16 && type <= THRIFTi64)
            f->v[id] = zigzag_take(&at, t->end);
        else if (type == THRIFTbinary)
            f->v[id] = (int64_t)varint_take(&at, t->end);
        f->at[id] = at;
    }
}

/* Returns the list of structs in field i; null: its items have another type. */
static Thrift list_of(const Thrift *t, const ThriftFields *f, int i, int64_t *n)
{
    Thrift list = { f->at[i] ? f->at[i] : t->end, t->end, t->bad };
    int type;

    *n = list_head(&list, &type);
    if (list.bad || type != THRIFTstruct)
        *n = 0;
    return list;
}

/* ---- fields of parquet.thrift -------------------------------------------- */

enum { FILEschema = 2, FILEgroups = 4 };
enum { ELEMENTtype = 1, ELEMENTrepeats = 3, ELEMENTname, ELEMENTchildren };
enum { ELEMENTconverted = 6, TYPEbytes = 6, REPEATSoptional = 1, REPEATSmany };
enum { CONVERTEDdecimal = 5, CONVERTEDbson = 20 };
enum { GROUPcolumns = 1, CHUNKfile = 1, CHUNKmeta = 3 };
enum { METAcodec = 4, METAvalues, METAsize = 7, METAdata = 9, METAwords = 11 };
enum { PAGEtype = 1, PAGEbytes, PAGEpacked, PAGEv1 = 5, PAGEwords = 7, PAGEv2 };
enum { HEADvalues = 1, HEADencoding, HEADlevels };
enum { V2encoding = 4, V2levels, V2repeats, V2packed };
enum { PAGEisdata = 0, PAGEiswords = 2, PAGEisv2 = 3 };

struct ParquetRows {
    const uint8_t *map;
    int64_t size;
    Thrift groups; /* remaining row groups */
    int64_t ngroup;
    int64_t column, columns; /* index of the leaf, number of leaves */
    int optional;
    int64_t codec, left; /* codec of the chunk; its remaining values */
    const uint8_t *at, *end;
    int64_t page;         /* remaining values of the page */
    uint8_t *unpacked[2]; /* malloc'd: the page, the dictionary */
    BitRuns levels;
    PageValues values;
};

/* ---- compression --------------------------------------------------------- */

/* Decompresses Snappy (format_description.txt). Returns 0 if it is damaged. */
static int unsnap(const uint8_t *s, const uint8_t *end, uint8_t *to, int64_t n)
{
    uint8_t *start = to, *stop = to + n;

    if (varint_take(&s, end) != (uint64_t)n)
        return 0;
    while (s < end) {
        int tag = *s++, kind = tag & 3;
        int more = kind            ? (kind == 3 ? 4 : kind)
                   : tag >> 2 < 60 ? 0
                                   : (tag >> 2) - 59;
        int64_t len = (tag >> 2) + 1, back = 0;
        if (more > end - s)
            return 0;
        for (int i = 0; i < more; i++)
            back |= (int64_t)s[i] << 8 * i;
        s += more;
        if (kind == 1) {
            back |= (int64_t)(tag >> 5) << 8;
            len = (tag >> 2 & 7) + 4;
        }
        len = kind || !more ? len : back + 1;
        if (len > stop - to ||
            (kind ? !back || back > to - start : len > end - s))
            return 0;
        if (!kind)
            memcpy(to, s, (size_t)len);
        for (int64_t i = 0; kind && i < len; i++)
            to[i] = to[i - back];
        s += kind ? 0 : len;
        to += len;
    }
    return to == stop;
}

static int ungzip(const uint8_t *s, int64_t n, uint8_t *to, int64_t bytes)
{
    z_stream z = { .next_in = (uint8_t *)(uintptr_t)s,
                   .avail_in = (uInt)n,
                   .next_out = to,
                   .avail_out = (uInt)bytes };

    if (inflateInit2(&z, 15 + 32))
        return 0;
    int end = inflate(&z, Z_FINISH) == Z_STREAM_END;
    inflateEnd(&z);
    return end && !z.avail_out;
}

/* Decompresses n bytes to exactly `bytes`. Returns null, or the reason why
 * not. */
static const char *unpack(Arena *a, int64_t codec, const uint8_t *s, int64_t n,
                          uint8_t *to, int64_t bytes)
{
    enum { SNAPPY = 1, GZIP = 2, ZSTD = 6 };
    int ok;

    if (codec == ZSTD && !dl_open(LIBzstd))
        return dl_missing(a, LIBzstd);
    if (codec == SNAPPY)
        ok = unsnap(s, s + n, to, bytes);
    else if (codec == GZIP)
        ok = ungzip(s, n, to, bytes);
    else if (codec == ZSTD)
        ok = dl.ZSTD_decompress(to, (size_t)bytes, s, (size_t)n) ==
             (size_t)bytes;
    else
        return "is compressed by another codec than snappy, gzip and zstd, "
               "which is not read";
    return ok ? NULL : "is damaged";
}

/* ---- pages --------------------------------------------------------------- */

static const char *read_dictionary(ParquetRows *rows, const uint8_t *s,
                                   const uint8_t *end, int64_t n)
{
    PageValues *values = &rows->values;

    if (n < 0 || n > (end - s) / 4)
        return "is damaged";
    values->dictionary =
        enlarge(values->dictionary, (size_t)n * sizeof *values->dictionary + 1);
    values->ndictionary = 0;
    for (int64_t i = 0; i < n; i++)
        if (!plain_take(&s, end, &values->dictionary[i]))
            return "is damaged";
    values->ndictionary = (uint32_t)n;
    return NULL;
}

/* Reads a page's levels and values. A page of version 2 has the length of its
 * levels in the header, one of version 1 (nlevels -1) before the levels. */
static const char *read_data(ParquetRows *rows, const ThriftFields *head,
                             const uint8_t *levels, int64_t nlevels,
                             const uint8_t *s, const uint8_t *end)
{
    int v2 = nlevels >= 0;

    if (rows->optional && !v2) {
        if (end - s < 4 || (nlevels = u32_at(s)) > end - s - 4)
            return "is damaged";
        if (head->v[HEADlevels] != ENCODINGruns)
            return "has a page of an encoding that is not read";
        levels = s + 4;
        s += 4 + nlevels;
    }
    rows->page = head->v[HEADvalues];
    if (rows->page < 0 || rows->page > rows->left)
        return "is damaged";
    if (rows->optional)
        runs_open(&rows->levels, levels, levels + nlevels, 1);
    return values_open(&rows->values,
                       (int)head->v[v2 ? V2encoding : HEADencoding], s, end,
                       rows->page);
}

/* Decompresses the bytes of a page after its levels. */
static const char *unpack_page(Arena *a, ParquetRows *rows, int words,
                               const uint8_t **s, const uint8_t **end,
                               int64_t bytes)
{
    uint8_t **to = &rows->unpacked[words];

    *to = enlarge(*to, (size_t)bytes + 1);
    const char *why =
        bytes ? unpack(a, rows->codec, *s, *end - *s, *to, bytes) : NULL;
    *s = *to;
    *end = *to + bytes;
    return why;
}

static const char *next_page(Arena *a, ParquetRows *rows)
{
    Thrift t = { rows->at, rows->end, 0 };
    ThriftFields page, head;

    take_struct(&t, &page);
    int64_t bytes = page.v[PAGEbytes], n = page.v[PAGEpacked], levels = 0;
    int words = page.v[PAGEtype] == PAGEiswords;
    int v2 = page.v[PAGEtype] == PAGEisv2;
    const uint8_t *s = t.at, *end = rows->end;
    const uint8_t *at = page.at[words ? PAGEwords : v2 ? PAGEv2 : PAGEv1];
    /* Limit of the compression ratio of all codecs. */
    if (t.bad || n < 0 || n > end - s || bytes < 0 ||
        bytes > (64 << 20) + 1032 * n)
        return rows->at == end ? "is cut off" : "is damaged";
    rows->at = end = s + n;
    if (page.v[PAGEtype] != PAGEisdata && !v2 && !words)
        return NULL;
    Thrift h = { at ? at : t.end, t.end, 0 };
    take_struct(&h, &head);
    if (v2) {
        levels = head.v[V2levels];
        if (levels < 0 || head.v[V2repeats] != 0 || levels > n ||
            levels > bytes)
            return "is damaged";
    }
    const uint8_t *from = s + levels;
    const char *why = NULL;
    if (rows->codec && !(v2 && !head.v[V2packed]))
        why = unpack_page(a, rows, words, &from, &end, bytes - levels);
    if (why || h.bad)
        return why ? why : "is damaged";
    return words ? read_dictionary(rows, from, end, head.v[HEADvalues])
                 : read_data(rows, &head, s, v2 ? levels : -1, from, end);
}

/* ---- the file ------------------------------------------------------------ */

static const char *next_chunk(ParquetRows *rows)
{
    ThriftFields group, chunk, meta;
    int64_t n;

    take_struct(&rows->groups, &group);
    rows->ngroup--;
    Thrift t = list_of(&rows->groups, &group, GROUPcolumns, &n);
    if (n != rows->columns)
        return "is damaged";
    for (int64_t i = 0; i <= rows->column; i++)
        take_struct(&t, &chunk);
    if (chunk.at[CHUNKfile])
        return "has its data in other files, which is not read";
    Thrift m = { chunk.at[CHUNKmeta] ? chunk.at[CHUNKmeta] : t.end, t.end, 0 };
    take_struct(&m, &meta);
    int64_t words = meta.v[METAwords], at = meta.v[METAdata];
    int64_t size = meta.v[METAsize];
    at = words > 0 && words < at ? words : at;
    if (!t.bad && !m.bad && !at && !meta.v[METAvalues])
        return NULL; /* no rows, and no pages */
    if (t.bad || m.bad || at < 4 || size < 0 || at > rows->size ||
        size > rows->size - at || meta.v[METAvalues] < 0)
        return "is damaged";
    rows->codec = meta.v[METAcodec];
    rows->left = meta.v[METAvalues];
    rows->at = rows->map + at;
    rows->end = rows->at + size;
    rows->values.ndictionary = 0;
    return NULL;
}

static int is_name(const ThriftFields *element, const char *name)
{
    return element->at[ELEMENTname] &&
           element->v[ELEMENTname] == (int64_t)strlen(name) &&
           !memcmp(element->at[ELEMENTname], name, strlen(name));
}

/* Returns null if the column is flat and of texts, otherwise the reason. */
static const char *check_column(Arena *a, ParquetRows *rows,
                                const ThriftFields *e, const char *name)
{
    int64_t converted = e->v[ELEMENTconverted];

    if (e->v[ELEMENTchildren] > 0 || e->v[ELEMENTrepeats] == REPEATSmany)
        return strf(a,
                    "has a column \"%s\" that is nested (a list or a struct), "
                    "which is not read",
                    name);
    if (e->v[ELEMENTtype] != TYPEbytes || converted == CONVERTEDdecimal ||
        converted == CONVERTEDbson)
        return strf(a, "has a column \"%s\" that holds no texts", name);
    rows->optional = e->v[ELEMENTrepeats] == REPEATSoptional;
    return NULL;
}

/* Finds the column among the children of the root. */
static const char *read_schema(Arena *a, ParquetRows *rows, Thrift t, int64_t n,
                               const char *name)
{
    ThriftFields e;
    Text names = { .arena = a };
    const char *why = NULL;
    int64_t inside = 0; /* remaining elements of a nested column */

    rows->column = -1;
    for (int64_t i = 0; i < n && !t.bad; i++) {
        take_struct(&t, &e);
        int64_t children = e.v[ELEMENTchildren] > 0 ? e.v[ELEMENTchildren] : 0;
        if (i && !inside && rows->column < 0 && is_name(&e, name)) {
            why = check_column(a, rows, &e, name);
            rows->column = rows->columns;
        }
        if (i && !inside)
            name_add(&names, (const char *)e.at[ELEMENTname], e.v[ELEMENTname]);
        inside += i ? children - (inside > 0) : 0;
        rows->columns += i && !children;
    }
    if (t.bad || n < 1)
        return "is damaged";
    return rows->column < 0 ? no_column(a, name, &names) : why;
}

static const char *read_footer(Arena *a, ParquetRows *rows, const char *name)
{
    int64_t n, room = rows->size - 12;
    const uint8_t *tail = rows->map + rows->size - 8;
    ThriftFields file;

    if (room < 0 || memcmp(rows->map, "PAR1", 4))
        return "is no .parquet file";
    if (!memcmp(tail + 4, "PARE", 4))
        return "is encrypted, which is not read";
    if (memcmp(tail + 4, "PAR1", 4) || u32_at(tail) > room)
        return "is cut off";
    Thrift t = { tail - u32_at(tail), tail, 0 };
    take_struct(&t, &file);
    rows->groups = list_of(&t, &file, FILEgroups, &rows->ngroup);
    Thrift schema = list_of(&t, &file, FILEschema, &n);
    return t.bad ? "is damaged" : read_schema(a, rows, schema, n, name);
}

/* ---- interface ----------------------------------------------------------- */

const char *parquet_open(Arena *a, ParquetRows **out, const char *path,
                         const char *column)
{
    ParquetRows *rows = alloc(a, sizeof *rows);
    const char *why = map_whole(a, path, &rows->map, &rows->size);

    *out = rows;
    return why ? why : read_footer(a, rows, column);
}

const char *parquet_next(Arena *a, ParquetRows *rows, const char **why,
                         size_t *n)
{
    PageText text = { "", 0 };
    uint32_t there = 1;

    while (!*why && !rows->page) {
        if (!rows->left && !rows->ngroup)
            return NULL;
        *why = rows->left ? next_page(a, rows) : next_chunk(rows);
    }
    if (*why)
        return NULL;
    rows->page--;
    rows->left--;
    if ((rows->optional && !runs_next(&rows->levels, &there)) ||
        (there && !values_next(&rows->values, &text)))
        *why = "is damaged";
    *n = (size_t)text.n;
    return *why ? NULL : text.s;
}

void parquet_close(ParquetRows *rows)
{
    if (!rows)
        return;
    if (rows->map)
        munmap((void *)(uintptr_t)rows->map, (size_t)rows->size);
    values_close(&rows->values);
    for (int i = 0; i < 2; i++)
        free(rows->unpacked[i]);
}
