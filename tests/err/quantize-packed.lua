axes { batch=2, seq=4, hidden=32, vocab=8 }
local x = embed(input("tokens", "batch seq"), param("w", "vocab hidden"))
local s = pow2_scale(amax(x, "1x16", "hidden", "hb"), 6)
output("q", 2 * quantize(x, s, "1x16", "hidden", "hb", "e2m1x2", "pair"))
