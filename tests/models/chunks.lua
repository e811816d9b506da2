-- Attention within chunks of 24 positions, as of the layers of Llama 4 with rotary embeddings.
axes { batch=2, seq=64, hidden=16, kv=2, group=2, dim=8, vocab=64 }
local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(mod(ids, 64), param("embed", "vocab hidden", normal(0.5)))
local function project(x, name, axes) return dot(x, param(name, axes, normal(0.3)), "hidden") end
local function at_keys(t) return rename(t, { seq="key" }) end

local q = rope(project(x, "wq", "hidden kv group dim"), "dim", "seq", 1e4)
local k = rope(project(x, "wk", "hidden kv dim"), "dim", "seq", 1e4)
local v, place = project(x, "wv", "hidden kv dim"), iota("seq")
local s = causal(dot(q, at_keys(k), "dim") / 2, "seq", "key")
s = where(ge(at_keys(place), place - mod(place, 24)), s, -inf)
local y = dot(attention(s, at_keys(v), "key"), param("wo", "kv group dim hidden", normal(0.2)), "kv group dim")
loss("lm", mean(cross_entropy(dot(x + y, param("head", "hidden vocab", normal(0.3)), "hidden"), mod(labels, 64), "vocab"), "batch seq"))
