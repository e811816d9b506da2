-- Sigmoids with a bias, 2 of the experts in the best 2 of 4 groups; the bias balances.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=8, nodes=4, vocab=256 }

local function moe(x)
  local bias = state("bias", "expert")
  local g, e, p = sigmoid_topk(dot(x, param("gate", "hidden expert"), "hidden"), 2, "expert",
                               { bias=bias, groups="nodes", keep=2 })
  balance_bias(bias, e, "expert", "batch seq top", 1e-3)
  loss("balance", balance_loss(p, 2, "expert", "batch seq"), 1e-3)
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  return 2.5 * sum(g * dot(gelu(dot(x, w1[e], "hidden")), w2[e], "ffn"), "top")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
