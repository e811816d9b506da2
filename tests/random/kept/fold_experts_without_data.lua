-- dp=2: rows of an index that no input leads to are not as many again
axes { q=3, v=2, e=3 }
local x = param("x", "q v", normal(1))
local g, e = topk(dot(x, param("gate", "v e", normal(1)), "v"), 2, "e")
loss("l", mean(sum(g * dot(x, param("w", "e v", normal(1))[e], "v"), "top"), "q"))
