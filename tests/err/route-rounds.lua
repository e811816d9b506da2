-- pleat compile % world=8 fold.ep=8 route.factor=0.01 -o /dev/null
axes { batch=1, seq=8, hidden=4, expert=8 }
local x = f32(input("tokens", "batch seq")) * param("u", "hidden")
local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
local y = sum(g * dot(x, param("w", "expert hidden")[e], "hidden"), "top")
loss("y", mean(y, "batch seq"))
train { batch=8 }
