axes { batch=2, seq=4 }
local x = input("x", "batch seq")
local y = scan(function(s, a) return s + a end, x, "seq")
