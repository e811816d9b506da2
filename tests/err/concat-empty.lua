axes { batch=2, seq=4 }
local x = concat({}, "seq")
