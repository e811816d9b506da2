-- Four layers, eight heads, eight experts: small enough that every fold of it
-- trains in a test. A shared expert beside the routed ones; a loss of each layer.
axes { batch=1, seq=8, hidden=8, heads=8, dim=2, ffn=8, shared=8, expert=8, vocab=16 }

local function attn(x)
  local q = rope(dot(x, param("wq", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local v = rename(dot(x, param("wv", "hidden heads dim"), "hidden"), {seq="key"})
  local s = dot(q, rename(k, {seq="key"}), "dim") / math.sqrt(size("dim"))
  return dot(attention(causal(s, "seq", "key"), v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

local function moe(x)
  local p = softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert")
  local g, e = topk(p, 2, "expert")
  local share = mean(sum(one_hot(e, "expert"), "top"), "batch seq")
  loss("balance", size("expert") * sum(mean(p, "batch seq") * share, "expert"), 0.02)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local y = silu(dot(x, w1[e], "hidden")) * dot(x, w3[e], "hidden")
  local always = silu(dot(x, param("s1", "hidden shared"), "hidden"))
  return sum(g / sum(g, "top") * dot(y, param("w2", "expert ffn hidden")[e], "ffn"), "top") +
         dot(always, param("s2", "shared hidden"), "shared")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
for i = 0, 3 do
  x = scope("layers." .. i, function()
    local h = x + scope("attn", attn, scope("attn_norm", rmsnorm, x, "hidden"))
    return h + scope("moe", moe, scope("ffn_norm", rmsnorm, h, "hidden"))
  end)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
train { steps=10, lr=1e-3, weight_decay=0.1, clip=1 }
