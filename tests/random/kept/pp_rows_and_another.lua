-- two values cross in one call, the rows first: they waited for their route and came second
axes { top=2, batch=3, seq=7, k=4, e=1, v=7, m=2, hidden=4, vocab=9 }
local t1 = param("w0", "vocab hidden", 1)
local t2 = embed(input("tokens", "batch seq"), t1)
local g5, e5, p5 = sigmoid_topk(dot(t1, param("w1", "hidden m", 1), "hidden"), 1, "m")
local g14, e14, p14 = topk_softmax(dot(p5, param("w5", "m v", 1), "m"), 2, "v")
local t18 = dot(param("x20", "vocab top e", 1), param("w7", "v e m", 0.7)[e14], "e")
local function layer0(x)
  local t20 = param("x18", "vocab m", 1) * p14
  return x + mean(dot(t18, param("w8", "v m k", 0.7)[e14], "m"), "vocab top k") + mean(t20, "vocab m v")
end
t2 = scope("layers", function() return scope("0", layer0, t2) end)
loss("l0", sum(tanh(t2), "batch seq hidden"))
