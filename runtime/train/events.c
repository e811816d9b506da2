/* events.c: writes numbers and texts of a run for TensorBoard: TFRecords of
 * length, CRC-32C of the length, Event, CRC of the Event
 * (tensorflow/core/lib/io/record_writer; event.proto, summary.proto,
 * tensor.proto). Nothing is allocated after opening; texts are cut at TEXT
 * bytes. */
#include <time.h>

#include "train.h"

enum { TEXT = 6000, RECORD = TEXT + 400 };

typedef struct EventRecord {
    size_t n;
    uint8_t p[RECORD];
} EventRecord; /* record under construction */

struct Events {
    int fd; /* -1: a write failed, nothing more is written */
    EventRecord in, value, summary, event, record;
};

/* ---- protocol buffers ---------------------------------------------------- */

enum { VARINT, EIGHT, LENGTH, FOUR = 5 }; /* wire types */

static void add(EventRecord *record, const void *p, size_t n)
{
    memcpy(record->p + record->n, p, n);
    record->n += n;
}

static void add_le(EventRecord *record, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        record->p[record->n++] = (uint8_t)(v >> 8 * i);
}

static void add_varint(EventRecord *record, uint64_t v)
{
    for (; v > 127; v >>= 7)
        record->p[record->n++] = (uint8_t)(v | 128);
    record->p[record->n++] = (uint8_t)v;
}

static void add_key(EventRecord *record, int field, int wire)
{
    add_varint(record, (uint64_t)(field << 3 | wire));
}

static void add_int(EventRecord *record, int field, int64_t v)
{
    add_key(record, field, VARINT);
    add_varint(record, (uint64_t)v);
}

static void add_bytes(EventRecord *record, int field, const void *p, size_t n)
{
    add_key(record, field, LENGTH);
    add_varint(record, n);
    add(record, p, n);
}

/* ---- records ------------------------------------------------------------- */

static uint32_t masked_crc(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;

    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    }
    c = ~c;
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static void begin(Events *events)
{
    struct timespec t;
    double now;
    uint64_t bits;

    clock_gettime(CLOCK_REALTIME, &t);
    now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    memcpy(&bits, &now, sizeof bits);
    events->in.n = events->value.n = events->summary.n = events->event.n =
        events->record.n = 0;
    add_key(&events->event, 1, EIGHT); /* wall_time */
    add_le(&events->event, bits, 8);
}

static void end(Events *events)
{
    EventRecord *record = &events->record;

    add_le(record, events->event.n, 8);
    add_le(record, masked_crc(record->p, 8), 4);
    add(record, events->event.p, events->event.n);
    add_le(record, masked_crc(events->event.p, events->event.n), 4);
    if (!file_put(events->fd, record->p, record->n))
        return;
    warn(NULL, "cannot write the events of TensorBoard: %s; they end here",
         strerror(errno));
    close(events->fd);
    events->fd = -1;
}

/* Ends a record: Event.step, Event.summary.value. */
static void end_value(Events *events, int64_t step)
{
    add_int(&events->event, 2, step);
    add_bytes(&events->summary, 1, events->value.p, events->value.n);
    add_bytes(&events->event, 5, events->summary.p, events->summary.n);
    end(events);
}

/* ---- interface ----------------------------------------------------------- */

enum { TAG = 100 };     /* bytes of the longest tag */
enum { BUCKETS = 256 }; /* most buckets of a histogram, 18 bytes each */

Events *events_open(Arena *a, int fd)
{
    static const char version[] = "brain.Event:2";
    Events *e = alloc(a, sizeof *e);

    e->fd = fd;
    begin(e);
    add_bytes(&e->event, 3, version, sizeof version - 1);
    end(e);
    return e;
}

void event_scalar(Events *events, int64_t step, const char *tag, double v)
{
    float f = (float)v;
    uint32_t bits;

    if (!events || events->fd < 0 || strlen(tag) > TAG)
        return;
    begin(events);
    memcpy(&bits, &f, sizeof bits);
    add_bytes(&events->value, 1, tag, strlen(tag));
    add_key(&events->value, 2, FOUR); /* simple_value */
    add_le(&events->value, bits, 4);
    end_value(events, step);
}

static void add_double(EventRecord *record, int field, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    add_key(record, field, EIGHT);
    add_le(record, bits, 8);
}

/* Adds bucket_limit and bucket (repeated doubles) with `per` elements a
 * bucket. */
static void add_buckets(Events *events, const double *v, int64_t n, int64_t per)
{
    for (int64_t i = 0; i < n; i += per)
        add_double(&events->in, 6, (double)(i + per < n ? i + per : n));
    for (int64_t i = 0; i < n; i += per) {
        double sum = 0;
        for (int64_t k = i; k < i + per && k < n; k++)
            sum += v[k];
        add_double(&events->in, 7, sum);
    }
}

void event_vector(Events *events, int64_t step, const char *tag,
                  const double *v, int64_t n)
{
    int64_t per = (n + BUCKETS - 1) / BUCKETS;
    double sum = 0, first = 0, second = 0;

    if (!events || events->fd < 0 || strlen(tag) > TAG)
        return;
    begin(events);
    add_bytes(&events->value, 1, tag, strlen(tag));
    for (int64_t i = 0; i < n; i++) {
        double at = (double)i + 0.5;
        sum += v[i];
        first += v[i] * at;
        second += v[i] * at * at;
    }
    add_double(&events->in, 1, 0); /* min, max, num, sum, sum_squares */
    add_double(&events->in, 2, (double)n);
    add_double(&events->in, 3, sum);
    add_double(&events->in, 4, first);
    add_double(&events->in, 5, second);
    add_buckets(events, v, n, per);
    add_bytes(&events->value, 5, events->in.p, events->in.n); /* histo */
    end_value(events, step);
}

/* Returns n, reduced so that no character is cut. */
static size_t cut(const char *s, size_t n)
{
    if (n <= TEXT)
        return n;
    for (n = TEXT; n > 0 && ((uint8_t)s[n] & 0xc0) == 0x80; n--)
        ;
    return n;
}

void event_text(Events *events, int64_t step, const char *tag, const char *s,
                size_t n)
{
    static const uint8_t plugin[] = "\x0a\x06\x0a\x04text";
    static const uint8_t shape[] = { 2 << 3 | LENGTH, 2, 1 << 3, 1 };

    if (!events || events->fd < 0 || strlen(tag) > TAG)
        return;
    begin(events);
    add_bytes(&events->value, 1, tag, strlen(tag));
    add_bytes(&events->value, 9, plugin, sizeof plugin - 1);  /* metadata */
    add_int(&events->in, 1, 7);                               /* DT_STRING */
    add_bytes(&events->in, 2, shape, sizeof shape);           /* [1] */
    add_bytes(&events->in, 8, s, cut(s, n));                  /* string_val */
    add_bytes(&events->value, 8, events->in.p, events->in.n); /* tensor */
    end_value(events, step);
}

void events_close(Events *events)
{
    if (events && events->fd >= 0)
        close(events->fd);
}
