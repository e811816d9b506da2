-- pleat compile % train.slices=3 -o /dev/null
axes { batch=2, seq=8, hidden=4, vocab=16 }
local x, labels = input("x", "batch seq hidden"), input("labels", "batch seq")
local logits = dot(x, param("head", "hidden vocab"), "hidden")
loss("l", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
