axes { batch=2, seq=4, hidden=8 }
local x = input("x", "batch seq hidden")
local w = param("w", "hidden")
loss("l", mean(x * w, "batch seq hidden"))
optimizer("o", function(p, g, s, h) return p - g, {} end, { params="w", others="sdg" })
