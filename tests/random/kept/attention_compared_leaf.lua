axes { seq=16, d=4, kk=16 }
local q, k = param("q", "seq d", normal(1)), rename(param("k", "seq d", normal(1)), {seq="key"})
local t, b = param("t", "seq", normal(3)), param("b", "key", normal(1))
local v = f32(eq(iota("key"), iota("kk")))
local w = attention(where(ge(iota("key"), t), dot(q, k, "d"), -5), v, "key")
local x = attention(where(ge(dot(q, k, "d"), t * 0.1), b, 0), v, "key")
local y = attention(dot(q, k, "d") * sign(t) + 0.1 * abs(b), v, "key")
loss("l", mean(w * x + y * y, "seq kk"))
