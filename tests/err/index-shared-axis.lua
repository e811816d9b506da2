axes { batch=2, seq=8, hidden=4, heads=2, dim=6, ffn=6, expert=4, vocab=16 }
local x = input("x", "batch seq hidden")
local g, e = topk(dot(x, param("gate", "hidden expert"), "hidden"), 2, "expert")
local w = param("w", "expert hidden seq")
local y = dot(x, w[e], "hidden")
