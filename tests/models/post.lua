-- What a metric multiplies once a step: its operands are rounded, and watched, there.
axes { batch=4, seq=4, a=4, n=4, c=4, d=4 }
local x = param("x", "n a")
local g, e = topk(softmax(dot(x, param("gate", "n batch"), "n"), "batch"), 2, "batch")
local y = tanh(dot(x, param("w1", "batch n c")[e], "n"))
metric("m", sum(sum(g * dot(y, param("w2", "batch c d")[e], "c"), "top"), "a d"))
loss("l", mean(f32(input("tokens", "batch seq")) * mean(x, "n a"), "batch seq"))
