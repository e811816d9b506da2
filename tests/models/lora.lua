-- Adapters of attention and of experts; all else is frozen.
axes { batch=2, seq=8, hidden=16, heads=4, dim=4, ffn=12, expert=4, vocab=48 }
local four = { rank=4, alpha=8 }

local function attend(x)
  local q = rope(lora(x, param("wq", "hidden heads dim"), "hidden", four), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden heads dim"), "hidden"), "dim", "seq", 1e4)
  local v = rename(lora(x, param("wv", "hidden heads dim"), "hidden", { rank=2, dropout=0.1 }), {seq="key"})
  local s = dot(q, rename(k, {seq="key"}), "dim") / math.sqrt(size("dim"))
  return lora(attention(causal(s, "seq", "key"), v, "key"), param("wo", "heads dim hidden"), "heads dim", four)
end

local function moe(x)
  local g, e = topk(softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert"), 2, "expert")
  local w1, w3, w2 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local y = swiglu(lora(x, w1[e], "hidden", four), lora(x, w3[e], "hidden", four))
  return sum(g * lora(y, w2[e], "ffn", four), "top")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden"))
for i = 0, 1 do
  x = scope("layers." .. i, function(x)
    local h = x + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden"))
    return h + scope("moe", moe, scope("ffn_norm", rmsnorm, h, "hidden"))
  end, x)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
train { freeze="* !*.lora_*", lr=1e-2, clip=1 }
