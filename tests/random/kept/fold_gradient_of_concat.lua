-- tp=2: m of 2 is cut and m of 1 is whole; a gradient all parts of which are the same was taken for a part of the latter
axes { key1=1, n=1, m=1, mn=1 }
local a = attention(param("x50", "mn m key1", normal(1)), param("x51", "key1 n m", normal(1)), "key1")
local t = dot(a, param("x45", "n m", normal(1)), "n")
local x = param("x23", "mn m n", normal(1))
loss("l", mean(concat(x, x, "m") * 0.25, "mn m n") + mean(t * t, "mn m"))
