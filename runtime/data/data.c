/* data.c: fills the inputs of a step from samples (samples.c) in the layout of
 * the plan's tensors. data.valid may be `tail:0.1`, the last tenth of
 * data.train, which training then skips; with data.order=megatron and
 * data.split it is the second share of data.train's documents. */
#include <math.h>

#include "../../ir/settings/keys.h"
#include "data.h"

struct Data {
    const Plan *plan;
    const char *key;
    const Loc *loc;
    Samples *set;
    int64_t seq, batch, perstep; /* perstep: samples of a step */
    int64_t vocab;               /* 0: unknown */
    int64_t first;               /* first sample of the step of fill() */
};

/* ---- shapes -------------------------------------------------------------- */

int64_t plan_vocab(const Plan *p)
{
    int64_t most = 0;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const PlanDim *v = tensor_axis(&p->role[r].tensor[i], ROLEvocab);
            most = v && v->n > most ? v->n : most;
        }
    return most;
}

int64_t input_below(const Plan *p, const char *name)
{
    const Tensor *tensor;

    for (int i = 0; (tensor = plan_input(p, i)); i++)
        if (!strcmp(tensor->name, name) && tensor->below)
            return tensor->below;
    return INT32_MAX;
}

static void read_shape(Data *data)
{
    const Plan *p = data->plan;
    const Tensor *tensor;

    int64_t micro = 1;

    data->batch = 1;
    for (int i = 0; (tensor = plan_input(p, i)); i++) {
        const PlanDim *b = tensor_axis(tensor, ROLEbatch);
        const PlanDim *m = tensor_axis(tensor, ROLEmicro);
        data->batch = b ? b->n : data->batch;
        micro = m ? m->n : micro;
        if (!strcmp(tensor->name, "tokens") || !data->seq)
            data->seq = sample_elems(tensor);
    }
    data->vocab = plan_vocab(p);
    data->perstep = plan_micros(p, PGstep) * micro * data->batch;
}

/* ---- filling ------------------------------------------------------------- */

typedef struct BatchFill {
    const Data *d;
    const Tensor *t;
    int64_t rank, micro;
    void *dst;
} BatchFill;

static int is_tokens(const Tensor *tensor)
{
    return !strcmp(tensor->name, "tokens") || !strcmp(tensor->name, "labels");
}

/* Calls err() unless an index is an integer; NaN and infinity are not. */
static void check_whole(const BatchFill *fill, const Tokens *tokens, int64_t at,
                        double v)
{
    if (isfinite(v) && v != floor(v))
        err(fill->d->loc, "%s: %.9g at %ld of %s is not a whole number",
            fill->d->key, v, at, tokens->path);
}

/* Calls err() if a token is out of range. -1 is allowed: a label without loss,
 * or an index of no element. */
static void check_token(const BatchFill *fill, const Tokens *tokens, int64_t at,
                        double v)
{
    const Data *data = fill->d;
    int token = is_tokens(fill->t);
    int byte = fill->t->dt == Du8;
    int64_t below = fill->t->below ? fill->t->below : byte ? 256 : INT32_MAX;
    int none = !strcmp(fill->t->name, "labels") || (!token && !byte);
    double least = !token && !fill->t->below ? INT32_MIN : -none;

    if (!(v >= least) || v >= (double)below)
        err(data->loc, "%s: %s %.0f at %ld of %s is beyond the %s of %ld",
            data->key, token ? "token" : "index", v, at, tokens->path,
            token ? "vocabulary" : "axis", below);
    check_whole(fill, tokens, at, v);
}

/* Checks 32-bit tokens in dst; checks single tokens only if one may be
 * wrong. */
static void check_taken(const BatchFill *fill, const Tokens *tokens, int64_t at,
                        int64_t n, const int32_t *dst)
{
    int64_t below = fill->t->below ? fill->t->below : INT32_MAX;
    int32_t least = 0, most = 0;

    for (int64_t i = 0; i < n; i++) {
        least = dst[i] < least ? dst[i] : least;
        most = dst[i] > most ? dst[i] : most;
    }
    if (least < 0 || most >= below)
        for (int64_t i = 0; i < n; i++)
            check_token(fill, tokens, at + i, tokens_at(tokens, at + i));
}

enum { LOOK = 1 << 24 };  /* tokens checked at start, in all files */
enum { BLOCK = 4 << 10 }; /* tokens checked together */

static void look_at(const BatchFill *fill, const Tokens *tokens, int64_t n)
{
    int32_t v[BLOCK];

    tokens_ahead(tokens, 0, n);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t some = n - at < BLOCK ? n - at : BLOCK;
        tokens_take(tokens, at, some, v);
        check_taken(fill, tokens, at, some, v);
    }
}

/* Checks the first n elements of a file, for each input that they feed. */
static void look_at_file(const Data *data, const SampleFile *file, int64_t n)
{
    const Tensor *tensor;

    for (int i = 0; (tensor = plan_input(data->plan, i)); i++) {
        BatchFill f = { .d = data, .t = tensor };
        if ((!file->input || !strcmp(file->input, tensor->name)) &&
            (is_tokens(tensor) || tensor->below))
            look_at(&f, &file->t, file->t.n < n ? file->t.n : n);
    }
}

/* Checks the beginning of each file when a run starts. */
static void look_ahead(const Data *data)
{
    const Samples *samples = data->set;
    int64_t files = 0;

    for (size_t i = 0; i < vec_len(samples->part); i++)
        files += (int64_t)vec_len(samples->part[i].file);
    for (size_t i = 0; i < vec_len(samples->part); i++)
        for (size_t k = 0; k < vec_len(samples->part[i].file); k++)
            look_at_file(data, &samples->part[i].file[k], LOOK / files);
}

/* Fills 32-bit inputs, the common case. */
static void fill_i32(const BatchFill *fill, const Tokens *tokens, int64_t at,
                     int64_t n, int32_t *dst)
{
    tokens_take(tokens, at, n, dst);
    check_taken(fill, tokens, at, n, dst);
}

static void fill_any(const BatchFill *fill, const Tokens *t, int64_t at,
                     int64_t n, int64_t to)
{
    int tokens = is_tokens(fill->t);

    if (tokens && fill->t->dt == Di32) {
        fill_i32(fill, t, at, n, (int32_t *)fill->dst + to);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double v = tokens_at(t, at + i);
        if (tokens || dtypes[fill->t->dt].kind == 'i')
            check_token(fill, t, at + i, v);
        elem_set(fill->t->dt, fill->dst, to + i, v);
    }
}

/* Starts to read this rank's tokens of the next step. */
static void read_ahead(const BatchFill *fill, int64_t number, int64_t from,
                       int64_t n)
{
    SampleReader r = samples_read(fill->d->set, number + fill->d->perstep, from,
                                  fill->t->name);
    int64_t at, k;

    while (n > 0 && (k = reader_next(&r, &at)) > 0) {
        k = k < n ? k : n;
        tokens_ahead(r.t, at, k);
        n -= k;
    }
}

/* Copies elements [from, from + n) of a sample to dst[to ...]; -1 beyond its
 * end. */
static void fill_row(const BatchFill *fill, int64_t number, int64_t from,
                     int64_t n, int64_t to)
{
    SampleReader r = samples_read(fill->d->set, number, from, fill->t->name);
    int64_t at, k, left = n;

    while (left > 0 && (k = reader_next(&r, &at)) > 0) {
        k = k < left ? k : left;
        fill_any(fill, r.t, at, k, to);
        to += k;
        left -= k;
    }
    for (int64_t i = 0; i < left; i++)
        elem_set(fill->t->dt, fill->dst, to + i, -1);
    read_ahead(fill, number, from, n);
}

/* Fills dim d and the later ones: micro and batch select the sample, other dims
 * the place inside it. */
static void fill_dim(const BatchFill *fill, int d, int64_t micro, int64_t b,
                     int64_t inside, int64_t to)
{
    if (d == fill->t->nd) {
        const Data *k = fill->d;
        int64_t first = k->first + micro * k->batch + b;
        fill_row(fill, first, inside, 1, to);
        return;
    }
    const PlanDim *p = &fill->t->dim[d];
    const Mesh *m = fill->d->plan->mesh;
    int ismicro = p->role == ROLEmicro;
    int isbatch = p->role == ROLEbatch;
    int64_t held = dim_held(p);
    to *= held;
    if (d + 1 == fill->t->nd && !ismicro && !isbatch) {
        const Data *k = fill->d;
        int64_t first = k->first + micro * k->batch + b;
        for (int i = 0; i < p->npiece; to += p->piece[i++].len)
            fill_row(fill, first,
                     inside * p->n + aff_at(m, &p->piece[i].start, fill->rank),
                     p->piece[i].len, to);
        return;
    }
    for (int64_t j = 0; j < held; j++) {
        int64_t x = tensor_at(m, p, fill->rank, j);
        if (ismicro)
            fill_dim(fill, d + 1, fill->micro * p->n + x, b, inside, to + j);
        else if (isbatch)
            fill_dim(fill, d + 1, micro, x, inside, to + j);
        else
            fill_dim(fill, d + 1, micro, b, inside * p->n + x, to + j);
    }
}

static void fill(void *self, const Tensor *tensor, int64_t rank, int64_t micro,
                 void *dst)
{
    const Data *data = self;
    BatchFill f = { data, tensor, rank, micro, dst };

    fill_dim(&f, 0, 0, 0, 0, 0);
}

/* ---- interface ----------------------------------------------------------- */

Feed data_feed(Data *data, int64_t first)
{
    data->first = first;
    return (Feed){ fill, data };
}

void data_says(const Data *data, Text *out)
{
    const Corpus *corpus = data->set->part;
    const SampleWant *want = &data->set->want;

    for (size_t i = 0; i < vec_len(corpus); i++) {
        int64_t docs = 0, n = 0;
        for (size_t k = 0; k < vec_len(corpus[i].file); k++) {
            docs += corpus[i].file[k].t.docs;
            n += corpus[i].file[k].t.n;
        }
        put(out, "%s: %s: ", data->key, corpus[i].path);
        if (vec_len(corpus[i].file) > 1)
            put(out, "%zu files of ", vec_len(corpus[i].file));
        put(out, "%s, %ld document%s, %ld tokens", corpus[i].kinds, docs,
            docs == 1 ? "" : "s", n);
        if (want->tail > 0)
            put(out, "; %s the last %g %% of the samples",
                want->held ? "only" : "without", 100 * want->tail);
        if (want->split)
            put(out, "; documents from %.4g %% to %.4g %%",
                100 * want->share[0], 100 * want->share[1]);
        if (corpus[i].without)
            put(out, "; left out: %s", corpus[i].without);
        put(out, "\n");
    }
}

int64_t data_samples(const Data *data)
{
    return data->set->n;
}

int64_t data_perstep(const Data *data)
{
    return data->perstep;
}

int64_t data_vocab(const Data *data)
{
    return data->vocab;
}

const Samples *data_source(const Data *data)
{
    return data->set;
}

int64_t data_sample(const Data *data, int64_t i, int32_t *out)
{
    const Samples *samples = data->set;
    int64_t at, n, k = 0;

    if (samples->part[0].file[0].input)
        return 0;
    SampleReader r = samples->want.shuffle ? samples_plain(samples, i)
                                           : samples_read(samples, i, 0, "");
    while (out && k <= data->seq && (n = reader_next(&r, &at)) > 0)
        for (int64_t j = 0; j < n && k <= data->seq; j++)
            out[k++] = (int32_t)tokens_at(r.t, at + j);
    while (out && k <= data->seq)
        out[k++] = -1;
    return data->seq + 1;
}

/* ---- opening ------------------------------------------------------------- */

/* Returns the held-out share of "tail:0.1", or 0. Paths may have become
 * relative to a file. */
static double tail_share(const Plan *p)
{
    const char *s = opts_str(p->opts, "data.valid");

    s = s ? file_name(s) : NULL;
    if (!s || strncmp(s, "tail:", 5))
        return 0;
    char *end;
    double share = strtod(s + 5, &end);
    if (*end || end == s + 5 || !(share > 0 && share < 1))
        err(NULL, "data.valid=%s: the share of data.train is between 0 and 1",
            s);
    return share;
}

/* Returns the samples that a run draws, for Megatron's order: those of all
 * steps, or of all validations. */
static int64_t drawn(const Data *data, int valid)
{
    const Opts *opts = data->plan->opts;
    int64_t steps = opts_int(opts, "train.steps");
    int64_t every = opts_int(opts, "train.eval_every");

    if (valid)
        steps = ((every ? steps / every : 0) + 1) *
                opts_int(opts, "train.eval_steps");
    return steps * data->perstep;
}

/* Sets this key's share of data.train by data.split. Returns 0 if it has
 * none. */
static int take_share(const Data *data, int valid, SampleWant *want)
{
    const Opts *opts = data->plan->opts;
    const char *split = opts_str(opts, "data.split");
    const Loc *loc = opts_loc(opts, "data.split");

    if (!split)
        return 1;
    if (!want->megatron)
        err(loc,
            "data.split is a share of documents and needs data.order=megatron "
            "(data.valid=tail:0.1 holds samples out in any order)");
    if (valid && want->spec && *want->spec)
        err(loc, "data.split gives a part of data.train to validation, and "
                 "data.valid is set too");
    int k = split_share(split, valid, want->share);
    if (k < 0 || (!k && !valid))
        err(loc,
            "data.split: '%s' is not like 969,30,1, with something for "
            "training",
            split);
    want->split = 1;
    want->spec = valid ? opts_str(opts, "data.train") : want->spec;
    return k;
}

static int take_tail(const Data *data, int valid, SampleWant *want)
{
    want->tail = tail_share(data->plan);
    if (want->tail == 0)
        return 1;
    if (want->megatron)
        err(data->loc, "data.valid: a tail is a share of samples in the files' "
                       "order; data.order=megatron needs data.split");
    want->held = valid;
    if (valid)
        want->spec = opts_str(data->plan->opts, "data.train");
    if (!want->spec || !*want->spec)
        err(data->loc, "%s takes the tail of data.train, which is not set",
            data->key);
    return 1;
}

/* Returns the tokenizer of texts, or null. Calls err() if the model's
 * vocabulary is smaller. */
static const TextArgs *take_text(Arena *a, const Data *data)
{
    const Opts *opts = data->plan->opts;
    TextArgs *t = alloc(a, sizeof *t);

    *t = text_args(opts);
    int64_t below = input_below(data->plan, "tokens");
    if (t->t && t->t->vocab > below)
        err(opts_loc(opts, "data.tokenizer"),
            "%s has %ld tokens, the model's vocabulary %ld (axes.vocab)",
            t->t->path, t->t->vocab, below);
    return t->t ? t : NULL;
}

/* Calls err() for inputs other than tokens and labels without an array: files
 * of tokens feed only these. */
static void need_arrays(const Data *data)
{
    const Tensor *tensor;

    for (size_t k = 0; k < vec_len(data->set->part); k++)
        for (int i = 0; (tensor = plan_input(data->plan, i)); i++)
            if (!data->set->part[k].file[0].input && !is_tokens(tensor))
                err(&(Loc){ tensor->file, tensor->line, NULL },
                    "%s: %s holds tokens; input '%s' needs a folder with an "
                    "array for each input: %s",
                    data->key, data->set->part[k].path, tensor->name,
                    samples_arrays(data->set));
}

Data *data_open(Arena *a, const Plan *p, const char *key, int flags)
{
    return data_open_at(a, p, key, opts_str(p->opts, key), flags);
}

Data *data_open_at(Arena *a, const Plan *p, const char *key, const char *spec,
                   int flags)
{
    const Opts *opts = p->opts;
    enum sample_order order = opts_sample_order(opts);
    int valid = !strcmp(key, "data.valid");
    Data *d = alloc(a, sizeof *d);

    *d = (Data){ .plan = p, .key = key, .loc = opts_loc(opts, key) };
    SampleWant w = {
        .key = key,
        .loc = d->loc,
        .spec = spec,
        .plan = p,
        .format = opts_data_format(opts),
        .share = { 0, 1 },
        .seed = (uint64_t)opts_int(opts, "seed"),
        .megatron = order == ORDERmegatron,
        .shuffle = flags & DATAshuffle && order == ORDERshuffle,
    };
    if (!plan_input(p, 0) || !take_share(d, valid, &w) || !w.spec || !*w.spec)
        return NULL;
    take_tail(d, valid, &w);
    if (w.megatron && opts_given(opts, "train.ramp"))
        err(opts_loc(opts, "train.ramp"),
            "data.order=megatron goes by the samples of the whole run, which "
            "train.ramp leaves open");
    read_shape(d);
    w.text = take_text(a, d);
    w.seq = d->seq;
    w.vocab = d->vocab;
    w.samples = drawn(d, valid);
    d->set = samples_open(a, &w);
    need_arrays(d);
    look_ahead(d);
    return d;
}
