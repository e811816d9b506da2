axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden") / math.sqrt(size("hiden"))
loss("l", mean(x * x, "batch seq hidden"))
