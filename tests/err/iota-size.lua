axes { batch=2, seq=4 }
local x = iota("seq", 5)
