-- an index that is one for all micro-batches, beside rows that differ: was refused, by a hidden axis
axes { batch=2, seq=3, h=4, e=4, m=2, vocab=5 }
local tokens, w0 = input("tokens", "batch seq"), param("w0", "vocab h", normal(1))
local x = mean(embed(tokens, w0), "batch")
local g, e = topk(param("r", "seq e", normal(1)), 2, "e")
local y = dot(x, param("w1", "e h m", normal(1))[e], "h")
local z = scatter_add(param("v", "seq", normal(1)), index(mod(iota("seq"), 4), "h"), x)
loss("l", mean(tanh(sum(g * tanh(y), "top")), "seq m") + mean(z * tanh(x), "seq h"))
