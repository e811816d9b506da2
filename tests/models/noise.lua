-- Random numbers: in the choice of experts, in rows of experts, in four layers, evaluated too.
axes { batch=2, seq=16, hidden=32, ffn=48, expert=4, vocab=256 }
local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
local function moe(x)
  local z = dot(x, param("gate", "hidden expert"), "hidden")
  local g, e = topk(softmax(f32(z) + 0.1 * random("gumbel", z), "expert"), 2, "expert")
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local h = silu(dot(x, w1[e], "hidden"))
  h = h * (1 + 0.2 * random("uniform", h))
  return x + sum(g * dot(h, w2[e], "ffn"), "top")
end
for i = 0, 3 do x = scope("layers", i, moe, x) end
local z = dot(x, param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(z, labels, "vocab"), "batch seq"))
output("logits", z)
