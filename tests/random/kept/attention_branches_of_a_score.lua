-- host wrong: both branches of a where read one score, whose gradient was `c ? 0 : dy + (..)`
axes { batch=1, seq=6, h=8, d=4 }
local x = param("x", "batch seq h", normal(1))
local q, k = dot(x, param("a", "h d"), "h"), rename(dot(x, param("b", "h d"), "h"), {seq="key"})
local s = dot(q, k, "d") * 0.5
local far = gt(abs(iota("seq") - iota("key", k)), 1)
local y = attention(where(far, s * 0.5, s), rename(x, {seq="key"}), "key")
loss("l", mean(y * y, "batch seq h"))
