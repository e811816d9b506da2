-- One expert a token; balanced, and small logits.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=8, vocab=256 }

local function moe(x)
  local logits = dot(x, param("gate", "hidden expert"), "hidden")
  local g, e, p = softmax_top1(logits, "expert")
  loss("balance", balance_loss(p, 1, "expert", "batch seq"), 0.01)
  loss("z", z_loss(logits, "expert", "batch seq"), 1e-3)
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  return sum(g * dot(gelu(dot(x, w1[e], "hidden")), w2[e], "ffn"), "top")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
