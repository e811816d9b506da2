-- Every op of the language on axes that folds cut, so that each way to cut it is
-- met somewhere; the numbers mean nothing.
axes { batch=2, seq=8, hidden=16, kv=4, group=2, dim=4, ffn=8, expert=4, two=2, half=2, vocab=32 }

local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local ids, labels = mod(ids, 32), mod(labels, 32)
local table = param("table", "vocab hidden")
local x = embed(ids, table)
local w = param("w", "hidden kv group dim")
local up, down = param("up", "hidden ffn"), param("down", "ffn hidden")
local q = dot(x, w, "hidden")                            -- [batch seq kv group dim]

local function total(name, y, axes)
  loss(name, mean(y * y, axes), 0.1)
end

scope("views", function()
  local m = merge(q, "kv group", "heads")
  total("merged", m * param("a", "heads dim"), "batch seq heads dim")
  local s = split(split(m, "heads", "kv group"), "dim", "two half")
  total("split", s * param("b", "kv two"), "batch seq kv group two half")
  local r = rename(q, {kv="expert", group="two"})
  total("rename", rename(r, {}) * param("c", "expert dim"), "batch seq expert two dim")
end)

scope("windows", function()
  local a = slice(q, "kv", 1, 2)
  total("slice", a, "batch seq kv group dim")
  local c = concat(slice(x, "seq", 2, 3), slice(x, "seq", 0, 5), "seq")
  total("concat", c * x, "batch seq hidden")
  local f = dot(x, up, "hidden")
  local z = concat(slice(f, "ffn", 4, 4), slice(f, "ffn", 0, 4), "ffn")
  total("turned", dot(z, down, "ffn"), "batch seq hidden")
  total("shift", shift(x, "seq", 1) - shift(f, "ffn", 2) * sum(x, "hidden"), "batch seq hidden ffn")
  total("cumsum", cumsum(f, "ffn") + cumsum(sum(f, "ffn"), "seq"), "batch seq ffn")
end)

scope("extremes", function()
  local f = dot(x, up, "hidden")
  total("max", max(f, "ffn") + min(f, "seq") + max(f, "batch seq"), "batch seq ffn")
  total("lse", logsumexp(f, "ffn") * logsumexp(x, "seq"), "batch seq hidden")
  local p = softmax(f, "ffn")
  total("pick", where(gt(p, 0.1), p, maximum(f, minimum(p, 0))) + abs(f) * sign(p), "batch seq ffn")
  total("mean", f - mean(f, "batch seq") * mean(f, "ffn"), "batch seq ffn")
end)

scope("places", function()
  local g, e = topk(dot(x, param("gate", "hidden expert"), "hidden"), 2, "expert")
  total("topk", g * gather(param("bias", "expert ffn"), e), "batch seq top ffn")
  local first = argmax(dot(x, table, "hidden"), "vocab")
  total("argmax", gather(table, first), "batch seq hidden")
  local v = sum(x * 1, "batch seq")
  local back = scatter_add(sum(x, "hidden"), index(mod(ids + 3, size("hidden")), "hidden"), v)
  total("scatter", back * v, "hidden")
  local seen = scatter_add(x, index(labels, "vocab"), table)
  total("seen", seen * table, "vocab hidden")
  total("hot", one_hot(index(ids, "vocab"), "vocab") * dot(x, table, "hidden"), "batch seq vocab")
end)

scope("more", function()
  local f = dot(x, up, "hidden")
  total("exact", silu(f) + gelu(f) * tanh(f) - softplus(f) / (1 + exp(f)) + relu(f), "batch seq ffn")
  total("square", dot(f, rename(f, {seq="key"}), "ffn"), "batch seq key")
  total("outer", dot(x, x, "batch seq hidden"), "")
  total("drop", dropout(f, 0.25) + stop_gradient(f) * f, "batch seq ffn")
  total("iota", f * iota("ffn") + iota("seq"), "batch seq ffn")
end)

local logits = dot(x, table, "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
train { steps=10, clip=1 }
