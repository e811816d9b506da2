-- an update that reads a state's new value elsewhere, made by the kernel that writes the state, read what it had written
axes { n=6, m=3 }
local a, c = state("a", "n", 1), state("c", "n", 0.5)
local new = 2 * a + 1
update(a, new)
update(c, shift(new, "n", 1) * a)
loss("l", mean(dot(param("w", "n m", normal(1)), a, "n") * c, "n m"))
