-- each kernel that makes a state's new value reads the other state's old one, at other places
axes { n=6, m=3 }
local a, b = state("a", "n", 1), state("b", "n", 0.5)
local w = param("w", "n m", normal(1))
update(a, shift(b, "n", 1) + cumsum(b, "n"))
update(b, shift(a, "n", 1) * cumsum(a, "n"))
loss("l", mean(dot(w, a, "n") * dot(w, b, "n"), "m"))
