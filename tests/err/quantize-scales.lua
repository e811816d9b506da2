axes { batch=2, seq=4, hidden=32, vocab=8 }
local x = embed(input("tokens", "batch seq"), param("w", "vocab hidden"))
local s = pow2_scale(amax(x, "1x16", "hidden", "hb"), 448)
output("q", dequantize(quantize(x, s, "1x32", "hidden", "hb", "e4m3"), s, "1x32", "hidden", "hb"))
