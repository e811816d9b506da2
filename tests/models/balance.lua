-- All that keeps experts equally busy, on a router alone. `even` is counted from a
-- choice that is equal for all experts, whose number no power of two divides.
axes { batch=2, seq=12, expert=6, groups=3, vocab=16 }

local ids = input("tokens", "batch seq")
local logits = embed(ids, param("table", "vocab expert", normal(1)))
local p = softmax(logits, "expert")
loss("micro", balance_loss(p, 2, "expert", "batch seq"), 0.3)
loss("sequence", mean(balance_loss(p, 2, "expert", "seq"), "batch"), 0.2)
loss("global", global_balance_loss(p, 2, "expert", "batch seq"), 0.5)
loss("z", z_loss(logits, "expert", "batch seq"), 0.1)

local s, bias = sigmoid(logits), state("bias", "expert")
local _, e = topk(limit_groups(stop_gradient(s) + bias, "expert", "groups", 2, 1), 2, "expert")
balance_bias(bias, e, "expert", "batch seq top", 1e-3)
local even = index(mod(ids * 0 + iota("seq"), 6), "expert")
balance_bias(state("even", "expert"), even, "expert", "batch seq", 1e-3)
quantile_bias(state("quantile", "expert"), s, 2, "expert", "seq", "batch", 0.3)
train { batch=16, clip=0 }
