-- Experts choose 16 tokens each: two experts a token, on average.
axes { batch=2, seq=32, hidden=32, heads=4, dim=8, ffn=48, expert=8, vocab=256 }

local function moe(x)
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local logits = dot(x, param("gate", "hidden expert"), "hidden")
  return expert_choice(x, logits, 16, "expert", "batch seq", function(rows)
    return dot(gelu(dot(rows, w1, "hidden")), w2, "ffn")
  end)
end

require("block").train(moe)
train { steps=50, lr=3e-3, clip=1 }
