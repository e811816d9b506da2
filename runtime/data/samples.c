/* samples.c: samples from files, in an order that is computed.
 *
 * A set is a part, or a blend of parts with weights: "0.7 a 0.3 b". A part is a
 * file, a folder (its data files, by name), or a pattern ("{a,b}-*.bin"). Its
 * tokens are cut into samples of seq tokens, labels being the next tokens. In
 * an array of rows (.npy) a row is a sample, seq + 1 long, or seq (its last
 * token then has no label); rows are used in order.
 *
 * The order of a part is a permutation for each epoch, a function of the seed,
 * and that of a blend is blend.c's: sample number i of a run is the same in
 * every fold, and a run that resumes needs nothing but its position.
 * order=megatron instead builds Megatron's (megatron.c). */
#include <ctype.h>
#include <glob.h>

#include "../../ir/settings/keys.h"
#include "data.h"

/* Returns the elements of a sample of an input: all axes but micro and
 * batch. */
int64_t sample_elems(const Tensor *tensor)
{
    int64_t n = 1;

    for (int d = 0; d < tensor->nd; d++)
        if (tensor->dim[d].role != ROLEmicro &&
            tensor->dim[d].role != ROLEbatch)
            n *= tensor->dim[d].n;
    return n;
}

/* ---- files --------------------------------------------------------------- */

void need_tokenizer(const Opts *opts, const Loc *loc, const char *text)
{
    const char *from = opts ? opts_str(opts, "from") : NULL;

    if (from && !opts_given(opts, "data.tokenizer") &&
        !access(strf(forever, "%s/config.json", from), F_OK))
        err(loc,
            "%s is a text, and %s has no tokenizer.json; data.tokenizer=FILE "
            "names one, data.tokenizer=bytes takes bytes",
            text, from);
}

/* Adds a file's kind to the list; consecutive equal kinds are named once. */
static void add_kind(const Samples *samples, Corpus *corpus, const Tokens *t)
{
    const char *format = key_word_text("data.format", (int)t->format);
    const char *kind =
        strf(samples->mem, "%s%s%s", format, t->packed ? " inside " : "",
             t->packed ? t->packed : "");

    if (!corpus->kinds)
        corpus->kinds = kind;
    else if (strcmp(corpus->kind, kind) != 0)
        corpus->kinds = strf(samples->mem, "%s and %s", corpus->kinds, kind);
    corpus->kind = kind;
}

static void add_file(const Samples *samples, Corpus *corpus, const char *path,
                     const char *input)
{
    const SampleWant *want = &samples->want;
    SampleFile f = { .input = input };
    Tokens kind = { 0 };
    const char *from = path;
    const char *why =
        tokens_kind(samples->mem, path, want->format, want->vocab, &kind);
    int format = kind.format;

    if (!why && want->text && format_is_text(format)) {
        from = tokenized(samples->mem, want->text, path, format);
        format = FORMATmegatron;
    }
    if (!why)
        why = tokens_open(samples->mem, from, format, want->vocab, NULL, &f.t);
    if (why)
        err(want->loc, "%s: %s %s", want->key, from, why);
    f.t.path = strf(samples->mem, "%s", path); /* the path for messages */
    add_kind(samples, corpus, &kind);
    if (format_is_text(f.t.format) && !want->text)
        need_tokenizer(want->plan ? want->plan->opts : NULL, want->loc,
                       strf(samples->mem, "%s: %s", want->key, path));
    if (want->shuffle || want->megatron)
        tokens_scattered(&f.t);
    vec_push(samples->mem, corpus->file, f);
}

const char *samples_arrays(const Samples *samples)
{
    Text out = { .arena = samples->mem };
    const Tensor *tensor;

    for (int i = 0; (tensor = plan_input(samples->want.plan, i)); i++)
        put(&out, "%s%s.npy", i ? " " : "", tensor->name);
    return out.s;
}

/* Adds a folder with one array for each input. */
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

/* Is it a Megatron index beside its tokens? */
static int is_index(const Samples *samples, const char *path)
{
    const uint8_t *s;
    int64_t n;
    int is = !map_whole(samples->mem, path, &s, &n) && n > 9 &&
             !memcmp(s, "MMIDIDX\0\0", 9);

    if (s)
        munmap((void *)(uintptr_t)s, (size_t)n);
    return is;
}

/* ---- folders ------------------------------------------------------------- */

typedef struct FolderFile {
    const char *path, *name;
    Tokens kind;
    int out;
} FolderFile;

/* Does the name begin with one of the words; whole: followed by no letter? */
static int begins(const char *name, const char *words, int whole)
{
    for (const char *word; (word = next_word(&words, " "));)
        if (!strncasecmp(name, word, strlen(word)) &&
            !(whole && isalpha((uint8_t)name[strlen(word)])))
            return 1;
    return 0;
}

/* Does the file describe the data: by its name, or as a single object without a
 * text? */
static int is_about(const Samples *samples, const FolderFile *file)
{
    const TextArgs *text = samples->want.text;
    TextRows rows;
    size_t n, len;
    char *why = NULL;

    if (begins(file->name,
               "_ README LICENSE NOTICE CITATION dataset_info dataset_dict "
               "state.json",
               0))
        return 1;
    if (file->kind.format != FORMATjsonl)
        return 0;
    const char *row = rows_open(&rows, file->path, FORMATjsonl, NULL)
                          ? NULL
                          : rows_next(&rows, &n);
    char *to = enlarge(NULL, row ? n : 1);
    if (row && *row == '{')
        why = json_text(row, n, text ? text->field : "text", to, &len);
    int is = why && !rows_next(&rows, &n) && !rows.why;
    free(to);
    free(why);
    rows_close(&rows);
    arena_free(rows.mem);
    return is;
}

/* Leaves out files of other splits: those beside the training split, or beside
 * the validation split. */
static void leave_splits(const Samples *samples, FolderFile *file)
{
    int valid = !strcmp(samples->want.key, "data.valid"), seen[2] = { 0, 0 };

    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < vec_len(file); i++) {
            int is = begins(file[i].name, "train", 1);
            int other =
                begins(file[i].name, "test val valid validation dev eval", 1);
            seen[0] |= is;
            seen[1] |= other;
            file[i].out |= pass && seen[0] && seen[1] && (valid ? is : other);
        }
}

/* Marks files of another kind than most bytes of the folder, which are left
 * out. Files of unknown kind stay: opening them reports the reason. */
static void leave_out(const Samples *samples, FolderFile *file)
{
    const SampleWant *want = &samples->want;
    int64_t bytes[FORMATnanogpt + 1] = { 0 };
    int most = FORMATauto;

    leave_splits(samples, file);
    for (size_t i = 0; i < vec_len(file); i++) {
        FolderFile *f = &file[i];
        const char *why = tokens_kind(samples->mem, f->path, want->format,
                                      want->vocab, &f->kind);
        f->out |= f->kind.foreign || !f->kind.size || is_about(samples, f);
        f->kind.format = why ? FORMATauto : f->kind.format;
        if (!f->out && f->kind.format)
            bytes[f->kind.format] += f->kind.size;
    }
    for (int i = 0; i <= FORMATnanogpt; i++)
        most = bytes[i] > bytes[most] ? i : most;
    for (size_t i = 0; i < vec_len(file); i++)
        file[i].out |= file[i].kind.format && file[i].kind.format != (int)most;
}

static const char *names_out(const Samples *samples, const FolderFile *file)
{
    Text names = { .arena = samples->mem };

    for (size_t i = 0; i < vec_len(file); i++)
        if (file[i].out)
            name_add(&names, file[i].name, (int64_t)strlen(file[i].name));
    return names.s;
}

/* Adds the data files of a folder. Returns 0 if there are none. */
static size_t add_folder(const Samples *samples, Corpus *corpus,
                         const char *dir)
{
    FolderFile *file = NULL;
    int why;
    char **name = folder_names(samples->mem, dir, &why);

    if (why)
        err(samples->want.loc, "cannot read %s: %s", dir, strerror(why));
    for (size_t i = 0; i < vec_len(name); i++) {
        FolderFile f = { .path = strf(samples->mem, "%s/%s", dir, name[i]),
                         .name = name[i] };
        if (*name[i] != '.' && !folder_exists(f.path) &&
            !is_index(samples, f.path))
            vec_push(samples->mem, file, f);
    }
    leave_out(samples, file);
    for (size_t i = 0; i < vec_len(file); i++)
        if (!file[i].out)
            add_file(samples, corpus, file[i].path, NULL);
    if (vec_len(corpus->file))
        corpus->without = names_out(samples, file);
    return vec_len(corpus->file);
}

/* ---- paths --------------------------------------------------------------- */

static void add_pattern(const Samples *samples, Corpus *corpus,
                        const char *pattern)
{
    const char *key = samples->want.key;
    glob_t g = { 0 };

    if (glob(pattern, GLOB_BRACE, NULL, &g) || !g.gl_pathc)
        err(samples->want.loc,
            "%s: no file %s (a path in a model file is relative to it; %s=path "
            "sets another; %s=\"0.7 A 0.3 B\" blends two)",
            key, corpus->path, key, key);
    for (size_t i = 0; i < g.gl_pathc; i++)
        if (!folder_exists(g.gl_pathv[i]) && !is_index(samples, g.gl_pathv[i]))
            add_file(samples, corpus, g.gl_pathv[i], NULL);
    globfree(&g);
    if (!vec_len(corpus->file))
        err(samples->want.loc, "%s: no files in %s", key, corpus->path);
}

/* Adds folders of splits: saved Hugging Face datasets have one per split,
 * datasets of the hub have their files in "data". */
static void add_folders(const Samples *samples, Corpus *corpus)
{
    const char *dir = corpus->path;
    const char *split = strf(samples->mem, "%s/train", dir);

    if (!access(strf(samples->mem, "%s/dataset_dict.json", dir), F_OK) &&
        folder_exists(split))
        dir = split;
    if (!add_folder(samples, corpus, dir) &&
        !add_folder(samples, corpus, strf(samples->mem, "%s/data", dir)))
        err(samples->want.loc, "%s: no files in %s that are data",
            samples->want.key, corpus->path);
}

static void add_path(Samples *samples, Corpus *corpus)
{
    const char *path = corpus->path;

    if (folder_exists(path)) {
        if (!add_arrays(samples, corpus, path))
            add_folders(samples, corpus);
    } else if (!access(path, F_OK)) {
        add_file(samples, corpus, path, NULL);
    } else if (!access(strf(samples->mem, "%s.idx", path), R_OK)) {
        add_file(samples, corpus, strf(samples->mem, "%s.bin", path), NULL);
    } else {
        add_pattern(samples, corpus, path);
    }
}

/* ---- samples ------------------------------------------------------------- */

/* Returns the input that an array feeds; null: a file of tokens. */
static const Tensor *fed(const SampleWant *want, const SampleFile *file)
{
    const Tensor *tensor;

    for (int i = 0; file->input && (tensor = plan_input(want->plan, i)); i++)
        if (!strcmp(tensor->name, file->input))
            return tensor;
    return NULL;
}

/* Sets rows: a one-dimensional array is a stream of sequences if its input is
 * one, otherwise it has a number for each sequence. */
static void take_rows(const SampleWant *want, SampleFile *file)
{
    const Tensor *tensor = fed(want, file);

    if (!file->t.rows && tensor &&
        (!tensor_axis(tensor, ROLEseq) || sample_elems(tensor) != want->seq)) {
        file->t.rows = file->t.n;
        file->t.cols = 1;
    }
}

static void count_rows(const Samples *samples, SampleFile *file)
{
    const SampleWant *want = &samples->want;
    const Tensor *tensor = fed(want, file);

    file->samples = file->t.rows;
    if (tensor && file->t.cols != sample_elems(tensor))
        err(want->loc, "%s: a row of %s has %ld elements, input '%s' needs %ld",
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
        take_rows(want, file);
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

/* Holds out the last share for validation. */
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

/* Counts samples of each part and of all, by the rules of
 * BlendedMegatronDatasetBuilder. */
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

/* A Feistel network over the next even power of two; a result outside [0, n) is
 * permuted again. */
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

/* Returns the part of sample i of the run, and its index there. */
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

    from += !f->input && !strcmp(input, "labels");
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

/* Returns a reader of sample i, counted over all parts in order. */
SampleReader samples_plain(const Samples *samples, int64_t i)
{
    const Corpus *p = samples->part;

    while (i >= p->n && p + 1 < samples->part + vec_len(samples->part))
        i -= p++->n;
    return reader(samples, p, p->lo + i % p->n, 0, "");
}

/* ---- opening ------------------------------------------------------------- */

/* Splits "0.7 a 0.3 b" or "size a size b"; anything else is one path. Weights
 * by size stay 0. */
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
