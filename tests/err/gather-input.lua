axes { batch=2, seq=8, hidden=4, vocab=16 }
local x = embed(input("tokens", "batch seq"), param("table", "vocab hidden"))
local z = dot(x, param("head", "hidden vocab"), "hidden")
loss("l", mean(cross_entropy(z, input("label", "batch seq"), "vocab"), "batch seq"))
