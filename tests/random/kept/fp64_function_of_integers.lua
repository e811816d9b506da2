-- precision=fp64: a function of integers is no fp32
axes { batch=4 }
loss("l", mean(silu(iota("batch")) * param("w", "batch", normal(1)), "batch"))
