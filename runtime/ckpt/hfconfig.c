/* hfconfig.c: the config.json of a Hugging Face folder: its numbers, whether
 * they are those that a model says in hf{ config={..} }, and the one that goes
 * out with weights. */
#include <ctype.h>

#include "ckpt.h"

typedef enum KeyRule {
    SAME,   /* a folder and a model agree on it */
    OURS,   /* they need not: the model's goes out */
    THEIRS, /* they need not: the folder's goes out */
} KeyRule;

/* Keys that are compared also where only one side has them, with what the other
 * means then, and keys that need not agree. Any other is compared where both
 * have it. */
static const struct ConfigKey {
    const char *key;
    KeyRule rule;
    const char *absent; /* JSON; null: nothing follows */
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
    { "num_nextn_predict_layers", OURS, NULL },
    { "architectures", THEIRS, NULL },
    { "max_position_embeddings", THEIRS, NULL },
    /* clang-format on */
};

/* What stretches positions, and what each number is where it is not said. */
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

/* Numbers of positions stand in an object of their own, by two names. */
const json_t *hf_config_positions(const json_t *config)
{
    const json_t *v = json_object_get(config, "rope_parameters");

    return json_is_object(v) ? v : json_object_get(config, "rope_scaling");
}

/* A key's value, among those of positions too; null: none, or "null". */
static const json_t *hf_config_get(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    if (!v || json_is_null(v))
        v = json_object_get(hf_config_positions(config), key);
    return json_is_null(v) ? NULL : v;
}

/* A key or a number; NaN: the config has it not. */
static double operand(const json_t *config, const char **s)
{
    size_t n = strcspn(*s, "|+*/");
    const char *key = internn(*s, n);
    const json_t *v = hf_config_get(config, key);
    double x = isdigit((unsigned char)*key) ? strtod(key, NULL)
               : json_is_number(v)          ? json_number_value(v)
               : json_is_boolean(v)         ? json_is_true(v)
                                            : (double)NAN;

    *s += n;
    return x;
}

static double product(const json_t *config, const char **s)
{
    double x = operand(config, s);

    while (**s == '*' || **s == '/')
        if (*(*s)++ == '*')
            x *= operand(config, s);
        else
            x /= operand(config, s);
    return x;
}

double hf_config_value(const json_t *config, const char *s)
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

const char *hf_config_stretch(const json_t *config)
{
    const json_t *v = hf_config_positions(config);
    const json_t *type = json_object_get(v, "rope_type");
    const char *s = json_string_value(type ? type : json_object_get(v, "type"));

    return !s || !strcmp(s, "default") ? "" : s;
}

/* ---- do two agree? ------------------------------------------------------- */

static int same(const json_t *x, const json_t *y)
{
    if (json_is_number(x) && json_is_number(y))
        return json_number_value(x) == json_number_value(y);
    return x && y ? json_equal(x, y) : x == y;
}

static const char *shown(Arena *a, const json_t *v)
{
    char *s = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : 0;
    const char *out = strf(a, "%s", s ? s : "none");

    free(s);
    return out;
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

static const char *differ(Arena *a, const char *key, const json_t *theirs,
                          const json_t *ours)
{
    return strf(a, "has %s = %s, the model %s", key, shown(a, theirs),
                shown(a, ours));
}

/* Null, or how. absent: what a side without the key means. */
static const char *compare_key(Arena *a, const json_t *model,
                               const json_t *folder, const char *key,
                               const char *absent)
{
    const json_t *ours = hf_config_get(model, key);
    const json_t *theirs = hf_config_get(folder, key);
    json_t *usual = absent ? json_loads(absent, JSON_DECODE_ANY, NULL) : NULL;
    const json_t *other = json_is_null(usual) ? NULL : usual;
    const char *why = NULL;

    if ((absent || (ours && theirs)) &&
        !same(ours ? ours : other, theirs ? theirs : other))
        why = differ(a, key, theirs ? theirs : other, ours ? ours : other);
    json_decref(usual);
    return why;
}

static const char *compare_positions(Arena *a, const json_t *model,
                                     const json_t *folder)
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

/* Queries that see only so many positions before them, where it is in use. */
static const char *compare_window(Arena *a, const json_t *model,
                                  const json_t *folder)
{
    const char *key = "sliding_window";
    const json_t *theirs = hf_config_get(folder, key);
    int used = !json_is_false(hf_config_get(folder, "use_sliding_window"));

    return theirs && used && !hf_config_get(model, key)
               ? differ(a, key, theirs, NULL)
               : NULL;
}

const char *hf_config_differs(Arena *a, const json_t *model,
                              const json_t *folder, const char *except)
{
    json_t *ours = (json_t *)(uintptr_t)model; /* only iterators change it */
    const char *why = NULL;

    for (void *i = json_object_iter(ours); i && !why;
         i = json_object_iter_next(ours, i)) {
        const char *key = json_object_iter_key(i);
        if (!rule_of(key) && strcmp(key, "rope_scaling") &&
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

/* ---- out ----------------------------------------------------------------- */

/* Positions' numbers of ours among theirs, where they have one object for all
 * of them; 0: they have none. */
static int merge_positions(json_t *out, const char *key, json_t *ours)
{
    json_t *all = json_object_get(out, "rope_parameters");

    if (!all || (strcmp(key, "rope_theta") && strcmp(key, "rope_scaling")))
        return 0;
    if (!strcmp(key, "rope_theta"))
        json_object_set(all, key, ours);
    else if (json_is_object(ours))
        json_object_update_existing(all, ours);
    return 1;
}

json_t *hf_config_merge(const json_t *model, const json_t *folder)
{
    json_t *ours = (json_t *)(uintptr_t)model, *out = json_object();

    if (json_is_object(folder))
        json_object_update_new(out, json_deep_copy(folder));
    for (void *i = json_object_iter(ours); i;
         i = json_object_iter_next(ours, i)) {
        const char *key = json_object_iter_key(i);
        json_t *v = json_object_iter_value(i);
        const struct ConfigKey *rule = rule_of(key);
        const json_t *theirs = json_object_get(out, key);
        if ((theirs && rule && rule->rule == THEIRS) || same(theirs, v) ||
            merge_positions(out, key, v))
            continue;
        json_object_set(out, key, v);
    }
    json_object_del(out, "quantization_config"); /* weights go out without */
    return out;
}
