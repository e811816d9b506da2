axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden", "real")
train { recompute={ "layernorm", "mlp" } }
loss("l", mean(rmsnorm(x, "hidden"), "batch seq hidden"))
