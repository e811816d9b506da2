-- bf16: 1 - sigmoid(x) was 0 where the sigmoid rounds to 1
axes { m=24 }
local y = sigmoid(sum(param("w0", "m", normal(0.5)) ^ 2, "m"))
loss("l", y * y)
