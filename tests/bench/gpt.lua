-- GPT as Megatron trained it on A100s (arXiv 2205.05198, 2312.12391), for configs.sh: norms with
-- bias, projections with bias, gelu, dropout, scores that memory holds, the embedding as head
axes { batch=1, seq=2048, hidden=6144, heads={ 64, shard="tp" }, dim=96, ffn=24576, vocab=51200 }

local layers, odds = 48, 0.1

local function norm(name, x)
  return scope(name, layernorm, x, "hidden")
end

local function project(x, name, from, to)
  return dot(x, param("w" .. name, from .. " " .. to), from) + param("b" .. name, to, zeros)
end

local function scores(q, k, v)
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(dropout(softmax(s, "key"), odds), v, "key")
end

local function attend(x)
  local q, k, v = project(x, "q", "hidden", "heads dim"), project(x, "k", "hidden", "heads dim"), project(x, "v", "hidden", "heads dim")
  return project(module("core_attn", scores, q, rename(k, {seq="key"}), rename(v, {seq="key"})), "o", "heads dim", "hidden")
end

local function ffn(x)
  local y = project(x, "1", "hidden", "ffn")
  return project(gelu_tanh(y), "2", "ffn", "hidden")
end

local function layer(x)
  local h = x + dropout(scope("attn", attend, norm("attn_norm", x)), odds)
  return h + dropout(scope("ffn", ffn, norm("ffn_norm", h)), odds)
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local table = param("embed", "vocab hidden")
local x = dropout(embed(tokens, table) + param("places", "seq hidden"), odds)
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x)
end
loss("lm", mean(cross_entropy(dot(norm("norm", x), table, "hidden"), labels, "vocab"), "batch seq"))
precision { policy="bf16" }
