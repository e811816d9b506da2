-- bf16: a metric's sum of a parameter is cast where it stands
axes { v=3 }
local t = param("w", "v", normal(1))
metric("m", mean(t, "v"))
loss("l", sum(t, "v"))
