/* tokenize.c: texts from files through a tokenizer into Megatron's files. Lines
 * of a .jsonl and rows of a table are documents, as is any other file. They are
 * read in batches that all threads share, and written in their order.
 *
 * A run that trains on text keeps its tokens in the cache, by what they were
 * made of; the first process of a host makes them, the others wait. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "data.h"

enum { EACH = 4 << 20 }; /* bytes of text for each thread */

typedef struct Doc {
    const char *s;
    size_t n;     /* jsonl: the line */
    int64_t line; /* where it begins */
    int32_t *id;
    int64_t nid; /* malloc'd */
    char *why;   /* what is wrong with it */
} Doc;

typedef struct Batch {
    const TextArgs *a;
    const char *path;
    int jsonl;
    Bytes text; /* of the batch */
    Doc *doc;
    int64_t ndoc, cap;
    size_t limit; /* bytes of a batch */
    Pool *pool;
    Encoder **idle;
    int nidle; /* room for one a thread */
    pthread_mutex_t lock;
    BinIdx *out;
    TextCount count;
} Batch;

/* ---- one document -------------------------------------------------------- */

static Encoder *borrow(Batch *b)
{
    Encoder *e = NULL;

    pthread_mutex_lock(&b->lock);
    if (b->nidle)
        e = b->idle[--b->nidle];
    pthread_mutex_unlock(&b->lock);
    return e ? e : encoder_new(b->a->t);
}

static void give_back(Batch *b, Encoder *e)
{
    pthread_mutex_lock(&b->lock);
    b->idle[b->nidle++] = e;
    pthread_mutex_unlock(&b->lock);
}

static char *why_of(const char *what, const char *name)
{
    size_t n = strlen(what) + strlen(name) + 1;
    char *s = enlarge(NULL, n);

    snprintf(s, n, what, name);
    return s;
}

static void encode_doc(const Batch *b, Encoder *e, Doc *d, const char *s,
                       size_t n)
{
    const TextArgs *a = b->a;
    const char *why = encode(e, s, n, a->template ? ENCtemplate : 0);

    if (why)
        d->why = why_of("%s", why);
    int32_t last = e->n ? e->id[e->n - 1] : -1;
    if (n && a->eod >= 0 && !(a->template && last == a->eod))
        encode_id(e, a->eod);
    d->nid = n ? e->n : 0;
    d->id = enlarge(NULL, (size_t)d->nid * sizeof *d->id + 1);
    memcpy(d->id, e->id, (size_t)d->nid * sizeof *d->id);
}

static void encode_line(const Batch *b, Encoder *e, Doc *d)
{
    json_error_t at;
    json_t *root = json_loadb(d->s, d->n, JSON_ALLOW_NUL, &at);
    const json_t *text = json_object_get(root, b->a->field);

    if (!root)
        d->why = why_of("%s", at.text);
    else if (!json_is_string(text))
        d->why = why_of("has no \"%s\" that is a text", b->a->field);
    else
        encode_doc(b, e, d, json_string_value(text), json_string_length(text));
    json_decref(root);
}

static void encode_text(const Batch *b, Encoder *e, Doc *d)
{
    int64_t bad = b->a->t->bytes ? -1 : utf8_bad(d->s, d->n);

    for (int64_t i = 0; i < bad; i++)
        d->line += d->s[i] == '\n';
    if (bad >= 0)
        d->why = why_of("%s", "is no valid UTF-8");
    else
        encode_doc(b, e, d, d->s, d->n);
}

static void encode_some(void *ctx, int64_t lo, int64_t hi)
{
    Batch *b = ctx;
    Encoder *e = borrow(b);

    for (int64_t i = lo; i < hi; i++)
        if (b->jsonl)
            encode_line(b, e, &b->doc[i]);
        else
            encode_text(b, e, &b->doc[i]);
    give_back(b, e);
}

/* ---- batches ------------------------------------------------------------- */

static _Noreturn void stop(Batch *b, int64_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The files so far are no use to anybody. */
static _Noreturn void stop(Batch *b, int64_t line, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    char *s = vstrf(forever, fmt, ap);
    va_end(ap);
    binidx_drop(b->out);
    err(&(Loc){ b->path, (int)line, NULL }, "%s", s);
}

static void run_batch(Batch *b)
{
    pool_run(b->pool, encode_some, b, b->ndoc, 1);
    for (int64_t i = 0; i < b->ndoc; i++) {
        Doc *d = &b->doc[i];
        if (d->why)
            stop(b, d->line, "%s", d->why);
        binidx_add(b->out, d->id, d->nid);
        b->count.docs++;
        b->count.empty += !d->nid;
        b->count.tokens += d->nid;
        b->count.bytes += (int64_t)d->n;
        free(d->id);
    }
    b->ndoc = 0;
    b->text.n = 0;
    if (isatty(2))
        fprintf(stderr, "\r%lld MB, %lld tokens ",
                (long long)(b->count.bytes >> 20), (long long)b->count.tokens);
}

static Doc *new_doc(Batch *b, const char *s, size_t n, int64_t line)
{
    if (b->ndoc == b->cap)
        b->doc = enlarge(b->doc,
                         sizeof *b->doc * (size_t)(b->cap = 2 * b->cap + 64));
    b->doc[b->ndoc] = (Doc){ .s = s, .n = n, .line = line };
    return &b->doc[b->ndoc++];
}

/* Lines lie behind each other in b->text, which moves as it grows: their places
 * are known when it is full. */
static void place_lines(Batch *b)
{
    size_t at = 0;

    for (int64_t i = 0; i < b->ndoc; at += b->doc[i++].n)
        b->doc[i].s = b->text.s + at;
    run_batch(b);
}

static void read_lines(Batch *b)
{
    TextLines in;
    const char *why = lines_open(&in, b->path), *line;
    size_t len;

    while (!why && (line = lines_next(&in, &len))) {
        if (!len)
            continue;
        bytes_add(&b->text, line, len);
        new_doc(b, NULL, len, in.number);
        if (b->text.n >= b->limit)
            place_lines(b);
    }
    if (!why)
        why = lines_close(&in);
    if (why)
        stop(b, 0, "%s", why);
    place_lines(b);
}

static void read_rows(Batch *b, enum data_format format)
{
    TextRows rows;
    const char *why = rows_open(&rows, b->path, format, b->a->field), *text;
    size_t len;

    while (!why && (text = rows_next(&rows, &len))) {
        bytes_add(&b->text, text, len);
        new_doc(b, NULL, len, rows.number);
        if (b->text.n >= b->limit)
            place_lines(b);
    }
    why = why ? why : rows.why;
    if (why)
        stop(b, 0, "%s", why);
    rows_close(&rows);
    place_lines(b);
}

static void read_text(Batch *b)
{
    const uint8_t *s;
    int64_t n;
    const char *why = map_whole(forever, b->path, &s, &n);

    if (why)
        stop(b, 0, "%s", why);
    new_doc(b, (const char *)s, (size_t)n, 1);
    run_batch(b);
    munmap((void *)(uintptr_t)s, (size_t)n);
}

TextCount tokenize(const TextArgs *a, const char *const *path, int n,
                   enum data_format format, const char *prefix)
{
    Batch b = { .a = a,
                .out = binidx_create(prefix, a->t->vocab),
                .pool = pool_open(0) };

    pthread_mutex_init(&b.lock, NULL);
    json_object_seed(0); /* before threads do */
    b.limit = (size_t)pool_size(b.pool) * EACH;
    b.idle = enlarge(NULL, (size_t)pool_size(b.pool) * sizeof *b.idle);
    for (int i = 0; i < n; i++) {
        enum data_format is = format;
        const char *why = tokens_format(forever, path[i], &is);
        b.path = intern(path[i]);
        if (why)
            stop(&b, 0, "%s", why);
        b.jsonl = is == FORMATjsonl;
        if (!format_is_text(is))
            stop(&b, 0, "holds tokens already (%s)",
                 key_word_text("data.format", (int)is));
        if (b.jsonl)
            read_lines(&b);
        else if (is != FORMATbytes)
            read_rows(&b, is);
        else
            read_text(&b);
    }
    binidx_close(b.out);
    if (isatty(2))
        fputs("\r\033[K", stderr);
    while (b.nidle)
        encoder_free(b.idle[--b.nidle]);
    pool_close(b.pool);
    pthread_mutex_destroy(&b.lock);
    free(b.idle);
    free(b.doc);
    free(b.text.s);
    return b.count;
}

/* ---- for a run ----------------------------------------------------------- */

TextArgs text_args(const Opts *o)
{
    int bytes = opts_text_tokenizer(o) == TOKENIZERbytes;
    TextArgs a = { .field = opts_str(o, "data.field"),
                   .template = (int)opts_int(o, "data.template") };

    if (bytes && !opts_given(o, "data.eod") && !opts_given(o, "data.field") &&
        !a.template)
        return a;
    a.t = bytes ? tokenizer_bytes()
                : tokenizer_open(opts_str(o, "data.tokenizer"),
                                 opts_loc(o, "data.tokenizer"));
    a.eod = opts_eod(o) == EODnone ? -1
                                   : tokenizer_end(a.t, opts_str(o, "data.eod"),
                                                   opts_loc(o, "data.eod"));
    return a;
}

/* All that the tokens depend on; of the text its name, size and time. */
static char *cache_prefix(Arena *mem, const TextArgs *a, const char *path,
                          enum data_format format)
{
    char full[PATH_MAX];
    struct stat st = { 0 };
    const char *dir = cache_folder();
    char *name = realpath(path, full) ? full : "";

    stat(path, &st);
    char *s =
        strf(mem, "1 %s %lld %lld.%09ld %s %s %llx %lld %d %d %s", name,
             (long long)st.st_size, (long long)st.st_mtim.tv_sec,
             st.st_mtim.tv_nsec, key_word_text("data.format", (int)format),
             a->t->path, (unsigned long long)a->t->hash, (long long)a->t->vocab,
             (int)a->eod, a->template, a->field);
    XXH128_hash_t h = XXH3_128bits(s, strlen(s));
    return strf(mem, "%s/tokens-%016llx%016llx", dir,
                (unsigned long long)h.high64, (unsigned long long)h.low64);
}

const char *tokenized(Arena *mem, const TextArgs *a, const char *path,
                      enum data_format format)
{
    char *prefix = cache_prefix(mem, a, path, format);
    char *bin = strf(mem, "%s.bin", prefix);
    int lock =
        open(strf(mem, "%s.lock", prefix), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (lock >= 0)
        flock(lock, LOCK_EX);
    if (access(bin, R_OK) || access(strf(mem, "%s.idx", prefix), R_OK)) {
        TextCount c = tokenize(a, &path, 1, format, prefix);
        fprintf(stderr, "%s: %lld documents, %lld tokens, kept as %s\n", path,
                (long long)c.docs, (long long)c.tokens, bin);
    }
    if (lock >= 0)
        close(lock);
    return bin;
}
