/* data.c: inputs of a step from files.
 *
 * A data key names a file, a folder (all its files, by name), a pattern
 * ("shards/{a,b}-*.bin"), or, for data.valid, `tail:0.1`: the last tenth of
 * data.train, which training then leaves out. tokens.c reads the files. In an
 * array of rows (.npy) a row is a sample, seq + 1 long, or seq (its last token
 * then has no label); rows are used in order. A folder that holds <input>.npy
 * for every input gives rows of each, for any input.
 *
 * A stream is cut into samples of seq tokens; labels are the next tokens. The
 * order is a permutation of the samples for each epoch that is computed, not
 * stored: sample number i of a run is the same in every fold, and a run that
 * resumes needs nothing but its position. Files are mapped, never read whole.*/
#define _GNU_SOURCE
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

typedef struct File {
    Tokens t;
    const char *input;            /* this file feeds only that one            */
    int64_t first, samples;       /* samples before this file, in it          */
} File;

struct Data {
    Arena *mem;
    const Plan *plan;
    const char *key;
    const Loc *loc;
    const char *format;           /* a word of data.format                    */
    File *file;                   /* vec                                      */
    int64_t seq, batch, perstep;  /* perstep: samples                         */
    int64_t lo, n;                /* ours: samples [lo, lo + n) of the files */
    int64_t vocab;                /* 0: unknown                               */
    int shuffle, rows;
    uint64_t seed;
    int64_t first;                /* sample of the step fill() gives          */
};

/* ---- which files --------------------------------------------------------- */

static int ends(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

static void add_file(Data *d, const char *path, const char *input)
{
    File f = {.input = input};
    const char *why = tokens_open(d->mem, path, d->format, &f.t);

    if (why)
        err(d->loc, "%s: %s %s", d->key, path, why);
    vec_push(d->mem, d->file, f);
}

/* A folder with one array for each input. */
static int add_arrays(Data *d, const char *dir)
{
    const Tensor *t;

    for (int i = 0; (t = plan_input(d->plan, i)); i++)
        if (access(strf(d->mem, "%s/%s.npy", dir, t->name), R_OK))
            return 0;
    d->format = "npy";
    for (int i = 0; (t = plan_input(d->plan, i)); i++)
        add_file(d, strf(d->mem, "%s/%s.npy", dir, t->name), t->name);
    return 1;
}

static int is_folder(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static void add_pattern(Data *d, const char *pattern, const char *path)
{
    glob_t g = {0};

    if (glob(pattern, GLOB_BRACE, NULL, &g) || !g.gl_pathc)
        err(d->loc, "%s: no file %s (a path in a model file is relative to "
            "it; %s=path sets another)", d->key, path, d->key);
    for (size_t i = 0; i < g.gl_pathc; i++)
        if (!is_folder(g.gl_pathv[i]) &&
            !(!strcmp(d->format, "megatron") && ends(g.gl_pathv[i], ".idx")))
            add_file(d, g.gl_pathv[i], NULL);
    globfree(&g);
    if (!vec_len(d->file))
        err(d->loc, "%s: no files in %s", d->key, path);
}

static void add_path(Data *d, const char *path)
{
    if (is_folder(path)) {
        if (!add_arrays(d, path))
            add_pattern(d, strf(d->mem, "%s/*", path), path);
    } else if (!access(path, F_OK)) {
        add_file(d, path, NULL);
    } else if (!access(strf(d->mem, "%s.idx", path), R_OK)) {
        d->format = "megatron";
        add_file(d, strf(d->mem, "%s.bin", path), NULL);
    } else {
        add_pattern(d, path, path);
    }
}

/* ---- samples ------------------------------------------------------------- */

static const PlanDim *dim_named(const Tensor *t, const char *axis)
{
    for (int d = 0; d < t->nd; d++)
        if (!strcmp(t->dim[d].axis, axis))
            return &t->dim[d];
    return NULL;
}

/* Elements of one sample of an input: all axes but micro and batch. */
static int64_t sample_elems(const Tensor *t)
{
    int64_t n = 1;

    for (int d = 0; d < t->nd; d++)
        if (strcmp(t->dim[d].axis, "micro") && strcmp(t->dim[d].axis, "batch"))
            n *= t->dim[d].n;
    return n;
}

/* Batch, sequence length and vocabulary are read off the plan's tensors. */
static void read_shape(Data *d)
{
    const Plan *p = d->plan;
    const Tensor *t;
    int64_t micro = 1;

    d->batch = 1;
    for (int i = 0; (t = plan_input(d->plan, i)); i++) {
        const PlanDim *b = dim_named(t, "batch"), *m = dim_named(t, "micro");
        d->batch = b ? b->n : d->batch;
        micro = m ? m->n : micro;
        if (!strcmp(t->name, "tokens") || !d->seq)
            d->seq = sample_elems(t);
    }
    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const PlanDim *v = dim_named(&p->role[r].tensor[i], "vocab");
            d->vocab = v ? v->n : d->vocab;
        }
    d->perstep = plan_turns(d->plan, "step") * micro * d->batch;
}

static void count_rows(Data *d, File *f)
{
    const Tensor *t;

    f->samples = f->t.rows;
    for (int i = 0; f->input && (t = plan_input(d->plan, i)); i++)
        if (!strcmp(t->name, f->input) && f->t.cols != sample_elems(t))
            err(d->loc, "%s: a row of %s has %lld elements, input '%s' needs "
                "%lld", d->key, f->t.path, (long long)f->t.cols, t->name,
                (long long)sample_elems(t));
    if (!f->input && f->t.cols != d->seq + 1 && f->t.cols != d->seq)
        err(d->loc, "%s: a row of %s has %lld tokens, seq is %lld (rows have "
            "seq or seq + 1 tokens)", d->key, f->t.path, (long long)f->t.cols,
            (long long)d->seq);
}

static void count_samples(Data *d)
{
    int64_t total = 0;

    for (size_t i = 0; i < vec_len(d->file); i++) {
        File *f = &d->file[i];
        f->samples = f->t.n > d->seq ? (f->t.n - 1) / d->seq : 0;
        if (f->t.rows) {
            count_rows(d, f);
            d->rows = 1;
        }
        if (!f->samples)
            err(d->loc, "%s: %s has %lld tokens, a sample needs %lld", d->key,
                f->t.path, (long long)f->t.n, (long long)d->seq + 1);
        f->first = f->input ? 0 : total;
        total = f->input && i && total < f->samples ? total
                : f->input ? f->samples : total + f->samples;
    }
    d->n = total;
}

/* "tail:0.1": the share held out, or 0. Paths were made relative to a file. */
static double tail_share(const Plan *p)
{
    const char *s = opts_str(p->opts, "data.valid");
    const char *slash = s ? strrchr(s, '/') : NULL;

    s = slash ? slash + 1 : s;
    return s && !strncmp(s, "tail:", 5) ? strtod(s + 5, NULL) : 0;
}

static void hold_out(Data *d, int valid)
{
    double share = tail_share(d->plan);
    int64_t held = (int64_t)((double)d->n * share);

    if (share == 0)
        return;
    held = held < 1 ? 1 : held;
    if (share < 0 || share >= 1 || held >= d->n)
        err(d->loc, "data.valid: %lld samples cannot be split at %g",
            (long long)d->n, share);
    d->lo = valid ? d->n - held : 0;
    d->n = valid ? held : d->n - held;
}

/* ---- order --------------------------------------------------------------- */

static uint64_t scramble(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* A Feistel network over the next even power of two; what falls outside [0, n)
 * goes through again.                                                        */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t i, int64_t n)
{
    uint64_t key = scramble(seed + 0x9e3779b97f4a7c15ull *
                                       (uint64_t)(epoch + 1));
    uint64_t x = (uint64_t)i;
    int half = 1;

    while (1ull << 2 * half < (uint64_t)n)
        half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t l = x >> half, r = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t t = l ^ (scramble(key + round * 0xd1342543de82ef95ull +
                                       r) & mask);
            l = r;
            r = t;
        }
        x = l << half | r;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Sample number i of the run, as a sample of the files. */
static int64_t sample_of(const Data *d, int64_t i)
{
    if (!d->shuffle || d->rows)
        return d->lo + i % d->n;
    return d->lo + data_order(d->seed, i / d->n, i % d->n, d->n);
}

/* ---- filling ------------------------------------------------------------- */

typedef struct Fill {
    const Data *d;
    const Tensor *t;
    int64_t rank, turn;
    void *dst;
    int64_t shift;                /* labels: 1                                */
} Fill;

static const File *file_of(const Fill *f, int64_t sample)
{
    const File *files = f->d->file;
    size_t lo = 0, n = vec_len(files);

    if (files[0].input) {
        while (lo + 1 < n && strcmp(files[lo].input, f->t->name))
            lo++;
        return &files[lo];
    }
    while (n - lo > 1) {
        size_t mid = (lo + n) / 2;
        if (files[mid].first <= sample)
            lo = mid;
        else
            n = mid;
    }
    return &files[lo];
}

static void check_token(const Fill *f, const File *file, int64_t at, double v)
{
    const Data *d = f->d;
    double least = strcmp(f->t->name, "labels") ? 0 : -1;   /* -1: no loss */

    if (!(v >= least) || (d->vocab && v >= (double)d->vocab))
        err(d->loc, "%s: token %.0f at %lld of %s is beyond the vocabulary of "
            "%lld", d->key, v, (long long)at, file->t.path,
            (long long)d->vocab);
}

/* Elements [from, from + n) of a sample to dst[to ...]. */
static void fill_row(const Fill *f, int64_t number, int64_t from, int64_t n,
                     int64_t to)
{
    int64_t s = sample_of(f->d, number);
    const File *file = file_of(f, s);
    int64_t row = file->t.rows ? file->t.cols : f->d->seq;
    int64_t at = (s - file->first) * row + from + f->shift;
    int64_t end = file->t.rows ? (s - file->first + 1) * row : file->t.n;
    int whole = !strcmp(f->t->name, "tokens") || !strcmp(f->t->name, "labels");

    for (int64_t i = 0; i < n; i++) {
        double v = at + i < end ? tokens_at(&file->t, at + i) : -1;
        if (whole && at + i < end)
            check_token(f, file, at + i, v);
        elem_set(f->t->dt, f->dst, to + i, v);
    }
}

/* Dim d; micro and batch name the sample, the others the place inside it. */
static void fill_dim(const Fill *f, int d, int64_t micro, int64_t b,
                     int64_t inside, int64_t to)
{
    if (d == f->t->nd) {
        const Data *k = f->d;
        int64_t first = k->first + micro * k->batch + b;
        fill_row(f, first, inside, 1, to);
        return;
    }
    const PlanDim *p = &f->t->dim[d];
    const Mesh *m = f->d->plan->mesh;
    int ismicro = !strcmp(p->axis, "micro");
    int isbatch = !strcmp(p->axis, "batch");
    int64_t held = dim_held(p);
    to *= held;
    if (d + 1 == f->t->nd && !ismicro && !isbatch) {
        const Data *k = f->d;
        int64_t first = k->first + micro * k->batch + b;
        for (int i = 0; i < p->npiece; to += p->piece[i++].len)
            fill_row(f, first, inside * p->n +
                     aff_at(m, &p->piece[i].start, f->rank),
                     p->piece[i].len, to);
        return;
    }
    for (int64_t j = 0; j < held; j++) {
        int64_t x = tensor_at(m, p, f->rank, j);
        if (ismicro)
            fill_dim(f, d + 1, f->turn * p->n + x, b, inside, to + j);
        else if (isbatch)
            fill_dim(f, d + 1, micro, x, inside, to + j);
        else
            fill_dim(f, d + 1, micro, b, inside * p->n + x, to + j);
    }
}

static void fill(void *self, const Tensor *t, int64_t rank, int64_t turn,
                 void *dst)
{
    const Data *d = self;
    Fill f = {d, t, rank, turn, dst, 0};

    if (!d->file[0].input) {
        f.shift = !strcmp(t->name, "labels");
        if (!f.shift && strcmp(t->name, "tokens"))
            err(&(Loc){t->file, t->line, NULL}, "%s holds tokens; input '%s' "
                "needs a folder with %s.npy", d->key, t->name, t->name);
    }
    fill_dim(&f, 0, 0, 0, 0, 0);
}

/* ---- interface ----------------------------------------------------------- */

Feed data_feed(Data *d, int64_t first)
{
    d->first = first;
    return (Feed){fill, d};
}

int64_t data_samples(const Data *d)
{
    return d->n;
}

int64_t data_perstep(const Data *d)
{
    return d->perstep;
}

int64_t data_vocab(const Data *d)
{
    return d->vocab;
}

int64_t data_sample(const Data *d, int64_t i, int32_t *out)
{
    Fill f = {.d = d};

    if (d->file[0].input)
        return 0;
    int64_t s = d->lo + i % d->n;
    const File *file = file_of(&f, s);
    int64_t row = file->t.rows ? file->t.cols : d->seq;
    int64_t at = (s - file->first) * row;
    int64_t end = file->t.rows ? at + row : file->t.n;
    for (int64_t j = 0; out && j <= d->seq; j++)
        out[j] = at + j < end ? (int32_t)tokens_at(&file->t, at + j) : -1;
    return d->seq + 1;
}

Data *data_open(Arena *a, const Plan *p, const char *key, int flags)
{
    const char *path = opts_str(p->opts, key);
    int valid = !strcmp(key, "data.valid");
    Data *d = alloc(a, sizeof *d);

    if (!path || !*path || !plan_input(p, 0))
        return NULL;
    *d = (Data){.mem = a, .plan = p, .key = key, .loc = opts_loc(p->opts, key),
                .format = opts_str(p->opts, "data.format"),
                .shuffle = flags & DATAshuffle,
                .seed = (uint64_t)opts_int(p->opts, "seed")};
    int tail = tail_share(p) != 0;
    if (valid && tail)
        path = opts_str(p->opts, "data.train");
    if (!path)
        err(d->loc, "%s takes the tail of data.train, which is not set", key);
    read_shape(d);
    add_path(d, path);
    count_samples(d);
    if (tail && (valid || !strcmp(key, "data.train")))
        hold_out(d, valid);
    return d;
}
