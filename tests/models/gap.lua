-- Eight expert layers. One of them makes a product again in the backward, which
-- the others keep: a stack of rows has none of that layer.
axes { batch=1, seq=256, hidden=16, ffn=8, expert=8, vocab=16 }

local function moe(x, i)
  local p = softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert")
  local g, e = topk(p, 2, "expert")
  local a = dot(x, param("w1", "expert hidden ffn")[e], "hidden")
  local b = dot(x, param("w3", "expert hidden ffn")[e], "hidden")
  if i == 3 then a = recompute(a) end
  return sum(g * dot(silu(a) * b, param("w2", "expert ffn hidden")[e], "ffn"), "top")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
for i = 0, 7 do
  x = x + scope("layers." .. i, function() return moe(rmsnorm(x, "hidden"), i) end)
end
local logits = dot(x, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
train { batch=4, lr=1e-3 }
