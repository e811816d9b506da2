-- Two routers over four experts, one choice and two, whose every number can be
-- worked out by hand: an expert is a dot product, `s` weighs the tokens.
axes { batch=2, seq=8, hidden=2, expert=4, vocab=8 }

local ids = input("tokens", "batch seq")

local function routed(k)
  local table, bias = param("logits", "vocab expert", normal(1)), param("bias", "expert", zeros)
  local x, w = embed(ids, param("x", "vocab hidden", normal(1))), param("w", "expert hidden", normal(1))
  local g, e = topk(softmax(embed(ids, table) + bias, "expert"), k, "expert")
  local y = sum(g * dot(x, w[e], "hidden"), "top")
  loss("y", sum(y * param("s", "batch seq", normal(1)), "batch seq"))
end

scope("one", routed, 1)
scope("two", routed, 2)
train { batch=16, clip=0 }
