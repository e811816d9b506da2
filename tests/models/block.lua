-- A two-layer byte model around a router under test: `require "block"(moe)`.
local B = {}

local function norm(x)
  return rmsnorm(x, param("weight", "hidden", ones), "hidden", 1e-5)
end

local function attn(x)
  local q = rope(dot(x, param("wq", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local v = dot(x, param("wv", "hidden heads dim"), "hidden")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

function B.train(moe)
  local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
  local x = embed(ids, param("embed", "vocab hidden", normal(0.02)))
  for i = 0, 1 do
    x = scope("layers."..i, function()
      local h = x + scope("attn", attn, scope("attn_norm", norm, x))
      return h + scope("moe", moe, scope("ffn_norm", norm, h), ids)
    end)
  end
  local logits = dot(scope("norm", norm, x), param("head", "hidden vocab"), "hidden")
  loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
end

return B
