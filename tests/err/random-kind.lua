axes { batch=2, seq=4 }
local x = input("x", "batch seq")
local y = random("cauchy", x)
