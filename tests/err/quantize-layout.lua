axes { batch=2, seq=4, hidden=32, vocab=8 }
local x = embed(input("tokens", "batch seq"), param("w", "vocab hidden"))
local a = amax(x, "1x64", "hidden", "hb")
output("a", a)
