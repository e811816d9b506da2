axes { batch=2, seq=4, hidden=8 }
local x = input("x", "batch seq hidden")
local y = rmsnorm(x, param("w", "hidden"), "hidden", "1e-5")
