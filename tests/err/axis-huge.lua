axes { batch=2, hidden=1000000000000, ffn=1000000000000 }
local x = input("x", "batch")
local w = param("w", "hidden ffn")
loss("l", mean(f32(x), "batch") * mean(w, "hidden ffn"))
