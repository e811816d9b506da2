-- merge of rows back in tokens, whose axes come in another order
axes { top=3, batch=1, seq=4, k=3, e=5, f=1, v=2, n=4 }
local g, e = topk(param("w0", "f v e", 1), 3, "e")
local t = param("w1", "f v e", ones)
local y = dot(param("w2", "f v top seq", 1), param("w3", "e seq n", 0.7)[e], "seq")
loss("l0", mean(fma(t, merge(maximum(param("w4", "k", 0.5), y), "top n", "u"), t), "f v e k u"), 0.3)
