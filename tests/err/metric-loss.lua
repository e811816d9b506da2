axes { batch=2, seq=4, hidden=8 }
local w = param("w", "hidden")
metric("m", mean(w, "hidden"))
loss("m", mean(w * w, "hidden"))
