axes { batch=2, seq=4, hidden=8 }
local w = param("logits", "hidden")
output("logits", w * 2)
