-- a product's operand is a parameter in another layout: its copy belongs to the call of the product
axes { batch=7, seq=6, v=2, n={ 2, role="choice" }, q=5, hidden=4, vocab=5 }
local tokens = input("tokens", "batch seq")
local function layer0(x)
  return param("x21", "batch seq hidden", 1)
end
tokens = scope("layers", function() return scope("0", layer0, tokens) end)
local t11 = param("w2", "v n q", ones)
loss("l0", sum(gather(dot(t11, t11, "v q"), iota("v"), "n"), "v"))
loss("l1", mean(dot(dot(tokens, param("x32", "batch seq hidden", 1), "batch seq"), param("w0", "vocab hidden", 1), "hidden"), "vocab"))
