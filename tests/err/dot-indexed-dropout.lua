axes { batch=2, seq=4, hidden=8, expert=4, ffn=8 }
local x = embed(input("tokens", "batch seq"), param("embed", "expert hidden"))
local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
local w = dropout(param("w", "expert hidden ffn"), 0.1)
local y = dot(x, w[e], "hidden")
