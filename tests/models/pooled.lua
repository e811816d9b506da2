-- A learned score pools a sequence: attention over a renamed axis, without queries.
axes { batch=2, seq=16, hidden=16, vocab=64 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden", normal(1)))
local k = rename(x, {seq="key"})
local pool = attention(dot(k, param("score", "hidden"), "hidden"), k, "key")
local y = dot(x + pool, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(y), input("labels", "batch seq"), "vocab"), "batch seq"))
