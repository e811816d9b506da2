/* hffolder.c: what lies in a Hugging Face folder beside its weights: its
 * config.json against the model, its tokenizer, what a run keeps of it (in its
 * own folder `hf`) and gives to the folders that it exports. */
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

/* An object to *v; no value: there is no such file. Null, or e->why. */
static const char *read_object(const char *path, JsonValue *v, JsonError *e)
{
    *e = (JsonError){ 0 };
    if (!jv_load(forever, path, v, e) && v->s && jv_kind(*v) != JSONobject)
        e->why = "holds no JSON object";
    return e->why;
}

/* The same, or err(). */
static JsonValue need_object(const char *path)
{
    JsonError e;
    JsonValue v;

    if (read_object(path, &v, &e))
        err(&(Loc){ path, (int)e.line, NULL }, "%s", e.why);
    return v;
}

/* The same of a file that is being exported; 0, or -1 with a warning. */
static int read_exported(const char *path, JsonValue *v)
{
    JsonError e;

    return read_object(path, v, &e)
               ? ckpt_complain(strf(forever, "%s %s", path, e.why))
               : 0;
}

static int write_object(const JsonMember *members, const char *path)
{
    Text out = { .arena = forever };
    JsonValue v = jv_object(forever, members, 0);

    putn(&out, v.s, v.n);
    putn(&out, "\n", 1);
    return file_write(path, out.s, out.len)
               ? ckpt_complain(ckpt_why(forever, "cannot write", path))
               : 0;
}

/* ---- in ------------------------------------------------------------------ */

JsonValue hf_config_read(const char *folder)
{
    JsonValue config = need_object(strf(forever, "%s/config.json", folder));
    const char *why = hf_config_unread(forever, config);

    if (why)
        err(NULL, "%s/config.json %s", folder, why);
    return config;
}

/* The object of the key hf.config or hf.adapter; no value: the model has none.
 */
static JsonValue model_object(const Plan *p, const char *key)
{
    const char *s = opts_str(p->opts, key);
    JsonError e;
    JsonValue v = { 0 };

    if (s && jv_open(s, strlen(s), &v, &e))
        err(opts_loc(p->opts, key), "%s: %s", key, e.why);
    return jv_kind(v) == JSONobject ? v : (JsonValue){ 0 };
}

double hf_adapter_scale(const Plan *p)
{
    JsonValue v = model_object(p, "hf.adapter");

    return jv_real(jv_get(v, "lora_alpha")) / jv_real(jv_get(v, "r"));
}

/* Kinds of adapters that are not read: keys of adapter_config.json that must be
 * absent, null, false or empty. */
static const char *const unread[] = {
    "use_dora",          "use_rslora",
    "use_qalora",        "fan_in_fan_out",
    "rank_pattern",      "alpha_pattern",
    "modules_to_save",   "lora_bias",
    "layer_replication", "alora_invocation_tokens",
    "use_bdlora",        "kasa_config",
    "target_parameters", "trainable_token_indices"
};

static int is_unset(JsonValue v)
{
    JsonKind k = jv_kind(v);

    return k <= JSONfalse || (k >= JSONarray && !jv_count(v));
}

void hf_agree_adapter(const Plan *p, const char *dir)
{
    static const char *const numbers[] = { "r", "lora_alpha" };
    const char *path = strf(forever, "%s/adapter_config.json", dir);
    JsonValue ours = model_object(p, "hf.adapter"), theirs = need_object(path);

    if (!ours.s || !jv_is(jv_get(theirs, "peft_type"), "LORA"))
        err(NULL, "%s is not of LoRA, or the model has no lora() for it", path);
    for (int i = 0; i < countof(unread); i++)
        if (!is_unset(jv_get(theirs, unread[i])))
            err(NULL, "%s sets %s, which is not read", path, unread[i]);
    for (int i = 0; i < 2; i++)
        if (jv_real(jv_get(ours, numbers[i])) !=
            jv_real(jv_get(theirs, numbers[i])))
            err(NULL, "%s has %s = %g, the lora() of the model %g", path,
                numbers[i], jv_real(jv_get(theirs, numbers[i])),
                jv_real(jv_get(ours, numbers[i])));
}

void hf_agree(const Plan *p, const char *path)
{
    const char *dir = folder_exists(path) ? path : file_folder(forever, path);
    JsonValue theirs = hf_config_read(dir), ours = model_object(p, "hf.config");
    const char *why = theirs.s && ours.s
                          ? hf_config_differs(forever, ours, theirs,
                                              opts_str(p->opts, "hf.except"))
                          : NULL;

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

const char *hub_snapshot(const char *path)
{
    size_t n;
    const char *main =
        file_read(forever, strf(forever, "%s/refs/main", path), &n);
    const char *to = main ? strf(forever, "%s/snapshots/%.*s", path,
                                 (int)strcspn(main, "\r\n"), main)
                          : "";

    return folder_exists(to) ? to : path;
}

void settle_from(Opts *opts)
{
    const char *from = opts_str(opts, "from"), *name = "tokenizer.json";

    if (!from)
        return;
    if (hub_snapshot(from) != from)
        opts_set(opts, "from", from = hub_snapshot(from),
                 opts_loc(opts, "from"));
    if (opts_given(opts, "data.tokenizer"))
        return;
    const char *path = is_run(from) ? run_file_near(forever, from, name)
                                    : strf(forever, "%s/%s", from, name);
    if (path && exists(path))
        opts_set(opts, "data.tokenizer", path, opts_loc(opts, "from"));
}

/* ---- what is beside weights ---------------------------------------------- */

static int is_beside(const char *name)
{
    static const char *const end[] = { ".json", ".txt", ".model", ".jinja",
                                       ".py" };
    const char *dot = strrchr(name, '.');

    return dot && *name != '.' && !strstr(name, ".safetensors") &&
           word_index(dot, end, countof(end)) >= 0;
}

/* Null, or why a file was not copied. */
static const char *copy_file(const char *from, const char *to)
{
    Arena *a = arena_new();
    size_t n = 0;
    char *s = file_read(a, from, &n);
    const char *why = !s ? ckpt_why(forever, "cannot read", from)
                      : file_write(to, s, n)
                          ? ckpt_why(forever, "cannot write", to)
                          : NULL;

    arena_free(a);
    return why;
}

/* Copies files beside weights, *n of them. Null, or what failed. */
static const char *copy_beside(const char *from, const char *to, int *n)
{
    int bad;
    char **name = folder_names(forever, from, &bad);
    const char *why = NULL;

    *n = 0;
    for (size_t i = 0; i < vec_len(name) && !why; i++)
        if (is_beside(name[i])) {
            why = copy_file(strf(forever, "%s/%s", from, name[i]),
                            strf(forever, "%s/%s", to, name[i]));
            ++*n;
        }
    return why;
}

/* Lists tensors in fp32 beside narrower ones, where there are some. Null, or
 * what failed. */
static const char *list_float32(const char *from, const char *to)
{
    const char *kept = strf(forever, "%s/float32", from);
    StFile **file = exists(kept) ? NULL : folder_weights(forever, from);
    Text names = { .arena = forever };
    int narrow = 0;

    if (exists(kept))
        return copy_file(kept, to);
    for (size_t i = 0; i < vec_len(file); i++) {
        for (int k = 0; k < file[i]->n; k++) {
            const StTensor *t = &file[i]->t[k];
            narrow |= t->bytes < 4;
            if (t->dt == FTF32 && !ends_with(t->name, "_scale_inv"))
                put(&names, "%s\n", t->name);
        }
        st_close(file[i]);
    }
    return narrow && names.len && file_write(to, names.s, names.len)
               ? ckpt_why(forever, "cannot write", to)
               : NULL;
}

const char *hf_copy(const char *from, const char *to)
{
    OutputFolder f = folder_open(forever, to);
    int n;

    if (!f.temp)
        return ckpt_why(forever, "cannot make", to);
    const char *why = copy_beside(from, f.temp, &n);
    if (!why && n)
        why = list_float32(from, strf(forever, "%s/float32", f.temp));
    if (why || !n)
        folder_drop(&f);
    else if (folder_commit(&f))
        why = ckpt_why(forever, "cannot write", to);
    return why;
}

/* What `from` names lies there, or in what its run has kept. */
static const char *beside(const char *from)
{
    const char *kept = is_run(from) ? run_file_near(forever, from, "hf") : from;

    return kept ? kept : "";
}

const char *hf_keep(const Plan *p, const char *dir)
{
    const char *from = opts_str(p->opts, "from");
    const char *to = strf(forever, "%s/hf", dir);
    const char *why = from && !exists(to) ? hf_copy(beside(from), to) : NULL;

    if (!why)
        hf_check(p, dir);
    return why;
}

const char *hf_float32_list(const Plan *p, const char *run)
{
    static const char *const families[] = { "deepseek_v2", "deepseek_v3",
                                            "kimi_k2" };
    const char *kept = run_file_near(forever, run, "hf");
    const char *path = run_file_near(forever, run, "hf/float32");
    JsonValue ours = model_object(p, "hf.config");
    JsonValue config = ours.s || !kept ? ours : hf_config_read(kept);
    const char *type = jv_text(forever, jv_get(config, "model_type"), NULL);
    int family = type && word_index(type, families, 3) >= 0;
    Text out = { .arena = forever };
    size_t n;

    put(&out, "\n%s", path ? file_need(forever, path, &n) : "");
    for (int i = 0; i < p->nhf && family; i++)
        if (ends_with(p->hf[i].hf, ".mlp.gate.weight"))
            put(&out, "%s\n", p->hf[i].hf);
    return out.s;
}

/* ---- out ----------------------------------------------------------------- */

int hf_write_adapter(const Plan *p, const char *to)
{
    const char *from = opts_str(p->opts, "from");
    JsonMember *out = jv_members(forever, model_object(p, "hf.adapter"));

    jv_set(forever, &out, "peft_type", jv_string(forever, "LORA"));
    jv_set(forever, &out, "task_type", jv_string(forever, "CAUSAL_LM"));
    if (from)
        jv_set(forever, &out, "base_model_name_or_path",
               jv_string(forever, from));
    return write_object(out, strf(forever, "%s/adapter_config.json", to));
}

static void set_id(JsonMember **out, const char *key, int32_t id)
{
    if (id >= 0)
        jv_set(forever, out, key,
               (JsonValue){ strf(forever, "%d", id),
                            (size_t)snprintf(NULL, 0, "%d", id) });
}

/* bos_token_id and such, of the folder's tokenizer: a vec. */
static JsonMember *special_ids(const Plan *p, const char *folder)
{
    const char *path = strf(forever, "%s/tokenizer.json", folder);
    JsonMember *ids = NULL;

    if (opts_text_tokenizer(p->opts) == TOKENIZERbytes || !exists(path))
        return ids;
    Tokenizer *t = tokenizer_open(path, NULL);

    set_id(&ids, "bos_token_id", tokenizer_special(t, "bos_token", NULL));
    set_id(&ids, "pad_token_id", tokenizer_special(t, "pad_token", NULL));
    if (opts_eod(p->opts) != EODnone)
        set_id(&ids, "eos_token_id",
               tokenizer_end(t, opts_str(p->opts, "data.eod"), NULL));
    return ids;
}

/* A tokenizer.json alone does not say of which class it is. */
static int write_tokenizer_config(const JsonMember *ids, const char *folder)
{
    const char *path = strf(forever, "%s/tokenizer_config.json", folder);
    const char *file = strf(forever, "%s/tokenizer.json", folder);
    JsonMember *out = NULL;
    int64_t eos;
    size_t n;

    if (!ids || exists(path))
        return 0;
    jv_set(forever, &out, "tokenizer_class",
           jv_string(forever, "PreTrainedTokenizerFast"));
    if (jv_int(jv_member(ids, "eos_token_id"), &eos))
        jv_set(forever, &out, "eos_token",
               jv_string(forever, tokenizer_text(tokenizer_open(file, NULL),
                                                 (int32_t)eos, &n)));
    return write_object(out, path);
}

static void set_dtype(JsonMember **config, FileType dt)
{
    static const char *const names[FTcount] = {
        [FTBF16] = "bfloat16",
        [FTF16] = "float16",
        [FTF32] = "float32",
        [FTF64] = "float64",
    };
    const char *key = jv_member(*config, "dtype").s ? "dtype" : "torch_dtype";

    if (names[dt])
        jv_set(forever, config, key, jv_string(forever, names[dt]));
}

/* Ids of a tokenizer; not `except`. */
static void set_ids(JsonMember **to, const JsonMember *ids, const char *except)
{
    for (size_t i = 0; i < vec_len(ids); i++)
        if (!jv_is(ids[i].key, except))
            jv_set(forever, to, jv_text(forever, ids[i].key, NULL),
                   ids[i].value);
}

/* The ids for `generate` of transformers and vLLM, in generation_config.json.
 */
static int write_ids(const JsonMember *ids, const char *folder)
{
    const char *path = strf(forever, "%s/generation_config.json", folder);
    JsonValue now;

    if (!ids)
        return 0;
    if (read_exported(path, &now))
        return -1;
    JsonMember *v = jv_members(forever, now);
    set_ids(&v, ids, "");
    return write_object(v, path);
}

/* The padding token of config.json is the model's: its row of the embedding
 * gets no gradient. */
static int write_config(const Plan *p, FileType dt, const JsonMember *ids,
                        const char *to)
{
    const char *path = strf(forever, "%s/config.json", to);
    JsonValue ours = model_object(p, "hf.config"), theirs;

    if (read_exported(path, &theirs))
        return -1;
    if (!ours.s && !theirs.s) {
        warn(NULL, "no config.json is written: hf{} has no config={..}");
        return 0;
    }
    JsonMember *v = hf_config_merge(forever, ours, theirs);
    set_dtype(&v, dt);
    set_ids(&v, ids, "pad_token_id");
    return write_object(v, path);
}

/* 1: the run's folder has another tokenizer than `to`. copy: it goes there; -1:
 * a warning was printed. */
static int take_tokenizer(const char *run, const char *to, int copy)
{
    static const char *const names[] = { "tokenizer.json",
                                         "tokenizer_config.json" };
    size_t n, m;
    int anew = 0;

    for (int i = 0; i < 2; i++) {
        const char *near = run_file_near(forever, run, names[i]);
        const char *path = strf(forever, "%s/%s", to ? to : run, names[i]);
        const char *s = near ? file_read(forever, near, &n) : NULL;
        const char *have = to ? file_read(forever, path, &m) : NULL;
        if (!s || (have && n == m && !memcmp(s, have, n)))
            continue;
        anew = 1;
        if (copy && ckpt_complain(copy_file(near, path)))
            return -1;
    }
    return anew;
}

void hf_check(const Plan *p, const char *run)
{
    const char *kept = run_file_near(forever, run, "hf");
    const char *tokenizer = run_file_near(forever, run, "tokenizer.json");

    if (kept) {
        hf_config_read(kept);
        need_object(strf(forever, "%s/generation_config.json", kept));
    }
    if (tokenizer && take_tokenizer(run, kept, 0))
        special_ids(p, file_folder(forever, tokenizer));
}

int hf_finish_export(const Plan *p, const char *from, const char *to,
                     FileType dt)
{
    int n;

    if (ckpt_complain(copy_beside(beside(from), to, &n)))
        return -1;
    int anew = take_tokenizer(from, to, 1);
    const JsonMember *ids = anew > 0 ? special_ids(p, to) : NULL;

    return anew < 0 || write_config(p, dt, ids, to) || write_ids(ids, to) ||
                   write_tokenizer_config(ids, to)
               ? -1
               : 0;
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
    int why;

    if (!*to)
        err(NULL, "the export's folder has an empty name");
    if (is_fixed(to))
        err(NULL,
            "%s is the current folder or a mount point; an export takes a new "
            "folder, such as %s/model",
            to, to);
    if (folder_names(forever, to, &why))
        err(NULL, "%s holds files already; an export takes a new folder", to);
    if (why || (!folder_exists(to) && exists(to)))
        err(NULL, "cannot read %s: %s", to, strerror(why ? why : ENOTDIR));
}
