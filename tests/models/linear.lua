-- Attention without a softmax: running sums along seq take its place, read through a
-- token shift. Their backward needs kernels that grow after what reads them is made.
axes { batch=2, seq=12, hidden=12, heads=3, dim=4, vdim=4, vocab=97 }
local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(ids, param("embed", "vocab hidden"))
local function mix(x)
  local xs = shift(x, "seq", 1)
  local mu = param("mu", "hidden")
  local xm = x * mu + xs * (1 - mu)
  local k = exp(minimum(dot(xm, param("wk", "hidden heads dim"), "hidden"), 3))
  local v = dot(x, param("wv", "hidden heads vdim"), "hidden")
  local q = sigmoid(dot(xm, param("wq", "hidden heads dim"), "hidden"))
  local kv = cumsum(k * v, "seq")
  local z = cumsum(k, "seq")
  local o = dot(q, kv, "dim") / (dot(q, z, "dim") + 1e-3)
  return dot(dropout(o, 0.1), param("wo", "heads vdim hidden"), "heads vdim")
end
x = x + scope("a", mix, scope("an", rmsnorm, x, "hidden"))
x = x + scope("b", mix, scope("bn", rmsnorm, x, "hidden"))
local h = split(x, "hidden", "heads dim")
h = merge(rename(h, {dim="vdim"}), "vdim heads", "hidden2")
local logits = dot(h, param("head", "hidden2 vocab"), "hidden2")
local ce = cross_entropy(f32(logits), labels, "vocab")
local even = eq(mod(iota("seq"), 2), 0)
local on = f32(lt(labels, 50))
loss("even", sum(where(even, ce, 0), "batch seq"), 0.5)
loss("on", sum(on * ce, "batch seq"), 0.5, sum(on, "batch seq") + 1)
loss("reg", sum(param("lonely", "heads") * param("lonely2", "heads"), "heads"), 0.1)
train { steps=10 }
