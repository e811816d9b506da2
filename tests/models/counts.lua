-- A mean over all tokens that count, and a mean over sequences of their own means:
-- with unequal counts they differ, in the loss and in what a token's gradient weighs.
axes { batch=2, seq=8, class=8, vocab=8 }

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local logits = embed(tokens, param("table", "vocab class", normal(1)))
local counts = f32(lt(labels, 4))
local ce = counts * cross_entropy(f32(logits), labels, "class")
loss("token", sum(ce, "batch seq"), 0.7, sum(counts, "batch seq"))
loss("sequence", mean(sum(ce, "seq") / maximum(sum(counts, "seq"), 1), "batch"), 0.3)
train { batch=16, clip=0 }
