-- an output reads on one stage what another trains: the copy there is written by init and step
axes { batch=2, seq=3, hidden=4, vocab=7 }
local t2 = embed(input("tokens", "batch seq"), param("w0", "vocab hidden", 1))
local e = param("early", "hidden", 1)
local w = param("late", "hidden", 1)
local function layer0(x)
  output("o0", x * w)
  return x * e
end
t2 = scope("layers", function() return scope("0", layer0, t2) end)
t2 = scope("layers", function() return scope("1", tanh, t2) end)
t2 = scope("layers", function() return scope("2", tanh, t2) end)
output("o1", t2 * e)
loss("lm", mean(cross_entropy(dot(t2 * w, param("w3", "hidden vocab", 0.5), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
