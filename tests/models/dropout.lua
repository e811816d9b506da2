-- Dropout of tokens and of experts' results; a running sum and a shift along the
-- sequence, which both need it whole.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=4, vocab=256 }
local function moe(x)
  local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local c = cumsum(x, "seq")
  return sum(g * dropout(dot(gelu(dot(x, w1[e], "hidden")), w2[e], "ffn"), 0.2), "top") + 0.01 * shift(dropout(c, 0.3), "seq", 1)
end
require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
