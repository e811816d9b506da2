/* ckpt.c: checkpoints. A folder holds logical tensors, whatever the fold:
 *
 *     step-00000100/model.safetensors   weights (masters, if any) and states
 *                   optim.safetensors   moments
 *                   state.json          step, tokens, data position, seed, plan
 *                   index               hash and size of each, then its own
 *     latest                            the newest's name, a hint for people
 *
 * Every process writes the boxes it owns into files that rank 0 laid out. The
 * folder is made under another name, its files and itself are synced, and it
 * is renamed: a crash leaves the old checkpoints and at most one folder that
 * begins with a dot. Reading trusts the index only: a file that does not hash
 * to what it says is refused, and the checkpoint before is taken. ckptdir.c
 * does what concerns the folder; here is what is in its files. */
#include "ckpt.h"

static const unsigned ourkinds[] = { MODELTENSORS, MOMENTS };

/* ---- which tensors go where ---------------------------------------------- */

/* What holds a tensor's exact value: its master, if it has one, or itself and
 * what it has not of one. */
typedef struct ExactValue {
    const Tensor *tensor, *remainder; /* null: there is none */
} ExactValue;

static ExactValue exact_of(const Role *role, const Tensor *tensor)
{
    const Tensor *master = tensor_companion(role, tensor, TKmaster);

    return (ExactValue){ master ? master : tensor,
                         tensor_companion(role, tensor, TKremainder) };
}

static const char *axes_of(Arena *a, const Tensor *tensor)
{
    Text s = { .arena = a };

    put(&s, "%s", tensor->nd ? tensor->dim[0].axis : "");
    for (int d = 1; d < tensor->nd; d++)
        put(&s, " %s", tensor->dim[d].axis);
    return s.s;
}

StTensor ckpt_describe(Arena *a, const Tensor *tensor, const char *name)
{
    StTensor s = { .name = name,
                   .dt = st_type(tensor->dt),
                   .nd = tensor->nd,
                   .bytes = dtypes[tensor->dt].bytes,
                   .axes = axes_of(a, tensor) };

    for (int d = 0; d < tensor->nd; d++)
        s.n[d] = tensor->dim[d].n;
    return s;
}

static int listed(const StTensor *tensor, const char *name)
{
    for (size_t i = 0; i < vec_len(tensor); i++)
        if (!strcmp(tensor[i].name, name))
            return 1;
    return 0;
}

/* Tensors of one of the files, over all roles. A vec. */
static StTensor *list_tensors(Arena *a, const Plan *p, int file)
{
    StTensor *v = NULL;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *tensor = &p->role[r].tensor[i];
            if (!tensor_is(tensor, ourkinds[file]) ||
                (r && listed(v, tensor->name)))
                continue;
            ExactValue of = exact_of(&p->role[r], tensor);
            Tensor whole = *of.tensor;
            whole.dt = of.remainder ? Df32 : whole.dt;
            StTensor s = ckpt_describe(a, &whole, tensor->name);
            vec_push(a, v, s);
        }
    return v;
}

/* ---- saving -------------------------------------------------------------- */

/* What this process writes of tensors that begin at `data` of a file: a vec. */
static FilePart *boxes_of(Exec *exec, Arena *a, const StTensor *tensor,
                          int64_t data)
{
    FilePart *box = NULL;

    for (int64_t k = 0; k < exec->comm->n; k++) {
        int64_t rank = exec->comm->first + k;
        const Role *r = exec_role(exec, rank);
        for (size_t i = 0; i < vec_len(tensor); i++) {
            int at = role_tensor(r, tensor[i].name);
            if (at < 0)
                continue;
            ExactValue of = exact_of(r, &r->tensor[at]);
            const Tensor *t = of.tensor, *left = of.remainder;
            if (tensor_owner(exec->plan->mesh, t, rank))
                vec_push(
                    a, box,
                    ((FilePart){ t, rank, data + tensor[i].begin,
                                 tensor[i].end - tensor[i].begin,
                                 tensor[i].bytes, exec_buf(exec, rank, t->buf),
                                 left ? exec_buf(exec, rank, left->buf) : NULL,
                                 NULL }));
        }
    }
    return box;
}

CkptFile ckpt_file(Arena *a, Exec *exec, int file)
{
    StTensor *v = list_tensors(a, exec->plan, file);
    CkptFile f;

    f.head = st_header(a, v, (int)vec_len(v), &f.len, &f.total);
    f.box = boxes_of(exec, a, v, (int64_t)f.len);
    if (exec->comm->first == 0)
        vec_push(
            a, f.box,
            ((FilePart){ NULL, 0, 0, (int64_t)f.len, 1, f.head, NULL, NULL }));
    return f;
}

int64_t ckpt_bytes(Arena *a, const Plan *p)
{
    int64_t sum = 0, total;
    size_t len;

    for (int i = MODEL; i <= OPTIM; i++) {
        StTensor *v = list_tensors(a, p, i);
        st_header(a, v, (int)vec_len(v), &len, &total);
        sum += total;
    }
    return sum;
}

static int by_place(const void *a, const void *b)
{
    const Extent *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* Neighbours become one: a gap is what alignment leaves. */
static Extent *neighbours(Arena *a, Extent *extent)
{
    enum { GAP = 4096 };
    Extent *out = NULL;
    int64_t to = 0;

    vec_sort(extent, by_place);
    for (size_t i = 0; i < vec_len(extent); i++) {
        Extent *last = out ? &out[vec_len(out) - 1] : NULL;
        int64_t end = extent[i].at + extent[i].bytes;
        if (last && extent[i].at <= last->at + last->bytes + GAP) {
            int64_t more = end - (last->at + last->bytes);
            last->bytes += more > 0 ? more : 0;
            continue;
        }
        to += last ? (last->bytes + GAP - 1) / GAP * GAP : 0;
        vec_push(a, out, ((Extent){ extent[i].at, extent[i].bytes, to }));
    }
    return out;
}

static void add_extent(Arena *a, Extent **v, const Role *role,
                       const Tensor *tensor)
{
    const Buf *b = &role->buf[tensor->buf];

    vec_push(a, *v, ((Extent){ b->offset, b->bytes, 0 }));
}

Extent *ckpt_ranges(Arena *a, const Plan *p, int64_t rank)
{
    const Role *r = &p->role[role_of(p, rank)];
    Extent *v = NULL;

    for (int f = MODEL; f <= OPTIM; f++)
        for (int i = 0; i < r->ntensor; i++) {
            if (!tensor_is(&r->tensor[i], ourkinds[f]))
                continue;
            ExactValue of = exact_of(r, &r->tensor[i]);
            if (!tensor_owner(p->mesh, of.tensor, rank))
                continue;
            add_extent(a, &v, r, of.tensor);
            if (of.remainder)
                add_extent(a, &v, r, of.remainder);
        }
    return neighbours(a, v);
}

/* ---- loading ------------------------------------------------------------- */

static _Noreturn void bad_shape(const StFile *file, const StTensor *st_tensor,
                                const Tensor *tensor)
{
    Text a = { .arena = forever }, b = { .arena = forever };

    for (int d = 0; d < st_tensor->nd; d++)
        put(&a, "%s%ld", d ? " " : "", st_tensor->n[d]);
    for (int d = 0; d < tensor->nd; d++)
        put(&b, "%s%s=%ld", d ? " " : "", tensor->dim[d].axis,
            tensor->dim[d].n);
    err(&(Loc){ tensor->file, tensor->line, NULL },
        "'%s' is [%s] here and [%s] in %s", tensor->name, b.s ? b.s : "",
        a.s ? a.s : "", file->path);
}

/* Position of an axis in a list of names, or -1. */
static int axis_at(const char *axes, const char *axis)
{
    size_t n = strlen(axis);

    for (int i = 0; *axes; i++) {
        size_t len = strcspn(axes, " ");
        if (len == n && !strncmp(axes, axis, n))
            return i;
        axes += len + (axes[len] == ' ');
    }
    return -1;
}

/* By axis name where the file says them, else dim by dim. */
View ckpt_view(const StFile *file, const StTensor *st_tensor,
               const Tensor *tensor)
{
    View v = { .data = file->data + st_tensor->begin, .dt = st_tensor->dt };
    int64_t stride[MAXD], step = 1;

    if (st_tensor->nd != tensor->nd)
        bad_shape(file, st_tensor, tensor);
    for (int d = st_tensor->nd - 1; d >= 0; step *= st_tensor->n[d--])
        stride[d] = step;
    for (int d = 0; d < tensor->nd; d++) {
        int k =
            st_tensor->axes ? axis_at(st_tensor->axes, tensor->dim[d].axis) : d;
        if (k < 0 || k >= st_tensor->nd || st_tensor->n[k] != tensor->dim[d].n)
            bad_shape(file, st_tensor, tensor);
        v.stride[d] = stride[k];
        v.fix[d] = -1;
    }
    if (st_tensor->dt != st_type(tensor->dt) && tensor->kind != TKremainder &&
        (dtypes[tensor->dt].kind == 'f') != st_isfloat(st_tensor->dt))
        err(NULL, "'%s' is %s here and %s in %s", tensor->name,
            dtypes[tensor->dt].name, st_name(st_tensor->dt), file->path);
    return v;
}

/* The name a tensor's value has in our files. */
static const char *stored_name(const Role *role, const Tensor *tensor)
{
    return tensor_is(tensor, MASTERS) ? role->tensor[tensor->of].name
                                      : tensor->name;
}

typedef struct Files {
    StFile **file;
    int n;
    const char *what;
    const char *source; /* name of a key from.SCOPE; null: `from` */
    int begins;         /* parameters of the key `new` may be missing */
} Files;

typedef struct TensorLoad { /* of one rank's tensor */
    const Tensor *t;
    int64_t rank;
    View v;
    void *to;
} TensorLoad;

typedef struct TensorLoads {
    const Mesh *mesh;
    const TensorLoad *load;
} TensorLoads; /* vec */

static void load_some(void *ctx, int64_t lo, int64_t hi)
{
    const TensorLoads *all = ctx;

    for (int64_t i = lo; i < hi; i++) {
        const TensorLoad *load = &all->load[i];
        view_load(all->mesh, load->t, load->rank, &load->v, load->to);
    }
}

/* A moment of any role that the files lack; null: they have all. */
static const char *lacking(const Plan *p, const Files *files)
{
    StFile *file;

    for (int r = 0; r < p->nrole; r++)
        for (int i = 0; i < p->role[r].ntensor; i++) {
            const Tensor *t = &p->role[r].tensor[i];
            if (tensor_is(t, MOMENTS) &&
                !st_find_in(files->file, files->n, t->name, &file))
                return t->name;
        }
    return NULL;
}

int ckpt_begins(const Plan *p, const char *param)
{
    const char *rest;

    return opts_match(p->opts, "new", param) ||
           opts_source(p->opts, param, &rest) ||
           (opts_str(p->opts, "adapter") && pattern_match("*.lora_*", param));
}

enum {
    WEIGHTS = PARAMETERS | 1 << TKcopy,
    VALUES = MODELTENSORS | COPIEDTENSORS | MASTERS,
    NEEDED = VALUES & ~(1 << TKhistory)
};

/* Does a tensor come from these files? *name: its name there. */
static int takes(const Plan *p, const Files *files, const char **name)
{
    return !files->source || opts_source(p->opts, *name, name) == files->source;
}

/* Fill the tensors of these kinds on every rank here, but for numbers, which
 * masters make (exec_filled). Kinds in `must` have to be in the files. Moments
 * are 0 if they are none of the kinds. */
static void load_tensors(Exec *exec, Files *files, unsigned kinds,
                         unsigned must)
{
    Arena *a = arena_new();
    TensorLoad *load = NULL;

    exec_guard(exec, STREAMcompute);
    for (int64_t k = 0; k < exec->comm->n; k++) {
        int64_t rank = exec->comm->first + k;
        const Role *r = exec_role(exec, rank);
        for (int i = 0; i < r->ntensor; i++) {
            const Tensor *tensor = &r->tensor[i];
            const char *name = stored_name(r, tensor);
            StFile *file;
            if (!files->source && tensor_is(tensor, MOMENTS & ~kinds))
                memset(exec_buf(exec, rank, tensor->buf), 0,
                       (size_t)r->buf[tensor->buf].bytes);
            if (!tensor_is(tensor, kinds) || !takes(exec->plan, files, &name))
                continue;
            StTensor *st = st_find_in(files->file, files->n, name, &file);
            if (!st && tensor_is(tensor, must) &&
                !(files->begins && ckpt_begins(exec->plan, name)))
                err(&(Loc){ tensor->file, tensor->line, NULL },
                    "%s has no tensor '%s'", files->what, name);
            if (!st || tensor->kind == TKnumbers)
                continue;
            vec_push(a, load,
                     ((TensorLoad){ tensor, rank, ckpt_view(file, st, tensor),
                                    exec_buf(exec, rank, tensor->buf) }));
        }
    }
    pool_run(exec->pool, load_some, &(TensorLoads){ exec->plan->mesh, load },
             (int64_t)vec_len(load), 1);
    arena_free(a);
}

/* Histories belong to a recipe of precision, which another run of the model
 * need not have. */
static int is_history(const char *name)
{
    return !strncmp(name, HISTORYPREFIX, strlen(HISTORYPREFIX));
}

static int is_known(const Plan *p, const char *name)
{
    int known = is_history(name);

    for (int r = 0; r < p->nrole && !known; r++)
        known = role_tensor(&p->role[r], name) >= 0;
    return known;
}

/* err(): a tensor of the files that the model lacks. Returns the names of the
 * states that another optimizer left, " v z", and their number of tensors. */
static const char *leftovers(const Plan *p, const Files *files, int *n)
{
    Text names = { .arena = forever };

    putn(&names, "", 0);
    for (int i = 0; i < files->n; i++)
        for (int k = 0; k < files->file[i]->n; k++) {
            const char *name = files->file[i]->t[k].name;
            int of = kind_prefix(TKmoment, name);
            if (is_known(p, files->source
                                ? strf(forever, "%s.%s", files->source, name)
                                : name))
                continue;
            if (of < 0 || !is_known(p, name + of))
                err(NULL, "%s has a tensor '%s' that the model has not",
                    files->what, name);
            int skip = (int)strlen(tensor_kinds[TKmoment].prefix);
            const char *state =
                strf(forever, " %.*s", of - skip - 1, name + skip);
            if (!has_word(names.s, ' ', state + 1))
                put(&names, "%s", state);
            ++*n;
        }
    return names.s;
}

/* ---- resuming ------------------------------------------------------------ */

void ckpt_load(Exec *exec, const char *path, State *state)
{
    Arena *a = forever;
    StFile *file[2];
    int dropped = 0;

    for (int i = MODEL; i <= OPTIM; i++)
        file[i] = st_need(a, strf(a, "%s/%s", path, ckptfile[i]));
    Files src = { file, 2, path, NULL, 0 };
    const char *left = leftovers(exec->plan, &src, &dropped),
               *lacks = lacking(exec->plan, &src);
    load_tensors(exec, &src, lacks ? VALUES : VALUES | MOMENTS,
                 state->step ? NEEDED : WEIGHTS | MASTERS);
    if (lacks)
        state->began = state->step;
    exec->began = state->began;
    if (state->step && (dropped || lacks) && exec->comm->first == 0)
        warn(NULL,
             "%s has states of another optimizer or train.freeze: weights are "
             "kept, %d states dropped%s%s%s",
             path, dropped, dropped ? ":" : "", left,
             lacks ? strf(a, "; without %s all states begin at 0", lacks) : "");
    st_close(file[0]);
    st_close(file[1]);
}

int ckpt_resume(Exec *exec, const char *dir, State *state)
{
    char *path = ckpt_newest(forever, dir, state, exec->comm);

    if (path)
        ckpt_load(exec, path, state);
    return path != NULL;
}

/* ---- starting from weights ----------------------------------------------- */

static int exists(const char *path)
{
    return !access(path, R_OK);
}

/* A vec of the files that a Hugging Face index names, each once. */
static StFile **open_indexed(Arena *a, const char *dir, const char *index)
{
    JsonError e = { 0 };
    JsonValue v, map = { 0 }, name;
    const char **seen = NULL;
    StFile **files = NULL;

    if (!jv_load(a, index, &v, &e))
        map = jv_get(v, "weight_map");
    if (jv_kind(map) != JSONobject)
        err(NULL, "%s is no index: %s", index, e.why ? e.why : "no weight_map");
    for (size_t at = 0; jv_next(map, &at, &name, &v);) {
        const char *file = jv_text(a, v, NULL);
        size_t i = 0;
        if (!file || strchr(file, '/'))
            err(NULL, "%s: %.*s is in no file of this folder", index,
                (int)name.n, name.s);
        while (i < vec_len(seen) && strcmp(seen[i], file))
            i++;
        if (i < vec_len(seen))
            continue;
        vec_push(a, seen, file);
        const char *path = strf(a, "%s/%s", dir, file);
        if (!exists(path))
            err(NULL,
                "%s: %s, which it names, is not there; fetch it again (hf "
                "download resumes)",
                index, file);
        vec_push(a, files, st_need(a, path));
    }
    const char *single = "model.safetensors";
    for (size_t i = 0; i < vec_len(seen); i++)
        single = strcmp(seen[i], "model.safetensors") ? single : NULL;
    if (single && exists(strf(a, "%s/%s", dir, single)))
        err(NULL,
            "%s names other files than %s, which is there too: two sets of "
            "weights; move one away",
            index, single);
    return files;
}

/* The files behind `from`: a file, a checkpoint, a run, or a Hub folder. */
static StFile **one_file(Arena *a, const char *path)
{
    StFile **v = NULL;

    vec_push(a, v, st_need(a, path));
    return v;
}

/* The newest whole checkpoint of a run or of its folder; null: it has none. */
static const char *newest_of(Arena *a, const char *path)
{
    State s;
    const char *inside = strf(a, "%s/ckpt", path);

    return ckpt_exists(path)     ? ckpt_newest(a, path, &s, NULL)
           : ckpt_exists(inside) ? ckpt_newest(a, inside, &s, NULL)
                                 : NULL;
}

/* Weights of another format in a folder, and how to convert them; "". */
static const char *other_weights(Arena *a, const char *dir)
{
    static const char *const names[] = { "pytorch_model.bin",
                                         "pytorch_model.bin.index.json",
                                         "consolidated.safetensors",
                                         "adapter_model.safetensors" };

    for (int i = 0; i < countof(names); i++)
        if (exists(strf(a, "%s/%s", dir, names[i])))
            return strf(a,
                        " but %s; transformers converts: "
                        "AutoModelForCausalLM.from_pretrained(DIR)"
                        ".save_pretrained(NEW)",
                        names[i]);
    return "";
}

StFile **folder_weights(Arena *a, const char *dir)
{
    const char *index = strf(a, "%s/model.safetensors.index.json", dir);
    const char *single = strf(a, "%s/model.safetensors", dir);

    return exists(index)    ? open_indexed(a, dir, index)
           : exists(single) ? one_file(a, single)
                            : NULL;
}

StFile **ckpt_files(Arena *a, const char *path)
{
    State s;
    const char *dir = NULL;
    struct stat st;

    if (stat(path, &st))
        err(NULL, "from: %s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return one_file(a, path);
    if (exists(strf(a, "%s/index", path))) {
        const char *why = ckpt_verify(a, path, &s);
        if (why)
            err(NULL, "from: %s: %s", path, why);
    } else if ((dir = newest_of(a, path)) && folder_weights(a, path)) {
        err(NULL,
            "from: %s has weights and checkpoints: from=%s is the newest "
            "checkpoint, from=FILE.safetensors is a file of weights",
            path, dir);
    }
    StFile **file = folder_weights(a, dir ? dir : path);
    if (!file)
        err(NULL, "from: %s holds no checkpoint and no model.safetensors%s",
            path, other_weights(a, path));
    return file;
}

static int uses_hf_names(const Plan *p, const Files *files)
{
    StFile *file;

    for (int i = 0; i < p->nhf; i++) {
        const char *colon = strchr(p->hf[i].hf, ':');
        if (st_find_in(files->file, files->n, colon ? colon + 1 : p->hf[i].hf,
                       &file))
            return 1;
    }
    return 0;
}

/* Is one of n elements NaN? The two usual dtypes by their bits, in a loop that
 * vectorizes. */
static int has_nan(Dtype dt, const void *p, int64_t from, int64_t n)
{
    const uint32_t *wide = (const uint32_t *)p + from;
    const uint16_t *half = (const uint16_t *)p + from;
    int bad = 0;

    for (int64_t i = 0; i < n && dt == Df32; i++)
        bad |= (wide[i] & 0x7fffffff) > 0x7f800000;
    for (int64_t i = 0; i < n && dt == Dbf16; i++)
        bad |= (half[i] & 0x7fff) > 0x7f80;
    for (int64_t i = 0; i < n && dt != Df32 && dt != Dbf16 && !bad; i++)
        bad = isnan(elem_get(dt, p, from + i));
    return bad;
}

typedef struct NanSearch {
    const Exec *exec;
    const char **name; /* by rank and tensor: null, or that has a NaN */
    int64_t most;      /* tensors of a rank */
} NanSearch;

static void search_nan(void *ctx, int64_t lo, int64_t hi)
{
    const NanSearch *search = ctx;
    const Exec *x = search->exec;

    for (int64_t i = lo; i < hi; i++) {
        int64_t rank = x->comm->first + i / search->most;
        const Role *r = exec_role(x, rank);
        if (i % search->most >= r->ntensor)
            continue;
        const Tensor *t = &r->tensor[i % search->most];
        if (!tensor_is(t, WEIGHTS | MASTERS) || dtypes[t->dt].kind != 'f')
            continue;
        Clip clip = clip_of(x->plan->mesh, t, rank);
        if (has_nan(t->dt, exec_buf(x, rank, t->buf), clip.lo + clip.shift,
                    clip.hi - clip.lo))
            search->name[i] = stored_name(r, t);
    }
}

/* Training on them would only be NaN. */
static void refuse_nan(const Exec *exec, const char *path)
{
    NanSearch s = { .exec = exec };

    for (int64_t k = 0; k < exec->comm->n; k++) {
        int64_t n = exec_role(exec, exec->comm->first + k)->ntensor;
        s.most = n > s.most ? n : s.most;
    }
    int64_t all = exec->comm->n * s.most;
    s.name = alloc(forever, (size_t)(all + 1) * sizeof *s.name);
    pool_run(exec->pool, search_nan, &s, all, 1);
    for (int64_t i = 0; i < all; i++)
        if (s.name[i])
            err(NULL, "from: the values of '%s' in %s include NaN", s.name[i],
                path);
}

static void load_adapters(Exec *exec, const char *dir)
{
    StFile *file =
        st_need(forever, strf(forever, "%s/adapter_model.safetensors", dir));

    hf_agree_adapter(exec->plan, dir);
    hf_load(exec, &file, 1, dir, HFadapters, NULL);
    st_close(file);
}

int ckpt_is_from(const Plan *p, const char *path)
{
    const char *from = opts_str(p->opts, "from");

    return from && !strcmp(from, path);
}

/* source: of a key from.SCOPE, whose config.json may be another model's. */
static void load_from(Exec *exec, const char *path, const char *source)
{
    StFile **v = ckpt_files(forever, path);
    Files s = { v, (int)vec_len(v), path, source, !source };

    if (uses_hf_names(exec->plan, &s)) {
        if (!source)
            hf_agree(exec->plan, path);
        hf_load(exec, v, s.n, path, 0, source);
    } else {
        if (role_prog(&exec->plan->role[0], PGstep) >= 0 &&
            !(source && ckpt_is_from(exec->plan, path)))
            leftovers(exec->plan, &s, &(int){ 0 });
        load_tensors(exec, &s, VALUES, WEIGHTS);
    }
    if (!source && opts_str(exec->plan->opts, "adapter"))
        load_adapters(exec, opts_str(exec->plan->opts, "adapter"));
    refuse_nan(exec, path);
    for (int i = 0; i < s.n; i++)
        st_close(v[i]);
}

/* The i-th folder of weights, and its scope; null: there are no more. */
static const char *source_at(const Opts *opts, int i, const char **scope)
{
    const char *key, *value;

    for (int k = 0; opts_each(opts, k, &key, &value); k++) {
        int more = !strncmp(key, "from.", 5);
        if ((more || !strcmp(key, "from")) && !i--) {
            *scope = more ? key + 5 : NULL;
            return value;
        }
    }
    return NULL;
}

int ckpt_has_from(const Opts *opts)
{
    const char *scope;

    return source_at(opts, 0, &scope) != NULL;
}

void ckpt_from(Exec *exec, const char *path)
{
    load_from(exec, path, NULL);
}

void ckpt_from_keys(Exec *exec)
{
    const char *path, *scope;

    for (int i = 0; (path = source_at(exec->plan->opts, i, &scope)); i++)
        load_from(exec, path, scope);
}
