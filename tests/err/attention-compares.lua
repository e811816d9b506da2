axes { batch=2, seq=64, hidden=8 }
local x = input("x", "batch seq hidden")
local k = rename(x, {seq="key"})
for i = 1, 2 do
  local s = dot(x, k, "hidden") * i
  local best = ge(s, min(topk(s, 8, "key"), "top"))
  x = x + attention(where(land(best, le(iota("key", k), iota("seq"))), s, -inf), k, "key")
end
loss("l", mean(x * x, "batch seq hidden"))
