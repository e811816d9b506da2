-- Seed 911625: the part of a backward that runs first read a weight which the
-- other part gathers.
axes { batch={ 7, role="batch" }, seq=1, h=7, k=3, e=4, f=7, p=5, q=7, v=7, m=3, n=4, mn=12, hidden=6, vocab=5 }
local tokens = input("tokens", "batch seq")
local t1 = param("w0", "vocab hidden", normal(1))
local t2 = embed(tokens, t1)
local t3 = param("w1", "hidden batch", normal(1))
local t4 = dot(t1, t3, "hidden")
local g5, e5, p5 = softmax_top1(t4, "batch")
local t6 = param("w2", "batch hidden f", normal(0.7))
local t7 = tanh(dot(t1, t6[e5], "hidden"))
local t8 = param("w3", "batch f k", normal(0.7))
local t9 = dot(t7, t8[e5], "f")
local t10 = sum(g5 * t9, "top")
local function layer0(x)
  local t11 = scope("n10", rmsnorm, t10, "vocab", 1e-2)
  local t12 = shift(e5, "vocab", -1, true)
  metric("m0", max(t2, "batch seq hidden"))
  local t13 = gather(t11, mod(iota("batch") * 4 + 2, 5), "vocab")
  return x + mean(t13, "k")
end
local t14 = t2
t14 = scope("layers", function() return scope("0", layer0, t14) end)
local t15 = rope(t14, "hidden", "batch", 1e4)
local labels = input("labels", "batch seq")
local t16 = dot((t14 * 0.3), t1, "hidden")
loss("lm", mean(cross_entropy(f32(t16), labels, "vocab"), "batch seq"))
loss("l0", mean(tanh(t15), "batch seq hidden") + mean(p5 * p5, "vocab batch"), 1)
