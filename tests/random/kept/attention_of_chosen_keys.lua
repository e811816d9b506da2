-- keys that topk chose for each query, causal among them
axes { batch=2, seq=16, h=8, d=4 }
local x = param("x", "batch seq h", normal(1))
local q, k, v = dot(x, param("a","h d"),"h"), rename(dot(x, param("b","h d"),"h"), {seq="key"}), rename(dot(x, param("c","h d"),"h"), {seq="key"})
local s = dot(q, k, "d")
local t, e = topk(s, 6, "key")
local vv = gather(v, e)
local y = attention(causal(t, "seq", "top"), vv, "top")
loss("l", mean(y * y, "batch seq d"))
