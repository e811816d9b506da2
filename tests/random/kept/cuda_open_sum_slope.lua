-- Qwen3-30B-A3B: 30.5 billion parameters, 3.3 billion active (Yang et al. 2025)
axes { batch=1, seq=8, hidden=8, kv=2, group=2, dim=4,
       ffn=4, expert=4, vocab=16 }

local layers, eps = 1, 1e-6
local chosen, theta = 2, 1e6                            -- experts of a token; of positions

local function attend(x)                                 -- queries and keys are normalised
  local q = dot(x, param("wq", "hidden kv group dim"), "hidden")
  local k = dot(x, param("wk", "hidden kv dim"), "hidden")
  local v = dot(x, param("wv", "hidden kv dim"), "hidden")
  q = rope(scope("q_norm", rmsnorm, q, "dim", eps), "dim", "seq", theta)
  k = rope(scope("k_norm", rmsnorm, k, "dim", eps), "dim", "seq", theta)
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local slope = param("slope", "kv group") * (f32(iota("key")) - f32(iota("seq")))
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")) + slope, "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function moe(x)
  local gate   = param("gate", "hidden expert")
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e   = topk(p, chosen, "expert")
  g = g / sum(g, "top")
  local load   = mean(one_hot(e, "expert"), "batch seq top")
  loss("balance", 4 * sum(mean(p, "batch seq") * load, "expert"), 1e-3)
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

train { batch=2, lr=3e-4, min_lr=3e-5, schedule="cosine", warmup=2000, clip=1 }

