axes { batch=2, m=4 }
local w = param("w", "m", normal(1))
metric("mean", mean(dropout(w, 0.5), "m"))
loss("l", mean(w * input("x", "batch"), "batch m"))
