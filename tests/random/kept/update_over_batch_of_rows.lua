-- update by a mean over a batch axis that only experts have: it was taken in rows
axes { batch={ 2, role="batch" }, m=3, f=2, h=4, e=6, top=3 }
local x = input("x", "h m")
local g, e = topk(dot(dot(x, param("w0", "f m", 0.5), "m"), param("w1", "h e", 1), "h"), 3, "e")
local y = dot(param("w2", "f top h", 1), param("w3", "e h batch", 0.7)[e], "h")
update(state("s0", "f top", zeros), mean(y, "batch"))
loss("l", param("w4", "", 1), 2)
