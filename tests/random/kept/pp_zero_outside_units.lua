-- parameters outside of every unit, some read by both stages, cut by zero=3
axes { batch=2, seq=3, hidden=4, vocab=7 }
local a, b = param("a", "hidden", normal(1)), param("b", "hidden", normal(1))
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden", normal(1))) * a
local function layer(x)
  return x + tanh(x * param("w", "hidden", normal(1))) * b
end
for i = 0, 3 do
  x = scope("layers", i, layer, x)
end
local y = x * a + b
metric("m", sum(b * param("c", "hidden", normal(1)), "hidden"))
loss("lm", mean(cross_entropy(dot(y, param("head", "hidden vocab", normal(1)), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
loss("z", mean(param("d", "hidden", normal(1)) * a, "hidden"), 0.3)
