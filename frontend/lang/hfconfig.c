/* hfconfig.c: hf{ config={...} }, the config.json of folders that a run
 * exports. It goes to the plan as the key hf.config, in JSON. What sizes it has
 * in common with the tensors that hf{} names must agree. */
#include "../frontend.h"

/* ---- to JSON ------------------------------------------------------------- */

static void put_number(lua_State *L, Front *front, const char *key, Text *out)
{
    double x = lua_tonumber(L, -1);

    if (lua_isinteger(L, -1))
        put(out, "%lld", lua_tointeger(L, -1));
    else if (!isfinite(x))
        err(front->loc, "hf: config: '%s' is no finite number", key);
    else if (x == rint(x) && fabs(x) < 1e15)
        put(out, "%.1f", x);
    else
        put_real(out, x);
}

enum { DEEPEST = 16 }; /* tables in tables */

static void put_value(lua_State *L, Front *front, const char *key, Text *out,
                      int depth);

/* A list, or names with values, in the order of the alphabet. */
static void put_table(lua_State *L, Front *front, const char *path, Text *out,
                      int depth)
{
    if (depth > DEEPEST)
        err(front->loc,
            "hf: config: '%s' is in more than %d tables in tables; does one "
            "hold itself?",
            path, DEEPEST);
    int n = (int)lua_rawlen(L, -1), names = 0, at = lua_gettop(L);
    const char **name = n ? NULL : sorted_keys(L, at, &names);

    put(out, n ? "[" : "{");
    for (int i = 0; i < n + names; i++) {
        const char *key = n ? path : name[i];
        put(out, i ? ", " : "");
        if (n) {
            lua_rawgeti(L, at, i + 1);
        } else {
            if (utf8_bad(key, strlen(key)) >= 0)
                err(front->loc, "hf: config: the name '%s' is no UTF-8 text",
                    key);
            put_json(out, key);
            put(out, ": ");
            lua_getfield(L, at, key);
        }
        put_value(L, front, key, out, depth + 1);
        lua_pop(L, 1);
    }
    put(out, n ? "]" : "}");
}

static void put_string(lua_State *L, Front *front, const char *key, Text *out)
{
    size_t len;
    const char *s = lua_tolstring(L, -1, &len);

    if (strlen(s) != len || utf8_bad(s, len) >= 0)
        err(front->loc, "hf: config: '%s' is no UTF-8 text", key);
    put_json(out, s);
}

static void put_value(lua_State *L, Front *front, const char *key, Text *out,
                      int depth)
{
    const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;

    if (s && !strcmp(s, "null"))
        put(out, "null");
    else if (s)
        put_string(L, front, key, out);
    else if (lua_isboolean(L, -1))
        put(out, lua_toboolean(L, -1) ? "true" : "false");
    else if (lua_type(L, -1) == LUA_TNUMBER)
        put_number(L, front, key, out);
    else if (lua_istable(L, -1))
        put_table(L, front, key, out, depth);
    else
        err(front->loc,
            "hf: config: '%s' must be a string, number, boolean or table, got "
            "a %s",
            key, luaL_typename(L, -1));
}

/* The table on top. */
void hf_config(lua_State *L, Front *front)
{
    Text out = { .arena = front->g->arena };

    if (opts_loc(front->g->opts, "hf.config"))
        err(front->loc, "hf: config stands twice");
    put_table(L, front, "config", &out, 0);
    if (!opts_given(front->cmdline, "hf.config"))
        opts_set(front->g->opts, "hf.config", out.s, front->loc);
}

/* ---- does it agree? ------------------------------------------------------ */

/* Tensors by the end of their name; each of their sizes as a sum of products of
 * the config's numbers. Rows whose numbers it has not say nothing. */
/* clang-format off */
static const struct { const char *tail, *size[2]; } known[] = {
    { "embed_tokens.weight", { "vocab_size", "hidden_size" } },
    { "lm_head.weight", { "vocab_size", "hidden_size" } },
    { ".q_proj.weight", { "num_attention_heads*head_dim", "hidden_size" } },
    { ".q_proj.weight", { "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim", "hidden_size" } },
    { ".k_proj.weight", { "num_key_value_heads*head_dim", "hidden_size" } },
    { ".v_proj.weight", { "num_key_value_heads*head_dim", "hidden_size" } },
    { ".o_proj.weight", { "hidden_size", "num_attention_heads*head_dim" } },
    { ".o_proj.weight", { "hidden_size", "num_attention_heads*v_head_dim" } },
    { ".q_a_proj.weight", { "q_lora_rank", "hidden_size" } },
    { ".q_b_proj.weight", { "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim", "q_lora_rank" } },
    { ".kv_a_proj_with_mqa.weight", { "kv_lora_rank+qk_rope_head_dim", "hidden_size" } },
    { ".kv_b_proj.weight", { "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim", "kv_lora_rank" } },
    { ".mlp.gate.weight", { "num_experts", "hidden_size" } },
    { ".mlp.gate.weight", { "n_routed_experts", "hidden_size" } },
    { ".block_sparse_moe.gate.weight", { "num_local_experts", "hidden_size" } },
    { "}.w1.weight", { "intermediate_size", "hidden_size" } },
    { "}.gate_proj.weight", { "moe_intermediate_size", "hidden_size" } },
    { ".mlp.gate_proj.weight", { "intermediate_size", "hidden_size" } },
    { ".shared_expert.gate_proj.weight", { "shared_expert_intermediate_size", "hidden_size" } },
    { ".shared_experts.gate_proj.weight", { "n_shared_experts*moe_intermediate_size", "hidden_size" } },
};
/* clang-format on */

static void check_tensor(const Loc *loc, JsonValue config, const HfMap *map)
{
    size_t n = strlen(map->hf);

    for (int i = 0; i < countof(known); i++) {
        size_t k = strlen(known[i].tail);
        if (k > n || strcmp(map->hf + n - k, known[i].tail))
            continue;
        for (int d = 0; d < 2 && d < map->nd; d++) {
            double said = hf_config_value(config, known[i].size[d]);
            int64_t is = hf_dim(&map->dim[d]);
            if (!isnan(said) && said != (double)is)
                err(loc, "hf: config has %s = %.0f, but '%s' has %ld there",
                    known[i].size[d], said, map->hf, is);
        }
    }
}

static void check_layers(const Loc *loc, JsonValue config, const Graph *g)
{
    double said = hf_config_value(config, "num_hidden_layers");
    double ahead = hf_config_value(config, "num_nextn_predict_layers|0");
    int64_t count = 0;
    static const char head[] = "model.layers.";

    for (int i = 0; i < g->nhf; i++) {
        if (strncmp(g->hf[i].hf, head, sizeof head - 1))
            continue;
        int64_t k = strtoll(g->hf[i].hf + sizeof head - 1, NULL, 10) + 1;
        count = k > count ? k : count;
    }
    if (!isnan(said) && said + ahead != (double)count)
        err(loc,
            "hf: config has num_hidden_layers = %.0f, but the tensors' names "
            "have %ld layers",
            said, count);
}

void hf_config_check(Front *front)
{
    const Loc *l = opts_loc(front->g->opts, "hf.config");
    const char *s = opts_str(front->g->opts, "hf.config");
    JsonError e;
    JsonValue config = { 0 };

    if (!s)
        return;
    if (jv_open(s, strlen(s), &config, &e) || jv_kind(config) != JSONobject)
        err(l, "hf.config is not a JSON object");
    JsonMember *own = jv_members(front->g->arena, config);
    jv_set(front->g->arena, &own, "model_type", (JsonValue){ 0 });
    config =
        jv_object(front->g->arena, own, 0); /* without values of a family */
    for (int i = 0; i < front->g->nhf; i++)
        check_tensor(l, config, &front->g->hf[i]);
    check_layers(l, config, front->g);
}
