axes { batch=2, seq=4 }
local y = slice(input("tokens", "batch seq"), "seq", 1, math.maxinteger)
