axes { batch=2, seq=4, hidden=8, expert=4, ffn=8 }
local x = embed(input("tokens", "batch seq"), param("embed", "expert hidden"))
local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
local y = dot(x, param("w", "expert hidden ffn")[e], "hiden")
