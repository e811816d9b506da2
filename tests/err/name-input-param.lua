axes { batch=2, seq=4, hidden=8 }
local ids = input("tokens", "batch seq")
local w = param("tokens", "hidden")
