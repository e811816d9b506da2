axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq")
local y = concat(x, input("tokens", "batch seq"), "seq")
