-- Seed 911179: in pairs of micro-batches a dropout of post took its number from
-- the second of a pair.
axes { batch=2, seq=4, hidden=4, e=4, vocab=8 }
local tokens = input("tokens", "batch seq")
local t1 = embed(tokens, param("w0", "vocab hidden", normal(1)))
local t2 = dot(t1, param("w1", "hidden e", normal(1)), "hidden")
local g3, e3 = topk(softmax(t2, "e"), 2, "e")
local t4 = param("w2", "e hidden", normal(1))
local t5 = sum(g3 * t1 * t4[e3], "top")
metric("m1", sum(dropout(t4, 0.5), "e hidden"))
local s6 = state("s0", "e hidden", 0.1)
update(s6, s6 + dropout(t4, 0.5))
loss("l0", mean(tanh(t5) * s6, "batch seq hidden e"))
