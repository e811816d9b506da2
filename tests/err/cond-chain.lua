axes { batch=2, seq=4 }
local ids = input("tokens", "batch seq")
local some = 1 < 2 and ids ~= nil and lt(ids, 3) and "taken"
