-- pleat run % target=host 
axes { batch=2, seq=8, next=8, vocab=8 }
local x, y = input("tokens", "batch seq"), input("labels", "batch seq")
data { train="../data/indexed/a", split="9;1", order="megatron" }
local logits = embed(x, param("w", "vocab next", normal(0.1)))
loss("lm", mean(cross_entropy(logits, y, "next"), "batch seq"))
