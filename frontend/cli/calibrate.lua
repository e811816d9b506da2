-- What `bench --calibrate` runs: one layer of each kind, in sizes by calibrate.c.
axes { batch=1, seq=64, hidden=64, kv=2, group=2, dim=16, wide=128, ffn=64, expert=8, chosen=2, vocab=256 }

local function attend(x)
  local q = rope(dot(x, param("wq", "hidden kv group dim"), "hidden"), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden kv dim"), "hidden"), "dim", "seq", 1e4)
  local v = dot(x, param("wv", "hidden kv dim"), "hidden")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function mlp(x)
  local w1, w3 = param("w1", "hidden wide"), param("w3", "hidden wide")
  return dot(swiglu(dot(x, w1, "hidden"), dot(x, w3, "hidden")), param("w2", "wide hidden"), "wide")
end

local function moe(x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2, gate = param("w2", "expert ffn hidden"), param("gate", "hidden expert")
  local p    = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e = topk(p, size("chosen"), "expert")
  return sum(g * dot(swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden")), w2[e], "ffn"), "top")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
x = x + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden"))
x = x + scope("mlp", mlp, scope("mlp_norm", rmsnorm, x, "hidden"))
x = x + scope("moe", module, "moe", moe, scope("ffn_norm", rmsnorm, x, "hidden"))
local logits = dot(scope("norm", rmsnorm, x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
