/* samples.c: samples from files, in an order that is computed.
 *
 * A set is a part, or a blend of parts with weights: "0.7 a 0.3 b". A part is a
 * file, a folder (all its files, by name), or a pattern ("{a,b}-*.bin"). Its
 * tokens are cut into samples of seq tokens, labels being the next tokens. In
 * an array of rows (.npy) a row is a sample, seq + 1 long, or seq (its last
 * token then has no label); rows are used in order.
 *
 * The order of a part is a permutation for each epoch, a function of the seed,
 * and that of a blend is blend.c's: sample number i of a run is the same in
 * every fold, and a run that resumes needs nothing but its position.
 * order=megatron instead builds Megatron's (megatron.c). */
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"

/* Elements of one sample of an input: all axes but micro and batch. */
int64_t sample_elems(const Tensor *tensor)
{
    int64_t n = 1;

    for (int d = 0; d < tensor->nd; d++)
        if (tensor->dim[d].role != ROLEmicro &&
            tensor->dim[d].role != ROLEbatch)
            n *= tensor->dim[d].n;
    return n;
}

/* ---- which files --------------------------------------------------------- */

/* Weights of a Hugging Face folder know other tokens than bytes. */
static void need_tokenizer(const Samples *s, const char *path)
{
    const Opts *o = s->want.plan ? s->want.plan->opts : NULL;
    const char *from = o ? opts_str(o, "from") : NULL;

    if (!s->want.text && from && !opts_given(o, "data.tokenizer") &&
        !access(strf(s->mem, "%s/config.json", from), F_OK))
        err(s->want.loc,
            "%s: %s is a text, and %s has no tokenizer.json; "
            "data.tokenizer=FILE names one, data.tokenizer=bytes takes bytes",
            s->want.key, path, from);
}

static void add_file(const Samples *s, Corpus *p, const char *path,
                     const char *input)
{
    SampleFile f = { .input = input };
    enum data_format format = s->want.format;
    const char *from = path;
    const char *why =
        s->want.text ? tokens_format(s->mem, path, &format) : NULL;

    if (!why && s->want.text && format_is_text(format)) {
        from = tokenized(s->mem, s->want.text, path, format);
        format = FORMATmegatron;
    }
    if (!why)
        why = tokens_open(s->mem, from, format, &f.t);

    if (why)
        err(s->want.loc, "%s: %s %s", s->want.key, from, why);
    f.t.path = strf(s->mem, "%s", path); /* what people know it by */
    if (format_is_text(f.t.format))
        need_tokenizer(s, path);
    if (s->want.shuffle || s->want.megatron)
        tokens_scattered(&f.t);
    vec_push(s->mem, p->file, f);
}

/* A folder with one array for each input. */
static int add_arrays(Samples *s, Corpus *p, const char *dir)
{
    const Tensor *tensor;
    int n = 0;

    for (; s->want.plan && (tensor = plan_input(s->want.plan, n)); n++)
        if (access(strf(s->mem, "%s/%s.npy", dir, tensor->name), R_OK))
            return 0;
    s->want.format = n ? FORMATnpy : s->want.format;
    for (int i = 0; i < n; i++) {
        tensor = plan_input(s->want.plan, i);
        add_file(s, p, strf(s->mem, "%s/%s.npy", dir, tensor->name),
                 tensor->name);
    }
    return n;
}

/* Beside its .bin a Megatron index is no data. */
static int is_index(const Samples *s, const char *path)
{
    return ends_with(path, ".idx") &&
           !access(strf(s->mem, "%.*sbin", (int)strlen(path) - 3, path), F_OK);
}

static void add_pattern(const Samples *s, Corpus *p, const char *pattern)
{
    const char *key = s->want.key;
    glob_t g = { 0 };

    if (glob(pattern, GLOB_BRACE, NULL, &g) || !g.gl_pathc)
        err(s->want.loc,
            "%s: no file %s (a path in a model file is relative to it; %s=path "
            "sets another)",
            key, p->path, key);
    for (size_t i = 0; i < g.gl_pathc; i++)
        if (!folder_exists(g.gl_pathv[i]) && !is_index(s, g.gl_pathv[i]))
            add_file(s, p, g.gl_pathv[i], NULL);
    globfree(&g);
    if (!vec_len(p->file))
        err(s->want.loc, "%s: no files in %s", key, p->path);
}

/* Of a folder that holds tables, as Hugging Face datasets are on disk, these
 * only; of one of splits, "train". */
static const char *files_of(const Samples *s, const char *dir)
{
    static const char *const ends[] = { "*.arrow", "*.parquet",
                                        "data/*.parquet" };
    const char *split = strf(s->mem, "%s/train", dir);
    glob_t g = { 0 };

    if (!access(strf(s->mem, "%s/dataset_dict.json", dir), F_OK) &&
        folder_exists(split))
        dir = split;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *pattern = strf(s->mem, "%s/%s", dir, ends[i]);
        int none = glob(pattern, 0, NULL, &g) || !g.gl_pathc;
        globfree(&g);
        if (!none)
            return pattern;
    }
    return strf(s->mem, "%s/*", dir);
}

static void add_path(Samples *s, Corpus *p)
{
    const char *path = p->path;

    if (folder_exists(path)) {
        if (!add_arrays(s, p, path))
            add_pattern(s, p, files_of(s, path));
    } else if (!access(path, F_OK)) {
        add_file(s, p, path, NULL);
    } else if (!access(strf(s->mem, "%s.idx", path), R_OK)) {
        add_file(s, p, strf(s->mem, "%s.bin", path), NULL);
    } else {
        add_pattern(s, p, path);
    }
}

/* ---- samples ------------------------------------------------------------- */

static void count_rows(const Samples *s, SampleFile *f)
{
    const SampleWant *w = &s->want;
    const Tensor *tensor;

    f->samples = f->t.rows;
    for (int i = 0; f->input && (tensor = plan_input(w->plan, i)); i++)
        if (!strcmp(tensor->name, f->input) &&
            f->t.cols != sample_elems(tensor))
            err(w->loc,
                "%s: a row of %s has %lld elements, input '%s' needs %lld",
                w->key, f->t.path, (long long)f->t.cols, tensor->name,
                (long long)sample_elems(tensor));
    if (!f->input && f->t.cols != w->seq + 1 && f->t.cols != w->seq)
        err(w->loc,
            "%s: a row of %s has %lld tokens, seq is %lld (rows have seq or "
            "seq + 1 tokens)",
            w->key, f->t.path, (long long)f->t.cols, (long long)w->seq);
}

static void count_samples(const Samples *s, Corpus *p)
{
    const SampleWant *w = &s->want;
    int64_t total = 0;

    for (size_t i = 0; i < vec_len(p->file); i++) {
        SampleFile *f = &p->file[i];
        f->samples = f->t.n > w->seq ? (f->t.n - 1) / w->seq : 0;
        if (f->t.rows) {
            count_rows(s, f);
            p->rows = 1;
        }
        if (!f->samples)
            err(w->loc, "%s: %s has %lld tokens, a sample needs %lld", w->key,
                f->t.path, (long long)f->t.n, (long long)w->seq + 1);
        f->first = f->input ? 0 : total;
        total = f->input && i && total < f->samples ? total
                : f->input                          ? f->samples
                                                    : total + f->samples;
    }
    p->n = total;
}

/* The last share is held out, for validation. */
static void hold_out(const Samples *s, Corpus *p)
{
    double share = s->want.tail;
    int64_t held = (int64_t)((double)p->n * share);

    held = held < 1 ? 1 : held;
    if (share < 0 || share >= 1 || held >= p->n)
        err(s->want.loc, "data.valid: %lld samples cannot be split at %g",
            (long long)p->n, share);
    p->lo = s->want.held ? p->n - held : 0;
    p->n = s->want.held ? held : p->n - held;
}

/* ---- Megatron's order ---------------------------------------------------- */

static void order_part(const Samples *s, Corpus *p, int64_t samples)
{
    const SampleWant *w = &s->want;
    const Tokens *tokens = &p->file[0].t;
    int64_t lo = (int64_t)rint(w->share[0] * (double)tokens->docs);
    int64_t hi = (int64_t)rint(w->share[1] * (double)tokens->docs);

    if (vec_len(p->file) > 1 || tokens->rows)
        err(w->loc, "%s: data.order=megatron takes one dataset, and %s is %s",
            w->key, p->path,
            tokens->rows ? "an array of rows"
                         : "several (name each, with a weight)");
    if (w->seed > UINT32_MAX)
        err(w->loc, "data.order=megatron needs a seed below 2^32");
    const char *why = order_new(s->mem, tokens, lo, hi, w->seq, samples,
                                (uint32_t)w->seed, &p->order);
    if (why)
        err(w->loc, "%s: %s %s", w->key, tokens->path, why);
    p->n = order_samples(p->order);
}

/* Samples of each part and of all, as BlendedMegatronDatasetBuilder counts. */
static void order_parts(Samples *s, double *weight, int n)
{
    int64_t all = 0, built;

    if (n == 1 && (!s->weighted || !s->want.split)) {
        order_part(s, &s->part[0], s->want.samples);
        s->n = s->part[0].n;
        return;
    }
    if (s->weighted)
        blend_normalize(weight, n);
    for (int i = 0; i < n; i++) {
        if (s->weighted)
            s->n += blend_size(s->want.samples, weight[i], &built);
        order_part(s, &s->part[i], s->weighted ? built : 0);
        all += s->part[i].n;
        if (!s->weighted)
            weight[i] = (double)s->part[i].n;
    }
    if (!s->weighted)
        s->n = all < s->want.samples ? all : s->want.samples;
    blend_normalize(weight, n);
    s->blend = blend_new(s->mem, weight, n);
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
 * goes through again. */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t i, int64_t n)
{
    uint64_t key =
        scramble(seed + 0x9e3779b97f4a7c15ull * (uint64_t)(epoch + 1));
    uint64_t x = (uint64_t)i;
    int half = 1;

    while (1ull << 2 * half < (uint64_t)n)
        half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t l = x >> half, r = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t t =
                l ^ (scramble(key + round * 0xd1342543de82ef95ull + r) & mask);
            l = r;
            r = t;
        }
        x = l << half | r;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Sample number i of the run, as a sample of a part. */
static const Corpus *part_of(const Samples *s, int64_t i, int64_t *sample)
{
    const Corpus *p = s->part;

    i = s->want.megatron ? i % s->n : i;
    if (s->blend)
        p += blend_at(s->blend, i, &i);
    if (p->order && i >= p->n)
        err(s->want.loc, "%s: the blend takes more than the %lld samples of %s",
            s->want.key, (long long)p->n, p->path);
    if (p->order || !s->want.shuffle || p->rows)
        *sample = p->lo + i % p->n;
    else
        *sample = p->lo + data_order(s->want.seed + (uint64_t)(p - s->part),
                                     i / p->n, i % p->n, p->n);
    return p;
}

/* ---- reading ------------------------------------------------------------- */

static const SampleFile *file_of(const Corpus *p, int64_t sample,
                                 const char *input)
{
    const SampleFile *files = p->file;
    size_t lo = 0, n = vec_len(files);

    if (files[0].input) {
        while (lo + 1 < n && strcmp(files[lo].input, input))
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

static SampleReader reader(const Samples *s, const Corpus *p, int64_t i,
                           int64_t from, const char *input)
{
    const SampleFile *f = file_of(p, p->order ? 0 : i, input);
    SampleReader r = { .t = &f->t };

    if (p->order) {
        r.walk = order_walk(p->order, i, from);
        return r;
    }
    int64_t row = f->t.rows ? f->t.cols : s->want.seq;
    int64_t end = f->t.rows ? (i - f->first + 1) * row : f->t.n;
    r.at = (i - f->first) * row + from;
    r.n = end > r.at ? end - r.at : 0;
    return r;
}

SampleReader samples_read(const Samples *s, int64_t i, int64_t from,
                          const char *input)
{
    int64_t sample;
    const Corpus *p = part_of(s, i, &sample);

    return reader(s, p, sample, from, input);
}

int64_t reader_next(SampleReader *r, int64_t *at)
{
    int64_t n = r->n;

    if (r->walk.o)
        return order_next(&r->walk, at);
    *at = r->at;
    r->n = 0;
    return n;
}

/* Sample i of all parts, one after the other. */
SampleReader samples_plain(const Samples *s, int64_t i)
{
    const Corpus *p = s->part;

    while (i >= p->n && p + 1 < s->part + vec_len(s->part))
        i -= p++->n;
    return reader(s, p, p->lo + i % p->n, 0, "");
}

/* ---- opening ------------------------------------------------------------- */

/* "0.7 a 0.3 b" or "size a size b"; anything else is one path. Weights of size
 * are left 0. */
static double *split_spec(Samples *s)
{
    const char *rest = s->want.spec, *word;
    double *weight = NULL;

    s->weighted = opts_blend(rest) != 0;
    if (!s->weighted) {
        vec_push(s->mem, s->part, (Corpus){ .path = rest });
        vec_push(s->mem, weight, 1.0);
        return weight;
    }
    while (*(rest += strspn(rest, " "))) {
        s->weighted = strncmp(rest, "size ", 5) != 0;
        vec_push(s->mem, weight, s->weighted ? strtod(rest, NULL) : 0);
        rest += strcspn(rest, " ");
        word = rest += strspn(rest, " ");
        rest += strcspn(rest, " ");
        vec_push(
            s->mem, s->part,
            (Corpus){ .path = strf(s->mem, "%.*s", (int)(rest - word), word) });
    }
    return weight;
}

Samples *samples_open(Arena *a, const SampleWant *w)
{
    Samples *s = alloc(a, sizeof *s);

    *s = (Samples){ .mem = a, .want = *w };
    double *weight = split_spec(s);
    int n = (int)vec_len(s->part);
    for (int i = 0; i < n; i++)
        add_path(s, &s->part[i]);
    if (w->megatron) {
        order_parts(s, weight, n);
        return s;
    }
    for (int i = 0; i < n; i++) {
        Corpus *p = &s->part[i];
        count_samples(s, p);
        if (w->tail != 0)
            hold_out(s, p);
        s->n += p->n;
        if (!s->weighted)
            weight[i] = (double)p->n;
    }
    if (n > 1) {
        blend_normalize(weight, n);
        s->blend = blend_new(a, weight, n);
    }
    return s;
}
