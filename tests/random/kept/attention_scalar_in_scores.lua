-- a learned temperature, scalars in a bias, before and after a cut
axes { batch=2, seq=12, h=6, d=4, heads=2 }
local x = param("x", "batch seq h", normal(1))
local function heads(p) return dot(x, param(p, "h heads d"), "h") end
local q, k, v = heads("q"), rename(heads("k"), {seq="key"}), rename(heads("v"), {seq="key"})
local t, u = param("t", "", ones), param("u", "", normal(1))
local ago = iota("seq") - rename(iota("seq"), {seq="key"})
local s = 3 * tanh(dot(q, k, "d") * t - u * ago) + stop_gradient(t) * u
local y = attention(causal(s, "seq", "key"), v, "key")
local z = attention(where(ge(dot(q, k, "d"), u), t * ago, u), v, "key")
loss("l", mean(y * y + z * y, "batch seq heads d"))
