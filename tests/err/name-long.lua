axes { batch=2, seq=4, hidden=8 }
local w = param(("w"):rep(100000), "hidden")
