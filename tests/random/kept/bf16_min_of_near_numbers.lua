-- the two smallest numbers are one in bf16: no test there, and was taken for one
axes { seq=7, h=2, e=2, p=7, v=6 }
local t2 = param("w1", "v p", ones)
local t5 = z_loss(t2, "v", "p")
balance_bias(state("s0", "h", 0.1), argmax(param("w0", "h e", normal(1)), "h"), "h", "e", 0.01)
local t8 = rename(t2 * 0.7, {p="key1"})
loss("l0", min(dot(softmax(causal(param("x8", "p key1", normal(1)), "p", "key1"), "key1"), t8, "key1"), "p v") + t5, 2)
