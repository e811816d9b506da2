-- Qwen2-MoE as transformers computes it: biases of q, k and v, a shared expert with a gate
axes { batch=2, seq=32, hidden=64, kv=2, group=2, dim=16, ffn=24, shared=40, expert=8, vocab=256 }

local layers, eps = 2, 1e-6

local function project(x, name, axes)                    -- with a bias
  return dot(x, param("w" .. name, "hidden " .. axes), "hidden") + param("b" .. name, axes, zeros)
end

local function attend(x)                                 -- grouped-query attention
  local q = rope(project(x, "q", "kv group dim"), "dim", "seq", 1e6)
  local k = rope(project(x, "k", "kv dim"), "dim", "seq", 1e6)
  local v = project(x, "v", "kv dim")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function shared(x)                                 -- an expert of all tokens, and how much of it
  local gate, up = param("w1", "hidden shared"), param("w3", "hidden shared")
  local y = swiglu(dot(x, gate, "hidden"), dot(x, up, "hidden"))
  return sigmoid(dot(x, param("gate", "hidden"), "hidden")) * dot(y, param("w2", "shared hidden"), "shared")
end

local function moe(x)
  local gate   = param("gate", "hidden expert")
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e   = topk(p, 2, "expert")                    -- weights as they are, not summing to 1
  local y = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", shared, x) + sum(g * dot(y, w2[e], "ffn"), "top")
end

local function layer(x)
  local h = x + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden", eps))
  return h + scope("moe", moe, scope("ffn_norm", rmsnorm, h, "hidden", eps))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x)
end
x = scope("norm", rmsnorm, x, "hidden", eps)
local logits = dot(x, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
output("logits", logits)

local attn, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
hf {
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = { "lm_head.weight", "vocab hidden" },
  ["layers.{i}.attn_norm.weight"] = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]          = { attn .. "q_proj.weight", "(kv group dim) hidden" },
  ["layers.{i}.attn.wk"]          = { attn .. "k_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wv"]          = { attn .. "v_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.bq"]          = { attn .. "q_proj.bias", "(kv group dim)" },
  ["layers.{i}.attn.bk"]          = { attn .. "k_proj.bias", "(kv dim)" },
  ["layers.{i}.attn.bv"]          = { attn .. "v_proj.bias", "(kv dim)" },
  ["layers.{i}.attn.wo"]          = { attn .. "o_proj.weight", "hidden (kv group dim)" },
  ["layers.{i}.ffn_norm.weight"]  = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"]         = { mlp .. "gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]           = { mlp .. "experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]           = { mlp .. "experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]           = { mlp .. "experts.{expert}.up_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.shared.gate"]  = { mlp .. "shared_expert_gate.weight", "1 hidden" },
  ["layers.{i}.moe.shared.w1"]    = { mlp .. "shared_expert.gate_proj.weight", "shared hidden" },
  ["layers.{i}.moe.shared.w2"]    = { mlp .. "shared_expert.down_proj.weight", "hidden shared" },
  ["layers.{i}.moe.shared.w3"]    = { mlp .. "shared_expert.up_proj.weight", "shared hidden" },
}
train { steps=10, lr=1e-3, weight_decay=0.1, no_decay="", clip=0 }
data  { train="tokens.npy" }
