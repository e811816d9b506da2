axes { batch=2, seq=8, hidden=4, heads=2, dim=6, ffn=6, expert=4, vocab=16 }
local x = input("x", "batch seq hidden")
local e = index(input("i", "batch seq", "i32"), "vocab")
local y = gather(slice(param("t", "vocab ffn"), "vocab", 0, 3), e)
loss("l", mean(x * x, "batch seq hidden"))
