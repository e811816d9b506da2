-- Axes that the model says tp, cp and etp cut.
axes { batch=2, seq=8, hidden=12, a={ 4, shard="tp" }, b={ 6, role="other" }, expert=4, f={ 8, role="other", shard="etp" }, vocab=16 }
local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(ids, param("embed", "vocab hidden"))
x = scope("layers.0", function()
  local h = tanh(dot(x, param("up", "hidden a b"), "hidden"))
  return x + dot(h, param("down", "a b hidden"), "a b")
end)
x = scope("layers.1", function()
  local g, e = topk(softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert"), 2, "expert")
  local y = gelu(dot(x, param("w1", "expert hidden f")[e], "hidden"))
  return x + sum(g * dot(y, param("w2", "expert f hidden")[e], "f"), "top")
end)
loss("lm", mean(cross_entropy(f32(dot(x, param("head", "hidden vocab"), "hidden")), labels, "vocab"), "batch seq"))
fold { cp="seq", tp="b hidden vocab" }
train { batch=8 }
