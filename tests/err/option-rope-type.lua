axes { batch=2, seq=4, dim=8 }
local x = input("x", "batch seq dim")
local y = rope(x, "dim", "seq", 1e4, { yarn={ factor="4", original=64 } })
