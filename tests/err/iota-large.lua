axes { batch=2, seq=4, far=2^40 }
local y = iota("far")
