axes { batch=2, seq=4, hidden=4 }
local x = input("x", "batch seq hidden")
local function f(a, init) return a * param("w", "hidden", init) end
local y = again("block", f, again("block", f, x, ones), zeros)
