-- dp=2: a parameter's dropout has another mask in every micro-batch
axes { h=3, q=2 }
local t = dropout(param("w", "h q", normal(1)), 0.25)
loss("l", mean(t * t, "h q"))
