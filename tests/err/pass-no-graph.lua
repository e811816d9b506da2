-- pleat compile % -x alloc
axes { batch=2, hidden=4 }
local x = input("x", "batch")
local w = param("w", "hidden")
loss("l", mean(f32(x), "batch") * mean(w, "hidden"))
