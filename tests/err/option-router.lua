axes { batch=2, seq=4, expert=8 }
local x, b = input("x", "batch seq expert"), state("b", "expert")
local g, e = sigmoid_topk(x, 2, "expert", { bais=b })
