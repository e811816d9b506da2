-- an update that reads an attention of parameters
axes { f=4, m=2, q=3 }
local t = param("w", "f m q", normal(1))
local k = rename(t * 0.7, {f="key"})
local y = attention(causal(dot(t, k, "m"), "f", "key"), k, "key")
local s = state("s", "q", 0.2)
update(s, s * 0.5 + min(y, "f m"))
loss("l", mean(y * y, "f m q") + mean(s, "q"))
