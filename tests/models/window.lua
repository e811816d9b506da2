-- A sliding window with a slope for each head and a soft cap (ALiBi: Press et al.
-- 2022), and a second attention whose scores are stored.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, vocab=256 }

local function window(x)
  local q = dot(x, param("wq", "hidden heads dim"), "hidden")
  local k = rename(dot(x, param("wk", "hidden heads dim"), "hidden"), {seq="key"})
  local v = rename(dot(x, param("wv", "hidden heads dim"), "hidden"), {seq="key"})
  local ago = iota("seq") - rename(iota("seq"), {seq="key"})
  local s = 30 * tanh(dot(q, k, "dim") / 8 / 30) - param("slope", "heads") * ago
  s = where(land(ge(ago, 0), lt(ago, 12)), s, -inf)
  return dot(attention(s, v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

local function stored(x)
  local q = dot(x, param("wq", "hidden heads dim"), "hidden")
  local k = rename(dot(x, param("wk", "hidden heads dim"), "hidden"), {seq="key"})
  local s = causal(dot(q, k, "dim") / 8, "seq", "key")
  local p = softmax(s, "key")
  return dot(dot(p, rename(x, {seq="key"}), "key"), param("wo", "heads hidden ffn"), "heads hidden")
end

local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(ids, param("embed", "vocab hidden"))
x = x + scope("window", window, x)
x = x + dot(gelu(scope("stored", stored, x)), param("down", "ffn hidden"), "ffn")
local logits = dot(x, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
train { steps=10, clip=1 }
