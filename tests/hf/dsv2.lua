-- DeepSeek-V2 as transformers computes it: latent attention with YaRN and without a latent
-- query, a dense layer, then softmax routing to the groups whose best expert is best
axes { batch=2, seq=32, hidden=64, heads=4, nope=16, rot=8, dim=12, kvr=16,
       dense=48, ffn=20, shared=40, expert=8, nodes=4, vocab=256 }

local layers, dense_layers, eps = 2, 1, 1e-6
local yarn = { factor=40, original=16, attention_factor=1 }
local sharpen = 0.1 * 0.707 * math.log(yarn.factor) + 1

local function norm(name, x, axis)
  return scope(name, rmsnorm, x, axis, eps)
end

local function turn(x)
  return rope(x, "rot", "seq", 1e4, { interleaved=true, yarn=yarn })
end

local function latent_attention(x)                       -- keys and values from 512 numbers
  local ckv = norm("kv_norm", dot(x, param("wkv_a", "hidden kvr"), "hidden"), "kvr")
  local qn  = dot(x, param("wq_nope", "hidden heads nope"), "hidden")
  local qr  = turn(dot(x, param("wq_rope", "hidden heads rot"), "hidden"))
  local kr  = turn(dot(x, param("wk_rope", "hidden rot"), "hidden"))
  local kn  = dot(ckv, param("wk_nope", "kvr heads nope"), "kvr")
  local v   = dot(ckv, param("wv", "kvr heads dim"), "kvr")
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

local function moe(x)                                    -- weights as they are, not summing to 1
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert")
  local _, e   = topk(limit_groups(p, "expert", "nodes", 2, 1), 2, "expert")
  local y      = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", ffn, x, "shared") + sum(1.5 * gather(p, e) * dot(y, w2[e], "ffn"), "top")
end

local function layer(x, i)
  local h = x + scope("attn", latent_attention, norm("attn_norm", x, "hidden"))
  local z = norm("ffn_norm", h, "hidden")
  return h + (i < dense_layers and scope("ffn", ffn, z, "dense") or scope("moe", moe, z))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden", normal(0.02)))
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x, i)
end
local logits = dot(norm("norm", x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
output("logits", logits)

local attn, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
hf {
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = { "lm_head.weight", "vocab hidden" },
  ["layers.{i}.attn_norm.weight"]       = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.{wq_nope,wq_rope}"] = { attn .. "q_proj.weight", "(heads (nope|rot)) hidden" },
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
train { steps=10, lr=1e-3, weight_decay=0.1, no_decay="", clip=0 }
data  { train="tokens.npy" }
