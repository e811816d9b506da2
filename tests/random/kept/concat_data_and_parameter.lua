-- concat of what differs between micro-batches and what does not
axes { batch=2, seq=3, h=2, vocab=5 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab h", normal(1)))
local y = concat(mean(x, "batch"), param("w", "seq h", normal(1)), "seq")
loss("l", mean(y * y, "seq h"))
train { batch=4 }
