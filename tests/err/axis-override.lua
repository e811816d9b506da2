-- pleat check % axes.hiden=4
axes { batch=2, seq=8, hidden=4, heads=2, dim=6, ffn=6, expert=4, vocab=16 }
local x = input("x", "batch seq hidden")
loss("l", mean(x * x, "batch seq hidden"))
