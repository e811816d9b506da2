-- pleat compile % fold.ep=3 world=3 train.batch=6 -o /dev/null
axes { batch=2, seq=8, hidden=4, ffn=6, expert=4, vocab=16 }
local x = input("x", "batch seq hidden")
local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
local w = param("w", "expert hidden ffn")
local y = sum(g * dot(x, w[e], "hidden"), "top")
loss("l", mean(y * y, "batch seq ffn"))
optimizer("even", function(p, g, s, h)
  return p - h.lr * (g - mean(g, "expert")), {}
end, { params="w" })
