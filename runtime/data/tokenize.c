/* tokenize.c: converts texts to Megatron's files of tokens. Texts are read
 * (rows.c) in batches that all threads share, and written in their order.
 *
 * A run that trains on text stores the tokens in the cache under a key of their
 * inputs; the first process of a host creates them, the others wait. */
#include <limits.h>
#include <pthread.h>
#include <sys/file.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../../ir/settings/keys.h"
#include "data.h"

enum { EACH = 4 << 20 }; /* bytes of text for each thread */

typedef struct Doc {
    const char *s;
    size_t n;     /* jsonl: bytes of the row */
    int64_t line; /* its first line */
    int32_t *id;
    int64_t nid; /* malloc'd */
    char *why;   /* its error, or null */
} Doc;

typedef struct Batch {
    const TextArgs *a;
    const char *path;
    int format;
    Bytes text; /* text of the batch */
    Doc *doc;
    int64_t ndoc, cap;
    size_t limit; /* most bytes of a batch */
    Pool *pool;
    Encoder **idle;
    int nidle; /* at most one a thread */
    pthread_mutex_t lock;
    BinIdx *out;
    TextCount count;
} Batch;

/* ---- one document -------------------------------------------------------- */

static Encoder *borrow(Batch *batch)
{
    Encoder *encoder = NULL;

    pthread_mutex_lock(&batch->lock);
    if (batch->nidle)
        encoder = batch->idle[--batch->nidle];
    pthread_mutex_unlock(&batch->lock);
    return encoder ? encoder : encoder_new(batch->a->t);
}

static void give_back(Batch *batch, Encoder *encoder)
{
    pthread_mutex_lock(&batch->lock);
    batch->idle[batch->nidle++] = encoder;
    pthread_mutex_unlock(&batch->lock);
}

static char *why_of(const char *what, const char *name)
{
    size_t n = strlen(what) + strlen(name) + 1;
    char *s = enlarge(NULL, n);

    snprintf(s, n, what, name);
    return s;
}

static void encode_doc(const Batch *batch, Encoder *encoder, Doc *doc,
                       const char *s, size_t n)
{
    const TextArgs *args = batch->a;
    const char *why = encode(encoder, s, n, args->template ? ENCtemplate : 0);

    if (why)
        doc->why = why_of("%s", why);
    int32_t last = encoder->n ? encoder->id[encoder->n - 1] : -1;
    if (n && args->eod >= 0 && !(args->template && last == args->eod))
        encode_id(encoder, args->eod);
    doc->nid = n ? encoder->n : 0;
    doc->id = enlarge(NULL, (size_t)doc->nid * sizeof *doc->id + 1);
    memcpy(doc->id, encoder->id, (size_t)doc->nid * sizeof *doc->id);
}

static void encode_row(const Batch *batch, Encoder *encoder, Doc *doc)
{
    char *text = enlarge(NULL, doc->n + 1);
    size_t n;

    doc->why = json_text(doc->s, doc->n, batch->a->field, text, &n);
    if (!doc->why)
        encode_doc(batch, encoder, doc, text, n);
    free(text);
}

static void encode_text(const Batch *batch, Encoder *encoder, Doc *doc)
{
    int64_t bad = batch->a->t->bytes ? -1 : utf8_bad(doc->s, doc->n);

    for (int64_t i = 0; i < bad; i++)
        doc->line += doc->s[i] == '\n';
    if (bad >= 0)
        doc->why = why_of("%s", "is no valid UTF-8");
    else
        encode_doc(batch, encoder, doc, doc->s, doc->n);
}

static void encode_some(void *ctx, int64_t lo, int64_t hi)
{
    Batch *batch = ctx;
    Encoder *e = borrow(batch);

    for (int64_t i = lo; i < hi; i++)
        if (batch->format == FORMATjsonl)
            encode_row(batch, e, &batch->doc[i]);
        else
            encode_text(batch, e, &batch->doc[i]);
    give_back(batch, e);
}

/* ---- batches ------------------------------------------------------------- */

static _Noreturn void stop(Batch *batch, int64_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Drops the files written so far and calls err(). */
static _Noreturn void stop(Batch *batch, int64_t line, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    char *s = vstrf(forever, fmt, ap);
    va_end(ap);
    binidx_drop(batch->out);
    err(&(Loc){ batch->path, (int)line, NULL }, "%s", s);
}

static void run_batch(Batch *batch)
{
    pool_run(batch->pool, encode_some, batch, batch->ndoc, 1);
    for (int64_t i = 0; i < batch->ndoc; i++) {
        Doc *doc = &batch->doc[i];
        if (doc->why)
            stop(batch, doc->line, "%s", doc->why);
        binidx_add(batch->out, doc->id, doc->nid);
        batch->count.docs++;
        batch->count.empty += !doc->nid;
        batch->count.tokens += doc->nid;
        batch->count.bytes += (int64_t)doc->n;
        free(doc->id);
    }
    batch->ndoc = 0;
    batch->text.n = 0;
    if (isatty(2))
        fprintf(stderr, "\r%ld MB, %ld tokens ", batch->count.bytes >> 20,
                batch->count.tokens);
}

static Doc *new_doc(Batch *batch, const char *s, size_t n, int64_t line)
{
    if (batch->ndoc == batch->cap)
        batch->doc =
            enlarge(batch->doc, sizeof *batch->doc *
                                    (size_t)(batch->cap = 2 * batch->cap + 64));
    batch->doc[batch->ndoc] = (Doc){ .s = s, .n = n, .line = line };
    return &batch->doc[batch->ndoc++];
}

/* Sets the places of documents, which are consecutive in batch->text: it may
 * move until it is full. */
static void place_docs(Batch *batch)
{
    size_t at = 0;

    for (int64_t i = 0; i < batch->ndoc; at += batch->doc[i++].n)
        batch->doc[i].s = batch->text.s + at;
    run_batch(batch);
}

static void read_docs(Batch *batch)
{
    TextRows rows;
    const char *why =
        rows_open(&rows, batch->path, batch->format, batch->a->field);
    const char *s;
    size_t n;

    while (!why && (s = rows_next(&rows, &n))) {
        if (rows.map) { /* the mapped file is one document */
            new_doc(batch, s, n, 1);
            run_batch(batch);
            continue;
        }
        bytes_add(&batch->text, s, n);
        new_doc(batch, NULL, n, rows.number);
        if (batch->text.n >= batch->limit)
            place_docs(batch);
    }
    const char *broken = rows_close(&rows);
    why = broken ? broken : why;
    if (why)
        stop(batch, rows.in ? rows.line : 0, "%s", why);
    arena_free(rows.mem);
    place_docs(batch);
}

TextCount tokenize(const TextArgs *args, const char *const *path, int n,
                   int format, const char *prefix)
{
    Batch b = { .a = args,
                .out = binidx_create(prefix, args->t->vocab),
                .pool = pool_open(0) };

    pthread_mutex_init(&b.lock, NULL);
    b.limit = (size_t)pool_size(b.pool) * EACH;
    b.idle = enlarge(NULL, (size_t)pool_size(b.pool) * sizeof *b.idle);
    for (int i = 0; i < n; i++) {
        Tokens kind;
        const char *why =
            tokens_kind(forever, path[i], format, args->t->vocab, &kind);
        b.path = intern(path[i]);
        b.format = kind.format;
        if (why)
            stop(&b, 0, "%s", why);
        if (!format_is_text(b.format))
            stop(&b, 0, "holds tokens already (%s)",
                 key_word_text("data.format", (int)b.format));
        read_docs(&b);
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

TextArgs text_args(const Opts *opts)
{
    int bytes = opts_text_tokenizer(opts) == TOKENIZERbytes;
    TextArgs a = { .field = opts_str(opts, "data.field"),
                   .template = (int)opts_int(opts, "data.template") };

    if (bytes && !opts_given(opts, "data.eod") &&
        !opts_given(opts, "data.field") && !a.template)
        return a;
    a.t = bytes ? tokenizer_bytes()
                : tokenizer_open(opts_str(opts, "data.tokenizer"),
                                 opts_loc(opts, "data.tokenizer"));
    a.eod = opts_eod(opts) == EODnone
                ? -1
                : tokenizer_end(a.t, opts_str(opts, "data.eod"),
                                opts_loc(opts, "data.eod"));
    return a;
}

/* Returns the cache's path for the tokens: a hash of everything that they
 * depend on; for the text its name, size and time. */
static char *cache_prefix(Arena *mem, const TextArgs *args, const char *path,
                          int format)
{
    char full[PATH_MAX];
    struct stat st = { 0 };
    const char *dir = cache_folder();
    char *name = realpath(path, full) ? full : "";

    stat(path, &st);
    char *s = strf(mem, "2 %s %ld %ld.%09ld %s %s %lx %ld %d %d %s", name,
                   st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                   key_word_text("data.format", (int)format), args->t->path,
                   args->t->hash, args->t->vocab, (int)args->eod,
                   args->template, args->field);
    XXH128_hash_t h = XXH3_128bits(s, strlen(s));
    return strf(mem, "%s/tokens-%016lx%016lx", dir, h.high64, h.low64);
}

const char *tokenized(Arena *mem, const TextArgs *args, const char *path,
                      int format)
{
    char *prefix = cache_prefix(mem, args, path, format);
    char *bin = strf(mem, "%s.bin", prefix);
    int lock = file_create(strf(mem, "%s.lock", prefix), 0);

    if (lock >= 0)
        flock(lock, LOCK_EX);
    if (access(bin, R_OK) || access(strf(mem, "%s.idx", prefix), R_OK)) {
        unlink(bin); /* left by a killed process, without an index */
        TextCount c = tokenize(args, &path, 1, format, prefix);
        fprintf(stderr, "%s: %ld documents, %ld tokens, kept as %s\n", path,
                c.docs, c.tokens, bin);
    }
    if (lock >= 0)
        close(lock);
    return bin;
}
