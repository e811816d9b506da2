-- Tokens to their experts' rows and back, unchanged: experts add nothing.
axes { batch=2, seq=8, hidden=4, expert=8, vocab=16 }

local tokens = input("tokens", "batch seq")
local x = embed(tokens, param("x", "vocab hidden", normal(1)))
local g, e = topk(softmax(embed(tokens, param("gate", "vocab expert", normal(1))), "expert"), 2, "expert")
local there = x + param("b", "expert hidden", zeros)[e]
metric("apart", max(abs(there - x), "batch seq top hidden"))
loss("y", sum(there * there * g, "batch seq top hidden"))
train { batch=16, clip=0 }
