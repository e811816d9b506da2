-- a parameter that only a metric reads lies on one stage, which gives the others the metric
axes { batch=2, seq=5, q=7, hidden=5 }
local t2 = param("x10", "batch seq hidden", 1)
local t3 = param("w1", "q", 0.7)
local function layer0(x)
  metric("m0", mean(t3, "q"))
  return x
end
for i = 0, 2 do
  t2 = scope("layers." .. i, layer0, t2)
end
loss("l0", mean(maximum(param("w5", "seq", 0.7), t2), "seq batch hidden"), 1)
