axes { batch=2, seq=4 }
local x = input("tokens", "batch seq")
metric("noise", max(random("normal", iota("seq")), "seq"))
loss("l", mean(f32(x), "batch seq"))
