axes { batch=2, seq=4, hidden=8 }
local t = {}
t[1] = t
data { train=t }
