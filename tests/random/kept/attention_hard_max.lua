-- host wrong: gradient of b: 0.86 of 0: attention computed scores again that were compared with their largest
axes { batch=2, seq=8, h=16, d=32 }
local x = param("x", "batch seq h", normal(1))
local q, k = dot(x, param("a", "h d"), "h"), rename(dot(x, param("b", "h d"), "h"), {seq="key"})
local v = rename(dot(x, param("c", "h d"), "h"), {seq="key"})
local s = dot(q, k, "d")
local y = attention(where(ge(s, max(s, "key")), s, -inf), v, "key")
local z = attention(where(ge(s, min(topk(s, 3, "key"), "top")), relu(s), -inf), v, "key")
metric("kept", mean(sum(f32(ge(s, max(s, "key"))), "key"), "batch seq"))
loss("l", mean(y * y + z * z, "batch seq d"))
