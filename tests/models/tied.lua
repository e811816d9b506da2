-- Parameters that several stages of a pipeline read: the embedding is the head too, a
-- gain is in every layer. A state per layer, and losses of all layers added by the model.
axes { batch=2, seq=8, hidden=16, kv=4, group=2, dim=4, ffn=8, expert=4, vocab=32 }

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local tokens, labels = mod(tokens, 32), mod(labels, 32)
local table, gain = param("embed", "vocab hidden"), param("gain", "hidden")

local function attend(x)
  local q = rope(dot(x, param("wq", "hidden kv group dim"), "hidden"), "dim", "seq", 1e4)
  local k = rope(dot(x, param("wk", "hidden kv dim"), "hidden"), "dim", "seq", 1e4)
  local v = dot(x, param("wv", "hidden kv dim"), "hidden")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function moe(x)
  local w1, w2 = param("w1", "expert hidden ffn"), param("w2", "expert ffn hidden")
  local p = softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert")
  local bias = state("bias", "expert")
  local _, e = topk(p + bias, 2, "expert")
  local load = mean(one_hot(e, "expert"), "batch seq top")
  update(bias, bias + 0.01 * sign(mean(load, "expert") - load))
  loss("balance", size("expert") * sum(mean(p, "batch seq") * load, "expert"), 0.01)
  metric("least", min(load, "expert"))
  local g = gather(p, e)
  return sum(g * dot(silu(dot(x, w1[e], "hidden")), w2[e], "ffn"), "top")
end

local x = embed(tokens, table)
local sizes = 0
for i = 0, 3 do
  x = scope("layers." .. i, function()
    local h = x * gain + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden"))
    return h + scope("moe", moe, h * gain)
  end)
  sizes = sizes + mean(x * x, "batch seq hidden")
end
loss("size", sizes, 0.1)
local logits = dot(x * gain, table, "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
output("logits", logits)

train { batch=16 }
