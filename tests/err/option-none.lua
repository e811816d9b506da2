-- pleat check % option.layer=3
axes { batch=2, seq=4, hidden=4 }
local x = input("x", "batch seq hidden")
loss("l", mean(x * option("layers", 2), "batch seq hidden"))
