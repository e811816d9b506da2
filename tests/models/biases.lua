-- experts with biases (the shape of GPT-OSS)
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=8, vocab=256 }

local function moe(x, ids)
  local g, e = topk_softmax(dot(x, param("gate", "hidden expert"), "hidden"), 2, "expert")
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local b1, b2 = param("b1", "expert ffn"), param("b2", "expert hidden")
  local y = silu(dot(x, w1[e], "hidden") + gather(b1, e))
  return sum(g * (dot(y, w2[e], "ffn") + gather(b2, e)), "top")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
