-- Top-1 routing scaled by its probability (Fedus et al. 2021), with the router
-- z-loss that keeps logits small (Zoph et al. 2022, equation 5).
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=4, vocab=256 }

local function moe(x)
  local logits = f32(dot(x, param("gate", "hidden expert"), "hidden"))
  local g, e = topk(softmax(logits, "expert"), 1, "expert")
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local z = logsumexp(logits, "expert")
  loss("z", mean(z * z, "batch seq"), 1e-3)
  return sum(g * dot(gelu(dot(x, w1[e], "hidden")), w2[e], "ffn"), "top")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
