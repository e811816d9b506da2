-- dp=2: experts' dropout is whole on every rank; the micro-batch's number was each rank's own
axes { f=6, h=2, n=3, top=2 }
local g, e = topk(param("x", "h f", normal(1)), 2, "f")
local w = param("w", "f n", normal(0.7))
local t = dropout(w, 0.5)
loss("l0", mean(t * t, "f n"), 2)
loss("l1", sum(dot(param("x19", "h top n", normal(1)), w[e], "n"), "h top"))
