-- Softmax before the choice of 2, weights made to sum to 1; balanced inside each sequence.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=8, vocab=256 }

local function moe(x)
  local g, e, p = softmax_topk(dot(x, param("gate", "hidden expert"), "hidden"), 2, "expert")
  loss("balance", mean(balance_loss(p, 2, "expert", "seq"), "batch"), 0.01)
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  return sum(g / sum(g, "top") * dot(gelu(dot(x, w1[e], "hidden")), w2[e], "ffn"), "top")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
