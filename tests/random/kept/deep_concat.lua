-- concat of a value with itself: a kernel's text doubled with every step
axes { k=3, n=4 }
local x = param("w", "k n", normal(1))
for i = 1, 14 do
  x = slice(concat(x, x * 0.9, "n"), "n", 1 + i % 3, 4)
end
loss("l", mean(tanh(x) * x, "k n"))
