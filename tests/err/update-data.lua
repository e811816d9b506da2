axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden")
local s = state("s", "hidden")
local last = f32(argmax(mean(x, "seq"), "batch"))
update(s, s + last)
loss("l", mean(x * x, "batch seq hidden"))
