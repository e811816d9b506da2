-- a state that two stages read: its copy was a parameter's in the plan, and refused
axes { batch=2, seq=3, hidden=4, vocab=7 }
local t2 = embed(input("tokens", "batch seq"), param("w0", "vocab hidden", 1))
local s = state("s0", "hidden", 0.2)
update(s, s * 0.5 + 0.25)
local function layer0(x)
  return x * s
end
t2 = scope("layers", function() return scope("0", layer0, t2) end)
t2 = scope("layers", function() return scope("1", tanh, t2) end)
t2 = scope("layers", function() return scope("2", tanh, t2) end)
loss("lm", mean(cross_entropy(dot(t2 * s, param("w3", "hidden vocab", 0.5), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
