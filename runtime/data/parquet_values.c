/* parquet_values.c: decodes a page of a Parquet column of texts
 * (parquet-format's Encodings.md). Every length is checked against the page
 * before it is used. */
#include "data.h"

/* Limit of the values of a delta-encoded page, whose lengths are i32. */
enum { MOSTDELTAS = 1 << 26 };

/* ---- numbers ------------------------------------------------------------- */

/* Reads a LEB128 number; beyond the page it is 0 and *at becomes the end. */
uint64_t varint_take(const uint8_t **at, const uint8_t *end)
{
    uint64_t v = 0;

    for (int shift = 0; *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        v |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (byte < 0x80)
            return v;
    }
    return 0;
}

int64_t zigzag_take(const uint8_t **at, const uint8_t *end)
{
    uint64_t v = varint_take(at, end);

    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

/* Returns up to 32 bits from the given bit on, the lowest first; 0 beyond the
 * end. */
static uint32_t bits_at(const uint8_t *p, const uint8_t *end, int64_t bit,
                        int width)
{
    uint64_t v = 0;

    p += bit / 8;
    for (int i = 0; 8 * i < width + bit % 8 && i < end - p; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return (uint32_t)(v >> bit % 8 & ((1ull << width) - 1));
}

/* ---- runs of equal and of packed numbers --------------------------------- */

void runs_open(BitRuns *runs, const uint8_t *s, const uint8_t *end, int width)
{
    *runs = (BitRuns){ .at = s, .end = end, .width = width };
}

/* Reads the head of a run. Returns 0 if the page ends or the run is empty. */
static int next_run(BitRuns *runs)
{
    uint64_t head = varint_take(&runs->at, runs->end);
    int64_t room = runs->end - runs->at, bytes = (runs->width + 7) / 8;

    runs->left = (int64_t)(head >> 1 & INT32_MAX);
    runs->bits = head & 1 ? runs->at : NULL;
    runs->bit = 0;
    if (!runs->bits) {
        runs->value = bits_at(runs->at, runs->end, 0, runs->width);
        runs->at += bytes < room ? bytes : room;
        return runs->left > 0 && bytes <= room;
    }
    bytes = runs->left * runs->width; /* left counts groups of 8 numbers */
    bytes = bytes < room ? bytes : room;
    runs->left = runs->width ? 8 * bytes / runs->width : 8 * runs->left;
    runs->at += bytes;
    return runs->left > 0;
}

int runs_next(BitRuns *runs, uint32_t *v)
{
    if (!runs->left && !next_run(runs))
        return 0;
    runs->left--;
    *v = runs->bits ? bits_at(runs->bits, runs->end, runs->bit, runs->width)
                    : runs->value;
    runs->bit += runs->width;
    return 1;
}

/* ---- differences --------------------------------------------------------- */

/* Decodes DELTA_BINARY_PACKED to *n numbers, malloc'd. Returns the place after
 * them; null: damaged. */
static const uint8_t *deltas_take(const uint8_t *at, const uint8_t *end,
                                  int64_t most, int32_t **out, int64_t *n)
{
    uint64_t block = varint_take(&at, end), minis = varint_take(&at, end);
    uint64_t count = varint_take(&at, end);
    uint32_t v = (uint32_t)zigzag_take(&at, end);

    if (!minis || minis > 512 || block > 1 << 20 || block % (8 * minis) ||
        !block || count > (uint64_t)most || count > MOSTDELTAS)
        return NULL;
    int64_t per = (int64_t)(block / minis), i = 0;
    *n = (int64_t)count;
    *out = enlarge(NULL, count * sizeof **out + 1);
    if (count)
        (*out)[i++] = (int32_t)v;
    while (i < *n) {
        uint32_t least = (uint32_t)zigzag_take(&at, end);
        const uint8_t *width = at;
        if ((int64_t)minis > end - at)
            return NULL;
        at += minis;
        for (uint64_t m = 0; m < minis && i < *n; m++) {
            int64_t bytes = per * width[m] / 8;
            if (width[m] > 32 || bytes > end - at)
                return NULL;
            for (int64_t k = 0; k < per && i < *n; k++) {
                v += least + bits_at(at, end, k * width[m], width[m]);
                (*out)[i++] = (int32_t)v;
            }
            at += bytes;
        }
    }
    return at;
}

/* ---- texts --------------------------------------------------------------- */

/* Reads a text after its length. Returns 0 if it is damaged. */
int plain_take(const uint8_t **at, const uint8_t *end, PageText *text)
{
    if (end - *at < 4 || (text->n = u32_at(*at)) > end - *at - 4)
        return 0;
    text->s = (const char *)*at + 4;
    *at += 4 + text->n;
    return 1;
}

const char *values_open(PageValues *values, int encoding, const uint8_t *s,
                        const uint8_t *end, int64_t most)
{
    int64_t n = most;

    values->encoding = encoding;
    values->at = s;
    values->end = end;
    values->i = values->n = 0;
    free(values->length);
    free(values->prefix);
    values->length = values->prefix = NULL;
    if (s == end) /* only nulls */
        values->encoding = encoding = ENCODINGplain;
    switch (encoding) {
    case ENCODINGplain: return NULL;
    case ENCODINGplain_dictionary:
    case ENCODINGdictionary:
        runs_open(&values->codes, s + 1, end, *s);
        return *s > 32 ? "is damaged" : NULL;
    case ENCODINGdelta_texts:
        values->at = deltas_take(s, end, most, &values->prefix, &n);
        values->last.n = 0;
        if (!values->at)
            return "is damaged";
        /* fall through */
    case ENCODINGdelta_lengths:
        values->at =
            deltas_take(values->at, end, n, &values->length, &values->n);
        return !values->at || (values->prefix && n != values->n) ? "is damaged"
                                                                 : NULL;
    default: return "has a page of an encoding that is not read";
    }
}

/* Reads the next text of a delta encoding, which may share a prefix with the
 * text before. */
static int delta_take(PageValues *values, PageText *text)
{
    int64_t i = values->i++;
    Bytes *last = &values->last;

    if (i >= values->n || values->length[i] < 0 ||
        values->length[i] > values->end - values->at)
        return 0;
    *text = (PageText){ (const char *)values->at, values->length[i] };
    values->at += text->n;
    if (!values->prefix)
        return 1;
    if (values->prefix[i] < 0 || (size_t)values->prefix[i] > last->n)
        return 0;
    last->n = (size_t)values->prefix[i];
    bytes_add(last, text->s, (size_t)text->n);
    *text = (PageText){ last->s ? last->s : "", (int64_t)last->n };
    return 1;
}

int values_next(PageValues *values, PageText *text)
{
    uint32_t code;

    if (values->length)
        return delta_take(values, text);
    if (values->encoding == ENCODINGplain)
        return plain_take(&values->at, values->end, text);
    if (!runs_next(&values->codes, &code) || code >= values->ndictionary)
        return 0;
    *text = values->dictionary[code];
    return 1;
}

void values_close(PageValues *values)
{
    free(values->length);
    free(values->prefix);
    free(values->dictionary);
    free(values->last.s);
}
