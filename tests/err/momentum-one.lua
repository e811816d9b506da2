-- pleat check % train.momentum=1
axes { batch=2, seq=4, hidden=8 }
local x = input("x", "batch seq hidden")
loss("l", mean(x * param("w", "hidden"), "batch seq hidden"))
