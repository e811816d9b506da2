axes { batch=3, seq=2, vocab=5, h=2, micra=3 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab h"))
loss("l", mean(sum(x, "micra"), "batch seq h"))
