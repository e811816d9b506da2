-- Masks of real scores, as the model has them and as attention sees them: both are states
-- after a step. An attention over equal scores of its keys, whose values are one-hot, gives
-- a weight above 0 where its mask lets a key through.
axes { batch=1, seq=32, hidden=48, dim=40, other=32 }
local x = param("x", "seq hidden", normal(1))
local q = dot(x, param("wq", "hidden dim", normal(0.3)), "hidden")
local k = rename(dot(x, param("wk", "hidden dim", normal(0.3)), "hidden"), {seq="key"})
local one = f32(eq(iota("key", k), iota("other")))

local function see(name, s, mask)
  local w = attention(where(mask, s * 0, -inf), one, "key")
  update(state(name .. "_outside", "seq other"), rename(f32(mask), {key="other"}))
  update(state(name .. "_inside", "seq other"), f32(gt(w, 0)))
end

local s = dot(q, k, "dim")
local t = 0.3 * tanh(s / 7) + s
see("topk", s, ge(s, min(topk(s, 8, "key"), "top")))
see("max", s, ge(s, max(s, "key")))
see("again", s, ge(dot(q, k, "dim"), min(topk(dot(q, k, "dim"), 8, "key"), "top")))
see("derived", t, ge(t, min(topk(t, 5, "key"), "top")))
see("sign", s, ge(sign(s - min(topk(s, 8, "key"), "top")), 0))
see("kink", s, ge(relu(t - min(topk(t, 8, "key"), "top")) * -1, 0))
see("causal", s, land(ge(causal(s, "seq", "key"), min(topk(causal(s, "seq", "key"), 4, "key"), "top")),
                      le(iota("key", k), iota("seq"))))
loss("l", mean(s * s, "seq key") + mean(f32(input("tokens", "batch seq")), "batch seq"))
