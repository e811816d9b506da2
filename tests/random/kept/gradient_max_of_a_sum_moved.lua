-- seed 2978: a kernel made the sum inside the operand of max twice, in two orders
axes { batch=7, seq=3, k=1, p=6, m=3, hidden=2 }
local t2 = param("x15", "batch seq hidden", 1)
local function layer0(x)
  local t3 = param("w1", "m p k", 1)
  return x + mean(tanh(t2 + tanh(dot(t3, t3, "m"))), "p k")
end
local t6 = t2
for i = 0, 2 do
  t6 = scope("layers." .. i, layer0, t6)
end
loss("l0", mean(tanh(t6), "batch seq hidden") + mean(max(rope(t6, "hidden", "seq", 100), "hidden batch"), "seq"))
