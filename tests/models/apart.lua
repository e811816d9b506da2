-- Routers whose choices no rounding turns: scores are whole numbers by token and
-- expert, half of which is 0.3 or more beyond what the learned part adds. Two layers
-- use every expert, one sends all tokens to the first two, one leaves three out. The
-- loss is a mean over the tokens that have a label.
axes { batch=1, seq=8, hidden=16, heads=4, dim=4, ffn=8, shared=8, expert=8, vocab=16 }

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")

local function attn(x)
  local q = rope(dot(x, param("wq", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local v = rename(dot(x, param("wv", "hidden heads dim"), "hidden"), {seq="key"})
  local s = dot(q, rename(k, {seq="key"}), "dim") / math.sqrt(size("dim"))
  return dot(attention(causal(s, "seq", "key"), v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

local function scores(i)
  local n = mod(tokens * 3 + iota("expert") * 5 + i, 8)
  if i == 2 then return n + 8 * where(lt(iota("expert"), 2), 1, 0) end
  if i == 3 then return n - 8 * where(lt(iota("expert"), 5), 0, 1) end
  return n
end

local function moe(x, i)
  local learned = tanh(f32(dot(x, param("gate", "hidden expert", normal(0.2)), "hidden")))
  local z = 0.5 * f32(scores(i)) + 0.1 * learned
  local p = softmax(z, "expert")
  local g, e = topk(p, 2, "expert")
  local share = mean(sum(one_hot(e, "expert"), "top"), "batch seq")
  loss("balance", size("expert") * sum(mean(p, "batch seq") * share, "expert"), 0.02)
  local lse = logsumexp(z, "expert")
  loss("z", mean(lse * lse, "batch seq"), 0.001)
  local w1, w3 = param("w1", "expert hidden ffn", normal(0.2)), param("w3", "expert hidden ffn", normal(0.2))
  local y = silu(dot(x, w1[e], "hidden")) * dot(x, w3[e], "hidden")
  local always = silu(dot(x, param("s1", "hidden shared", normal(0.2)), "hidden"))
  return sum(g * dot(y, param("w2", "expert ffn hidden", normal(0.2))[e], "ffn"), "top") +
         dot(always, param("s2", "shared hidden", normal(0.2)), "shared")
end

local x = embed(tokens, param("embed", "vocab hidden", normal(1)))
for i = 0, 3 do
  x = scope("layers." .. i, function()
    local h = x + scope("attn", attn, scope("attn_norm", rmsnorm, x, "hidden"))
    return h + scope("moe", moe, scope("ffn_norm", rmsnorm, h, "hidden"), i)
  end)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden"), param("head", "hidden vocab", normal(0.2)), "hidden")
local counts = f32(lt(mod(labels * 5 + iota("seq"), 7), 4))
loss("lm", sum(counts * cross_entropy(f32(logits), labels, "vocab"), "batch seq"), 1, sum(counts, "batch seq"))
train { batch=8, steps=10, lr=1e-3, weight_decay=0.1, clip=1 }
