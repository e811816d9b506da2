axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden")
local y = concat(x, sum(x, "hidden"), "seq")
