-- Results of attention beside its values: sinks by the logsumexp, a loss of the logsumexp,
-- the largest score as a state; grouped heads, a window, latent keys without one.
axes { batch=2, seq=16, hidden=16, kv=2, group=2, dim=8, vocab=64 }
local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(mod(ids, 64), param("embed", "vocab hidden", normal(0.5)))
local function project(x, name, axes) return dot(x, param(name, axes, normal(0.3)), "hidden") end
local function at_keys(t) return rename(t, { seq="key" }) end

local results = attention                                -- or the same by scores that are stored
if option("stored", false) then
  function results(s, v, key)
    return dot(softmax(s, key), v, key), logsumexp(s, key), stop_gradient(max(s, key))
  end
end

local function attend(x)
  local q = project(x, "wq", "hidden kv group dim")
  local k, v = at_keys(project(x, "wk", "hidden kv dim")), at_keys(project(x, "wv", "hidden kv dim"))
  local s = causal(dot(q, k, "dim") / 2, "seq", "key")
  local y, l, m = results(s, v, "key")                 -- [batch seq kv group (dim)]
  y = y * sigmoid(l - param("sink", "kv group", normal(1)))
  loss("z", mean(l * l, "batch seq kv group"), 0.1)
  update(state("most", "kv group"), max(m, "batch seq"))
  return x + dot(y, param("wo", "kv group dim hidden", normal(0.2)), "kv group dim")
end

local function only(x)                                   -- the logsumexp alone
  local q, k = project(x, "wq", "hidden dim"), at_keys(project(x, "wk", "hidden dim"))
  local _, l = results(where(lt(iota("seq") - at_keys(iota("seq")), 5), dot(q, k, "dim"), -inf), k, "key")
  return x + 0.1 * l
end

x = scope("only", only, scope("attn", attend, x))
loss("lm", mean(cross_entropy(dot(x, param("head", "hidden vocab", normal(0.3)), "hidden"), mod(labels, 64), "vocab"), "batch seq"))
