-- pleat compile % fold.order=tp-xp -o /dev/null
axes { batch=2, hidden=4 }
local x = input("x", "batch")
local w = param("w", "hidden")
loss("l", mean(f32(x), "batch") * mean(w, "hidden"))
