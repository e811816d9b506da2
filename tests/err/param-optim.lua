axes { batch=2, seq=8, hidden=4 }
local w = scope("optim", param, "w", "hidden")
