/* hffolder.c: what lies in a Hugging Face folder beside its weights: its
 * config.json against the model, its tokenizer, what a run keeps of it (in its
 * own folder `hf`) and gives to the folders that it exports. */
#include <dirent.h>

#include "../../ir/settings/keys.h"
#include "ckpt.h"

static int exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* A run is the folder that has a plan. */
char *run_file_near(Arena *a, const char *folder, const char *name)
{
    static const char *const up[] = { "", "../", "../../" };

    for (int i = 0; i < 3; i++) {
        char *path = strf(a, "%s/%s%s", folder, up[i], name);
        if (exists(strf(a, "%s/%splan", folder, up[i])))
            return exists(path) ? path : NULL;
    }
    return NULL;
}

/* An object, or null: there is no such file. */
static json_t *read_object(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);

    if (!j && exists(path))
        err(&(Loc){ path, e.line, NULL }, "%s", e.text);
    if (j && !json_is_object(j))
        err(NULL, "%s holds no JSON object", path);
    return j;
}

static int write_object(const json_t *j, const char *path)
{
    char *s = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    int bad = !s || file_write(path, s, strlen(s));

    free(s);
    return bad ? ckpt_complain(ckpt_why(forever, "cannot write", path)) : 0;
}

/* ---- in ------------------------------------------------------------------ */

json_t *hf_config_read(const char *folder)
{
    return read_object(strf(forever, "%s/config.json", folder));
}

/* What the model says; null: nothing. */
static json_t *config_of(const Plan *p)
{
    const char *s = opts_str(p->opts, "hf.config");
    json_error_t e;
    json_t *j = s ? json_loads(s, 0, &e) : NULL;

    if (json_is_object(j))
        return j;
    json_decref(j);
    return NULL;
}

void hf_agree(const Plan *p, const char *path)
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    int file = !stat(path, &st) && !S_ISDIR(st.st_mode);
    const char *dir = !file   ? path
                      : slash ? strf(forever, "%.*s", (int)(slash - path), path)
                              : ".";
    json_t *theirs = hf_config_read(dir), *ours = config_of(p);
    const char *why = theirs && ours
                          ? hf_config_differs(forever, ours, theirs,
                                              opts_str(p->opts, "hf.except"))
                          : NULL;

    json_decref(theirs);
    json_decref(ours);
    if (why)
        err(opts_loc(p->opts, "hf.config"),
            "%s/config.json %s (hf.except=KEY allows it)", dir, why);
}

/* A run is one by its folder or by that of a checkpoint. */
static int is_run(const char *path)
{
    return exists(strf(forever, "%s/state.json", path)) ||
           exists(strf(forever, "%s/ckpt", path)) || ckpt_exists(path);
}

void tokenizer_from(Opts *opts)
{
    const char *from = opts_str(opts, "from"), *name = "tokenizer.json";

    if (!from || opts_given(opts, "data.tokenizer"))
        return;
    const char *path = is_run(from) ? run_file_near(forever, from, name)
                                    : strf(forever, "%s/%s", from, name);
    if (path && exists(path))
        opts_set(opts, "data.tokenizer", path, opts_loc(opts, "from"));
}

/* ---- what is beside weights ---------------------------------------------- */

static int is_beside(const char *name)
{
    static const char *const end[] = { ".json", ".txt", ".model", ".jinja" };
    const char *dot = strrchr(name, '.');

    return dot && *name != '.' && !strstr(name, ".safetensors") &&
           word_index(dot, end, 4) >= 0;
}

/* Copy a file of another folder; 0, or -1 with a warning. */
static int copy_file(const char *from, const char *to)
{
    Arena *a = arena_new();
    size_t n = 0;
    char *s = file_read(a, from, &n);
    const char *why = !s                     ? ckpt_why(a, "cannot read", from)
                      : file_write(to, s, n) ? ckpt_why(a, "cannot write", to)
                                             : NULL;
    int bad = ckpt_complain(why);

    arena_free(a);
    return bad;
}

/* Copies files beside weights; how many, or -1 with a warning. */
static int copy_beside(const char *from, const char *to)
{
    DIR *d_i_r = opendir(from);
    struct dirent *e;
    int n = 0;

    while (d_i_r && n >= 0 && (e = readdir(d_i_r)))
        if (is_beside(e->d_name))
            n = copy_file(strf(forever, "%s/%s", from, e->d_name),
                          strf(forever, "%s/%s", to, e->d_name))
                    ? -1
                    : n + 1;
    if (d_i_r)
        closedir(d_i_r);
    return n;
}

int hf_copy(const char *from, const char *to)
{
    OutputFolder f = folder_open(forever, to);

    if (!f.temp)
        return ckpt_complain(ckpt_why(forever, "cannot make", to));
    int n = copy_beside(from, f.temp);
    if (n <= 0)
        folder_drop(&f);
    else if (folder_commit(&f, 1))
        return ckpt_complain(ckpt_why(forever, "cannot write", to));
    return n < 0 ? -1 : 0;
}

/* What `from` names lies there, or in what its run has kept. */
static const char *beside(const char *from)
{
    const char *kept = is_run(from) ? run_file_near(forever, from, "hf") : from;

    return kept ? kept : "";
}

void hf_keep(const Plan *p, const char *dir)
{
    const char *from = opts_str(p->opts, "from");
    const char *to = strf(forever, "%s/hf", dir);

    if (from && !exists(to) && hf_copy(beside(from), to) && err_status == 1)
        exit(1);
}

/* ---- out ----------------------------------------------------------------- */

static void set_id(json_t *out, const char *key, int32_t id)
{
    if (id >= 0)
        json_object_set_new(out, key, json_integer(id));
}

/* bos_token_id and such, of the tokenizer that the run had. */
static json_t *special_ids(const Plan *p, const char *folder)
{
    const char *path = strf(forever, "%s/tokenizer.json", folder);
    json_t *ids = json_object();

    if (opts_text_tokenizer(p->opts) == TOKENIZERbytes || !exists(path))
        return ids;
    Tokenizer *t = tokenizer_open(path, NULL);

    set_id(ids, "bos_token_id", tokenizer_special(t, "bos_token", NULL));
    set_id(ids, "pad_token_id", tokenizer_special(t, "pad_token", NULL));
    if (opts_eod(p->opts) != EODnone)
        set_id(ids, "eos_token_id",
               tokenizer_end(t, opts_str(p->opts, "data.eod"), NULL));
    return ids;
}

/* A tokenizer.json alone does not say of which class it is. */
static int write_tokenizer_config(const json_t *ids, const char *folder)
{
    const char *path = strf(forever, "%s/tokenizer_config.json", folder);
    const char *file = strf(forever, "%s/tokenizer.json", folder);
    const json_t *eos = json_object_get(ids, "eos_token_id");
    size_t n;

    if (exists(path) || !exists(file))
        return 0;
    json_t *j =
        json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
    if (eos) {
        const char *s = tokenizer_text(tokenizer_open(file, NULL),
                                       (int32_t)json_integer_value(eos), &n);
        json_object_set_new(j, "eos_token", json_stringn(s, n));
    }
    int bad = write_object(j, path);
    json_decref(j);
    return bad;
}

static void set_dtype(json_t *config, FileType dt)
{
    static const char *const names[FTcount] = {
        [FTBF16] = "bfloat16",
        [FTF16] = "float16",
        [FTF32] = "float32",
        [FTF64] = "float64",
    };
    const char *key =
        json_object_get(config, "dtype") ? "dtype" : "torch_dtype";

    if (names[dt])
        json_object_set_new(config, key, json_string(names[dt]));
}

/* Ids that are not there yet, and those of a tokenizer that the folder of the
 * weights did not bring. */
static void add_ids(json_t *to, json_t *ids, int anew)
{
    for (void *i = json_object_iter(ids); i;
         i = json_object_iter_next(ids, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *has = json_object_get(to, key);
        if (anew || (!json_is_integer(has) && !json_is_array(has)))
            json_object_set(to, key, json_object_iter_value(i));
    }
}

/* One of these for `generate` of transformers and vLLM. */
static int write_ids(const char *path, json_t *ids, int anew)
{
    json_t *j = read_object(path);

    if (!j && !json_object_size(ids))
        return 0;
    json_t *was = j ? json_deep_copy(j) : NULL;
    j = j ? j : json_object();
    add_ids(j, ids, anew);
    int bad = was && json_equal(was, j) ? 0 : write_object(j, path);
    json_decref(was);
    json_decref(j);
    return bad;
}

static int write_config(const Plan *p, FileType dt, json_t *ids, int anew,
                        const char *to)
{
    json_t *ours = config_of(p), *theirs = hf_config_read(to);

    if (!ours && !theirs) {
        warn(NULL, "no config.json is written: hf{} has no config={..}");
        return 0;
    }
    json_t *j = hf_config_merge(ours, theirs);
    set_dtype(j, dt);
    add_ids(j, ids, anew);
    int bad = write_object(j, strf(forever, "%s/config.json", to));
    json_decref(j);
    json_decref(ours);
    json_decref(theirs);
    return bad;
}

/* Another tokenizer than that of the folder which the weights came from: 1 if
 * it differs, -1 if it was not written. */
static int take_tokenizer(const char *from, const char *to)
{
    static const char *const names[] = { "tokenizer.json",
                                         "tokenizer_config.json" };
    size_t n, m;
    int anew = 0;

    for (int i = 0; i < 2; i++) {
        const char *near = run_file_near(forever, from, names[i]);
        const char *path = strf(forever, "%s/%s", to, names[i]);
        const char *s = near ? file_read(forever, near, &n) : NULL;
        const char *have = file_read(forever, path, &m);
        if (!s || (have && n == m && !memcmp(s, have, n)))
            continue;
        anew = 1;
        if (file_write(path, s, n))
            return ckpt_complain(ckpt_why(forever, "cannot write", path));
    }
    return anew;
}

int hf_finish_export(const Plan *p, const char *from, const char *to,
                     FileType dt)
{
    if (copy_beside(beside(from), to) < 0)
        return -1;
    int anew = take_tokenizer(from, to);
    if (anew < 0)
        return -1;
    json_t *ids = special_ids(p, to);
    int bad =
        write_config(p, dt, ids, anew, to) |
        write_ids(strf(forever, "%s/generation_config.json", to), ids, anew) |
        write_tokenizer_config(ids, to);
    json_decref(ids);
    return bad;
}

/* folder_commit renames: a folder whose name cannot be given to another. */
static int is_fixed(const char *to)
{
    struct stat st, up, here;

    return !stat(to, &st) && !stat(strf(forever, "%s/..", to), &up) &&
           (st.st_dev != up.st_dev || st.st_ino == up.st_ino ||
            (!stat(".", &here) && st.st_ino == here.st_ino));
}

/* An empty folder, or none yet. */
void hf_need_empty(const char *to)
{
    struct dirent *e;

    if (is_fixed(to))
        err(NULL,
            "%s is the current folder or a mount point; an export takes a new "
            "folder, such as %s/model",
            to, to);
    DIR *d_i_r = opendir(to);
    if (!d_i_r && errno != ENOENT)
        err(NULL, "cannot read %s: %s", to, strerror(errno));
    while (d_i_r && (e = readdir(d_i_r)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            err(NULL, "%s holds files already; an export takes a new folder",
                to);
    if (d_i_r)
        closedir(d_i_r);
}
