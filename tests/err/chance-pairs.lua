axes { batch=2, seq=4, hidden=8 }
local x, y = input("x", "batch seq hidden"), input("y", "batch seq hidden")
for t in pairs { [x]=1, [y]=2 } do print(t) end
