-- A token has as many experts as hold 60 % of its probability: a choice of all,
-- in which -1 leaves one out. 4 of 8 null experts do nothing.
axes { batch=1, seq=8, hidden=8, ffn=8, expert=8, all=12, vocab=16 }

local function top_p(x)
  local p = softmax(f32(dot(x, param("gate", "hidden expert", normal(0.5)), "hidden")), "expert")
  local g, e = topk(p, size("expert"), "expert")
  return g, index(where(lt(cumsum(g, "top") - g, 0.6), e, -1), "expert")
end

local function null_experts(x)
  local p = softmax(f32(dot(x, param("gate", "hidden all", normal(0.5)), "hidden")), "all")
  local g, e = topk(p, 4, "all")
  return g, index(where(lt(e, size("expert")), e, -1), "expert")
end

local function moe(x, router)
  local g, e = router(x)
  local y = silu(dot(x, param("w1", "expert hidden ffn")[e], "hidden"))
  return sum(g * dot(y, param("w2", "expert ffn hidden")[e], "ffn"), "top")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden", normal(1)))
for i = 0, 3 do
  x = scope("layers." .. i, function()
    return x + moe(scope("norm", rmsnorm, x, "hidden"), i % 2 == 0 and top_p or null_experts)
  end)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
train { steps=10, lr=1e-3, weight_decay=0.1, clip=1 }
