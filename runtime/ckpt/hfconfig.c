/* hfconfig.c: config.json of a Hugging Face folder: its values, with the
 * defaults of transformers for absent keys; the comparison with a model's
 * hf{ config={..} }; the config.json of an export. */
#include <ctype.h>

#include "ckpt.h"

typedef enum KeyRule {
    SAME,   /* folder and model must agree */
    OURS,   /* may differ: an export writes the model's */
    THEIRS, /* may differ: an export writes the folder's */
} KeyRule;

/* Keys that are compared even if a side lacks them, with the default of
 * families without a row in hf_defaults.def, and keys that may differ. Any
 * other key is compared if the model has it. */
static const struct ConfigKey {
    const char *key;
    KeyRule rule;
    const char *absent; /* JSON; null: no default */
} rules[] = {
    /* clang-format off */
    { "hidden_act", SAME, "\"silu\"" },
    { "rope_theta", SAME, "10000" },
    { "rope_interleave", SAME, "true" },
    { "attention_bias", SAME, "false" },
    { "qkv_bias", SAME, "true" },
    { "mlp_bias", SAME, "false" },
    { "clip_qkv", SAME, "null" },
    { "use_sliding_window", SAME, "false" },
    { "tie_word_embeddings", SAME, "false" },
    { "decoder_sparse_step", SAME, "1" },
    { "moe_layer_freq", SAME, "1" },
    { "mlp_only_layers", SAME, "[]" },
    { "first_k_dense_replace", SAME, "0" },
    { "q_lora_rank", SAME, "null" },
    { "n_group", SAME, "1" },
    { "topk_group", SAME, "1" },
    { "routed_scaling_factor", SAME, "1" },
    { "partial_rotary_factor", SAME, "1" },
    { "num_nextn_predict_layers", OURS, NULL },
    { "router_aux_loss_coef", OURS, NULL },
    { "pad_token_id", OURS, NULL },
    { "architectures", THEIRS, NULL },
    { "max_position_embeddings", THEIRS, NULL },
    /* clang-format on */
};

/* Keys of rope_scaling and their defaults. */
static const struct {
    const char *key;
    double absent;
} stretch[] = {
    { "factor", 1 },          { "original_max_position_embeddings", 0 },
    { "beta_fast", 32 },      { "beta_slow", 1 },
    { "mscale", 0 },          { "mscale_all_dim", 0 },
    { "truncate", 1 },        { "attention_factor", 0 },
    { "low_freq_factor", 1 }, { "high_freq_factor", 4 },
};

static const struct ConfigKey *rule_of(const char *key)
{
    for (int i = 0; i < countof(rules); i++)
        if (!strcmp(rules[i].key, key))
            return &rules[i];
    return NULL;
}

/* ---- values -------------------------------------------------------------- */

static JsonValue json_of(const char *text)
{
    JsonValue v;
    JsonError e;

    jv_open(text, strlen(text), &v, &e);
    return v;
}

/* RoPE parameters are an object with one of two names. */
JsonValue hf_config_positions(JsonValue config)
{
    JsonValue v = jv_get(config, "rope_parameters");

    return jv_kind(v) == JSONobject ? v : jv_get(config, "rope_scaling");
}

/* A key's value in config or its RoPE object, null included. */
static JsonValue own_value(JsonValue config, const char *key)
{
    JsonValue v = jv_get(config, key), at = { 0 };

    if (jv_kind(v) <= JSONnull)
        at = jv_get(hf_config_positions(config), key);
    return at.s ? at : v;
}

/* Has the config the key, or an alias of the number of experts? */
static int says(JsonValue config, const char *key)
{
    static const char *const experts[] = { "num_experts", "num_local_experts",
                                           "n_routed_experts" };
    int alias = word_index(key, experts, 3) >= 0;

    for (int i = 0; alias && i < 3; i++)
        if (own_value(config, experts[i]).s)
            return 1;
    return own_value(config, key).s != NULL;
}

/* The default of transformers for an absent key. */
static JsonValue family_value(JsonValue config, const char *key)
{
    static const struct {
        const char *type, *json;
    } families[] = {
#define DEFAULTS(type, json) { type, json },
#include "hf_defaults.def"
    };
    JsonValue type = jv_get(config, "model_type");
    int kimi = jv_is(type, "kimi_k2"); /* with DeepSeek-V3's defaults */

    for (int i = 0; i < countof(families); i++)
        if (kimi ? !strcmp(families[i].type, "deepseek_v3")
                 : jv_is(type, families[i].type))
            return jv_get(json_of(families[i].json), key);
    return (JsonValue){ 0 };
}

int hf_config_says(JsonValue config, const char *key)
{
    return own_value(config, key).s != NULL;
}

/* A key's value, or the default of transformers; no value: absent or null. */
static JsonValue hf_config_get(JsonValue config, const char *key)
{
    JsonValue v =
        says(config, key) ? own_value(config, key) : family_value(config, key);

    return jv_kind(v) == JSONnull ? (JsonValue){ 0 } : v;
}

/* An operand of a formula: a key or a number; NaN: absent from the config. */
static double operand(JsonValue config, const char **s)
{
    size_t n = strcspn(*s, "|+*/");
    const char *key = internn(*s, n);

    *s += n;
    return isdigit((unsigned char)*key) ? strtod(key, NULL)
                                        : jv_real(hf_config_get(config, key));
}

static double product(JsonValue config, const char **s)
{
    double x = operand(config, s);

    while (**s == '*' || **s == '/')
        if (*(*s)++ == '*')
            x *= operand(config, s);
        else
            x /= operand(config, s);
    return x;
}

double hf_config_value(JsonValue config, const char *s)
{
    for (;; s++) {
        double x = product(config, &s);
        while (*s == '+') {
            s++;
            x += product(config, &s);
        }
        if (*s != '|' || !isnan(x))
            return x;
    }
}

const char *hf_config_stretch(JsonValue config)
{
    JsonValue v = hf_config_positions(config);
    JsonValue type = jv_get(v, "rope_type");
    const char *s = jv_text(forever, type.s ? type : jv_get(v, "type"), NULL);

    return !s || !strcmp(s, "default") ? "" : s;
}

/* ---- comparison ---------------------------------------------------------- */

static const char *shown(Arena *a, JsonValue v)
{
    return v.s ? strf(a, "%.*s", (int)(v.n < 60 ? v.n : 60), v.s) : "none";
}

static int excepted(const char *except, const char *key)
{
    size_t n = strlen(key);

    for (const char *s = except; s && (s = strstr(s, key)); s += n)
        if ((s == except || strchr(" ,", s[-1])) &&
            (!s[n] || strchr(" ,", s[n])))
            return 1;
    return 0;
}

static const char *differ(Arena *a, const char *key, JsonValue theirs,
                          JsonValue ours)
{
    return strf(a, "has %s = %s, the model %s", key, shown(a, theirs),
                shown(a, ours));
}

/* The effective value of a key: `family` if the config lacks it, `absent` if it
 * is null or the family has no default. */
static JsonValue meant(JsonValue config, const char *key, JsonValue family,
                       JsonValue absent)
{
    JsonValue v = says(config, key) ? own_value(config, key) : family;

    v = jv_kind(v) <= JSONnull ? absent : v;
    return jv_kind(v) == JSONnull ? (JsonValue){ 0 } : v;
}

/* Null, or the difference. absent: default (JSON) of a key that is compared
 * even if a side lacks it. */
static const char *compare_key(Arena *a, JsonValue model, JsonValue folder,
                               const char *key, const char *absent)
{
    JsonValue none = absent ? json_of(absent) : (JsonValue){ 0 };
    JsonValue family = family_value(folder, key);
    JsonValue ours =
        meant(model, key, absent ? family : (JsonValue){ 0 }, none);
    JsonValue theirs = meant(folder, key, family, none);

    if ((!absent && !(ours.s && theirs.s)) || jv_same(a, ours, theirs))
        return NULL;
    return differ(a, key, theirs, ours);
}

static const char *compare_positions(Arena *a, JsonValue model,
                                     JsonValue folder)
{
    const char *ours = hf_config_stretch(model),
               *theirs = hf_config_stretch(folder);

    if (strcmp(ours, theirs))
        return strf(a, "has rope_scaling of type '%s', the model '%s'", theirs,
                    ours);
    for (int i = 0; *ours && i < countof(stretch); i++) {
        double x = hf_config_value(model, stretch[i].key);
        double y = hf_config_value(folder, stretch[i].key);
        x = isnan(x) ? stretch[i].absent : x;
        y = isnan(y) ? stretch[i].absent : y;
        if (x != y)
            return strf(a, "has rope_scaling %s = %g, the model %g",
                        stretch[i].key, y, x);
    }
    return NULL;
}

/* Compares sliding_window, if it is in use. */
static const char *compare_window(Arena *a, JsonValue model, JsonValue folder)
{
    const char *key = "sliding_window";
    JsonValue theirs = hf_config_get(folder, key), ours = own_value(model, key);
    int used = hf_config_value(folder, "use_sliding_window|1") != 0;

    return theirs.s && used && jv_kind(ours) <= JSONnull
               ? differ(a, key, theirs, (JsonValue){ 0 })
               : NULL;
}

const char *hf_config_differs(Arena *a, JsonValue model, JsonValue folder,
                              const char *except)
{
    const JsonMember *ours = jv_members(a, model);
    const char *why = NULL;

    for (size_t i = 0; i < vec_len(ours) && !why; i++) {
        const char *key = jv_text(a, ours[i].key, NULL);
        if (key && !rule_of(key) && strcmp(key, "rope_scaling") &&
            !excepted(except, key))
            why = compare_key(a, model, folder, key, NULL);
    }
    for (int i = 0; i < countof(rules) && !why; i++)
        if (rules[i].rule == SAME && !excepted(except, rules[i].key))
            why = compare_key(a, model, folder, rules[i].key, rules[i].absent);
    if (!why && !excepted(except, "rope_scaling"))
        why = compare_positions(a, model, folder);
    if (!why && !excepted(except, "sliding_window"))
        why = compare_window(a, model, folder);
    return why;
}

const char *hf_config_unread(Arena *a, JsonValue config)
{
    JsonValue q = jv_get(config, "quantization_config");
    JsonValue kind = jv_get(q, "quant_method");
    JsonValue block = jv_get(q, "weight_block_size");

    if (jv_kind(q) != JSONobject ||
        (jv_is(kind, "fp8") && jv_same(a, block, json_of("[128, 128]"))))
        return NULL;
    return strf(a,
                "has a quantization_config of kind %s, weight_block_size %s; "
                "fp8 in blocks [128, 128] is read, others after "
                "model.dequantize().save_pretrained(DIR) in transformers",
                shown(a, kind), shown(a, block));
}

/* ---- export -------------------------------------------------------------- */

/* Merges the model's RoPE parameter into the folder's RoPE object. 0: the
 * folder has none. */
static int merge_positions(Arena *a, JsonMember **out, const char *key,
                           JsonValue ours)
{
    JsonValue all = jv_member(*out, "rope_parameters"), name, v;
    int scaling = !strcmp(key, "rope_scaling");

    if (jv_kind(all) != JSONobject || (strcmp(key, "rope_theta") && !scaling))
        return 0;
    JsonMember *members = jv_members(a, all);
    if (!scaling)
        jv_set(a, &members, key, ours);
    for (size_t at = 0; scaling && jv_next(ours, &at, &name, &v);) {
        const char *text = jv_text(a, name, NULL);
        if (jv_get(all, text).s && !jv_same(a, jv_get(all, text), v))
            jv_set(a, &members, text, v);
    }
    jv_set(a, out, "rope_parameters", jv_object(a, members, 2));
    return 1;
}

/* v as a real if transformers declares the key a float: it refuses integers. */
static JsonValue typed(Arena *a, JsonValue model, const char *key, JsonValue v)
{
    JsonValue usual = family_value(model, key);
    int real = jv_kind(usual) == JSONnumber && memchr(usual.s, '.', usual.n);

    if (!real || jv_kind(v) != JSONnumber || memchr(v.s, '.', v.n) ||
        memchr(v.s, 'e', v.n))
        return v;
    return (JsonValue){ strf(a, "%.*s.0", (int)v.n, v.s), v.n + 2 };
}

JsonMember *hf_config_merge(Arena *a, JsonValue model, JsonValue folder)
{
    JsonMember *out = jv_members(a, folder);
    JsonValue key, v;

    for (size_t at = 0; jv_next(model, &at, &key, &v);) {
        const char *name = jv_text(a, key, NULL);
        if (!name)
            continue;
        v = typed(a, model, name, v);
        const struct ConfigKey *rule = rule_of(name);
        JsonValue theirs = own_value(folder, name);
        if (!theirs.s && says(folder, name)) /* has an alias */
            continue;
        if ((theirs.s && rule && rule->rule == THEIRS) ||
            jv_same(a, theirs, v) || merge_positions(a, &out, name, v))
            continue;
        jv_set(a, &out, name, v);
    }
    /* exported weights are not quantized */
    jv_set(a, &out, "quantization_config", (JsonValue){ 0 });
    return out;
}
