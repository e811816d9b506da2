-- tp=2: parameters that only a loss, or only an output, picks experts of: each program had a grid of its own for them
axes { p=6, h=6, e=4, hidden={ 4, role="heads" } }
local g, i = topk(param("x22", "p h", normal(1)), 2, "h")
local a = param("a", "h e hidden", normal(0.7))
local b = param("b", "h e hidden", normal(0.7))
local c = param("c", "h e hidden", normal(0.7))
local w = param("w2", "e p", normal(0.5))
output("logits", dot(w, b[i], "e") + dot(w, c[i], "e") + sum(a, "h e"))
loss("l0", mean(dot(w, a[i], "e"), "p top hidden") + mean(b, "h e hidden"))
