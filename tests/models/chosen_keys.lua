-- Each query sees the 4 keys that an indexer scores highest. The mask compares their indices:
-- keys that tie but for rounding have values that agree but for rounding.
axes { batch=2, seq=32, hidden=16, heads=2, dim=8, id=4, vocab=4 }

local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden", normal(1)))

local function attn(x)
  local function of(name, axes) return dot(x, param(name, "hidden "..axes), "hidden") end
  local function keys(name, axes) return rename(of(name, axes), {seq="key"}) end
  local score = causal(dot(of("iq", "id"), keys("ik", "id"), "id"), "seq", "key")
  local _, e = topk(score, 4, "key")
  local seen = land(any(eq(e, iota("key")), "top"), le(iota("key"), iota("seq")))
  local s = where(seen, dot(of("wq", "heads dim"), keys("wk", "heads dim"), "dim"), -inf)
  local y = attention(s, keys("wv", "heads dim"), "key")
  return x + dot(y, param("wo", "heads dim hidden"), "heads dim")
end

for l = 0, 2 do x = scope("layers."..l, attn, x) end
local logits = dot(x, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), input("labels", "batch seq"), "vocab"), "batch seq"))
