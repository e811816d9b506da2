-- DeepSeek-V3: 671 billion parameters, 37 billion active (Liu et al. 2024), without
-- multi-token prediction and the stretched positions of its long-context phase
axes { batch=1, seq=4096, hidden=7168, heads=128, nope=128, rot=64, dim=128, qr=1536, kvr=512,
       dense=18432, ffn=2048, expert=256, nodes=8, vocab=129280 }

local layers, dense_layers, eps = 61, 3, 1e-6

local function norm(name, x, axis)
  return scope(name, rmsnorm, x, axis, eps)
end

local function turn(x)
  return rope(x, "rot", "seq", 1e4, { interleaved=true })
end

local function latent_attention(x)
  local cq  = norm("q_norm", dot(x, param("wq_a", "hidden qr"), "hidden"), "qr")
  local ckv = norm("kv_norm", dot(x, param("wkv_a", "hidden kvr"), "hidden"), "kvr")
  local qn  = dot(cq, param("wq_nope", "qr heads nope"), "qr")
  local qr  = turn(dot(cq, param("wq_rope", "qr heads rot"), "qr"))
  local kr  = turn(dot(x, param("wk_rope", "hidden rot"), "hidden"))
  local kn  = dot(ckv, param("wk_nope", "kvr heads nope"), "kvr")
  local v   = dot(ckv, param("wv", "kvr heads dim"), "kvr")
  kr, kn, v = rename(kr, {seq="key"}), rename(kn, {seq="key"}), rename(v, {seq="key"})
  local s   = (dot(qn, kn, "nope") + dot(qr, kr, "rot")) / math.sqrt(128 + 64)
  local y   = attention(causal(s, "seq", "key"), v, "key")
  return dot(y, param("wo", "heads dim hidden"), "heads dim")
end

local function ffn(x, width)
  local gate = dot(x, param("w1", "hidden " .. width), "hidden")
  local up   = dot(x, param("w3", "hidden " .. width), "hidden")
  return dot(swiglu(gate, up), param("w2", width .. " hidden"), width)
end

local function router(x)                                 -- sigmoid, bias-corrected, node-limited
  local s    = sigmoid(f32(dot(x, param("gate", "hidden expert"), "hidden")))
  local bias = state("bias", "expert")                   -- no gradient; changed by update()
  local near = limit_groups(stop_gradient(s) + bias, "expert", "nodes", 4, 2)
  local _, e = topk(near, 8, "expert")                   -- of the 4 nodes whose 2 best are best
  local g    = gather(s, e)
  balance_bias(bias, e, "expert", "batch seq top", 1e-3)
  local p    = s / sum(s, "expert")                      -- balance inside each sequence
  loss("balance", mean(balance_loss(p, 8, "expert", "seq"), "batch"), 1e-4)
  return 2.5 * g / (sum(g, "top") + 1e-20), e
end

local function moe(x)
  local g, e   = scope("router", router, x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local y      = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", ffn, x, "ffn") + sum(g * dot(y, w2[e], "ffn"), "top")
end

local function layer(x, i)
  local h = x + scope("attn", latent_attention, norm("attn_norm", x, "hidden"))
  local z = norm("ffn_norm", h, "hidden")
  return h + (i < dense_layers and scope("ffn", ffn, z, "dense") or scope("moe", moe, z))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden", normal(0.006)))
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x, i)
end
local logits = dot(norm("norm", x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
output("logits", logits)

train { batch=8192, lr=2.2e-4, min_lr=2.2e-5, schedule="cosine", warmup=2000, clip=1 }
precision { policy="bf16" }

local attn, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
hf {
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = { "lm_head.weight", "vocab hidden" },
  ["layers.{i}.attn_norm.weight"]       = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq_a"]              = { attn .. "q_a_proj.weight", "qr hidden" },
  ["layers.{i}.attn.q_norm.weight"]     = { attn .. "q_a_layernorm.weight", "qr" },
  ["layers.{i}.attn.{wq_nope,wq_rope}"] = { attn .. "q_b_proj.weight", "(heads (nope|rot)) qr" },
  ["layers.{i}.attn.{wkv_a,wk_rope}"]   = { attn .. "kv_a_proj_with_mqa.weight", "(kvr|rot) hidden" },
  ["layers.{i}.attn.kv_norm.weight"]    = { attn .. "kv_a_layernorm.weight", "kvr" },
  ["layers.{i}.attn.{wk_nope,wv}"]      = { attn .. "kv_b_proj.weight", "(heads (nope|dim)) kvr" },
  ["layers.{i}.attn.wo"]                = { attn .. "o_proj.weight", "hidden (heads dim)" },
  ["layers.{i}.ffn_norm.weight"]        = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.ffn.w1"]                 = { mlp .. "gate_proj.weight", "dense hidden" },
  ["layers.{i}.ffn.w2"]                 = { mlp .. "down_proj.weight", "hidden dense" },
  ["layers.{i}.ffn.w3"]                 = { mlp .. "up_proj.weight", "dense hidden" },
  ["layers.{i}.moe.router.gate"]        = { mlp .. "gate.weight", "expert hidden" },
  ["layers.{i}.moe.router.bias"]        = { mlp .. "gate.e_score_correction_bias", "expert" },
  ["layers.{i}.moe.w1"]                 = { mlp .. "experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]                 = { mlp .. "experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]                 = { mlp .. "experts.{expert}.up_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.shared.w1"]          = { mlp .. "shared_experts.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.shared.w2"]          = { mlp .. "shared_experts.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.shared.w3"]          = { mlp .. "shared_experts.up_proj.weight", "ffn hidden" },
}
