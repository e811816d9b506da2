axes { batch=2, seq=4, hidden=8 }
local x = input("x", "batch seq hidden")
loss("l", mean(x * param("w", "hidden") * param("v", "hidden"), "batch seq hidden"))
train { ["lr.w*"]=0.5, ["decay.*"]=0.5 }
train { ["lr.*"]=0.5, ["lr.v"]=0.25 }
