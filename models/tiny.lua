-- A small Mixture-of-Experts model of bytes: 2.7 million parameters, trained in a
-- minute on a laptop. Copy it, and change what you like.
axes { batch=8, seq=64, hidden=128, kv=8, group=2, dim=16, ffn=256, expert=8, vocab=256 }

local function attend(x)                                 -- grouped-query attention
  local q = rope(dot(x, param("wq", "hidden kv group dim"), "hidden"), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden kv dim"), "hidden"), "dim", "seq", 1e4)
  local v = dot(x, param("wv", "hidden kv dim"), "hidden")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function moe(x)                                    -- the best 2 of 8 experts
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2, gate = param("w2", "expert ffn hidden"), param("gate", "hidden expert")
  local p    = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e = topk(p, 2, "expert")                      -- e is an index into the axis "expert"
  local load = mean(one_hot(e, "expert"), "batch seq top")
  loss("balance", size("expert") * sum(mean(p, "batch seq") * load, "expert"), 0.01)
  metric("least", min(load, "expert"))                   -- share of the idlest expert
  local y = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return sum(g / sum(g, "top") * dot(y, w2[e], "ffn"), "top")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
for i = 0, 2 do
  x = scope("layers." .. i, function()
    local h = x + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden"))
    return h + scope("moe", module, "moe", moe, scope("ffn_norm", rmsnorm, h, "hidden"))
  end)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
output("logits", logits)

train { batch=64, steps=300, lr=2e-3, min_lr=2e-4, warmup=20, schedule="cosine", clip=1 }
data  { train="../LICENSE", valid="../LICENSE" }
