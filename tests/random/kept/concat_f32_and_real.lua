-- concat of f32 and what precision decides was refused
axes { k=3, n=2 }
local a, b = param("a", "k n", normal(1)), f32(param("b", "k n", normal(1)))
loss("l", mean(tanh(concat(a, exp(b), "n")), "k n"))
