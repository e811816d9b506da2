-- experts that only a metric computes stand in post: their rows kept no route there
axes { top=3, batch=7, seq=4, k=4, p=7, hidden=4, vocab=7 }
local tokens = input("tokens", "batch seq")
local g5, e5 = topk(param("x30", "hidden p", 1), 3, "p")
metric("m0", max(sum(dot(param("x20", "hidden top k", 1), param("w3", "p k vocab", 0.7)[e5], "k"), "top"), "hidden vocab"))
local function layer1(x)
  return param("x12", "hidden", 1)
end
tokens = scope("layers", function() return scope("1", layer1, tokens) end)
loss("lm", mean(cross_entropy(dot(tokens, param("w8", "hidden vocab", 0.5), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
