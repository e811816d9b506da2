-- keep() and recompute(): of a router, with dropout, of attention's result and of rows of experts
axes { batch=2, seq=16, hidden=16, heads=2, dim=8, ffn=8, expert=4, vocab=64 }

local function layer(x)
  local z = recompute(scope("norm", rmsnorm, x, "hidden"))
  local q, k, v = dot(z, param("wq", "hidden heads dim"), "hidden"), keep(dot(z, param("wk", "hidden heads dim"), "hidden")),
                  recompute(dot(z, param("wv", "hidden heads dim"), "hidden"))
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / 4, "seq", "key")
  local a = recompute(attention(s, v, "key"))
  local h = x + dropout(dot(a, param("wo", "heads dim hidden"), "heads dim"), 0.1)
  local g, e = softmax_topk(dot(h, param("gate", "hidden expert"), "hidden"), 2, "expert")
  local y = recompute(swiglu(recompute(dot(h, param("w1", "expert hidden ffn")[e], "hidden")),
                             keep(dot(h, param("w3", "expert hidden ffn")[e], "hidden"))))
  return h + recompute(dropout(sum(g * dot(y, param("w2", "expert ffn hidden")[e], "ffn"), "top"), 0.1))
end

local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden"))
for i = 0, 2 do
  x = scope("layers", i, layer, x)
end
local logits = dot(x, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, input("labels", "batch seq"), "vocab"), "batch seq"))
output("logits", logits)
