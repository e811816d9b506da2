-- grouped queries, and a declared axis that keys are renamed to
axes { batch=2, seq=4, h=6, kv=2, group=2, d=4, key=4 }
local x = param("x", "batch seq h", normal(1))
local q = dot(x, param("a","h kv group d"),"h")
local k, v = rename(dot(x, param("b","h kv d"),"h"), {seq="key"}), rename(dot(x, param("c","h kv d"),"h"), {seq="key"})
local y = attention(causal(dot(q, k, "d") + param("bias", "seq key"), "seq", "key"), v, "key")
loss("l", mean(y * y, "batch seq kv group d"))
