-- The token's number chooses its expert.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=8, vocab=256 }

local function moe(x, ids)
  local e = hash_index(ids, "expert")
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  return dot(gelu(dot(x, w1[e], "hidden")), w2[e], "ffn")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
