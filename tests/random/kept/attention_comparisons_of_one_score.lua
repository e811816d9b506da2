-- what a comparison that stays outside attention reads is computed outside, so that others of it stay too
axes { batch=2, seq=5, h=6, kv=2, group=2, d=3, vocab=256 }
local x = embed(input("tokens", "batch seq"), param("emb", "vocab h", normal(1)))
local function P(n, a) return param(n, a, normal(0.6)) end
local function K(a) return rename(a, {seq="key"}) end
local q = dot(x, P("wq", "h kv group d"), "h")
local k, v = K(dot(x, P("wk", "h kv d"), "h")), K(dot(x, P("wv", "h kv d"), "h"))
local ago = iota("seq") - iota("key", k)
local s = dot(q, k, "d") * 0.5
local s2 = dot(q, K(dot(x, P("wk2", "h kv d"), "h")), "d")
local z4 = s2 + s
local l5 = P("p5", "seq key")
local c6 = le(z4, l5)
local l13 = K(P("p13", "seq"))
local z14 = maximum(s2, l13)
local ya = attention(where(lor(c6, eq(ago, 0)), z14, -inf), v, "key")
loss("a", mean(ya * ya, "batch seq kv group d"))
loss("u", mean(s * 0 + sum(v * k, "d"), "batch seq key kv group"), 0.01)
