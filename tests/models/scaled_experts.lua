-- scaled.lua with an expert for each token: the first 100 have expert 0, none has
-- expert 1, one has 2, the others 3. Each expert's tokens are 2^10 times smaller than
-- those of the one before it.
axes { batch=1, seq=160, hidden=200, ffn=136, expert=4 }
local tokens = input("tokens", "batch seq")
local p, w, c = param("p", "seq hidden", normal(1)), param("w", "expert hidden ffn"), param("c", "seq ffn", normal(1))
local none = 0 * tokens
local at = iota("seq") + none
local e = where(lt(at, 100), none, where(lt(at, 101), none + 2, none + 3))
local small = where(lt(at, 100), 1, where(lt(at, 101), 2^-20, 2^-30))
loss("l", sum(dot(p * small, w[index(e, "expert")], "hidden") * c, "batch seq ffn"))
train { clip=0 }
