/* import.c: `pleat import FOLDER my.lua` writes the model file of a Hugging
 * Face folder: that of its family in models/, with the sizes and numbers of
 * its config.json, which the finished model is compared with first. */
#include "../frontend.h"

enum { LONGEST = 4096 }; /* tokens of a sequence, where a model has more */

static const struct ModelType {
    const char *type, *model; /* model_type; a model of `pleat new` */
} modeltypes[] = {
    /* clang-format off */
    { "mixtral", "mixtral" }, { "qwen2_moe", "qwen2_moe" },
    { "qwen3_moe", "qwen3_moe" }, { "olmoe", "olmoe" },
    { "deepseek_v2", "deepseek_v2_lite" }, { "deepseek_v3", "deepseek_v3" },
    { "llama", "llama3" }, { "kimi_k2", "deepseek_v3" },
    /* clang-format on */
};

/* Axes and locals of the models, and what each is in config.json. */
static const struct {
    const char *name, *value;
} numbers[] = {
    /* clang-format off */
    { "hidden", "hidden_size" },
    { "prior", "hidden_size" },
    { "heads", "num_attention_heads" },
    { "kv", "num_key_value_heads|num_attention_heads" },
    { "group", "num_attention_heads/num_key_value_heads|1" },
    { "dim", "v_head_dim|head_dim|hidden_size/num_attention_heads" },
    { "nope", "qk_nope_head_dim" },
    { "rot", "qk_rope_head_dim" },
    { "qr", "q_lora_rank|1" },
    { "low_rank", "q_lora_rank|0" },
    { "kvr", "kv_lora_rank" },
    { "dense", "intermediate_size" },
    { "ffn", "moe_intermediate_size|intermediate_size" },
    { "shared", "shared_expert_intermediate_size|n_shared_experts*moe_intermediate_size" },
    { "expert", "num_local_experts|num_experts|n_routed_experts" },
    { "nodes", "n_group|1" },
    { "vocab", "vocab_size" },
    { "layers", "num_hidden_layers" },
    { "dense_layers", "first_k_dense_replace|0" },
    { "eps", "rms_norm_eps" },
    { "chosen", "num_experts_per_tok" },
    { "scale", "routed_scaling_factor|1" },
    { "kept", "topk_group|1" },
    { "theta", "rope_theta|10000" },
    { "normed", "norm_topk_prob|0" },
    { "tied", "tie_word_embeddings|0" },
    { "biased", "attention_bias|0" },
    { "max_position_embeddings", "max_position_embeddings" },
    /* clang-format on */
};

static const char training[] =
    "train { batch=16, lr=1e-5, schedule=\"cosine\", warmup=10, clip=1 }";

typedef struct Import {
    const char *folder, *to;
    JsonValue config;
    const struct ModelType *of;
    char *text; /* the model */
} Import;

/* ---- places in a model's text -------------------------------------------- */

typedef struct Place {
    size_t at, n; /* n 0: there is none */
} Place;

static int is_name(char c)
{
    return c && strchr("abcdefghijklmnopqrstuvwxyz_", c);
}

/* The value of "name=value", in axes{} or in config={}. */
static Place field(const char *s, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = s; (p = strstr(p, name)); p += n)
        if (p > s && !is_name(p[-1]) && p[n] == '=' && p[n + 1] != '=' &&
            p[n + 1] != ' ')
            return (Place){ (size_t)(p + n + 1 - s),
                            strcspn(p + n + 1, " ,}") };
    return (Place){ 0 };
}

/* Bytes of the first of `n` items, split by commas outside of braces. */
static size_t item(const char *s, size_t n)
{
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        depth += s[i] == '{';
        depth -= s[i] == '}';
        if (!depth && (s[i] == ',' || !strncmp(s + i, "  ", 2)))
            return i;
    }
    return n;
}

/* The value of name in "local name, name = value, value". */
static Place in_local(const char *s, const char *line, const char *name)
{
    size_t len = strlen(name), rest = strcspn(line, "\n");
    const char *names = line + strlen("local "), *eq = strstr(line, " = ");

    if (!eq || eq > line + rest)
        return (Place){ 0 };
    const char *v = eq + 3;
    rest -= (size_t)(v - line);
    while (names < eq) {
        size_t n = strcspn(names, ", "), value = item(v, rest);
        if (n == len && !strncmp(names, name, n))
            return (Place){ (size_t)(v - s), value };
        names += n + strspn(names + n, ", ");
        size_t gap = value + strspn(v + value, ", ");
        v += gap;
        rest -= gap < rest ? gap : rest;
    }
    return (Place){ 0 };
}

static Place local(const char *s, const char *name)
{
    Place p = { 0 };

    for (const char *line = s; !p.n && *line;) {
        if (!strncmp(line, "local ", 6) && strncmp(line, "local function", 14))
            p = in_local(s, line, name);
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return p;
}

static void replace(Import *import, Place p, const char *value)
{
    import->text = strf(forever, "%.*s%s%s", (int)p.at, import->text, value,
                        import->text + p.at + p.n);
}

/* ---- from config.json ---------------------------------------------------- */

static _Noreturn void lacks(const Import *import, const char *what)
{
    err(NULL, "import: %s/config.json has no %s", import->folder, what);
}

static const char *number_text(double x)
{
    Text out = { .arena = forever };

    if (x == rint(x) && fabs(x) < 1e15)
        return strf(forever, "%.0f", x);
    put_real(&out, x);
    return out.s;
}

static double value_of(const Import *import, const char *value)
{
    double x = hf_config_value(import->config, value);

    if (isnan(x))
        lacks(import, value);
    return x;
}

/* YaRN's numbers, as DeepSeek's models have them. */
static const char *yarn_text(const Import *import)
{
    static const char *const rows[][2] = {
        { "factor", "factor" },
        { "original", "original_max_position_embeddings" },
        { "beta_fast", "beta_fast|32" },
        { "beta_slow", "beta_slow|1" },
        { "mscale", "mscale|0" },
        { "mscale_all_dim", "mscale_all_dim|0" },
    };
    Text out = { .arena = forever };

    if (isnan(hf_config_value(import->config, "factor")))
        return "nil";
    for (int i = 0; i < countof(rows); i++)
        put(&out, "%s%s=%s", i ? ", " : "{ ", rows[i][0],
            number_text(value_of(import, rows[i][1])));
    put(&out, " }");
    return out.s;
}

/* What stretches positions, as rope() takes it: the folder's own table. */
static const char *scaling_text(const Import *import)
{
    static const char *const known[] = { "linear", "llama3", "yarn" };
    const char *type = hf_config_stretch(import->config);
    JsonValue name, v;
    Text out = { .arena = forever };
    int i = 0;

    if (!*type)
        return "nil";
    put(&out, "{ rope_type=\"%s\"", type);
    while (i < 3 && strcmp(known[i], type))
        i++;
    if (i == 3)
        err(NULL,
            "import: %s/config.json has rope_scaling of type '%s'; known are "
            "linear, llama3, yarn",
            import->folder, type);
    for (size_t at = 0;
         jv_next(hf_config_positions(import->config), &at, &name, &v);) {
        const char *key = jv_text(forever, name, NULL);
        if (!key || key[strspn(key, "abcdefghijklmnopqrstuvwxyz_")])
            err(NULL, "import: %s/config.json has rope_scaling with %.*s",
                import->folder, (int)name.n, name.s);
        if (!isnan(jv_real(v)) && strcmp(key, "rope_theta"))
            put(&out, ", %s=%s", key,
                jv_kind(v) == JSONnumber ? number_text(jv_real(v))
                : jv_real(v) != 0        ? "true"
                                         : "false");
    }
    put(&out, " }");
    return out.s;
}

/* Of what is in use. */
static const char *window_text(const Import *import)
{
    int used = hf_config_value(import->config, "use_sliding_window|1") != 0;

    return number_text(used ? value_of(import, "sliding_window|0") : 0);
}

/* The token whose row of the embedding gets no gradient; -1: none. PyTorch
 * counts negative ones from the end. */
static const char *pad_text(const Import *import)
{
    double pad = hf_config_value(import->config, "pad_token_id");

    if (isnan(pad))
        return "-1";
    return number_text(pad < 0 ? pad + value_of(import, "vocab_size") : pad);
}

/* Layers in the weights, where they are here, that predict a token further. */
static int64_t further_layers(const Import *import)
{
    StFile **file = folder_weights(forever, import->folder);
    int64_t count = 0;

    if (!file)
        return (int64_t)hf_config_value(import->config,
                                        "num_nextn_predict_layers|0");
    for (size_t i = 0; i < vec_len(file); i++) {
        for (int k = 0; k < file[i]->n; k++)
            count += ends_with(file[i]->t[k].name, ".eh_proj.weight");
        st_close(file[i]);
    }
    return count;
}

/* Sequences as long as positions, but not longer than a first run wants. */
static const char *seq_text(const Import *import)
{
    double n = hf_config_value(import->config, "max_position_embeddings");

    return number_text(n < LONGEST ? n : LONGEST);
}

static void set(Import *import, const char *name, const char *value)
{
    Place p = local(import->text, name);

    p = p.n ? p : field(import->text, name);
    if (p.n)
        replace(import, p, value);
}

static int uses(const Import *import, const char *name)
{
    return local(import->text, name).n || field(import->text, name).n;
}

/* A truth stays one: in Lua 0 is true. */
static void set_value(Import *import, const char *name, double x)
{
    Place p = local(import->text, name);
    const char *now = p.n ? import->text + p.at : "";

    if (!strncmp(now, "true", 4) || !strncmp(now, "false", 5))
        set(import, name, x != 0 ? "true" : "false");
    else
        set(import, name, number_text(x));
}

static void fill_in(Import *import)
{
    const char *axes = strstr(import->text, "axes {"), *line;

    import->text =
        strf(forever,
             "-- Made by pleat import from %s/config.json (%s). The "
             "settings of train{}\n-- are for training on; every other "
             "number is the folder's.\n%s",
             import->folder, import->of->type, axes);
    for (int i = 0; i < countof(numbers); i++)
        if (uses(import, numbers[i].name))
            set_value(import, numbers[i].name,
                      value_of(import, numbers[i].value));
    set(import, "model_type", strf(forever, "\"%s\"", import->of->type));
    set(import, "seq", seq_text(import));
    if (uses(import, "yarn"))
        set(import, "yarn", yarn_text(import));
    if (uses(import, "scaling"))
        set(import, "scaling", scaling_text(import));
    if (uses(import, "pad"))
        set(import, "pad", pad_text(import));
    if (uses(import, "window"))
        set(import, "window", window_text(import));
    if (uses(import, "grouped"))
        set(import, "grouped",
            jv_is(jv_get(import->config, "topk_method"), "group_limited_greedy")
                ? "true"
                : "false");
    if (uses(import, "mtp"))
        set(import, "mtp", number_text((double)further_layers(import)));
    if ((line = strstr(import->text, "\ntrain {")))
        replace(import,
                (Place){ (size_t)(line + 1 - import->text),
                         strcspn(line + 1, "\n") },
                training);
}

/* ---- the command --------------------------------------------------------- */

/* The last argument of loss("balance", ..) in the model; NaN: it has none. */
static double balance_weight(const char *text)
{
    double x = (double)NAN;

    for (text = strstr(text, "loss(\"balance\""); text && *text != '\n'; text++)
        if (*text == ',')
            x = strtod(text + 1, NULL);
    return x;
}

/* The first key of "a*b|c" with a value, where config.json lacks it; "". */
static const char *absent_key(const Import *import, const char *value)
{
    size_t n;

    for (const char *s = value; *s; s += n, s += strspn(s, "|*/")) {
        const char *key = internn(s, n = strcspn(s, "|*/"));
        if (*key > '9' && !isnan(hf_config_value(import->config, key)))
            return hf_config_says(import->config, key) ? "" : key;
    }
    return "";
}

static void warn_absent_keys(const Import *import)
{
    Text keys = { .arena = forever };

    for (int i = 0; i < countof(numbers); i++) {
        const char *key = absent_key(import, numbers[i].value);
        if (uses(import, numbers[i].name) && !has_word(keys.s, ' ', key))
            put(&keys, *key ? " %s" : "%s", key);
    }
    if (keys.len)
        warn(NULL,
             "%s/config.json lacks keys, which have the values of transformers "
             "for %s:%s",
             import->folder, import->of->type, keys.s);
}

/* Settings of a training that the model file does not take over. */
static void warn_training_keys(const Import *import)
{
    static const struct {
        const char *key, *instead;
    } keys[] = {
        { "attention_dropout", "dropout(x, p) in the model applies one" },
        { "hidden_dropout", "dropout(x, p) in the model applies one" },
        { "router_jitter_noise", "the router of the model has no noise" },
    };
    double ours = balance_weight(import->text);
    double theirs =
        hf_config_value(import->config, "router_aux_loss_coef|aux_loss_alpha");

    if (ours < theirs || ours > theirs)
        warn(
            NULL,
            "%s/config.json means %g in router_aux_loss_coef, the model has %g "
            "as the weight of loss(\"balance\", ..), per layer",
            import->folder, theirs, ours);

    for (int i = 0; i < countof(keys); i++) {
        double x = hf_config_says(import->config, keys[i].key)
                       ? hf_config_value(import->config, keys[i].key)
                       : 0;
        if (x > 0)
            warn(NULL, "%s/config.json has %s=%g, which is not taken over: %s",
                 import->folder, keys[i].key, x, keys[i].instead);
    }
}

/* The model's numbers against the folder's. */
static int check_job(void *arg, FILE *out)
{
    const Import *import = arg;
    Source s = { import->to, import->text };
    Graph *g = trace_sources(&s, 1, opts_new(forever)).g;
    const char *said = opts_str(g->opts, "hf.config");
    JsonValue model;
    JsonError e;
    jv_open(said, strlen(said), &model, &e);
    const char *why = hf_config_differs(forever, model, import->config, NULL);
    int64_t params, active;

    if (why)
        err(NULL,
            "import: %s/config.json %s: a model of this kind is not among "
            "models/; start from the nearest one (pleat new %s my.lua)",
            import->folder, why, import->of->model);
    flops_per_token(g, &params, &active);
    fprintf(out,
            "%s: %s, %.4g million parameters, %.4g active; its numbers are "
            "those of %s/config.json\n",
            import->to, import->of->type, (double)params / 1e6,
            (double)active / 1e6, import->folder);
    return 0;
}

static const struct ModelType *type_of(const char *folder, JsonValue config)
{
    const char *type = jv_text(forever, jv_get(config, "model_type"), NULL);
    const char *names[countof(modeltypes)];
    Text all = { .arena = forever };

    for (int i = 0; i < countof(modeltypes); i++) {
        names[i] = modeltypes[i].type;
        if (type && !strcmp(type, names[i]))
            return &modeltypes[i];
        put(&all, "%s%s", i ? ", " : "", names[i]);
    }
    if (jv_kind(jv_get(config, "text_config")) == JSONobject)
        err(NULL,
            "import: %s/config.json has model_type '%s' with its text model in "
            "text_config; a folder of the text model alone is read "
            "(transformers: "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW))",
            folder, type ? type : "");
    err(NULL, "import: %s/config.json has model_type '%s'; known are %s%s",
        folder, type ? type : "", all.s,
        did_you_mean(type ? type : "", names, countof(modeltypes)));
}

/* "dir/OLMoE-1B-7B" -> "OLMoE-1B-7B.lua" */
static const char *model_for(const char *folder)
{
    char *full = realpath(folder, NULL);
    const char *name = strf(forever, "%s.lua", file_name(full ? full : folder));

    free(full);
    return name;
}

/* The tokenizer that a folder has in place of tokenizer.json; "". */
static const char *other_tokenizer(const char *folder)
{
    static const char *const names[] = { "tokenizer.model", "tiktoken.model",
                                         "tekken.json", "vocab.json" };

    for (int i = 0; i < countof(names); i++)
        if (!access(strf(forever, "%s/%s", folder, names[i]), F_OK))
            return strf(forever,
                        " but %s (transformers writes it: AutoTokenizer."
                        "from_pretrained(DIR).save_pretrained(DIR))",
                        names[i]);
    return "";
}

int cmd_import(Args *args)
{
    Import m = { .folder = args->file };

    if (access(m.folder, F_OK))
        err(NULL,
            "import: no folder %s; it reads what is here (hf download %s "
            "--local-dir NAME fetches it)",
            m.folder, m.folder);
    if (!folder_exists(m.folder))
        err(NULL,
            "import: %s is no folder; it reads one with config.json and "
            "weights (a text is for data.train=%s)",
            m.folder, m.folder);
    m.folder = hub_snapshot(m.folder);
    m.config = hf_config_read(m.folder);
    if (!m.config.s)
        err(NULL,
            "import: %s has no config.json (of the Hub's cache take a folder "
            "in snapshots)",
            m.folder);
    m.to = vec_len(args->word) > 1 ? args->word[1] : model_for(m.folder);
    m.of = type_of(m.folder, m.config);
    if (!access(m.to, F_OK))
        err(NULL, "%s is there already", m.to);
    m.text = strf(forever, "%s", model_template(m.of->model));
    warn_training_keys(&m);
    warn_absent_keys(&m);
    fill_in(&m);
    int status = guarded(check_job, &m, NULL);
    if (status)
        return status;
    fflush(stdout);
    write_model(m.to, m.text);
    if (access(strf(forever, "%s/tokenizer.json", m.folder), F_OK))
        printf("%s has no tokenizer.json%s: data.tokenizer=FILE names one for "
               "texts\n",
               m.folder, other_tokenizer(m.folder));
    printf("next: pleat run %s from=%s data.train=texts.jsonl\n", m.to,
           m.folder);
    return 0;
}
