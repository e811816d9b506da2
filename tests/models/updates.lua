-- Optimizers of a model's own: one that takes the norm of a whole parameter, one with a
-- composite and a state, and the one of train.optimizer for the rest.
axes { batch=2, seq=4, hidden=8, out=6, vocab=16 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden", normal(1)))
local w, b = param("w", "hidden out"), param("b", "out")
local y = dot(silu(dot(x, w, "hidden") + b), param("back", "hidden out"), "out")
local logits = dot(x + y, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, input("labels", "batch seq"), "vocab"), "batch seq"))
optimizer("normed", function(p, g, s, h)
  return p - h.lr * g / (sqrt(sum(g * g, "hidden out")) + 1e-6), {}
end, { params="w" })
optimizer("soft", function(p, g, s, h)
  local m = s.m + softmax(g, "out")
  return p - h.lr * m / (1 + h.step), { m=m }
end, { params="b", state={ m="fp32" } })
