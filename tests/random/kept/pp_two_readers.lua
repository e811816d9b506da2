-- the forward and the backward of a stage read the same value: two transfers, each a call
axes { batch={ 4, }, seq={ 5, role="vocab" }, h=7, k=3, e=7, f=6, p=2, q=4, v=3, m=3, n=3, mn=9, hidden=2, vocab=7 }
local t1 = param("w0", "vocab hidden", 1)
local t2 = embed(input("tokens", "batch seq"), t1)
local function layer1(x)
  return x + mean(lt(t1, t2), "vocab")
end
local t9 = t2
for i = 0, 1 do
  t9 = scope("layers." .. i, layer1, t9)
end
loss("l0", mean(t2 * t2 * t2, "batch seq hidden") + dot(t9, t2, "batch seq hidden"))
