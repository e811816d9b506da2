axes { batch=2, seq=4 }
local x = input("x", "batch seq", "i32")
local y = x // 0
