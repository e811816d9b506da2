axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden", "real")
loss("l", mean(recompute(keep(silu(x))), "batch seq hidden"))
