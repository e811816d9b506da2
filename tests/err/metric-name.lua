axes { batch=2, seq=4, hidden=8 }
local w = param("w", "hidden")
metric("lr", mean(w, "hidden"))
