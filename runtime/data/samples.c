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
static void need_tokenizer(const Samples *samples, const char *path)
{
    const Opts *opts = samples->want.plan ? samples->want.plan->opts : NULL;
    const char *from = opts ? opts_str(opts, "from") : NULL;

    if (!samples->want.text && from && !opts_given(opts, "data.tokenizer") &&
        !access(strf(samples->mem, "%s/config.json", from), F_OK))
        err(samples->want.loc,
            "%s: %s is a text, and %s has no tokenizer.json; "
            "data.tokenizer=FILE names one, data.tokenizer=bytes takes bytes",
            samples->want.key, path, from);
}

static void add_file(const Samples *samples, Corpus *corpus, const char *path,
                     const char *input)
{
    SampleFile f = { .input = input };
    enum data_format format = samples->want.format;
    const char *from = path;
    const char *why =
        samples->want.text ? tokens_format(samples->mem, path, &format) : NULL;

    if (!why && samples->want.text && format_is_text(format)) {
        from = tokenized(samples->mem, samples->want.text, path, format);
        format = FORMATmegatron;
    }
    if (!why)
        why = tokens_open(samples->mem, from, format, &f.t);

    if (why)
        err(samples->want.loc, "%s: %s %s", samples->want.key, from, why);
    f.t.path = strf(samples->mem, "%s", path); /* what people know it by */
    if (format_is_text(f.t.format))
        need_tokenizer(samples, path);
    if (samples->want.shuffle || samples->want.megatron)
        tokens_scattered(&f.t);
    vec_push(samples->mem, corpus->file, f);
}

/* A folder with one array for each input. */
static int add_arrays(Samples *samples, Corpus *corpus, const char *dir)
{
    const Tensor *tensor;
    int n = 0;

    for (; samples->want.plan && (tensor = plan_input(samples->want.plan, n));
         n++)
        if (access(strf(samples->mem, "%s/%s.npy", dir, tensor->name), R_OK))
            return 0;
    samples->want.format = n ? FORMATnpy : samples->want.format;
    for (int i = 0; i < n; i++) {
        tensor = plan_input(samples->want.plan, i);
        add_file(samples, corpus,
                 strf(samples->mem, "%s/%s.npy", dir, tensor->name),
                 tensor->name);
    }
    return n;
}

/* Beside its .bin a Megatron index is no data. */
static int is_index(const Samples *samples, const char *path)
{
    return ends_with(path, ".idx") &&
           !access(strf(samples->mem, "%.*sbin", (int)strlen(path) - 3, path),
                   F_OK);
}

static void add_pattern(const Samples *samples, Corpus *corpus,
                        const char *pattern)
{
    const char *key = samples->want.key;
    glob_t g = { 0 };

    if (glob(pattern, GLOB_BRACE, NULL, &g) || !g.gl_pathc)
        err(samples->want.loc,
            "%s: no file %s (a path in a model file is relative to it; %s=path "
            "sets another)",
            key, corpus->path, key);
    for (size_t i = 0; i < g.gl_pathc; i++)
        if (!folder_exists(g.gl_pathv[i]) && !is_index(samples, g.gl_pathv[i]))
            add_file(samples, corpus, g.gl_pathv[i], NULL);
    globfree(&g);
    if (!vec_len(corpus->file))
        err(samples->want.loc, "%s: no files in %s", key, corpus->path);
}

/* Of a folder that holds tables, as Hugging Face datasets are on disk, these
 * only; of one of splits, "train". */
static const char *files_of(const Samples *samples, const char *dir)
{
    static const char *const ends[] = { "*.arrow", "*.parquet",
                                        "data/*.parquet" };
    const char *split = strf(samples->mem, "%s/train", dir);
    glob_t g = { 0 };

    if (!access(strf(samples->mem, "%s/dataset_dict.json", dir), F_OK) &&
        folder_exists(split))
        dir = split;
    for (int i = 0; i < countof(ends); i++) {
        const char *pattern = strf(samples->mem, "%s/%s", dir, ends[i]);
        int none = glob(pattern, 0, NULL, &g) || !g.gl_pathc;
        globfree(&g);
        if (!none)
            return pattern;
    }
    return strf(samples->mem, "%s/*", dir);
}

static void add_path(Samples *samples, Corpus *corpus)
{
    const char *path = corpus->path;

    if (folder_exists(path)) {
        if (!add_arrays(samples, corpus, path))
            add_pattern(samples, corpus, files_of(samples, path));
    } else if (!access(path, F_OK)) {
        add_file(samples, corpus, path, NULL);
    } else if (!access(strf(samples->mem, "%s.idx", path), R_OK)) {
        add_file(samples, corpus, strf(samples->mem, "%s.bin", path), NULL);
    } else {
        add_pattern(samples, corpus, path);
    }
}

/* ---- samples ------------------------------------------------------------- */

static void count_rows(const Samples *samples, SampleFile *file)
{
    const SampleWant *want = &samples->want;
    const Tensor *tensor;

    file->samples = file->t.rows;
    for (int i = 0; file->input && (tensor = plan_input(want->plan, i)); i++)
        if (!strcmp(tensor->name, file->input) &&
            file->t.cols != sample_elems(tensor))
            err(want->loc,
                "%s: a row of %s has %ld elements, input '%s' needs %ld",
                want->key, file->t.path, file->t.cols, tensor->name,
                sample_elems(tensor));
    if (!file->input && file->t.cols != want->seq + 1 &&
        file->t.cols != want->seq)
        err(want->loc,
            "%s: a row of %s has %ld tokens, seq is %ld (rows have seq or "
            "seq + 1 tokens)",
            want->key, file->t.path, file->t.cols, want->seq);
}

static void count_samples(const Samples *samples, Corpus *corpus)
{
    const SampleWant *want = &samples->want;
    int64_t total = 0;

    for (size_t i = 0; i < vec_len(corpus->file); i++) {
        SampleFile *file = &corpus->file[i];
        file->samples = file->t.n > want->seq ? (file->t.n - 1) / want->seq : 0;
        if (file->t.rows) {
            count_rows(samples, file);
            corpus->rows = 1;
        }
        if (!file->samples)
            err(want->loc, "%s: %s has %ld tokens, a sample needs %ld",
                want->key, file->t.path, file->t.n, want->seq + 1);
        file->first = file->input ? 0 : total;
        total = file->input && i && total < file->samples ? total
                : file->input                             ? file->samples
                              : total + file->samples;
    }
    corpus->n = total;
}

/* The last share is held out, for validation. */
static void hold_out(const Samples *samples, Corpus *corpus)
{
    double share = samples->want.tail;
    int64_t held = (int64_t)((double)corpus->n * share);

    held = held < 1 ? 1 : held;
    if (share < 0 || share >= 1 || held >= corpus->n)
        err(samples->want.loc, "data.valid: %ld samples cannot be split at %g",
            corpus->n, share);
    corpus->lo = samples->want.held ? corpus->n - held : 0;
    corpus->n = samples->want.held ? held : corpus->n - held;
}

/* ---- Megatron's order ---------------------------------------------------- */

static void order_part(const Samples *s, Corpus *corpus, int64_t samples)
{
    const SampleWant *want = &s->want;
    const Tokens *tokens = &corpus->file[0].t;
    int64_t lo = (int64_t)rint(want->share[0] * (double)tokens->docs);
    int64_t hi = (int64_t)rint(want->share[1] * (double)tokens->docs);

    if (vec_len(corpus->file) > 1 || tokens->rows)
        err(want->loc,
            "%s: data.order=megatron takes one dataset, and %s is %s",
            want->key, corpus->path,
            tokens->rows ? "an array of rows"
                         : "several (name each, with a weight)");
    if (want->seed > UINT32_MAX)
        err(want->loc, "data.order=megatron needs a seed below 2^32");
    const char *why = order_new(s->mem, tokens, lo, hi, want->seq, samples,
                                (uint32_t)want->seed, &corpus->order);
    if (why)
        err(want->loc, "%s: %s %s", want->key, tokens->path, why);
    corpus->n = order_samples(corpus->order);
}

/* Samples of each part and of all, as BlendedMegatronDatasetBuilder counts. */
static void order_parts(Samples *samples, double *weight, int n)
{
    int64_t all = 0, built;

    if (n == 1 && (!samples->weighted || !samples->want.split)) {
        order_part(samples, &samples->part[0], samples->want.samples);
        samples->n = samples->part[0].n;
        return;
    }
    if (samples->weighted)
        blend_normalize(weight, n);
    for (int i = 0; i < n; i++) {
        if (samples->weighted)
            samples->n += blend_size(samples->want.samples, weight[i], &built);
        order_part(samples, &samples->part[i], samples->weighted ? built : 0);
        all += samples->part[i].n;
        if (!samples->weighted)
            weight[i] = (double)samples->part[i].n;
    }
    if (!samples->weighted)
        samples->n = all < samples->want.samples ? all : samples->want.samples;
    blend_normalize(weight, n);
    samples->blend = blend_new(samples->mem, weight, n);
}

/* ---- order --------------------------------------------------------------- */

uint64_t splitmix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* A Feistel network over the next even power of two; what falls outside [0, n)
 * goes through again. */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t i, int64_t n)
{
    uint64_t key =
        splitmix64(seed + 0x9e3779b97f4a7c15ull * (uint64_t)(epoch + 1));
    uint64_t x = (uint64_t)i;
    int half = 1;

    while (1ull << 2 * half < (uint64_t)n)
        half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t l = x >> half, r = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t t =
                l ^
                (splitmix64(key + round * 0xd1342543de82ef95ull + r) & mask);
            l = r;
            r = t;
        }
        x = l << half | r;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Sample number i of the run, as a sample of a part. */
static const Corpus *part_of(const Samples *samples, int64_t i, int64_t *sample)
{
    const Corpus *p = samples->part;

    i = samples->want.megatron ? i % samples->n : i;
    if (samples->blend)
        p += blend_at(samples->blend, i, &i);
    if (p->order && i >= p->n)
        err(samples->want.loc,
            "%s: the blend takes more than the %ld samples of %s",
            samples->want.key, p->n, p->path);
    if (p->order || !samples->want.shuffle || p->rows)
        *sample = p->lo + i % p->n;
    else
        *sample = p->lo +
                  data_order(samples->want.seed + (uint64_t)(p - samples->part),
                             i / p->n, i % p->n, p->n);
    return p;
}

/* ---- reading ------------------------------------------------------------- */

static const SampleFile *file_of(const Corpus *corpus, int64_t sample,
                                 const char *input)
{
    const SampleFile *files = corpus->file;
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

static SampleReader reader(const Samples *samples, const Corpus *corpus,
                           int64_t i, int64_t from, const char *input)
{
    const SampleFile *f = file_of(corpus, corpus->order ? 0 : i, input);
    SampleReader r = { .t = &f->t };

    if (corpus->order) {
        r.walk = order_walk(corpus->order, i, from);
        return r;
    }
    int64_t row = f->t.rows ? f->t.cols : samples->want.seq;
    int64_t end = f->t.rows ? (i - f->first + 1) * row : f->t.n;
    r.at = (i - f->first) * row + from;
    r.n = end > r.at ? end - r.at : 0;
    return r;
}

SampleReader samples_read(const Samples *samples, int64_t i, int64_t from,
                          const char *input)
{
    int64_t sample;
    const Corpus *p = part_of(samples, i, &sample);

    return reader(samples, p, sample, from, input);
}

int64_t reader_next(SampleReader *reader, int64_t *at)
{
    int64_t n = reader->n;

    if (reader->walk.o)
        return order_next(&reader->walk, at);
    *at = reader->at;
    reader->n = 0;
    return n;
}

/* Sample i of all parts, one after the other. */
SampleReader samples_plain(const Samples *samples, int64_t i)
{
    const Corpus *p = samples->part;

    while (i >= p->n && p + 1 < samples->part + vec_len(samples->part))
        i -= p++->n;
    return reader(samples, p, p->lo + i % p->n, 0, "");
}

/* ---- opening ------------------------------------------------------------- */

/* "0.7 a 0.3 b" or "size a size b"; anything else is one path. Weights of size
 * are left 0. */
static double *split_spec(Samples *samples)
{
    const char *rest = samples->want.spec, *word;
    double *weight = NULL;

    samples->weighted = opts_blend(rest) != 0;
    if (!samples->weighted) {
        vec_push(samples->mem, samples->part, (Corpus){ .path = rest });
        vec_push(samples->mem, weight, 1.0);
        return weight;
    }
    while ((word = next_word(&rest, " "))) {
        samples->weighted = strcmp(word, "size") != 0;
        vec_push(samples->mem, weight,
                 samples->weighted ? strtod(word, NULL) : 0);
        word = next_word(&rest, " ");
        vec_push(samples->mem, samples->part,
                 (Corpus){ .path = word ? word : "" });
    }
    return weight;
}

Samples *samples_open(Arena *a, const SampleWant *want)
{
    Samples *s = alloc(a, sizeof *s);

    *s = (Samples){ .mem = a, .want = *want };
    double *weight = split_spec(s);
    int n = (int)vec_len(s->part);
    for (int i = 0; i < n; i++)
        add_path(s, &s->part[i]);
    if (want->megatron) {
        order_parts(s, weight, n);
        return s;
    }
    for (int i = 0; i < n; i++) {
        Corpus *corpus = &s->part[i];
        count_samples(s, corpus);
        if (want->tail != 0)
            hold_out(s, corpus);
        s->n += corpus->n;
        if (!s->weighted)
            weight[i] = (double)corpus->n;
    }
    if (n > 1) {
        blend_normalize(weight, n);
        s->blend = blend_new(a, weight, n);
    }
    return s;
}
