-- stages: the grouped product of [row] and [e v] sums nothing
axes { batch=2, seq=3, vocab=5, v=2, e=3 }
local x = embed(input("tokens", "batch seq"), param("x", "vocab v", normal(1)))
local g, e = topk(dot(x, param("gate", "v e", normal(1)), "v"), 2, "e")
loss("l", mean(sum(g * dot(x, param("w", "e v", normal(1))[e], "v"), "top"), "batch seq"))
