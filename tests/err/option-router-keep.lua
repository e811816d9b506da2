axes { batch=2, seq=4, expert=8, nodes=2 }
local x = input("x", "batch seq expert")
local g, e = sigmoid_topk(x, 2, "expert", { groups="nodes" })
