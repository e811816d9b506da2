axes { batch=2, seq=4, hidden=8 }
setmetatable({}, { __gc=function() print("when?") end })
