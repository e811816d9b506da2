-- DeepSeek-V2-Lite: 15.7 billion parameters, 2.7 billion active (DeepSeek-AI 2024)
axes { batch=1, seq=4096, hidden=2048, heads=16, nope=128, rot=64, dim=128, qr=1536, kvr=512,
       dense=10944, ffn=1408, shared=2816, expert=64, nodes=1, vocab=102400 }

local layers, dense_layers, eps = 27, 1, 1e-6
local chosen, scale, theta = 6, 1.0, 1e4                -- experts of a token, their weight; of positions
local kept, grouped, low_rank = 1, false, false         -- groups that a token may choose from; queries from "qr"
local tied, pad = false, -1                              -- the head is the embedding; a token whose row has no gradient
local yarn = { factor=40, original=4096, mscale=0.707, mscale_all_dim=0.707 }    -- nil: positions as they are
local sharpen = yarn and 0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1 or 1

local function norm(name, x, axis)
  return scope(name, rmsnorm, x, axis, eps)
end

local function turn(x)
  return rope(x, "rot", "seq", theta, { interleaved=true, yarn=yarn })
end

local query = low_rank and "qr" or "hidden"
local function up(cq, ckv, kr)                           -- queries, keys and values of all heads
  local qn = dot(cq, param("wq_nope", query .. " heads nope"), query)
  local qr = turn(dot(cq, param("wq_rope", query .. " heads rot"), query))
  local kn = dot(ckv, param("wk_nope", "kvr heads nope"), "kvr")
  return qn, qr, kn, turn(kr), dot(ckv, param("wv", "kvr heads dim"), "kvr")
end

local function latent_attention(x)                       -- keys and values from 512 numbers
  local cq  = low_rank and norm("q_norm", dot(x, param("wq_a", "hidden qr"), "hidden"), "qr") or x
  local ckv = norm("kv_norm", dot(x, param("wkv_a", "hidden kvr"), "hidden"), "kvr")
  local kr  = dot(x, param("wk_rope", "hidden rot"), "hidden")
  local qn, qr, kn, kr, v = module("mla_up_proj", up, cq, ckv, kr)
  kr, kn, v = rename(kr, {seq="key"}), rename(kn, {seq="key"}), rename(v, {seq="key"})
  local s   = (dot(qn, kn, "nope") + dot(qr, kr, "rot")) * (sharpen^2 / math.sqrt(size("nope") + size("rot")))
  local y   = attention(causal(s, "seq", "key"), v, "key")
  return dot(y, param("wo", "heads dim hidden"), "heads dim")
end

local function ffn(x, width)
  local gate = dot(x, param("w1", "hidden " .. width), "hidden")
  local up   = dot(x, param("w3", "hidden " .. width), "hidden")
  return dot(swiglu(gate, up), param("w2", width .. " hidden"), width)
end

local function moe(x)                                    -- weights do not sum to 1
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert")
  local g, e   = topk(p, chosen, "expert")
  if grouped and kept < size("nodes") then                           -- within the groups of the best experts
    local _, best = topk(limit_groups(p, "expert", "nodes", kept, 1), chosen, "expert")
    g, e = gather(p, best), best
  end
  loss("balance", mean(balance_loss(p, chosen, "expert", "seq"), "batch"), 1e-3)
  local y      = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", module, "shared_experts", ffn, x, "shared") + sum(scale * g * dot(y, w2[e], "ffn"), "top")
end

local function layer(x, i)
  local h = x + scope("attn", latent_attention, norm("attn_norm", x, "hidden"))
  local z = norm("ffn_norm", h, "hidden")
  return h + (i < dense_layers and scope("ffn", module, "mlp", ffn, z, "dense") or scope("moe", module, "moe", moe, z))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local table = param("embed", "vocab hidden", normal(0.006))
local x = embed(tokens, table)
if pad >= 0 then x = where(eq(tokens, pad), stop_gradient(x), x) end
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x, i)
end
local logits = dot(norm("norm", x, "hidden"), tied and table or param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
output("logits", logits)

train { batch=4608, lr=4.2e-4, min_lr=4.2e-5, schedule="cosine", warmup=2000, clip=1 }
precision { policy="bf16" }

local attn, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
hf {
  config = {
    model_type="deepseek_v2", architectures={"DeepseekV2ForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=163840, rope_theta=theta,
    num_attention_heads=size("heads"), num_key_value_heads=size("heads"), kv_lora_rank=size("kvr"),
    qk_nope_head_dim=size("nope"), qk_rope_head_dim=size("rot"), v_head_dim=size("dim"),
    rope_scaling=yarn and {
      type="yarn", factor=yarn.factor, original_max_position_embeddings=yarn.original,
      beta_fast=yarn.beta_fast or 32, beta_slow=yarn.beta_slow or 1, mscale=yarn.mscale, mscale_all_dim=yarn.mscale_all_dim,
    },
    intermediate_size=size("dense"), moe_intermediate_size=size("ffn"), first_k_dense_replace=dense_layers,
    q_lora_rank=low_rank and size("qr") or "null", n_routed_experts=size("expert"),
    n_shared_experts=size("shared") // size("ffn"), num_experts_per_tok=chosen, norm_topk_prob=false,
    routed_scaling_factor=scale, scoring_func="softmax", n_group=size("nodes"), topk_group=kept,
    topk_method=grouped and "group_limited_greedy" or "greedy",
    attention_bias=false,
  },
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.attn_norm.weight"]       = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq_a"]              = low_rank and { attn .. "q_a_proj.weight", "qr hidden" } or nil,
  ["layers.{i}.attn.q_norm.weight"]     = low_rank and { attn .. "q_a_layernorm.weight", "qr" } or nil,
  ["layers.{i}.attn.{wq_nope,wq_rope}"] = { attn .. (low_rank and "q_b" or "q") .. "_proj.weight", "(heads (nope|rot)) " .. query },
  ["layers.{i}.attn.{wkv_a,wk_rope}"]   = { attn .. "kv_a_proj_with_mqa.weight", "(kvr|rot) hidden" },
  ["layers.{i}.attn.kv_norm.weight"]    = { attn .. "kv_a_layernorm.weight", "kvr" },
  ["layers.{i}.attn.{wk_nope,wv}"]      = { attn .. "kv_b_proj.weight", "(heads (nope|dim)) kvr" },
  ["layers.{i}.attn.wo"]                = { attn .. "o_proj.weight", "hidden (heads dim)" },
  ["layers.{i}.ffn_norm.weight"]        = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.ffn.w1"]                 = { mlp .. "gate_proj.weight", "dense hidden" },
  ["layers.{i}.ffn.w2"]                 = { mlp .. "down_proj.weight", "hidden dense" },
  ["layers.{i}.ffn.w3"]                 = { mlp .. "up_proj.weight", "dense hidden" },
  ["layers.{i}.moe.gate"]               = { mlp .. "gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]                 = { mlp .. "experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]                 = { mlp .. "experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]                 = { mlp .. "experts.{expert}.up_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.shared.w1"]          = { mlp .. "shared_experts.gate_proj.weight", "shared hidden" },
  ["layers.{i}.moe.shared.w2"]          = { mlp .. "shared_experts.down_proj.weight", "hidden shared" },
  ["layers.{i}.moe.shared.w3"]          = { mlp .. "shared_experts.up_proj.weight", "shared hidden" },
}
