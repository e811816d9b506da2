axes { batch=2, seq=4, hidden=4 }
local x = input("x", "batch seq hidden")
local function f(a) return a * param("w", "hidden") + param("w", "hidden") end
local y = again("block", f, again("block", f, x))
