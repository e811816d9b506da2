-- Hash routing: the token's own number chooses the expert (Roller et al. 2021).
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=4, vocab=256 }

local function moe(x, ids)
  local e = index(mod(ids * 1009 + 7, size("expert")), "expert")
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local bias = param("bias", "expert hidden", zeros)
  return dot(silu(dot(x, w1[e], "hidden")), w2[e], "ffn") + gather(bias, e)
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
