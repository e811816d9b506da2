axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden") * param("w", "hidden")
hf { config = { rope_scaling = { factor=print } }, ["w"] = { "w", "hidden" } }
loss("l", mean(x * x, "batch seq hidden"))
