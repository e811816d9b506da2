axes { batch=2, seq=4, hidden=8 }
local w = param("w", "hidden")
scope("a", function() return param("b", "hidden") end)
local s = state("a.b", "hidden")
