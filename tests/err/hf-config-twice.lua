axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden") * param("w", "hidden")
hf { config = { model_type="a" }, ["w"] = { "w", "hidden" } }
hf { config = { model_type="a" } }
loss("l", mean(x * x, "batch seq hidden"))
