-- seed 3596: a result lay where an operand lay that a later stage read
axes { batch=4, seq=3, vocab=7, hidden=2, bucket3=4 }
local t24 = param("w5", "bucket3 seq hidden", normal(1))
loss("l0", mean(cross_entropy(scatter_add(embed(input("tokens", "batch seq"), param("w0", "vocab hidden", normal(1))), iota("batch"), t24, "bucket3") * t24, iota("seq"), "bucket3"), "seq hidden") + scope("b0", global_balance_loss, softmax(t24, "hidden"), 1, "hidden", "bucket3 seq"), 1)
