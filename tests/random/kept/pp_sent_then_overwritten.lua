-- post of the first stage reads w1 of the second, which overwrites what it has sent before all has left
axes { batch=5, seq=3, hidden=6, vocab=7 }
local t2 = embed(input("tokens", "batch seq"), param("w0", "vocab hidden", 1))
local t5 = param("w1", "hidden", 1)
local s = state("s0", "hidden", 0.2)
update(s, s * 0.5 + t5)
local function layer0(x)
  return x * s
end
t2 = scope("layers", function() return scope("0", layer0, t2) end)
t2 = scope("layers", function() return scope("1", tanh, t2) end)
t2 = scope("layers", function() return scope("2", tanh, t2) end)
loss("lm", mean(cross_entropy(dot(t2 * t5, param("w3", "hidden vocab", 0.5), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
