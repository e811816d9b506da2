-- with PLEAT_SECONDS=2
axes { batch=2, seq=8, hidden=4, heads=2, dim=6, ffn=6, expert=4, vocab=16 }
local x = input("x", "batch seq hidden")
local s = ("a"):rep(100)
s:find(("a*"):rep(30) .. "b")
loss("l", mean(x * x, "batch seq hidden"))
