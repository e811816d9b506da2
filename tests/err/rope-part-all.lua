axes { batch=2, seq=4, dim=6 }
local x = input("x", "batch seq dim")
local y = rope(x, "dim", "seq", 1e4, { part=1.5 })
