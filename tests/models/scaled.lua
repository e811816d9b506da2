-- One product of a weight whose result and gradients are gradients themselves:
-- c has that of y, p that of x, w its own. Sizes that no block divides, rows of
-- zeros, columns of small numbers.
axes { batch=1, seq=160, hidden=200, ffn=136 }
local tokens = input("tokens", "batch seq")
local p, w, c = param("p", "seq hidden", normal(1)), param("w", "hidden ffn"), param("c", "seq ffn", normal(1))
local there = land(ge(tokens, 0), ge(iota("seq"), 16))
local x = where(there, p * where(lt(iota("hidden"), 100), 1, 2^-20), 0)
loss("l", sum(dot(x, w, "hidden") * c, "batch seq ffn"))
train { clip=0 }
