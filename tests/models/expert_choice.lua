-- Expert-choice routing: every expert picks its tokens (Zhou et al. 2022, section 3).
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=4, vocab=256 }

local function moe(x)
  local t = merge(x, "batch seq", "token")
  local p = softmax(f32(dot(t, param("gate", "hidden expert"), "hidden")), "expert")
  local g, pick = topk(p, 32, "token", "slot")           -- [expert slot]; pick indexes "token"
  local h = silu(dot(gather(t, pick), param("w1", "expert hidden ffn"), "hidden"))
  local y = dot(h, param("w2", "expert ffn hidden"), "ffn")
  return split(scatter_add(g * y, pick, t), "token", "batch seq")
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
