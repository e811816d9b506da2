axes { batch=2, seq=4 }
local y = input("tokens", "batch seq") % 0
