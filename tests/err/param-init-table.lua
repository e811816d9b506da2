axes { batch=2, seq=4, hidden=8 }
local w = param("w", "hidden", { init="normal", arg=0.1 })
