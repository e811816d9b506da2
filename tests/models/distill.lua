-- A student of one layer that is trained on the probabilities of a teacher of two. The weights of the teacher,
-- below the scope teacher, come from from.teacher=FOLDER and are frozen.
axes { batch=2, seq=8, hidden=16, heads=4, dim=4, ffn=24, wide=24, vocab=48 }

local function layer(x, width)
  local y = rmsnorm(x, "hidden", 1e-6)
  local q, k = dot(y, param("wq", "hidden heads dim"), "hidden"), dot(y, param("wk", "hidden heads dim"), "hidden")
  local v = rename(dot(y, param("wv", "hidden heads dim"), "hidden"), {seq="key"})
  local s = causal(dot(rope(q, "dim", "seq", 1e4), rename(rope(k, "dim", "seq", 1e4), {seq="key"}), "dim"), "seq", "key")
  x = x + dot(attention(s, v, "key"), param("wo", "heads dim hidden"), "heads dim")
  return x + dot(silu(dot(x, param("w1", "hidden " .. width), "hidden")), param("w2", width .. " hidden"), width)
end

local function model(tokens, layers, width)
  local x = embed(tokens, param("embed", "vocab hidden"))
  for i = 0, layers - 1 do x = scope("layers." .. i, layer, x, width) end
  return f32(dot(x, param("head", "hidden vocab"), "hidden"))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local student, teacher = model(tokens, 1, "ffn"), scope("teacher", model, tokens, 2, "wide")
local p = softmax(teacher, "vocab")
loss("distill", mean(sum(p * (logsumexp(student, "vocab") - student), "vocab"), "batch seq"))
loss("lm", mean(cross_entropy(student, labels, "vocab"), "batch seq"), 0.1)
train { lr=1e-2 }
