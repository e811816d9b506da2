axes { batch=2, seq=4, hidden=8 }
local x = input("x", "batch seq hidden")
local w = param("w", "hidden")
loss("l", mean(x * w, "batch seq hidden"))
train { optimizer="adamv" }
