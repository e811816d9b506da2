axes { batch=2, seq=8, heads=2, hidden=4, ffn=6, expert=4 }
local x = input("x", "batch seq heads hidden")
local g, e = topk(dot(x, param("gate", "heads hidden expert"), "heads hidden"), 2, "expert")
local y = dot(x, param("w", "expert hidden ffn")[e], "hidden")
