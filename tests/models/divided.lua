-- An optimizer of experts that divides by its gradient: that of padding is 0.
axes { batch=2, seq=8, hidden=8, ffn=8, expert=8, vocab=32 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden", normal(1)))
local logits = dot(x, param("gate", "hidden expert", normal(1)), "hidden")
local g, e = softmax_topk(f32(logits), 2, "expert")
local w1, w2 = param("w1", "expert hidden ffn", normal(1)), param("w2", "expert ffn hidden", normal(1))
x = x + sum(g * dot(silu(dot(x, w1[e], "hidden")), w2[e], "ffn"), "top")
logits = dot(x, param("head", "hidden vocab", normal(1)), "hidden")
loss("lm", mean(cross_entropy(logits, input("labels", "batch seq"), "vocab"), "batch seq"))
optimizer("normed", function(p, g, s, h)
  local m = s.m * 0.9 + g / sqrt(sum(g * g, "hidden ffn"))
  return p - h.lr * m, { m=m }
end, { params="w1", state={ m="fp32" } })
optimizer("divided", function(p, g, s, h)
  local m = s.m * 0.9 + g * g * 1e6 / g
  return p - h.lr * m, { m=m }
end, { params="w2", state={ m="fp32" } })
