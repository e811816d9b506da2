-- seed 70073: lane c + 32 of a row of two axes; NVVM took (c + 32) % 7 - 36 for
-- an unsigned number (only a real GPU shows it)
axes { batch=3, seq=4, f=7, q=7 }
local x = param("w0", "batch seq f q", normal(1))
local k = rename(x * 0.7, {seq="key"})
local s = dot(x, param("w1", "batch f q key", normal(1)), "f q")
loss("l0", mean(attention(causal(s, "seq", "key"), k, "key"), "batch seq f q"))
