-- OLMoE as transformers computes it: one norm over all heads, weights that do not sum to 1,
-- and fused experts
axes { batch=2, seq=32, hidden=64, heads=4, dim=16, ffn=24, expert=8, vocab=256 }

local layers, eps = 2, 1e-5

local function attend(x)                                 -- all heads are normalised together
  local q = dot(x, param("wq", "hidden heads dim"), "hidden")
  local k = dot(x, param("wk", "hidden heads dim"), "hidden")
  local v = dot(x, param("wv", "hidden heads dim"), "hidden")
  q = rope(scope("q_norm", rmsnorm, q, "heads dim", eps), "dim", "seq", 1e4)
  k = rope(scope("k_norm", rmsnorm, k, "heads dim", eps), "dim", "seq", 1e4)
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

local function moe(x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local logits = f32(dot(x, param("gate", "hidden expert"), "hidden"))
  local p      = softmax(logits, "expert")
  local g, e   = topk(p, 2, "expert")                    -- weights as they are, not summing to 1
  local y = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return sum(g * dot(y, w2[e], "ffn"), "top")
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
  ["layers.{i}.attn_norm.weight"]   = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]            = { attn .. "q_proj.weight", "(heads dim) hidden" },
  ["layers.{i}.attn.wk"]            = { attn .. "k_proj.weight", "(heads dim) hidden" },
  ["layers.{i}.attn.wv"]            = { attn .. "v_proj.weight", "(heads dim) hidden" },
  ["layers.{i}.attn.wo"]            = { attn .. "o_proj.weight", "hidden (heads dim)" },
  ["layers.{i}.attn.q_norm.weight"] = { attn .. "q_norm.weight", "(heads dim)" },
  ["layers.{i}.attn.k_norm.weight"] = { attn .. "k_norm.weight", "(heads dim)" },
  ["layers.{i}.ffn_norm.weight"]    = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"]           = { mlp .. "gate.weight", "expert hidden" },
  ["layers.{i}.moe.{w1,w3}"]        = { mlp .. "experts.gate_up_proj", "expert (ffn|ffn) hidden" },
  ["layers.{i}.moe.w2"]             = { mlp .. "experts.down_proj", "expert hidden ffn" },
}
train { steps=10, lr=1e-3, weight_decay=0.1, no_decay="", clip=0 }
data  { train="tokens.npy" }
